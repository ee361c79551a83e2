/* What has landed: once each, only what was claimed, layer by layer, and what is missing. */
#include <check.h>
#include <string.h>

#include "daemon/protocol/coverage.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { LAYERS_MAX = 32 };

static struct page_set pages;
static struct coverage *coverage;
static int32_t told[LAYERS_MAX];
static int told_count;

/* Group 0: layers 0, 0, 1, 1 and one of no layer; group 1: layers 1 and 5. */
static const int32_t layers_0[] = {-1, 0, 0, 1, 1}, layers_1[] = {1, 5};
static const struct coverage_group groups[] = {{COUNT(layers_0), layers_0}, {COUNT(layers_1), layers_1}};

static void setup(void)
{
    ck_assert_int_eq(page_set_init(&pages, 2), STRAIT_OK);
    coverage = NULL;
    told_count = 0;
}

static void teardown(void)
{
    coverage_destroy(coverage);
    page_set_fini(&pages);
}

static void expect(uint32_t group, uint32_t first, uint32_t count)
{
    ck_assert_int_eq(page_set_add(&pages, &(struct wire_page_list){group, first, count, 0, NULL}), STRAIT_OK);
}

static void create(void)
{
    ck_assert_int_eq(coverage_create(&pages, groups, 2, &coverage), STRAIT_OK);
}

static bool claim(struct piece piece)
{
    return coverage_claim(
        coverage, &(struct segment){piece.group, piece.region_first, piece.region_count, piece.first, piece.count});
}

static void tell(void *owner, int32_t layer)
{
    ck_assert_ptr_eq(owner, &told);
    told[told_count++] = layer;
}

static bool land(struct piece piece)
{
    return coverage_land(coverage, &piece, tell, &told);
}

/* Takes as many ranges as there is room for, and remembers where their ids are. */
struct found {
    struct wire_span *spans;
    uint32_t capacity, count;
    uint64_t pages;
};

static bool take(void *owner, const struct wire_page_list *range)
{
    struct found *found = owner;
    ck_assert_uint_lt(found->count, found->capacity);
    ck_assert_uint_gt(range->count, 0);
    ck_assert_ptr_eq(range->ids, page_set_ids(&pages, range->group, range->first, range->count));
    found->spans[found->count++] = (struct wire_span){range->group, range->first, range->count};
    found->pages += range->count;
    return found->count < found->capacity;
}

static uint32_t whole(struct piece piece, struct wire_span *spans, uint32_t capacity)
{
    struct found found = {spans, capacity, 0, 0};
    coverage_whole(coverage, &piece, take, &found);
    return found.count;
}

static uint32_t missing(struct wire_span *spans, uint32_t capacity)
{
    struct found found = {spans, capacity, 0, 0};
    coverage_missing(coverage, take, &found);
    return found.count;
}

/* ---- Facts ------------------------------------------------------------------------------------------------------ */

TEST(no_pages_are_complete_at_once)
{
    create();
    ck_assert(coverage_complete(coverage));
    ck_assert_uint_eq(coverage_layers_landed(coverage), 0);
    ck_assert_uint_eq(missing(&(struct wire_span){0}, 1), 0);
    ck_assert(!claim((struct piece){0, 0, 1, 0, 1}));
}

TEST(what_lands_must_be_claimed_and_lands_once)
{
    const struct piece piece = {0, 1, 2, 102, 3}, part = {0, 2, 1, 104, 1};
    expect(0, 100, 10);
    create();
    ck_assert(!land(piece));
    ck_assert(claim(piece));
    ck_assert(!land((struct piece){0, 1, 2, 102, 4}));
    ck_assert(!land((struct piece){0, 0, 3, 102, 3}));
    ck_assert(land(piece));
    ck_assert(!land(piece));
    ck_assert(!land(part));
    ck_assert(!coverage_complete(coverage));
}

TEST(a_unit_is_claimed_once_and_by_all_or_none)
{
    expect(0, 100, 200);
    create();
    ck_assert(claim((struct piece){0, 0, 5, 150, 10}));
    ck_assert(!claim((struct piece){0, 4, 1, 159, 1}));
    ck_assert(!claim((struct piece){0, 0, 5, 100, 51}));
    ck_assert(claim((struct piece){0, 0, 5, 100, 50})); /* the one before claimed nothing */
    ck_assert(claim((struct piece){0, 0, 5, 160, 140}));
    ck_assert(land((struct piece){0, 0, 5, 100, 200}));
    ck_assert(coverage_complete(coverage));
}

