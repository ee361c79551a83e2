#include "checkpoint/boxes.h"

#include <stdlib.h>
#include <string.h>

uint64_t checkpoint_box_bytes(const uint64_t *sizes, uint32_t dims, uint32_t value_bytes)
{
    uint64_t bytes = value_bytes;

    for (uint32_t d = 0; d < dims; d++)
        if (sizes[d] == 0)
            return 0;
    for (uint32_t d = 0; d < dims; d++)
        if (__builtin_mul_overflow(bytes, sizes[d], &bytes))
            return UINT64_MAX;
    return bytes < UINT64_C(1) << 63 ? bytes : UINT64_MAX;
}

bool checkpoint_box_inside(const uint64_t *shape, const uint64_t *offsets, const uint64_t *sizes, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++)
        if (offsets[d] > shape[d] || sizes[d] > shape[d] - offsets[d])
            return false;
    return true;
}

uint64_t checkpoint_box_values(const struct checkpoint_box *box)
{
    uint64_t values = 1;
    for (uint32_t d = 0; d < box->dims; d++)
        values *= box->sizes[d];
    return values;
}

bool checkpoint_box_equal(const struct checkpoint_box *a, const struct checkpoint_box *b)
{
    const size_t bytes = a->dims * sizeof(*a->offsets);
    return a->dims == b->dims &&
           (bytes == 0 || (memcmp(a->offsets, b->offsets, bytes) == 0 && memcmp(a->sizes, b->sizes, bytes) == 0));
}

bool checkpoint_box_intersect(const struct checkpoint_box *a, const struct checkpoint_box *b, uint64_t *at,
                              uint64_t *size)
{
    for (uint32_t d = 0; d < a->dims; d++) {
        const uint64_t begin = a->offsets[d] > b->offsets[d] ? a->offsets[d] : b->offsets[d];
        const uint64_t end_a = a->offsets[d] + a->sizes[d], end_b = b->offsets[d] + b->sizes[d];
        const uint64_t end = end_a < end_b ? end_a : end_b;
        if (begin >= end)
            return false;
        at[d] = begin;
        size[d] = end - begin;
    }
    return true;
}

static bool take_slab(const struct checkpoint_box *left, uint32_t d, uint64_t begin, uint64_t end,
                      checkpoint_box_taker *take, void *context)
{
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX];
    if (begin >= end)
        return true;
    memcpy(at, left->offsets, left->dims * sizeof(*at));
    memcpy(size, left->sizes, left->dims * sizeof(*size));
    at[d] = begin;
    size[d] = end - begin;
    return take(context, &(struct checkpoint_box){.offsets = at, .sizes = size, .dims = left->dims});
}

bool checkpoint_box_subtract(const struct checkpoint_box *box, const struct checkpoint_box *cut,
                             checkpoint_box_taker *take, void *context)
{
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX];
    const struct checkpoint_box left = {.offsets = at, .sizes = size, .dims = box->dims};
    if (box->dims > 0) {
        memcpy(at, box->offsets, box->dims * sizeof(*at));
        memcpy(size, box->sizes, box->dims * sizeof(*size));
    }
    for (uint32_t d = 0; d < box->dims; d++) {
        const uint64_t cut_end = cut->offsets[d] + cut->sizes[d], end = at[d] + size[d];
        if (!take_slab(&left, d, at[d], cut->offsets[d], take, context) ||
            !take_slab(&left, d, cut_end, end, take, context))
            return false;
        at[d] = cut->offsets[d];
        size[d] = cut->sizes[d];
    }
    return true;
}

/* ---- Ranges of values -------------------------------------------------------------------------------------------- */

/* A range as it is cut into boxes: index[] of its first value, and how many values are left. */
struct range {
    const struct checkpoint_box *box;
    uint64_t index[STRAIT_CHECKPOINT_DIMS_MAX];
    uint64_t left;
};

static void range_begin(struct range *range, const struct checkpoint_box *box, uint64_t first, uint64_t end)
{
    range->box = box;
    range->left = end - first;
    for (uint32_t d = box->dims; d-- > 0; first /= box->sizes[d])
        range->index[d] = first % box->sizes[d];
}

/* The outermost dimension of which the next box takes whole steps: those inside begin at 0, and a step fits into what
 * is left. *step: values of one step. */
static uint32_t range_dimension(const struct range *range, uint64_t *step)
{
    uint32_t d = range->box->dims - 1;
    *step = 1;
    while (d > 0 && range->index[d] == 0 && range->left >= *step * range->box->sizes[d])
        *step *= range->box->sizes[d--];
    return d;
}

static bool range_take(struct range *range, checkpoint_box_taker *take, void *context)
{
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX], step;
    const struct checkpoint_box *box = range->box;
    const uint32_t d = range_dimension(range, &step);
    const uint64_t whole = range->left / step, room = box->sizes[d] - range->index[d];
    for (uint32_t i = 0; i < box->dims; i++) {
        at[i] = box->offsets[i] + range->index[i];
        size[i] = i < d ? 1 : box->sizes[i];
    }
    size[d] = whole < room ? whole : room;
    range->left -= size[d] * step;
    range->index[d] += size[d];
    for (uint32_t i = d; i > 0 && range->index[i] == box->sizes[i]; i--) {
        range->index[i] = 0;
        range->index[i - 1]++;
    }
    return take(context, &(struct checkpoint_box){.offsets = at, .sizes = size, .dims = box->dims});
}

