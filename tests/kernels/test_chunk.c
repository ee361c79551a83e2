/* Hostile chunks as a whole: any change, headers, entries, lengths and rows that no encoder writes. */
#include <string.h>

#include "tests/kernels/chunk_harness.h"
#include "tests/run_suite.h"

TEST_LOOP(the_chunk_is_what_the_format_says, COUNT(coded_modes))
{
    uint8_t page[LONG], before[CHUNK_MAX];
    struct anatomy anatomy;
    encode_chunk(coded_modes[_i]);
    memcpy(before, chunk, chunk_size);
    ck_assert(anatomy_read(&anatomy, chunk, chunk_size));
    ck_assert_uint_eq(METADATA, anatomy.metadata_bytes);
    ck_assert(repair_metadata(chunk, chunk_size));
    ck_assert_mem_eq(before, chunk, chunk_size); /* was right before */
    for (uint32_t p = 0; p < PAGES; p++) {
        const uint8_t *entry = chunk + 48 + 16 * p;
        layout_read(&src, p, page);
        ck_assert_uint_eq(p < 2 ? LONG : SHORT, load_le32(chunk + anatomy.lengths + 4 * p));
        ck_assert_uint_eq(reference_page_sum(page, layout_page_bytes(&src, p), p, load_le16(entry + 4)),
                          load_le64(entry + 8));
        ck_assert_uint_eq(p < 2    ? STRAIT_BLOCK_CONST
                          : p == 3 ? STRAIT_BLOCK_RAW
                                   : load_le32(entry) & 15,
                          load_le32(entry) & 15);
    }
    ck_assert_uint_eq(_i == 0 ? STRAIT_BLOCK_TOP16_ESCAPES : STRAIT_BLOCK_TIERED,
                      load_le32(chunk + anatomy_row(&anatomy, 1, 1)) & 15);
}

/* ---- Any change ------------------------------------------------------------------------------------------------ */

