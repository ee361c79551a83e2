/* The public calls: what was encoded comes back, and in the mode that the format asks for. */
#include <check.h>
#include <string.h>

#include "internal/element.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static struct strait_codebook *codebook;

static void setup(void)
{
    codebook = test_codebook();
}

static void teardown(void)
{
    strait_codebook_destroy(codebook);
}

static const enum strait_mode modes[] = {STRAIT_MODE_AUTO,   STRAIT_MODE_RAW,  STRAIT_MODE_TOP16,
                                         STRAIT_MODE_TIERED, STRAIT_MODE_BASE, STRAIT_MODE_SPLIT};

static const enum strait_mode coded_modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

static uint64_t units_of(uint64_t bytes)
{
    return (bytes + 15) / 16;
}

/* Encodes and decodes one page of these bytes with every variant. Returns the chunk, to be freed. */
static uint8_t *page_round_trip(const struct asked *asked, uint32_t table, const void *bytes, uint32_t size,
                                struct verdict *verdict)
{
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = size, .table = table};
    struct layout src;
    layout_init(&src, element_bytes(asked->element), &shape, 1, NULL, 1);
    layout_write(&src, 0, bytes);
    uint8_t *chunk = round_trip(asked, &src, verdict);
    layout_fini(&src);
    return chunk;
}

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

/* The block mode of a one-block page. */
static enum strait_block_mode mode_of(const struct verdict *verdict, uint32_t n)
{
    for (int m = 0; m < STRAIT_BLOCK_MODES; m++)
        if (verdict->result.values[m] == n)
            return (enum strait_block_mode)m;
    ck_abort_msg("the block has no mode");
}

/* Bytes of one block in a chunk of one page. */
static uint64_t coded_bytes(const struct verdict *verdict)
{
    return verdict->result.bytes - 64;
}

/* `escapes` values of this rank, from a random place on, the others of rank 0; not all equal. */
static void fill_escapes(struct rng *rng, uint8_t *bytes, uint32_t n, uint32_t escapes, uint8_t rank)
{
    uint8_t ranking[256];
    uint32_t from = rng_below(rng, n);
    test_ranking(ranking, 0);
    for (uint32_t i = 0; i < n; i++)
        put_value(bytes, (from + i) % n, join_value((uint8_t)(i + 1), ranking[i < escapes ? rank : 0]));
}

static uint64_t escaped_bytes(enum strait_mode mode, uint64_t n, uint64_t t, uint64_t escapes)
{
    if (mode == STRAIT_MODE_TOP16)
        return n + (n + 1) / 2 + t + (escapes > 0 ? 2 + 3 * escapes : 0);
    return n + (n + 3) / 4 + t + (escapes + 3) / 4 + (escapes + 1) / 2 + escapes;
}

static void check_escapes(enum strait_mode mode, uint32_t n, uint32_t t, uint32_t escapes)
{
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, mode};
    const enum strait_block_mode top16 = escapes > 0 ? STRAIT_BLOCK_TOP16_ESCAPES : STRAIT_BLOCK_TOP16;
    const enum strait_block_mode coded = mode == STRAIT_MODE_TOP16 ? top16 : STRAIT_BLOCK_TIERED;
    struct rng rng = rng_init(500 + n + escapes);
    uint8_t bytes[STRAIT_BLOCK_VALUES * 2 + 1] = {0};
    struct verdict verdict;
    uint64_t used = escaped_bytes(mode, n, t, escapes), raw = units_of(2 * n + t);
    bool shrinks = units_of(used) < raw;
    fill_escapes(&rng, bytes, n, escapes, 21);
    free(page_round_trip(&asked, 0, bytes, 2 * n + t, &verdict));
    ck_assert_int_eq(shrinks ? coded : STRAIT_BLOCK_RAW, mode_of(&verdict, n));
    ck_assert_uint_eq(16 * (shrinks ? units_of(used) : raw), coded_bytes(&verdict));
    ck_assert_uint_eq(shrinks ? n : 0, verdict.stats[0].values);
    ck_assert_uint_eq(shrinks ? escapes : 0, verdict.stats[0].escapes);
}

/* The most escapes with which a block still shrinks, and -1 when it never does. */
static int64_t escape_limit(enum strait_mode mode, uint32_t n, uint32_t t)
{
    int64_t escapes = n;
    while (escapes >= 0 && units_of(escaped_bytes(mode, n, t, (uint64_t)escapes)) >= units_of(2 * n + t))
        escapes--;
    return escapes;
}

