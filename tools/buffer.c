#include "tools/buffer.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64u

bool buffer_reserve(struct buffer *buffer, size_t used, uint64_t size)
{
    uint8_t *grown;

    if (size <= buffer->capacity)
        return true;
    if (size > SIZE_MAX - ALIGNMENT)
        return false;
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    grown = aligned_alloc(ALIGNMENT, size);
    if (grown == NULL)
        return false;
    if (used > 0)
        memcpy(grown, buffer->data, used);
    free(buffer->data);
    buffer->data = grown;
    buffer->capacity = size;
    return true;
}

void buffer_fini(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer){0};
}
