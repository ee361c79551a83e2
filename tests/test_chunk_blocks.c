/* Hostile chunks: whole blocks, written by hand, that no encoder writes. */
#include <string.h>

#include "tests/chunk_harness.h"
#include "tests/run_suite.h"

/* A chunk of one page that is written here by hand; its sums are right. */
static void craft(enum strait_block_mode mode, const uint8_t *page, uint32_t page_bytes, const uint8_t *block,
                  uint32_t size)
{
    uint32_t rounded = (size + 15) / 16 * 16;
    memset(chunk, 0, BLOCK + rounded);
    memcpy(chunk, "STRC\1", 5);
    chunk[5] = STRAIT_ELEMENT_BF16;
    chunk_size = BLOCK + rounded;
    store_le32(chunk + 8, 1);
    store_le32(chunk + 12, page_bytes);
    store_le32(chunk + 16, (uint32_t)chunk_size);
    memcpy(chunk + 24, strait_codebook_id(codebook), 16);
    store_le32(chunk + 48, BLOCK / 16 << 4 | mode);
    store_le64(chunk + 56, reference_page_sum(page, page_bytes, 0, 0));
    memcpy(chunk + BLOCK, block, size);
    repair_metadata(chunk, chunk_size);
}

static void craft_init(uint32_t page_bytes)
{
    setup_pages(&(struct shape){.page_count = 1, .rows = 1, .row_bytes = page_bytes});
}

/* n values of rank 0 as `tiered` or `top16`: sign+mantissa 0x12 each, except one, and codes of zero. */
START_TEST(a_coded_block_of_equal_values_is_corrupt_and_of_nearly_equal_ones_is_not)
{
    static const uint32_t counts[] = {50, 64, 65, 127, 128, 4096, 8192};
    uint32_t n = counts[_i / 2];
    const enum strait_block_mode mode = _i % 2 == 0 ? STRAIT_BLOCK_TOP16 : STRAIT_BLOCK_TIERED;
    uint8_t block[8192 * 2] = {0}, page[8192 * 2];
    craft_init(2 * n);
    for (int64_t other = -1; other < n; other += other < 140 || other + 200 > n ? 1 : 97) {
        memset(block, 0x12, n);
        if (other >= 0)
            block[other] = 0x92;
        for (uint32_t i = 0; i < n; i++)
            put_value(page, i, join_value(block[i], exponent_of_rank(0)));
        craft(mode, page, 2 * n, block, mode == STRAIT_BLOCK_TOP16 ? n + (n + 1) / 2 : n + (n + 3) / 4);
        struct judgement j = judge(chunk_size);
        if (other < 0)
            assert_page_fails(j, 0, STRAIT_ERR_CORRUPT, "equal values");
        else
            ck_assert_int_eq(STRAIT_OK, j.verified.result.status);
    }
    teardown();
}
END_TEST

START_TEST(a_const_block_has_a_value_a_tail_and_zeros)
{
    const uint8_t block[16] = {0x34, 0x12, 0x56};
    uint8_t page[1001];
    craft_init(sizeof(page));
    for (uint32_t i = 0; i < 500; i++)
        put_value(page, i, 0x1234);
    page[1000] = 0x56;
    craft(STRAIT_BLOCK_CONST, page, sizeof(page), block, sizeof(block));
    ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
    for (uint32_t i = 0; i < 16; i++) {
        chunk[BLOCK + i] ^= 0x08;
        assert_page_fails(judge(chunk_size), 0, i < 3 ? STRAIT_ERR_INTEGRITY : STRAIT_ERR_CORRUPT, "const");
        chunk[BLOCK + i] ^= 0x08;
    }
    block_resize(1);
    assert_refused(judge_repaired(chunk_size), STRAIT_ERR_CORRUPT, "two units");
    teardown();
}
END_TEST

START_TEST(a_raw_block_ends_in_zeros)
{
    uint8_t page[105];
    struct rng rng = rng_init(4);
    craft_init(sizeof(page));
    rng_fill(&rng, page, sizeof(page));
    craft(STRAIT_BLOCK_RAW, page, sizeof(page), page, sizeof(page));
    ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
    for (uint32_t i = 0; i < 112; i++) {
        chunk[BLOCK + i] ^= 0x80;
        assert_page_fails(judge(chunk_size), 0, i < 105 ? STRAIT_ERR_INTEGRITY : STRAIT_ERR_CORRUPT, "raw");
        chunk[BLOCK + i] ^= 0x80;
    }
    teardown();
}
END_TEST

/* Check 9: what a mode's block must take at least, and less than raw. Raw bytes: one unit for up to 16. */
START_TEST(a_block_of_impossible_size_is_refused_before_it_is_decoded)
{
    for (uint32_t bytes = 1; bytes <= 300; bytes++) {
        uint32_t n = bytes / 2, t = bytes % 2, raw = (bytes + 15) / 16;
        const uint32_t least[] = {raw, 1, (n + (n + 1) / 2 + t + 15) / 16, (n + (n + 1) / 2 + 5 + t + 15) / 16,
                                  (n + (n + 3) / 4 + t + 15) / 16};
        static const uint8_t zeros[400];
        craft_init(bytes);
        for (uint32_t units = 1; units <= raw + 1; units++) {
            bool exact = _i <= STRAIT_BLOCK_TOP16, small = _i == STRAIT_BLOCK_RAW ? units == raw : units < raw;
            bool possible = small && (exact ? units == least[_i] : units >= least[_i]);
            craft((enum strait_block_mode)_i, zeros, bytes, zeros, 16 * units);
            struct judgement j = judge(chunk_size);
            if (!possible)
                assert_refused(j, STRAIT_ERR_CORRUPT, "size");
            else if (_i > STRAIT_BLOCK_CONST)
                assert_page_fails(j, 0, STRAIT_ERR_CORRUPT, "equal values");
            else
                ck_assert_int_eq(STRAIT_OK, j.verified.result.status);
        }
        teardown();
    }
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("chunk_blocks");
    TCase *blocks = add_case(suite, "blocks");
    print_conditions();
    tcase_add_loop_test(blocks, a_coded_block_of_equal_values_is_corrupt_and_of_nearly_equal_ones_is_not, 0, 14);
    tcase_add_test(blocks, a_const_block_has_a_value_a_tail_and_zeros);
    tcase_add_test(blocks, a_raw_block_ends_in_zeros);
    tcase_add_loop_test(blocks, a_block_of_impossible_size_is_refused_before_it_is_decoded, 0, STRAIT_BLOCK_MODES);
    return run_suite(suite);
}
