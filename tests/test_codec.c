/* The public calls: what comes back, which mode a block gets, what is counted, what is refused. */
#include <check.h>
#include <pthread.h>
#include <string.h>

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

/* ---- Round trips ----------------------------------------------------------------------------------------------- */

/* What addresses of an element's values are multiples of. */
static uint32_t alignment_of(enum strait_element element)
{
    static const uint32_t alignments[] = {1, 2, 2, 4, 1, 1};
    return alignments[element];
}

/* One page of these bytes, through every variant and back. */
static uint8_t *page_round_trip(const struct asked *asked, uint32_t table, const void *bytes, uint32_t size,
                                struct verdict *verdict)
{
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = size, .table = table};
    struct layout src;
    layout_init(&src, alignment_of(asked->element), &shape, 1, NULL, 1);
    layout_write(&src, 0, bytes);
    uint8_t *chunk = round_trip(asked, &src, verdict);
    layout_fini(&src);
    return chunk;
}

static const uint32_t sizes[] = {1,     2,     3,     7,     8,     9,     14,    15,    16,    17,
                                 18,    19,    31,    32,    33,    62,    64,    66,    127,   128,
                                 129,   130,   8191,  8192,  8193,  16381, 16382, 16383, 16384, 16385,
                                 16386, 16387, 32767, 32768, 32769, 49150, 49153, 65536};
static const enum strait_mode modes[] = {STRAIT_MODE_AUTO,   STRAIT_MODE_RAW,  STRAIT_MODE_TOP16,
                                         STRAIT_MODE_TIERED, STRAIT_MODE_BASE, STRAIT_MODE_SPLIT};

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

/* ---- Which mode a block gets ----------------------------------------------------------------------------------- */

static uint64_t units_of(uint64_t bytes)
{
    return (bytes + 15) / 16;
}

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

static const enum strait_mode coded_modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

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

/* ---- What is counted ------------------------------------------------------------------------------------------- */

struct counted {
    uint64_t values, escapes;
};

/* What a table's statistics must be when all blocks are coded. */
static struct counted count_escapes(const uint8_t *bytes, uint32_t n, uint32_t table, uint32_t first_escape)
{
    uint8_t ranking[256], rank[256];
    struct counted counted = {.values = n};
    test_ranking(ranking, table);
    for (unsigned r = 0; r < 256; r++)
        rank[ranking[r]] = (uint8_t)r;
    for (uint32_t i = 0; i < n; i++)
        counted.escapes += rank[get_value(bytes, i) >> 7 & 255] >= first_escape;
    return counted;
}

START_TEST(statistics_count_values_and_escapes_per_table)
{
    const struct shape shapes[] = {{.page_count = 2, .rows = 1, .row_bytes = 40000, .table = 3},
                                   {.page_count = 2, .rows = 1, .row_bytes = 20000, .table = 1}};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, coded_modes[_i]};
    struct counted expected[TEST_TABLES] = {{0, 0}};
    struct rng rng = rng_init(600);
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 2, shapes, 2, NULL, 2);
    layout_fill(&src, &rng, PATTERN_RARE, codebook);
    for (uint32_t p = 0; p < 4; p++) {
        uint8_t page[40000];
        uint32_t table = shapes[p / 2].table;
        layout_read(&src, p, page);
        struct counted one =
            count_escapes(page, layout_page_bytes(&src, p) / 2, table, asked.mode == STRAIT_MODE_TOP16 ? 16 : 21);
        expected[table].values += one.values;
        expected[table].escapes += one.escapes;
    }
    free(round_trip(&asked, &src, &verdict));
    for (int t = 0; t < TEST_TABLES; t++) {
        ck_assert_uint_eq(expected[t].values, verdict.stats[t].values);
        ck_assert_uint_eq(expected[t].escapes, verdict.stats[t].escapes);
    }
    layout_fini(&src);
}
END_TEST

/* Also for a caller who knows the struct as it was before. */
START_TEST(caching_changes_no_byte)
{
    const struct shape shape = {.page_count = 40, .rows = 1, .row_bytes = 32768, .table = 1};
    struct rng rng = rng_init(602);
    struct layout src;
    layout_init(&src, 64, &shape, 1, NULL, 40);
    layout_fill(&src, &rng, PATTERN_LOW, codebook);
    uint64_t bound = strait_encode_bound(&src.pages);
    uint8_t *first = malloc(bound), *chunk = malloc(bound);
    for (int mode = STRAIT_MODE_RAW; mode <= STRAIT_MODE_TIERED; mode++) {
        const struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, mode, codebook};
        uint64_t bytes = 0;
        for (uint32_t caching = 0; caching <= STRAIT_CACHING_PASS + 1; caching++) {
            bool old = caching > STRAIT_CACHING_PASS;
            struct strait_result result;
            struct strait_run run = {.size = old ? offsetof(struct strait_run, caching) : sizeof(run),
                                     .result = &result,
                                     .caching = caching};
            uint8_t *dst = caching == 0 ? first : chunk;
            memset(dst, (int)caching, bound);
            ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, dst, bound, &src.pages, &run));
            bytes = caching == 0 ? result.bytes : bytes;
            ck_assert_uint_eq(bytes, result.bytes);
            ck_assert(memcmp(first, dst, bytes) == 0);
            ck_assert_int_eq(STRAIT_OK, strait_decode(NULL, codebook, &src.pages, NULL, dst, bytes, &run));
            ck_assert_int_eq(STRAIT_OK, result.status);
        }
    }
    free(first);
    free(chunk);
    layout_fini(&src);
}
END_TEST

