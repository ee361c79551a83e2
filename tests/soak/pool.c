#include "tests/soak/pool.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

#define SAMPLE_BYTES (1u << 20)

/* Values whose exponents are as the codebook wants them, and a few pages' worth of noise. */
static const uint8_t *sample(void)
{
    static uint8_t *bytes;
    if (bytes != NULL)
        return bytes;
    struct rng rng = rng_init(1);
    uint8_t ranking[256];
    test_ranking(ranking, 0);
    require((bytes = malloc(SAMPLE_BYTES)) != NULL);
    fill_pattern(&rng, PATTERN_FALLING, ranking, bytes, SAMPLE_BYTES / 8 * 7);
    fill_pattern(&rng, PATTERN_NOISE, ranking, bytes + SAMPLE_BYTES / 8 * 7, SAMPLE_BYTES / 8);
    return bytes;
}

static void fill(uint8_t *dst, size_t size)
{
    for (size_t at = 0; at < size; at += SAMPLE_BYTES)
        memcpy(dst + at, sample(), size - at < SAMPLE_BYTES ? size - at : SAMPLE_BYTES);
}

static uint64_t region_offset(const struct form *form, uint32_t region)
{
    uint64_t layer_bytes = (uint64_t)form->roles * form->ids * form->page_bytes;
    uint64_t role_bytes = form->interleaved ? form->page_bytes : (uint64_t)form->ids * form->page_bytes;
    return region / form->roles * layer_bytes + region % form->roles * role_bytes;
}

static uint64_t page_stride(const struct form *form)
{
    return (uint64_t)form->page_bytes * (form->interleaved ? form->roles : 1);
}

uint8_t *pool_page(const struct pool *pool, uint32_t region, uint32_t id)
{
    return (uint8_t *)pool->memory.base + region_offset(&pool->form, region) + id * page_stride(&pool->form);
}

static struct strait_pool_region describe(const struct pool *pool, uint32_t region)
{
    const struct form *form = &pool->form;
    return (struct strait_pool_region){
        .handle = STRAIT_HANDLE_MEMFD,
        .device = -1,
        .fd = pool->memory.fd,
        .offset = region_offset(form, region),
        .page_stride = page_stride(form),
        .page_count = form->ids,
        .rows = 1,
        .row_bytes = form->page_bytes,
        .element = STRAIT_ELEMENT_BF16,
        .role = region % form->roles == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
        .layer = (int32_t)(region / form->roles),
    };
}

static bool enroll(struct pool *pool, struct strait_client *client)
{
    uint32_t count = form_regions(&pool->form);
    struct strait_pool_region *regions = calloc(count, sizeof(*regions));
    for (uint32_t i = 0; regions != NULL && i < count; i++)
        regions[i] = describe(pool, i);
    const struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = count};
    bool good = regions != NULL && strait_pool_register(client, &params, &pool->pool) == STRAIT_OK;
    free(regions);
    return good;
}

bool pool_init(struct pool *pool, struct worker *worker, struct strait_client *client, const struct form *form)
{
    *pool = (struct pool){.worker = worker, .form = *form, .memory.fd = -1};
    pool->vacant = calloc(form->ids, sizeof(*pool->vacant));
    if (pool->vacant == NULL || strait_alloc(form_id_bytes(form) * form->ids, &pool->memory) != STRAIT_OK)
        return false;
    for (; pool->vacant_count < form->ids; pool->vacant_count++)
        pool->vacant[pool->vacant_count] = pool->vacant_count;
    fill(pool->memory.base, pool->memory.size);
    return enroll(pool, client);
}

void pool_fini(struct pool *pool)
{
    free(pool->vacant);
    if (pool->memory.base != NULL)
        strait_free(&pool->memory);
    *pool = (struct pool){.memory.fd = -1};
}

void pool_take(struct pool *pool, uint32_t *ids, uint32_t count)
{
    static struct rng rng;
    if (rng.state == 0)
        rng = rng_init(2);
    require(count <= pool->vacant_count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = rng_below(&rng, pool->vacant_count);
        ids[i] = pool->vacant[at];
        pool->vacant[at] = pool->vacant[--pool->vacant_count];
    }
}

void pool_give(struct pool *pool, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        pool->vacant[pool->vacant_count++] = ids[i];
}
