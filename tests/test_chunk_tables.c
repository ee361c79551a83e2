/* Hostile chunks: entries, lengths and rows that no encoder writes, and what the calls that look into a chunk tell. */
#include <string.h>

#include "tests/chunk_harness.h"
#include "tests/run_suite.h"

/* ---- Tables of the chunk --------------------------------------------------------------------------------------- */

enum { ENTRY = 48, LENGTHS = ENTRY + 16 * PAGES, ROWS = LENGTHS + 4 * PAGES };

static const struct change table_changes[] = {
    {"reserved field of the first entry", ENTRY + 6, 1, 1, STRAIT_ERR_CORRUPT},
    {"reserved field of the last entry", ENTRY + 16 * 3 + 7, 1, 0x80, STRAIT_ERR_CORRUPT},
    {"the first table beyond the set", ENTRY + 4, 2, TEST_TABLES, STRAIT_ERR_CODEBOOK},
    {"table 65535 for a raw page", ENTRY + 16 * 3 + 4, 2, 65535, STRAIT_ERR_CODEBOOK},
    {"a length of 0", LENGTHS + 8, 4, 0, STRAIT_ERR_CORRUPT},
    {"a length beyond the longest", LENGTHS + 8, 4, LONG + 1, STRAIT_ERR_CORRUPT},
    {"a length of 4294967295", LENGTHS + 8, 4, UINT32_MAX, STRAIT_ERR_CORRUPT},
    {"a length that needs a block more", LENGTHS + 8, 4, 16385, STRAIT_ERR_CORRUPT},
    {"a length that needs a unit more", LENGTHS + 12, 4, SHORT + 16, STRAIT_ERR_CORRUPT},
    {"a length that needs a unit less", LENGTHS + 12, 4, SHORT - 16, STRAIT_ERR_CORRUPT},
    {"a length that has a block less", LENGTHS, 4, 16384, STRAIT_ERR_CORRUPT},
    {"an absent block with a row", ROWS + 8, 4, 1, STRAIT_ERR_CORRUPT},
    {"an absent block with an offset", ROWS + 12, 4, 0xFFFFFFF0u, STRAIT_ERR_CORRUPT},
    {"an absent block of an unknown mode", ROWS + 12, 4, 15, STRAIT_ERR_CORRUPT},
    {"a first block inside the metadata", ENTRY, 4, (METADATA / 16 - 1) << 4 | 1, STRAIT_ERR_CORRUPT},
    {"a first block with a gap before", ENTRY, 4, (METADATA / 16 + 1) << 4 | 1, STRAIT_ERR_CORRUPT},
    {"a block at 0", ROWS, 4, STRAIT_BLOCK_RAW, STRAIT_ERR_CORRUPT},
    {"a block far beyond the chunk", ROWS, 4, 0xFFFFFFF0u | 4, STRAIT_ERR_CORRUPT},
    {"a last block beyond the chunk", ENTRY + 16 * 3, 4, 0xFFFFFFF0u, STRAIT_ERR_CORRUPT},
};

START_TEST(a_bad_entry_row_or_length_is_refused)
{
    const struct change *change = &table_changes[_i];
    store_bytes(change->offset, change->bytes, change->value);
    assert_refused(judge_repaired(chunk_size), change->expected, change->what);
}
END_TEST

/* Two raw pages of zeros, written here by hand, whose lengths are stored whatever they are. */
static void write_two_pages(uint32_t longest, uint32_t a, uint32_t b)
{
    static const uint8_t zeros[256];
    const uint32_t lengths[] = {a, b}, metadata = 96, units = (a + 15) / 16;
    chunk_size = metadata + 16 * units + (b + 15) / 16 * 16;
    memset(chunk, 0, chunk_size);
    memcpy(chunk, "STRC\1", 5);
    chunk[6] = 1;
    store_le32(chunk + 8, 2);
    store_le32(chunk + 12, longest);
    store_le32(chunk + 16, (uint32_t)chunk_size);
    for (uint32_t p = 0; p < 2; p++) {
        store_le32(chunk + 48 + 16 * p, (metadata / 16 + p * units) << 4);
        store_le64(chunk + 48 + 16 * p + 8, reference_page_sum(zeros, lengths[p], p, 0));
        store_le32(chunk + 80 + 4 * p, lengths[p]);
    }
    repair_metadata(chunk, chunk_size);
}

static const struct {
    uint32_t longest, a, b;
    enum strait_status expected;
} lengths[] = {
    {100, 100, 60, STRAIT_OK},           {100, 1, 100, STRAIT_OK},          {100, 100, 99, STRAIT_OK},
    {100, 100, 100, STRAIT_ERR_CORRUPT}, {100, 60, 60, STRAIT_ERR_CORRUPT}, {100, 98, 99, STRAIT_ERR_CORRUPT},
    {100, 100, 101, STRAIT_ERR_CORRUPT}, {1, 1, 1, STRAIT_ERR_CORRUPT},
};

