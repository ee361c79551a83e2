/* strait encode */
#include "tools/commands.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal/element.h"
#include "kernels/container.h"
#include "tools/batch.h"
#include "tools/calibrate.h"
#include "tools/encode_file.h"
#include "tools/kinds.h"
#include "tools/pipeline.h"
#include "tools/util.h"
#include "tools/tally.h"
#include "tools/files.h"
#include "tools/report.h"

#define CHUNK_BYTES_MAX ((uint64_t)1 << 30) /* with cutter_next's limits strait_encode_bound stays below 4 GiB */
#define SUFFIX          BATCH_SUFFIX

static const char usage[] =
    "usage: strait encode [OPTION]... IN [OUT | -o OUT]\n"
    "       strait encode [OPTION]... --output-dir DIR IN...\n"
    "\n"
    "Compresses IN, a safetensors file or plain values, to OUT (IN" SUFFIX "). - is stdin or stdout.\n"
    "\n"
    "  --codebook SET       use the tables of this set; without it, IN is read twice and calibrated on itself\n"
    "  --mode MODE          how exponents are coded (auto):\n"
    "                         auto    the smallest of split, base and parts, for each tensor or chunk\n"
    "                         split   BF16, FP16, FP32 with tables, FP8\n"
    "                         base    the same types without tables\n"
    "                         parts   the same types; leaves out bits that never change\n"
    "                         tiered  BF16 alone; top16 too, with fixed codes of 4 bits\n"
    "                         raw     nothing is coded\n"
    "  --class REGEX=ROLE   tensors whose name matches are of this role: k, v, kv or other; see strait calibrate\n"
    "  --dtype TYPE         what IN holds when it is no safetensors file: bf16 (default), fp16, fp32, fp8_e4m3 (or "
    "fp8),\n"
    "                       fp8_e5m2 or bytes\n"
    "  --raw                do not look for a safetensors header\n"
    "  --page SIZE          bytes of a page, a multiple of 16 (32K)\n"
    "  --chunk SIZE         bytes of a chunk before compression (4M)\n"
    "  --codec NAME         variant of the codec: avx512, avx2, neon or scalar (the best here)\n"
    "  -T, --threads N      threads, 0 for all processors (0)\n"
    "  -o, --output OUT     the file to write, even in the place of one that is not compressed\n"
    "  --output-dir DIR     any number of IN: write each to DIR by its name, with " SUFFIX
    "; of folders the safetensors\n"
    "                       files (with --dtype or --raw all), copying others\n"
    "  -f, --force          replace OUT, without -o only an empty or compressed file; write to a terminal\n"
    "  --json               report as JSON: on stdout, or stderr when OUT is stdout\n"
    "  -q, --quiet          no report (but --json), no progress\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, 1 bad data or failed input or output, 2 bad usage.\n";

struct encode_options {
    const char *input;
    const char *output;
    const char *unnamed;  /* the output, if -o does not name it; NULL: it does, or files go to a folder */
    char *default_output; /* owned */
    const char *folder;   /* --output-dir; NULL: one IN */
    char *const *inputs;  /* with it: files and folders */
    int input_count;
    const char *codebook; /* NULL: calibrate */
    enum strait_mode mode;
    enum strait_element element;
    struct class_rules *rules; /* owned */
    const struct strait_codec *codec;
    uint64_t page_bytes;
    uint64_t chunk_bytes;
    unsigned threads;
    bool plain; /* --dtype: files that are no safetensors files hold values of `element` */
    bool raw, json, quiet, force;
};

/* ---- Options --------------------------------------------------------------------------------------------------- */

static const char *const mode_names[] = {
    [STRAIT_MODE_AUTO] = "auto",     [STRAIT_MODE_RAW] = "raw",   [STRAIT_MODE_TOP16] = "top16",
    [STRAIT_MODE_TIERED] = "tiered", [STRAIT_MODE_BASE] = "base", [STRAIT_MODE_SPLIT] = "split",
    [STRAIT_MODE_PARTS] = "parts",
};

static bool set_mode(void *options_, const char *text)
{
    struct encode_options *options = options_;
    unsigned index;
    if (!option_name("--mode", text, mode_names, STRAIT_MODE_PARTS + 1, &index))
        return false;
    options->mode = (enum strait_mode)index;
    return true;
}

