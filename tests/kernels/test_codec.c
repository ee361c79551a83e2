/* The public calls: what was encoded comes back, and in the mode that the format asks for. */
#include <check.h>
#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "kernels/block_typed.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static struct strait_codebook *codebook;
static uint8_t *chunk; /* of the page that was coded last, and what was reported of it */
static struct verdict verdict;

static void setup(void)
{
    codebook = test_codebook();
}

static void teardown(void)
{
    free(chunk);
    chunk = NULL;
    strait_codebook_destroy(codebook);
}

static const enum strait_mode modes[] = {STRAIT_MODE_AUTO, STRAIT_MODE_RAW,   STRAIT_MODE_TOP16, STRAIT_MODE_TIERED,
                                         STRAIT_MODE_BASE, STRAIT_MODE_PARTS, STRAIT_MODE_SPLIT};

static const enum strait_mode coded_modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};

static uint64_t units_of(uint64_t bytes)
{
    return (bytes + 15) / 16;
}

/* Encodes and decodes one page of these bytes with every variant. */
static void code_page(const struct asked *asked, uint32_t table, const void *bytes, uint32_t size)
{
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = size, .table = table};
    struct layout src;
    free(chunk);
    layout_init(&src, element_bytes(asked->element), &shape, 1, NULL, 1);
    layout_write(&src, 0, bytes);
    chunk = round_trip(asked, &src, &verdict);
    layout_fini(&src);
}

static const uint32_t sizes[] = {1,     2,     3,     4,     7,     8,     9,     14,    15,    16,    17,
                                 18,    19,    20,    31,    32,    33,    62,    64,    65,    66,    67,
                                 100,   127,   128,   129,   130,   131,   255,   256,   258,   259,   1000,
                                 1023,  4099,  8190,  8191,  8192,  8193,  16380, 16381, 16382, 16383, 16384,
                                 16385, 16386, 16387, 16388, 32767, 32768, 32769, 32771, 49150, 49153, 65536};

/* Values as they are asked for. RAW takes what no chunk exceeds; TIERED gives what AUTO does. */
static const struct asking {
    enum strait_element element;
    enum strait_mode mode;
    bool without; /* a codebook */
} askings[] = {{STRAIT_ELEMENT_BF16, STRAIT_MODE_AUTO, false},     {STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, false},
               {STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW, false},      {STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, false},
               {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, false},     {STRAIT_ELEMENT_BF16, STRAIT_MODE_SPLIT, false},
               {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, true},      {STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE, true},
               {STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, false},    {STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, true},
               {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, false},    {STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE, true},
               {STRAIT_ELEMENT_FP8_E5M2, STRAIT_MODE_SPLIT, true}, {STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS, true},
               {STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS, false},    {STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS, true},
               {STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS, true},     {STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS, false},
               {STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS, false}};

TEST_LOOP(pages_of_every_size_type_mode_and_pattern_come_back_from_every_variant, COUNT(sizes))
{
    struct rng rng = rng_init((uint64_t)_i);
    const uint32_t size = sizes[_i];
    const uint64_t bound = 16 * units_of(64 + 4 * ((size + 16383) / 16384 - 1)) + 16 * units_of(size);
    uint8_t ranking[256], *bytes = malloc(size);
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        uint32_t table = rng_below(&rng, TEST_TABLES);
        uint8_t *by_auto = NULL;
        test_ranking(ranking, table);
        fill_pattern(&rng, (enum pattern)pattern, ranking, bytes, size);
        for (int k = 0; k < COUNT(askings); k++) {
            const struct asking *asking = &askings[k];
            const struct asked asked = {asking->without ? NULL : codebook, asking->element, asking->mode};
            code_page(&asked, asking->without ? 0 : table, bytes, size);
            uint64_t values = 0;
            for (int m = 0; m < STRAIT_BLOCK_MODES; m++)
                values += verdict.result.values[m];
            ck_assert_uint_eq(size / 2, values);
            ck_assert_uint_le(verdict.result.bytes, bound);
            if (asking->mode == STRAIT_MODE_RAW) {
                ck_assert_uint_eq(size / 2, verdict.result.values[STRAIT_BLOCK_RAW]);
                ck_assert_uint_eq(bound, verdict.result.bytes);
            }
            if (asking->mode == STRAIT_MODE_TIERED)
                ck_assert_mem_eq(by_auto, chunk, verdict.result.bytes);
            if (asking->mode == STRAIT_MODE_AUTO) {
                by_auto = chunk;
                chunk = NULL;
            }
        }
        free(by_auto);
    }
    free(bytes);
}