START_TEST(statistics_are_added_to_and_tables_beyond_are_not_counted)
{
    const struct shape shapes[] = {{.page_count = 1, .rows = 1, .row_bytes = 4000, .table = 1},
                                   {.page_count = 1, .rows = 1, .row_bytes = 4000, .table = 2}};
    const struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, codebook};
    struct strait_class_stats stats[3] = {{1, 2}, {3, 4}, {5, 6}};
    struct strait_result result;
    struct strait_run run = {.size = sizeof(run), .result = &result, .class_stats = stats, .class_count = 2};
    struct rng rng = rng_init(601);
    struct layout src;
    layout_init(&src, 2, shapes, 2, NULL, 1);
    layout_fill(&src, &rng, PATTERN_LOW, codebook);
    uint8_t *chunk = malloc(strait_encode_bound(&src.pages));
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &params, chunk, strait_encode_bound(&src.pages), &src.pages, &run));
    ck_assert_uint_eq(1, stats[0].values);
    ck_assert_uint_eq(2003, stats[1].values);
    ck_assert_uint_eq(4, stats[1].escapes);
    ck_assert_uint_eq(5, stats[2].values);
    free(chunk);
    layout_fini(&src);
}
END_TEST

/* ---- Buffers --------------------------------------------------------------------------------------------------- */

static const struct shape buffer_shapes[] = {{.page_count = 1, .rows = 1, .row_bytes = 2},
                                             {.page_count = 5, .rows = 1, .row_bytes = 64},
                                             {.page_count = 2, .rows = 3, .row_bytes = 16390, .row_gap = 2},
                                             {.page_count = 3, .rows = 1, .row_bytes = 16384}};

/* A chunk of raw pages of one length: nothing is longer. */
static uint64_t raw_chunk_bytes(uint64_t pages, uint64_t page_bytes)
{
    uint64_t rows = (page_bytes + 16383) / 16384 - 1;
    return 16 * units_of(48 + 16 * pages + 4 * pages * rows) + 16 * pages * units_of(page_bytes);
}

START_TEST(a_buffer_of_exactly_the_bound_is_enough_and_one_byte_less_is_not)
{
    const struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW, codebook};
    const struct shape *shape = &buffer_shapes[_i];
    struct rng rng = rng_init(700);
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 2, shape, 1, NULL, shape->page_count);
    layout_fill(&src, &rng, PATTERN_NOISE, codebook);
    uint64_t bound = strait_encode_bound(&src.pages);
    for (uint64_t short_by = 0; short_by <= bound; short_by = 2 * short_by + 1) {
        struct strait_run run = verdict_begin(&verdict);
        struct guarded dst;
        guarded_init(&dst, bound - short_by);
        ck_assert_int_eq(short_by == 0 ? STRAIT_OK : STRAIT_ERR_NO_SPACE,
                         strait_encode(NULL, &params, dst.bytes, bound - short_by, &src.pages, &run));
        ck_assert_int_eq(short_by == 0 ? STRAIT_OK : STATUS_UNSET, verdict.result.status);
        ck_assert(short_by == 0 || is_filled(dst.bytes, dst.size, CANARY));
        guarded_fini(&dst);
    }
    ck_assert_uint_eq(raw_chunk_bytes(shape->page_count, layout_page_bytes(&src, 0)), bound);
    layout_fini(&src);
}
END_TEST

START_TEST(chunks_may_lie_at_any_address)
{
    const struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, codebook};
    const struct shape shapes[] = {{.page_count = 2, .rows = 1, .row_bytes = 20003, .page_gap = 1, .table = 1},
                                   {.page_count = 2, .rows = 1, .row_bytes = 300, .table = 2}};
    const struct strait_codec *codec = variant(_i);
    struct rng rng = rng_init(701);
    struct layout src, dst;
    struct verdict verdict;
    if (codec == NULL)
        return;
    layout_init(&src, 2, shapes, 2, NULL, 2);
    layout_mirror(&dst, &src);
    layout_fill(&src, &rng, PATTERN_FALLING, codebook);
    uint64_t bound = strait_encode_bound(&src.pages);
    for (uint32_t shift = 0; shift < 64; shift++) {
        struct strait_run run = verdict_begin(&verdict);
        struct guarded room;
        guarded_init(&room, bound + 64 - shift); /* the chunk ends before its buffer does */
        ck_assert_int_eq(STRAIT_OK, strait_encode(codec, &params, room.bytes, bound, &src.pages, &run));
        ck_assert(is_filled(room.bytes + bound, 64 - shift, CANARY));
        uint64_t size = verdict.result.bytes;
        uint8_t *end = room.bytes + room.size - shift % 16;
        memmove(end - size, room.bytes, size);
        layout_clear(&dst);
        decode_layout(codec, codebook, &dst, NULL, end - size, size, &verdict);
        ck_assert_int_eq(STRAIT_OK, verdict.result.status);
        ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
        guarded_fini(&room);
    }
    layout_fini(&src);
    layout_fini(&dst);
}
END_TEST

