/* strait checkpoint inspect */
#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/checkpoint_open.h"
#include "tools/checkpoint_parts.h"
#include "tools/checkpoint_survey.h"
#include "tools/files.h"
#include "tools/report.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait checkpoint inspect [OPTION]... PATH\n"
    "\n"
    "Tells what is in a checkpoint: its tensors, and sums of each kind of them (weights, moments and so on, by their\n"
    "names) and of each mode of blocks. The index, footers and metadata of chunks are checked; strait checkpoint\n"
    "verify checks the values too. Of a folder of checkpoints: which are whole, which is the newest, and what the\n"
    "others lack.\n"
    "\n"
    "      --shards         one line for each shard too\n"
    "      --svg FILE       draw the sizes of kinds, raw and stored, to FILE\n"
    "  -f, --force          replace FILE\n"
    "      --json           report as JSON\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 done, 1 bad data, no whole checkpoint, or failed input or output, 2 bad usage.\n";

struct inspect_options {
    bool json, shards, force;
    const char *svg;
};

/* ---- A folder of checkpoints ------------------------------------------------------------------------------------- */

struct candidates {
    cJSON *list; /* with --json */
    bool found;
};

static void time_text(uint64_t ns, char text[40])
{
    const time_t seconds = (time_t)(ns / 1000000000);
    struct tm parts;
    if (ns == 0 || gmtime_r(&seconds, &parts) == NULL || strftime(text, 40, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
        snprintf(text, 40, "-");
}

static void take_candidate(void *context, const struct strait_checkpoint_candidate *one)
{
    struct candidates *candidates = context;
    const bool whole = one->why[0] == '\0', newest = whole && !candidates->found;
    char when[40], *path = text_printable(one->path), *why = text_printable(one->why);
    time_text(one->committed_ns, when);
    candidates->found |= whole;
    if (candidates->list != NULL) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "path", one->path);
        cJSON_AddBoolToObject(item, "whole", whole);
        cJSON_AddBoolToObject(item, "newest", newest);
        cJSON_AddNumberToObject(item, "committed_ns", (double)one->committed_ns);
        if (!whole)
            cJSON_AddStringToObject(item, "why", one->why);
        cJSON_AddItemToArray(candidates->list, item);
    } else {
        printf("%-23s  %-9s %s%s%s\n", when,
               newest  ? "newest"
               : whole ? "whole"
                       : "NOT WHOLE",
               path != NULL ? path : "", whole ? "" : ": ", why != NULL ? why : "");
    }
    free(path);
    free(why);
}

static bool inspect_folder(const char *path, const struct inspect_options *options)
{
    struct candidates candidates = {.list = options->json ? cJSON_CreateArray() : NULL};
    char newest[PATH_MAX];
    const enum strait_status status =
        strait_checkpoint_newest(path, take_candidate, &candidates, newest, sizeof(newest));
    bool done = status == STRAIT_OK || status == STRAIT_ERR_NO_SPACE;
    if (!done)
        print_error(path, "%s",
                    status == STRAIT_ERR_INVALID ? "no whole checkpoint in it" : strait_status_string(status));
    if (options->json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "input", path);
        cJSON_AddStringToObject(object, "kind", "folder");
        cJSON_AddItemToObject(object, "checkpoints", candidates.list);
        done &= json_print(object, stdout);
    }
    return done;
}

/* ---- A checkpoint, for people ------------------------------------------------------------------------------------ */

#define FORM_BYTES 200

/* "4096x1024", "scalar". */
static void shape_text(const uint64_t *shape, uint32_t dims, char text[FORM_BYTES])
{
    size_t used = 0;
    snprintf(text, FORM_BYTES, "scalar");
    for (uint32_t d = 0; d < dims && used < FORM_BYTES; d++)
        used += (size_t)snprintf(text + used, FORM_BYTES - used, "%s%" PRIu64, d == 0 ? "" : "x", shape[d]);
}

static void print_bytes(const struct survey_bytes *bytes)
{
    printf(" %15" PRIu64 " %15" PRIu64, bytes->raw, bytes->stored);
    if (bytes->stored > 0)
        printf(" %8.4f", ratio_of(bytes->raw, bytes->stored));
    else
        printf(" %8s", "-");
}

static void print_shards(struct strait_checkpoint_reader *reader, uint32_t tensor,
                         const struct strait_checkpoint_tensor_info *info)
{
    struct strait_checkpoint_shard_info shard;
    for (uint32_t s = 0; s < info->shard_count; s++) {
        char at[FORM_BYTES], size[FORM_BYTES];
        (void)strait_checkpoint_shard_at(reader, tensor, s, &shard);
        shape_text(shard.offsets, info->dims, at);
        shape_text(shard.sizes, info->dims, size);
        printf("  %s: %s from %s", shard.file, size, at);
        if (shard.rounded_from != NULL) {
            char *name = text_printable(shard.rounded_from);
            printf(", the rounding of %s", name != NULL ? name : "");
            free(name);
        } else if (shard.stored_bytes != UINT64_MAX) {
            printf(", %" PRIu64 " -> %" PRIu64 " bytes", shard.bytes, shard.stored_bytes);
        }
        putchar('\n');
    }
}

