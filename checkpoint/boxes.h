/* Boxes of a tensor: part of it, from an offset on and of a size in each dimension. */
#ifndef STRAIT_CHECKPOINT_BOXES_H
#define STRAIT_CHECKPOINT_BOXES_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/checkpoint.h>

/* A view: the arrays of `dims` numbers are the owner's. Counted in values. */
struct checkpoint_box {
    const uint64_t *offsets, *sizes;
    uint32_t dims;
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

/* Values of a box; 1 for a scalar. The caller knows that they fit into 64 bits. */
uint64_t checkpoint_box_values(const struct checkpoint_box *box);
bool checkpoint_box_equal(const struct checkpoint_box *a, const struct checkpoint_box *b);
/* Writes the intersection; false when it is empty. */
bool checkpoint_box_intersect(const struct checkpoint_box *a, const struct checkpoint_box *b, uint64_t *at,
                              uint64_t *size);

/* Takes a box that lives during the call only. False ends the walk over the boxes. */
typedef bool checkpoint_box_taker(void *context, const struct checkpoint_box *box);

/* Gives what is left of `box` without `cut`, a box inside it, as at most 2 * dims disjoint boxes. Returns whether the
 * taker took all. */
bool checkpoint_box_subtract(const struct checkpoint_box *box, const struct checkpoint_box *cut,
                             checkpoint_box_taker *take, void *context);

/* Gives the values first..end-1 of a box, counted in their order in memory, as at most 2 * dims disjoint boxes with the
 * offsets of the tensor. */
bool checkpoint_box_range(const struct checkpoint_box *box, uint64_t first, uint64_t end, checkpoint_box_taker *take,
                          void *context);

#define CHECKPOINT_COVER_BUDGET (UINT64_C(1) << 28) /* boxes looked at in about a second */

/* Whether each value of the shape is in one of the boxes, which lie inside the shape and may overlap in any way.
 * Changes the order of the list. Fast for the cuts that programs make: n boxes that tile a tensor along any of its
 * dimensions take about n log n steps. *budget: boxes that may be looked at before the answer is given up, and what is
 * left of them. gap: of CHECKPOINT_GAP, a value that is in none of them. */
enum checkpoint_cover checkpoint_boxes_cover(struct checkpoint_box *boxes, uint32_t count, const uint64_t *shape,
                                             uint32_t dims, uint64_t *budget, uint64_t gap[STRAIT_CHECKPOINT_DIMS_MAX]);

#endif
