/* Tracks the use of pages: a page is in one live expectation and nothing else, or in any number of offers. */
#include "daemon/memory/pool.h"

static uint32_t id_at(const struct wire_page_list *list, uint32_t i)
{
    return list->ids == NULL ? list->first_id + i : list->ids[i];
}

bool pool_has(const struct pool *pool, const struct wire_page_list *list)
{
    if (list->group >= pool->group_count)
        return false;
    uint32_t page_count = pool->groups[list->group].page_count;
    if (list->ids == NULL)
        return (uint64_t)list->first_id + list->count <= page_count;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->ids[i] >= page_count)
            return false;
    return true;
}

static uint64_t bit_of(uint32_t id)
{
    return 1ull << id % 64;
}

static bool mark(struct pool_group *group, uint32_t id, bool expected)
{
    uint64_t *bits = &group->expected[id / 64];
    if ((*bits & bit_of(id)) != 0 || (expected ? group->uses[id] != 0 : group->uses[id] == UINT32_MAX))
        return false;
    if (expected)
        *bits |= bit_of(id);
    else
        group->uses[id]++;
    return true;
}

static void unmark(struct pool_group *group, uint32_t id, bool expected)
{
    if (expected)
        group->expected[id / 64] &= ~bit_of(id);
    else if (group->uses[id] > 0)
        group->uses[id]--;
}

static bool mark_list(struct pool *pool, const struct wire_page_list *list, bool expected)
{
    uint32_t done = 0;
    if (!pool_has(pool, list))
        return false;
    struct pool_group *group = &pool->groups[list->group];
    while (done < list->count && mark(group, id_at(list, done), expected))
        done++;
    if (done == list->count)
        return true;
    while (done > 0)
        unmark(group, id_at(list, --done), expected);
    return false;
}

bool pool_expect(struct pool *pool, const struct wire_page_list *list)
{
    return mark_list(pool, list, true);
}

bool pool_offer(struct pool *pool, const struct wire_page_list *list)
{
    return mark_list(pool, list, false);
}

#define AHEAD 32u /* ids are in any order: prefetching the counts hides much of the memory latency */

static void release_group(struct pool_group *group, const struct page_group *pages, bool expected)
{
    for (uint32_t i = 0; i < pages->id_count; i++) {
        if (!expected && i + AHEAD < pages->id_count && pages->ids[i + AHEAD] < group->page_count)
            __builtin_prefetch(&group->uses[pages->ids[i + AHEAD]], 1);
        if (pages->ids[i] < group->page_count)
            unmark(group, pages->ids[i], expected);
    }
}

void pool_release(struct pool *pool, const struct page_set *pages, bool expected)
{
    for (uint32_t g = 0; g < pages->group_count && g < pool->group_count; g++)
        release_group(&pool->groups[g], &pages->groups[g], expected);
}
