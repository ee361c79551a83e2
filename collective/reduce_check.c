#include "collective/reduce.h"

#include <stdbool.h>

static bool in_range(const struct coll_reduce *reduce)
{
    return (unsigned)reduce->type < COLL_REDUCE_TYPES && (unsigned)reduce->operation < COLL_REDUCE_OPERATIONS &&
           (unsigned)reduce->order < COLL_REDUCE_ORDERS && reduce->sources >= 1 &&
           reduce->sources <= COLL_REDUCE_SOURCES_MAX && reduce->rank < reduce->sources;
}

static bool overlap(const void *a, const void *b, size_t bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x != y && (x < y ? y - x : x - y) < bytes;
}

enum strait_status coll_reduce_check(const struct coll_reduce *reduce)
{
    if (!in_range(reduce))
        return STRAIT_ERR_INVALID;
    const size_t element = coll_reduce_element_bytes(reduce->type);
    if (reduce->count == 0)
        return STRAIT_OK;
    if (reduce->count > SIZE_MAX / element || reduce->dst == NULL)
        return STRAIT_ERR_INVALID;
    uintptr_t all = (uintptr_t)reduce->dst;
    for (uint32_t i = 0; i < reduce->sources; i++) {
        if (reduce->source[i] == NULL || overlap(reduce->source[i], reduce->dst, reduce->count * element))
            return STRAIT_ERR_INVALID;
        all |= (uintptr_t)reduce->source[i];
    }
    return all % element == 0 ? STRAIT_OK : STRAIT_ERR_ALIGNMENT;
}
