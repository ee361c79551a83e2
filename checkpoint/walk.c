#include "checkpoint/walk.h"

#include <string.h>

uint64_t box_values(const struct box *box)
{
    uint64_t values = 1;
    for (uint32_t d = 0; d < box->dims; d++)
        values *= box->size[d];
    return values;
}

bool box_equal(const struct box *a, const struct box *b)
{
    const size_t bytes = a->dims * sizeof(*a->at);
    return a->dims == b->dims &&
           (bytes == 0 || (memcmp(a->at, b->at, bytes) == 0 && memcmp(a->size, b->size, bytes) == 0));
}

bool box_intersect(const struct box *a, const struct box *b, uint64_t *at, uint64_t *size)
{
    for (uint32_t d = 0; d < a->dims; d++) {
        const uint64_t begin = a->at[d] > b->at[d] ? a->at[d] : b->at[d];
        const uint64_t end_a = a->at[d] + a->size[d], end_b = b->at[d] + b->size[d];
        const uint64_t end = end_a < end_b ? end_a : end_b;
        if (begin >= end)
            return false;
        at[d] = begin;
        size[d] = end - begin;
    }
    return true;
}

static bool take_slab(const struct box *left, uint32_t d, uint64_t begin, uint64_t end, box_taker *take, void *context)
{
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX];
    if (begin >= end)
        return true;
    memcpy(at, left->at, left->dims * sizeof(*at));
    memcpy(size, left->size, left->dims * sizeof(*size));
    at[d] = begin;
    size[d] = end - begin;
    return take(context, &(struct box){.at = at, .size = size, .dims = left->dims});
}

bool box_subtract(const struct box *box, const struct box *cut, box_taker *take, void *context)
{
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX];
    const struct box left = {.at = at, .size = size, .dims = box->dims};
    if (box->dims > 0) {
        memcpy(at, box->at, box->dims * sizeof(*at));
        memcpy(size, box->size, box->dims * sizeof(*size));
    }
    for (uint32_t d = 0; d < box->dims; d++) {
        const uint64_t cut_end = cut->at[d] + cut->size[d], end = at[d] + size[d];
        if (!take_slab(&left, d, at[d], cut->at[d], take, context) || !take_slab(&left, d, cut_end, end, take, context))
            return false;
        at[d] = cut->at[d];
        size[d] = cut->size[d];
    }
    return true;
}

/* ---- Ranges of values -------------------------------------------------------------------------------------------- */

/* A range as it is cut into boxes: index[] of its first value, and how many values are left. */
struct range {
    const struct box *box;
    uint64_t index[STRAIT_CHECKPOINT_DIMS_MAX];
    uint64_t left;
};

static void range_begin(struct range *range, const struct box *box, uint64_t first, uint64_t end)
{
    range->box = box;
    range->left = end - first;
    for (uint32_t d = box->dims; d-- > 0; first /= box->size[d])
        range->index[d] = first % box->size[d];
}

/* The outermost dimension of which the next box takes whole steps: those inside begin at 0, and a step fits into what
 * is left. *step: values of one step. */
static uint32_t range_dimension(const struct range *range, uint64_t *step)
{
    uint32_t d = range->box->dims - 1;
    *step = 1;
    while (d > 0 && range->index[d] == 0 && range->left >= *step * range->box->size[d])
        *step *= range->box->size[d--];
    return d;
}

static bool range_take(struct range *range, box_taker *take, void *context)
{
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX], step;
    const struct box *box = range->box;
    const uint32_t d = range_dimension(range, &step);
    const uint64_t whole = range->left / step, room = box->size[d] - range->index[d];
    for (uint32_t i = 0; i < box->dims; i++) {
        at[i] = box->at[i] + range->index[i];
        size[i] = i < d ? 1 : box->size[i];
    }
    size[d] = whole < room ? whole : room;
    range->left -= size[d] * step;
    range->index[d] += size[d];
    for (uint32_t i = d; i > 0 && range->index[i] == box->size[i]; i--) {
        range->index[i] = 0;
        range->index[i - 1]++;
    }
    return take(context, &(struct box){.at = at, .size = size, .dims = box->dims});
}

bool box_range(const struct box *box, uint64_t first, uint64_t end, box_taker *take, void *context)
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

/* ---- Walks ------------------------------------------------------------------------------------------------------- */

/* Adds a dimension outside those that are there; `walk` has them from the innermost on until walk_init turns it. */
static void add_dimension(struct walk *walk, uint64_t size, uint64_t src, uint64_t dst)
{
    if (walk->dims > 0) {
        const uint32_t inner = walk->dims - 1;
        if (src == walk->size[inner] * walk->src[inner] && dst == walk->size[inner] * walk->dst[inner]) {
            walk->size[inner] *= size;
            return;
        }
    }
    walk->size[walk->dims] = size;
    walk->src[walk->dims] = src;
    walk->dst[walk->dims] = dst;
    walk->dims++;
}

