/* strait calibrate */
#include "tools/commands.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "kernels/codebook_file.h"
#include "internal/default_socket.h"
#include "tools/calibrate.h"
#include "tools/input.h"
#include "tools/kinds.h"
#include "tools/node_sample.h"
#include "tools/util.h"
#include "tools/files.h"

static const char usage[] =
    "usage: strait calibrate [OPTION]... FILE... -o SET\n"
    "       strait calibrate [OPTION]... --from-node -o SET\n"
    "\n"
    "Makes a codebook set of the BF16, FP16 and FP32 tensors in safetensors files: a table for each role (k, v, "
    "other)\n"
    "and layer, one for each kind of values of role other that one table fits, and a fallback made of all values.\n"
    "Reports for each class and kind what the codec will make of it.\n"
    "\n"
    "  -o, --output SET     write here; - is stdout, and the report goes to stderr\n"
    "  --class REGEX=ROLE   tensors whose name matches are of this role: k, v, kv or other; the first group of digits "
    "of\n"
    "                       the POSIX extended regex is the layer; a later rule goes before an earlier one\n"
    "  --global             make the fallback table only\n"
    "  --partial            write the counts, to be merged, instead of a set\n"
    "  --merge              FILEs are such counts: make the set that one run over everything would have made\n"
    "  --dtype TYPE         count only tensors of this type: bf16, fp16 or fp32; may be given several times (all "
    "three;\n"
    "                       with --raw or --from-node: bf16)\n"
    "  --raw                FILEs are values and nothing else, BF16 or of --dtype, of role other and of no layer\n"
    "  --from-node          instead of FILEs, ask the straitd of this node to count the values of pages that its "
    "pools\n"
    "                       offer or serve: all pools for root and straitd's own user, else those of this user; pages\n"
    "                       in GPU memory are passed over\n"
    "  --sample-bytes SIZE  with --from-node, look at so much at most, 4K to 64G (64M)\n"
    "  --seconds S          with --from-node, wait for so long at most, 0.1 to 600 (10)\n"
    "  --socket PATH        with --from-node, the daemon's socket (else $STRAIT_SOCKET, that of this user's own "
    "daemon\n"
    "                       in $XDG_RUNTIME_DIR, or /run/strait/straitd.sock)\n"
    "  -T, --threads N      threads, 0 for all processors (0)\n"
    "  -f, --force          replace SET; write to a terminal\n"
    "  --json               report as JSON\n"
    "  -q, --quiet          no report (but --json), no notes, no progress\n"
    "  -h, --help           print this\n"
    "\n"
    "The report: values counted; entropy of their exponents in bits; share of values in the 16 most frequent\n"
    "exponents; bits that mode tiered spends on an exponent; for both modes the expected ratio of full blocks,\n"
    "without tables, and the share of values that need an escape.\n"
    "\n"
    "Exit status: 0 done, 1 bad data, no sample, or failed input or output, 2 bad usage.\n";

#define SAMPLE_BYTES       (UINT64_C(64) << 20)
#define SAMPLE_BYTES_MIN   4096u
#define SAMPLE_SECONDS     10.0
#define SAMPLE_SECONDS_MIN 0.1

struct options {
    const char *output;
    unsigned threads;
    bool global, partial, merge, raw, json, quiet, force;
    bool has_rules;
    bool from_node;
    bool has_budget;             /* --sample-bytes or --seconds was given */
    const char *socket;          /* NULL: not given */
    struct node_sampling sample; /* without its elements and socket */
    uint32_t elements;           /* bit e: tensors of enum strait_element e are counted; 0: see wanted_elements */
    struct class_rules *rules;
    char **files;
    int file_count;
};

/* ---- Options --------------------------------------------------------------------------------------------------- */

static bool add_dtype(void *options, const char *text)
{
    return calibrate_add_dtype(&((struct options *)options)->elements, text);
}

static bool add_rule(void *options_, const char *rule)
{
    struct options *options = options_;
    options->has_rules = true;
    return calibrate_add_rule(options->rules, rule);
}

static bool set_sample_bytes(void *options_, const char *text)
{
    struct options *options = options_;
    options->has_budget = true;
    return option_size("--sample-bytes", text, SAMPLE_BYTES_MIN, NODE_SAMPLE_BYTES_MAX, &options->sample.bytes);
}