/* n = 1 is one value, equal to itself */
START_TEST(short_blocks_are_coded_exactly_while_they_shrink)
{
    for (uint32_t n = 2; n <= 48; n++)
        for (uint32_t t = 0; t <= 1; t++)
            for (uint32_t escapes = 0; escapes <= n; escapes++)
                check_escapes(coded_modes[_i], n, t, escapes);
}
END_TEST

static const uint32_t limit_sizes[] = {64, 65, 127, 128, 1000, 4096, 8190, 8191, 8192};

START_TEST(blocks_are_coded_up_to_the_last_escape_that_shrinks)
{
    uint32_t n = limit_sizes[_i / 2], t = n < STRAIT_BLOCK_VALUES ? (uint32_t)_i / 2 % 2 : 0;
    enum strait_mode mode = coded_modes[_i % 2];
    int64_t limit = escape_limit(mode, n, t);
    ck_assert_int_ge(limit, 1);
    ck_assert_int_lt(limit, n);
    const uint32_t counts[] = {0, 1, 2, 3, (uint32_t)limit - 1, (uint32_t)limit, (uint32_t)limit + 1, n - 1, n};
    for (int k = 0; k < COUNT(counts); k++)
        check_escapes(mode, n, t, counts[k]);
}
END_TEST

/* All values of one rank, so that the size of the block tells which streams they are in: 2/3, 5/6, 15/16, 20/21. */
START_TEST(a_rank_takes_the_streams_that_the_format_says)
{
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, coded_modes[_i % 2]};
    uint32_t table = (uint32_t)_i / 2, n = 4096;
    uint8_t ranking[256], bytes[2 * 4096];
    test_ranking(ranking, table);
    for (uint32_t r = 0; r < 256; r++) {
        struct verdict verdict;
        uint64_t tiered = n + n / 4 + (r >= 3 ? n / 4 : 0) + (r >= 6 ? n / 2 : 0) + (r >= 21 ? n : 0);
        uint64_t top16 = n + n / 2 + (r >= 16 ? 2 + 3 * n : 0);
        uint64_t used = asked.mode == STRAIT_MODE_TOP16 ? top16 : tiered;
        for (uint32_t i = 0; i < n; i++)
            put_value(bytes, i, join_value((uint8_t)i, ranking[r]));
        free(page_round_trip(&asked, table, bytes, sizeof(bytes), &verdict));
        ck_assert_uint_eq(used < 2 * n ? used : 2 * n, coded_bytes(&verdict));
    }
}
END_TEST

START_TEST(a_block_of_one_value_is_const_where_that_is_shorter)
{
    const struct asked asked = {codebook, (enum strait_element)(_i % 6), modes[_i / 6]};
    static const uint16_t values[] = {0x0000, 0x8000, 0x3f80, 0x7fc1, 0xffff};
    for (uint32_t size = 1; size <= 16384; size += size < 100 ? 1 : 2713) {
        for (int k = 0; k < COUNT(values); k++) {
            uint8_t bytes[16384];
            struct verdict verdict;
            for (uint32_t i = 0; i < size / 2; i++)
                put_value(bytes, i, values[k]);
            bytes[size - 1] = size % 2 != 0 ? 0x5a : bytes[size - 1];
            bool is_const = size > 16 && asked.mode != STRAIT_MODE_RAW;
            free(page_round_trip(&asked, 0, bytes, size, &verdict));
            ck_assert_int_eq(is_const ? STRAIT_BLOCK_CONST : STRAIT_BLOCK_RAW, mode_of(&verdict, size / 2));
            ck_assert_uint_eq(is_const ? 16 : 16 * units_of(size), coded_bytes(&verdict));
            ck_assert_uint_eq(0, verdict.stats[0].values);
        }
    }
}
END_TEST