static bool set_dtype(void *options_, const char *text)
{
    struct encode_options *options = options_;
    static const char *const names[] = {"bytes", "bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "fp8"};
    static const enum strait_element elements[] = {
        STRAIT_ELEMENT_BYTES,    STRAIT_ELEMENT_BF16,     STRAIT_ELEMENT_FP16,    STRAIT_ELEMENT_FP32,
        STRAIT_ELEMENT_FP8_E4M3, STRAIT_ELEMENT_FP8_E5M2, STRAIT_ELEMENT_FP8_E4M3};
    unsigned index;
    if (!option_name("--dtype", text, names, 7, &index))
        return false;
    options->element = elements[index];
    options->plain = true;
    return true;
}

static bool add_class(void *options, const char *text)
{
    return calibrate_add_rule(((struct encode_options *)options)->rules, text);
}

static bool set_page(void *options_, const char *text)
{
    struct encode_options *options = options_;
    if (!option_size("--page", text, PLAN_PAGE_MULTIPLE, STRAIT_PAGE_BYTES_MAX, &options->page_bytes))
        return false;
    if (options->page_bytes % PLAN_PAGE_MULTIPLE == 0)
        return true;
    print_error(NULL, "--page takes a multiple of %u", PLAN_PAGE_MULTIPLE);
    return false;
}

static bool set_chunk(void *options, const char *text)
{
    return option_size("--chunk", text, PLAN_PAGE_MULTIPLE, CHUNK_BYTES_MAX,
                       &((struct encode_options *)options)->chunk_bytes);
}

/* IN.strait; stdout when the input is stdin. */
static bool set_default_output(struct encode_options *options)
{
    if (strcmp(options->input, "-") == 0) {
        options->output = "-";
        return true;
    }
    if (asprintf(&options->default_output, "%s" SUFFIX, options->input) < 0)
        options->default_output = NULL;
    options->output = options->default_output;
    return options->output != NULL;
}

static bool set_operands(struct encode_options *options, int count, char **operands)
{
    const int most = options->folder != NULL ? INT_MAX : options->output == NULL ? 2 : 1;

    if (count < 1 || count > most) {
        print_error(NULL, count < 1 ? "which file? See strait encode --help"
                                    : "takes IN and OUT only; --output-dir takes any number of IN");
        return false;
    }
    if (options->folder != NULL && options->output != NULL) {
        print_error(NULL, "--output is for one IN, --output-dir for several");
        return false;
    }
    if (options->page_bytes > options->chunk_bytes) {
        print_error(NULL, "--page is larger than --chunk");
        return false;
    }
    if (options->mode == STRAIT_MODE_BASE && options->codebook != NULL) {
        print_error(NULL, "--mode base has no use for a codebook");
        return false;
    }
    options->input = operands[0];
    options->inputs = operands;
    options->input_count = count;
    if (options->folder != NULL)
        return true;
    if (options->output != NULL)
        return true;
    if (count == 2)
        options->output = operands[1];
    else if (!set_default_output(options))
        return false;
    options->unnamed = options->output;
    return true;
}

/* Whether the codebook has to be made from the input: the mode needs one and none was named. */
static bool makes_codebook(const struct encode_options *options)
{
    return options->codebook == NULL && options->mode != STRAIT_MODE_RAW && options->mode != STRAIT_MODE_BASE &&
           options->mode != STRAIT_MODE_PARTS;
}

/* ---- Codebook -------------------------------------------------------------------------------------------------- */

/* The set that was named, or one made from the input. *codebook stays NULL when no value is coded with it. */
static bool get_codebook(const struct encode_options *options, struct source *source, struct plan *plan,
                         struct strait_codebook **codebook)
{
    struct progress progress;
    const struct tally_task task = {
        .source = source,
        .codec = options->codec,
        .page_bytes = options->page_bytes,
        .threads = options->threads,
        .progress = &progress,
    };
    bool made;

    *codebook = NULL;
    if (options->codebook != NULL) {
        if (!codebook_load(options->codebook, codebook))
            return false;
        plan_use_tables(plan, *codebook);
        return true;
    }
    if (!makes_codebook(options) || !plan_has_tables(plan))
        return true;
    progress_begin(&progress, "calibrating", source->size - plan->preamble_bytes, options->quiet);
    made = tally_codebook(&task, plan, codebook);
    progress_end(&progress);
    return made;
}

/* ---- Report ---------------------------------------------------------------------------------------------------- */

#define TYPE_HINT_BYTES 4096u

struct encode_report {
    const struct encode_task *task;
    const struct encode_outcome *outcome;
    const char *output;
    const char *mode;
    double seconds; /* of all passes over the input */
};

static uint64_t table_bytes(const struct encode_report *report)
{
    const struct strait_codebook *codebook = report->task->codebook;
    return codebook == NULL ? 0 : (uint64_t)strait_codebook_count(codebook) * CONTAINER_TABLE_BYTES;
}

/* Uncompressed bytes per nanosecond. */
static double gigabytes_per_second(const struct encode_report *report)
{
    return report->seconds > 0 ? (double)report->outcome->unplain_bytes / 1e9 / report->seconds : 0;
}

/* The type of plain values, which the plan's list does not name. NULL when there are none, or for tensors. */
static const char *plain_type(const struct encode_report *report)
{
    const struct plan *plan = report->task->plan;
    bool plain = plan->dtype_count == 0 && plan->preamble_bytes == 0 && report->outcome->unplain_bytes > 0;
    return plain ? element_name(plan->segments[0].element) : NULL;
}

static const char *why_carried(const struct plan *plan)
{
    return plan_codes(plan, STRAIT_ELEMENT_FP32) ? "not BF16, FP16, FP32 or FP8" : "not BF16";
}

static void print_carried_plain(const struct encode_report *report, FILE *stream)
{
    const char *type = plain_type(report);

    if (type != NULL && !plan_codes(report->task->plan, report->task->plan->segments[0].element))
        fprintf(stream, "  carried uncompressed (%s): %" PRIu64 " bytes%s%s\n", why_carried(report->task->plan),
                report->outcome->unplain_bytes, strcmp(type, "bytes") == 0 ? "" : " of ",
                strcmp(type, "bytes") == 0 ? "" : type);
}

/* Lists the types that are stored unchanged, which explains the ratio. */
static void print_carried(const struct plan *plan, FILE *stream)
{
    char first[64];
    const char *separator = first;

    snprintf(first, sizeof(first), "  carried uncompressed (%s): ", why_carried(plan));
    for (uint32_t i = 0; i < plan->dtype_count; i++) {
        const struct dtype_sum *sum = &plan->dtypes[i];
        if (plan_codes(plan, sum->element) || sum->bytes == 0)
            continue;
        fprintf(stream, "%s%" PRIu64 " ", separator, sum->tensors);
        text_put(sum->name, stream);
        fprintf(stream, " tensor%s, %" PRIu64 " bytes", sum->tensors == 1 ? "" : "s", sum->bytes);
        separator = "; ";
    }
    if (separator[0] == ';')
        fputc('\n', stream);
}

/* ---- Drift: whether a set still fits ---- */

#define DRIFT_ADVICE "; warning: the codebook set does not fit these values, calibrate one anew"

/* Bits that the values of a table spend on an exponent, beside 8 of sign and mantissa; 0: it has none. */
static double bits_spent(const struct encode_report *report, uint32_t table)
{
    const struct spent *spent = report->task->spent == NULL ? NULL : &report->task->spent[table];
    const double bits =
        spent == NULL || spent->values == 0 ? 0 : 8.0 * (double)spent->bytes / (double)spent->values - 8;

    return bits > 0 ? bits : 0;
}

static double bits_expected(const struct encode_report *report, uint32_t table)
{
    return strait_codebook_expected(report->task->codebook, table) / 1000.0;
}

static bool table_has_drifted(const struct encode_report *report, uint32_t table)
{
    const double expected = bits_expected(report, table);

    return expected > 0 && bits_spent(report, table) > expected * STRAIT_CODEBOOK_FITS;
}

static uint32_t named_tables(const struct encode_report *report)
{
    return report->task->spent == NULL ? 0 : strait_codebook_count(report->task->codebook);
}

static bool has_drifted(const struct encode_report *report)
{
    if (ratio_of(report->outcome->table_bytes, report->outcome->kept_bytes) > STRAIT_CODEBOOK_FITS)
        return true;
    for (uint32_t t = 0; t < named_tables(report); t++)
        if (table_has_drifted(report, t))
            return true;
    return false;
}

static void print_drift(const struct encode_report *report, FILE *stream)
{
    const struct encode_outcome *outcome = report->outcome;
    uint32_t used = 0, drifted = 0, worst = 0;

    for (uint32_t t = 0; t < named_tables(report); t++) {
        const bool has = table_has_drifted(report, t);
        used += bits_spent(report, t) > 0;
        if (has && (drifted == 0 || bits_spent(report, t) / bits_expected(report, t) >
                                        bits_spent(report, worst) / bits_expected(report, worst)))
            worst = t;
        drifted += has;
    }
    if (drifted > 0) {
        char name[CLASS_NAME_BYTES];
        class_name(name, strait_codebook_class(report->task->codebook, worst));
        fprintf(stream,
                "  %" PRIu32 " of %" PRIu32 " tables spend over 5%% more than the set expects, table %" PRIu32
                " (%s) %.3f bits for an exponent instead of %.3f\n",
                drifted, used, worst, name, bits_spent(report, worst), bits_expected(report, worst));
    }
    if (outcome->base_bytes > 0 || drifted > 0)
        fprintf(stream, "  mode base instead of tables: %.1f%% of the bytes that are coded%s\n",
                100 * ratio_of(outcome->base_bytes, outcome->chosen_bytes), has_drifted(report) ? DRIFT_ADVICE : "");
}

static void add_tables(cJSON *object, const struct encode_report *report)
{
    cJSON *list = named_tables(report) > 0 ? cJSON_AddArrayToObject(object, "tables") : NULL;

    for (uint32_t t = 0; t < named_tables(report); t++) {
        if (report->task->spent[t].values == 0)
            continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "table", t);
        class_json(item, strait_codebook_class(report->task->codebook, t));
        cJSON_AddNumberToObject(item, "values", (double)report->task->spent[t].values);
        cJSON_AddNumberToObject(item, "bits", bits_spent(report, t));
        json_add_known(item, "expected_bits", bits_expected(report, t));
        cJSON_AddItemToArray(list, item);
    }
}

