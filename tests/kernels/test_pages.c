/* Page lists: rows, strides, regions, ids, lengths and selections; what fails alone and what stays untouched. */
#include <check.h>
#include <string.h>

#include "internal/bytes.h"
#include "tests/run_suite.h"
#include "tests/support.h"

/* What a test encodes, the chunk, and what it is decoded to. */
static struct strait_codebook *codebook;
static struct layout src, dst;
static uint8_t *chunk;
static struct verdict encoded, verdict;

static void setup(void)
{
    codebook = test_codebook();
}

static void teardown(void)
{
    layout_fini(&src);
    layout_fini(&dst);
    free(chunk);
    chunk = NULL;
    strait_codebook_destroy(codebook);
}

/* Random values in the place of the source before, which went through every variant and back: the chunk. */
static void encode_random(const struct asked *asked, struct rng *rng, enum pattern pattern)
{
    layout_fill(&src, rng, pattern, codebook);
    free(chunk);
    chunk = round_trip(asked, &src, &encoded);
}

static void decode_by(const struct strait_codec *codec, const uint32_t *select)
{
    layout_clear(&dst);
    decode_layout(codec, codebook, &dst, select, chunk, encoded.result.bytes, &verdict);
    ck_assert_int_eq(STRAIT_OK, verdict.returned);
    ck_assert(layout_intact(&dst));
}

static bool same_page(uint32_t from, uint32_t to)
{
    static uint8_t a[40000], b[40000];
    layout_read(&src, from, a);
    layout_read(&dst, to, b);
    return memcmp(a, b, layout_page_bytes(&src, from)) == 0;
}

static struct asked bf16(enum strait_mode mode)
{
    return (struct asked){.codebook = codebook, .element = STRAIT_ELEMENT_BF16, .mode = mode};
}

