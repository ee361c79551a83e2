/* The ready pages of an offer: segments in the order in which they became ready. */
#include <stdlib.h>

#include "daemon/node.h"

static bool add(struct offer *o, const struct segment *segment)
{
    if (o->ready_count == o->ready_capacity) {
        uint32_t capacity = o->ready_capacity != 0 ? 2 * o->ready_capacity : 16;
        struct segment *ready = realloc(o->ready, capacity * sizeof(*ready));
        if (ready == NULL)
            return false;
        o->ready = ready;
        o->ready_capacity = capacity;
    }
    o->ready[o->ready_count++] = *segment;
    return true;
}

/* The regions of a group whose layer is in a range: consecutive, as they are sorted by layer. Count 0: all. */
static void layer_regions(const struct pool_group *group, int32_t first, uint32_t count, uint32_t *begin, uint32_t *end)
{
    *begin = 0;
    *end = group->region_count;
    if (count == 0)
        return;
    while (*begin < group->region_count && group->layers[*begin] < first)
        ++*begin;
    *end = *begin;
    while (*end < group->region_count && (int64_t)group->layers[*end] < (int64_t)first + count)
        ++*end;
}

bool offer_pages_ready(struct offer *o, uint32_t group, uint32_t first, uint32_t count, int32_t layer_first,
                       uint32_t layer_count)
{
    uint32_t begin, end;
    layer_regions(&o->request.pool->pool->groups[group], layer_first, layer_count, &begin, &end);
    struct segment segment = {
        .group = group, .region_first = begin, .region_count = end - begin, .first = first, .count = count};
    return begin == end || count == 0 || add(o, &segment);
}

/* ---- Pages that were offered as `later` -------------------------------------------------------------------------- */

static uint32_t count_regions(const struct pool *pool)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < pool->group_count; g++)
        count += pool->groups[g].region_count;
    return count;
}

/* Remembers which pages were announced: later appends may add others, to which ready layers do not apply. */
static bool announce_later(struct offer *o)
{
    o->later_spans = page_set_spans(&o->request.pages, &o->later_count);
    o->later_ready = calloc(count_regions(o->request.pool->pool), sizeof(*o->later_ready));
    return o->later_spans != NULL && o->later_ready != NULL;
}

bool offer_pages_known(struct offer *o)
{
    if (o->later)
        return announce_later(o);
    for (uint32_t g = 0; g < o->request.pages.group_count; g++) {
        const struct page_group *group = &o->request.pages.groups[g];
        struct page_cursor cursor = {0};
        const struct page_span *span;
        while ((span = page_group_next(group, &cursor)) != NULL)
            if (!offer_pages_ready(o, g, span->first, span->count, 0, 0))
                return false;
    }
    return true;
}

/* Marks these regions of a group's announced pages as ready. */
static bool regions_ready(struct offer *o, uint32_t group, uint32_t begin, uint32_t end)
{
    for (uint32_t i = 0; i < o->later_count; i++) {
        struct segment segment = {.group = group,
                                  .region_first = begin,
                                  .region_count = end - begin,
                                  .first = o->later_spans[i].first,
                                  .count = o->later_spans[i].count};
        if (o->later_spans[i].group == group && !add(o, &segment))
            return false;
    }
    return true;
}

bool offer_layers_ready(struct offer *o, int32_t layer_first, uint32_t layer_count)
{
    const struct pool *pool = o->request.pool->pool;
    bool *ready = o->later_ready;
    for (uint32_t g = 0; o->later && g < pool->group_count; ready += pool->groups[g].region_count, g++) {
        uint32_t at, end;
        layer_regions(&pool->groups[g], layer_first, layer_count, &at, &end);
        while (at < end) {
            uint32_t begin = at;
            while (at < end && !ready[at])
                ready[at++] = true;
            if (at > begin && !regions_ready(o, g, begin, at))
                return false;
            while (at < end && ready[at])
                at++;
        }
    }
    return true;
}
