#include "daemon/part.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/expectation.h"

/* ---- Bytes that a page still lacks ------------------------------------------------------------------------------- */

/* Per unit of the expectation's own pool, that is page of a region: how many of its bytes have not landed; and per
 * region what parts have begun to bring. */
static bool prepare_left(struct expectation *e)
{
    const struct pool *pool = e->request.pool->pool;
    uint64_t units = 0, regions = 0;
    if (e->left != NULL)
        return true;
    for (uint32_t g = 0; g < pool->group_count; g++) {
        units += (uint64_t)pool->groups[g].region_count * e->request.pages.groups[g].id_count;
        regions += pool->groups[g].region_count;
    }
    if (units > COVERAGE_BYTES_MAX / sizeof(uint32_t) ||
        !request_charge(&e->request, units * sizeof(*e->left) + regions * sizeof(*e->begun)))
        return false;
    free(e->begun);
    e->begun = calloc(regions + 1, sizeof(*e->begun));
    e->left = e->begun == NULL ? NULL : malloc((units + 1) * sizeof(*e->left));
    if (e->left == NULL)
        return false;
    uint32_t *left = e->left;
    for (uint32_t g = 0; g < pool->group_count; g++)
        for (uint32_t r = 0; r < pool->groups[g].region_count; r++) {
            const struct strait_region *region = &pool->groups[g].regions[r];
            for (uint32_t i = 0; i < e->request.pages.groups[g].id_count; i++)
                *left++ = region->rows * region->row_bytes;
        }
    return true;
}

