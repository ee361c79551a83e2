#include "tests/proto/pairs.h"

#include <string.h>

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static uint32_t between(struct rng *rng, uint32_t least, uint32_t most)
{
    return least + rng_below(rng, most - least + 1);
}

/* Rows are no part of what a page holds: any divisor of its bytes, most often one or one for each token. */
static uint32_t random_rows(struct rng *rng, uint32_t bytes, uint32_t tokens)
{
    const uint32_t choice = rng_below(rng, 3);
    uint32_t rows = choice == 0 ? 1 : choice == 1 ? tokens : between(rng, 1, bytes);
    while (bytes % rows != 0)
        rows--;
    return rows;
}

/* The roles of a pool's regions: K and V, both in one, or one of them alone. */
enum roles { ROLES_APART, ROLES_PACKED, ROLES_ONLY_K, ROLES_ONLY_V, ROLES };

static void add_region(struct pair_pool *pool, struct rng *rng, const struct blob_region *like, uint32_t role)
{
    struct blob_region *region = &pool->regions[pool->blob.region_count++];
    const uint32_t bytes = like->row_bytes * (role == STRAIT_ROLE_KV ? 2 : 1);
    *region = *like;
    region->role = role;
    region->rows = random_rows(rng, bytes, like->tokens);
    region->row_bytes = bytes / region->rows;
}

static void add_layer(struct pair_pool *pool, struct rng *rng, struct blob_region like, enum roles roles,
                      bool two_groups)
{
    if (roles == ROLES_PACKED)
        add_region(pool, rng, &like, STRAIT_ROLE_KV);
    if (roles == ROLES_APART || roles == ROLES_ONLY_K)
        add_region(pool, rng, &like, STRAIT_ROLE_K);
    like.group += two_groups ? 2 : 0;
    if (roles == ROLES_APART || roles == ROLES_ONLY_V)
        add_region(pool, rng, &like, STRAIT_ROLE_V);
}

static void make_pool(struct pair_pool *pool, struct rng *rng, uint32_t tokens, uint32_t heads_total, uint32_t bytes)
{
    uint32_t order[PAIR_REGIONS_MAX];
    const enum roles roles = rng_below(rng, ROLES);
    const bool two_groups = rng_below(rng, 3) == 0;
    const uint32_t first_layer = rng_below(rng, 2), layers = between(rng, 1, 3), groups = between(rng, 1, 2);
    struct blob_region like = {.element = STRAIT_ELEMENT_BF16,
                               .page_count = between(rng, 1, 40),
                               .layout = between(rng, STRAIT_LAYOUT_NHD, STRAIT_LAYOUT_HND),
                               .tokens = tokens,
                               .heads = heads_total};
    pool->blob = (struct pool_blob){.compat = "model", .regions = pool->regions};
    if (rng_below(rng, 4) != 0) {
        like.heads_total = heads_total;
        like.head_first = rng_below(rng, heads_total);
        like.heads = between(rng, 1, heads_total - like.head_first);
    }
    like.row_bytes = tokens * like.heads * bytes;
    for (uint32_t i = 0; i < layers; i++) {
        like.layer = (int32_t)(first_layer + i);
        like.group = i % groups;
        add_layer(pool, rng, like, roles, two_groups);
    }
    blob_sort(pool->regions, order, pool->blob.region_count);
}

/* Where one pool says which heads it has and the other says nothing, they do not fit: both say, or neither. */
static void agree_heads(struct pair *pair, uint32_t heads_total)
{
    const bool said = pair->pools[0].regions[0].heads_total != 0 && pair->pools[1].regions[0].heads_total != 0;
    for (int side = 0; side < RESHAPE_SIDES; side++)
        for (uint32_t i = 0; i < pair->pools[side].blob.region_count; i++) {
            struct blob_region *region = &pair->pools[side].regions[i];
            if (said || region->heads_total == 0) {
                region->heads_total = said ? heads_total : 0;
                continue;
            }
            region->row_bytes = region->row_bytes * region->rows / region->heads * heads_total;
            region->rows = 1;
            region->heads = heads_total;
            region->head_first = region->heads_total = 0;
        }
}

void pair_random(struct pair *pair, struct rng *rng)
{
    const uint32_t heads_total = between(rng, 1, 5);
    const bool wide = rng_below(rng, 8) == 0;
    pair->head_bytes = 2 * between(rng, 1, 3);
    for (int side = 0; side < RESHAPE_SIDES; side++) {
        static const uint32_t usual[] = {1, 2, 3, 4, 6, 8, 12, 16};
        pair->tokens[side] = wide ? between(rng, 1, 96) : usual[rng_below(rng, COUNT(usual))];
        make_pool(&pair->pools[side], rng, pair->tokens[side], heads_total, pair->head_bytes);
    }
    agree_heads(pair, heads_total);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

const struct blob_region *pair_region(const struct pair *pair, enum reshape_side side, uint32_t group, uint32_t index)
{
    const struct pool_blob *blob = &pair->pools[side].blob;
    for (uint32_t i = 0; i < blob->region_count; i++)
        if (blob->regions[i].group == group && index-- == 0)
            return &blob->regions[i];
    return NULL;
}

struct label pair_label(const struct pair *pair, const struct blob_region *region, uint32_t page, uint64_t offset)
{
    const bool packed = region->role == STRAIT_ROLE_KV;
    const uint32_t one = pair->head_bytes * (packed ? 2 : 1), place = (uint32_t)(offset / one), at = offset % one;
    const bool by_token = region->layout == STRAIT_LAYOUT_NHD;
    const uint32_t token = by_token ? place / region->heads : place % region->tokens;
    const uint32_t head = by_token ? place % region->heads : place / region->tokens;
    return (struct label){.layer = region->layer,
                          .role = !packed                 ? region->role
                                  : at < pair->head_bytes ? STRAIT_ROLE_K
                                                          : STRAIT_ROLE_V,
                          .token = page * region->tokens + token,
                          .head = region->head_first + head,
                          .byte = at % pair->head_bytes};
}

uint64_t tile_byte(const struct tile_place *place, uint32_t tile, uint32_t at)
{
    const uint32_t row = at / place->row_bytes, in_row = at % place->row_bytes;
    const uint32_t piece = place->row_bytes / place->columns;
    return place->offset + (uint64_t)tile * place->step + (uint64_t)row * place->row_stride +
           (uint64_t)(in_row / piece) * place->column_stride + in_row % piece;
}