static const struct piece outside[] = {
    {2, 0, 1, 100, 1},          {0, 5, 1, 100, 1},          {0, 0, 6, 100, 1}, {0, UINT32_MAX, 1, 100, 1},
    {0, 0, 1, 99, 2},           {0, 0, 1, 109, 2},          {0, 0, 1, 100, 0}, {0, 0, 0, 100, 1},
    {0, 0, 1, 100, UINT32_MAX}, {0, 0, UINT32_MAX, 100, 1}, {1, 0, 1, 100, 1},
};

TEST_LOOP(what_is_not_expected_is_refused, COUNT(outside))
{
    expect(0, 100, 10);
    create();
    ck_assert(!claim(outside[_i]));
    ck_assert(claim((struct piece){0, 0, 5, 100, 10}));
    ck_assert(!land(outside[_i]));
    ck_assert(land((struct piece){0, 0, 5, 100, 10}));
}

TEST(a_layer_is_told_when_all_its_regions_are_in_place)
{
    expect(0, 0, 70);
    expect(1, 0, 3);
    create();
    ck_assert(claim((struct piece){0, 0, 5, 0, 70}));
    ck_assert(claim((struct piece){1, 0, 2, 0, 3}));
    ck_assert(land((struct piece){0, 0, 5, 0, 69}));
    ck_assert_int_eq(told_count, 0);
    ck_assert(land((struct piece){0, 0, 5, 69, 1}));
    ck_assert_int_eq(told_count, 1); /* layer 1 is in group 1 too */
    ck_assert_int_eq(told[0], 0);
    ck_assert(land((struct piece){1, 0, 2, 0, 3}));
    ck_assert_int_eq(told_count, 3);
    ck_assert_int_eq(told[1], 1);
    ck_assert_int_eq(told[2], 5);
    ck_assert_uint_eq(coverage_layers_landed(coverage), 3);
    ck_assert(coverage_complete(coverage));
}

TEST(layers_of_which_nothing_is_expected_are_not_told)
{
    expect(0, 7, 1);
    create();
    ck_assert(claim((struct piece){0, 0, 5, 7, 1}));
    ck_assert(coverage_land(coverage, &(struct piece){0, 0, 5, 7, 1}, NULL, NULL));
    ck_assert_uint_eq(coverage_layers_landed(coverage), 2);
    ck_assert(coverage_complete(coverage));
}

TEST(a_page_is_missing_until_its_last_region_is_in_place)
{
    struct wire_span spans[4];
    expect(0, 10, 5);
    expect(0, 0, 10); /* other ordinals, adjacent indexes */
    expect(1, 3, 2);
    create();
    ck_assert_uint_eq(missing(spans, 4), 3);
    static const struct wire_span all[] = {{0, 0, 10}, {0, 10, 5}, {1, 3, 2}};
    ck_assert_mem_eq(spans, all, sizeof(all));
    ck_assert(claim((struct piece){0, 0, 5, 0, 15}));
    ck_assert(land((struct piece){0, 0, 4, 4, 8}));
    ck_assert_uint_eq(missing(spans, 4), 3);
    ck_assert(land((struct piece){0, 4, 1, 4, 8}));
    static const struct wire_span rest[] = {{0, 0, 4}, {0, 12, 3}, {1, 3, 2}};
    ck_assert_uint_eq(missing(spans, 4), 3);
    ck_assert_mem_eq(spans, rest, sizeof(rest));
    memset(spans, 0x55, sizeof(spans));
    ck_assert_uint_eq(missing(spans, 1), 1); /* enough is enough */
    ck_assert_mem_eq(spans, rest, sizeof(rest[0]));
}

TEST(a_page_is_whole_with_its_last_region)
{
    struct wire_span spans[4];
    expect(0, 10, 5);
    expect(0, 0, 10); /* other ordinals, adjacent indexes */
    create();
    ck_assert(claim((struct piece){0, 0, 5, 0, 15}));
    ck_assert(land((struct piece){0, 0, 4, 2, 10}));
    ck_assert_uint_eq(whole((struct piece){0, 0, 4, 2, 10}, spans, 4), 0);
    ck_assert(land((struct piece){0, 4, 1, 1, 11}));
    static const struct wire_span found[] = {{0, 2, 8}, {0, 10, 2}};
    ck_assert_uint_eq(whole((struct piece){0, 4, 1, 1, 11}, spans, 4), 2);
    ck_assert_mem_eq(spans, found, sizeof(found));
    ck_assert_uint_eq(whole((struct piece){0, 4, 1, 1, 11}, spans, 1), 1); /* enough is enough */
    ck_assert(land((struct piece){0, 0, 5, 12, 3}));
    static const struct wire_span last[] = {{0, 12, 3}};
    ck_assert_uint_eq(whole((struct piece){0, 0, 5, 12, 3}, spans, 4), 1);
    ck_assert_mem_eq(spans, last, sizeof(last));
    ck_assert_uint_eq(whole((struct piece){0, 0, 5, 14, 2}, spans, 4), 1); /* up to a page that is not expected */
}