static void turn(uint64_t *list, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        const uint64_t kept = list[i];
        list[i] = list[count - 1 - i];
        list[count - 1 - i] = kept;
    }
}

void walk_init(struct walk *walk, const struct box *shard, const struct box *part, const struct box_memory *memory)
{
    uint64_t src = 1, dst = memory->value_bytes;
    walk->first = 0;
    walk->base = memory->data;
    walk->dims = 0;
    walk->value_bytes = memory->value_bytes;
    for (uint32_t d = part->dims; d-- > 0; src *= shard->size[d], dst *= memory->box.size[d]) {
        const uint64_t stride = memory->strides != NULL ? memory->strides[d] : dst;
        walk->first += (part->at[d] - shard->at[d]) * src;
        walk->base += (part->at[d] - memory->box.at[d]) * stride;
        if (part->size[d] == 1)
            continue;
        if (walk->dims == 0 && src != 1) /* each row is one value */
            add_dimension(walk, 1, 1, memory->value_bytes);
        add_dimension(walk, part->size[d], src, stride);
    }
    if (walk->dims == 0)
        add_dimension(walk, 1, 1, memory->value_bytes);
    turn(walk->size, walk->dims);
    turn(walk->src, walk->dims);
    turn(walk->dst, walk->dims);
}

/* A row: its number in each dimension but the last. */
struct row {
    uint64_t index[STRAIT_CHECKPOINT_DIMS_MAX + 1];
    uint64_t start; /* its first value, of the shard */
};

/* Finds the last row that begins at or before a value; the first row when all begin behind it. */
static void find_row(const struct walk *walk, uint64_t value, struct row *row)
{
    uint64_t rest = value > walk->first ? value - walk->first : 0;
    row->start = walk->first;
    for (uint32_t d = 0; d + 1 < walk->dims; d++) {
        const uint64_t steps = rest / walk->src[d];
        row->index[d] = steps < walk->size[d] ? steps : walk->size[d] - 1;
        rest -= row->index[d] * walk->src[d];
        row->start += row->index[d] * walk->src[d];
    }
}

static bool next_row(const struct walk *walk, struct row *row)
{
    for (uint32_t d = walk->dims - 1; d-- > 0;) {
        row->start += walk->src[d];
        if (++row->index[d] < walk->size[d])
            return true;
        row->start -= row->index[d] * walk->src[d];
        row->index[d] = 0;
    }
    return false;
}

static uint8_t *row_place(const struct walk *walk, const struct row *row)
{
    uint8_t *place = walk->base;
    for (uint32_t d = 0; d + 1 < walk->dims; d++)
        place += row->index[d] * walk->dst[d];
    return place;
}

bool walk_touches(const struct walk *walk, uint64_t first, uint64_t end)
{
    struct row row;
    if (end <= walk->first || first >= end)
        return false;
    find_row(walk, end - 1, &row);
    return row.start + walk->size[walk->dims - 1] > first;
}

uint8_t *walk_span(const struct walk *walk, uint64_t first, uint64_t end)
{
    const uint32_t last = walk->dims - 1;
    struct row row;
    find_row(walk, first, &row);
    if (row.start > first || end > row.start + walk->size[last] ||
        (walk->dst[last] != walk->value_bytes && end - first > 1))
        return NULL;
    return row_place(walk, &row) + (first - row.start) * walk->dst[last];
}

static void copy_values(uint8_t *dst, uint64_t stride, const uint8_t *src, uint64_t count, uint32_t value_bytes)
{
    if (stride == value_bytes) {
        memcpy(dst, src, count * value_bytes);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        memcpy(dst + i * stride, src + i * value_bytes, value_bytes);
}

void walk_copy(const struct walk *walk, uint64_t first, uint64_t end, const uint8_t *src)
{
    const uint32_t last = walk->dims - 1;
    struct row row;
    find_row(walk, first, &row);
    do {
        const uint64_t row_end = row.start + walk->size[last];
        const uint64_t begin = row.start > first ? row.start : first, stop = row_end < end ? row_end : end;
        if (row.start >= end)
            return;
        if (begin < stop)
            copy_values(row_place(walk, &row) + (begin - row.start) * walk->dst[last], walk->dst[last],
                        src + (begin - first) * walk->value_bytes, stop - begin, walk->value_bytes);
    } while (next_row(walk, &row));
}
