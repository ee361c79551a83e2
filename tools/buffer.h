/* Memory that grows and is reused, so that a pipeline allocates only while it warms up. */
#ifndef STRAIT_TOOLS_BUFFER_H
#define STRAIT_TOOLS_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts as zeroes; 64-byte aligned. The owner ends it with buffer_fini. */
struct buffer {
    uint8_t *data;
    size_t capacity;
};

/* Makes room for `size` bytes and keeps the first `used`. False: no memory, and nothing changed. */
bool buffer_reserve(struct buffer *buffer, size_t used, uint64_t size);
void buffer_fini(struct buffer *buffer);

#endif
