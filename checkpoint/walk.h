/* Walks over parts of shards: where values of a box lie in a shard and in memory.
 * Offsets and sizes are counted in values, strides of memory in bytes; the last dimension is the fastest. */
#ifndef STRAIT_CHECKPOINT_WALK_H
#define STRAIT_CHECKPOINT_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/checkpoint.h>

#include "checkpoint/boxes.h"

/* Where the values of a part of a shard are: in the shard, as values from its first one on, and in the caller's memory.
 * Rows are runs of values that are next to one another in the shard. */
struct walk {
    uint64_t size[STRAIT_CHECKPOINT_DIMS_MAX + 1]; /* the last one: values of a row */
    uint64_t src[STRAIT_CHECKPOINT_DIMS_MAX + 1];  /* strides in the shard, in values; the last one is 1 */
    uint64_t dst[STRAIT_CHECKPOINT_DIMS_MAX + 1];  /* strides in memory, in bytes */
    uint64_t first;                                /* value of the shard */
    uint8_t *base;                                 /* its place in memory */
    uint32_t dims;                                 /* at least 1 */
    uint32_t value_bytes;
};

/* Destination of a box: `strides` NULL: contiguous. */
struct box_memory {
    struct checkpoint_box box;
    uint8_t *data;
    const uint64_t *strides;
    uint32_t value_bytes;
};

/* `part` lies inside `shard` and inside memory->box, and is not empty. */
void walk_init(struct walk *walk, const struct checkpoint_box *shard, const struct checkpoint_box *part,
               const struct box_memory *memory);

/* Whether the part has any of the shard's values first..end-1. */
bool walk_touches(const struct walk *walk, uint64_t first, uint64_t end);

/* The place in memory of the shard's values first..end-1 when the part has all of them and they lie one after another
 * there; else NULL. */
uint8_t *walk_span(const struct walk *walk, uint64_t first, uint64_t end);

/* Copies those of the shard's values first..end-1 that the part has, from src, which begins with value `first`. */
void walk_copy(const struct walk *walk, uint64_t first, uint64_t end, const uint8_t *src);

#endif
