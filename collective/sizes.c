#include "collective/sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const enum coll_operation coll_sizes_operations[COLL_SIZES_OPERATIONS] = {
    COLL_ALL_GATHER, COLL_ALL_TO_ALL, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE, COLL_SEND};
const coll_type coll_sizes_types[COLL_SIZES_TYPES] = {COLL_BF16, COLL_FP16, COLL_FP32};

static const char *const operation_names[COLL_SIZES_OPERATIONS] = {"all_gather", "all_to_all", "reduce_scatter",
                                                                   "all_reduce", "pairs"};
static const char *const type_names[COLL_SIZES_TYPES] = {"bf16", "fp16", "fp32"};

#define NEVER "never"

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* `count`: no such name. */
static unsigned find(const char *const names[], unsigned count, const char *name, size_t size)
{
    unsigned found = 0;
    while (found < count && (strlen(names[found]) != size || memcmp(names[found], name, size) != 0))
        found++;
    return found;
}

/* 0: it is none. A size of 0 is the smallest there is. */
static uint64_t size_of(const char *text, size_t size)
{
    char digits[24];
    char *end;
    if (size == strlen(NEVER) && memcmp(text, NEVER, size) == 0)
        return COLL_SIZES_NEVER;
    if (size == 0 || size >= sizeof(digits) || text[0] < '0' || text[0] > '9')
        return 0;
    memcpy(digits, text, size);
    digits[size] = '\0';
    const unsigned long long number = strtoull(digits, &end, 10);
    const char *const units = "KMG", *unit = *end != '\0' ? strchr(units, *end) : NULL;
    const unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    if (*end != '\0' && (unit == NULL || end[1] != '\0'))
        return 0;
    if (number > (COLL_SIZES_NEVER - 1) >> shift)
        return 0;
    return number == 0 ? 1 : (uint64_t)number << shift;
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
