#include "daemon/memory/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal/divisor.h"

/* ---- Tiles in memory --------------------------------------------------------------------------------------------- */

/* A tile of a region as it lies in memory. */
struct tile {
    uint64_t offset, step; /* from the page's beginning, and from tile to tile */
    uint64_t row_stride, column_stride;
    uint32_t rows, row_bytes, columns;
};

static bool is_plain(const struct strait_region *region)
{
    return region->rows == 1 || region->row_stride == region->row_bytes;
}

/* Changes a distance in the page's contents into one in memory: a number of rows, or one within a row, of which *extent
 * bytes are needed then. */
static uint64_t distance(const struct strait_region *region, uint64_t bytes, uint32_t count, uint64_t *extent)
{
    if (count == 1)
        return 0;
    if (bytes % region->row_bytes == 0)
        return bytes / region->row_bytes * region->row_stride;
    *extent += (count - 1) * bytes;
    return bytes;
}

/* Rows of a tile of which each of the page's rows has several, at one distance: they are its columns. Returns how many;
 * 1: they lie otherwise. */
static uint32_t rows_of_row(const struct strait_region *region, const struct tile_place *at)
{
    if (at->columns != 1 || at->row_stride == 0 || region->row_bytes % at->row_stride != 0)
        return 1;
    const uint32_t each = region->row_bytes / at->row_stride;
    return each > 0 && at->rows > each && at->rows % each == 0 ? each : 1;
}

/* Places a tile in pages whose rows lie apart. False: its rows do not follow those of the page. */
static bool place_apart(const struct strait_region *region, const struct tile_place *at, uint32_t tiles,
                        struct tile *tile)
{
    const uint64_t row = region->row_bytes;
    const uint32_t each = rows_of_row(region, at);
    uint64_t extent = at->offset % row + at->row_bytes / at->columns;
    tile->offset = at->offset / row * region->row_stride + at->offset % row;
    if (at->rows == 1 && at->columns == 1 && at->offset % row == 0 && at->row_bytes % row == 0) {
        tile->rows = (uint32_t)(at->row_bytes / row);
        tile->row_bytes = region->row_bytes;
        tile->row_stride = region->row_stride;
        extent = row;
    } else if (each > 1) {
        tile->rows = at->rows / each;
        tile->row_bytes = at->row_bytes * each;
        tile->row_stride = region->row_stride;
        tile->columns = each;
        tile->column_stride = distance(region, at->row_stride, each, &extent);
    } else {
        tile->row_stride = distance(region, at->row_stride, at->rows, &extent);
        tile->column_stride = distance(region, at->column_stride, at->columns, &extent);
    }
    tile->step = distance(region, at->step, tiles, &extent);
    return extent <= row && tile->column_stride < STRAIT_COLUMN_STRIDE_MAX;
}

static bool place(const struct strait_region *region, const struct tile_place *at, uint32_t tiles, struct tile *tile)
{
    *tile = (struct tile){.offset = at->offset,
                          .step = at->step,
                          .row_stride = at->row_stride,
                          .column_stride = at->column_stride,
                          .rows = at->rows,
                          .row_bytes = at->row_bytes,
                          .columns = at->columns};
    return is_plain(region) || place_apart(region, at, tiles, tile);
}

/* The number behind the largest id of a tile of so many pages. Where the rows of all pages lie together, tiles are
 * farther apart than pages. */
static uint64_t ids_end(uint64_t scale, uint64_t step, uint32_t tiles, uint32_t page_count)
{
    return page_count == 0 ? 0 : (page_count - 1) * scale + (tiles - 1) * step + 1;
}

/* Numbers the tiles of all pages by one stride. False: another than the group's other regions have. */
static bool number_tiles(struct view_group *group, const struct strait_region *region, const struct tile *tile,
                         bool first, uint64_t *stride)
{
    uint64_t scale = 1, step = 0;
    *stride = region->page_stride;
    if (group->tiles > 1) {
        const uint64_t pages = region->page_count > 1 ? region->page_stride : 0; /* of one page it means nothing */
        *stride = common_divisor(pages, tile->step);
        scale = pages / *stride;
        step = tile->step / *stride;
    }
    if (scale > UINT32_MAX || step > UINT32_MAX ||
        ids_end(scale, step, group->tiles, region->page_count) > UINT32_MAX ||
        (!first && (scale != group->scale || step != group->step)))
        return false;
    group->scale = (uint32_t)scale;
    group->step = (uint32_t)step;
    return true;
}

/* ---- The view ---------------------------------------------------------------------------------------------------- */

static bool make_region(const struct pool_group *own, const struct tile_place *at, struct view_group *numbers,
                        struct pool_group *group, uint32_t r)
{
    const struct strait_region *from = &own->regions[at->region];
    struct tile tile;
    uint64_t stride;
    if (!place(from, at, numbers->tiles, &tile) || !number_tiles(numbers, from, &tile, r == 0, &stride))
        return false;
    group->regions[r] = (struct strait_region){
        .base = (uint8_t *)from->base + tile.offset,
        .page_stride = stride,
        .row_stride = tile.row_stride,
        .page_count = (uint32_t)ids_end(numbers->scale, numbers->step, numbers->tiles, from->page_count),
        .rows = tile.rows,
        .row_bytes = tile.row_bytes,
        .table = from->table,
        .columns = tile.columns,
        .column_stride = (uint32_t)tile.column_stride};
    group->layers[r] = own->layers[at->region];
    group->roles[r] = own->roles[at->region];
    return true;
}