static const enum strait_mode modes[] = {STRAIT_MODE_RAW, STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

/* ---- Rows and strides ------------------------------------------------------------------------------------------ */

static const struct shape row_shapes[] = {
    {.page_count = 3, .rows = 1, .row_bytes = 2000},
    {.page_count = 3, .rows = 1, .row_bytes = 16384, .page_gap = 2},
    {.page_count = 3, .rows = 2, .row_bytes = 2, .row_gap = 2},
    {.page_count = 3, .rows = 100, .row_bytes = 2, .row_gap = 30},
    {.page_count = 3, .rows = 9000, .row_bytes = 2, .row_gap = 2},
    {.page_count = 3, .rows = 17, .row_bytes = 1024, .row_gap = 64, .page_gap = 128}, /* 16 rows are a block */
    {.page_count = 3, .rows = 32, .row_bytes = 512, .row_gap = 1024, .skew = 32},
    {.page_count = 3, .rows = 40, .row_bytes = 1000, .row_gap = 24, .skew = 2},
    {.page_count = 3, .rows = 3, .row_bytes = 16384, .row_gap = 16384},
    {.page_count = 3, .rows = 3, .row_bytes = 16384}, /* rows without gaps are one piece */
    {.page_count = 3, .rows = 5, .row_bytes = 8198, .row_gap = 2, .page_gap = 6, .skew = 6},
    {.page_count = 3, .rows = 5, .row_bytes = 8198, .page_gap = 6, .skew = 6},
    {.page_count = 3, .rows = 2, .row_bytes = 16386, .row_gap = 14, .skew = 62},
    {.page_count = 3, .rows = 2, .row_bytes = 65534, .row_gap = 2, .skew = 4},
    {.page_count = 1, .rows = 1, .row_bytes = 50001},
    {.page_count = 3, .rows = 1, .row_bytes = 17, .page_gap = 1, .skew = 10},
    {.page_count = 3, .rows = 16, .row_bytes = 2048, .columns = 8}, /* heads of tokens */
    {.page_count = 3, .rows = 64, .row_bytes = 1024, .row_gap = 64, .skew = 32, .columns = 2},
    {.page_count = 3, .rows = 7, .row_bytes = 3000, .row_gap = 6, .page_gap = 10, .skew = 2, .columns = 3},
    {.page_count = 3, .rows = 1, .row_bytes = 40000, .columns = 2},
    {.page_count = 3, .rows = 3000, .row_bytes = 12, .columns = 6},
    {.page_count = 3, .rows = 2, .row_bytes = 33000, .row_gap = 2, .columns = 1},
};

/* Copies the pages of the source one after another, without gaps between their rows. */
static void flatten(struct layout *flat)
{
    struct shape shapes[REGIONS_MAX];
    for (uint32_t r = 0; r < src.pages.region_count; r++) {
        uint32_t bytes = src.regions[r].rows * src.regions[r].row_bytes;
        shapes[r] = (struct shape){.page_count = src.regions[r].page_count,
                                   .rows = 1,
                                   .row_bytes = bytes,
                                   .page_gap = bytes % 2,
                                   .table = src.regions[r].table};
    }
    layout_init(flat, 2, shapes, src.pages.region_count, src.pages.ids, src.pages.id_count);
    for (uint32_t i = 0; i < layout_count(&src); i++) {
        uint8_t *page = malloc(layout_page_bytes(&src, i));
        layout_read(&src, i, page);
        layout_write(flat, i, page);
        free(page);
    }
}

START_TEST(pages_of_any_rows_and_strides_come_back_and_leave_no_trace_of_them)
{
    const struct shape *shape = &row_shapes[_i];
    struct rng rng = rng_init((uint64_t)_i);
    layout_init(&src, 2, shape, 1, NULL, shape->page_count);
    for (int k = 0; k < COUNT(modes) * PATTERNS; k++) {
        const struct asked asked = bf16(modes[k % COUNT(modes)]);
        struct layout flat;
        encode_random(&asked, &rng, (enum pattern)(k / COUNT(modes)));
        flatten(&flat);
        uint8_t *flat_chunk = round_trip(&asked, &flat, &verdict);
        ck_assert_uint_eq(encoded.result.bytes, verdict.result.bytes);
        ck_assert_mem_eq(chunk, flat_chunk, verdict.result.bytes);
        free(flat_chunk);
        layout_fini(&flat);
    }
}
END_TEST

START_TEST(rows_of_bytes_may_be_odd)
{
    const struct shape shapes[] = {{.page_count = 2, .rows = 7, .row_bytes = 3001, .row_gap = 4, .skew = 1},
                                   {.page_count = 2, .rows = 16385, .row_bytes = 1, .row_gap = 2, .skew = 3},
                                   {.page_count = 2, .rows = 3, .row_bytes = 16385, .page_gap = 3, .skew = 63}};
    const struct asked asked = {codebook, (enum strait_element)_i, STRAIT_MODE_AUTO};
    struct rng rng = rng_init(50);
    layout_init(&src, 1, shapes, 3, NULL, 2);
    encode_random(&asked, &rng, PATTERN_RUNS);
}
END_TEST

START_TEST(pages_may_begin_at_any_even_address)
{
    const struct asked asked = bf16(modes[_i]);
    struct rng rng = rng_init(51);
    for (uint32_t skew = 0; skew < 128; skew += 2) {
        const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = 17000 + skew, .skew = skew};
        layout_fini(&src);
        layout_init(&src, 64, &shape, 1, NULL, 1);
        encode_random(&asked, &rng, PATTERN_FALLING);
    }
}
END_TEST

/* A row that is read again and again: encoders only read. */
START_TEST(rows_of_a_source_may_overlap)
{
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_TIERED, .codebook = codebook};
    uint8_t rows[3 * 1000], flat[20 * 1000], made[2][24000];
    uint64_t size[2];
    struct rng rng = rng_init(52);
    rng_fill(&rng, rows, sizeof(rows));
    for (uint32_t row = 0; row < 20; row++)
        memcpy(flat + 1000 * row, rows + 100 * row, 1000);
    const struct strait_region regions[] = {
        {.base = rows, .row_stride = 100, .page_count = 1, .rows = 20, .row_bytes = 1000},
        {.base = flat, .page_count = 1, .rows = 1, .row_bytes = sizeof(flat)}};
    for (int i = 0; i < 2; i++) {
        struct strait_run run = verdict_begin(&verdict);
        const struct strait_pages pages = {.regions = &regions[i], .region_count = 1, .id_count = 1};
        ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, made[i], sizeof(made[i]), &pages, &run));
        size[i] = verdict.result.bytes;
    }
    ck_assert_uint_eq(size[0], size[1]);
    ck_assert_mem_eq(made[0], made[1], size[0]);
}
END_TEST

