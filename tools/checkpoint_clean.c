/* strait checkpoint clean */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <strait/checkpoint.h>

#include "tools/checkpoint_parts.h"
#include "tools/report.h"
#include "tools/util.h"

#define SUFFIX    ".partial"
#define ID_DIGITS (2 * STRAIT_CHECKPOINT_ID_BYTES)

static const char usage[] =
    "usage: strait checkpoint clean [OPTION]... FOLDER\n"
    "\n"
    "Removes what saves that were killed have left in a folder of checkpoints: folders .NAME.ID.partial, in which\n"
    "nothing has been written for a while. A checkpoint is never touched.\n"
    "\n"
    "      --older-than S   seconds without a write; a save that still runs writes more often (86400)\n"
    "      --dry-run        tell what would be removed\n"
    "      --json           report as JSON\n"
    "  -q, --quiet          no report, only errors\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 all of them are gone, 1 one could not be removed, or FOLDER not be read, 2 bad usage.\n";

struct clean_options {
    uint64_t older_than;
    bool dry_run, json, quiet;
};

/* What one save has left. */
struct leftover {
    char path[PATH_MAX]; /* of the checkpoint that it would have become */
    uint8_t id[STRAIT_CHECKPOINT_ID_BYTES];
    uint64_t bytes;
    int64_t written; /* the latest write, in seconds of the epoch */
};

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Takes apart .NAME.ID.partial. */
static bool parse_name(const char *name, const char *folder, struct leftover *found)
{
    const size_t length = strlen(name), end = sizeof(SUFFIX) - 1 + ID_DIGITS + 1;

    if (length < end + 2 || name[0] != '.' || strcmp(name + length - sizeof(SUFFIX) + 1, SUFFIX) != 0 ||
        name[length - end] != '.')
        return false;
    const char *digits = name + length - end + 1;
    for (unsigned i = 0; i < STRAIT_CHECKPOINT_ID_BYTES; i++) {
        const int high = digit_of(digits[2 * i]), low = digit_of(digits[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        found->id[i] = (uint8_t)(high << 4 | low);
    }
    return snprintf(found->path, sizeof(found->path), "%s/%.*s", folder, (int)(length - end - 1), name + 1) <
           (int)sizeof(found->path);
}

/* Adds up sizes and finds the latest write, of the folder and of what is in it. */
static bool look_into(int parent, const char *name, struct leftover *found)
{
    struct stat of;
    const int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *files = folder >= 0 ? fdopendir(folder) : NULL;

    if (files == NULL || fstat(folder, &of) != 0) {
        if (files != NULL)
            closedir(files);
        else if (folder >= 0)
            close(folder);
        return false;
    }
    found->bytes = 0;
    found->written = of.st_mtime;
    for (const struct dirent *entry; (entry = readdir(files)) != NULL;) {
        if (fstatat(folder, entry->d_name, &of, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(of.st_mode))
            continue;
        found->bytes += (uint64_t)of.st_size;
        if (of.st_mtime > found->written)
            found->written = of.st_mtime;
    }
    closedir(files);
    return true;
}

static void report(const struct clean_options *options, const char *name, const struct leftover *found, bool old,
                   bool removed, cJSON *list)
{
    const char *state = removed ? "removed" : !old ? "kept: written to lately" : options->dry_run ? "old" : "failed";

    if (list != NULL) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddItemToArray(list, one);
        cJSON_AddStringToObject(one, "name", name);
        cJSON_AddNumberToObject(one, "bytes", (double)found->bytes);
        cJSON_AddNumberToObject(one, "written_s", (double)found->written);
        cJSON_AddBoolToObject(one, "old", old);
        cJSON_AddBoolToObject(one, "removed", removed);
    } else if (!options->quiet) {
        char *printable = text_printable(name);
        printf("%s: %" PRIu64 " bytes: %s\n", printable != NULL ? printable : "", found->bytes, state);
        free(printable);
    }
}

/* False: printed to stderr. */
static bool clean_one(const struct clean_options *options, int parent, const char *folder, const char *name,
                      cJSON *list)
{
    struct leftover found;
    char text[1024] = "";
    bool removed = false, good = true;

    if (!parse_name(name, folder, &found))
        return true;
    if (!look_into(parent, name, &found)) {
        if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) /* a checkpoint by now, or no folder at all */
            return true;
        print_error(folder, "%s: %s", name, strerror(errno));
        return false;
    }
    const int64_t age = (int64_t)time(NULL) - found.written;
    const bool old = age >= 0 && (uint64_t)age >= options->older_than;
    if (old && !options->dry_run) {
        removed = good = strait_checkpoint_abandon(found.path, found.id, text, sizeof(text)) == STRAIT_OK;
        if (!good)
            print_error(NULL, "%s", text);
    }
    report(options, name, &found, old, removed, list);
    return good;
}

static bool clean_folder(const char *path, const struct clean_options *options)
{
    DIR *folder = opendir(path);
    bool good = true;

    if (folder == NULL) {
        print_error(path, "%s", strerror(errno));
        return false;
    }
    cJSON *object = options->json ? cJSON_CreateObject() : NULL, *list = NULL;
    if (object != NULL) {
        cJSON_AddStringToObject(object, "input", path);
        list = cJSON_AddArrayToObject(object, "leftovers");
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        good &= clean_one(options, dirfd(folder), path, entry->d_name, list);
    closedir(folder);
    return (!options->json || json_print(object, stdout)) && good;
}

static bool set_age(void *options, const char *text)
{
    if (parse_number(text, UINT32_MAX, &((struct clean_options *)options)->older_than))
        return true;
    print_error(NULL, "--older-than takes seconds, not '%s'", text);
    return false;
}

int checkpoint_clean(int argc, char **argv)
{
    static char name[] = "strait checkpoint clean";
    struct clean_options options = {.older_than = 86400};
    const struct cli_option list[] = {{"older-than", .set = set_age},
                                      {"dry-run", .flag = &options.dry_run},
                                      {"json", .flag = &options.json},
                                      {"quiet", 'q', .flag = &options.quiet}};
    enum exit_code code;
    command_begin(argv, name);
    if (!options_parse(list, sizeof(list) / sizeof(list[0]), &options, usage, argc, argv, &code))
        return code;
    if (!operands_are(argc, 1, "one FOLDER"))
        return EXIT_CODE_USAGE;
    return clean_folder(argv[optind], &options) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