START_TEST(scratch_of_the_caller_changes_no_byte)
{
    const struct shape shape = {.page_count = 2, .rows = 11, .row_bytes = 3000, .row_gap = 2};
    const struct strait_codec *codec = variant(_i);
    struct rng rng = rng_init(702);
    struct layout src, dst;
    struct verdict a, b;
    if (codec == NULL)
        return;
    layout_init(&src, 2, &shape, 1, NULL, 2);
    layout_mirror(&dst, &src);
    layout_fill(&src, &rng, PATTERN_FALLING, codebook);
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED};
    uint8_t *chunk = encode_layout(codec, &asked, &src, &a);
    struct guarded scratch, out;
    ck_assert_uint_eq(0, strait_scratch_size(codec) % 64);
    guarded_init(&scratch, strait_scratch_size(codec));
    guarded_init(&out, strait_encode_bound(&src.pages));
    struct strait_encode_params params = {sizeof(params), STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, codebook};
    struct strait_run run = verdict_begin(&b);
    run.scratch = scratch.bytes;
    run.scratch_size = scratch.size;
    ck_assert_int_eq(STRAIT_OK, strait_encode(codec, &params, out.bytes, out.size, &src.pages, &run));
    ck_assert_mem_eq(&a, &b, sizeof(a));
    ck_assert_mem_eq(chunk, out.bytes, a.result.bytes);
    ck_assert_int_eq(STRAIT_OK, strait_decode(codec, codebook, &dst.pages, NULL, chunk, a.result.bytes, &run));
    ck_assert_int_eq(STRAIT_OK, b.result.status);
    ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
    guarded_fini(&scratch);
    guarded_fini(&out);
    free(chunk);
    layout_fini(&src);
    layout_fini(&dst);
}
END_TEST

/* ---- Threads --------------------------------------------------------------------------------------------------- */

enum { THREAD_PAGES = 8, THREAD_ROUNDS = 12 };

struct worker {
    const struct strait_codec *codec;
    const struct asked *asked;
    const struct layout *src, *dst;
    const uint8_t *chunk;
    uint64_t size;
    uint32_t first; /* every second page from here */
    bool good;
};

static bool encode_same(const struct worker *w)
{
    struct verdict verdict;
    uint8_t *chunk = encode_layout(w->codec, w->asked, w->src, &verdict);
    bool same = chunk != NULL && verdict.result.bytes == w->size && memcmp(chunk, w->chunk, w->size) == 0;
    free(chunk);
    return same;
}

/* Decodes its half of the pages into the memory that both threads share. */
static bool decode_half(const struct worker *w)
{
    uint32_t ids[THREAD_PAGES / 2];
    struct layout half = *w->dst;
    struct verdict verdict;
    for (uint32_t i = 0; i < THREAD_PAGES / 2; i++)
        ids[i] = 2 * i + w->first;
    half.pages.ids = ids;
    half.pages.id_count = THREAD_PAGES / 2;
    half.pages.regions = half.regions;
    decode_layout(w->codec, w->asked->codebook, &half, ids, w->chunk, w->size, &verdict);
    return verdict.returned == STRAIT_OK && verdict.result.status == STRAIT_OK;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    w->good = true;
    for (int i = 0; i < THREAD_ROUNDS; i++)
        w->good = w->good && encode_same(w) && decode_half(w);
    return NULL;
}

START_TEST(two_threads_on_disjoint_pages_of_one_chunk_do_as_one)
{
    const struct shape shape = {.page_count = THREAD_PAGES, .rows = 3, .row_bytes = 12002, .row_gap = 6, .table = 2};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, coded_modes[_i % 2]};
    struct worker workers[2];
    struct rng rng = rng_init(800);
    struct layout src, dst;
    struct verdict verdict;
    pthread_t threads[2];
    if (variant(_i / 2) == NULL)
        return;
    layout_init(&src, 2, &shape, 1, NULL, THREAD_PAGES);
    layout_mirror(&dst, &src);
    layout_fill(&src, &rng, PATTERN_RARE, codebook);
    uint8_t *chunk = encode_layout(variant(0), &asked, &src, &verdict);
    for (uint32_t k = 0; k < 2; k++) {
        workers[k] = (struct worker){variant(_i / 2), &asked, &src, &dst, chunk, verdict.result.bytes, k, false};
        ck_assert_int_eq(0, pthread_create(&threads[k], NULL, work, &workers[k]));
    }
    for (int k = 0; k < 2; k++) {
        pthread_join(threads[k], NULL);
        ck_assert(workers[k].good);
    }
    ck_assert_mem_eq(src.memory.bytes, dst.memory.bytes, src.memory.size);
    free(chunk);
    layout_fini(&src);
    layout_fini(&dst);
}
END_TEST

/* ---- Variants by name ------------------------------------------------------------------------------------------ */

START_TEST(a_variant_is_found_by_its_name_or_not_at_all)
{
    for (int v = 0; v < VARIANTS; v++)
        if (variant(v) != NULL)
            ck_assert_str_eq(variant_names[v], strait_codec_name(variant(v)));
    ck_assert_ptr_nonnull(variant(0));
    ck_assert_ptr_null(strait_codec_get(""));
    ck_assert_ptr_null(strait_codec_get("AVX2"));
    ck_assert_ptr_null(strait_codec_get("cuda"));
}
END_TEST