/* ---- Regions and ids ------------------------------------------------------------------------------------------- */

static const struct shape list_shapes[] = {
    {.page_count = 9, .rows = 1, .row_bytes = 600, .page_gap = 40, .table = 1},
    {.page_count = 7, .rows = 4, .row_bytes = 150, .row_gap = 50, .table = 2},
    {.page_count = 7, .rows = 2, .row_bytes = 300, .row_gap = 2, .table = 0},
};
static const struct shape mixed_shapes[] = {
    {.page_count = 9, .rows = 1, .row_bytes = 1, .page_gap = 3, .table = 1},
    {.page_count = 8, .rows = 1, .row_bytes = 33001, .page_gap = 1, .table = 2},
    {.page_count = 7, .rows = 5, .row_bytes = 5000, .row_gap = 8, .table = 3},
    {.page_count = 7, .rows = 1, .row_bytes = 16384, .page_gap = 64, .table = 4},
};
static const uint32_t ids[] = {5, 0, 6, 3};
enum { IDS = 4 };

static void list_init(struct layout *list, bool mixed, const uint32_t *list_ids)
{
    layout_init(list, 2, mixed ? mixed_shapes : list_shapes, mixed ? COUNT(mixed_shapes) : COUNT(list_shapes), list_ids,
                IDS);
}

START_TEST(one_id_list_addresses_every_region)
{
    const struct asked asked = bf16(modes[_i / 2]);
    struct rng rng = rng_init(100);
    list_init(&src, _i % 2 != 0, ids);
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        struct strait_page_info info[VERDICT_PAGES];
        encode_random(&asked, &rng, (enum pattern)pattern);
        ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, encoded.result.bytes, layout_count(&src), info));
        for (uint32_t p = 0; p < layout_count(&src); p++) {
            uint8_t page[40000];
            layout_read(&src, p, page);
            ck_assert_uint_eq(layout_page_bytes(&src, p), info[p].page_bytes);
            ck_assert_uint_eq(src.regions[p / IDS].table, info[p].table);
            ck_assert_uint_eq(reference_page_sum(page, info[p].page_bytes, p, info[p].table), info[p].sum);
        }
        /* Lengths are stored only where they differ. */
        ck_assert_uint_eq(_i % 2, chunk[6]);
        ck_assert_uint_eq(_i % 2 != 0 ? 33001 : 600, load_le32(chunk + 12));
    }
}
END_TEST

START_TEST(pages_are_decoded_to_other_ids_than_they_came_from)
{
    static const uint32_t others[] = {1, 6, 2, 0};
    const struct asked asked = bf16(STRAIT_MODE_TIERED);
    struct rng rng = rng_init(102);
    list_init(&src, _i != 0, ids);
    list_init(&dst, _i != 0, others);
    encode_random(&asked, &rng, PATTERN_RARE);
    for (int v = 0; v < variant_count(); v++) {
        decode_by(variant(v), NULL);
        for (uint32_t p = 0; p < layout_count(&src); p++)
            ck_assert(same_page(p, p));
    }
}
END_TEST

/* ---- Selections ------------------------------------------------------------------------------------------------ */

/* A chunk to select from: 10 pages of 5000 bytes, one after another. */
static const struct shape select_shape = {.page_count = 10, .rows = 1, .row_bytes = 5000, .page_gap = 120, .table = 2};

/* ... and where `count` pages of it go. */
static void select_init(uint32_t count)
{
    const struct asked asked = bf16(STRAIT_MODE_TOP16);
    struct rng rng = rng_init(200);
    layout_init(&src, 2, &select_shape, 1, NULL, 10);
    layout_init(&dst, 2, &select_shape, 1, NULL, count);
    encode_random(&asked, &rng, PATTERN_RARE);
}