static void print_tensors(struct strait_checkpoint_reader *reader, const struct checkpoint_survey *survey, bool shards)
{
    struct strait_checkpoint_tensor_info info;
    printf("%-8s %7s %15s %15s %8s  %s\n", "type", "shards", "bytes", "stored", "ratio", "tensor, shape");
    for (uint32_t t = 0; strait_checkpoint_tensor_at(reader, t, &info); t++) {
        char shape[FORM_BYTES], *name = text_printable(info.name);
        shape_text(info.shape, info.dims, shape);
        printf("%-8s %7" PRIu32, info.dtype, info.shard_count);
        print_bytes(&survey->tensors[t].all);
        printf("  %s  %s%s\n", name != NULL ? name : "", shape,
               survey->tensors[t].unreadable ? "  (a file of it cannot be read)" : "");
        free(name);
        if (shards)
            print_shards(reader, t, &info);
    }
}

static void print_kinds(const struct checkpoint_survey *survey)
{
    printf("\n%-28s %8s %15s %15s %8s  %s\n", "kind", "tensors", "bytes", "stored", "ratio",
           "stored by modes of blocks");
    for (uint32_t k = 0; k < survey->kind_count; k++) {
        const struct survey_kind *kind = &survey->kinds[k];
        printf("%-18s %-9s %8" PRIu64, kind->name, kind->dtype, kind->tensors);
        print_bytes(&kind->all);
        printf(" ");
        for (unsigned m = 0; m < SURVEY_MODES; m++)
            if (kind->modes[m].raw > 0)
                printf(" %s %.1f%%", survey_mode_name(m), 100 * ratio_of(kind->modes[m].stored, kind->all.stored));
        putchar('\n');
    }
}

static void print_checkpoint(struct strait_checkpoint_reader *reader, const char *path,
                             const struct checkpoint_survey *survey, const struct inspect_options *options)
{
    struct strait_checkpoint_info info;
    struct strait_checkpoint_attachment attachment;
    char when[40], *name = text_printable(path);
    strait_checkpoint_describe(reader, &info);
    time_text(info.committed_ns, when);
    printf("%s: checkpoint of %" PRIu32 " tensors in %" PRIu32 " files, committed %s\n", name != NULL ? name : "",
           info.tensor_count, info.file_count, when);
    free(name);
    printf("  size        %" PRIu64 " -> %" PRIu64 " bytes, ratio %.4f\n", info.raw_bytes, info.stored_bytes,
           ratio_of(info.raw_bytes, info.stored_bytes));
    for (uint32_t a = 0; strait_checkpoint_attachment_at(reader, a, &attachment); a++) {
        name = text_printable(attachment.name);
        printf("  attachment  %s, %" PRIu64 " bytes\n", name != NULL ? name : "", attachment.bytes);
        free(name);
    }
    print_tensors(reader, survey, options->shards);
    print_kinds(survey);
}

/* ---- As JSON ----------------------------------------------------------------------------------------------------- */

static cJSON *numbers_json(const uint64_t *numbers, uint32_t count)
{
    cJSON *list = cJSON_CreateArray();
    for (uint32_t i = 0; i < count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)numbers[i]));
    return list;
}

static void bytes_json(cJSON *object, const struct survey_bytes *bytes)
{
    cJSON_AddNumberToObject(object, "bytes", (double)bytes->raw);
    cJSON_AddNumberToObject(object, "stored_bytes", (double)bytes->stored);
}