static bool set_seconds(void *options_, const char *text)
{
    struct options *options = options_;
    char *end;
    options->has_budget = true;
    options->sample.seconds = strtod(text, &end);
    if (end != text && *end == '\0' && options->sample.seconds >= SAMPLE_SECONDS_MIN &&
        options->sample.seconds <= NODE_SAMPLE_SECONDS_MAX)
        return true;
    print_error(NULL, "--seconds takes %g to %g, not '%s'", SAMPLE_SECONDS_MIN, NODE_SAMPLE_SECONDS_MAX, text);
    return false;
}

/* The same for options of --from-node. */
static const char *check_node_options(const struct options *options)
{
    if (!options->from_node)
        return options->has_budget || options->socket != NULL ? "--sample-bytes, --seconds and --socket are for "
                                                                "--from-node"
                                                              : NULL;
    if (options->file_count > 0)
        return "--from-node asks straitd, and reads no files";
    if (options->merge || options->raw || options->has_rules)
        return "--from-node knows roles and layers from the pools: no --merge, no --raw, no --class";
    return NULL;
}

/* Error in the combination of options, as text; NULL: none. */
static const char *check_options(const struct options *options)
{
    const char *why = check_node_options(options);
    if (why != NULL)
        return why;
    if (options->file_count == 0 && !options->from_node)
        return "no input files";
    if (options->output == NULL)
        return "no output: -o SET";
    if (options->merge && (options->raw || options->has_rules || options->elements != 0))
        return "--merge reads counts, whose classes are settled: no --class, no --raw, no --dtype";
    if (options->raw && (options->elements & (options->elements - 1)) != 0)
        return "--raw files are of one type: one --dtype";
    if (options->raw && options->has_rules)
        return "--raw files have no tensor names: no --class";
    if (options->partial && options->global)
        return "--partial keeps all classes: give --global when they are merged";
    return NULL;
}

/* False: there is nothing to do; *code is the exit status. */
static bool parse_options(struct options *options, int argc, char **argv, enum exit_code *code)
{
    const struct cli_option list[] = {
        {"output", 'o', .text = &options->output},
        {"class", .set = add_rule},
        {"global", .flag = &options->global},
        {"partial", .flag = &options->partial},
        {"merge", .flag = &options->merge},
        {"raw", .flag = &options->raw},
        {"threads", 'T', .threads = &options->threads},
        {"force", 'f', .flag = &options->force},
        {"json", .flag = &options->json},
        {"quiet", 'q', .flag = &options->quiet},
        {"dtype", .set = add_dtype, .values = "bf16 fp16 fp32"},
        {"from-node", .flag = &options->from_node},
        {"sample-bytes", .set = set_sample_bytes},
        {"seconds", .set = set_seconds},
        {"socket", .text = &options->socket},
    };
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), options, usage, argc, argv, code))
        return false;
    options->files = argv + optind;
    options->file_count = argc - optind;
    const char *why = check_options(options);
    *code = EXIT_CODE_USAGE;
    if (why != NULL)
        print_error(NULL, "%s", why);
    return why == NULL;
}

/* ---- Tensors --------------------------------------------------------------------------------------------------- */

/* Prints a hint for files that hold no tensors. */
static bool take_safetensors(struct tensors *tensors, const struct input *input, const struct class_rules *rules)
{
    if (codebook_file_probe(input->data, input->size)) {
        print_error(input->path, "a codebook or partial file, not tensors: --merge reads partial files");
        return false;
    }
    if (!safetensors_probe(input->data, input->size, input->size)) {
        print_error(input->path, "not a safetensors file; --raw takes any file as BF16 values");
        return false;
    }
    return tensors_take_safetensors(tensors, input, rules);
}

static uint32_t wanted_elements(const struct options *options)
{
    return options->elements == 0 ? TENSORS_BF16 : options->elements;
}

/* What is wanted, for messages. */
static const char *wanted_name(const struct options *options)
{
    return options->elements == 0 && !options->raw    ? "BF16, FP16 or FP32"
           : wanted_elements(options) == TENSORS_BF16 ? "BF16"
                                                      : "of --dtype";
}

static bool open_tensors(const struct options *options, struct tensors *tensors)
{
    const char *const *paths = (const char *const *)options->files;
    const unsigned count = (unsigned)options->file_count;

    return options->raw
               ? tensors_open(tensors, paths, count, tensors_take_raw, options->rules, wanted_elements(options))
               : tensors_open_kinds(tensors, paths, count, take_safetensors, options->rules, options->elements);
}

