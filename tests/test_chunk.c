/* Hostile chunks: any change, and what the header may not say. */
#include <string.h>

#include "tests/chunk_harness.h"
#include "tests/run_suite.h"

START_TEST(the_chunk_is_what_the_format_says)
{
    uint8_t page[LONG], before[CHUNK_MAX];
    struct anatomy anatomy;
    encode_chunk(modes[_i]);
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
END_TEST

/* ---- Any change ------------------------------------------------------------------------------------------------ */

START_TEST(every_flipped_bit_is_seen)
{
    encode_chunk(modes[_i]);
    for (uint64_t bit = 0; bit < 8 * chunk_size; bit += STRIDE) {
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct judgement j = judge(chunk_size);
        ck_assert_msg(is_refused(&j), "bit %u of byte %u", (unsigned)bit % 8, (unsigned)bit / 8);
        if (bit / 8 >= 24 && bit / 8 < METADATA)
            assert_refused(j, STRAIT_ERR_INTEGRITY, "metadata");
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
END_TEST

START_TEST(every_flipped_bit_of_the_metadata_is_seen_when_its_sum_is_repaired)
{
    uint8_t before[METADATA];
    encode_chunk(modes[_i]);
    memcpy(before, chunk, METADATA);
    for (uint64_t bit = 0; bit < 8 * METADATA; bit += STRIDE) {
        bool is_sum = bit / 64 == 5;
        chunk[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct judgement j = judge_repaired(chunk_size);
        ck_assert_msg(is_refused(&j) != is_sum, "bit %u of byte %u", (unsigned)bit % 8, (unsigned)bit / 8);
        memcpy(chunk, before, METADATA);
    }
}
END_TEST

START_TEST(every_byte_of_the_metadata_may_be_anything)
{
    uint8_t before[METADATA];
    encode_chunk(modes[1]);
    memcpy(before, chunk, METADATA);
    for (uint32_t i = (uint32_t)_i; i < METADATA; i += 8) {
        for (unsigned value = 0; value < 256; value += STRIDE) {
            chunk[i] = (uint8_t)value;
            struct judgement j = judge_repaired(chunk_size);
            ck_assert_msg(is_refused(&j) == (value != before[i] && (i < 40 || i >= 48)), "byte %u = %u", i, value);
            memcpy(chunk, before, METADATA);
        }
    }
}
END_TEST

START_TEST(random_changes_get_the_same_verdict_from_every_variant)
{
    struct rng rng = rng_init(100 + (uint64_t)_i);
    static uint8_t before[CHUNK_MAX];
    encode_chunk(modes[_i % 2]);
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
END_TEST

START_TEST(a_chunk_that_ends_early_is_truncated)
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
END_TEST

START_TEST(a_chunk_with_bytes_after_it_is_corrupt)
{
    for (uint64_t more = 1; more < 100; more++) {
        struct strait_page_info pages[PAGES];
        chunk[chunk_size + more - 1] = 0;
        assert_refused(judge(chunk_size + more), STRAIT_ERR_CORRUPT, "longer");
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, strait_chunk_pages(chunk, chunk_size + more, PAGES, pages));
    }
}
END_TEST

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

START_TEST(a_header_field_out_of_its_limits_is_refused)
{
    const struct change *change = &header_changes[_i];
    store_bytes(change->offset, change->bytes, change->value);
    assert_refused(judge_repaired(chunk_size), change->expected, change->what);
}
END_TEST

START_TEST(a_header_field_out_of_its_limits_is_refused_by_chunk_info)
{
    const struct change *change = &header_changes[_i];
    struct strait_chunk_info info, unset;
    memset(&info, CANARY, sizeof(info));
    unset = info;
    store_bytes(change->offset, change->bytes, change->value);
    enum strait_status status = strait_chunk_info(chunk, 48, &info);
    ck_assert(status == STRAIT_OK || status == change->expected);
    if (status != STRAIT_OK)
        ck_assert_mem_eq(&unset, &info, sizeof(info));
}
END_TEST

START_TEST(a_codebook_id_of_zeros_with_coded_blocks_is_corrupt)
{
    memset(chunk + 24, 0, 16);
    assert_refused(judge_repaired(chunk_size), STRAIT_ERR_CORRUPT, "no codebook");
}
END_TEST

START_TEST(a_wrong_metadata_sum_is_an_integrity_error)
{
    chunk[40 + _i] ^= 0x40;
    assert_refused(judge(chunk_size), STRAIT_ERR_INTEGRITY, "sum");
}
END_TEST

/* Each is refused; of two, the first one in the order of section 6. */
static void spoil_magic(void)
{
    chunk[0] = 'X';
}
static void spoil_version(void)
{
    chunk[4] = 9;
}
static void spoil_reserved(void)
{
    chunk[7] = 1;
}
static void spoil_chunk_bytes(void)
{
    store_le32(chunk + 16, (uint32_t)chunk_size + 16);
}
static void spoil_sum(void)
{
    chunk[40] ^= 1;
}
static void spoil_length(void)
{
    store_le32(chunk + 48 + 16 * PAGES, 0);
}
static void spoil_mode(void)
{
    chunk[48 + 16 * 2] |= 15;
}
static void spoil_id(void)
{
    chunk[30] ^= 1;
}
static void spoil_page(void)
{
    chunk[chunk_size - 1] ^= 1;
}

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

START_TEST(the_first_failing_check_gives_the_error)
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
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("chunk");
    TCase *any = add_case(suite, "any change"), *header = add_case(suite, "header");
    print_conditions();
    tcase_add_checked_fixture(any, setup, teardown);
    tcase_add_checked_fixture(header, setup, teardown);
    tcase_add_loop_test(any, the_chunk_is_what_the_format_says, 0, COUNT(modes));
    tcase_add_loop_test(any, every_flipped_bit_is_seen, 0, COUNT(modes));
    tcase_add_loop_test(any, every_flipped_bit_of_the_metadata_is_seen_when_its_sum_is_repaired, 0, COUNT(modes));
    tcase_add_loop_test(any, every_byte_of_the_metadata_may_be_anything, 0, 8);
    tcase_add_loop_test(any, random_changes_get_the_same_verdict_from_every_variant, 0, 4);
    tcase_add_test(any, a_chunk_that_ends_early_is_truncated);
    tcase_add_test(any, a_chunk_with_bytes_after_it_is_corrupt);
    tcase_add_loop_test(header, a_header_field_out_of_its_limits_is_refused, 0, COUNT(header_changes));
    tcase_add_loop_test(header, a_header_field_out_of_its_limits_is_refused_by_chunk_info, 0, COUNT(header_changes));
    tcase_add_test(header, a_codebook_id_of_zeros_with_coded_blocks_is_corrupt);
    tcase_add_loop_test(header, a_wrong_metadata_sum_is_an_integrity_error, 0, 8);
    tcase_add_loop_test(header, the_first_failing_check_gives_the_error, 0, COUNT(steps));
    return run_suite(suite);
}