static enum strait_status make_group(const struct pool *pool, const struct reshape *reshape, uint32_t g,
                                     enum reshape_side side, struct pool_view *view, int32_t *layer)
{
    const struct reshape_group *shape = &reshape->groups[g];
    const struct pool_group *own = &pool->groups[shape->group[side]];
    struct pool_group *group = &view->pool.groups[g];
    *group = (struct pool_group){.regions = calloc(shape->count, sizeof(group->regions[0])),
                                 .layers = calloc(shape->count, sizeof(group->layers[0])),
                                 .roles = calloc(shape->count, sizeof(group->roles[0])),
                                 .region_count = shape->count,
                                 .element = own->element,
                                 .device = own->device};
    view->groups[g] = (struct view_group){.own = shape->group[side], .tiles = shape->tiles[side]};
    if (group->regions == NULL || group->layers == NULL || group->roles == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t r = 0; r < shape->count; r++)
        if (!make_region(own, &reshape->regions[shape->first + r].at[side], &view->groups[g], group, r)) {
            *layer = reshape->regions[shape->first + r].layer;
            return STRAIT_ERR_INVALID;
        }
    const struct view_group *numbers = &view->groups[g];
    group->page_count = (uint32_t)ids_end(numbers->scale, numbers->step, numbers->tiles, own->page_count);
    return STRAIT_OK;
}

enum strait_status view_create(const struct pool *pool, const struct reshape *reshape, enum reshape_side side,
                               struct pool_view **made, char *why, size_t why_size)
{
    struct pool_view *view = calloc(1, sizeof(*view));
    if (view == NULL)
        return STRAIT_ERR_NO_MEMORY;
    const uint32_t count = reshape->group_count;
    int32_t layer = -1;
    const struct strait_region **lists = calloc(count, sizeof(lists[0]));
    uint32_t *region_counts = calloc(count, sizeof(region_counts[0]));
    view->pool = (struct pool){.id = pool->id,
                               .geometry = pool->geometry,
                               .coding = pool->coding,
                               .devices = pool->devices,
                               .groups = calloc(count, sizeof(view->pool.groups[0])),
                               .sizes = {.groups = lists, .region_counts = region_counts, .group_count = count}};
    enum strait_status status =
        lists == NULL || region_counts == NULL || view->pool.groups == NULL ? STRAIT_ERR_NO_MEMORY : STRAIT_OK;
    for (uint32_t g = 0; g < count && status == STRAIT_OK; g++) {
        view->pool.group_count++;
        status = make_group(pool, reshape, g, side, view, &layer);
        lists[g] = view->pool.groups[g].regions;
        region_counts[g] = view->pool.groups[g].region_count;
    }
    if (status == STRAIT_ERR_INVALID)
        snprintf(why, why_size,
                 "layer %" PRId32 " of the pool at the %s: its rows or pages lie so that they cannot be cut into tiles "
                 "at one distance",
                 layer, side == RESHAPE_SOURCE ? "source" : "sink");
    if (status == STRAIT_OK)
        *made = view;
    else
        view_destroy(view);
    return status;
}

struct pool_blob view_described(const struct pool *pool)
{
    struct pool_blob blob = {.pool = pool->id,
                             .version = PROTOCOL_VERSION,
                             .version_min = PROTOCOL_VERSION_MIN,
                             .region_count = pool->described_count,
                             .regions = pool->described};
    memcpy(blob.compat, pool->compat, sizeof(blob.compat));
    return blob;
}

void view_destroy(struct pool_view *view)
{
    if (view == NULL)
        return;
    pool_free_groups(&view->pool);
    free(view);
}

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

static enum strait_status add_span(const struct view_group *group, uint32_t g, const struct page_span *span,
                                   const uint32_t *ids, struct page_set *tiles)
{
    const uint64_t first = (uint64_t)span->first * group->tiles, count = (uint64_t)span->count * group->tiles;
    if (first + count > UINT32_MAX)
        return STRAIT_ERR_INVALID;
    uint32_t *list = malloc(count * sizeof(list[0]));
    if (list == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t p = 0, i = 0; p < span->count; p++)
        for (uint32_t t = 0; t < group->tiles; t++)
            list[i++] = ids[span->ordinal + p] * group->scale + t * group->step;
    enum strait_status status = page_set_add(
        tiles, &(struct wire_page_list){.group = g, .first = (uint32_t)first, .count = (uint32_t)count, .ids = list});
    free(list);
    return status;
}

enum strait_status view_pages(const struct pool_view *view, const struct page_set *pages, struct page_set *tiles)
{
    enum strait_status status = page_set_init(tiles, view->pool.group_count);
    for (uint32_t g = 0; g < view->pool.group_count && status == STRAIT_OK; g++) {
        const struct page_group *own = &pages->groups[view->groups[g].own];
        struct page_cursor cursor = {0};
        const struct page_span *span;
        while (status == STRAIT_OK && (span = page_group_next(own, &cursor)) != NULL)
            status = add_span(&view->groups[g], g, span, own->ids, tiles);
    }
    if (status != STRAIT_OK)
        page_set_fini(tiles);
    return status;
}