TEST_LOOP(every_flipped_bit_is_seen, COUNT(coded_modes))
{
    encode_chunk(coded_modes[_i]);
    for (uint64_t bit = 0; bit < 8 * chunk_size; bit += STRIDE) {
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct judgement j = judge(chunk_size);
        if (!is_refused(&j))
            ck_abort_msg("bit %u of byte %u", (unsigned)bit % 8, (unsigned)bit / 8);
        if (bit / 8 >= 24 && bit / 8 < METADATA)
            assert_refused(j, STRAIT_ERR_INTEGRITY, "metadata");
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

TEST_LOOP(every_flipped_bit_of_the_metadata_is_seen_when_its_sum_is_repaired, COUNT(coded_modes))
{
    uint8_t before[METADATA];
    encode_chunk(coded_modes[_i]);
    memcpy(before, chunk, METADATA);
    for (uint64_t bit = 0; bit < 8 * METADATA; bit += STRIDE) {
        bool is_sum = bit / 64 == 5;
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct judgement j = judge_repaired(chunk_size);
        if (is_refused(&j) == is_sum)
            ck_abort_msg("bit %u of byte %u", (unsigned)bit % 8, (unsigned)bit / 8);
        memcpy(chunk, before, METADATA);
    }
}

TEST_LOOP(every_byte_of_the_metadata_may_be_anything, 8)
{
    uint8_t before[METADATA];
    encode_chunk(coded_modes[1]);
    memcpy(before, chunk, METADATA);
    for (uint32_t i = (uint32_t)_i; i < METADATA; i += 8) {
        for (unsigned value = 0; value < 256; value += i < 64 || i >= METADATA - 16 ? STRIDE : 5 * STRIDE) {
            chunk[i] = (uint8_t)value;
            struct judgement j = judge_repaired(chunk_size);
            if (is_refused(&j) != (value != before[i] && (i < 40 || i >= 48)) && !same_as_parts(before[i], chunk[i]))
                ck_abort_msg("byte %u = %u", i, value);
            memcpy(chunk, before, METADATA);
        }
    }
}

TEST_LOOP(random_changes_get_the_same_verdict_from_every_variant, 4)
{
    struct rng rng = rng_init(100 + (uint64_t)_i);
    static uint8_t before[CHUNK_MAX];
    encode_chunk(coded_modes[_i % 2]);
    memcpy(before, chunk, chunk_size);
    for (int k = 0; k < 1500 / STRIDE; k++) {
        for (uint32_t changes = 1 + rng_below(&rng, 4); changes > 0; changes--) {
            uint32_t at = rng_below(&rng, (uint32_t)(rng_below(&rng, 3) == 0 ? METADATA : chunk_size));
            chunk[at] =
                rng_below(&rng, 2) == 0 ? (uint8_t)rng_next(&rng) : (uint8_t)(chunk[at] ^ 1u << rng_below(&rng, 8));
        }
        judge_repaired(chunk_size);
        memcpy(chunk, before, chunk_size);
    }
}

TEST(a_chunk_that_ends_early_is_truncated)
{
    for (uint64_t size = 0; size < chunk_size; size += STRIDE) {
        struct strait_chunk_info info;
        struct strait_page_info pages[PAGES];
        uint8_t *bytes = room.bytes + room.size - size;
        assert_refused(judge(size), STRAIT_ERR_TRUNCATED, "cut");
        memcpy(bytes, chunk, size);
        ck_assert_int_eq(size < 48 ? STRAIT_ERR_TRUNCATED : STRAIT_OK, strait_chunk_info(bytes, size, &info));
        ck_assert_int_eq(STRAIT_ERR_TRUNCATED, strait_chunk_pages(bytes, size, PAGES, pages));
    }
}

TEST(a_chunk_with_bytes_after_it_is_corrupt)
{
    for (uint64_t more = 1; more < 100; more++) {
        struct strait_page_info pages[PAGES];
        chunk[chunk_size + more - 1] = 0;
        assert_refused(judge(chunk_size + more), STRAIT_ERR_CORRUPT, "longer");
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, strait_chunk_pages(chunk, chunk_size + more, PAGES, pages));
    }
}

/* ---- Header ---------------------------------------------------------------------------------------------------- */

static const struct change header_changes[] = {
    {"first byte of the magic", 0, 1, 's', STRAIT_ERR_CORRUPT},
    {"last byte of the magic", 3, 1, 'F', STRAIT_ERR_CORRUPT},
    {"version 0", 4, 1, 0, STRAIT_ERR_UNSUPPORTED},
    {"version 2", 4, 1, 2, STRAIT_ERR_UNSUPPORTED},
    {"version 255", 4, 1, 255, STRAIT_ERR_UNSUPPORTED},
    {"element 6", 5, 1, 6, STRAIT_ERR_UNSUPPORTED},
    {"element 255", 5, 1, 255, STRAIT_ERR_UNSUPPORTED},
    {"coded blocks of bytes", 5, 1, 0, STRAIT_ERR_CORRUPT},
    {"coded blocks of FP16", 5, 1, 2, STRAIT_ERR_CORRUPT},
    {"coded blocks of FP32", 5, 1, 3, STRAIT_ERR_CORRUPT},
    {"coded blocks of FP8", 5, 1, 5, STRAIT_ERR_CORRUPT},
    {"flag 1", 6, 1, 3, STRAIT_ERR_UNSUPPORTED},
    {"flag 7", 6, 1, 0x81, STRAIT_ERR_UNSUPPORTED},
    {"no lengths: one is read as a row", 6, 1, 0, STRAIT_ERR_UNSUPPORTED},
    {"reserved byte", 7, 1, 1, STRAIT_ERR_CORRUPT},
    {"reserved byte, last bit", 7, 1, 0x80, STRAIT_ERR_CORRUPT},
    {"no pages", 8, 4, 0, STRAIT_ERR_CORRUPT},
    {"a page less", 8, 4, PAGES - 1, STRAIT_ERR_CORRUPT},
    {"a page more", 8, 4, PAGES + 1, STRAIT_ERR_CORRUPT},
    {"more pages than the chunk could list", 8, 4, 1000, STRAIT_ERR_CORRUPT},
    {"the most pages", 8, 4, STRAIT_CHUNK_PAGES_MAX, STRAIT_ERR_CORRUPT},
    {"too many pages", 8, 4, STRAIT_CHUNK_PAGES_MAX + 1, STRAIT_ERR_CORRUPT},
    {"4294967295 pages", 8, 4, UINT32_MAX, STRAIT_ERR_CORRUPT},
    {"2^28 pages: 16 times that is 0", 8, 4, 1u << 28, STRAIT_ERR_CORRUPT},
    {"pages of no bytes", 12, 4, 0, STRAIT_ERR_CORRUPT},
    {"one byte less than the longest page", 12, 4, LONG - 1, STRAIT_ERR_CORRUPT},
    {"one byte more than the longest page", 12, 4, LONG + 1, STRAIT_ERR_CORRUPT},
    {"a block more than the longest page", 12, 4, 2 * 16384 + 1, STRAIT_ERR_CORRUPT},
    {"a block less than the longest page", 12, 4, 16384, STRAIT_ERR_CORRUPT},
    {"the longest page there may be", 12, 4, STRAIT_PAGE_BYTES_MAX, STRAIT_ERR_CORRUPT},
    {"longer pages than may be", 12, 4, STRAIT_PAGE_BYTES_MAX + 1, STRAIT_ERR_CORRUPT},
    {"pages of 4294967295 bytes", 12, 4, UINT32_MAX, STRAIT_ERR_CORRUPT},
    {"no chunk bytes", 16, 4, 0, STRAIT_ERR_CORRUPT},
    {"chunk bytes less than the metadata", 16, 4, METADATA - 16, STRAIT_ERR_CORRUPT},
    {"chunk bytes of the metadata alone", 16, 4, METADATA, STRAIT_ERR_CORRUPT},
    {"chunk bytes of metadata and a unit", 16, 4, METADATA + 16, STRAIT_ERR_CORRUPT},
    {"chunk bytes no multiple of 16", 16, 4, METADATA + 17, STRAIT_ERR_CORRUPT},
    {"4 GiB less 16 chunk bytes", 16, 4, 0xFFFFFFF0u, STRAIT_ERR_TRUNCATED},
    {"4 GiB less 1 chunk bytes", 16, 4, UINT32_MAX, STRAIT_ERR_CORRUPT},
    {"reserved word", 20, 4, 1, STRAIT_ERR_CORRUPT},
    {"reserved word, last bit", 20, 4, 1u << 31, STRAIT_ERR_CORRUPT},
    {"first byte of the codebook id", 24, 1, 0xEE, STRAIT_ERR_CODEBOOK},
    {"last byte of the codebook id", 39, 1, 0xEE, STRAIT_ERR_CODEBOOK},
};

TEST_LOOP(a_header_field_out_of_its_limits_is_refused_by_chunk_info_too, COUNT(header_changes))
{
    const struct change *change = &header_changes[_i];
    struct strait_chunk_info info, unset;
    memset(&info, CANARY, sizeof(info));
    unset = info;
    store_bytes(change->offset, change->bytes, change->value);
    assert_refused(judge_repaired(chunk_size), change->expected, change->what);
    enum strait_status status = strait_chunk_info(chunk, 48, &info);
    ck_assert(status == STRAIT_OK || status == change->expected);
    if (status != STRAIT_OK)
        ck_assert_mem_eq(&unset, &info, sizeof(info));
}

TEST(a_codebook_id_of_zeros_with_coded_blocks_is_corrupt)
{
    memset(chunk + 24, 0, 16);
    assert_refused(judge_repaired(chunk_size), STRAIT_ERR_CORRUPT, "no codebook");
}

TEST_LOOP(a_wrong_metadata_sum_is_an_integrity_error, 8)
{
    chunk[40 + _i] ^= 0x40;
    assert_refused(judge(chunk_size), STRAIT_ERR_INTEGRITY, "sum");
}

#define FAULT(name, change) \
    static void name(void)  \
    {                       \
        change;             \
    }

/* Each is refused; of two, the first one in the order of section 6. */
FAULT(spoil_magic, chunk[0] = 'X')
FAULT(spoil_version, chunk[4] = 9)
FAULT(spoil_reserved, chunk[7] = 1)
FAULT(spoil_chunk_bytes, store_le32(chunk + 16, (uint32_t)chunk_size + 16))
FAULT(spoil_sum, chunk[40] ^= 1)
FAULT(spoil_length, store_le32(chunk + 48 + 16 * PAGES, 0))
FAULT(spoil_mode, chunk[48 + 16 * 2] |= 15)
FAULT(spoil_id, chunk[30] ^= 1)
FAULT(spoil_page, chunk[chunk_size - 1] ^= 1)

static const struct step {
    void (*spoil)(void);
    enum strait_status expected;
} steps[] = {
    {spoil_magic, STRAIT_ERR_CORRUPT},    {spoil_version, STRAIT_ERR_UNSUPPORTED},
    {spoil_reserved, STRAIT_ERR_CORRUPT}, {spoil_chunk_bytes, STRAIT_ERR_TRUNCATED},
    {spoil_sum, STRAIT_ERR_INTEGRITY},    {spoil_length, STRAIT_ERR_CORRUPT},
    {spoil_mode, STRAIT_ERR_UNSUPPORTED}, {spoil_id, STRAIT_ERR_CODEBOOK},
    {spoil_page, STRAIT_ERR_CORRUPT},
};

TEST_LOOP(the_first_failing_check_gives_the_error, COUNT(steps))
{
    static uint8_t before[CHUNK_MAX];
    memcpy(before, chunk, chunk_size);
    for (int later = _i; later < COUNT(steps); later++) {
        memcpy(chunk, before, chunk_size);
        steps[_i].spoil();
        if (later != _i)
            steps[later].spoil();
        if (steps[_i].spoil != spoil_sum && steps[later].spoil != spoil_sum)
            repair_metadata(chunk, chunk_size);
        struct judgement j = judge(chunk_size);
        ck_assert_msg(j.verified.result.status == (int)steps[_i].expected, "%d and %d: %d", _i, later,
                      j.verified.result.status);
    }
}

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

TEST_LOOP(a_bad_entry_row_or_length_is_refused_by_chunk_pages_too, COUNT(table_changes))
{
    const struct change *change = &table_changes[_i];
    struct strait_page_info info[PAGES];
    store_bytes(change->offset, change->bytes, change->value);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, strait_chunk_pages(chunk, chunk_size, PAGES, info));
    assert_refused(judge_repaired(chunk_size), change->expected, change->what);
    ck_assert_int_eq(change->expected == STRAIT_ERR_CODEBOOK ? STRAIT_OK : change->expected,
                     strait_chunk_pages(chunk, chunk_size, PAGES, info));
}

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