/* ... as values and as bytes, for a size may mean either */
TEST_LOOP(values_of_every_element_type_come_back_from_every_variant, 6 * COUNT(modes))
{
    struct rng rng = rng_init(100 + (uint64_t)_i);
    const struct asked asked = {codebook, (enum strait_element)(_i % 6), modes[_i / 6]};
    for (int k = 0; k < COUNT(sizes) + 6; k++) {
        static const uint32_t of_blocks[] = {8191 * 2, 8192 * 2, 8193 * 2, 8192 * 4, 8192 * 4 + 1, 8192 * 4 + 2};
        uint32_t size = k < COUNT(sizes) ? sizes[k] : of_blocks[k - COUNT(sizes)];
        uint8_t *bytes = malloc(size);
        rng_fill(&rng, bytes, size);
        if (k % 3 == 0)
            memset(bytes, 7, size);
        code_page(&asked, 0, bytes, size);
        if (asked.element != STRAIT_ELEMENT_BF16)
            ck_assert_uint_eq(size / 2,
                              verdict.result.values[STRAIT_BLOCK_RAW] + verdict.result.values[STRAIT_BLOCK_CONST]);
        free(bytes);
    }
}

TEST_LOOP(every_one_of_65536_bit_patterns_comes_back, TEST_TABLES *COUNT(modes))
{
    static uint8_t bytes[2 * 65536];
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[_i % COUNT(modes)]};
    uint32_t table = (uint32_t)(_i / COUNT(modes));
    struct rng rng = rng_init(200);
    for (uint32_t i = 0; i < 65536; i++)
        put_value(bytes, i, (uint16_t)i);
    code_page(&asked, table, bytes, sizeof(bytes));
    for (uint32_t i = 65535; i > 0; i--) {
        uint32_t other = rng_below(&rng, i + 1);
        uint16_t value = get_value(bytes, i);
        put_value(bytes, i, get_value(bytes, other));
        put_value(bytes, other, value);
    }
    code_page(&asked, table, bytes, sizeof(bytes));
}

static const struct special {
    const char *name;
    uint16_t first, mask; /* value = first ^ (random & mask) */
} specials[] = {
    {"NaN payloads", 0x7f81, 0x807e},        {"infinities", 0x7f80, 0x8000},  {"subnormals", 0x0001, 0x807e},
    {"zeros of both signs", 0x0000, 0x8000}, {"the largest", 0x7f7f, 0x8000}, {"the smallest normal", 0x0080, 0x8000},
    {"NaNs and zeros", 0x0000, 0x7fff},
};

TEST_LOOP(nan_payloads_infinities_subnormals_and_negative_zero_come_back, COUNT(specials) * COUNT(modes))
{
    const struct special *special = &specials[_i / COUNT(modes)];
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[_i % COUNT(modes)]};
    struct rng rng = rng_init(300 + (uint64_t)_i);
    for (uint32_t size = 2; size <= 20000; size = size * 2 + rng_below(&rng, 9)) {
        for (uint32_t table = 0; table < TEST_TABLES; table++) {
            uint8_t bytes[20000];
            for (uint32_t i = 0; i < size / 2; i++)
                put_value(bytes, i, special->first ^ (rng_next(&rng) & special->mask));
            bytes[size - 1] = 0x80;
            code_page(&asked, table, bytes, size);
        }
    }
}