static const struct selection {
    uint32_t count, pages[12];
} selections[] = {{1, {0}},       {1, {9}},
                  {1, {4}},       {3, {2, 3, 4}},
                  {3, {9, 0, 5}}, {10, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}},
                  {2, {6, 6}},    {12, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}}};

START_TEST(a_selection_receives_its_pages_and_nothing_else_is_touched)
{
    const struct selection *selection = &selections[_i];
    const struct shape shape = {.page_count = 15, .rows = 50, .row_bytes = 100, .row_gap = 20, .page_gap = 2};
    static const uint32_t to[] = {14, 1, 5, 3, 2, 8, 7, 6, 13, 0, 11, 9};
    select_init(1);
    layout_fini(&dst);
    layout_init(&dst, 2, &shape, 1, to, selection->count);
    for (int v = 0; v < variant_count(); v++) {
        decode_by(variant(v), selection->pages);
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
        ck_assert_uint_eq(5000 * selection->count, verdict.result.bytes);
        ck_assert_uint_eq(2500 * selection->count, verdict.stats[2].values);
        for (uint32_t i = 0; i < selection->count; i++)
            ck_assert(same_page(selection->pages[i], i));
    }
}
END_TEST

START_TEST(a_selected_page_that_the_chunk_has_not_fails_alone)
{
    static const uint32_t pages[] = {3, 10, 1, UINT32_MAX};
    select_init(4);
    for (int v = 0; v < variant_count(); v++) {
        decode_by(variant(v), pages);
        ck_assert_int_eq(STRAIT_ERR_INVALID, verdict.result.status);
        ck_assert_int_eq(STRAIT_OK, verdict.result.chunk_status);
        ck_assert_uint_eq(2, verdict.result.failed_pages);
        for (uint32_t i = 0; i < 4; i++) {
            uint8_t page[5000];
            layout_read(&dst, i, page);
            ck_assert_int_eq(i % 2 == 0 ? STRAIT_OK : STRAIT_ERR_INVALID, verdict.page_status[i]);
            ck_assert(i % 2 == 0 ? same_page(pages[i], i) : is_filled(page, sizeof(page), CANARY));
        }
    }
}
END_TEST

/* A page that the chunk has not, into a page that is not there: the first check that fails tells. */
START_TEST(a_missing_page_is_told_before_a_missing_id)
{
    static const uint32_t chosen[] = {10, 10, 0}, places[] = {0, 999, 999};
    static const int32_t expected[] = {STRAIT_ERR_INVALID, STRAIT_ERR_INVALID, STRAIT_ERR_PAGE_ID};
    select_init(3);
    dst.pages.ids = places;
    for (int v = 0; v < variant_count(); v++) {
        decode_by(variant(v), chosen);
        ck_assert_mem_eq(expected, verdict.page_status, sizeof(expected));
    }
}
END_TEST

START_TEST(statuses_beyond_their_count_are_not_written)
{
    select_init(10);
    struct strait_run run = verdict_begin(&verdict);
    run.page_status_count = 7;
    ck_assert_int_eq(STRAIT_OK,
                     strait_decode(NULL, codebook, &dst.pages, NULL, chunk, encoded.result.bytes - (size_t)_i, &run));
    ck_assert_int_eq(_i == 0 ? STRAIT_OK : STRAIT_ERR_TRUNCATED, verdict.page_status[6]);
    ck_assert_int_eq(STATUS_UNSET, verdict.page_status[7]);
}
END_TEST

START_TEST(a_bad_page_that_is_not_selected_is_not_seen)
{
    static const uint32_t pages[] = {2, 3, 5};
    select_init(3);
    chunk[16 * (load_le32(chunk + 48 + 16 * 4) >> 4)] ^= 1; /* of page 4 */
    for (int v = 0; v < variant_count(); v++) {
        decode_by(variant(v), pages);
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
        verify_chunk(variant(v), codebook, chunk, encoded.result.bytes, &verdict);
        ck_assert_int_eq(STRAIT_ERR_INTEGRITY, verdict.result.status);
        ck_assert_int_eq(STRAIT_ERR_INTEGRITY, verdict.page_status[4]);
        ck_assert_uint_eq(1, verdict.result.failed_pages);
        ck_assert_uint_eq(9 * 5000, verdict.result.bytes);
    }
}
END_TEST