TEST_LOOP(lengths_differ_and_one_is_the_longest, COUNT(lengths))
{
    struct verdict verdict;
    write_two_pages(lengths[_i].longest, lengths[_i].a, lengths[_i].b);
    for (int v = 0; v < variant_count(); v++) {
        verify_chunk(variant(v), NULL, chunk, chunk_size, &verdict);
        ck_assert_int_eq(lengths[_i].expected, verdict.result.status);
        ck_assert_int_eq(lengths[_i].expected, verdict.result.chunk_status);
    }
}

TEST_LOOP(without_a_codebook_every_table_index_is_0, 2)
{
    struct verdict verdict;
    write_two_pages(100, 100, 60);
    store_le16(chunk + 48 + 16 * (size_t)_i + 4, 1);
    repair_metadata(chunk, chunk_size);
    verify_chunk(NULL, codebook, chunk, chunk_size, &verdict);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict.result.chunk_status);
}

/* Of 3 pages: after their lengths and rows there is room. */
TEST_FIXTURE(other_pages, NULL, NULL);

TEST(bytes_after_the_metadata_must_be_zero)
{
    struct rng rng = rng_init(2);
    setup_pages(2, &(struct shape){.page_count = 3, .rows = 1, .row_bytes = 20000});
    layout_fill(&src, &rng, PATTERN_LOW, codebook);
    encode_chunk(STRAIT_MODE_TIERED);
    for (uint32_t i = 48 + 16 * 3 + 4 * 3; i < 48 + 16 * 3 + 16; i++) {
        ck_assert_uint_eq(0, chunk[i]);
        chunk[i] = 0x10;
        assert_refused(judge_repaired(chunk_size), STRAIT_ERR_CORRUPT, "padding");
        chunk[i] = 0;
    }
    chunk_teardown();
}