TEST_LOOP(chunks_of_megabytes_come_back, COUNT(modes))
{
    const struct shape shapes[] = {{.page_count = 3, .rows = 1, .row_bytes = 400000, .table = 1},
                                   {.page_count = 3, .rows = 25, .row_bytes = 16384, .row_gap = 64, .table = 2}};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[_i]};
    struct rng rng = rng_init(400);
    struct layout src;
    layout_init(&src, 64, shapes, 2, NULL, 3);
    ck_assert_uint_ge(strait_encode_bound(&src.pages), 2 << 20);
    layout_fill(&src, &rng, PATTERN_RARE, codebook);
    free(round_trip(&asked, &src, &verdict));
    layout_fini(&src);
}

TEST(the_longest_page_comes_back)
{
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = STRAIT_PAGE_BYTES_MAX};
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED};
    struct rng rng = rng_init(401);
    struct layout src;
    layout_init(&src, 64, &shape, 1, NULL, 1);
    layout_fill(&src, &rng, PATTERN_FALLING, codebook);
    free(round_trip(&asked, &src, &verdict));
    ck_assert_uint_eq(STRAIT_PAGE_BYTES_MAX, verdict.result.values[STRAIT_BLOCK_TIERED] * 2);
    layout_fini(&src);
}

TEST_LOOP(no_codebook_carries_pages_raw, 6)
{
    const struct asked asked = {NULL, (enum strait_element)_i, STRAIT_MODE_RAW};
    struct rng rng = rng_init(402);
    struct strait_chunk_info info;
    uint8_t bytes[20001];
    rng_fill(&rng, bytes, sizeof(bytes));
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(chunk, verdict.result.bytes, &info));
    ck_assert(is_filled(info.codebook_id, sizeof(info.codebook_id), 0));
    ck_assert_int_eq(_i, info.element);
}

TEST_LOOP(without_a_codebook_other_elements_may_still_become_const, COUNT(modes) - 1)
{
    const struct asked asked = {NULL, STRAIT_ELEMENT_FP32, modes[_i]};
    uint8_t bytes[20004];
    memset(bytes, 0x41, sizeof(bytes));
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_uint_eq(sizeof(bytes) / 2,
                      verdict.result.values[asked.mode == STRAIT_MODE_RAW ? STRAIT_BLOCK_RAW : STRAIT_BLOCK_CONST]);
}

/* The block mode of a one-block page. */
static enum strait_block_mode mode_of_block(uint32_t n)
{
    for (int m = 0; m < STRAIT_BLOCK_MODES; m++)
        if (verdict.result.values[m] == n)
            return (enum strait_block_mode)m;
    ck_abort_msg("the block has no mode");
}

/* Bytes of one block in a chunk of one page. */
static uint64_t coded_bytes(void)
{
    return verdict.result.bytes - 64;
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
    uint64_t used = escaped_bytes(mode, n, t, escapes), raw = units_of(2 * n + t);
    bool shrinks = units_of(used) < raw;
    fill_escapes(&rng, bytes, n, escapes, 21);
    code_page(&asked, 0, bytes, 2 * n + t);
    ck_assert_int_eq(shrinks ? coded : STRAIT_BLOCK_RAW, mode_of_block(n));
    ck_assert_uint_eq(16 * (shrinks ? units_of(used) : raw), coded_bytes());
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
TEST_LOOP(short_blocks_are_coded_exactly_while_they_shrink, COUNT(coded_modes))
{
    for (uint32_t n = 2; n <= 48; n++)
        for (uint32_t t = 0; t <= 1; t++)
            for (uint32_t escapes = 0; escapes <= n; escapes++)
                check_escapes(coded_modes[_i], n, t, escapes);
}

static const uint32_t limit_sizes[] = {64, 65, 127, 128, 1000, 4096, 8190, 8191, 8192};

TEST_LOOP(blocks_are_coded_up_to_the_last_escape_that_shrinks, 2 * COUNT(limit_sizes))
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

/* All values of one rank, so that the size of the block tells which streams they are in: 2/3, 5/6, 15/16, 20/21. */
TEST_LOOP(a_rank_takes_the_streams_that_the_format_says, 2 * TEST_TABLES)
{
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, coded_modes[_i % 2]};
    uint32_t table = (uint32_t)_i / 2, n = 4096;
    uint8_t ranking[256], bytes[2 * 4096];
    test_ranking(ranking, table);
    for (uint32_t r = 0; r < 256; r++) {
        uint64_t tiered = n + n / 4 + (r >= 3 ? n / 4 : 0) + (r >= 6 ? n / 2 : 0) + (r >= 21 ? n : 0);
        uint64_t top16 = n + n / 2 + (r >= 16 ? 2 + 3 * n : 0);
        uint64_t used = asked.mode == STRAIT_MODE_TOP16 ? top16 : tiered;
        for (uint32_t i = 0; i < n; i++)
            put_value(bytes, i, join_value((uint8_t)i, ranking[r]));
        code_page(&asked, table, bytes, sizeof(bytes));
        ck_assert_uint_eq(used < 2 * n ? used : 2 * n, coded_bytes());
    }
}