START_TEST(lengths_differ_and_one_is_the_longest)
{
    struct verdict verdict;
    write_two_pages(lengths[_i].longest, lengths[_i].a, lengths[_i].b);
    for (int v = 0; v < VARIANTS; v++) {
        if (variant(v) == NULL)
            continue;
        verify_chunk(variant(v), NULL, chunk, chunk_size, &verdict);
        ck_assert_int_eq(lengths[_i].expected, verdict.result.status);
        ck_assert_int_eq(lengths[_i].expected, verdict.result.chunk_status);
    }
}
END_TEST

START_TEST(without_a_codebook_every_table_index_is_0)
{
    struct verdict verdict;
    write_two_pages(100, 100, 60);
    store_le16(chunk + 48 + 16 * (size_t)_i + 4, 1);
    repair_metadata(chunk, chunk_size);
    verify_chunk(NULL, codebook, chunk, chunk_size, &verdict);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict.result.chunk_status);
}
END_TEST

/* Of 3 pages: after their lengths and rows there is room. */
START_TEST(bytes_after_the_metadata_must_be_zero)
{
    const struct shape three = {.page_count = 3, .rows = 1, .row_bytes = 20000};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED};
    struct rng rng = rng_init(2);
    struct layout list;
    struct verdict verdict;
    layout_init(&list, 2, &three, 1, NULL, 3);
    layout_fill(&list, &rng, PATTERN_LOW, codebook);
    uint8_t *bytes = round_trip(&asked, &list, &verdict);
    memcpy(chunk, bytes, verdict.result.bytes);
    for (uint32_t i = 48 + 16 * 3 + 4 * 3; i < 48 + 16 * 3 + 16; i++) {
        ck_assert_uint_eq(0, chunk[i]);
        chunk[i] = 0x10;
        assert_refused(judge_repaired(verdict.result.bytes), STRAIT_ERR_CORRUPT, "padding");
        chunk[i] = 0;
    }
    free(bytes);
    layout_fini(&list);
}
END_TEST

/* Where a row lies: block b of page p. */
static const struct {
    uint32_t page, block;
} rows[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {3, 0}};

static uint32_t row_offset_of(int row)
{
    return rows[row].block == 0 ? ENTRY + 16 * rows[row].page : ROWS + 4 * rows[row].page;
}

START_TEST(a_row_of_another_mode_is_refused)
{
    encode_chunk(modes[_i % 2]);
    uint32_t at = row_offset_of(_i / 2), mode = chunk[at] & 15;
    for (uint32_t other = 0; other < 16; other++) {
        chunk[at] = (uint8_t)((chunk[at] & 0xf0) | other);
        struct judgement j = judge_repaired(chunk_size);
        ck_assert(is_refused(&j) == (other != mode));
        if (other == 5 || other > 8)
            assert_refused(j, STRAIT_ERR_UNSUPPORTED, "mode");
    }
}
END_TEST

START_TEST(a_row_of_another_offset_is_refused)
{
    encode_chunk(modes[_i % 2]);
    uint32_t at = row_offset_of(_i / 2), row = load_le32(chunk + at);
    for (int64_t by = -(int64_t)(row >> 4); by < (int64_t)(chunk_size / 16) + 3; by++) {
        store_le32(chunk + at, row + 16 * (uint32_t)by);
        struct judgement j = judge_repaired(chunk_size);
        ck_assert_int_eq(by == 0 ? STRAIT_OK : STRAIT_ERR_CORRUPT, j.verified.result.status);
    }
}
END_TEST

START_TEST(a_wrong_page_sum_fails_its_page_alone)
{
    uint32_t page = (uint32_t)_i / 8;
    chunk[ENTRY + 16 * page + 8 + _i % 8] ^= 4;
    assert_page_fails(judge_repaired(chunk_size), page, STRAIT_ERR_INTEGRITY, "page sum");
}
END_TEST

/* A page sum knows its table, even when nothing of the page is coded. */
START_TEST(a_page_of_another_table_fails_alone)
{
    uint32_t page = (uint32_t)_i;
    encode_chunk(STRAIT_MODE_TIERED);
    store_le16(chunk + ENTRY + 16 * page + 4, 0);
    struct judgement j = judge_repaired(chunk_size);
    ck_assert_uint_eq(1, j.verified.result.failed_pages);
    ck_assert_int_ne(STRAIT_OK, j.verified.page_status[page]);
}
END_TEST