/* Plain values that do not shrink are often of another type than they were taken for. */
static void print_type_hint(const struct encode_report *report, FILE *stream)
{
    const char *type = plain_type(report);
    const uint64_t before = report->outcome->unplain_bytes, after = report->outcome->file_bytes;

    if (type != NULL && before >= TYPE_HINT_BYTES && after >= before && plan_has_tables(report->task->plan))
        fprintf(stream, "  nothing is gained as values of type %s; --dtype says what they are\n", type);
}

static void print_report(const struct encode_report *report, FILE *stream)
{
    const struct encode_outcome *outcome = report->outcome;

    text_put(report->task->source->name, stream);
    fprintf(stream, ": %" PRIu64 " -> %" PRIu64 " bytes, ratio %.4f, %.2f s, %.2f GB/s (%s)\n", outcome->unplain_bytes,
            outcome->file_bytes, ratio_of(outcome->unplain_bytes, outcome->file_bytes), report->seconds,
            gigabytes_per_second(report), strait_codec_name(report->task->codec));
    if (table_bytes(report) > 0)
        fprintf(stream, "  codebook: %" PRIu32 " tables, %" PRIu64 " bytes of the file\n",
                strait_codebook_count(report->task->codebook), table_bytes(report));
    totals_print(&outcome->totals, stream);
    print_drift(report, stream);
    print_carried(report->task->plan, stream);
    print_carried_plain(report, stream);
    print_type_hint(report, stream);
}

