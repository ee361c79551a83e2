/* Boxes of a tensor: part of it, from an offset on and of a size in each dimension. */
#ifndef STRAIT_CHECKPOINT_BOXES_H
#define STRAIT_CHECKPOINT_BOXES_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/checkpoint.h>

struct checkpoint_box {
    const uint64_t *offsets, *sizes;
};

enum checkpoint_cover {
    CHECKPOINT_COVERED,
    CHECKPOINT_GAP,
    CHECKPOINT_INTRICATE, /* so many boxes overlap in so many ways that the answer would take too long */
};

/* Bytes of values of `value_bytes` in a box, or in a whole shape; UINT64_MAX: 2^63 or more. */
uint64_t checkpoint_box_bytes(const uint64_t *sizes, uint32_t dims, uint32_t value_bytes);

/* Whether the box lies inside the shape. */
bool checkpoint_box_inside(const uint64_t *shape, const uint64_t *offsets, const uint64_t *sizes, uint32_t dims);

/* Whether each value of the shape is in one of the boxes, which lie inside the shape and may overlap in any way.
 * Changes the order of the list. Fast for the cuts that programs make: n boxes that tile a tensor along any of its
 * dimensions take about n log n steps. gap: of CHECKPOINT_GAP, a value that is in none of them. */
enum checkpoint_cover checkpoint_boxes_cover(struct checkpoint_box *boxes, uint32_t count, const uint64_t *shape,
                                             uint32_t dims, uint64_t gap[STRAIT_CHECKPOINT_DIMS_MAX]);

#endif
