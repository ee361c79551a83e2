/* strait decode */
#include "tools/commands.h"

#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "kernels/container.h"
#include "tools/batch.h"
#include "tools/decode_file.h"
#include "tools/tensor_file.h"
#include "tools/util.h"
#include "tools/files.h"
#include "tools/report.h"

#define SUFFIX BATCH_SUFFIX

static const char usage[] =
    "usage: strait decode [OPTION]... IN [OUT | -o OUT]\n"
    "       strait decode [OPTION]... --output-dir DIR IN...\n"
    "       strait decode --verify [OPTION]... IN\n"
    "       strait decode --tensor NAME [OPTION]... IN [OUT | -o OUT]\n"
    "\n"
    "Restores what strait encode was given, checked, to OUT (IN without its " SUFFIX "). - is stdin or stdout.\n"
    "OUT appears under its name only when all of it is right.\n"
    "\n"
    "  --verify             write nothing, check everything, name every bad page\n"
    "  --tensor NAME        only the values of this tensor, without a header, to OUT (stdout); the rest is not read\n"
    "  --codec NAME         variant of the codec: avx512, avx2, neon or scalar (the best here)\n"
    "  -T, --threads N      threads, 0 for all processors (0)\n"
    "  -o, --output OUT     the file to write, even in the place of a compressed file\n"
    "  --output-dir DIR     any number of IN: write each to DIR; of folders what ends in " SUFFIX ", copying others\n"
    "  -f, --force          replace OUT; write to a terminal\n"
    "  --json               report as JSON, of failures too: on stdout, or stderr when OUT is stdout\n"
    "  -q, --quiet          no report (but --json), no progress\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, 1 bad data or failed input or output, 2 bad usage.\n";

struct decode_options {
    const char *input;
    const char *output;   /* NULL: check only */
    const char *unnamed;  /* the output, if -o does not name it; NULL: it does, or files go to a folder */
    char *default_output; /* owned */
    const char *tensor;   /* NULL: all of the file */
    const char *folder;   /* --output-dir; NULL: one IN */
    char *const *inputs;  /* with it: files and folders */
    int input_count;
    const struct strait_codec *codec;
    unsigned threads;
    bool verify, json, quiet, force;
};

/* ---- Options --------------------------------------------------------------------------------------------------- */

/* IN without its suffix, in the same folder; stdout when the input is stdin. */
static bool set_default_output(struct decode_options *options)
{
    size_t length = strlen(options->input);

    if (strcmp(options->input, "-") == 0) {
        options->output = "-";
        return true;
    }
    if (length <= strlen(SUFFIX) || strcmp(options->input + length - strlen(SUFFIX), SUFFIX) != 0) {
        print_error(options->input, "its name does not end in " SUFFIX ", so OUT must be named");
        return false;
    }
    options->default_output = strndup(options->input, length - strlen(SUFFIX));
    options->output = options->default_output;
    return options->output != NULL;
}

static bool set_operands(struct decode_options *options, int count, char **operands)
{
    const int most = options->folder != NULL ? INT_MAX : options->verify || options->output != NULL ? 1 : 2;

    if (count < 1 || count > most) {
        print_error(NULL, count < 1 ? "which file? See strait decode --help"
                                    : "too many files; --output-dir takes any number");
        return false;
    }
    if (options->folder != NULL && options->output != NULL) {
        print_error(NULL, "--output is for one IN, --output-dir for several");
        return false;
    }
    if (options->verify && (options->output != NULL || options->folder != NULL)) {
        print_error(NULL, "--verify writes nothing: without --output");
        return false;
    }
    if (options->tensor != NULL && (options->verify || options->folder != NULL)) {
        print_error(NULL, "--tensor writes one file: without --verify, without --output-dir");
        return false;
    }
    options->input = operands[0];
    options->inputs = operands;
    options->input_count = count;
    if (options->folder != NULL)
        return true;
    if (options->verify || options->output != NULL)
        return true;
    if (count == 2 || options->tensor != NULL)
        options->output = count == 2 ? operands[1] : "-";
    else if (!set_default_output(options))
        return false;
    options->unnamed = options->output;
    return true;
}

/* ---- Report ---------------------------------------------------------------------------------------------------- */

struct decode_report {
    const struct decode_options *options;
    const struct decode_task *task;
    const struct decode_outcome *outcome;
    double seconds;
};