/* ---- Pages that fail alone ------------------------------------------------------------------------------------- */

static const uint32_t bad_ids[][IDS] = {{9, 0, 1, 2}, {0, 1, 2, UINT32_MAX}, {0, 7, 8, 1}, {9, 9, 9, 9}};

/* Whether the page is in its region; the list is one of bad_ids. */
static bool is_there(const uint32_t *list, uint32_t page)
{
    return list[page % IDS] < list_shapes[page / IDS].page_count;
}

START_TEST(encoding_an_id_out_of_range_makes_no_chunk_and_names_the_pages)
{
    const struct asked asked = bf16(STRAIT_MODE_TIERED);
    list_init(&src, false, bad_ids[_i]);
    for (int v = 0; v < variant_count(); v++) {
        uint32_t failed = 0;
        ck_assert_ptr_null(encode_layout(variant(v), &asked, &src, &verdict));
        ck_assert_int_eq(STRAIT_OK, verdict.returned);
        ck_assert_int_eq(STRAIT_ERR_PAGE_ID, verdict.result.status);
        for (uint32_t p = 0; p < layout_count(&src); p++) {
            bool there = is_there(bad_ids[_i], p);
            ck_assert_int_eq(there ? STRAIT_OK : STRAIT_ERR_PAGE_ID, verdict.page_status[p]);
            failed += !there;
        }
        ck_assert_uint_eq(failed, verdict.result.failed_pages);
        ck_assert_uint_eq(0, verdict.stats[1].values);
    }
}
END_TEST

/* `absent` stands for ids out of range: the chunk is that of a list that has the page in their places. */
START_TEST(what_stands_for_absent_pages_is_encoded_in_their_places)
{
    enum { BYTES = 20000, PAGES = 4 };
    static _Alignas(16) uint8_t there[2 * BYTES], whole[PAGES * BYTES], absent[BYTES];
    static uint8_t made[2][2 * PAGES * BYTES];
    const uint32_t listed[PAGES] = {1, 2, 0, UINT32_MAX};
    struct rng rng = rng_init(302);
    rng_fill(&rng, there, sizeof(there));
    if (_i % 2 == 1)
        rng_fill(&rng, absent, sizeof(absent));
    for (uint32_t p = 0; p < PAGES; p++)
        memcpy(whole + p * BYTES, listed[p] < 2 ? there + listed[p] * BYTES : absent, BYTES);
    const struct strait_region regions[] = {
        {.base = there, .page_stride = BYTES, .page_count = 2, .rows = 1, .row_bytes = BYTES},
        {.base = whole, .page_stride = BYTES, .page_count = PAGES, .rows = 1, .row_bytes = BYTES}};
    const struct strait_pages lists[] = {{&regions[0], listed, 1, PAGES}, {&regions[1], NULL, 1, PAGES}};
    struct strait_encode_params params = {.size = sizeof(params),
                                          .element = STRAIT_ELEMENT_BF16,
                                          .mode = modes[_i / 2],
                                          .codebook = codebook,
                                          .absent = absent};
    for (int v = 0; v < variant_count(); v++) {
        uint64_t size[2];
        for (int i = 0; i < 2; i++) {
            struct strait_run run = verdict_begin(&verdict);
            ck_assert_int_eq(STRAIT_OK, strait_encode(variant(v), &params, made[i], sizeof(made[i]), &lists[i], &run));
            ck_assert_int_eq(STRAIT_OK, verdict.result.status);
            size[i] = verdict.result.bytes;
        }
        ck_assert_uint_eq(size[0], size[1]);
        ck_assert_mem_eq(made[0], made[1], size[0]);
    }
    params.absent = absent + 8;
    struct strait_run run = verdict_begin(&verdict);
    ck_assert_int_eq(STRAIT_ERR_ALIGNMENT, strait_encode(NULL, &params, made[0], sizeof(made[0]), &lists[0], &run));
}
END_TEST

