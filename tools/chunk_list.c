#include "tools/chunk_list.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tools/util.h"

static bool grow(struct chunk_list *chunks)
{
    uint64_t capacity = (uint64_t)chunks->capacity * 2 + 64;
    struct container_chunk *grown =
        capacity > UINT32_MAX ? NULL : realloc(chunks->list, (size_t)capacity * sizeof(*grown));

    if (grown == NULL)
        return false;
    chunks->list = grown;
    chunks->capacity = (uint32_t)capacity;
    return true;
}

bool chunk_list_add(struct chunk_list *chunks, struct container_chunk chunk)
{
    if (chunks->count == chunks->capacity && !grow(chunks)) {
        print_error(NULL, "out of memory after %" PRIu32 " chunks", chunks->count);
        return false;
    }
    chunks->list[chunks->count++] = chunk;
    return true;
}

void chunk_list_fini(struct chunk_list *chunks)
{
    free(chunks->list);
    *chunks = (struct chunk_list){0};
}