static const char *output_name(const struct decode_options *options)
{
    return strcmp(options->output, "-") == 0 ? "stdout" : options->output;
}

static double gigabytes_per_second(const struct decode_report *report)
{
    return report->seconds > 0 ? (double)report->outcome->unplain_bytes / 1e9 / report->seconds : 0;
}

static void print_report(const struct decode_report *report, FILE *stream)
{
    const struct decode_outcome *outcome = report->outcome;

    text_put(report->task->source->name, stream);
    fprintf(stream, ": %" PRIu64 " -> %" PRIu64 " bytes, ratio %.4f, %.2f s, %.2f GB/s (%s), %s\n", outcome->file_bytes,
            outcome->unplain_bytes, ratio_of(outcome->unplain_bytes, outcome->file_bytes), report->seconds,
            gigabytes_per_second(report), strait_codec_name(report->task->codec),
            report->options->verify ? "all checks passed" : "checked");
    totals_print(&outcome->totals, stream);
}

static bool print_json(const struct decode_report *report, FILE *stream)
{
    const struct decode_outcome *outcome = report->outcome;
    char hex[DIGEST_HEX_BYTES];
    cJSON *object = cJSON_CreateObject();

    digest_hex(hex, outcome->hash);
    cJSON_AddStringToObject(object, "input", report->task->source->name);
    if (!report->options->verify)
        cJSON_AddStringToObject(object, "output", output_name(report->options));
    cJSON_AddNumberToObject(object, "plain_bytes", (double)outcome->file_bytes);
    cJSON_AddNumberToObject(object, "original_bytes", (double)outcome->unplain_bytes);
    cJSON_AddNumberToObject(object, "ratio", ratio_of(outcome->unplain_bytes, outcome->file_bytes));
    cJSON_AddNumberToObject(object, "seconds", report->seconds);
    cJSON_AddNumberToObject(object, "gigabytes_per_second", gigabytes_per_second(report));
    cJSON_AddStringToObject(object, "codec", strait_codec_name(report->task->codec));
    cJSON_AddNumberToObject(object, "threads", report->task->threads);
    cJSON_AddNumberToObject(object, "table_bytes", (double)outcome->table_count * CONTAINER_TABLE_BYTES);
    totals_json(&outcome->totals, object);
    cJSON_AddStringToObject(object, "xxh3_128", hex);
    cJSON_AddBoolToObject(object, "verified", true);
    return json_print(object, stream);
}

/* When the output goes to stdout, the report goes to stderr. */
static FILE *json_stream(const struct decode_options *options)
{
    return options->output != NULL && strcmp(options->output, "-") == 0 ? stderr : stdout;
}

/* The errors that were printed to stderr, in machine-readable form. */
static void print_failures(const struct decode_options *options, size_t begin)
{
    size_t count;
    char *const *messages = errors_kept(&count);
    cJSON *object = cJSON_CreateObject(), *list;

    cJSON_AddStringToObject(object, "input", options->input);
    cJSON_AddBoolToObject(object, "verified", false);
    list = cJSON_AddArrayToObject(object, "failures");
    for (size_t i = begin; i < count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(messages[i]));
    json_print(object, json_stream(options));
}

static bool report(const struct decode_report *all)
{
    const struct decode_options *options = all->options;

    if (options->json)
        return print_json(all, json_stream(options));
    if (!options->quiet)
        print_report(all, stderr);
    return true;
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

static bool decode_source(const struct decode_options *options, struct source *source, struct output *output)
{
    struct progress progress;
    struct decode_outcome outcome;
    struct decode_task task = {
        .source = source,
        .codec = options->codec,
        .threads = options->threads,
        .output = output,
        .progress = &progress,
    };
    struct decode_report all = {.options = options, .task = &task, .outcome = &outcome};
    uint64_t started = clock_ns();
    bool decoded;

    progress_begin(&progress, options->verify ? "checking" : "decoding", SOURCE_SIZE_UNKNOWN, options->quiet);
    decoded = decode_file(&task, &outcome);
    progress_end(&progress);
    if (output != NULL && !decoded)
        output_abandon(output);
    if (!decoded || (output != NULL && !output_commit(output)))
        return false;
    all.seconds = (double)(clock_ns() - started) / 1e9;
    return report(&all);
}

static bool report_tensor(const struct decode_options *options, const struct source *source,
                          const struct tensor_outcome *outcome)
{
    if (options->json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "input", source->name);
        cJSON_AddStringToObject(object, "output", output_name(options));
        cJSON_AddStringToObject(object, "tensor", options->tensor);
        cJSON_AddStringToObject(object, "dtype", outcome->dtype);
        cJSON_AddNumberToObject(object, "original_bytes", (double)outcome->bytes);
        cJSON_AddNumberToObject(object, "read_bytes", (double)outcome->read_bytes);
        cJSON_AddBoolToObject(object, "verified", true);
        return json_print(object, json_stream(options));
    }
    if (options->quiet)
        return true;
    text_put(source->name, stderr);
    fprintf(stderr, ": %" PRIu64 " bytes of ", outcome->bytes);
    text_put(outcome->dtype, stderr);
    fprintf(stderr, ", checked; %" PRIu64 " of %" PRIu64 " bytes read\n", outcome->read_bytes, source->size);
    return true;
}