TEST_LOOP(a_block_of_one_value_is_const_where_that_is_shorter, 6 * COUNT(modes))
{
    const struct asked asked = {codebook, (enum strait_element)(_i % 6), modes[_i / 6]};
    static const uint16_t values[] = {0x0000, 0x8000, 0x3f80, 0x7fc1, 0xffff};
    for (uint32_t size = 1; size <= 16384; size += size < 100 ? 1 : 2713) {
        for (int k = 0; k < COUNT(values); k++) {
            uint8_t bytes[16384];
            for (uint32_t i = 0; i < size / 2; i++)
                put_value(bytes, i, values[k]);
            bytes[size - 1] = size % 2 != 0 ? 0x5a : bytes[size - 1];
            bool is_const = size > 16 && asked.mode != STRAIT_MODE_RAW;
            code_page(&asked, 0, bytes, size);
            ck_assert_int_eq(is_const ? STRAIT_BLOCK_CONST : STRAIT_BLOCK_RAW, mode_of_block(size / 2));
            ck_assert_uint_eq(is_const ? 16 : 16 * units_of(size), coded_bytes());
            ck_assert_uint_eq(0, verdict.stats[0].values);
        }
    }
}

TEST_LOOP(a_block_with_one_other_value_at_the_start_end_or_middle_is_not_const, 5 * COUNT(modes))
{
    const struct asked asked = {codebook, STRAIT_ELEMENT_BF16, modes[_i % COUNT(modes)]};
    uint32_t place = (uint32_t)_i / COUNT(modes);
    for (uint32_t n = 9; n <= STRAIT_BLOCK_VALUES; n += n < 140 ? 1 : 1150) {
        const uint32_t places[] = {0, 1, n / 2, n - 2, n - 1};
        for (int bit = 0; bit < 16; bit += 5) {
            uint8_t bytes[STRAIT_BLOCK_VALUES * 2];
            for (uint32_t i = 0; i < n; i++)
                put_value(bytes, i, 0x3f80);
            put_value(bytes, places[place], (uint16_t)(0x3f80 ^ 1u << bit));
            code_page(&asked, 0, bytes, 2 * n);
            ck_assert_int_ne(STRAIT_BLOCK_CONST, mode_of_block(n));
        }
    }
}

/* ---- Modes 6 to 8 and 10
 * ---------------------------------------------------------------------------------------------- */

static const enum strait_mode typed_modes[] = {STRAIT_MODE_BASE, STRAIT_MODE_SPLIT};

static struct asked ask(enum strait_element element, enum strait_mode mode)
{
    return (struct asked){mode == STRAIT_MODE_BASE ? NULL : codebook, element, mode};
}

static uint32_t block_modes(void)
{
    struct strait_page_info info;
    ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, verdict.result.bytes, 1, &info));
    return info.block_modes;
}

/* Among values that let the block shrink. */
TEST_LOOP(every_one_of_65536_values_of_fp16_comes_back, COUNT(typed_modes))
{
    enum { VALUES = 8192, RARE = 128 };
    const struct asked asked = ask(STRAIT_ELEMENT_FP16, typed_modes[_i]);
    struct rng rng = rng_init(200);
    uint8_t bytes[2 * VALUES], ranking[256];
    test_ranking(ranking, 0);
    for (uint32_t first = 0; first < 65536; first += RARE) {
        fill_pattern(&rng, PATTERN_FP16, ranking, bytes, sizeof(bytes));
        for (uint32_t i = 0; i < RARE; i++)
            put_value(bytes, i * (VALUES / RARE), (uint16_t)(first + i));
        code_page(&asked, 0, bytes, sizeof(bytes));
        if (typed_modes[_i] == STRAIT_MODE_SPLIT) /* a large one may leave no base for the others */
            ck_assert_uint_eq(1u << STRAIT_BLOCK_SPLIT, block_modes());
    }
}