static bool count_files(const struct options *options, struct histograms *histograms, uint64_t *skipped)
{
    struct tensors tensors;
    struct progress progress;
    if (!open_tensors(options, &tensors))
        return false;
    progress_begin(&progress, "counting", tensors.bytes, options->quiet);
    bool counted = spans_count(&tensors.spans, NULL, options->threads, &progress, histograms, NULL);
    progress_end(&progress);
    if (counted && tensors.skipped > 0 && !options->quiet)
        print_error(NULL, "skipped %" PRIu64 " tensor%s not %s", tensors.skipped,
                    tensors.skipped == 1 ? " that is" : "s that are", wanted_name(options));
    *skipped = tensors.skipped;
    tensors_close(&tensors);
    return counted;
}

/* ---- Partial files --------------------------------------------------------------------------------------------- */

static const char *why_not_partial(const struct input *input, enum strait_status status)
{
    if (status == STRAIT_ERR_INVALID)
        return "a codebook set; --merge takes files made with --partial";
    if (status == STRAIT_ERR_CORRUPT && codebook_file_probe(input->data, input->size))
        return "a damaged partial file";
    if (status == STRAIT_ERR_CORRUPT)
        return "not a partial file: --merge takes files made with --partial";
    return strait_status_string(status);
}

static bool merge_input(const struct input *input, struct histograms *histograms)
{
    struct codebook_histogram *list;
    uint32_t count;
    enum strait_status status = codebook_partial_parse(input->data, input->size, &list, &count);
    if (status != STRAIT_OK) {
        print_error(input->path, "%s", why_not_partial(input, status));
        return false;
    }
    status = histograms_add(histograms, list, count);
    free(list);
    if (status != STRAIT_OK)
        print_error(input->path, "%s",
                    status == STRAIT_ERR_INVALID ? "its counts and those before do not fit 64 bits"
                                                 : strait_status_string(status));
    return status == STRAIT_OK;
}

/* The same counts twice are rather a slip than two machines with the same values. */
static void warn_of_twins(const struct options *options, const uint64_t *sums, int count)
{
    for (int i = 0; i < count; i++)
        if (sums[i] == sums[count]) {
            print_error(options->files[count], "warning: has the counts of %s, which are added twice",
                        options->files[i]);
            return;
        }
}

static bool merge_files(const struct options *options, struct histograms *histograms)
{
    uint64_t *sums = calloc((size_t)options->file_count, sizeof(*sums));
    bool merged = sums != NULL;
    if (sums == NULL)
        print_error(NULL, "out of memory");
    for (int i = 0; merged && i < options->file_count; i++) {
        struct input input;
        merged = input_open(&input, options->files[i]);
        if (!merged)
            break;
        sums[i] = XXH3_64bits(input.data, input.size);
        merged = merge_input(&input, histograms);
        input_close(&input);
        if (merged)
            warn_of_twins(options, sums, i);
    }
    free(sums);
    return merged;
}

/* ---- A running node ---------------------------------------------------------------------------------------------- */

static bool sample_node(const struct options *options, struct histograms *histograms, struct node_sample *sample)
{
    char own[SOCKET_PATH_MAX + 1];
    struct node_sampling asked = options->sample;
    asked.elements = wanted_elements(options);
    asked.socket = options->socket != NULL ? options->socket : socket_find(own);
    struct codebook_histogram *list;
    uint32_t count;
    if (!node_sample_take(&asked, &list, &count, sample))
        return false;
    enum strait_status status = histograms_add(histograms, list, count);
    free(list);
    if (status != STRAIT_OK)
        print_error(asked.socket, "%s", strait_status_string(status));
    return status == STRAIT_OK;
}

/* ---- Result ---------------------------------------------------------------------------------------------------- */

static enum strait_status serialize_partial(const struct histograms *histograms, uint8_t **bytes, size_t *size)
{
    *size = codebook_partial_serialized_size(histograms->list, histograms->count);
    *bytes = malloc(*size);
    return *bytes == NULL ? STRAIT_ERR_NO_MEMORY
                          : codebook_partial_serialize(histograms->list, histograms->count, *bytes, *size);
}

static enum strait_status serialize_set(const struct strait_codebook *codebook, uint8_t **bytes, size_t *size)
{
    *size = strait_codebook_serialized_size(codebook);
    *bytes = malloc(*size);
    return *bytes == NULL ? STRAIT_ERR_NO_MEMORY : strait_codebook_serialize(codebook, *bytes, *size);
}