/* Of all pages of a region, by their ordinals. */
static uint32_t *left_of(struct expectation *e, uint32_t group, uint32_t region)
{
    const struct pool *pool = e->request.pool->pool;
    uint64_t at = 0;
    for (uint32_t g = 0; g < group; g++)
        at += (uint64_t)pool->groups[g].region_count * e->request.pages.groups[g].id_count;
    return e->left + at + (uint64_t)region * e->request.pages.groups[group].id_count;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static void part_free(struct part *part)
{
    coverage_destroy(part->coverage);
    free(part->brought);
    page_set_fini(&part->tiles);
    view_destroy(part->view);
    reshape_fini(&part->reshape);
    free(part);
}

void parts_free(struct expectation *e)
{
    struct part *part, *next;
    LL_FOREACH_SAFE (e->parts, part, next)
        part_free(part);
    e->parts = NULL;
    free(e->left);
    free(e->begun);
    e->left = NULL;
    e->begun = NULL;
}

static enum strait_status cover(const struct expectation *e, struct part *part)
{
    struct coverage_group groups[STRAIT_GROUPS_MAX];
    const struct pool *view = &part->view->pool;
    enum strait_status status = view_pages(part->view, &e->request.pages, &part->tiles);
    if (status != STRAIT_OK)
        return status;
    for (uint32_t g = 0; g < view->group_count; g++)
        groups[g] =
            (struct coverage_group){.region_count = view->groups[g].region_count, .layers = view->groups[g].layers};
    return coverage_create(&part->tiles, groups, view->group_count, &part->coverage);
}

static enum strait_status list_brought(struct expectation *e, struct part *part)
{
    const uint32_t count = part->reshape.region_count;
    if (!request_charge(&e->request, (uint64_t)part->tiles.total * sizeof(uint32_t) + count * sizeof(*part->brought)))
        return STRAIT_ERR_NO_MEMORY;
    part->brought = calloc(count + 1, sizeof(*part->brought));
    for (uint32_t i = 0; part->brought != NULL && i < count; i++)
        part->brought[i] = (struct brought){.part = part, .region = &part->reshape.regions[i]};
    return part->brought != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

static enum strait_reason fill(struct expectation *e, struct part *part, const struct pool_blob *source,
                               const char **why)
{
    const struct pool *pool = e->request.pool->pool;
    char text[400];
    const struct pool_blob sink = view_described(pool);
    enum strait_status status = reshape_make(source, &sink, &part->reshape, text, sizeof(text));
    if (status == STRAIT_OK)
        status = view_create(pool, &part->reshape, RESHAPE_SINK, &part->view, text, sizeof(text));
    if (status == STRAIT_ERR_INVALID)
        *why = request_text(&e->request, "%s", text);
    if (status == STRAIT_OK)
        status = prepare_left(e) ? cover(e, part) : STRAIT_ERR_NO_MEMORY;
    if (status == STRAIT_OK)
        status = list_brought(e, part);
    return status == STRAIT_OK              ? STRAIT_REASON_NONE
           : status == STRAIT_ERR_NO_MEMORY ? STRAIT_REASON_NO_MEMORY
                                            : STRAIT_REASON_GEOMETRY;
}

/* ---- Landing ----------------------------------------------------------------------------------------------------- */

/* Calls of `layer`. */
struct told {
    void (*layer)(void *owner, int32_t layer);
    void *owner;
};

/* Bytes that have come of one region of the expectation's pool. */
struct come {
    uint32_t group, region;
    uint32_t tiles, tile_bytes; /* of a page; of a tile */
    uint32_t first, count;      /* tiles */
};

/* All bytes of these pages have come. */
static void land_pages(struct expectation *e, const struct come *come, uint32_t first, uint32_t count,
                       const struct told *told)
{
    const struct segment segment = {come->group, come->region, 1, first, count};
    const struct piece piece = {come->group, come->region, 1, first, count};
    if (count > 0 && coverage_claim(e->coverage, &segment) &&
        coverage_land(e->coverage, &piece, told->layer, told->owner))
        e->request.callbacks->landed(&e->request, &piece);
}

/* Subtracts from pages [first, first + count), whose ordinals follow one another; what lacks nothing any more has
 * landed, as many pages at a time as there are in a row. */
static void subtract_run(struct expectation *e, const struct come *come, uint32_t first, uint32_t count, uint32_t *left,
                         const struct told *told)
{
    const uint64_t begin = come->first, end = begin + come->count;
    uint32_t whole = 0; /* pages in a row before this one */
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t tile = (uint64_t)(first + i) * come->tiles;
        const uint64_t from = tile > begin ? tile : begin, to = tile + come->tiles < end ? tile + come->tiles : end;
        const uint32_t bytes = (uint32_t)(to - from) * come->tile_bytes;
        left[i] -= bytes < left[i] ? bytes : left[i];
        whole++;
        if (left[i] == 0)
            continue;
        land_pages(e, come, first + i + 1 - whole, whole - 1, told);
        whole = 0;
    }
    land_pages(e, come, first + count - whole, whole, told);
}

static void subtract(struct expectation *e, const struct come *come, const struct told *told)
{
    const struct page_set *pages = &e->request.pages;
    uint32_t *left = left_of(e, come->group, come->region);
    const uint32_t end = (come->first + come->count - 1) / come->tiles + 1;
    for (uint32_t page = come->first / come->tiles, run; page < end; page += run) {
        run = page_set_run(pages, come->group, page);
        run = run == 0 ? 1 : run < end - page ? run : end - page;
        const uint32_t *ids = page_set_ids(pages, come->group, page, run);
        if (ids != NULL) /* else the tiles of a page that is not expected have landed, which cannot be */
            subtract_run(e, come, page, run, left + (ids - pages->groups[come->group].ids), told);
    }
}

/* Tiles [first, first + count) of a region of the part. */
static struct come come_of(const struct part *part, uint32_t g, uint32_t r, uint32_t first, uint32_t count)
{
    const struct reshape_group *group = &part->reshape.groups[g];
    const struct reshape_region *region = &part->reshape.regions[group->first + r];
    return (struct come){.group = group->group[RESHAPE_SINK],
                         .region = region->at[RESHAPE_SINK].region,
                         .tiles = group->tiles[RESHAPE_SINK],
                         .tile_bytes = region->bytes,
                         .first = first,
                         .count = count};
}

bool part_land(struct expectation *e, struct part *part, const struct piece *piece,
               void (*layer)(void *owner, int32_t layer), void *owner)
{
    if (!coverage_land(part->coverage, piece, NULL, NULL))
        return false;
    for (uint32_t r = 0; r < piece->region_count; r++) {
        const struct come come = come_of(part, piece->group, piece->region_first + r, piece->first, piece->count);
        subtract(e, &come, &(struct told){layer, owner});
    }
    return true;
}

/* ---- Getting ----------------------------------------------------------------------------------------------------- */

/* Tokens of a page of the group at the sink; 0: not declared, or regions differ. */
static uint32_t tokens_of_page(const struct pool_blob *sink, uint32_t group)
{
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < sink->region_count; i++) {
        const struct blob_region *region = &sink->regions[i];
        if (region->group != group)
            continue;
        if (region->tokens == 0 || (tokens != 0 && tokens != region->tokens))
            return 0;
        tokens = region->tokens;
    }
    return tokens;
}

