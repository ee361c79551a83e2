#include "collective/settings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void coll_log(const char *format, ...)
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

/* Names of all settings, in the order in which they are read. */
static const char *asked[NAMES_MAX];
static unsigned asked_count;

/* An empty value counts as not set. */
static const char *setting(const char *name)
{
    const char *value = getenv(name);
    if (asked_count < NAMES_MAX)
        asked[asked_count++] = name;
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Returns the index of the value among the words, of which the first is the default. */
static unsigned choice(const char *name, const char *const words[], unsigned count)
{
    const char *value = setting(name);
    for (unsigned i = 0; value != NULL && i < count; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    if (value != NULL)
        coll_log("%s=%s is not understood: taken as %s", name, value, words[0]);
    return 0;
}

static struct coll_sizes table_of(const char *name)
{
    const char *value = setting(name);
    struct coll_sizes sizes = {0};
    if (value != NULL && !coll_sizes_read(&sizes, value))
        coll_log("%s=%s is not understood: not used", name, value);
    return sizes;
}

/* Returns the number that the value begins with, of digits alone, and what is behind it; 0: it begins with none. Spaces
 * and signs, which strtoul accepts, would make another number of it. */
static unsigned long digits_of(const char *value, const char **behind)
{
    char *end = NULL;
    const bool is_number = value[0] >= '0' && value[0] <= '9';
    const unsigned long number = is_number ? strtoul(value, &end, 10) : 0;
    *behind = is_number ? end : value;
    return number;
}

/* Returns milliseconds, up to an hour: `5` is seconds, `200ms` milliseconds. */
static unsigned wait_of(const char *name)
{
    enum { USUAL_S = 5, MOST_MS = 3600 * 1000 };
    const char *value = setting(name), *end;
    if (value == NULL)
        return USUAL_S * 1000;
    const unsigned long number = digits_of(value, &end), unit = strcmp(end, "ms") == 0 ? 1 : 1000;
    if (number >= 1 && number <= MOST_MS / unit && (unit == 1 || *end == '\0'))
        return (unsigned)(number * unit);
    coll_log("%s=%s is not understood: taken as %d", name, value, USUAL_S);
    return USUAL_S * 1000;
}

/* Returns a number from 1 to 65535; 0: not set, or not understood. */
static unsigned number_of(const char *name)
{
    const char *value = setting(name), *end;
    if (value == NULL)
        return 0;
    const unsigned long number = digits_of(value, &end);
    if (number >= 1 && number <= UINT16_MAX && *end == '\0')
        return (unsigned)number;
    coll_log("%s=%s is not understood: not used", name, value);
    return 0;
}

/* Whether NCCL has been told to use no memory that processes of a host share: kernels of ours do not either, then,
 * unless they are asked for. */
static bool is_shm_off(void)
{
    const char *value = getenv("NCCL_SHM_DISABLE");
    return value != NULL && strtol(value, NULL, 0) != 0;
}

static bool is_known(const char *variable, size_t size)
{
    for (unsigned i = 0; i < asked_count; i++)
        if (strlen(asked[i]) == size && memcmp(asked[i], variable, size) == 0)
            return true;
    return false;
}

struct coll_settings coll_settings_read(void)
{
    static const char *const modes[] = {"auto", "raw", "compress", "off"};
    static const char *const orders[] = {"fp32", "nccl-ring"};
    static const char *const switches[] = {"0", "1"}, *const unless[] = {"1", "0"};
    static const char *const backends[] = {"auto", "host"}, *const bytes[] = {"auto", "bf16", "raw"};
    static const char *const shm[] = {"auto", "never", "always"};
    const unsigned mode = choice("STRAIT_COLL", modes, 4);
    const enum coll_shm channels = (enum coll_shm)choice("STRAIT_COLL_SHM", shm, 3);
    const struct coll_settings settings = {
        .raw = mode == 1 || mode == 3,
        .forced = mode == 2,
        .ring = choice("STRAIT_COLL_ORDER", orders, 2) == 1,
        .bytes = (enum coll_bytes)choice("STRAIT_COLL_BYTES", bytes, 3),
        .shm = channels == COLL_SHM_AUTO && is_shm_off() ? COLL_SHM_NEVER : channels,
        .pairs = choice("STRAIT_COLL_PAIRS", unless, 2) == 0,
        .shm_only = choice("STRAIT_COLL_MEET", backends, 2) == 1,
        .wait_ms = wait_of("STRAIT_COLL_WAIT"),
        .sms = number_of("STRAIT_COLL_SMS"),
        .print = choice("STRAIT_COLL_PRINT", switches, 2) == 1,
        .table = table_of("STRAIT_COLL_TABLE"),
        .report = setting("STRAIT_COLL_REPORT"),
        .library = setting("STRAIT_COLL_NCCL"),
    };
    /* A mistyped name would silently leave its user with the default. */
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        const size_t size = strcspn(*variable, "=");
        const bool ours = strncmp(*variable, PREFIX, strlen(PREFIX)) == 0;
        const bool set = (*variable)[size] == '=' && (*variable)[size + 1] != '\0';
        if (ours && set && !is_known(*variable, size))
            coll_log("%.*s is not a setting: not used", (int)size, *variable);
    }
    return settings;
}

/* ---- Sizes from which operations are compressed ------------------------------------------------------------------ */

const enum coll_operation coll_sizes_operations[COLL_SIZES_OPERATIONS] = {
    COLL_ALL_GATHER, COLL_ALL_TO_ALL, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE, COLL_SEND, COLL_BROADCAST};
const coll_type coll_sizes_types[COLL_SIZES_TYPES] = {COLL_BF16, COLL_FP16, COLL_FP32};

static const char *const operation_names[COLL_SIZES_OPERATIONS] = {"all_gather", "all_to_all", "reduce_scatter",
                                                                   "all_reduce", "pairs",      "broadcast"};
static const char *const type_names[COLL_SIZES_TYPES] = {"bf16", "fp16", "fp32"};

#define NEVER "never"

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Returns the index of a name; `count`: unknown. */
static unsigned find(const char *const names[], unsigned count, const char *name, size_t size)
{
    unsigned found = 0;
    while (found < count && (strlen(names[found]) != size || memcmp(names[found], name, size) != 0))
        found++;
    return found;
}

/* Returns a size in bytes; 0: not a size. The size `0` is 1 byte, the smallest. */
static uint64_t size_of(const char *text, size_t size)
{
    char digits[24];
    const char *end;
    if (size == strlen(NEVER) && memcmp(text, NEVER, size) == 0)
        return COLL_SIZES_NEVER;
    if (size == 0 || size >= sizeof(digits))
        return 0;
    memcpy(digits, text, size);
    digits[size] = '\0';
    const uint64_t number = digits_of(digits, &end);
    if (end == digits)
        return 0;
    const char *const units = "KMG", *unit = *end != '\0' ? strchr(units, *end) : NULL;
    const unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    if (*end != '\0' && (unit == NULL || end[1] != '\0'))
        return 0;
    if (number > (COLL_SIZES_NEVER - 1) >> shift)
        return 0;
    return number == 0 ? 1 : number << shift;
}

static bool read_entry(struct coll_sizes *sizes, const char *entry, size_t size)
{
    const char *equals = memchr(entry, '=', size);
    if (equals == NULL)
        return false;
    const size_t name_size = (size_t)(equals - entry);
    const char *colon = memchr(entry, ':', name_size);
    const unsigned operation =
        find(operation_names, COLL_SIZES_OPERATIONS, entry, colon != NULL ? (size_t)(colon - entry) : name_size);
    const unsigned type =
        colon != NULL ? find(type_names, COLL_SIZES_TYPES, colon + 1, (size_t)(equals - colon - 1)) : 0;
    const uint64_t from = size_of(equals + 1, size - name_size - 1);
    if (operation == COLL_SIZES_OPERATIONS || type == COLL_SIZES_TYPES || from == 0)
        return false;
    for (unsigned i = 0; i < COLL_SIZES_TYPES; i++)
        if (colon == NULL || i == type)
            sizes->from[operation][i] = from;
    sizes->given = 1;
    return true;
}

bool coll_sizes_read(struct coll_sizes *sizes, const char *text)
{
    *sizes = (struct coll_sizes){0};
    for (;;) {
        const size_t size = strcspn(text, ",");
        if (!read_entry(sizes, text, size)) {
            *sizes = (struct coll_sizes){0};
            return false;
        }
        if (text[size] == '\0')
            return true;
        text += size + 1;
    }
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void write_entry(char *text, const char *operation, const char *type, uint64_t from)
{
    static const char *const units[] = {"", "K", "M", "G"};
    unsigned unit = 0;
    const size_t used = strlen(text), room = COLL_SIZES_TEXT - used;
    const char *const comma = used != 0 ? "," : "", *const colon = type[0] != '\0' ? ":" : "";
    for (; unit < 3 && from % 1024 == 0; unit++)
        from /= 1024;
    if (from == COLL_SIZES_NEVER)
        snprintf(text + used, room, "%s%s%s%s=" NEVER, comma, operation, colon, type);
    else
        snprintf(text + used, room, "%s%s%s%s=%llu%s", comma, operation, colon, type, (unsigned long long)from,
                 units[unit]);
}

void coll_sizes_write(const struct coll_sizes *sizes, char text[COLL_SIZES_TEXT])
{
    text[0] = '\0';
    for (unsigned operation = 0; operation < COLL_SIZES_OPERATIONS; operation++) {
        const uint64_t *from = sizes->from[operation];
        const bool same = from[0] == from[1] && from[1] == from[2];
        for (unsigned type = 0; type < (same ? 1 : COLL_SIZES_TYPES); type++)
            if (from[type] != 0)
                write_entry(text, operation_names[operation], same ? "" : type_names[type], from[type]);
    }
}

/* ---- Looking up -------------------------------------------------------------------------------------------------- */

uint64_t coll_sizes_from(const struct coll_sizes *sizes, const struct coll_call *call)
{
    const enum coll_operation operation = call->operation == COLL_RECV ? COLL_SEND : call->operation;
    unsigned row = 0, column = 0;
    while (row < COLL_SIZES_OPERATIONS && coll_sizes_operations[row] != operation)
        row++;
    while (column < COLL_SIZES_TYPES && coll_sizes_types[column] != call->type)
        column++;
    return row < COLL_SIZES_OPERATIONS && column < COLL_SIZES_TYPES ? sizes->from[row][column] : 0;
}