static bool write_file(const struct options *options, const uint8_t *bytes, size_t size)
{
    struct output output;
    if (!output_open(&output, options->output, OUTPUT_MODE, options->force))
        return false;
    if (!output_write(&output, bytes, size)) {
        output_abandon(&output);
        return false;
    }
    return output_commit(&output);
}

static bool write_bytes(const struct options *options, enum strait_status status, const uint8_t *bytes, size_t size)
{
    if (status != STRAIT_OK)
        print_error(options->output, "%s",
                    status == STRAIT_ERR_NO_SPACE ? "too many classes for one partial file"
                                                  : strait_status_string(status));
    return status == STRAIT_OK && write_file(options, bytes, size);
}

static bool write_partial(const struct options *options, const struct histograms *histograms)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    const enum strait_status status = serialize_partial(histograms, &bytes, &size);
    const bool written = write_bytes(options, status, bytes, size);
    free(bytes);
    return written;
}

static bool write_set(const struct options *options, const struct strait_codebook *codebook)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    const enum strait_status status = serialize_set(codebook, &bytes, &size);
    const bool written = write_bytes(options, status, bytes, size);
    free(bytes);
    return written;
}

static bool print_report(const struct options *options, const struct calibrate_report *report)
{
    FILE *stream = strcmp(options->output, "-") == 0 ? stderr : stdout; /* stdout holds the set */
    if (options->json)
        return calibrate_report_json(report, stream);
    if (!options->quiet)
        calibrate_report_table(report, stream);
    return true;
}

/* The set that the counts make, whose kinds are joined. NULL: failed, with the error on stderr. */
static struct strait_codebook *make_set(const struct options *options, struct histograms *histograms)
{
    struct strait_codebook *codebook = NULL;
    uint32_t classes = 0;
    for (uint32_t i = 0; i < histograms->count; i++)
        classes += !kind_is(histograms->list[i].class);
    if (classes + KINDS_MAX >= STRAIT_CODEBOOK_TABLES_MAX && !options->global) {
        print_error(NULL, "%" PRIu32 " classes do not fit a set; --global or --class makes fewer", classes);
        return NULL;
    }
    enum strait_status status = kinds_join(histograms->list, &histograms->count);
    if (status == STRAIT_OK)
        status = histograms_codebook(histograms, options->global, &codebook);
    if (status != STRAIT_OK)
        print_error(NULL, "%s", strait_status_string(status));
    return status == STRAIT_OK ? codebook : NULL;
}

/* A partial file has kinds as they were counted: they are joined with those of other files. */
static bool finish(const struct options *options, struct histograms *histograms, uint64_t skipped,
                   const struct node_sample *sample)
{
    if (histograms->count == 0) {
        print_error(NULL, "no values in %d file%s that are %s", options->file_count,
                    options->file_count == 1 ? "" : "s", wanted_name(options));
        return false;
    }
    if (options->partial && !write_partial(options, histograms))
        return false;
    struct strait_codebook *codebook = make_set(options, histograms);
    const struct calibrate_report report = {
        .histograms = histograms, .codebook = codebook, .skipped = skipped, .sample = sample};
    const bool done =
        codebook != NULL && (options->partial || write_set(options, codebook)) && print_report(options, &report);
    strait_codebook_destroy(codebook);
    return done;
}

static bool calibrate(const struct options *options)
{
    struct histograms histograms = {0};
    struct node_sample sample;
    uint64_t skipped = 0;
    if (!output_allowed(options->output, options->force))
        return false;
    bool done = options->from_node ? sample_node(options, &histograms, &sample)
                : options->merge   ? merge_files(options, &histograms)
                                   : count_files(options, &histograms, &skipped);
    done = done && finish(options, &histograms, skipped, options->from_node ? &sample : NULL);
    histograms_fini(&histograms);
    return done;
}

static int run(struct options *options, int argc, char **argv)
{
    enum exit_code code;
    if (parse_options(options, argc, argv, &code))
        return calibrate(options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
    if (code == EXIT_CODE_USAGE)
        fputs("See strait calibrate --help\n", stderr);
    return code;
}

int cmd_calibrate(int argc, char **argv)
{
    static char name[] = "strait calibrate";
    struct options options = {.rules = class_rules_create(),
                              .threads = cpu_count(),
                              .sample = {.bytes = SAMPLE_BYTES, .seconds = SAMPLE_SECONDS}};
    command_begin(argv, name);
    int code = EXIT_CODE_DATA;
    if (options.rules != NULL)
        code = run(&options, argc, argv);
    else
        print_error(NULL, "out of memory");
    class_rules_destroy(options.rules);
    return code;
}