/* Where a row lies: block b of page p. */
static const struct {
    uint32_t page, block;
} rows[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {3, 0}};

static uint32_t row_offset_of(int row)
{
    return rows[row].block == 0 ? ENTRY + 16 * rows[row].page : ROWS + 4 * rows[row].page;
}

TEST(pages_that_changed_places_fail_both)
{
    uint8_t before[208];
    struct rng rng = rng_init(3);
    setup_pages(2, &(struct shape){.page_count = 2, .rows = 1, .row_bytes = 64});
    layout_fill(&src, &rng, PATTERN_NOISE, codebook);
    encode_chunk(STRAIT_MODE_RAW);
    ck_assert_uint_eq(sizeof(before), chunk_size);
    memcpy(before, chunk, sizeof(before));
    memcpy(chunk + 80, before + 144, 64);
    memcpy(chunk + 144, before + 80, 64);
    memcpy(chunk + ENTRY + 8, before + ENTRY + 24, 8);
    memcpy(chunk + ENTRY + 24, before + ENTRY + 8, 8);
    struct judgement j = judge_repaired(chunk_size);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, j.verified.page_status[0]);
    ck_assert_int_eq(STRAIT_ERR_INTEGRITY, j.verified.page_status[1]);
    chunk_teardown();
}

TEST_FIXTURE(tables, chunk_setup, chunk_teardown);