/* Ranges that cross words and stretches, and ordinals that begin anywhere in a word. */
TEST(long_ranges_come_in_pieces_that_leave_nothing_out)
{
    enum { LONG = 5 * COVERAGE_RANGE_MAX + 77, LANDED = 2 * COVERAGE_RANGE_MAX + 63 };
    static struct wire_span spans[16];
    uint32_t next = 1000, count;
    expect(0, 0, 13);
    expect(0, 1000, LONG);
    create();
    ck_assert(claim((struct piece){0, 0, 5, 0, 13}));
    ck_assert(land((struct piece){0, 0, 5, 0, 13}));
    ck_assert(claim((struct piece){0, 0, 5, 1000, LONG}));
    ck_assert(land((struct piece){0, 0, 5, 1000 + LANDED, 1}));
    count = missing(spans, 16);
    ck_assert_uint_gt(count, 3);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(spans[i].first, next);
        ck_assert_uint_lt(spans[i].count, 2 * COVERAGE_RANGE_MAX);
        next += spans[i].count;
        if (next == 1000 + LANDED)
            next++;
    }
    ck_assert_uint_eq(next, 1000 + LONG);
    ck_assert_uint_eq(missing(spans, 2), 2);
}

TEST(too_large_an_expectation_is_refused)
{
    enum { MANY = STRAIT_REGIONS_MAX };
    static int32_t layers[MANY];
    const struct coverage_group large[] = {{MANY, layers}, {0, NULL}};
    expect(0, 0, STRAIT_TRANSFER_PAGES_MAX);
    ck_assert_int_eq(coverage_create(&pages, large, 2, &coverage), STRAIT_ERR_NO_MEMORY);
    ck_assert_int_eq(coverage_create(&pages, large, 1, &coverage), STRAIT_ERR_INVALID);
    ck_assert_ptr_null(coverage);
}

/* ---- A byte for each unit knows better --------------------------------------------------------------------------- */

enum { PAGES = 200 };

struct naive {
    bool expected[2][PAGES], claimed[2][8][PAGES], landed[2][8][PAGES];
    bool told[2][PAGES]; /* of pages that are whole */
};

/* Tries; sets when all units allow it. */
static bool naive_apply(struct naive *naive, const struct piece *piece, bool landing)
{
    for (int doing = 0; doing < 2; doing++)
        for (uint32_t r = piece->region_first; r < piece->region_first + piece->region_count; r++)
            for (uint32_t p = piece->first; p < piece->first + piece->count; p++) {
                bool *claimed = &naive->claimed[piece->group][r][p], *landed = &naive->landed[piece->group][r][p];
                if (doing == 1)
                    *(landing ? landed : claimed) = true;
                else if (!naive->expected[piece->group][p] || *claimed != landing || *landed)
                    return false;
            }
    return true;
}

static bool naive_layer(const struct naive *naive, int32_t layer)
{
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t r = 0; r < groups[g].region_count; r++)
            for (uint32_t p = 0; p < PAGES; p++)
                if ((layer < 0 || groups[g].layers[r] == layer) && naive->expected[g][p] && !naive->landed[g][r][p])
                    return false;
    return true;
}

static bool naive_missing(const struct naive *naive, uint32_t group, uint32_t page)
{
    for (uint32_t r = 0; r < groups[group].region_count; r++)
        if (naive->expected[group][page] && !naive->landed[group][r][page])
            return true;
    return false;
}

/* What has landed makes pages whole that were not. */
static void compare_whole(struct naive *naive, struct piece piece)
{
    static struct wire_span spans[PAGES];
    uint32_t count = whole(piece, spans, PAGES);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t p = spans[i].first; p < spans[i].first + spans[i].count; p++) {
            ck_assert(!naive->told[piece.group][p]);
            naive->told[piece.group][p] = true;
        }
    for (uint32_t p = 0; p < PAGES; p++)
        ck_assert(naive->told[piece.group][p] ==
                  (naive->expected[piece.group][p] && !naive_missing(naive, piece.group, p)));
}

static void compare(const struct naive *naive)
{
    static struct wire_span spans[2 * PAGES];
    bool found[2][PAGES] = {{false}};
    uint32_t count = missing(spans, 2 * PAGES);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t p = 0; p < spans[i].count; p++)
            found[spans[i].group][spans[i].first + p] = true;
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t p = 0; p < PAGES; p++)
            ck_assert(found[g][p] == naive_missing(naive, g, p));
    ck_assert(coverage_complete(coverage) == naive_layer(naive, -1));
    ck_assert_uint_eq(coverage_layers_landed(coverage), (uint32_t)told_count);
    ck_assert_int_eq(told_count, naive_layer(naive, 0) + naive_layer(naive, 1) + naive_layer(naive, 5));
}