START_TEST(decoding_an_id_out_of_range_fails_that_page_and_touches_nothing_else)
{
    const struct asked asked = bf16(STRAIT_MODE_TIERED);
    struct rng rng = rng_init(300);
    list_init(&src, false, ids);
    list_init(&dst, false, bad_ids[_i]);
    encode_random(&asked, &rng, PATTERN_FALLING);
    for (int v = 0; v < variant_count(); v++) {
        uint64_t good = 0;
        decode_by(variant(v), NULL);
        ck_assert_int_eq(STRAIT_ERR_PAGE_ID, verdict.result.status);
        for (uint32_t p = 0; p < layout_count(&src); p++) {
            bool there = is_there(bad_ids[_i], p);
            ck_assert_int_eq(there ? STRAIT_OK : STRAIT_ERR_PAGE_ID, verdict.page_status[p]);
            ck_assert(!there || same_page(p, p));
            good += there;
        }
        ck_assert_uint_eq(layout_count(&src) - good, verdict.result.failed_pages);
        ck_assert_uint_eq(600 * good, verdict.result.bytes);
    }
}
END_TEST

START_TEST(a_page_of_another_size_than_the_chunks_is_refused_alone)
{
    const struct asked asked = bf16(STRAIT_MODE_TOP16);
    struct shape shapes[COUNT(mixed_shapes)];
    struct rng rng = rng_init(301);
    list_init(&src, true, ids);
    encode_random(&asked, &rng, PATTERN_FALLING);
    memcpy(shapes, mixed_shapes, sizeof(shapes));
    shapes[_i].row_bytes += 2;
    layout_init(&dst, 2, shapes, COUNT(shapes), ids, IDS);
    for (int v = 0; v < variant_count(); v++) {
        decode_by(variant(v), NULL);
        ck_assert_int_eq(STRAIT_ERR_INVALID, verdict.result.status);
        ck_assert_uint_eq(IDS, verdict.result.failed_pages);
        for (uint32_t p = 0; p < layout_count(&src); p++)
            ck_assert_int_eq(p / IDS == (uint32_t)_i ? STRAIT_ERR_INVALID : STRAIT_OK, verdict.page_status[p]);
    }
}
END_TEST

START_TEST(a_damaged_page_fails_alone_and_the_first_one_gives_the_result)
{
    select_init(10);
    chunk[16 * (load_le32(chunk + 48 + 16 * 3) >> 4)] ^= 0x10;                    /* sign+mantissa of page 3 */
    store_le16(chunk + 16 * (load_le32(chunk + 48 + 16 * 7) >> 4) + 3750, 65535); /* number of escapes of page 7 */
    for (int v = 0; v < variant_count(); v++) {
        decode_by(variant(v), NULL);
        ck_assert_int_eq(STRAIT_ERR_INTEGRITY, verdict.result.status);
        ck_assert_uint_eq(2, verdict.result.failed_pages);
        ck_assert_uint_eq(8 * 5000, verdict.result.bytes);
        ck_assert_uint_eq(8 * 2500, verdict.stats[2].values);
        for (uint32_t p = 0; p < 10; p++) {
            enum strait_status expected = p == 3 ? STRAIT_ERR_INTEGRITY : p == 7 ? STRAIT_ERR_CORRUPT : STRAIT_OK;
            ck_assert_int_eq(expected, verdict.page_status[p]);
            ck_assert(expected != STRAIT_OK || same_page(p, p));
        }
    }
}
END_TEST

/* ---- Codebooks ------------------------------------------------------------------------------------------------- */

/* The chunk's set less its last table, its tables in another order, none. */
static struct strait_codebook *other_codebook(int which)
{
    uint8_t rankings[TEST_TABLES][256];
    struct strait_codebook *other = NULL;
    for (uint32_t t = 0; t < TEST_TABLES; t++)
        test_ranking(rankings[t], which == 0 ? t : TEST_TABLES - 1 - t);
    if (which < 2)
        ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])rankings, NULL,
                                                           TEST_TABLES - (which == 0), &other));
    return other;
}