TEST_LOOP(a_row_of_another_mode_is_refused, 2 * COUNT(rows))
{
    encode_chunk(coded_modes[_i % 2]);
    const uint32_t at = row_offset_of(_i / 2), mode = chunk[at] & 15;
    const uint8_t before = chunk[at];
    for (uint32_t other = 0; other < 16; other++) {
        chunk[at] = (uint8_t)((chunk[at] & 0xf0) | other);
        struct judgement j = judge_repaired(chunk_size);
        ck_assert(is_refused(&j) == (other != mode) || same_as_parts(before, chunk[at]));
        if (other == 5 || other == 9 || other > 11)
            assert_refused(j, STRAIT_ERR_UNSUPPORTED, "mode");
    }
}

TEST_LOOP(a_row_of_another_offset_is_refused, 2 * COUNT(rows))
{
    encode_chunk(coded_modes[_i % 2]);
    uint32_t at = row_offset_of(_i / 2), row = load_le32(chunk + at);
    for (int64_t by = -(int64_t)(row >> 4); by < (int64_t)(chunk_size / 16) + 3; by++) {
        store_le32(chunk + at, row + 16 * (uint32_t)by);
        struct judgement j = judge_repaired(chunk_size);
        ck_assert_int_eq(by == 0 ? STRAIT_OK : STRAIT_ERR_CORRUPT, j.verified.result.status);
    }
}

TEST_LOOP(a_wrong_page_sum_fails_its_page_alone, 8 * PAGES)
{
    uint32_t page = (uint32_t)_i / 8;
    chunk[ENTRY + 16 * page + 8 + _i % 8] ^= 4;
    assert_page_fails(judge_repaired(chunk_size), page, STRAIT_ERR_INTEGRITY, "page sum");
}

/* A page sum knows its table, even when nothing of the page is coded. */
TEST_LOOP(a_page_of_another_table_fails_alone, PAGES)
{
    uint32_t page = (uint32_t)_i;
    encode_chunk(STRAIT_MODE_TIERED);
    store_le16(chunk + ENTRY + 16 * page + 4, 0);
    struct judgement j = judge_repaired(chunk_size);
    ck_assert_uint_eq(1, j.verified.result.failed_pages);
    ck_assert_int_ne(STRAIT_OK, j.verified.page_status[page]);
}

/* Two raw pages: blocks and sums can change places. */
/* ---- Looking into a chunk -------------------------------------------------------------------------------------- */

TEST(chunk_info_tells_the_header)
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

TEST(chunk_pages_tells_lengths_tables_sums_and_modes)
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

TEST_LOOP(with_a_copy_of_the_metadata_that_of_the_chunk_is_not_looked_at, 2)
{
    uint8_t metadata[METADATA];
    struct verdict verdict;
    memcpy(metadata, chunk, METADATA);
    memset(chunk, _i, METADATA);
    for (int v = 0; v < variant_count(); v++) {
        struct strait_run run = verdict_begin(&verdict);
        run.metadata = metadata;
        layout_clear(&dst);
        ck_assert_int_eq(STRAIT_OK, strait_decode(variant(v), codebook, &dst.pages, NULL, chunk, chunk_size, &run));
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
        ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
        ck_assert_int_eq(STRAIT_OK, strait_verify(variant(v), codebook, chunk, chunk_size, &run));
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
    }
}

int main(void)
{
    print_conditions();
    return run_tests("chunk", chunk_setup, chunk_teardown);
}
