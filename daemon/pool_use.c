/* Who uses which page: in one live expectation and nothing else, or in any number of offers. */
#include "daemon/pool.h"

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

static bool mark(uint32_t *uses, bool expected)
{
    if (expected ? *uses != 0 : *uses >= POOL_EXPECTED - 1)
        return false;
    *uses = expected ? POOL_EXPECTED : *uses + 1;
    return true;
}

static void unmark(uint32_t *uses, bool expected)
{
    if (expected && *uses == POOL_EXPECTED)
        *uses = 0;
    else if (!expected && *uses != POOL_EXPECTED && *uses > 0)
        (*uses)--;
}

static bool mark_list(struct pool *pool, const struct wire_page_list *list, bool expected)
{
    uint32_t done = 0;
    if (!pool_has(pool, list))
        return false;
    uint32_t *uses = pool->groups[list->group].uses;
    while (done < list->count && mark(&uses[id_at(list, done)], expected))
        done++;
    if (done == list->count)
        return true;
    while (done > 0)
        unmark(&uses[id_at(list, --done)], expected);
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

void pool_release(struct pool *pool, const struct page_set *pages, bool expected)
{
    for (uint32_t g = 0; g < pages->group_count && g < pool->group_count; g++)
        for (uint32_t i = 0; i < pages->groups[g].id_count; i++)
            if (pages->groups[g].ids[i] < pool->groups[g].page_count)
                unmark(&pool->groups[g].uses[pages->groups[g].ids[i]], expected);
}