static cJSON *shards_json(struct strait_checkpoint_reader *reader, uint32_t tensor,
                          const struct strait_checkpoint_tensor_info *info)
{
    cJSON *list = cJSON_CreateArray();
    struct strait_checkpoint_shard_info shard;
    for (uint32_t s = 0; strait_checkpoint_shard_at(reader, tensor, s, &shard); s++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "file", shard.file);
        cJSON_AddItemToObject(item, "offsets", numbers_json(shard.offsets, info->dims));
        cJSON_AddItemToObject(item, "sizes", numbers_json(shard.sizes, info->dims));
        cJSON_AddNumberToObject(item, "bytes", (double)shard.bytes);
        if (shard.stored_bytes != UINT64_MAX)
            cJSON_AddNumberToObject(item, "stored_bytes", (double)shard.stored_bytes);
        if (shard.rounded_from != NULL)
            cJSON_AddStringToObject(item, "rounded_from", shard.rounded_from);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static cJSON *kinds_json(const struct checkpoint_survey *survey)
{
    cJSON *list = cJSON_CreateArray();
    for (uint32_t k = 0; k < survey->kind_count; k++) {
        const struct survey_kind *kind = &survey->kinds[k];
        cJSON *item = cJSON_CreateObject(), *modes;
        cJSON_AddStringToObject(item, "kind", kind->name);
        cJSON_AddStringToObject(item, "dtype", kind->dtype);
        cJSON_AddNumberToObject(item, "tensors", (double)kind->tensors);
        bytes_json(item, &kind->all);
        modes = cJSON_AddObjectToObject(item, "modes");
        for (unsigned m = 0; m < SURVEY_MODES; m++)
            if (kind->modes[m].raw > 0)
                bytes_json(cJSON_AddObjectToObject(modes, survey_mode_name(m)), &kind->modes[m]);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static bool print_json(struct strait_checkpoint_reader *reader, const char *path,
                       const struct checkpoint_survey *survey, const struct inspect_options *options)
{
    cJSON *object = cJSON_CreateObject(), *list;
    struct strait_checkpoint_info info;
    struct strait_checkpoint_tensor_info tensor;
    struct strait_checkpoint_attachment attachment;
    strait_checkpoint_describe(reader, &info);
    cJSON_AddStringToObject(object, "input", path);
    cJSON_AddStringToObject(object, "kind", "checkpoint");
    json_add_hex(object, "save_id", info.save_id, STRAIT_CHECKPOINT_ID_BYTES);
    cJSON_AddNumberToObject(object, "committed_ns", (double)info.committed_ns);
    cJSON_AddNumberToObject(object, "files", info.file_count);
    cJSON_AddNumberToObject(object, "unreadable_files", survey->unreadable_files);
    cJSON_AddNumberToObject(object, "raw_bytes", (double)info.raw_bytes);
    cJSON_AddNumberToObject(object, "stored_bytes", (double)info.stored_bytes);
    list = cJSON_AddArrayToObject(object, "tensors");
    for (uint32_t t = 0; strait_checkpoint_tensor_at(reader, t, &tensor); t++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", tensor.name);
        cJSON_AddStringToObject(item, "dtype", tensor.dtype);
        cJSON_AddItemToObject(item, "shape", numbers_json(tensor.shape, tensor.dims));
        cJSON_AddNumberToObject(item, "shards", tensor.shard_count);
        bytes_json(item, &survey->tensors[t].all);
        if (options->shards)
            cJSON_AddItemToObject(item, "shard_list", shards_json(reader, t, &tensor));
        cJSON_AddItemToArray(list, item);
    }
    cJSON_AddItemToObject(object, "kinds", kinds_json(survey));
    list = cJSON_AddArrayToObject(object, "attachments");
    for (uint32_t a = 0; strait_checkpoint_attachment_at(reader, a, &attachment); a++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", attachment.name);
        cJSON_AddNumberToObject(item, "bytes", (double)attachment.bytes);
        cJSON_AddItemToArray(list, item);
    }
    return json_print(object, stdout);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static bool write_picture(const struct checkpoint_survey *survey, const char *path,
                          const struct inspect_options *options)
{
    const char *to = options->svg;
    struct output output;
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream != NULL)
        checkpoint_picture(survey, path, stream);
    if (stream == NULL || fclose(stream) != 0) {
        print_error(to, "out of memory");
        free(text);
        return false;
    }
    bool written = output_allowed(to, options->force) && output_open(&output, to, OUTPUT_MODE, options->force);
    if (written && output_write(&output, text, size))
        written = output_commit(&output);
    else if (written) {
        output_abandon(&output);
        written = false;
    }
    free(text);
    return written;
}

static bool inspect_path(const char *path, const struct inspect_options *options)
{
    struct strait_checkpoint_reader *reader;
    struct checkpoint_survey survey;
    char text[1024] = "";
    if (checkpoint_is_folder_of(path))
        return inspect_folder(path, options);
    const enum strait_status status = strait_checkpoint_open(path, &reader, text, sizeof(text));
    if (status != STRAIT_OK) {
        print_error(NULL, "%s", text);
        return false;
    }
    bool done = checkpoint_survey_make(&survey, reader);
    if (!done)
        print_error(path, "out of memory");
    if (done && survey.unreadable_files > 0)
        print_error(path, "%" PRIu32 " files cannot be read: strait checkpoint verify tells more",
                    survey.unreadable_files);
    if (done && options->json)
        done = print_json(reader, path, &survey, options);
    else if (done)
        print_checkpoint(reader, path, &survey, options);
    if (done && options->svg != NULL)
        done = write_picture(&survey, path, options);
    done &= survey.unreadable_files == 0;
    checkpoint_survey_fini(&survey);
    strait_checkpoint_close(reader);
    return done;
}

int checkpoint_inspect(int argc, char **argv)
{
    static char name[] = "strait checkpoint inspect";
    struct inspect_options options = {0};
    const struct cli_option list[] = {{"shards", .flag = &options.shards},
                                      {"svg", .text = &options.svg},
                                      {"force", 'f', .flag = &options.force},
                                      {"json", .flag = &options.json}};
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &options, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 1, "one PATH"))
        return EXIT_CODE_USAGE;
    return inspect_path(argv[optind], &options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
