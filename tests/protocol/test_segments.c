/* Units in order: which rectangle they are, how they are cut into chunks, what of an offer is wanted. */
#include <check.h>
#include <string.h>

#include "daemon/protocol/segments.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { REGIONS = 6, PAGE_BYTES = 4096 };

static struct segments segments;
static uint8_t byte;
static struct strait_region regions[2][REGIONS];
static const struct strait_region *const region_groups[] = {regions[0], regions[1]};
static const uint32_t region_counts[] = {REGIONS, 2};
static const struct region_sizes sizes = {region_groups, region_counts, 2};

static void setup(void)
{
    for (int g = 0; g < 2; g++)
        for (int r = 0; r < REGIONS; r++)
            regions[g][r] = (struct strait_region){.base = &byte, .rows = 1u + (uint32_t)g, .row_bytes = PAGE_BYTES};
}

static void teardown(void)
{
    segments_fini(&segments);
}

static void add(uint32_t group, uint32_t region_first, uint32_t region_count, uint32_t first, uint32_t count)
{
    const struct segment segment = {group, region_first, region_count, first, count};
    ck_assert_int_eq(segments_add(&segments, &segment), STRAIT_OK);
}

static uint64_t bound(uint32_t group, uint32_t region, uint32_t rows, uint32_t pages)
{
    return strait_encode_bound(
        &(struct strait_pages){.regions = &regions[group][region], .region_count = rows, .id_count = pages});
}

/* ---- Pieces ----------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t first, count;
    bool valid;
    struct piece piece;
} pieces[] = {
    /* units 0-11: 3 rows of 4; 12-16: 1 row of 5 */
    {0, 12, true, {0, 1, 3, 10, 4}},
    {4, 8, true, {0, 2, 2, 10, 4}},
    {4, 4, true, {0, 2, 1, 10, 4}},
    {5, 3, true, {0, 2, 1, 11, 3}},
    {0, 1, true, {0, 1, 1, 10, 1}},
    {12, 5, true, {1, 0, 1, 0, 5}},
    {13, 2, true, {1, 0, 1, 1, 2}},
    {5, 4, false, {0}},  /* two parts of rows */
    {4, 5, false, {0}},  /* a row and a part */
    {8, 8, false, {0}},  /* two segments */
    {11, 2, false, {0}}, /* so are these */
    {0, 17, false, {0}},
    {16, 2, false, {0}}, /* beyond the end */
    {17, 1, false, {0}},
    {0, 0, false, {0}},
    {0, UINT32_MAX, false, {0}},
    {4, UINT32_MAX - 3, false, {0}},
};

TEST_LOOP(units_are_a_rectangle_or_none, COUNT(pieces))
{
    struct piece piece;
    add(0, 1, 3, 10, 4);
    add(1, 0, 1, 0, 5);
    ck_assert_uint_eq(segments.units, 17);
    ck_assert(segments_piece(&segments, pieces[_i].first, pieces[_i].count, &piece) == pieces[_i].valid);
    if (pieces[_i].valid)
        ck_assert_mem_eq(&piece, &pieces[_i].piece, sizeof(piece));
}

static const struct segment invalid[] = {
    {0, 0, 0, 0, 1},          {0, 0, 1, 0, 0},         {0, UINT32_MAX, 1, 0, 1},
    {0, 0, 1, UINT32_MAX, 1}, {0, 0, 65536, 0, 65536}, {0, 0, 1, 0, UINT32_MAX - 2},
};

TEST_LOOP(a_refused_segment_changes_nothing, COUNT(invalid))
{
    add(0, 0, 1, 0, 3);
    ck_assert_int_eq(segments_add(&segments, &invalid[_i]), STRAIT_ERR_INVALID);
    ck_assert_uint_eq(segments.units, 3);
    ck_assert_uint_eq(segments.count, 1);
}

TEST(units_may_count_to_the_last_number)
{
    add(0, 0, 1, 0, 3);
    add(0, 0, 1, 0, UINT32_MAX - 3);
    struct piece piece;
    ck_assert(segments_piece(&segments, UINT32_MAX - 1, 1, &piece));
    ck_assert(!segments_piece(&segments, UINT32_MAX, 1, &piece));
    ck_assert_uint_eq(piece.first, UINT32_MAX - 4);
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------ */

static const struct {
    struct segment segment;
    uint64_t bytes;
} sized[] = {
    {{0, 0, 1, 0, 1}, 1000},
    {{0, 0, 6, 5, 7}, 7 * (1000 + 1004 + 1008 + 1012 + 1016 + 1020)},
    {{0, 4, 2, 0, 3}, 3 * (1016 + 1020)},
    {{1, 0, 2, 0, 3}, 3 * 2 * (2000 + 2004)},         /* two rows a page */
    {{0, 5, 1, 0, UINT32_MAX}, 1020ull * UINT32_MAX}, /* more than 32 bits */
    {{1, 0, 3, 0, 1}, 0},                             /* no such region */
    {{1, 2, 1, 0, 1}, 0},
    {{0, UINT32_MAX, 2, 0, 1}, 0},
    {{2, 0, 1, 0, 1}, 0}, /* no such group */
    {{0, 0, 0, 0, 1}, 0},
    {{0, 0, 1, 0, 0}, 0},
};

TEST_LOOP(a_segment_has_the_bytes_of_its_pages, COUNT(sized))
{
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t r = 0; r < REGIONS; r++)
            regions[g][r].row_bytes = 1000 * (g + 1) + 4 * r;
    ck_assert_uint_eq(sized[_i].bytes, segment_bytes(&sized[_i].segment, &sizes));
}