/* Every case is a process of its own: the environment is looked at once. */
START_TEST(without_a_name_the_environment_chooses_once_and_else_the_best)
{
    const struct strait_codec *best = NULL, *wanted = NULL;
    for (int v = 0; v < VARIANTS; v++)
        best = variant(v) == NULL ? best : variant(v);
    ck_assert_int_eq(0, unsetenv("STRAIT_CODEC"));
    if (_i <= VARIANTS)
        ck_assert_int_eq(0, setenv("STRAIT_CODEC", _i < VARIANTS ? variant_names[_i] : "none such", 1));
    if (_i < VARIANTS)
        wanted = variant(_i);
    wanted = wanted == NULL ? best : wanted;
    ck_assert_ptr_eq(wanted, strait_codec_get(NULL));
    ck_assert_int_eq(0, setenv("STRAIT_CODEC", "scalar", 1));
    ck_assert_ptr_eq(wanted, strait_codec_get(NULL));
    ck_assert_uint_eq(strait_scratch_size(wanted), strait_scratch_size(NULL));
}
END_TEST

START_TEST(variants_are_listed_best_first)
{
    uint32_t count = 0;
    while (strait_codec_name_at(count) != NULL)
        count++;
    ck_assert_uint_ge(count, 1);
    ck_assert_str_eq("scalar", strait_codec_name_at(count - 1));
    for (uint32_t i = 0; i < count; i++)
        if (strait_codec_get(strait_codec_name_at(i)) != NULL)
            ck_assert_str_eq(strait_codec_name_at(i), strait_codec_name(strait_codec_get(strait_codec_name_at(i))));
    for (int v = 0; v < VARIANTS; v++) /* tests know every variant of this build */
        count -= variant(v) != NULL;
    for (int v = 0; v < VARIANTS; v++)
        for (uint32_t i = 0; strait_codec_name_at(i) != NULL && variant(v) == NULL; i++)
            count -= strcmp(strait_codec_name_at(i), variant_names[v]) == 0;
    ck_assert_uint_eq(0, count);
    ck_assert_ptr_null(strait_codec_name_at(UINT32_MAX));
}
END_TEST

START_TEST(the_library_tells_its_version)
{
    unsigned major, minor, patch;
    char more;
    ck_assert_int_eq(3, sscanf(strait_version(), "%u.%u.%u%c", &major, &minor, &patch, &more));
}
END_TEST

static const struct status_text {
    int status;
    const char *text;
} status_texts[] = {
#define X(name, value, text) {value, text},
    STRAIT_STATUS_MAP(X)
#undef X
        {1, "unknown status"},
    {-14, "unknown status"},
    {INT32_MIN, "unknown status"},
    {INT32_MAX, "unknown status"},
};

START_TEST(every_status_has_its_text)
{
    ck_assert_str_eq(status_texts[_i].text, strait_status_string(status_texts[_i].status));
}
END_TEST

START_TEST(status_values_are_pinned)
{
    const int pinned[] = {STRAIT_OK,
                          STRAIT_ERR_INVALID,
                          STRAIT_ERR_NO_MEMORY,
                          STRAIT_ERR_NO_SPACE,
                          STRAIT_ERR_ALIGNMENT,
                          STRAIT_ERR_TRUNCATED,
                          STRAIT_ERR_CORRUPT,
                          STRAIT_ERR_UNSUPPORTED,
                          STRAIT_ERR_CODEBOOK,
                          STRAIT_ERR_INTEGRITY,
                          STRAIT_ERR_PAGE_ID,
                          STRAIT_ERR_IO};
    for (int i = 0; i < COUNT(pinned); i++)
        ck_assert_int_eq(-i, pinned[i]);
}
END_TEST

/* ---- Bad arguments --------------------------------------------------------------------------------------------- */

/* A valid call of each kind, which one case spoils. */
static struct call {
    struct strait_region region;
    struct strait_pages pages;
    struct strait_encode_params params;
    struct strait_result result;
    struct strait_run run;
    uint8_t *dst;
    const uint8_t *src;
    uint64_t capacity, src_size;
} call;

static _Alignas(64) uint8_t call_pages[8192], call_chunk[16384], call_scratch[131072];
static int32_t call_status[2];

static void call_init(void)
{
    setup();
    call.region = (struct strait_region){.base = call_pages,
                                         .page_stride = 4096,
                                         .row_stride = 1024,
                                         .page_count = 2,
                                         .rows = 4,
                                         .row_bytes = 1024,
                                         .table = 1};
    call.pages = (struct strait_pages){.regions = &call.region, .region_count = 1, .id_count = 2};
    call.params = (struct strait_encode_params){sizeof(call.params), STRAIT_ELEMENT_BF16, STRAIT_MODE_AUTO, codebook};
    call.result.status = STATUS_UNSET;
    call.run = (struct strait_run){.size = sizeof(call.run),
                                   .result = &call.result,
                                   .scratch = call_scratch,
                                   .scratch_size = sizeof(call_scratch)};
    call.dst = call_chunk;
    call.capacity = sizeof(call_chunk);
    ck_assert_int_eq(STRAIT_OK, strait_encode(NULL, &call.params, call_chunk, call.capacity, &call.pages, &call.run));
    ck_assert_int_eq(STRAIT_OK, call.result.status);
    call.src = call_chunk;
    call.src_size = call.result.bytes;
    call.result.status = STATUS_UNSET;
}