/* Two raw pages: blocks and sums can change places. */
START_TEST(pages_that_changed_places_fail_both)
{
    const struct shape two = {.page_count = 2, .rows = 1, .row_bytes = 64};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW};
    struct rng rng = rng_init(3);
    struct layout list;
    struct verdict verdict;
    layout_init(&list, 2, &two, 1, NULL, 2);
    layout_fill(&list, &rng, PATTERN_NOISE, codebook);
    uint8_t *bytes = round_trip(&asked, &list, &verdict);
    memcpy(chunk, bytes, verdict.result.bytes);
    memcpy(chunk + 80, bytes + 144, 64);
    memcpy(chunk + 144, bytes + 80, 64);
    memcpy(chunk + ENTRY + 8, bytes + ENTRY + 24, 8);
    memcpy(chunk + ENTRY + 24, bytes + ENTRY + 8, 8);
    repair_metadata(chunk, verdict.result.bytes);
    verify_chunk(NULL, codebook, chunk, verdict.result.bytes, &verdict);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, verdict.page_status[0]);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, verdict.page_status[1]);
    free(bytes);
    layout_fini(&list);
}
END_TEST

/* ---- Looking into a chunk -------------------------------------------------------------------------------------- */

START_TEST(chunk_info_tells_the_header)
{
    struct strait_chunk_info info;
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(chunk, 48, &info));
    ck_assert_uint_eq(chunk_size, info.chunk_bytes);
    ck_assert_uint_eq(METADATA, info.metadata_bytes);
    ck_assert_uint_eq(PAGES, info.page_count);
    ck_assert_uint_eq(LONG, info.page_bytes);
    ck_assert_int_eq(STRAIT_ELEMENT_BF16, info.element);
    ck_assert_uint_eq(1, info.version);
    ck_assert_mem_eq(strait_codebook_id(codebook), info.codebook_id, 16);
}
END_TEST

START_TEST(chunk_pages_tells_lengths_tables_sums_and_modes)
{
    struct strait_page_info info[PAGES + 1];
    uint64_t coded = 0;
    memset(info, CANARY, sizeof(info));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_pages(chunk, chunk_size, PAGES + 1, info));
    ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, chunk_size, 0, NULL));
    ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, chunk_size, PAGES, info));
    for (uint32_t p = 0; p < PAGES; p++) {
        ck_assert_uint_eq(p < 2 ? LONG : SHORT, info[p].page_bytes);
        ck_assert_uint_eq(shapes[p / 2].table, info[p].table);
        ck_assert_uint_eq(load_le64(chunk + ENTRY + 16 * p + 8), info[p].sum);
        coded += info[p].coded_bytes;
    }
    ck_assert_uint_eq(chunk_size - METADATA, coded);
    ck_assert_uint_eq(1u << STRAIT_BLOCK_CONST | 1u << STRAIT_BLOCK_TOP16_ESCAPES, info[0].block_modes);
    ck_assert_uint_eq(1u << STRAIT_BLOCK_RAW, info[3].block_modes);
    ck_assert(is_filled((uint8_t *)&info[PAGES], sizeof(info[PAGES]), CANARY));
}
END_TEST

START_TEST(chunk_pages_gives_the_error_of_the_checks)
{
    const struct change *change = &table_changes[_i];
    struct strait_page_info info[PAGES];
    store_bytes(change->offset, change->bytes, change->value);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, strait_chunk_pages(chunk, chunk_size, PAGES, info));
    repair_metadata(chunk, chunk_size);
    ck_assert_int_eq(change->expected == STRAIT_ERR_CODEBOOK ? STRAIT_OK : change->expected,
                     strait_chunk_pages(chunk, chunk_size, PAGES, info));
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("chunk_tables");
    TCase *tables = add_case(suite, "tables"), *info = add_case(suite, "info");
    print_conditions();
    tcase_add_checked_fixture(tables, setup, teardown);
    tcase_add_checked_fixture(info, setup, teardown);
    tcase_add_loop_test(tables, a_bad_entry_row_or_length_is_refused, 0, COUNT(table_changes));
    tcase_add_loop_test(tables, lengths_differ_and_one_is_the_longest, 0, COUNT(lengths));
    tcase_add_loop_test(tables, without_a_codebook_every_table_index_is_0, 0, 2);
    tcase_add_test(tables, bytes_after_the_metadata_must_be_zero);
    tcase_add_loop_test(tables, a_row_of_another_mode_is_refused, 0, 2 * COUNT(rows));
    tcase_add_loop_test(tables, a_row_of_another_offset_is_refused, 0, 2 * COUNT(rows));
    tcase_add_loop_test(tables, a_wrong_page_sum_fails_its_page_alone, 0, 8 * PAGES);
    tcase_add_loop_test(tables, a_page_of_another_table_fails_alone, 0, PAGES);
    tcase_add_test(tables, pages_that_changed_places_fail_both);
    tcase_add_test(info, chunk_info_tells_the_header);
    tcase_add_test(info, chunk_pages_tells_lengths_tables_sums_and_modes);
    tcase_add_loop_test(info, chunk_pages_gives_the_error_of_the_checks, 0, COUNT(table_changes));
    return run_suite(suite);
}