/* ---- Cutting ---------------------------------------------------------------------------------------------------- */

TEST(as_many_rows_as_fit_are_cut)
{
    add(0, 0, 6, 0, 4);
    ck_assert_uint_eq(segments_cut(&segments, 0, 24, &sizes, NULL, bound(0, 0, 6, 4)), 24);
    ck_assert_uint_eq(segments_cut(&segments, 0, 24, &sizes, NULL, bound(0, 0, 6, 4) - 1), 20);
    ck_assert_uint_eq(segments_cut(&segments, 0, 24, &sizes, NULL, bound(0, 0, 1, 4)), 4);
    ck_assert_uint_eq(segments_cut(&segments, 0, UINT32_MAX, &sizes, NULL, UINT64_MAX), 24);
    ck_assert_uint_eq(segments_cut(&segments, 0, 11, &sizes, NULL, UINT64_MAX), 8);
    ck_assert_uint_eq(segments_cut(&segments, 8, 24, &sizes, NULL, bound(0, 0, 3, 4)), 12);
}

TEST(parts_of_a_row_are_cut_where_it_does_not_fit)
{
    add(0, 0, 6, 0, 4);
    ck_assert_uint_eq(segments_cut(&segments, 0, 24, &sizes, NULL, bound(0, 0, 1, 4) - 1), 3);
    ck_assert_uint_eq(segments_cut(&segments, 3, 24, &sizes, NULL, UINT64_MAX), 1);
    ck_assert_uint_eq(segments_cut(&segments, 0, 2, &sizes, NULL, UINT64_MAX), 2);
    ck_assert_uint_eq(segments_cut(&segments, 0, 24, &sizes, NULL, bound(0, 0, 1, 1)), 1);
    ck_assert_uint_eq(segments_cut(&segments, 0, 24, &sizes, NULL, bound(0, 0, 1, 1) - 1), 0);
    ck_assert_uint_eq(segments_cut(&segments, 0, 24, &sizes, NULL, 0), 0);
}

TEST(what_is_not_there_is_not_cut)
{
    add(0, 4, 3, 0, 4);
    add(2, 0, 1, 0, 4);
    add(1, 0, 2, 0, 4);
    ck_assert_uint_eq(segments_cut(&segments, 0, 24, &sizes, NULL, UINT64_MAX), 0);  /* a region too many */
    ck_assert_uint_eq(segments_cut(&segments, 12, 24, &sizes, NULL, UINT64_MAX), 0); /* no such group */
    ck_assert_uint_eq(segments_cut(&segments, 16, 24, &sizes, NULL, UINT64_MAX), 8);
    ck_assert_uint_eq(segments_cut(&segments, 24, 24, &sizes, NULL, UINT64_MAX), 0); /* the end */
    ck_assert_uint_eq(segments_cut(&segments, 16, 0, &sizes, NULL, UINT64_MAX), 0);
}

TEST(chunks_end_where_the_ids_break)
{
    struct page_set pages;
    ck_assert_int_eq(page_set_init(&pages, 1), STRAIT_OK);
    ck_assert_int_eq(page_set_add(&pages, &(struct wire_page_list){0, 3, 5, 0, NULL}), STRAIT_OK);
    ck_assert_int_eq(page_set_add(&pages, &(struct wire_page_list){0, 0, 3, 50, NULL}), STRAIT_OK);
    add(0, 0, 2, 0, 6); /* two rows of 0-2, 3-5 */
    add(0, 0, 2, 3, 5);
    add(0, 0, 2, 6, 5); /* 8 and more are not there */
    static const uint32_t expected[] = {3, 3, 3, 3, 10, 2, 0};
    uint32_t first = 0;
    for (int i = 0; i < COUNT(expected); i++) {
        uint32_t count = segments_cut(&segments, first, 100, &sizes, &pages, UINT64_MAX);
        ck_assert_uint_eq(count, expected[i]);
        first += count;
    }
    page_set_fini(&pages);
}

