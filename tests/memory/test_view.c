/* Views: the tiles of random pairs of pools as they lie in pages with any strides. */
#include <check.h>
#include <string.h>

#include "daemon/memory/view.h"
#include "tests/proto/pairs.h"
#include "tests/run_suite.h"

enum { PAGES = 12, VIEWS = 2000 / STRIDE };

static void setup(void)
{
}
static void teardown(void)
{
}

/* ---- Pools of any strides ---------------------------------------------------------------------------------------- */

enum strides { STRIDES_PLAIN, STRIDES_LAYERS, STRIDES_ROW_GAPS, STRIDES_ROWS_TOGETHER, STRIDES };

/* Memory is addressed, but never read. */
static uint8_t *const somewhere = (uint8_t *)(uintptr_t)(1ull << 40);

static struct strait_region region_of(const struct blob_region *described, enum strides strides, uint32_t layers)
{
    struct strait_region region = {.base = somewhere,
                                   .row_stride = described->row_bytes,
                                   .page_count = PAGES,
                                   .rows = described->rows,
                                   .row_bytes = described->row_bytes};
    if (strides == STRIDES_ROW_GAPS)
        region.row_stride += 2 * layers;
    region.page_stride = region.row_stride * region.rows * (strides == STRIDES_LAYERS ? layers : 1);
    if (strides == STRIDES_ROWS_TOGETHER) {
        region.page_stride = region.row_bytes;
        region.row_stride = (uint64_t)region.row_bytes * PAGES;
    }
    return region;
}

static void pool_init(struct pool *pool, const struct pair_pool *described, enum strides strides, uint32_t layers)
{
    *pool = (struct pool){.group_count = PAIR_GROUPS, .groups = calloc(PAIR_GROUPS, sizeof(pool->groups[0]))};
    for (uint32_t g = 0; g < PAIR_GROUPS; g++) {
        struct pool_group *group = &pool->groups[g];
        *group = (struct pool_group){.regions = calloc(PAIR_REGIONS_MAX, sizeof(group->regions[0])),
                                     .layers = calloc(PAIR_REGIONS_MAX, sizeof(group->layers[0])),
                                     .roles = calloc(PAIR_REGIONS_MAX, sizeof(group->roles[0])),
                                     .page_count = PAGES,
                                     .device = -1};
        for (uint32_t i = 0; i < described->blob.region_count; i++) {
            const struct blob_region *from = &described->regions[i];
            if (from->group != g)
                continue;
            group->layers[group->region_count] = from->layer;
            group->roles[group->region_count] = (uint8_t)from->role;
            group->regions[group->region_count++] = region_of(from, strides, layers);
        }
    }
}

/* ---- Tiles in memory --------------------------------------------------------------------------------------------- */

/* Byte `at` of page `id` as the codec addresses it. */
static const uint8_t *byte_of(const struct strait_region *region, uint32_t id, uint64_t at)
{
    const uint32_t columns = region->columns > 1 ? region->columns : 1, piece = region->row_bytes / columns;
    const uint64_t row = at / region->row_bytes, in_row = at % region->row_bytes;
    return (const uint8_t *)region->base + (uint64_t)id * region->page_stride + row * region->row_stride +
           in_row / piece * region->column_stride + in_row % piece;
}

static void check_tile(const struct pool *pool, const struct pool_view *view, const struct reshape *reshape, uint32_t g,
                       enum reshape_side side, uint32_t page, uint32_t tile, uint32_t id)
{
    const struct pool_group *group = &view->pool.groups[g];
    const struct reshape_group *shape = &reshape->groups[g];
    require(id < group->page_count);
    for (uint32_t r = 0; r < shape->count; r++) {
        const struct reshape_region *region = &reshape->regions[shape->first + r];
        const struct tile_place *at = &region->at[side];
        const struct strait_region *own = &pool->groups[shape->group[side]].regions[at->region];
        require(id < group->regions[r].page_count);
        require(group->regions[r].rows * group->regions[r].row_bytes == region->bytes);
        for (uint32_t i = 0; i < region->bytes; i++)
            require(byte_of(&group->regions[r], id, i) == byte_of(own, page, tile_byte(at, tile, i)));
    }
}