START_TEST(another_codebook_than_the_chunks_is_refused_and_nothing_is_written)
{
    struct strait_codebook *other = other_codebook(_i);
    select_init(10);
    for (int v = 0; v < variant_count(); v++) {
        decode_layout(variant(v), other, &dst, NULL, chunk, encoded.result.bytes, &verdict);
        ck_assert_int_eq(STRAIT_OK, verdict.returned);
        ck_assert_int_eq(STRAIT_ERR_CODEBOOK, verdict.result.status);
        ck_assert_int_eq(STRAIT_ERR_CODEBOOK, verdict.result.chunk_status);
        ck_assert_uint_eq(10, verdict.result.failed_pages);
        ck_assert_int_eq(STRAIT_ERR_CODEBOOK, verdict.page_status[9]);
        ck_assert_uint_eq(0, verdict.result.bytes);
        ck_assert(layout_untouched(&dst));
        verify_chunk(variant(v), other, chunk, encoded.result.bytes, &verdict);
        ck_assert_int_eq(STRAIT_ERR_CODEBOOK, verdict.result.status);
    }
    strait_codebook_destroy(other);
}
END_TEST

START_TEST(a_chunk_without_a_codebook_is_decoded_with_any_or_none)
{
    const struct shape shape = {.page_count = 3, .rows = 1, .row_bytes = 20000};
    const struct asked asked = {NULL, STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW};
    struct rng rng = rng_init(400);
    layout_init(&src, 2, &shape, 1, NULL, 3);
    layout_mirror(&dst, &src);
    encode_random(&asked, &rng, PATTERN_FALLING);
    decode_by(NULL, NULL);
    ck_assert_int_eq(STRAIT_OK, verdict.result.status);
    ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("pages");
    TCase *tcase = add_case(suite, "pages");
    print_conditions();
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, pages_of_any_rows_and_strides_come_back_and_leave_no_trace_of_them, 0,
                        COUNT(row_shapes));
    tcase_add_loop_test(tcase, rows_of_bytes_may_be_odd, STRAIT_ELEMENT_BYTES, STRAIT_ELEMENT_BYTES + 1);
    tcase_add_loop_test(tcase, rows_of_bytes_may_be_odd, STRAIT_ELEMENT_FP8_E4M3, STRAIT_ELEMENT_FP8_E5M2 + 1);
    tcase_add_loop_test(tcase, pages_may_begin_at_any_even_address, 0, COUNT(modes));
    tcase_add_test(tcase, rows_of_a_source_may_overlap);
    tcase_add_loop_test(tcase, one_id_list_addresses_every_region, 0, 2 * COUNT(modes));
    tcase_add_loop_test(tcase, pages_are_decoded_to_other_ids_than_they_came_from, 0, 2);
    tcase_add_loop_test(tcase, a_selection_receives_its_pages_and_nothing_else_is_touched, 0, COUNT(selections));
    tcase_add_test(tcase, a_selected_page_that_the_chunk_has_not_fails_alone);
    tcase_add_test(tcase, a_missing_page_is_told_before_a_missing_id);
    tcase_add_loop_test(tcase, statuses_beyond_their_count_are_not_written, 0, 2);
    tcase_add_test(tcase, a_bad_page_that_is_not_selected_is_not_seen);
    tcase_add_loop_test(tcase, encoding_an_id_out_of_range_makes_no_chunk_and_names_the_pages, 0, COUNT(bad_ids));
    tcase_add_loop_test(tcase, what_stands_for_absent_pages_is_encoded_in_their_places, 0, 2 * COUNT(modes));
    tcase_add_loop_test(tcase, decoding_an_id_out_of_range_fails_that_page_and_touches_nothing_else, 0, COUNT(bad_ids));
    tcase_add_loop_test(tcase, a_page_of_another_size_than_the_chunks_is_refused_alone, 0, COUNT(mixed_shapes));
    tcase_add_test(tcase, a_damaged_page_fails_alone_and_the_first_one_gives_the_result);
    tcase_add_loop_test(tcase, another_codebook_than_the_chunks_is_refused_and_nothing_is_written, 0, 3);
    tcase_add_test(tcase, a_chunk_without_a_codebook_is_decoded_with_any_or_none);
    return run_suite(suite);
}