bool checkpoint_box_range(const struct checkpoint_box *box, uint64_t first, uint64_t end, checkpoint_box_taker *take,
                          void *context)
{
    struct range range;
    if (first >= end)
        return true;
    if (box->dims == 0)
        return take(context, box);
    range_begin(&range, box, first, end);
    while (range.left > 0)
        if (!range_take(&range, take, context))
            return false;
    return true;
}

/* ---- Covering ---------------------------------------------------------------------------------------------------- */

struct covering {
    const uint64_t *shape;
    uint32_t dims;
    uint64_t *budget;
    uint64_t *gap;
};

static int by_offset(const void *left, const void *right, void *dimension)
{
    const uint32_t d = *(const uint32_t *)dimension;
    const uint64_t a = ((const struct checkpoint_box *)left)->offsets[d];
    const uint64_t b = ((const struct checkpoint_box *)right)->offsets[d];

    return (a > b) - (a < b);
}

static void exchange(struct checkpoint_box *a, struct checkpoint_box *b)
{
    const struct checkpoint_box kept = *a;

    *a = *b;
    *b = kept;
}

static bool spans(const struct covering *job, const struct checkpoint_box *box, uint32_t from, uint32_t to)
{
    for (uint32_t d = from; d < to; d++)
        if (box->sizes[d] != job->shape[d])
            return false;
    return true;
}

static uint64_t end_of(const struct checkpoint_box *box, uint32_t d)
{
    return box->offsets[d] + box->sizes[d];
}

static enum checkpoint_cover cover(struct covering *job, struct checkpoint_box *boxes, uint32_t count, uint32_t d);

/* Sweeps along dimension d. Between two places where boxes begin or end the same boxes are met, and these have to cover
 * what the further dimensions span. The list is [met | passed | ahead], the last in order of their beginnings: no box
 * is lost, as callers go on with the same list. */
static enum checkpoint_cover sweep(struct covering *job, struct checkpoint_box *boxes, uint32_t count, uint32_t d)
{
    uint32_t met = 0, ahead = 0;
    uint64_t at = 0;

    qsort_r(boxes, count, sizeof(*boxes), by_offset, &d);
    while (at < job->shape[d]) {
        uint64_t next = job->shape[d];

        for (uint32_t i = 0; i < met;)
            if (end_of(&boxes[i], d) <= at)
                exchange(&boxes[i], &boxes[--met]);
            else
                i++;
        while (ahead < count && boxes[ahead].offsets[d] <= at)
            exchange(&boxes[met++], &boxes[ahead++]);
        job->gap[d] = at;
        const enum checkpoint_cover result = cover(job, boxes, met, d + 1);
        if (result != CHECKPOINT_COVERED)
            return result;
        for (uint32_t i = 0; i < met; i++)
            if (end_of(&boxes[i], d) < next)
                next = end_of(&boxes[i], d);
        if (ahead < count && boxes[ahead].offsets[d] < next)
            next = boxes[ahead].offsets[d];
        at = next;
    }
    return CHECKPOINT_COVERED;
}

/* Whether the boxes cover dimensions d and further; all of them are met at the place of the dimensions before. */
static enum checkpoint_cover cover(struct covering *job, struct checkpoint_box *boxes, uint32_t count, uint32_t d)
{
    if (*job->budget < count + 1u)
        return CHECKPOINT_INTRICATE;
    *job->budget -= count + 1u;
    for (uint32_t i = 0; i < count; i++)
        if (spans(job, &boxes[i], d, job->dims))
            return CHECKPOINT_COVERED;
    if (count == 0) {
        for (; d < job->dims; d++)
            job->gap[d] = 0;
        return CHECKPOINT_GAP;
    }
    for (;; d++) { /* ends before the last dimension: no box spans all */
        bool all = true;
        for (uint32_t i = 0; i < count && all; i++)
            all = spans(job, &boxes[i], d, d + 1);
        if (!all)
            return sweep(job, boxes, count, d);
        job->gap[d] = 0;
    }
}

enum checkpoint_cover checkpoint_boxes_cover(struct checkpoint_box *boxes, uint32_t count, const uint64_t *shape,
                                             uint32_t dims, uint64_t *budget, uint64_t gap[STRAIT_CHECKPOINT_DIMS_MAX])
{
    struct covering job = {.shape = shape, .dims = dims, .budget = budget, .gap = gap};
    uint32_t kept = 0;

    if (checkpoint_box_bytes(shape, dims, 1) == 0)
        return CHECKPOINT_COVERED;
    for (uint32_t i = 0; i < count; i++)
        if (checkpoint_box_bytes(boxes[i].sizes, dims, 1) != 0)
            boxes[kept++] = boxes[i];
    return cover(&job, boxes, kept, 0);
}
