#include "daemon/protocol/segments.h"

#include <stdlib.h>

void segments_fini(struct segments *segments)
{
    free(segments->list);
    free(segments->starts);
    *segments = (struct segments){0};
}

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

static bool segment_valid(const struct segment *segment, uint32_t units_before)
{
    if (segment->region_count == 0 || segment->count == 0)
        return false;
    if (segment->region_count > UINT32_MAX - segment->region_first || segment->count > UINT32_MAX - segment->first)
        return false;
    return (uint64_t)segment->region_count * segment->count <= UINT32_MAX - units_before;
}

static enum strait_status reserve(struct segments *segments)
{
    if (segments->count < segments->capacity)
        return STRAIT_OK;
    uint32_t wanted = segments->capacity + segments->capacity / 2 + 4;
    struct segment *list = realloc(segments->list, wanted * sizeof(*list));
    if (list == NULL)
        return STRAIT_ERR_NO_MEMORY;
    segments->list = list;
    uint32_t *starts = realloc(segments->starts, wanted * sizeof(*starts));
    if (starts == NULL)
        return STRAIT_ERR_NO_MEMORY; /* the longer list does no harm */
    segments->starts = starts;
    segments->capacity = wanted;
    return STRAIT_OK;
}

enum strait_status segments_add(struct segments *segments, const struct segment *segment)
{
    if (!segment_valid(segment, segments->units))
        return STRAIT_ERR_INVALID;
    enum strait_status status = reserve(segments);
    if (status != STRAIT_OK)
        return status;
    segments->list[segments->count] = *segment;
    segments->starts[segments->count] = segments->units;
    segments->units += segment->region_count * segment->count;
    segments->count++;
    return STRAIT_OK;
}

/* ---- Cutting ----------------------------------------------------------------------------------------------------- */

/* The position of a unit: `row` of the segment, `page` of the row. */
struct place {
    const struct segment *segment;
    uint32_t row, page;
};

static bool find(const struct segments *segments, uint32_t unit, struct place *place)
{
    if (unit >= segments->units)
        return false;
    uint32_t low = 0, high = segments->count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (segments->starts[middle] <= unit)
            low = middle;
        else
            high = middle;
    }
    const struct segment *segment = &segments->list[low];
    uint32_t offset = unit - segments->starts[low];
    *place = (struct place){segment, offset / segment->count, offset % segment->count};
    return true;
}

bool segments_piece(const struct segments *segments, uint32_t first, uint32_t count, struct piece *piece)
{
    struct place at;
    if (count == 0 || !find(segments, first, &at))
        return false;
    const struct segment *segment = at.segment;
    uint32_t width = segment->count, rows = count / width;
    if (at.page == 0 && count % width == 0 && rows <= segment->region_count - at.row) {
        *piece = (struct piece){segment->group, segment->region_first + at.row, rows, segment->first, width};
        return true;
    }
    if (count > width - at.page)
        return false;
    *piece = (struct piece){segment->group, segment->region_first + at.row, 1, segment->first + at.page, count};
    return true;
}

/* Does a chunk of `rows` regions from `regions` on, `pages` pages each, fit? The bound is 0 for lists that are too long
 * for any chunk. */
static bool fits(const struct strait_region *regions, uint32_t rows, uint32_t pages, uint64_t capacity)
{
    uint64_t bound =
        strait_encode_bound(&(struct strait_pages){.regions = regions, .region_count = rows, .id_count = pages});
    return bound != 0 && bound <= capacity;
}

/* The number of rows of `width` pages that fit; with width 0 the number of pages of the first row. At most `most`. */
static uint32_t largest(const struct strait_region *regions, uint32_t most, uint32_t width, uint64_t capacity)
{
    uint32_t low = 0, high = most < STRAIT_CHUNK_PAGES_MAX ? most : STRAIT_CHUNK_PAGES_MAX;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (width > 0 ? fits(regions, middle, width, capacity) : fits(regions, 1, middle, capacity))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static bool sizes_known(const struct region_sizes *sizes, const struct segment *segment)
{
    return segment->group < sizes->group_count &&
           (uint64_t)segment->region_first + segment->region_count <= sizes->region_counts[segment->group];
}

uint64_t segment_bytes(const struct segment *segment, const struct region_sizes *sizes)
{
    uint64_t bytes = 0;
    if (!sizes_known(sizes, segment))
        return 0;
    for (uint32_t r = 0; r < segment->region_count; r++) {
        const struct strait_region *region = &sizes->groups[segment->group][segment->region_first + r];
        bytes += (uint64_t)region->rows * region->row_bytes;
    }
    return bytes * segment->count;
}

uint32_t segments_cut(const struct segments *segments, uint32_t first, uint32_t most, const struct region_sizes *sizes,
                      const struct page_set *pages, uint64_t capacity)
{
    struct place at;
    if (!find(segments, first, &at) || !sizes_known(sizes, at.segment))
        return 0;
    const struct segment *segment = at.segment;
    const struct strait_region *regions = sizes->groups[segment->group] + segment->region_first + at.row;
    uint32_t width = segment->count, run = width - at.page;
    if (pages != NULL)
        run = least(run, page_set_run(pages, segment->group, segment->first + at.page));
    if (at.page == 0 && run == width) {
        uint32_t rows = largest(regions, least(most / width, segment->region_count - at.row), width, capacity);
        if (rows > 0)
            return rows * width;
    }
    return largest(regions, least(most, run), 0, capacity);
}

uint32_t segments_cut_chunk(const struct segments *segments, uint32_t first, uint32_t most,
                            const struct region_sizes *sizes, const struct page_set *pages, uint64_t target,
                            uint64_t limit)
{
    uint32_t count = segments_cut(segments, first, most, sizes, pages, target < limit ? target : limit);
    return count != 0 ? count : segments_cut(segments, first, 1, sizes, pages, limit);
}

/* ---- What is wanted ---------------------------------------------------------------------------------------------- */

static uint32_t first_not_before(const struct wire_span *spans, uint32_t count, uint32_t group, uint32_t first)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (spans[middle].group < group ||
            (spans[middle].group == group && (uint64_t)spans[middle].first + spans[middle].count <= first))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

enum strait_status segment_intersect(const struct segment *offered, const struct wire_span *wanted,
                                     uint32_t wanted_count,
                                     enum strait_status (*emit)(void *owner, const struct segment *segment),
                                     void *owner)
{
    uint64_t end = (uint64_t)offered->first + offered->count;
    for (uint32_t i = first_not_before(wanted, wanted_count, offered->group, offered->first); i < wanted_count; i++) {
        if (wanted[i].group != offered->group || wanted[i].first >= end)
            break;
        struct segment piece = *offered;
        uint64_t wanted_end = (uint64_t)wanted[i].first + wanted[i].count;
        piece.first = wanted[i].first > offered->first ? wanted[i].first : offered->first;
        piece.count = (uint32_t)((wanted_end < end ? wanted_end : end) - piece.first);
        if (piece.count == 0)
            continue; /* an empty span */
        enum strait_status status = emit(owner, &piece);
        if (status != STRAIT_OK)
            return status;
    }
    return STRAIT_OK;
}
