/* strait checkpoint verify */
#include <cjson/cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tools/checkpoint_open.h"
#include "tools/checkpoint_parts.h"
#include "tools/report.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait checkpoint verify [OPTION]... PATH\n"
    "\n"
    "Reads all files of a checkpoint, decodes every page and checks its sum. Lists what is damaged: the file, the\n"
    "tensor and the values of its shard.\n"
    "\n"
    "  -T, --threads N      threads, 0 for all processors (0)\n"
    "      --cached         files go through the page cache, which is quicker where they are in it\n"
    "      --json           report as JSON\n"
    "  -q, --quiet          no progress and no report, only errors\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 the checkpoint is whole, 1 it is not, or input or output failed, 2 bad usage.\n";

struct verify_options {
    unsigned threads;
    bool json, quiet, cached;
};

struct verification {
    struct damage_list damage;
    struct progress progress;
    bool begun;
    bool quiet;
    uint64_t done;
};

static void take_damage(void *context, const struct strait_checkpoint_damage *damage)
{
    damage_list_add(&((struct verification *)context)->damage, damage);
}

static void take_progress(void *context, uint64_t done_bytes, uint64_t all_bytes)
{
    struct verification *verification = context;
    if (!verification->begun)
        progress_begin(&verification->progress, "verifying", all_bytes, verification->quiet);
    verification->begun = true;
    progress_add(&verification->progress, done_bytes - verification->done);
    verification->done = done_bytes;
}

static bool print_json(const struct verification *verification, const char *path,
                       const struct strait_checkpoint_info *info, bool whole)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "input", path);
    cJSON_AddBoolToObject(object, "whole", whole);
    cJSON_AddNumberToObject(object, "tensors", info->tensor_count);
    cJSON_AddNumberToObject(object, "files", info->file_count);
    cJSON_AddNumberToObject(object, "raw_bytes", (double)info->raw_bytes);
    cJSON_AddNumberToObject(object, "stored_bytes", (double)info->stored_bytes);
    damage_list_json(&verification->damage, object);
    return json_print(object, stdout);
}

static bool verify_path(const char *path, const struct verify_options *options)
{
    struct verification verification = {.quiet = options->quiet};
    const struct strait_checkpoint_load_options load = {.size = sizeof(load),
                                                        .threads = options->threads,
                                                        .flags = options->cached ? STRAIT_CHECKPOINT_CACHED : 0,
                                                        .damage = take_damage,
                                                        .progress = take_progress,
                                                        .context = &verification};
    struct strait_checkpoint_reader *reader;
    struct strait_checkpoint_info info;
    char text[1024] = "";
    if (!checkpoint_open(path, &reader))
        return false;
    const enum strait_status status = strait_checkpoint_verify(reader, &load, text, sizeof(text));
    if (verification.begun)
        progress_end(&verification.progress);
    strait_checkpoint_describe(reader, &info);
    bool whole = status == STRAIT_OK;
    damage_list_print(&verification.damage, path);
    if (!whole && verification.damage.count == 0)
        print_error(NULL, "%s", text);
    if (options->json)
        whole &= print_json(&verification, path, &info, whole);
    else if (!options->quiet && whole) {
        char *name = text_printable(path);
        printf("%s: whole: %" PRIu32 " tensors in %" PRIu32 " files, %" PRIu64 " -> %" PRIu64 " bytes\n",
               name != NULL ? name : "", info.tensor_count, info.file_count, info.raw_bytes, info.stored_bytes);
        free(name);
    }
    damage_list_fini(&verification.damage);
    strait_checkpoint_close(reader);
    return whole;
}

int checkpoint_verify(int argc, char **argv)
{
    static char name[] = "strait checkpoint verify";
    struct verify_options options = {.threads = cpu_count()};
    const struct cli_option list[] = {{"threads", 'T', .threads = &options.threads},
                                      {"cached", .flag = &options.cached},
                                      {"json", .flag = &options.json},
                                      {"quiet", 'q', .flag = &options.quiet}};
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &options, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 1, "one PATH"))
        return EXIT_CODE_USAGE;
    return verify_path(argv[optind], &options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