static void add_dtype(cJSON *list, const char *name, uint64_t tensors, uint64_t bytes, bool compressed)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "dtype", name);
    cJSON_AddNumberToObject(item, "tensors", (double)tensors);
    cJSON_AddNumberToObject(item, "bytes", (double)bytes);
    cJSON_AddBoolToObject(item, "compressed", compressed);
    cJSON_AddItemToArray(list, item);
}

static void add_dtypes(cJSON *object, const struct encode_report *report)
{
    const struct plan *plan = report->task->plan;
    const char *type = plain_type(report);
    cJSON *list = cJSON_AddArrayToObject(object, "dtypes");

    if (type != NULL)
        add_dtype(list, type, 0, report->outcome->unplain_bytes, plan_codes(plan, plan->segments[0].element));
    for (uint32_t i = 0; i < plan->dtype_count; i++) {
        const struct dtype_sum *sum = &plan->dtypes[i];
        add_dtype(list, sum->name, sum->tensors, sum->bytes, plan_codes(plan, sum->element));
    }
}

static cJSON *describe(const struct encode_report *report)
{
    const struct encode_outcome *outcome = report->outcome;
    char hex[DIGEST_HEX_BYTES];
    cJSON *object = cJSON_CreateObject();

    digest_hex(hex, outcome->hash);
    cJSON_AddStringToObject(object, "input", report->task->source->name);
    cJSON_AddStringToObject(object, "output", report->output);
    cJSON_AddNumberToObject(object, "original_bytes", (double)outcome->unplain_bytes);
    cJSON_AddNumberToObject(object, "plain_bytes", (double)outcome->file_bytes);
    cJSON_AddNumberToObject(object, "ratio", ratio_of(outcome->unplain_bytes, outcome->file_bytes));
    cJSON_AddNumberToObject(object, "seconds", report->seconds);
    cJSON_AddNumberToObject(object, "gigabytes_per_second", gigabytes_per_second(report));
    cJSON_AddStringToObject(object, "codec", strait_codec_name(report->task->codec));
    cJSON_AddStringToObject(object, "mode", report->mode);
    cJSON_AddNumberToObject(object, "threads", report->task->threads);
    if (report->task->codebook != NULL)
        json_add_hex(object, "codebook_id", strait_codebook_id(report->task->codebook), STRAIT_CODEBOOK_ID_BYTES);
    cJSON_AddNumberToObject(object, "table_bytes", (double)table_bytes(report));
    totals_json(&outcome->totals, object);
    cJSON_AddNumberToObject(object, "base_instead_of_tables", ratio_of(outcome->base_bytes, outcome->chosen_bytes));
    cJSON_AddBoolToObject(object, "codebook_fits", !has_drifted(report));
    add_tables(object, report);
    add_dtypes(object, report);
    cJSON_AddStringToObject(object, "xxh3_128", hex);
    return object;
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

static bool report(const struct encode_options *options, const struct encode_task *task,
                   const struct encode_outcome *outcome, uint64_t started)
{
    struct encode_report all = {
        .task = task,
        .outcome = outcome,
        .output = strcmp(options->output, "-") == 0 ? "stdout" : options->output,
        .mode = mode_names[options->mode],
        .seconds = (double)(clock_ns() - started) / 1e9,
    };
    if (options->json)
        return json_print(describe(&all), strcmp(options->output, "-") == 0 ? stderr : stdout);
    if (!options->quiet)
        print_report(&all, stderr);
    return true;
}

static bool encode_to(const struct encode_options *options, struct encode_task *task, uint64_t started)
{
    struct progress progress;
    struct encode_outcome outcome;
    struct output output;
    uint64_t size = task->source->size;
    bool encoded;

    if (!output_open(&output, options->output, task->source->mode, options->force))
        return false;
    progress_begin(&progress, "encoding", size == SOURCE_SIZE_UNKNOWN ? size : size - task->plan->preamble_bytes,
                   options->quiet);
    task->output = &output;
    task->progress = &progress;
    encoded = encode_file(task, &outcome);
    progress_end(&progress);
    if (!encoded) {
        output_abandon(&output);
        return false;
    }
    return output_commit(&output) && report(options, task, &outcome, started);
}

/* Whether the mode that was asked for by name codes any of the values. */
static bool mode_applies(const struct encode_options *options, const struct plan *plan)
{
    if (options->mode == STRAIT_MODE_AUTO || options->mode == STRAIT_MODE_RAW || plan->segment_count == 0)
        return true;
    for (uint32_t i = 0; i < plan->segment_count; i++)
        if (plan_codes(plan, plan->segments[i].element))
            return true;
    print_error(NULL, "--mode %s codes no values of this input: %s", mode_names[options->mode], why_carried(plan));
    return false;
}

static bool encode_source(const struct encode_options *options, struct source *source, uint64_t started,
                          enum exit_code *code)
{
    struct strait_codebook *codebook;
    struct plan plan;
    bool ok = false;

    if (!examine(&plan, source, options->rules, options->element, options->raw))
        return false;
    plan_set_mode(&plan, options->mode);
    *code = mode_applies(options, &plan) ? EXIT_CODE_DATA : EXIT_CODE_USAGE;
    if (*code == EXIT_CODE_DATA && get_codebook(options, source, &plan, &codebook)) {
        struct spent *spent =
            options->codebook == NULL ? NULL : calloc(strait_codebook_count(codebook), sizeof(*spent));
        struct encode_task task = {
            .source = source,
            .plan = &plan,
            .codebook = codebook,
            .codec = options->codec,
            .spent = spent,
            .fits = options->codebook != NULL,
            .chooses = options->mode == STRAIT_MODE_AUTO && options->codebook != NULL,
            .tries_parts = options->mode == STRAIT_MODE_AUTO,
            .page_bytes = options->page_bytes,
            .chunk_bytes = options->chunk_bytes,
            .threads = options->threads,
        };
        ok = encode_to(options, &task, started);
        free(spent);
        strait_codebook_destroy(codebook);
    }
    plan_fini(&plan);
    return ok;
}

/* Any file may be an input, and a loss, but for what was compressed: a file, or a chunk. */
static bool is_foreign(const uint8_t *head, uint64_t head_size, uint64_t size)
{
    struct strait_chunk_info info;
    (void)size;
    return !container_is_file(head, head_size) && strait_chunk_info(head, head_size, &info) != STRAIT_OK;
}

/* Calibration reads the input twice, which is impossible with a pipe. */
static bool must_spool(const struct encode_options *options, const struct source *source)
{
    return !source->seekable && makes_codebook(options);
}

static enum exit_code encode_run(const struct encode_options *options)
{
    uint64_t started = clock_ns();
    enum exit_code code = EXIT_CODE_DATA;
    struct source source;
    bool ok;

    if (!output_allowed(options->output, options->force) || !source_open(&source, options->input))
        return EXIT_CODE_DATA;
    ok = source_survives(&source, options->output) &&
         (options->unnamed == NULL || operand_is_output(options->unnamed, is_foreign, "is no compressed file")) &&
         (!must_spool(options, &source) || source_spool(&source));
    ok = ok && encode_source(options, &source, started, &code);
    source_close(&source);
    return ok ? EXIT_CODE_OK : code;
}

static enum exit_code encode_file_of_batch(void *options, const char *input, const char *output)
{
    struct encode_options one = *(const struct encode_options *)options;
    one.input = input;
    one.output = output;
    return encode_run(&one);
}

/* Whether a file of a folder is encoded: as --dtype does not say that it holds plain values, a safetensors file is. One
 * that is compressed already is refused, rather than copied and then decoded. */
static bool has_tensors(const char *path)
{
    uint8_t head[FILE_HEAD_BYTES];
    uint64_t got, size;

    return !file_head(path, head, &got, &size) || safetensors_probe(head, got, size) || container_is_file(head, got);
}

static enum exit_code parse_and_run(struct encode_options *options, int argc, char **argv)
{
    const struct cli_option list[] = {
        {"codebook", .text = &options->codebook},
        {"mode", .set = set_mode, .values = "auto tiered top16 raw split base parts"},
        {"class", .set = add_class},
        {"dtype", .set = set_dtype, .values = "bf16 fp16 fp32 fp8_e4m3 fp8_e5m2 bytes"},
        {"raw", .flag = &options->raw},
        {"page", .set = set_page},
        {"chunk", .set = set_chunk},
        {"codec", .codec = &options->codec},
        {"threads", 'T', .threads = &options->threads},
        {"output", 'o', .text = &options->output},
        {"output-dir", .text = &options->folder},
        {"force", 'f', .flag = &options->force},
        {"json", .flag = &options->json},
        {"quiet", 'q', .flag = &options->quiet},
    };
    enum exit_code code;

    if (!options_parse(list, sizeof(list) / sizeof(list[0]), options, usage, argc, argv, &code))
        return code;
    if (!set_operands(options, argc - optind, argv + optind))
        return EXIT_CODE_USAGE;
    const struct batch_task task = {
        .folder = options->folder,
        .kind = BATCH_ADDS,
        .has_values = options->plain || options->raw ? NULL : has_tensors,
        .force = options->force,
        .quiet = options->quiet || options->json,
        .work = encode_file_of_batch,
        .arg = options,
    };
    return options->folder != NULL ? batch_run(options->inputs, options->input_count, &task) : encode_run(options);
}

int cmd_encode(int argc, char **argv)
{
    static char name[] = "strait encode";
    struct encode_options options = {
        .mode = STRAIT_MODE_AUTO,
        .element = STRAIT_ELEMENT_BF16,
        .rules = class_rules_create(),
        .codec = strait_codec_get(NULL),
        .page_bytes = 32 * 1024,
        .chunk_bytes = 4 * 1024 * 1024,
        .threads = cpu_count(),
    };
    enum exit_code code = EXIT_CODE_DATA;

    command_begin(argv, name);
    if (options.rules == NULL)
        print_error(NULL, "out of memory");
    else
        code = parse_and_run(&options, argc, argv);
    class_rules_destroy(options.rules);
    free(options.default_output);
    return code;
}
