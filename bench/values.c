#include "bench/values.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <strait/codec.h>

#include "tools/util.h"
#include "tools/pipeline.h"

const char *const coding_names[] = {"auto", "raw", "top16", "tiered"};

bool options_read(int argc, char **argv, const char *letters, const struct option *known,
                  bool (*set)(void *options, int option, const char *text), void *options, bool *help)
{
    int option;

    while ((option = getopt_long(argc, argv, letters, known, NULL)) != -1) {
        *help = option == 'h';
        if (*help)
            return true;
        if (!set(options, option, optarg))
            return false;
    }
    if (optind < argc)
        print_error(NULL, "takes options only; --input names a file");
    return optind >= argc;
}

bool value_too_many(const char *option, unsigned max)
{
    print_error(NULL, "%s takes at most %u values", option, max);
    return false;
}

bool value_number(const char *option, const char *text, uint64_t min, uint64_t max, uint32_t *number)
{
    uint64_t value;

    if (!parse_number(text, max, &value) || value < min) {
        print_error(NULL, "%s takes a number from %llu to %llu, not '%s'", option, (unsigned long long)min,
                    (unsigned long long)max, text);
        return false;
    }
    *number = (uint32_t)value;
    return true;
}

bool value_page(const char *text, uint64_t *bytes)
{
    if (!option_size("--page", text, PLAN_PAGE_MULTIPLE, STRAIT_PAGE_BYTES_MAX, bytes))
        return false;
    if (*bytes % PLAN_PAGE_MULTIPLE != 0)
        print_error(NULL, "--page takes a multiple of %u", PLAN_PAGE_MULTIPLE);
    return *bytes % PLAN_PAGE_MULTIPLE == 0;
}

bool value_each(const char *text, bool (*take)(void *arg, const char *name), void *arg)
{
    char *list = strdup(text), *rest = list;
    bool good = list != NULL;

    while (good && rest != NULL)
        good = take(arg, strsep(&rest, ","));
    if (list == NULL)
        print_error(NULL, "out of memory");
    free(list);
    return good;
}

bool value_coding(const char *name, enum strait_coding codings[CODINGS_MAX], unsigned *count)
{
    unsigned index;

    if (!option_name("--coding", name, coding_names, CODINGS_MAX, &index))
        return false;
    for (unsigned i = 0; i < *count; i++)
        if (codings[i] == (enum strait_coding)index)
            return true;
    codings[(*count)++] = (enum strait_coding)index;
    return true;
}

bool value_daemon(const char *text, const char **daemon, unsigned *count)
{
    if (*count == DAEMON_OPTIONS_MAX)
        return value_too_many("--daemon", DAEMON_OPTIONS_MAX);
    if (text[0] == '-' || strchr(text, '=') == NULL || strlen(text) > 250) {
        print_error(NULL, "--daemon takes \"name=value\", not '%s'", text);
        return false;
    }
    daemon[(*count)++] = text;
    return true;
}

static bool can_write(const char *path)
{
    struct stat info;
    bool made = lstat(path, &info) != 0;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return true; /* the reader of a pipe would take the check for the end */
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    close(fd);
    if (made)
        unlink(path);
    return true;
}

bool value_save_check(const char *path)
{
    if (path == NULL || can_write(path))
        return true;
    print_error(path, "cannot be written: %s", strerror(errno));
    return false;
}

bool value_save(const char *path, bool (*print)(const void *arg, FILE *stream), const void *arg)
{
    FILE *file = path == NULL ? NULL : fopen(path, "we");
    bool good = path == NULL;

    if (file != NULL) {
        good = print(arg, file);
        good = fclose(file) == 0 && good;
    }
    if (!good)
        print_error(path, "cannot be written");
    return good;
}
