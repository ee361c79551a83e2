/* The chunks of a file, as its footer lists them. */
#ifndef STRAIT_TOOLS_CHUNK_LIST_H
#define STRAIT_TOOLS_CHUNK_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/container.h"

/* Starts as zeroes. */
struct chunk_list {
    struct container_chunk *list;
    uint32_t count;
    uint32_t capacity;
};

/* False: out of memory, which was printed to stderr. */
bool chunk_list_add(struct chunk_list *chunks, struct container_chunk chunk);
void chunk_list_fini(struct chunk_list *chunks);

#endif