static void region_without_base(void)
{
    call.region.base = NULL;
}
static void region_from_the_future(void)
{
    call.region.reserved[1] = 1;
}
static void no_rows(void)
{
    call.region.rows = 0;
}
static void no_row_bytes(void)
{
    call.region.row_bytes = 0;
}
static void page_too_long(void)
{
    call.region.row_bytes = STRAIT_PAGE_BYTES_MAX / 4 + 2;
}
static void page_size_overflows(void)
{
    call.region.rows = call.region.row_bytes = 65536;
}
static void no_regions(void)
{
    call.pages.region_count = 0;
}
static void regions_null(void)
{
    call.pages.regions = NULL;
}
static void no_ids(void)
{
    call.pages.id_count = 0;
}
static void too_many_pages(void)
{
    call.pages.id_count = STRAIT_CHUNK_PAGES_MAX + 1;
}
static void page_count_overflows(void)
{
    call.pages.region_count = call.pages.id_count = 65536;
}
static void odd_base(void)
{
    call.region.base = call_pages + 1;
}
static void odd_page_stride(void)
{
    call.region.page_stride = 4097;
}
static void odd_row_stride(void)
{
    call.region.row_stride = 1025;
}
static void odd_row_bytes(void)
{
    call.region.row_bytes = 1023;
}
static void run_of_no_size(void)
{
    call.run.size = 0;
}
static void run_too_small(void)
{
    call.run.size = offsetof(struct strait_run, caching) - 8;
}
static void caching_unknown(void)
{
    call.run.caching = STRAIT_CACHING_PASS + 1;
}
static void statuses_of_no_count(void)
{
    call.run.page_status = call_status, call.run.page_status_count = 0;
}
static void statuses_null(void)
{
    call.run.page_status_count = 2;
}
static void overlapping_rows(void)
{
    call.region.row_stride = 1022;
}
static void no_result(void)
{
    call.run.result = NULL;
}
static void scratch_unaligned(void)
{
    call.run.scratch = call_scratch + 32;
}
static void scratch_too_small(void)
{
    call.run.scratch_size = strait_scratch_size(NULL) - 1;
}
static void params_of_no_size(void)
{
    call.params.size = 0;
}
static void params_too_small(void)
{
    call.params.size--;
}
static void element_unknown(void)
{
    call.params.element = (enum strait_element)6;
}
static void element_negative(void)
{
    call.params.element = (enum strait_element) - 1;
}
static void mode_unknown(void)
{
    call.params.mode = (enum strait_mode)6;
}
static void mode_negative(void)
{
    call.params.mode = (enum strait_mode) - 1;
}
static void coded_without_codebook(void)
{
    call.params.codebook = NULL;
}
static void fp16_split_without_codebook(void)
{
    call.params = (struct strait_encode_params){sizeof(call.params), STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, NULL};
    call.region.table = 0;
}
static void table_beyond(void)
{
    call.region.table = TEST_TABLES;
}
static void table_without_codebook(void)
{
    call.params.codebook = NULL, call.params.mode = STRAIT_MODE_RAW;
}
static void fp32_half_aligned(void)
{
    call.params.element = STRAIT_ELEMENT_FP32, call.region.base = call_pages + 2;
}
static void fp32_half_stride(void)
{
    call.params.element = STRAIT_ELEMENT_FP32, call.region.row_stride = 1026;
}
static void fp16_odd(void)
{
    call.params.element = STRAIT_ELEMENT_FP16, call.region.base = call_pages + 1;
}
static void dst_null(void)
{
    call.dst = NULL;
}
static void dst_too_small(void)
{
    call.capacity = strait_encode_bound(&call.pages) - 1;
}
static void src_null(void)
{
    call.src = NULL;
}
static void fewer_pages_than_the_chunk(void)
{
    call.pages.id_count = 1;
}
static void more_pages_than_the_chunk(void)
{
    call.pages.id_count = 3;
}

#define ENCODE    1u
#define DECODE    2u
#define VERIFY    4u
#define IN_RESULT 8u /* decoding only: the chunk does not fit the list */