static void expect_random(struct rng *rng, struct naive *naive)
{
    for (uint32_t g = 0; g < 2; g++)
        for (int k = 0; k < 4; k++) {
            const struct wire_page_list list = {g, rng_below(rng, PAGES - 80), 1 + rng_below(rng, 80), 0, NULL};
            if (page_set_add(&pages, &list) == STRAIT_OK)
                memset(&naive->expected[g][list.first], 1, list.count);
        }
}

TEST_LOOP(random_pieces_are_covered_as_in_a_table, 20)
{
    struct rng rng = rng_init(600 + (uint64_t)_i);
    static struct naive naive;
    memset(&naive, 0, sizeof(naive));
    expect_random(&rng, &naive);
    create();
    uint32_t size = 1 + rng_below(&rng, 40);
    for (int k = 0; k < 4000 / STRIDE; k++) {
        struct piece piece = {.group = rng_below(&rng, 2), .count = 1 + rng_below(&rng, size)};
        piece.region_first = rng_below(&rng, groups[piece.group].region_count);
        piece.region_count = 1 + rng_below(&rng, groups[piece.group].region_count - piece.region_first);
        piece.first = rng_below(&rng, PAGES - piece.count);
        bool landing = rng_below(&rng, 2), applied = landing ? land(piece) : claim(piece);
        ck_assert(naive_apply(&naive, &piece, landing) == applied);
        if (landing && applied)
            compare_whole(&naive, piece);
    }
    compare(&naive);
    for (uint32_t g = 0; g < 2; g++) /* the rest, unit by unit */
        for (uint32_t r = 0; r < groups[g].region_count; r++)
            for (uint32_t p = 0; p < PAGES; p++) {
                const struct piece unit = {g, r, 1, p, 1};
                ck_assert(naive_apply(&naive, &unit, false) == claim(unit));
                bool landed = land(unit);
                ck_assert(naive_apply(&naive, &unit, true) == landed);
                if (landed)
                    compare_whole(&naive, unit);
            }
    compare(&naive);
    ck_assert(coverage_complete(coverage));
}

/* ---- The end of a group ------------------------------------------------------------------------------------------ */

static bool ends_at(uint32_t group, uint32_t with)
{
    uint32_t end = 77;
    return coverage_end(coverage, group, &end) ? end == with : with == 0 && end == 77;
}

static void bring(struct piece piece)
{
    ck_assert(claim(piece));
    ck_assert(land(piece));
}

TEST(a_group_ends_where_all_its_regions_do)
{
    expect(1, 3, 70);
    expect(1, 200, 2);
    create();
    ck_assert(ends_at(0, 0)); /* nothing is expected of it */
    ck_assert(ends_at(1, 0));
    ck_assert(claim((struct piece){1, 0, 2, 3, 70}));
    ck_assert(ends_at(1, 0)); /* announced is not landed */
    ck_assert(land((struct piece){1, 0, 1, 3, 10}));
    ck_assert(ends_at(1, 0)); /* one region has nothing */
    ck_assert(land((struct piece){1, 1, 1, 3, 9}));
    ck_assert(ends_at(1, 0));
    ck_assert(land((struct piece){1, 1, 1, 12, 1}));
    ck_assert(ends_at(1, 13));
    ck_assert(land((struct piece){1, 0, 2, 20, 48})); /* a hole before it */
    ck_assert(ends_at(1, 68));
    bring((struct piece){1, 0, 1, 200, 1});
    ck_assert(ends_at(1, 0));
    bring((struct piece){1, 1, 1, 200, 1});
    ck_assert(ends_at(1, 201));
    bring((struct piece){1, 0, 2, 201, 1});
    ck_assert(ends_at(1, 202));
}

TEST(a_region_of_which_nothing_is_announced_does_not_count)
{
    uint32_t begin = 0;
    expect(1, 3, 70);
    create();
    ck_assert(claim((struct piece){1, 1, 1, 5, 10}));
    ck_assert(ends_at(1, 0));
    ck_assert(land((struct piece){1, 1, 1, 5, 10}));
    ck_assert(ends_at(1, 15));
    ck_assert(coverage_begin(coverage, 1, &begin) && begin == 5);
    ck_assert(claim((struct piece){1, 0, 1, 5, 10}));
    ck_assert(ends_at(1, 0));
    ck_assert(!coverage_begin(coverage, 1, &begin));
}

int main(void)
{
    return run_tests("coverage", setup, teardown);
}
