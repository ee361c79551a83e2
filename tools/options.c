#include "tools/options.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/util.h"

bool option_threads(const char *text, unsigned *threads)
{
    uint64_t number;

    if (!parse_number(text, OPTION_THREADS_MAX, &number)) {
        print_error(NULL, "-T takes a number from 0 (all processors) to %u, not '%s'", OPTION_THREADS_MAX, text);
        return false;
    }
    *threads = number == 0 ? cpu_count() : (unsigned)number;
    return true;
}

bool option_size(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *size)
{
    if (parse_size(text, max, size) && *size >= min)
        return true;
    print_error(NULL, "%s takes a size from %" PRIu64 " to %" PRIu64 ", such as 64K, not '%s'", option, min, max, text);
    return false;
}

bool option_name(const char *option, const char *text, const char *const *names, unsigned count, unsigned *index)
{
    for (*index = 0; *index < count; (*index)++)
        if (strcmp(text, names[*index]) == 0)
            return true;
    print_error(NULL, "%s: unknown value '%s'", option, text);
    return false;
}

bool option_codec(const char *text, const struct strait_codec **codec)
{
    *codec = strait_codec_get(text);
    if (*codec == NULL)
        print_error(NULL, "--codec: this build or processor has no '%s'", text);
    return *codec != NULL;
}

bool codebook_load(const char *path, struct strait_codebook **codebook)
{
    struct input input;
    enum strait_status status;

    if (!input_open(&input, path))
        return false;
    status = strait_codebook_parse(input.data, input.size, codebook);
    if (status != STRAIT_OK)
        print_error(path, "not a codebook set: %s", strait_status_string(status));
    input_close(&input);
    return status == STRAIT_OK;
}

/* Whether the name is taken by a file or a dangling symbolic link. Devices and pipes may be written to. */
static bool is_taken(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? S_ISREG(info.st_mode) : lstat(path, &info) == 0;
}

bool output_allowed(const char *path, bool force)
{
    bool is_stdout = strcmp(path, "-") == 0;

    if (force)
        return true;
    if (is_stdout && isatty(STDOUT_FILENO)) {
        print_error("stdout", "is a terminal; -f writes to it anyway");
        return false;
    }
    if (!is_stdout && is_taken(path)) {
        print_error(path, "exists; -f replaces it");
        return false;
    }
    return true;
}