static const struct bad_call {
    void (*spoil)(void);
    enum strait_status expected;
    unsigned calls; /* those that return it */
} bad_calls[] = {
    {region_without_base, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {region_from_the_future, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {no_rows, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {no_row_bytes, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {page_too_long, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {page_size_overflows, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {no_regions, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {regions_null, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {no_ids, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {too_many_pages, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {page_count_overflows, STRAIT_ERR_INVALID, ENCODE | DECODE},
    {odd_base, STRAIT_ERR_ALIGNMENT, ENCODE | IN_RESULT},
    {odd_page_stride, STRAIT_ERR_ALIGNMENT, ENCODE | IN_RESULT},
    {odd_row_stride, STRAIT_ERR_ALIGNMENT, ENCODE | IN_RESULT},
    {odd_row_bytes, STRAIT_ERR_ALIGNMENT, ENCODE | IN_RESULT},
    {run_of_no_size, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {caching_unknown, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {run_too_small, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {statuses_of_no_count, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {statuses_null, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {overlapping_rows, STRAIT_ERR_INVALID, DECODE},
    {no_result, STRAIT_ERR_INVALID, ENCODE | DECODE | VERIFY},
    {scratch_unaligned, STRAIT_ERR_ALIGNMENT, ENCODE | DECODE | VERIFY},
    {scratch_too_small, STRAIT_ERR_NO_SPACE, ENCODE | DECODE | VERIFY},
    {params_of_no_size, STRAIT_ERR_INVALID, ENCODE},
    {params_too_small, STRAIT_ERR_INVALID, ENCODE},
    {element_unknown, STRAIT_ERR_INVALID, ENCODE},
    {element_negative, STRAIT_ERR_INVALID, ENCODE},
    {mode_unknown, STRAIT_ERR_INVALID, ENCODE},
    {mode_negative, STRAIT_ERR_INVALID, ENCODE},
    {coded_without_codebook, STRAIT_ERR_INVALID, ENCODE},
    {fp16_split_without_codebook, STRAIT_ERR_INVALID, ENCODE},
    {table_beyond, STRAIT_ERR_CODEBOOK, ENCODE},
    {table_without_codebook, STRAIT_ERR_CODEBOOK, ENCODE},
    {fp32_half_aligned, STRAIT_ERR_ALIGNMENT, ENCODE},
    {fp32_half_stride, STRAIT_ERR_ALIGNMENT, ENCODE},
    {fp16_odd, STRAIT_ERR_ALIGNMENT, ENCODE},
    {dst_null, STRAIT_ERR_INVALID, ENCODE},
    {dst_too_small, STRAIT_ERR_NO_SPACE, ENCODE},
    {src_null, STRAIT_ERR_INVALID, DECODE | VERIFY},
    {fewer_pages_than_the_chunk, STRAIT_ERR_INVALID, IN_RESULT},
    {more_pages_than_the_chunk, STRAIT_ERR_INVALID, IN_RESULT},
};

static enum strait_status call_again(unsigned which)
{
    if (which == ENCODE)
        return strait_encode(NULL, &call.params, call.dst, call.capacity, &call.pages, &call.run);
    if (which == DECODE)
        return strait_decode(NULL, codebook, &call.pages, NULL, call.src, call.src_size, &call.run);
    return strait_verify(NULL, codebook, call.src, call.src_size, &call.run);
}

START_TEST(a_bad_argument_is_refused_and_nothing_is_written)
{
    const struct bad_call *bad = &bad_calls[_i];
    static uint8_t pages[sizeof(call_pages)], chunk[sizeof(call_chunk)];
    for (unsigned which = ENCODE; which <= VERIFY; which *= 2) {
        call_init();
        bad->spoil();
        memcpy(pages, call_pages, sizeof(pages));
        memcpy(chunk, call_chunk, sizeof(chunk));
        if ((bad->calls & which) != 0) {
            ck_assert_int_eq(bad->expected, call_again(which));
            ck_assert_int_eq(STATUS_UNSET, call.result.status);
            ck_assert_mem_eq(chunk, call_chunk, sizeof(chunk));
            ck_assert_mem_eq(pages, call_pages, sizeof(pages));
        }
        if (which == DECODE && (bad->calls & IN_RESULT) != 0) {
            ck_assert_int_eq(STRAIT_OK, call_again(which));
            ck_assert_int_eq(bad->expected, call.result.chunk_status);
            ck_assert_int_eq(bad->expected, call.result.status);
            ck_assert_uint_eq(call.pages.id_count, call.result.failed_pages);
            ck_assert_mem_eq(pages, call_pages, sizeof(pages));
        }
        teardown();
    }
}
END_TEST

START_TEST(null_structs_are_refused)
{
    struct strait_chunk_info info;
    struct strait_page_info page;
    call_init();
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode(NULL, NULL, call.dst, call.capacity, &call.pages, &call.run));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode(NULL, &call.params, call.dst, call.capacity, NULL, &call.run));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_encode(NULL, &call.params, call.dst, call.capacity, &call.pages, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_decode(NULL, codebook, NULL, NULL, call.src, call.src_size, &call.run));
    ck_assert_int_eq(STRAIT_ERR_INVALID,
                     strait_decode(NULL, codebook, &call.pages, NULL, call.src, call.src_size, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_verify(NULL, codebook, call.src, call.src_size, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_info(NULL, 100, &info));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_info(call.src, call.src_size, NULL));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_pages(NULL, 100, 1, &page));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_chunk_pages(call.src, call.src_size, 1, NULL));
    ck_assert_uint_eq(0, strait_encode_bound(NULL));
    teardown();
}
END_TEST

START_TEST(bytes_may_lie_anywhere)
{
    call_init();
    call.params.element =
        (enum strait_element[]){STRAIT_ELEMENT_BYTES, STRAIT_ELEMENT_FP8_E4M3, STRAIT_ELEMENT_FP8_E5M2}[_i];
    call.region.base = call_pages + 1;
    call.region.row_bytes = 1023;
    call.region.row_stride = 1025;
    call.region.page_stride = 4093;
    ck_assert_int_eq(STRAIT_OK, call_again(ENCODE));
    ck_assert_int_eq(STRAIT_OK, call.result.status);
    teardown();
}
END_TEST

/* 2^20 pages of 4 KiB: nothing is encoded, only sizes are read. */
START_TEST(the_bound_is_zero_where_it_would_reach_4_gib)
{
    call_init();
    call.pages.id_count = STRAIT_CHUNK_PAGES_MAX;
    ck_assert_uint_eq(0, strait_encode_bound(&call.pages));
    ck_assert_int_eq(STRAIT_ERR_INVALID, call_again(ENCODE));
    call.region.rows = 1;
    call.region.row_bytes = 4064;
    ck_assert_uint_eq(48 + (16 + 4064ull) * STRAIT_CHUNK_PAGES_MAX, strait_encode_bound(&call.pages));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, call_again(ENCODE));
    teardown();
}
END_TEST

/* ---- Codebooks ------------------------------------------------------------------------------------------------- */

START_TEST(a_set_has_1_to_65535_permutations)
{
    static uint8_t rankings[65536][256];
    struct strait_codebook *set = NULL;
    for (int t = 0; t < 65536; t++)
        test_ranking(rankings[t], 3);
    const uint8_t(*const given)[256] = (const uint8_t(*)[256])rankings;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 0, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 65536, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(NULL, NULL, 1, &set));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 1, NULL));
    rankings[65534][255] = 0;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_codebook_create(given, NULL, 65535, &set));
    ck_assert_ptr_null(set);
    rankings[65534][255] = 255;
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 65535, &set));
    ck_assert_uint_eq(65535, strait_codebook_count(set));
    ck_assert_mem_eq(rankings[3], strait_codebook_ranking(set, 65534), 256);
    ck_assert_ptr_null(strait_codebook_ranking(set, 65535));
    strait_codebook_destroy(set);
    strait_codebook_destroy(NULL);
}
END_TEST

START_TEST(equal_ids_mean_equal_tables)
{
    uint8_t rankings[2][256];
    struct strait_codebook *set[4];
    test_ranking(rankings[0], 0);
    test_ranking(rankings[1], 1);
    const uint8_t(*const given)[256] = (const uint8_t(*)[256])rankings;
    const struct strait_class classes[] = {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 3}};
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 2, &set[0]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, classes, 2, &set[1]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given, NULL, 1, &set[2]));
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create(given + 1, NULL, 1, &set[3]));
    ck_assert_mem_eq(strait_codebook_id(set[0]), strait_codebook_id(set[1]), 16);
    ck_assert_mem_ne(strait_codebook_id(set[0]), strait_codebook_id(set[2]), 16);
    ck_assert_mem_ne(strait_codebook_id(set[2]), strait_codebook_id(set[3]), 16);
    for (int i = 0; i < 4; i++)
        strait_codebook_destroy(set[i]);
}
END_TEST

static const struct lookup {
    struct strait_class wanted;
    uint32_t table;
} lookups[] = {
    {{STRAIT_ROLE_K, 3}, 1},       {{STRAIT_ROLE_K, 4}, 2},     {{STRAIT_ROLE_K, -1}, 2},
    {{STRAIT_ROLE_V, 3}, 3},       {{STRAIT_ROLE_V, 4}, 0},     {{STRAIT_ROLE_V, -1}, 0},
    {{STRAIT_ROLE_OTHER, 3}, 4},   {{STRAIT_ROLE_OTHER, 0}, 4}, {{STRAIT_ROLE_OTHER, -1}, 4},
    {{(enum strait_role)9, 3}, 0},
};

START_TEST(a_class_is_found_exactly_or_by_role_or_not)
{
    const struct strait_class classes[] = {
        {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, -1}, {STRAIT_ROLE_V, 3}, {STRAIT_ROLE_OTHER, -1}};
    uint8_t rankings[5][256];
    struct strait_codebook *set;
    for (uint32_t t = 0; t < 5; t++)
        test_ranking(rankings[t], t);
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])rankings, classes, 5, &set));
    for (int i = 0; i < COUNT(lookups); i++) {
        ck_assert_uint_eq(lookups[i].table, strait_codebook_find(set, lookups[i].wanted));
        ck_assert_uint_eq(0, strait_codebook_find(codebook, lookups[i].wanted));
    }
    ck_assert_int_eq(STRAIT_ROLE_OTHER, strait_codebook_class(set, 0).role);
    ck_assert_int_eq(-1, strait_codebook_class(set, 0).layer);
    ck_assert_int_eq(-1, strait_codebook_class(set, 5).layer);
    ck_assert_int_eq(3, strait_codebook_class(set, 3).layer);
    ck_assert_int_eq(STRAIT_ROLE_V, strait_codebook_class(set, 3).role);
    strait_codebook_destroy(set);
}
END_TEST