/* Where the tokens of the expectation end: with the last page of the sources that has any of them. */
static void end_tokens(const struct expectation *e, struct part *part)
{
    const struct pool_blob sink = view_described(e->request.pool->pool);
    for (uint32_t g = 0; g < part->reshape.group_count && e->tokens != 0; g++) {
        const struct reshape_group *group = &part->reshape.groups[g];
        const uint32_t tiles = group->tiles[RESHAPE_SINK], tiles_of_source = group->tiles[RESHAPE_SOURCE];
        const uint64_t of_tile = tokens_of_page(&sink, group->group[RESHAPE_SINK]) / tiles;
        if (of_tile == 0)
            continue;
        const uint64_t of_source = of_tile * tiles_of_source;
        const uint64_t end = (e->tokens + of_source - 1) / of_source * tiles_of_source;
        if (end + tiles > UINT32_MAX)
            continue;
        part->ends[g] = (uint32_t)end;
    }
}

struct part *part_get(struct expectation *e, const struct pool_blob *source, uint64_t geometry,
                      enum strait_reason *reason, const char **why)
{
    struct part *part;
    *why = "";
    LL_SEARCH_SCALAR(e->parts, part, geometry, geometry);
    if (part != NULL)
        return part;
    part = calloc(1, sizeof(*part));
    *reason = part == NULL ? STRAIT_REASON_NO_MEMORY : fill(e, part, source, why);
    if (*reason != STRAIT_REASON_NONE) {
        if (part != NULL)
            part_free(part);
        return NULL;
    }
    part->geometry = geometry;
    end_tokens(e, part);
    LL_PREPEND(e->parts, part);
    return part;
}

/* ---- Claiming ---------------------------------------------------------------------------------------------------- */

/* The list of what parts have begun to bring of the region of the pool that this one is of. */
static struct brought **begun_of(const struct expectation *e, const struct part *part, uint32_t g, uint32_t r)
{
    const struct reshape_group *group = &part->reshape.groups[g];
    const struct pool *pool = e->request.pool->pool;
    uint64_t at = part->reshape.regions[group->first + r].at[RESHAPE_SINK].region;
    for (uint32_t i = 0; i < group->group[RESHAPE_SINK]; i++)
        at += pool->groups[i].region_count;
    return &e->begun[at];
}

/* What another part has begun to bring of the same bytes; NULL: nothing. */
static const struct brought *find_other(const struct expectation *e, const struct part *part, uint32_t g, uint32_t r)
{
    const struct brought *own = &part->brought[part->reshape.groups[g].first + r], *other;
    LL_FOREACH (*begun_of(e, part, g, r), other)
        if (other->part != part && reshape_regions_overlap(other->region, own->region))
            return other;
    return NULL;
}

/* The part brings this region. What its last page has behind the end of the tokens is not missed. */
static void begin_region(struct expectation *e, struct part *part, uint32_t g, uint32_t r)
{
    struct brought *own = &part->brought[part->reshape.groups[g].first + r];
    const uint32_t tiles = part->reshape.groups[g].tiles[RESHAPE_SINK], end = part->ends[g];
    if (own->begun)
        return;
    own->begun = true;
    LL_PREPEND(*begun_of(e, part, g, r), own);
    if (end % tiles != 0) {
        const struct come come = come_of(part, g, r, end, tiles - end % tiles);
        subtract(e, &come, &(struct told){0});
    }
}

static const char *same_text(struct expectation *e, const struct reshape_region *region)
{
    if (region->heads == 0)
        return request_text(&e->request, "two sources have announced the same pages of layer %" PRId32, region->layer);
    return request_text(
        &e->request, "two sources have announced the same heads of layer %" PRId32 " (one: %" PRIu32 " to %" PRIu32 ")",
        region->layer, region->head, region->head + region->heads - 1);
}

bool part_claim(struct expectation *e, struct part *part, const struct segment *segment, const char **why)
{
    if (segment->group >= part->reshape.group_count)
        return false;
    const struct reshape_group *group = &part->reshape.groups[segment->group];
    if (segment->region_first > group->count || segment->region_count > group->count - segment->region_first)
        return false;
    for (uint32_t r = segment->region_first; r < segment->region_first + segment->region_count; r++) {
        const struct brought *other = find_other(e, part, segment->group, r);
        if (other != NULL) {
            *why = same_text(e, other->region);
            return false;
        }
    }
    const uint64_t end = part->ends[segment->group], past = (uint64_t)segment->first + segment->count;
    const uint32_t tiles = group->tiles[RESHAPE_SINK];
    const bool behind = end % tiles != 0 && past > end && segment->first < end / tiles * tiles + tiles;
    if (behind || !coverage_claim(part->coverage, segment))
        return false;
    for (uint32_t r = segment->region_first; r < segment->region_first + segment->region_count; r++)
        begin_region(e, part, segment->group, r);
    return true;
}

