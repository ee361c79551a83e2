#include "checkpoint/walk.h"

#include <string.h>

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

void walk_init(struct walk *walk, const struct checkpoint_box *shard, const struct checkpoint_box *part,
               const struct box_memory *memory)
{
    uint64_t src = 1, dst = memory->value_bytes;
    walk->first = 0;
    walk->base = memory->data;
    walk->dims = 0;
    walk->value_bytes = memory->value_bytes;
    for (uint32_t d = part->dims; d-- > 0; src *= shard->sizes[d], dst *= memory->box.sizes[d]) {
        const uint64_t stride = memory->strides != NULL ? memory->strides[d] : dst;
        walk->first += (part->offsets[d] - shard->offsets[d]) * src;
        walk->base += (part->offsets[d] - memory->box.offsets[d]) * stride;
        if (part->sizes[d] == 1)
            continue;
        if (walk->dims == 0 && src != 1) /* each row is one value */
            add_dimension(walk, 1, 1, memory->value_bytes);
        add_dimension(walk, part->sizes[d], src, stride);
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