static const struct strait_class bad_classes[][3] = {
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 3}, {STRAIT_ROLE_K, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_OTHER, -1}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, -2}, {STRAIT_ROLE_K, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {STRAIT_ROLE_K, 0}, {(enum strait_role)3, 3}},
    {{STRAIT_ROLE_OTHER, -1}, {(enum strait_role) - 1, 0}, {STRAIT_ROLE_K, 3}},
};

START_TEST(a_class_that_comes_twice_or_is_none_is_refused)
{
    uint8_t rankings[3][256];
    struct strait_codebook *set = NULL;
    for (uint32_t t = 0; t < 3; t++)
        test_ranking(rankings[t], t);
    ck_assert_int_eq(STRAIT_ERR_INVALID,
                     strait_codebook_create((const uint8_t(*)[256])rankings, bad_classes[_i], 3, &set));
    ck_assert_ptr_null(set);
}
END_TEST

START_TEST(a_histogram_counts_exponents_at_any_address)
{
    struct rng rng = rng_init(900);
    uint8_t bytes[2048];
    rng_fill(&rng, bytes, sizeof(bytes));
    for (size_t count = 0; count < 1000; count += 1 + count / 9) {
        uint64_t counts[256], expected[256];
        uint8_t *src = bytes + sizeof(bytes) - 2 * count - count % 2;
        for (int e = 0; e < 256; e++)
            counts[e] = expected[e] = (uint64_t)e << 40;
        for (size_t i = 0; i < count; i++)
            expected[get_value(src, i) >> 7 & 255]++;
        strait_histogram_add(counts, src, count);
        ck_assert_mem_eq(expected, counts, sizeof(counts));
    }
}
END_TEST

