#include "daemon/page_set.h"

#include <stdlib.h>
#include <string.h>

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
        free(set->groups[g].spans);
        free(set->groups[g].ids);
    }
    free(set->groups);
    *set = (struct page_set){0};
}

/* Index of the first span that begins after `first`: the one before it may hold `first`. */
static uint32_t span_after(const struct page_group *group, uint32_t first)
{
    uint32_t low = 0, high = group->span_count;
    if (high > 0 && group->spans[high - 1].first <= first)
        return high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (group->spans[middle].first <= first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct page_span *span_with(const struct page_set *set, uint32_t group, uint32_t first)
{
    if (group >= set->group_count)
        return NULL;
    const struct page_group *of = &set->groups[group];
    uint32_t after = span_after(of, first);
    if (after == 0 || first - of->spans[after - 1].first >= of->spans[after - 1].count)
        return NULL;
    return &of->spans[after - 1];
}

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

/* Room for `more` elements beyond `count`; grows by half so that many small lists cost little. */
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

static bool reserve_span(struct page_group *group)
{
    void *list = group->spans;
    bool enough = reserve(&list, &group->span_capacity, group->span_count, 1, sizeof(*group->spans));
    group->spans = list;
    return enough;
}

/* Is [first, first + count) free, before span `after` and behind the one that precedes it? */
static bool fits_between(const struct page_group *group, uint32_t after, const struct wire_page_list *list)
{
    if (after < group->span_count && group->spans[after].first - list->first < list->count)
        return false;
    return after == 0 || list->first - group->spans[after - 1].first >= group->spans[after - 1].count;
}

static void append_ids(struct page_group *group, const struct wire_page_list *list)
{
    uint32_t *ids = group->ids + group->id_count;
    if (list->ids != NULL)
        memcpy(ids, list->ids, list->count * sizeof(*ids));
    else
        for (uint32_t i = 0; i < list->count; i++)
            ids[i] = list->first_id + i;
    group->id_count += list->count;
}

/* Ids are appended, so only the span before can go on without a break. */
static bool extends(const struct page_group *group, uint32_t after, uint32_t first)
{
    if (after == 0)
        return false;
    const struct page_span *before = &group->spans[after - 1];
    return before->first + before->count == first && before->ordinal + before->count == group->id_count;
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
    uint32_t after = span_after(group, list->first);
    if (!fits_between(group, after, list))
        return STRAIT_ERR_INVALID;
    bool extending = extends(group, after, list->first);
    if (!extending && group->span_count == PAGE_SET_SPANS_MAX)
        return STRAIT_ERR_INVALID;
    if (!reserve_ids(group, list->count) || (!extending && !reserve_span(group)))
        return STRAIT_ERR_NO_MEMORY;
    if (extending) {
        group->spans[after - 1].count += list->count;
    } else {
        struct page_span *at = group->spans + after;
        memmove(at + 1, at, (group->span_count - after) * sizeof(*at));
        *at = (struct page_span){list->first, list->count, group->id_count};
        group->span_count++;
    }
    append_ids(group, list);
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
