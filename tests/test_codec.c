/* The public calls: what was encoded comes back. */
#include <string.h>

#include "tests/codec_harness.h"
#include "tests/run_suite.h"

static const uint32_t sizes[] = {1,     2,     3,     7,     8,     9,     14,    15,    16,    17,
                                 18,    19,    31,    32,    33,    62,    64,    66,    127,   128,
                                 129,   130,   8191,  8192,  8193,  16381, 16382, 16383, 16384, 16385,
                                 16386, 16387, 32767, 32768, 32769, 49150, 49153, 65536};

START_TEST(pages_of_every_size_and_pattern_come_back_from_every_variant)
{
    struct rng rng = rng_init((uint64_t)_i);
    uint32_t size = sizes[_i];
    uint8_t ranking[256], *bytes = malloc(size);
    for (int k = 0; k < COUNT(modes) * PATTERNS; k++) {
        const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[k % COUNT(modes)]};
        uint32_t table = rng_below(&rng, TEST_TABLES);
        struct verdict verdict;
        test_ranking(ranking, table);
        fill_pattern(&rng, (enum pattern)(k / COUNT(modes)), ranking, bytes, size);
        free(page_round_trip(&asked, table, bytes, size, &verdict));
        uint64_t values = 0;
        for (int m = 0; m < STRAIT_BLOCK_MODES; m++)
            values += verdict.result.values[m];
        ck_assert_uint_eq(size / 2, values);
    }
    free(bytes);
}
END_TEST

/* ... as values and as bytes, for a size may mean either */
START_TEST(values_of_every_element_type_come_back_from_every_variant)
{
    struct rng rng = rng_init(100 + (uint64_t)_i);
    const struct asked asked = {codebook, (enum strait_element)(_i % 6), modes[_i / 6]};
    for (int k = 0; k < COUNT(sizes) + 6; k++) {
        static const uint32_t of_blocks[] = {8191 * 2, 8192 * 2, 8193 * 2, 8192 * 4, 8192 * 4 + 1, 8192 * 4 + 2};
        uint32_t size = k < COUNT(sizes) ? sizes[k] : of_blocks[k - COUNT(sizes)];
        uint8_t *bytes = malloc(size);
        struct verdict verdict;
        rng_fill(&rng, bytes, size);
        if (k % 3 == 0)
            memset(bytes, 7, size);
        free(page_round_trip(&asked, 0, bytes, size, &verdict));
        if (asked.element != STRAIT_ELEMENT_BF16)
            ck_assert_uint_eq(size / 2,
                              verdict.result.values[STRAIT_BLOCK_RAW] + verdict.result.values[STRAIT_BLOCK_CONST]);
        free(bytes);
    }
}
END_TEST

START_TEST(every_one_of_65536_bit_patterns_comes_back)
{
    static uint8_t bytes[2 * 65536];
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[_i % COUNT(modes)]};
    uint32_t table = (uint32_t)(_i / COUNT(modes));
    struct rng rng = rng_init(200);
    struct verdict verdict;
    for (uint32_t i = 0; i < 65536; i++)
        put_value(bytes, i, (uint16_t)i);
    free(page_round_trip(&asked, table, bytes, sizeof(bytes), &verdict));
    for (uint32_t i = 65535; i > 0; i--) {
        uint32_t other = rng_below(&rng, i + 1);
        uint16_t value = get_value(bytes, i);
        put_value(bytes, i, get_value(bytes, other));
        put_value(bytes, other, value);
    }
    free(page_round_trip(&asked, table, bytes, sizeof(bytes), &verdict));
}
END_TEST

static const struct special {
    const char *name;
    uint16_t first, mask; /* value = first ^ (random & mask) */
} specials[] = {
    {"NaN payloads", 0x7f81, 0x807e},        {"infinities", 0x7f80, 0x8000},  {"subnormals", 0x0001, 0x807e},
    {"zeros of both signs", 0x0000, 0x8000}, {"the largest", 0x7f7f, 0x8000}, {"the smallest normal", 0x0080, 0x8000},
    {"NaNs and zeros", 0x0000, 0x7fff},
};