START_TEST(a_histogram_ranks_by_count_then_by_exponent)
{
    uint64_t counts[256] = {[200] = UINT64_MAX, [7] = UINT64_MAX - 1, [90] = 5, [80] = 5, [255] = 1};
    const uint8_t first[] = {200, 7, 80, 90, 255, 0, 1, 2, 3, 4, 5, 6, 8};
    uint8_t ranking[256];
    strait_histogram_rank(ranking, counts);
    ck_assert_mem_eq(first, ranking, sizeof(first));
    struct strait_codebook *set;
    ck_assert_int_eq(STRAIT_OK, strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &set));
    strait_codebook_destroy(set);
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 0); /* CTest has one */
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    return tcase;
}

static void add_data_tests(Suite *suite)
{
    TCase *trips = add_case(suite, "round trips"), *choice = add_case(suite, "modes");
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
    tcase_add_loop_test(choice, short_blocks_are_coded_exactly_while_they_shrink, 0, COUNT(coded_modes));
    tcase_add_loop_test(choice, blocks_are_coded_up_to_the_last_escape_that_shrinks, 0, 2 * COUNT(limit_sizes));
    tcase_add_loop_test(choice, a_rank_takes_the_streams_that_the_format_says, 0, 2 * TEST_TABLES);
    tcase_add_loop_test(choice, a_block_of_one_value_is_const_where_that_is_shorter, 0, 6 * COUNT(modes));
    tcase_add_loop_test(choice, a_block_with_one_other_value_at_the_start_end_or_middle_is_not_const, 0,
                        5 * COUNT(modes));
    tcase_add_loop_test(choice, raw_asked_is_raw, 0, PATTERNS);
    tcase_add_loop_test(choice, auto_is_tiered, 0, PATTERNS);
    tcase_add_loop_test(choice, no_chunk_is_longer_than_its_pages_and_tables, 0, 4);
}

static void add_call_tests(Suite *suite)
{
    TCase *counts = add_case(suite, "counts"), *buffers = add_case(suite, "buffers"),
          *threads = add_case(suite, "threads");
    tcase_add_loop_test(counts, statistics_count_values_and_escapes_per_table, 0, COUNT(coded_modes));
    tcase_add_test(counts, statistics_are_added_to_and_tables_beyond_are_not_counted);
    tcase_add_test(counts, caching_changes_no_byte);
    tcase_add_loop_test(buffers, a_buffer_of_exactly_the_bound_is_enough_and_one_byte_less_is_not, 0,
                        COUNT(buffer_shapes));
    tcase_add_loop_test(buffers, chunks_may_lie_at_any_address, 0, VARIANTS);
    tcase_add_loop_test(buffers, scratch_of_the_caller_changes_no_byte, 0, VARIANTS);
    tcase_add_loop_test(threads, two_threads_on_disjoint_pages_of_one_chunk_do_as_one, 0, 2 * VARIANTS);
}

static void add_argument_tests(Suite *suite)
{
    TCase *names = tcase_create("names"), *bad = tcase_create("arguments"), *sets = add_case(suite, "codebooks");
    tcase_add_test(names, a_variant_is_found_by_its_name_or_not_at_all);
    tcase_add_loop_test(names, without_a_name_the_environment_chooses_once_and_else_the_best, 0, VARIANTS + 2);
    tcase_add_test(names, variants_are_listed_best_first);
    tcase_add_test(names, the_library_tells_its_version);
    tcase_add_loop_test(names, every_status_has_its_text, 0, COUNT(status_texts));
    tcase_add_test(names, status_values_are_pinned);
    suite_add_tcase(suite, names);
    tcase_add_loop_test(bad, a_bad_argument_is_refused_and_nothing_is_written, 0, COUNT(bad_calls));
    tcase_add_test(bad, null_structs_are_refused);
    tcase_add_loop_test(bad, bytes_may_lie_anywhere, 0, 3);
    tcase_add_test(bad, the_bound_is_zero_where_it_would_reach_4_gib);
    suite_add_tcase(suite, bad);
    tcase_add_test(sets, a_set_has_1_to_65535_permutations);
    tcase_add_test(sets, equal_ids_mean_equal_tables);
    tcase_add_test(sets, a_class_is_found_exactly_or_by_role_or_not);
    tcase_add_loop_test(sets, a_class_that_comes_twice_or_is_none_is_refused, 0, COUNT(bad_classes));
    tcase_add_test(sets, a_histogram_counts_exponents_at_any_address);
    tcase_add_test(sets, a_histogram_ranks_by_count_then_by_exponent);
}

int main(void)
{
    Suite *suite = suite_create("codec");
    print_conditions();
    add_data_tests(suite);
    add_call_tests(suite);
    add_argument_tests(suite);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