/* Each group has pages of random ids at two spans of indexes. */
static void pages_init(struct page_set *pages, struct rng *rng)
{
    uint32_t ids[PAGES];
    require(page_set_init(pages, PAIR_GROUPS) == STRAIT_OK);
    for (uint32_t i = 0; i < PAGES; i++)
        ids[i] = i;
    for (uint32_t i = PAGES; i > 1; i--) {
        const uint32_t other = rng_below(rng, i), id = ids[i - 1];
        ids[i - 1] = ids[other];
        ids[other] = id;
    }
    for (uint32_t g = 0; g < PAIR_GROUPS; g++) {
        const struct wire_page_list lists[] = {{.group = g, .first = 3, .count = 5, .ids = ids},
                                               {.group = g, .first = 20, .count = PAGES - 5, .ids = ids + 5}};
        require(page_set_add(pages, &lists[0]) == STRAIT_OK && page_set_add(pages, &lists[1]) == STRAIT_OK);
    }
}

static void check_pages(const struct pool *pool, const struct pool_view *view, const struct reshape *reshape,
                        enum reshape_side side, struct rng *rng)
{
    struct page_set pages, tiles;
    pages_init(&pages, rng);
    require(view_pages(view, &pages, &tiles) == STRAIT_OK);
    for (uint32_t g = 0; g < reshape->group_count; g++) {
        const uint32_t each = reshape->groups[g].tiles[side], own = reshape->groups[g].group[side];
        require(tiles.groups[g].id_count == PAGES * each);
        for (uint32_t page = 0; page < 20 + PAGES; page++) {
            const uint32_t *id = page_set_ids(&pages, own, page, 1);
            for (uint32_t t = 0; t < each; t++) {
                const uint32_t *tile = page_set_ids(&tiles, g, page * each + t, 1);
                require((id == NULL) == (tile == NULL));
                if (id != NULL)
                    check_tile(pool, view, reshape, g, side, *id, t, *tile);
            }
        }
    }
    page_set_fini(&tiles);
    page_set_fini(&pages);
}

TEST_LOOP(tiles_lie_where_their_bytes_are, STRIDES)
{
    struct rng rng = rng_init(700 + (uint64_t)_i);
    int made = 0, tried = 0;
    for (int i = 0; i < VIEWS / STRIDES; i++) {
        struct pair pair;
        struct reshape reshape = {0};
        struct pool pool;
        struct pool_view *view = NULL;
        char why[200] = "";
        const enum reshape_side side = rng_below(&rng, RESHAPE_SIDES);
        pair_random(&pair, &rng);
        if (reshape_make(&pair.pools[RESHAPE_SOURCE].blob, &pair.pools[RESHAPE_SINK].blob, &reshape, NULL, 0) !=
            STRAIT_OK)
            continue;
        pool_init(&pool, &pair.pools[side], _i, 1 + rng_below(&rng, 4));
        enum strait_status status = view_create(&pool, &reshape, side, &view, why, sizeof(why));
        require(status == STRAIT_OK || (status == STRAIT_ERR_INVALID && _i >= STRIDES_ROW_GAPS));
        if (status == STRAIT_OK)
            check_pages(&pool, view, &reshape, side, &rng);
        made += status == STRAIT_OK;
        tried++;
        view_destroy(view);
        pool_free_groups(&pool);
        reshape_fini(&reshape);
    }
    ck_assert_int_gt(made, tried / 4);
}