/* Each value among values that let the block shrink, and the ranking that the format asks for. */
TEST_LOOP(every_one_of_256_values_of_fp8_comes_back, 2 * COUNT(typed_modes))
{
    enum { VALUES = 4000, RANKS = 9 };
    const struct asked asked = {NULL, _i % 2 == 0 ? STRAIT_ELEMENT_FP8_E4M3 : STRAIT_ELEMENT_FP8_E5M2,
                                typed_modes[_i / 2]};
    const unsigned bits = _i % 2 == 0 ? 3 : 2;
    uint8_t bytes[VALUES], counts[32] = {0};
    for (uint32_t i = 0; i < VALUES; i++)
        bytes[i] = (uint8_t)(i % 16 == 5 ? i / 16 : (i % 5 + i % 3) << bits | (i & 0x81));
    for (uint32_t p = 0; p < VALUES; p++) {
        uint32_t group = p / 64;
        counts[(bytes[p] & 0x7f) >> bits] += p / 8 % 8 == (group + group / 8 + group / 64) % 8;
    }
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_uint_eq(1u << STRAIT_BLOCK_FP8, block_modes());
    ck_assert_uint_eq(VALUES / 2, verdict.result.values[STRAIT_BLOCK_TIERED]);
    const uint8_t *ranking = chunk + verdict.result.bytes - RANKS;
    for (unsigned r = 1; r < RANKS; r++)
        ck_assert(counts[ranking[r]] < counts[ranking[r - 1]] ||
                  (counts[ranking[r]] == counts[ranking[r - 1]] && ranking[r] > ranking[r - 1]));
}

TEST_LOOP(one_bit_of_a_lower_half_decides_between_fp32z_and_split, COUNT(typed_modes))
{
    enum { VALUES = 1001 };
    const struct asked asked = ask(STRAIT_ELEMENT_FP32, typed_modes[_i]);
    static const uint32_t places[] = {0, 1, 63, 64, 500, 999, 1000};
    struct rng rng = rng_init(300);
    uint8_t bytes[4 * VALUES], ranking[256];
    test_ranking(ranking, 0);
    fill_pattern(&rng, PATTERN_WIDENED, ranking, bytes, sizeof(bytes));
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_uint_eq(1u << STRAIT_BLOCK_FP32Z, block_modes());
    ck_assert_uint_le(verdict.result.bytes, 64 + VALUES * 12 / 8 + 16);
    for (int k = 0; k < COUNT(places) * 16; k++) {
        uint8_t *value = bytes + 4 * places[k / 16];
        store_le32(value, load_le32(value) | 1u << k % 16);
        code_page(&asked, 0, bytes, sizeof(bytes));
        ck_assert_uint_eq(1u << STRAIT_BLOCK_SPLIT, block_modes());
        store_le16(value, 0);
    }
}

TEST_RANGE(values_without_a_codebook_are_not_of_any_table, STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP32 + 1)
{
    struct strait_chunk_info info;
    struct rng rng = rng_init(301);
    uint8_t bytes[2000], ranking[256];
    const struct asked asked = ask((enum strait_element)_i, STRAIT_MODE_BASE);
    test_ranking(ranking, 0);
    fill_pattern(&rng, _i == STRAIT_ELEMENT_FP16 ? PATTERN_FP16 : PATTERN_LOW, ranking, bytes, sizeof(bytes));
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(chunk, verdict.result.bytes, &info));
    ck_assert(is_filled(info.codebook_id, sizeof(info.codebook_id), 0));
    ck_assert_uint_ne(0, block_modes() & (1u << STRAIT_BLOCK_BASE | 1u << STRAIT_BLOCK_SPLIT));
}

