#include "daemon/memory/pool.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/memory/map.h"
#include "daemon/memory/pool_private.h"

/* ---- Description ------------------------------------------------------------------------------------------------- */

static struct blob_region describe_region(const struct wire_region *region)
{
    return (struct blob_region){.group = region->group,
                                .layer = region->layer,
                                .role = region->role,
                                .element = region->element,
                                .rows = region->rows,
                                .row_bytes = region->row_bytes,
                                .heads = region->heads,
                                .page_count = region->page_count};
}

/* Computes the geometry's hash. Regions must come in the pool's order, because peers refer to them by their places. */
static enum strait_status describe(struct pool *pool, const struct message_pool_register *registration,
                                   const struct pool_why *why)
{
    uint32_t count = registration->region_count, moved = 0;
    struct blob_region *regions = malloc(count * sizeof(regions[0]));
    uint32_t *order = malloc(count * sizeof(order[0]));
    enum strait_status status = STRAIT_OK;
    if (regions == NULL || order == NULL) {
        status = pool_refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    } else {
        for (uint32_t r = 0; r < count; r++)
            regions[r] = describe_region(&registration->regions[r]);
        blob_sort(regions, order, count);
        while (moved < count && order[moved] == moved)
            moved++;
        if (moved < count)
            status =
                pool_refuse(why, STRAIT_ERR_INVALID, "region %u: not in the order of group, layer and role", moved);
        else
            pool->geometry = blob_geometry(regions, count);
    }
    free(order);
    free(regions);
    return status;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static bool group_init(struct pool_group *group, const struct wire_region *regions, uint32_t region_count)
{
    group->region_count = region_count;
    group->element = (enum strait_element)regions[0].element;
    group->device = regions[0].device;
    group->page_count = regions[0].page_count;
    for (uint32_t r = 1; r < region_count; r++)
        if (regions[r].page_count < group->page_count)
            group->page_count = regions[r].page_count;
    group->regions = calloc(region_count, sizeof(group->regions[0]));
    group->layers = calloc(region_count, sizeof(group->layers[0]));
    group->uses = calloc(group->page_count, sizeof(group->uses[0]));
    group->expected = calloc(group->page_count / 64 + 1u, sizeof(group->expected[0]));
    return group->regions != NULL && group->layers != NULL && group->uses != NULL && group->expected != NULL;
}

/* Fills in every group with its regions, whose bases are not known yet. */
static bool groups_init(struct pool *pool, const struct message_pool_register *registration)
{
    const struct wire_region *regions = registration->regions;
    uint32_t count = regions[registration->region_count - 1].group + 1, first = 0;
    const struct strait_region **lists = calloc(count, sizeof(lists[0]));
    uint32_t *region_counts = calloc(count, sizeof(region_counts[0]));
    pool->sizes = (struct region_sizes){.groups = lists, .region_counts = region_counts, .group_count = count};
    pool->groups = calloc(count, sizeof(pool->groups[0]));
    if (lists == NULL || region_counts == NULL || pool->groups == NULL)
        return false;
    for (pool->group_count = 0; pool->group_count < count;) {
        uint32_t g = pool->group_count++, end = first;
        while (end < registration->region_count && regions[end].group == g)
            end++;
        if (!group_init(&pool->groups[g], &regions[first], end - first))
            return false;
        lists[g] = pool->groups[g].regions;
        region_counts[g] = end - first;
        first = end;
    }
    return true;
}

static uint32_t table_of(const struct strait_codebook *codebook, const struct wire_region *region)
{
    struct strait_class wanted = {.role = (enum strait_role)region->role, .layer = region->layer};
    return codebook == NULL ? 0 : strait_codebook_find(codebook, wanted);
}

static void place_regions(struct pool *pool, const struct wire_region *wire, uint8_t *const *bases,
                          const struct strait_codebook *codebook)
{
    uint32_t r = 0;
    for (uint32_t g = 0; g < pool->group_count; g++)
        for (uint32_t i = 0; i < pool->groups[g].region_count; i++, r++) {
            pool->groups[g].layers[i] = wire[r].layer;
            pool->groups[g].regions[i] = (struct strait_region){.base = bases[r],
                                                                .page_stride = wire[r].page_stride,
                                                                .row_stride = wire[r].row_stride,
                                                                .page_count = wire[r].page_count,
                                                                .rows = wire[r].rows,
                                                                .row_bytes = wire[r].row_bytes,
                                                                .table = table_of(codebook, &wire[r])};
        }
}

/* ---- The pool ---------------------------------------------------------------------------------------------------- */

/* Memory is mapped last, because that takes long. */
static enum strait_status fill(struct pool *pool, const struct message_pool_register *registration, const int *fds,
                               const struct pool_context *context, const struct pool_why *why)
{
    pool->id = registration->pool;
    pool->coding = registration->coding;
    enum strait_status status = describe(pool, registration, why);
    if (status != STRAIT_OK)
        return status;
    uint8_t **bases = calloc(registration->region_count, sizeof(bases[0]));
    if (bases == NULL || !groups_init(pool, registration))
        status = pool_refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    else
        status = pool_map_memory(pool, registration, fds, context, bases, why);
    if (status == STRAIT_OK)
        place_regions(pool, registration->regions, bases, context->codebook);
    free(bases);
    return status;
}

enum strait_status pool_map(const struct message_pool_register *registration, const int *fds,
                            const struct pool_context *context, struct pool **pool, char *why, size_t why_size)
{
    const struct pool_why told = {.text = why, .size = why_size};
    if (why_size > 0)
        why[0] = '\0';
    enum strait_status status = pool_check(registration, context, &told);
    if (status != STRAIT_OK)
        return status;
    struct pool *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return pool_refuse(&told, STRAIT_ERR_NO_MEMORY, "no memory");
    status = fill(made, registration, fds, context, &told);
    if (status == STRAIT_OK)
        *pool = made;
    else
        pool_unmap(made);
    return status;
}

static void unmap(struct pool *pool, struct pool_mapping *mapping)
{
    if (mapping->device >= 0)
        devices_unmap(pool->devices, mapping->device, &mapping->memory);
    else if (!mapping->borrowed)
        map_drop(mapping->base, mapping->size);
}

void pool_unmap(struct pool *pool)
{
    if (pool == NULL)
        return;
    for (uint32_t i = 0; i < pool->mapping_count; i++)
        unmap(pool, &pool->mappings[i]);
    for (uint32_t g = 0; g < pool->group_count; g++) {
        free(pool->groups[g].regions);
        free(pool->groups[g].layers);
        free(pool->groups[g].uses);
        free(pool->groups[g].expected);
    }
    free((void *)pool->sizes.groups);
    free((void *)pool->sizes.region_counts);
    free(pool->groups);
    free(pool->mappings);
    free(pool);
}