/* Two rows of four heads each, which lie apart; a tile has half of each head's tokens. */
TEST_LOOP(rows_apart_have_several_rows_of_a_tile, RESHAPE_SIDES)
{
    struct blob_region whole = {.role = STRAIT_ROLE_K,
                                .element = STRAIT_ELEMENT_BF16,
                                .rows = 2,
                                .row_bytes = 32,
                                .heads = 8,
                                .page_count = PAGES,
                                .layout = STRAIT_LAYOUT_HND,
                                .tokens = 4},
                       half = whole;
    half.tokens = 2;
    half.row_bytes = 16;
    const struct pair_pool described = {.blob = {.region_count = 1}, .regions = {whole}};
    const struct pool_blob a = {.region_count = 1, .regions = &whole}, b = {.region_count = 1, .regions = &half};
    struct reshape reshape = {0};
    struct pool pool;
    struct pool_view *view = NULL;
    char why[200] = "";
    ck_assert_int_eq(reshape_make(_i == RESHAPE_SOURCE ? &a : &b, _i == RESHAPE_SOURCE ? &b : &a, &reshape, NULL, 0),
                     STRAIT_OK);
    pool_init(&pool, &described, STRIDES_ROW_GAPS, 1);
    ck_assert_int_eq(view_create(&pool, &reshape, _i, &view, why, sizeof(why)), STRAIT_OK);
    ck_assert_uint_eq(reshape.groups[0].tiles[_i], 2);
    for (uint32_t page = 0; page < PAGES; page++)
        for (uint32_t t = 0; t < 2; t++)
            check_tile(&pool, view, &reshape, 0, _i, page, t, page * view->groups[0].scale + t * view->groups[0].step);
    view_destroy(view);
    pool_free_groups(&pool);
    reshape_fini(&reshape);
}

/* ---- What cannot be ---------------------------------------------------------------------------------------------- */

/* A source with pages of 16 tokens, whose sink has pages of one. */
static void describe_sixteen(uint32_t page_count, struct pair_pool *described, struct reshape *reshape)
{
    struct blob_region a = {.role = STRAIT_ROLE_K,
                            .element = STRAIT_ELEMENT_BF16,
                            .rows = 1,
                            .row_bytes = 256,
                            .heads = 1,
                            .page_count = page_count,
                            .layout = STRAIT_LAYOUT_NHD,
                            .tokens = 16},
                       b = a;
    const struct pool_blob source = {.region_count = 1, .regions = &a}, sink = {.region_count = 1, .regions = &b};
    b.tokens = 1;
    b.row_bytes = 16;
    *described = (struct pair_pool){.blob = source, .regions = {a}};
    *reshape = (struct reshape){0};
    ck_assert_int_eq(reshape_make(&source, &sink, reshape, NULL, 0), STRAIT_OK);
}

TEST(ids_of_tiles_have_32_bits)
{
    struct pair_pool described;
    struct reshape reshape;
    struct pool pool;
    struct pool_view *view = NULL;
    char why[200] = "";
    describe_sixteen(10, &described, &reshape);
    for (uint32_t more = 0; more < 2; more++) {
        pool_init(&pool, &described, STRIDES_PLAIN, 1);
        pool.groups[0].page_count = pool.groups[0].regions[0].page_count = UINT32_MAX / 16 + more;
        ck_assert_int_eq(view_create(&pool, &reshape, RESHAPE_SOURCE, &view, why, sizeof(why)),
                         more == 0 ? STRAIT_OK : STRAIT_ERR_INVALID);
        ck_assert_int_eq(more == 0, why[0] == '\0');
        if (more == 0)
            view_destroy(view);
        pool_free_groups(&pool);
    }
    reshape_fini(&reshape);
}

/* With one page, the distance to the next says nothing. */
TEST_LOOP(one_page_has_any_stride, 3)
{
    static const uint64_t strides[] = {0, 7, UINT64_MAX};
    struct pair_pool described;
    struct reshape reshape;
    struct pool pool;
    struct pool_view *view = NULL;
    char why[200] = "";
    describe_sixteen(1, &described, &reshape);
    pool_init(&pool, &described, STRIDES_PLAIN, 1);
    pool.groups[0].page_count = pool.groups[0].regions[0].page_count = 1;
    pool.groups[0].regions[0].page_stride = strides[_i];
    ck_assert_int_eq(view_create(&pool, &reshape, RESHAPE_SOURCE, &view, why, sizeof(why)), STRAIT_OK);
    for (uint32_t t = 0; t < 16; t++)
        check_tile(&pool, view, &reshape, 0, RESHAPE_SOURCE, 0, t, t * view->groups[0].step);
    view_destroy(view);
    pool_free_groups(&pool);
    reshape_fini(&reshape);
}

int main(void)
{
    return run_tests("view", setup, teardown);
}