/* All units are cut, each chunk is a piece within the capacity, and one more row or page would have been too much. */
TEST_LOOP(random_segments_are_cut_without_waste, 20)
{
    struct rng rng = rng_init(800 + (uint64_t)_i);
    struct piece piece;
    for (int r = 0; r < REGIONS; r++)
        regions[0][r].row_bytes = 1 + rng_below(&rng, 60000);
    for (int k = 0; k < 20; k++) {
        uint32_t region = rng_below(&rng, REGIONS);
        add(0, region, 1 + rng_below(&rng, REGIONS - region), rng_below(&rng, 1000), 1 + rng_below(&rng, 30));
    }
    uint64_t capacity = 70000 + rng_below(&rng, 1000000);
    for (uint32_t first = 0, count; first < segments.units; first += count) {
        uint32_t most = 1 + rng_below(&rng, 200), more;
        count = segments_cut(&segments, first, most, &sizes, NULL, capacity);
        ck_assert_uint_gt(count, 0);
        ck_assert_uint_le(count, most);
        ck_assert(segments_piece(&segments, first, count, &piece));
        ck_assert_uint_le(bound(0, piece.region_first, piece.region_count, piece.count), capacity);
        /* Cut again with less to choose from, as a grant that came back is: the same. */
        ck_assert_uint_eq(segments_cut(&segments, first, count, &sizes, NULL, capacity), count);
        for (more = count + 1; more <= most; more++)
            if (segments_piece(&segments, first, more, &piece))
                ck_assert_uint_gt(bound(0, piece.region_first, piece.region_count, piece.count), capacity);
    }
}

/* ---- What is wanted --------------------------------------------------------------------------------------------- */

struct found {
    struct segment list[8];
    int count, stop_at;
};

static enum strait_status emit(void *owner, const struct segment *segment)
{
    struct found *found = owner;
    found->list[found->count++] = *segment;
    return found->count == found->stop_at ? STRAIT_ERR_NO_MEMORY : STRAIT_OK;
}

TEST(what_is_wanted_of_an_offer_keeps_its_regions)
{
    static const struct wire_span wanted[] = {{0, 0, 100}, {1, 0, 5}, {1, 8, 4}, {1, 13, 0}, {1, 15, 10}, {2, 12, 3}};
    static const struct segment expected[] = {{1, 2, 3, 10, 2}, {1, 2, 3, 15, 5}};
    struct found found = {0};
    const struct segment offered = {1, 2, 3, 10, 10};
    ck_assert_int_eq(segment_intersect(&offered, wanted, COUNT(wanted), emit, &found), STRAIT_OK);
    ck_assert_int_eq(found.count, 2);
    ck_assert_mem_eq(found.list, expected, sizeof(expected));
    found = (struct found){.stop_at = 1};
    ck_assert_int_eq(segment_intersect(&offered, wanted, COUNT(wanted), emit, &found), STRAIT_ERR_NO_MEMORY);
    ck_assert_int_eq(found.count, 1);
}

TEST(nothing_in_common_is_nothing)
{
    static const struct wire_span wanted[] = {{0, 0, 10}, {0, 20, 5}, {2, 0, 100}};
    struct found found = {0};
    ck_assert_int_eq(segment_intersect(&(struct segment){0, 0, 1, 10, 10}, wanted, 3, emit, &found), STRAIT_OK);
    ck_assert_int_eq(segment_intersect(&(struct segment){1, 0, 1, 0, 10}, wanted, 3, emit, &found), STRAIT_OK);
    ck_assert_int_eq(segment_intersect(&(struct segment){0, 0, 1, 0, 10}, NULL, 0, emit, &found), STRAIT_OK);
    ck_assert_int_eq(found.count, 0);
}

TEST_LOOP(random_offers_meet_what_is_wanted_page_by_page, 40)
{
    struct rng rng = rng_init(850 + (uint64_t)_i);
    struct wire_span wanted[12];
    bool table[2][300] = {{false}}, hit[300] = {false};
    uint32_t count = 0;
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t at = rng_below(&rng, 30), n = 0; n < 6; n++) {
            wanted[count++] = (struct wire_span){g, at, rng_below(&rng, 20)};
            memset(&table[g][at], 1, wanted[count - 1].count);
            at += wanted[count - 1].count + rng_below(&rng, 20);
        }
    const struct segment offered = {rng_below(&rng, 2), 0, 1, rng_below(&rng, 100), 1 + rng_below(&rng, 100)};
    struct found found = {0};
    ck_assert_int_eq(segment_intersect(&offered, wanted, count, emit, &found), STRAIT_OK);
    for (int i = 0; i < found.count; i++)
        for (uint32_t p = 0; p < found.list[i].count; p++) {
            ck_assert(!hit[found.list[i].first + p]);
            hit[found.list[i].first + p] = true;
        }
    for (uint32_t p = 0; p < 300; p++) {
        bool inside = p >= offered.first && p - offered.first < offered.count;
        ck_assert(hit[p] == (inside && table[offered.group][p]));
    }
}

int main(void)
{
    return run_tests("segments", setup, teardown);
}
