#include "daemon/protocol/page_set.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_SPANS 128u /* a block that needs more is split */

enum strait_status page_set_init(struct page_set *set, uint32_t group_count)
{
    struct page_group *groups = calloc(group_count > 0 ? group_count : 1, sizeof(*groups));
    if (groups == NULL)
        return STRAIT_ERR_NO_MEMORY;
    *set = (struct page_set){.groups = groups, .group_count = group_count};
    return STRAIT_OK;
}

void page_set_fini(struct page_set *set)
{
    for (uint32_t g = 0; g < set->group_count; g++) {
        for (uint32_t b = 0; b < set->groups[g].block_count; b++)
            free(set->groups[g].blocks[b].spans);
        free(set->groups[g].blocks);
        free(set->groups[g].ids);
    }
    free(set->groups);
    *set = (struct page_set){0};
}

/* The number of blocks that begin at or before `first`: it belongs into the last of them. */
static uint32_t blocks_until(const struct page_group *group, uint32_t first)
{
    uint32_t low = 0, high = group->block_count;
    if (high > 0 && group->blocks[high - 1].spans[0].first <= first)
        return high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (group->blocks[middle].spans[0].first <= first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Index of the first span of a block that begins after `first`. */
static uint32_t span_after(const struct page_block *block, uint32_t first)
{
    uint32_t low = 0, high = block->count;
    if (block->spans[high - 1].first <= first)
        return high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (block->spans[middle].first <= first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The place for a span that begins at `first`: before span `at` of the block; the span before that may contain `first`.
 * Only in block 0 can there be no span before. Without any block: 0, 0. */
static struct page_cursor place_of(const struct page_group *group, uint32_t first)
{
    uint32_t until = blocks_until(group, first);
    if (until == 0)
        return (struct page_cursor){0};
    return (struct page_cursor){until - 1, span_after(&group->blocks[until - 1], first)};
}

static struct page_span *span_before(const struct page_group *group, struct page_cursor place)
{
    return place.at == 0 ? NULL : &group->blocks[place.block].spans[place.at - 1];
}

const struct page_span *page_group_next(const struct page_group *group, struct page_cursor *cursor)
{
    if (cursor->block < group->block_count && cursor->at == group->blocks[cursor->block].count)
        *cursor = (struct page_cursor){.block = cursor->block + 1};
    return cursor->block < group->block_count ? &group->blocks[cursor->block].spans[cursor->at++] : NULL;
}

static const struct page_span *span_with(const struct page_set *set, uint32_t group, uint32_t first)
{
    if (group >= set->group_count)
        return NULL;
    const struct page_span *span = span_before(&set->groups[group], place_of(&set->groups[group], first));
    return span != NULL && first - span->first < span->count ? span : NULL;
}

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

/* Makes room for `more` elements beyond `count`; grows by half, so that many small lists cost little. */
static bool reserve(void **list, uint32_t *capacity, uint32_t count, uint32_t more, size_t size)
{
    if (more <= *capacity - count)
        return true;
    uint32_t wanted = count + more, grown = *capacity + *capacity / 2 + 4;
    wanted = grown > wanted ? grown : wanted;
    void *moved = realloc(*list, wanted * size);
    if (moved == NULL)
        return false;
    *list = moved;
    *capacity = wanted;
    return true;
}

static bool reserve_ids(struct page_group *group, uint32_t more)
{
    void *list = group->ids;
    bool enough = reserve(&list, &group->id_capacity, group->id_count, more, sizeof(*group->ids));
    group->ids = list;
    return enough;
}

static bool reserve_span(struct page_block *block)
{
    void *list = block->spans;
    bool enough = reserve(&list, &block->capacity, block->count, 1, sizeof(*block->spans));
    block->spans = list;
    return enough;
}

/* Takes ownership of `made`, also on failure. */
static bool insert_block(struct page_group *group, uint32_t at, struct page_block made)
{
    void *list = group->blocks;
    bool enough = reserve(&list, &group->block_capacity, group->block_count, 1, sizeof(*group->blocks));
    group->blocks = list;
    if (!enough) {
        free(made.spans);
        return false;
    }
    memmove(group->blocks + at + 1, group->blocks + at, (group->block_count - at) * sizeof(*group->blocks));
    group->blocks[at] = made;
    group->block_count++;
    return true;
}

/* The caller adds its first span at once, so no block stays empty. */
static bool new_block(struct page_group *group, uint32_t at)
{
    struct page_block made = {0};
    return reserve_span(&made) && insert_block(group, at, made);
}

/* Moves the upper half of a full block into a block of its own, and the place with it. */
static bool split(struct page_group *group, struct page_cursor *place)
{
    const uint32_t half = BLOCK_SPANS / 2;
    struct page_block upper = {malloc(BLOCK_SPANS * sizeof(*upper.spans)), BLOCK_SPANS - half, BLOCK_SPANS};
    if (upper.spans == NULL)
        return false;
    memcpy(upper.spans, group->blocks[place->block].spans + half, upper.count * sizeof(*upper.spans));
    if (!insert_block(group, place->block + 1, upper))
        return false;
    group->blocks[place->block].count = half;
    if (place->at > half)
        *place = (struct page_cursor){place->block + 1, place->at - half};
    return true;
}

/* Makes room for one more span at a place. At the end of the last block, where rising lists continue, a full block is
 * not split. */
static bool make_room(struct page_group *group, struct page_cursor *place)
{
    if (group->block_count == 0)
        return new_block(group, 0);
    if (group->blocks[place->block].count < BLOCK_SPANS)
        return reserve_span(&group->blocks[place->block]);
    if (place->block + 1 < group->block_count || place->at < BLOCK_SPANS)
        return split(group, place);
    if (!new_block(group, place->block + 1))
        return false;
    *place = (struct page_cursor){.block = place->block + 1};
    return true;
}

/* Is the list's range of indexes free at this place? */
static bool fits(const struct page_group *group, struct page_cursor place, const struct wire_page_list *list)
{
    const struct page_span *before = span_before(group, place), *after = page_group_next(group, &place);
    if (after != NULL && after->first - list->first < list->count)
        return false;
    return before == NULL || list->first - before->first >= before->count;
}

static enum strait_status check_list(const struct page_set *set, const struct wire_page_list *list)
{
    if (list->group >= set->group_count || list->count > STRAIT_TRANSFER_PAGES_MAX - set->total ||
        list->count > UINT32_MAX - list->first)
        return STRAIT_ERR_INVALID;
    if (list->ids == NULL && list->count > UINT32_MAX - list->first_id)
        return STRAIT_ERR_INVALID;
    return STRAIT_OK;
}

enum strait_status page_set_add(struct page_set *set, const struct wire_page_list *list)
{
    if (check_list(set, list) != STRAIT_OK)
        return STRAIT_ERR_INVALID;
    if (list->count == 0)
        return STRAIT_OK;
    struct page_group *group = &set->groups[list->group];
    struct page_cursor place = place_of(group, list->first);
    struct page_span *before = span_before(group, place);
    if (!fits(group, place, list))
        return STRAIT_ERR_INVALID;
    /* Can the span before be extended? Ids are appended, so only if its ids are the last ones. */
    bool extending = before != NULL && before->first + before->count == list->first &&
                     before->ordinal + before->count == group->id_count;
    if (!extending && group->span_count == PAGE_SET_SPANS_MAX)
        return STRAIT_ERR_INVALID;
    if (!reserve_ids(group, list->count) || (!extending && !make_room(group, &place)))
        return STRAIT_ERR_NO_MEMORY;
    if (extending)
        before->count += list->count;
    else {
        struct page_block *block = &group->blocks[place.block];
        struct page_span *at = block->spans + place.at;
        memmove(at + 1, at, (block->count - place.at) * sizeof(*at));
        *at = (struct page_span){list->first, list->count, group->id_count};
        block->count++;
        group->span_count++;
    }
    uint32_t *ids = group->ids + group->id_count;
    if (list->ids != NULL)
        memcpy(ids, list->ids, list->count * sizeof(*ids));
    else
        for (uint32_t i = 0; i < list->count; i++)
            ids[i] = list->first_id + i;
    group->id_count += list->count;
    set->total += list->count;
    return STRAIT_OK;
}

/* ---- Looking up -------------------------------------------------------------------------------------------------- */

uint32_t page_set_run(const struct page_set *set, uint32_t group, uint32_t first)
{
    const struct page_span *span = span_with(set, group, first);
    return span == NULL ? 0 : span->count - (first - span->first);
}

const uint32_t *page_set_ids(const struct page_set *set, uint32_t group, uint32_t first, uint32_t count)
{
    const struct page_span *span = span_with(set, group, first);
    if (span == NULL || count == 0 || count > span->count - (first - span->first))
        return NULL;
    return set->groups[group].ids + span->ordinal + (first - span->first);
}

void page_list_shorten(struct wire_page_list *list)
{
    for (uint32_t i = 1; i < list->count; i++)
        if (list->ids[i] != list->ids[0] + i)
            return;
    list->first_id = list->ids[0];
    list->ids = NULL;
}

bool page_set_next_list(const struct page_set *set, struct page_lists_cursor *cursor, uint32_t most,
                        struct wire_page_list *list)
{
    struct page_span *rest = &cursor->rest;
    while (rest->count == 0) {
        if (cursor->group == set->group_count)
            return false;
        const struct page_span *span = page_group_next(&set->groups[cursor->group], &cursor->at);
        if (span != NULL) {
            *rest = *span;
        } else {
            cursor->group++;
            cursor->at = (struct page_cursor){0};
        }
    }
    *list = (struct wire_page_list){.group = cursor->group,
                                    .first = rest->first,
                                    .count = rest->count < most ? rest->count : most,
                                    .ids = set->groups[cursor->group].ids + rest->ordinal};
    rest->first += list->count;
    rest->ordinal += list->count;
    rest->count -= list->count;
    page_list_shorten(list);
    return true;
}

struct wire_span *page_set_spans(const struct page_set *set, uint32_t *count)
{
    size_t room = 1;
    for (uint32_t g = 0; g < set->group_count; g++)
        room += set->groups[g].span_count;
    struct wire_span *spans = malloc(room * sizeof(*spans));
    if (spans == NULL)
        return NULL;
    *count = 0;
    for (uint32_t g = 0; g < set->group_count; g++) {
        struct page_cursor cursor = {0};
        const struct page_span *span;
        while ((span = page_group_next(&set->groups[g], &cursor)) != NULL)
            spans[(*count)++] = (struct wire_span){.group = g, .first = span->first, .count = span->count};
    }
    return spans;
}

/* ---- Spans received from peers ----------------------------------------------------------------------------------- */

static bool rises(const struct wire_span *before, const struct wire_span *span)
{
    if (span->group != before->group)
        return span->group > before->group;
    return span->first >= (uint64_t)before->first + before->count;
}

bool page_spans_valid(const struct wire_span *spans, uint32_t known, uint32_t count)
{
    for (uint32_t i = known; i < count; i++) {
        if (spans[i].count == 0 || (i > 0 && !rises(&spans[i - 1], &spans[i])))
            return false;
        if (i >= PAGE_SET_SPANS_MAX && spans[i - PAGE_SET_SPANS_MAX].group == spans[i].group)
            return false;
    }
    return true;
}
