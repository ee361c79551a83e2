#include "collective/settings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void coll_say(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    fprintf(stderr, "strait-coll: %s\n", line);
}

#define PREFIX    "STRAIT_COLL_"
#define NAMES_MAX 32u

/* All names that were asked for, so all that exist. */
static const char *names[NAMES_MAX];
static unsigned name_count;

/* An empty value counts as not set. */
static const char *setting(const char *name)
{
    const char *value = getenv(name);
    if (name_count < NAMES_MAX)
        names[name_count++] = name;
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* The value's index among the words; the first one is the default. */
static unsigned choice(const char *name, const char *const words[], unsigned count)
{
    const char *value = setting(name);
    for (unsigned i = 0; value != NULL && i < count; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    if (value != NULL)
        coll_say("%s=%s is not understood: taken as %s", name, value, words[0]);
    return 0;
}

/* A number, HEAD+TAIL, or the word. */
static struct coll_pieces pieces_of(const char *name)
{
    enum { MOST = 8, LARGEST = 1 << 20 };
    const char *value = setting(name);
    struct coll_pieces pieces = {0};
    int end = 0;
    if (value == NULL || strcmp(value, "auto") == 0)
        return pieces;
    if (sscanf(value, "%9u+%9u%n", &pieces.head, &pieces.tail, &end) == 2 && value[end] == '\0' &&
        pieces.head <= LARGEST && pieces.tail <= LARGEST) {
        pieces.given = 1;
        return pieces;
    }
    if (sscanf(value, "%9u%n", &pieces.count, &end) == 1 && value[end] == '\0' && pieces.count >= 1 &&
        pieces.count <= MOST)
        return (struct coll_pieces){.count = pieces.count};
    coll_say("%s=%s is not understood: taken as auto", name, value);
    return (struct coll_pieces){0};
}

static struct coll_sizes table_of(const char *name)
{
    const char *value = setting(name);
    struct coll_sizes sizes = {0};
    if (value != NULL && !coll_sizes_read(&sizes, value))
        coll_say("%s=%s is not understood: not used", name, value);
    return sizes;
}

/* Milliseconds, from 1 to an hour's: `5` is in seconds, `200ms` in milliseconds. */
static unsigned wait_of(const char *name)
{
    enum { USUAL_S = 5, MOST_MS = 3600 * 1000 };
    const char *value = setting(name);
    char *end = NULL;
    if (value == NULL)
        return USUAL_S * 1000;
    const unsigned long number = strtoul(value, &end, 10), unit = strcmp(end, "ms") == 0 ? 1 : 1000;
    if (number >= 1 && number <= MOST_MS / unit && (unit == 1 || *end == '\0'))
        return (unsigned)(number * unit);
    coll_say("%s=%s is not understood: taken as %d", name, value, USUAL_S);
    return USUAL_S * 1000;
}

static bool is_known(const char *variable, size_t size)
{
    for (unsigned i = 0; i < name_count; i++)
        if (strlen(names[i]) == size && memcmp(names[i], variable, size) == 0)
            return true;
    return false;
}

/* Otherwise a mistyped name would silently leave its user with the default. */
static void tell_unknown(void)
{
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        const size_t size = strcspn(*variable, "=");
        const bool ours = strncmp(*variable, PREFIX, strlen(PREFIX)) == 0;
        const bool set = (*variable)[size] == '=' && (*variable)[size + 1] != '\0';
        if (ours && set && !is_known(*variable, size))
            coll_say("%.*s is not a setting: not used", (int)size, *variable);
    }
}

struct coll_settings coll_settings_read(void)
{
    static const char *const modes[] = {"auto", "raw", "compress", "off"};
    static const char *const orders[] = {"fp32", "nccl-ring"};
    static const char *const switches[] = {"0", "1"}, *const unless[] = {"1", "0"};
    static const char *const meets[] = {"auto", "host"};
    unsigned mode = choice("STRAIT_COLL", modes, 4);
    const struct coll_settings settings = {
        .raw = mode == 1 || mode == 3,
        .forced = mode == 2,
        .ring = choice("STRAIT_COLL_ORDER", orders, 2) == 1,
        .pairs = choice("STRAIT_COLL_PAIRS", unless, 2) == 0,
        .pieces = pieces_of("STRAIT_COLL_PIECES"),
        .parts = choice("STRAIT_COLL_PARTS", switches, 2) == 1,
        .shm_only = choice("STRAIT_COLL_MEET", meets, 2) == 1,
        .wait_ms = wait_of("STRAIT_COLL_WAIT"),
        .print = choice("STRAIT_COLL_PRINT", switches, 2) == 1,
        .table = table_of("STRAIT_COLL_TABLE"),
        .library = setting("STRAIT_COLL_NCCL"),
    };
    tell_unknown();
    return settings;
}