/* Values whose exponents are `from` less 0, 1, ... `count` - 1, round and round. */
static void fill_falling(uint8_t *bytes, uint32_t values, uint32_t from, uint32_t count)
{
    for (uint32_t i = 0; i < values; i++)
        put_value(bytes, i, join_value((uint8_t)(37 * i), (uint8_t)(from - i % count)));
}

static unsigned coder(void)
{
    return chunk[verdict.result.bytes - 2];
}

static unsigned base(void)
{
    return chunk[verdict.result.bytes - 1];
}

TEST(tiers_are_left_where_codes_of_four_bits_take_less)
{
    enum { VALUES = 1600 };
    const struct asked asked = ask(STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE);
    uint8_t bytes[2 * VALUES];
    fill_falling(bytes, VALUES, 130, 5);
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_uint_eq(1, coder());
    ck_assert_uint_eq(VALUES, verdict.result.values[STRAIT_BLOCK_TIERED]);
    fill_falling(bytes, VALUES, 130, 12);
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_uint_eq(2, coder());
    ck_assert_uint_eq(VALUES, verdict.result.values[STRAIT_BLOCK_TOP16]);
    ck_assert_uint_eq(64 + VALUES + VALUES / 2 + 16, verdict.result.bytes);
    put_value(bytes, 77, join_value(1, 100));
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_uint_eq(3, coder());
    ck_assert_uint_eq(VALUES, verdict.result.values[STRAIT_BLOCK_TOP16_ESCAPES]);
    ck_assert_uint_eq(130, base());
}

TEST(the_base_is_the_smallest_of_the_largest_exponents_of_parts_of_256)
{
    const struct asked asked = ask(STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE);
    uint8_t bytes[2 * 600];
    for (uint32_t from = 1; from < 255; from++) {
        fill_falling(bytes, 600, from, from < 5 ? from : 5);
        code_page(&asked, 0, bytes, sizeof(bytes));
        ck_assert_uint_eq(from, base());
        put_value(bytes, 77, 0x7f80); /* infinities are no exponents */
        put_value(bytes, 555, 0xffff);
        put_value(bytes, 333, 0);
        code_page(&asked, 0, bytes, sizeof(bytes));
        ck_assert_uint_eq(from, base());
        put_value(bytes, 300, 0x7f00); /* what is large in one part is not in others */
        put_value(bytes, 599, 0x7f00);
        code_page(&asked, 0, bytes, sizeof(bytes));
        ck_assert_uint_eq(from, base());
        memset(bytes, 0, 2 * 512); /* parts of zeros do not count, shorter ones do */
        put_value(bytes, 599, join_value(9, (uint8_t)from));
        code_page(&asked, 0, bytes, sizeof(bytes));
        ck_assert_uint_eq(from, base());
    }
}

TEST_LOOP(a_block_without_exponents_has_base_0, 2)
{
    const struct asked asked = ask(STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE);
    static const uint16_t exponents[] = {0, 0x7f80};
    uint8_t bytes[1000];
    for (uint32_t i = 0; i < 500; i++)
        put_value(bytes, i, (uint16_t)(exponents[_i] | (37 * i & 0x807f)));
    code_page(&asked, 0, bytes, sizeof(bytes));
    ck_assert_uint_eq(1u << STRAIT_BLOCK_BASE, block_modes());
    ck_assert_uint_eq(0, base());
}

TEST(every_base_ranks_every_exponent_once)
{
    static const int distances[] = {1, 2, 3, 0, 4, 5, 6, -1, 7, -2, 8, -3, 9, 10, 11};
    for (unsigned b = 0; b < 256; b++) {
        bool seen[256] = {false};
        struct table table;
        base_table(&table, (uint8_t)b);
        for (unsigned r = 0; r < 256; r++) {
            require(!seen[table.exponent[r]]);
            seen[table.exponent[r]] = true;
            require(r == table.rank[table.exponent[r]]);
        }
        for (int r = 0; r < COUNT(distances); r++)
            require((uint8_t)((int)b - distances[r]) == table.exponent[r]);
        ck_assert_uint_le(table.rank[0], 15);
        ck_assert_uint_le(table.window, 256 - 32);
    }
}

int main(void)
{
    print_conditions();
    return run_tests("codec", setup, teardown);
}