static bool decode_tensor(const struct decode_options *options, struct source *source, struct output *output)
{
    const struct tensor_task task = {
        .source = source, .name = options->tensor, .codec = options->codec, .output = output};
    struct tensor_outcome outcome;

    if (!source->seekable) {
        print_error(source->name, "is no file, where --tensor could look for one");
    } else if (tensor_decode(&task, &outcome)) {
        return output_commit(output) && report_tensor(options, source, &outcome);
    }
    output_abandon(output);
    return false;
}

static bool is_compressed(const uint8_t *head, uint64_t head_size, uint64_t size)
{
    return container_is_file(head, head_size) && size > head_size;
}

static bool decode_run(const struct decode_options *options)
{
    struct source source;
    struct output output;
    bool ok;

    if (!options->verify && !output_allowed(options->output, options->force))
        return false;
    if (!source_open(&source, options->input))
        return false;
    if (options->verify)
        ok = decode_source(options, &source, NULL);
    else
        ok = source_survives(&source, options->output) &&
             (options->unnamed == NULL || operand_is_output(options->unnamed, is_compressed, "is a compressed file")) &&
             output_open(&output, options->output, source.mode, options->force) &&
             (options->tensor != NULL ? decode_tensor(options, &source, &output)
                                      : decode_source(options, &source, &output));
    source_close(&source);
    return ok;
}

static enum exit_code decode_one(const struct decode_options *options)
{
    size_t before = 0;

    if (options->json)
        errors_kept(&before);
    if (decode_run(options))
        return EXIT_CODE_OK;
    if (options->json)
        print_failures(options, before);
    return EXIT_CODE_DATA;
}

static enum exit_code decode_file_of_batch(void *options, const char *input, const char *output)
{
    struct decode_options one = *(const struct decode_options *)options;
    one.input = input;
    one.output = output;
    return decode_one(&one);
}

static enum exit_code parse_and_run(struct decode_options *options, int argc, char **argv)
{
    const struct cli_option list[] = {
        {"verify", .flag = &options->verify},           {"codec", .codec = &options->codec},
        {"threads", 'T', .threads = &options->threads}, {"output", 'o', .text = &options->output},
        {"output-dir", .text = &options->folder},       {"tensor", .text = &options->tensor},
        {"force", 'f', .flag = &options->force},        {"json", .flag = &options->json},
        {"quiet", 'q', .flag = &options->quiet},
    };
    enum exit_code code;

    if (!options_parse(list, sizeof(list) / sizeof(list[0]), options, usage, argc, argv, &code))
        return code;
    if (!set_operands(options, argc - optind, argv + optind))
        return EXIT_CODE_USAGE;
    if (options->json)
        errors_keep();
    const struct batch_task task = {
        .folder = options->folder,
        .kind = BATCH_REMOVES,
        .force = options->force,
        .quiet = options->quiet || options->json,
        .work = decode_file_of_batch,
        .arg = options,
    };
    return options->folder != NULL ? batch_run(options->inputs, options->input_count, &task) : decode_one(options);
}

int cmd_decode(int argc, char **argv)
{
    static char name[] = "strait decode";
    struct decode_options options = {.codec = strait_codec_get(NULL), .threads = cpu_count()};
    enum exit_code code;

    command_begin(argv, name);
    code = parse_and_run(&options, argc, argv);
    free(options.default_output);
    return code;
}