START_TEST(nan_payloads_infinities_subnormals_and_negative_zero_come_back)
{
    const struct special *special = &specials[_i / COUNT(modes)];
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[_i % COUNT(modes)]};
    struct rng rng = rng_init(300 + (uint64_t)_i);
    for (uint32_t size = 2; size <= 20000; size = size * 2 + rng_below(&rng, 9)) {
        for (uint32_t table = 0; table < TEST_TABLES; table++) {
            uint8_t bytes[20000];
            struct verdict verdict;
            for (uint32_t i = 0; i < size / 2; i++)
                put_value(bytes, i, special->first ^ (rng_next(&rng) & special->mask));
            bytes[size - 1] = 0x80;
            free(page_round_trip(&asked, table, bytes, size, &verdict));
        }
    }
}
END_TEST

START_TEST(chunks_of_megabytes_come_back)
{
    const struct shape shapes[] = {{.page_count = 3, .rows = 1, .row_bytes = 400000, .table = 1},
                                   {.page_count = 3, .rows = 25, .row_bytes = 16384, .row_gap = 64, .table = 2}};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[_i]};
    struct rng rng = rng_init(400);
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 64, shapes, 2, NULL, 3);
    ck_assert_uint_ge(strait_encode_bound(&src.pages), 2 << 20);
    layout_fill(&src, &rng, PATTERN_RARE, codebook);
    free(round_trip(&asked, &src, &verdict));
    layout_fini(&src);
}
END_TEST

START_TEST(the_longest_page_comes_back)
{
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = STRAIT_PAGE_BYTES_MAX};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED};
    struct rng rng = rng_init(401);
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 64, &shape, 1, NULL, 1);
    layout_fill(&src, &rng, PATTERN_FALLING, codebook);
    free(round_trip(&asked, &src, &verdict));
    ck_assert_uint_eq(STRAIT_PAGE_BYTES_MAX, verdict.result.values[STRAIT_BLOCK_TIERED] * 2);
    layout_fini(&src);
}
END_TEST

START_TEST(no_codebook_carries_pages_raw)
{
    const struct asked asked = {NULL, (enum strait_element)_i, STRAIT_MODE_RAW};
    struct rng rng = rng_init(402);
    struct strait_chunk_info info;
    struct verdict verdict;
    uint8_t bytes[20001];
    rng_fill(&rng, bytes, sizeof(bytes));
    uint8_t *chunk = page_round_trip(&asked, 0, bytes, sizeof(bytes), &verdict);
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(chunk, verdict.result.bytes, &info));
    ck_assert(is_filled(info.codebook_id, sizeof(info.codebook_id), 0));
    ck_assert_int_eq(_i, info.element);
    free(chunk);
}
END_TEST

START_TEST(without_a_codebook_other_elements_may_still_become_const)
{
    const struct asked asked = {NULL, STRAIT_ELEMENT_FP32, modes[_i]};
    struct verdict verdict;
    uint8_t bytes[20004];
    memset(bytes, 0x41, sizeof(bytes));
    free(page_round_trip(&asked, 0, bytes, sizeof(bytes), &verdict));
    ck_assert_uint_eq(sizeof(bytes) / 2,
                      verdict.result.values[asked.mode == STRAIT_MODE_RAW ? STRAIT_BLOCK_RAW : STRAIT_BLOCK_CONST]);
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("codec");
    TCase *trips = add_case(suite, "round trips");
    print_conditions();
    tcase_add_checked_fixture(trips, setup, teardown);
    tcase_add_loop_test(trips, pages_of_every_size_and_pattern_come_back_from_every_variant, 0, COUNT(sizes));
    tcase_add_loop_test(trips, values_of_every_element_type_come_back_from_every_variant, 0, 6 * COUNT(modes));
    tcase_add_loop_test(trips, every_one_of_65536_bit_patterns_comes_back, 0, TEST_TABLES * COUNT(modes));
    tcase_add_loop_test(trips, nan_payloads_infinities_subnormals_and_negative_zero_come_back, 0,
                        COUNT(specials) * COUNT(modes));
    tcase_add_loop_test(trips, chunks_of_megabytes_come_back, 0, COUNT(modes));
    tcase_add_test(trips, the_longest_page_comes_back);
    tcase_add_loop_test(trips, no_codebook_carries_pages_raw, 0, 6);
    tcase_add_loop_test(trips, without_a_codebook_other_elements_may_still_become_const, 0,
                        COUNT(modes) - 1); /* not of SPLIT */
    return run_suite(suite);
}