/* ---- Where tokens begin and end ---------------------------------------------------------------------------------- */

/* Where what has come of a group of the expectation's pool begins, or ends: in pages, as a fraction. All parts of it
 * have to agree, or one of them lacks tokens that another has. */
struct end {
    uint64_t tiles, tiles_of_page; /* 0: not known yet */
    bool differs;
};

typedef bool find_in_coverage(const struct coverage *coverage, uint32_t group, uint32_t *tile);

/* Whether the part brings any region of a group. */
static bool brings(const struct part *part, uint32_t g)
{
    const struct reshape_group *group = &part->reshape.groups[g];
    for (uint32_t r = 0; r < group->count; r++)
        if (part->brought[group->first + r].begun)
            return true;
    return false;
}

static void find_end(const struct part *part, uint32_t g, find_in_coverage *find, struct end *ends)
{
    const struct reshape_group *group = &part->reshape.groups[g];
    struct end *known = &ends[group->group[RESHAPE_SINK]];
    const uint64_t tiles = group->tiles[RESHAPE_SINK];
    uint32_t end;
    if (!find(part->coverage, g, &end))
        known->differs = true;
    else if (known->tiles_of_page == 0)
        *known = (struct end){.tiles = end, .tiles_of_page = tiles, .differs = known->differs};
    else
        known->differs |= end * known->tiles_of_page != known->tiles * tiles;
}

static void find_ends(const struct expectation *e, find_in_coverage *find, struct end *ends)
{
    const struct part *part;
    LL_FOREACH (e->parts, part)
        for (uint32_t g = 0; g < part->reshape.group_count; g++)
            if (brings(part, g))
                find_end(part, g, find, ends);
}

/* Tiles [first, first + count) of a group are not missed. */
static void waive(struct expectation *e, const struct part *part, uint32_t g, uint32_t first, uint32_t count,
                  const struct told *told)
{
    for (uint32_t r = 0; r < part->reshape.groups[g].count; r++) {
        const struct come come = come_of(part, g, r, first, count);
        if (part->brought[part->reshape.groups[g].first + r].begun)
            subtract(e, &come, told);
    }
}

/* Waives the tiles behind the last one that has landed, up to the end of its page. */
static void end_group(struct expectation *e, const struct part *part, uint32_t g, const struct end *ends,
                      const struct told *told)
{
    const struct reshape_group *group = &part->reshape.groups[g];
    const uint32_t tiles = group->tiles[RESHAPE_SINK];
    uint32_t end;
    if (part->ends[g] == 0 && !ends[group->group[RESHAPE_SINK]].differs && coverage_end(part->coverage, g, &end) &&
        end % tiles != 0)
        waive(e, part, g, end, tiles - end % tiles, told);
}

/* Waives the tiles before the first one that has landed, if that is in the group's first page. */
static void begin_group(struct expectation *e, const struct part *part, uint32_t g, const struct end *begins,
                        const struct told *told)
{
    const struct reshape_group *group = &part->reshape.groups[g];
    const uint32_t tiles = group->tiles[RESHAPE_SINK];
    struct page_cursor cursor = {0};
    const struct page_span *span = page_group_next(&e->request.pages.groups[group->group[RESHAPE_SINK]], &cursor);
    uint32_t begin;
    if (span != NULL && !begins[group->group[RESHAPE_SINK]].differs && coverage_begin(part->coverage, g, &begin) &&
        begin % tiles != 0 && begin / tiles == span->first)
        waive(e, part, g, begin - begin % tiles, begin % tiles, told);
}

void parts_end(struct expectation *e, void (*layer)(void *owner, int32_t layer), void *owner)
{
    const struct told told = {layer, owner};
    struct end begins[STRAIT_GROUPS_MAX] = {{0}}, ends[STRAIT_GROUPS_MAX] = {{0}};
    const struct part *part;
    find_ends(e, coverage_end, ends);
    find_ends(e, coverage_begin, begins);
    LL_FOREACH (e->parts, part)
        for (uint32_t g = 0; g < part->reshape.group_count; g++) {
            end_group(e, part, g, ends, &told);
            if (e->begins_within)
                begin_group(e, part, g, begins, &told);
        }
}