START_TEST(a_block_with_one_other_value_at_the_start_end_or_middle_is_not_const)
{
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[_i % COUNT(modes)]};
    uint32_t place = (uint32_t)_i / COUNT(modes);
    for (uint32_t n = 9; n <= STRAIT_BLOCK_VALUES; n += n < 140 ? 1 : 1150) {
        const uint32_t places[] = {0, 1, n / 2, n - 2, n - 1};
        for (int bit = 0; bit < 16; bit += 5) {
            uint8_t bytes[STRAIT_BLOCK_VALUES * 2];
            struct verdict verdict;
            for (uint32_t i = 0; i < n; i++)
                put_value(bytes, i, 0x3f80);
            put_value(bytes, places[place], (uint16_t)(0x3f80 ^ 1u << bit));
            free(page_round_trip(&asked, 0, bytes, 2 * n, &verdict));
            ck_assert_int_ne(STRAIT_BLOCK_CONST, mode_of(&verdict, n));
        }
    }
}
END_TEST

START_TEST(raw_asked_is_raw)
{
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW};
    struct rng rng = rng_init(510);
    uint8_t ranking[256], bytes[50001];
    struct verdict verdict;
    test_ranking(ranking, 0);
    fill_pattern(&rng, (enum pattern)_i, ranking, bytes, sizeof(bytes));
    free(page_round_trip(&asked, 0, bytes, sizeof(bytes), &verdict));
    ck_assert_uint_eq(25000, verdict.result.values[STRAIT_BLOCK_RAW]);
    ck_assert_uint_eq(48 + 16 + 16 + 16 * units_of(sizeof(bytes)), verdict.result.bytes); /* header, entry, 3 rows */
}
END_TEST

START_TEST(auto_is_tiered)
{
    const struct asked any = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_AUTO};
    const struct asked tiered = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED};
    struct rng rng = rng_init(511);
    uint8_t ranking[256], bytes[50001];
    struct verdict a, b;
    test_ranking(ranking, 0);
    fill_pattern(&rng, (enum pattern)_i, ranking, bytes, sizeof(bytes));
    uint8_t *x = page_round_trip(&any, 0, bytes, sizeof(bytes), &a);
    uint8_t *y = page_round_trip(&tiered, 0, bytes, sizeof(bytes), &b);
    ck_assert_uint_eq(a.result.bytes, b.result.bytes);
    ck_assert_mem_eq(x, y, a.result.bytes);
    free(x);
    free(y);
}
END_TEST

START_TEST(no_chunk_is_longer_than_its_pages_and_tables)
{
    struct rng rng = rng_init(512 + (uint64_t)_i);
    for (int k = 0; k < 50; k++) {
        const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[rng_below(&rng, COUNT(modes))]};
        uint32_t size = 1 + rng_below(&rng, 40000);
        uint8_t ranking[256], *bytes = malloc(size);
        struct verdict verdict;
        test_ranking(ranking, 1);
        fill_pattern(&rng, (enum pattern)rng_below(&rng, PATTERNS), ranking, bytes, size);
        free(page_round_trip(&asked, rng_below(&rng, TEST_TABLES), bytes, size, &verdict));
        uint64_t rows = 4 * ((size + 16383) / 16384 - 1);
        ck_assert_uint_le(verdict.result.bytes, 16 * units_of(64 + rows) + 16 * units_of(size));
        free(bytes);
    }
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("codec");
    TCase *trips = add_case(suite, "round trips");
    TCase *choice = add_case(suite, "modes");
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
    tcase_add_loop_test(trips, without_a_codebook_other_elements_may_still_become_const, 0, COUNT(modes) - 1);
    tcase_add_checked_fixture(choice, setup, teardown);
    tcase_add_loop_test(choice, short_blocks_are_coded_exactly_while_they_shrink, 0, COUNT(coded_modes));
    tcase_add_loop_test(choice, blocks_are_coded_up_to_the_last_escape_that_shrinks, 0, 2 * COUNT(limit_sizes));
    tcase_add_loop_test(choice, a_rank_takes_the_streams_that_the_format_says, 0, 2 * TEST_TABLES);
    tcase_add_loop_test(choice, a_block_of_one_value_is_const_where_that_is_shorter, 0, 6 * COUNT(modes));
    tcase_add_loop_test(choice, a_block_with_one_other_value_at_the_start_end_or_middle_is_not_const, 0,
                        5 * COUNT(modes));
    tcase_add_loop_test(choice, raw_asked_is_raw, 0, PATTERNS);
    tcase_add_loop_test(choice, auto_is_tiered, 0, PATTERNS);
    tcase_add_loop_test(choice, no_chunk_is_longer_than_its_pages_and_tables, 0, 4);
    return run_suite(suite);
}
