/* Hostile blocks: streams that no encoder writes, any change, and memory that changes during the call. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/kernels/chunk_harness.h"
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
    setup_pages(2, &(struct shape){.page_count = 1, .rows = 1, .row_bytes = page_bytes});
}

/* n values of rank 0 as `tiered` or `top16`: sign+mantissa 0x12 each, except one, and codes of zero. */
TEST_LOOP(a_coded_block_of_equal_values_is_corrupt_and_of_nearly_equal_ones_is_not, 14)
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
    chunk_teardown();
}

TEST(a_const_block_has_a_value_a_tail_and_zeros)
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
    chunk_teardown();
}

TEST(a_raw_block_ends_in_zeros)
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
    chunk_teardown();
}

/* Check 9: what a mode's block must take at least, and less than raw. Raw bytes: one unit for up to 16. */
TEST_LOOP(a_block_of_impossible_size_is_refused_before_it_is_decoded, STRAIT_BLOCK_MODES)
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
        chunk_teardown();
    }
}

/* ---- A block --------------------------------------------------------------------------------------------------- */

/* The streams of the one block, as the format says. */
static struct streams {
    uint32_t n, t, n2, n3, n4;
    uint8_t *codes;                       /* C, T1 */
    uint8_t *count, *positions, *escapes; /* top16 */
    uint8_t *t2, *t3, *t4;                /* tiered */
    uint8_t *end;                         /* the tail byte, or what is after the streams */
} streams;

static uint32_t item(const uint8_t *stream, uint32_t i, uint32_t width)
{
    return stream[i * width / 8] >> i * width % 8 & ((1u << width) - 1);
}

static uint32_t count_items(const uint8_t *stream, uint32_t items, uint32_t width, uint32_t wanted)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < items; i++)
        count += item(stream, i, width) == wanted;
    return count;
}

static void set_item(uint8_t *stream, uint32_t i, uint32_t width, uint32_t value)
{
    uint32_t shift = i * width % 8, mask = (1u << width) - 1;
    stream[i * width / 8] = (uint8_t)((stream[i * width / 8] & ~(mask << shift)) | value << shift);
}

static void find_streams(uint32_t bytes, enum strait_mode mode)
{
    struct streams *s = &streams;
    *s = (struct streams){.n = bytes / 2, .t = bytes % 2};
    s->codes = chunk + BLOCK + s->n;
    if (mode == STRAIT_MODE_TOP16) {
        s->count = s->codes + (s->n + 1) / 2;
        s->positions = s->count + 2;
        s->escapes = s->positions + 2 * load_le16(s->count);
        s->end = s->escapes + load_le16(s->count);
        return;
    }
    s->t2 = s->codes + (s->n + 3) / 4;
    s->n2 = count_items(s->codes, s->n, 2, 3);
    s->t3 = s->t2 + (s->n2 + 3) / 4;
    s->n3 = count_items(s->t2, s->n2, 2, 3);
    s->t4 = s->t3 + (s->n3 + 1) / 2;
    s->n4 = count_items(s->t3, s->n3, 4, 15);
    s->end = s->t4 + s->n4;
}

/* A page of one block, whose ranks come round and round. For n = 131 and 153 `tiered` has unused bits after T1, T2, T3.
 */
static void block_init(uint32_t n, uint32_t t, enum strait_mode mode)
{
    static const uint8_t tiered_ranks[] = {0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 20, 21, 2, 0, 15, 1, 0, 200, 0, 3, 1, 0, 1, 2};
    static const uint8_t top16_ranks[] = {0, 16, 2, 3, 0, 0, 1, 2, 3, 4, 15, 14, 1, 1, 1, 1, 1, 0, 0, 0, 255, 4, 7, 7};
    const uint8_t *ranks = mode == STRAIT_MODE_TOP16 ? top16_ranks : tiered_ranks;
    uint8_t ranking[256], page[1000];
    test_ranking(ranking, 0);
    for (uint32_t i = 0; i < n; i++)
        put_value(page, i, join_value((uint8_t)(37 * i), ranking[ranks[i % sizeof(tiered_ranks)]]));
    page[2 * n] = 0x77;
    setup_pages(2, &(struct shape){.page_count = 1, .rows = 1, .row_bytes = 2 * n + t});
    layout_write(&src, 0, page);
    encode_chunk(mode);
    find_streams(2 * n + t, mode);
    ck_assert_ptr_eq(chunk + chunk_size, chunk + BLOCK + (streams.end + t - chunk - BLOCK + 15) / 16 * 16);
}

/* ---- Faults ---------------------------------------------------------------------------------------------------- */

static const struct {
    enum strait_mode mode;
    uint32_t n, t;
} block_pages[] = {{STRAIT_MODE_TOP16, 250, 0},
                   {STRAIT_MODE_TOP16, 251, 1},
                   {STRAIT_MODE_TOP16, 253, 0},
                   {STRAIT_MODE_TIERED, 131, 0},
                   {STRAIT_MODE_TIERED, 153, 1}};

/* Sets of these pages. */
enum { TOP16 = 7, ODD_TOP16 = 6, TIERED = 24, ALL = 31, TAILS = 18 };

static uint8_t *last_position(void)
{
    return streams.escapes - 2;
}

static void drop_t4_code(void)
{
    uint32_t i = 0;
    while (item(streams.t3, i, 4) != 15)
        i++;
    set_item(streams.t3, i, 4, 0);
}

/* Name, pages that it is for, what is found, how it is made. */
#define FAULTS(X)                                                                                             \
    X(no_escapes, TOP16, CORRUPT, store_le16(streams.count, 0))                                               \
    X(an_escape_less, TOP16, CORRUPT, store_le16(streams.count, load_le16(streams.count) - 1))                \
    X(an_escape_more, TOP16, CORRUPT, store_le16(streams.count, load_le16(streams.count) + 1))                \
    X(more_escapes_than_values, TOP16, CORRUPT, store_le16(streams.count, (uint16_t)(streams.n + 1)))         \
    X(as_many_escapes_as_values, TOP16, CORRUPT, store_le16(streams.count, (uint16_t)streams.n))              \
    X(escapes_65535, TOP16, CORRUPT, store_le16(streams.count, 65535))                                        \
    X(equal_positions, TOP16, CORRUPT, store_le16(streams.positions + 2, load_le16(streams.positions)))       \
    X(falling_positions, TOP16, CORRUPT, store_le16(streams.positions, load_le16(streams.positions + 2) + 1)) \
    X(position_n, TOP16, CORRUPT, store_le16(last_position(), (uint16_t)streams.n))                           \
    X(position_8192, TOP16, CORRUPT, store_le16(last_position(), 8192))                                       \
    X(position_65535, TOP16, CORRUPT, store_le16(last_position(), 65535))                                     \
    X(first_position_beyond, TOP16, CORRUPT, store_le16(streams.positions, 65535))                            \
    X(another_position, TOP16, INTEGRITY, store_le16(streams.positions, 0)) /* of a value of rank 0 */        \
    X(escape_of_rank_15, TOP16, CORRUPT, streams.escapes[0] = exponent_of_rank(15))                           \
    X(last_escape_of_rank_0, TOP16, CORRUPT, streams.end[-1] = exponent_of_rank(0))                           \
    X(escape_of_another_rank, TOP16, INTEGRITY, streams.escapes[0] = exponent_of_rank(17))                    \
    X(code_at_an_escape, TOP16, CORRUPT, set_item(streams.codes, load_le16(streams.positions), 4, 1))         \
    X(code_at_the_last_escape, TOP16, CORRUPT, set_item(streams.codes, load_le16(last_position()), 4, 15))    \
    X(another_code, TOP16, INTEGRITY, set_item(streams.codes, 0, 4, 5))                                       \
    X(unused_code_bits, ODD_TOP16, CORRUPT, set_item(streams.codes, streams.n, 4, 8))                         \
    X(unused_t1_bits, TIERED, CORRUPT, set_item(streams.codes, streams.n, 2, 1))                              \
    X(unused_t1_item_of_3, TIERED, CORRUPT, set_item(streams.codes, streams.n, 2, 3))                         \
    X(unused_t2_bits, TIERED, CORRUPT, set_item(streams.t2, streams.n2, 2, 2))                                \
    X(unused_t2_item_of_3, TIERED, CORRUPT, set_item(streams.t2, streams.n2, 2, 3))                           \
    X(unused_t3_bits, TIERED, CORRUPT, set_item(streams.t3, streams.n3, 4, 1))                                \
    X(unused_t3_item_of_15, TIERED, CORRUPT, set_item(streams.t3, streams.n3, 4, 15))                         \
    X(t4_of_rank_20, TIERED, CORRUPT, streams.t4[0] = exponent_of_rank(20))                                   \
    X(last_t4_of_rank_0, TIERED, CORRUPT, streams.end[-1] = exponent_of_rank(0))                              \
    X(t4_of_another_rank, TIERED, INTEGRITY, streams.t4[0] = exponent_of_rank(22))                            \
    X(t1_all_3, TIERED, CORRUPT, memset(streams.codes, 0xff, streams.n / 4))                                  \
    X(t2_all_3, TIERED, CORRUPT, memset(streams.t2, 0xff, streams.n2 / 4))                                    \
    X(t3_all_15, TIERED, CORRUPT, memset(streams.t3, 0xff, streams.n3 / 2))                                   \
    X(a_t3_item_more, TIERED, INTEGRITY, set_item(streams.t2, 0, 2, 3))                                       \
    X(a_t4_byte_too_many, TIERED, CORRUPT, drop_t4_code())                                                    \
    X(everything_ff, ALL, CORRUPT, memset(streams.codes, 0xff, (size_t)(chunk + chunk_size - streams.codes))) \
    X(everything_0, ALL, CORRUPT, memset(streams.codes, 0, (size_t)(chunk + chunk_size - streams.codes)))     \
    X(padding_begins_nonzero, ALL, CORRUPT, streams.end[streams.t] = 1)                                       \
    X(padding_ends_nonzero, ALL, CORRUPT, chunk[chunk_size - 1] = 0x80)                                       \
    X(another_tail, TAILS, INTEGRITY, streams.end[0] ^= 0x20)                                                 \
    X(another_sign, ALL, INTEGRITY, chunk[BLOCK] ^= 0x80)                                                     \
    X(a_unit_more, ALL, CORRUPT, block_resize(1))                                                             \
    X(two_units_more, ALL, CORRUPT, block_resize(2))                                                          \
    X(a_unit_less, ALL, CORRUPT, block_resize(-1))

#define X(name, pages, expected, change) \
    static void name(void)               \
    {                                    \
        change;                          \
    }
FAULTS(X)
#undef X

static const struct fault {
    const char *what;
    void (*spoil)(void);
    unsigned pages;
    enum strait_status expected;
} faults[] = {
#define X(name, pages, expected, change) {#name, name, pages, STRAIT_ERR_##expected},
    FAULTS(X)
#undef X
};

TEST_LOOP(streams_that_no_encoder_writes_are_refused, COUNT(faults))
{
    const struct fault *fault = &faults[_i];
    for (int p = 0; p < COUNT(block_pages); p++) {
        if ((fault->pages >> p & 1) == 0)
            continue;
        block_init(block_pages[p].n, block_pages[p].t, block_pages[p].mode);
        fault->spoil();
        assert_page_fails(judge_repaired(chunk_size), 0, fault->expected, fault->what);
        chunk_teardown();
    }
}

/* ---- Blocks of typed modes: 6 to 8, 10 and 11 ------------------------------------------------------------------- */

static const struct kind {
    enum strait_element element;
    enum strait_mode mode;
    enum pattern pattern;
    enum strait_block_mode block_mode;
} kinds[] = {
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, PATTERN_MIDDLE, STRAIT_BLOCK_BASE},
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, PATTERN_SPREAD, STRAIT_BLOCK_BASE},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE, PATTERN_FP16, STRAIT_BLOCK_SPLIT},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, PATTERN_FP16, STRAIT_BLOCK_SPLIT},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, PATTERN_FALLING, STRAIT_BLOCK_SPLIT},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, PATTERN_FALLING, STRAIT_BLOCK_SPLIT},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, PATTERN_WIDENED, STRAIT_BLOCK_FP32Z},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, PATTERN_WIDENED, STRAIT_BLOCK_FP32Z},
    {STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE, PATTERN_FP8, STRAIT_BLOCK_FP8},
    {STRAIT_ELEMENT_FP8_E5M2, STRAIT_MODE_SPLIT, PATTERN_FP8, STRAIT_BLOCK_FP8},
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS, PATTERN_FALLING, STRAIT_BLOCK_PARTS},
    {STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS, PATTERN_RUNS, STRAIT_BLOCK_PARTS},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS, PATTERN_FP16, STRAIT_BLOCK_PARTS},
    {STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS, PATTERN_NARROWED, STRAIT_BLOCK_PARTS},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS, PATTERN_FALLING, STRAIT_BLOCK_PARTS},
    {STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS, PATTERN_WIDENED, STRAIT_BLOCK_PARTS},
};

/* Lengths with ragged ends. */
static const uint32_t kind_bytes[] = {801, 802, 803, 516, 1024};
enum {
    KINDS = COUNT(kinds) * COUNT(kind_bytes),
    FP8_END = KINDS - 6 * COUNT(kind_bytes), /* those of `parts` follow */
    BASE_KINDS = FP8_END - 2 * COUNT(kind_bytes),
};

/* A page of one block of a kind, of a length. Values are drawn again while so few of them happen not to shrink. */
static void kind_init(int index)
{
    const struct kind *kind = &kinds[index / COUNT(kind_bytes)];
    struct strait_page_info info = {0};
    struct rng rng = rng_init(400 + (uint64_t)index);
    setup_pages(4, &(struct shape){.page_count = 1, .rows = 1, .row_bytes = kind_bytes[index % COUNT(kind_bytes)]});
    for (int draw = 0; draw < 100 && info.block_modes != 1u << kind->block_mode; draw++) {
        layout_fill(&src, &rng, kind->pattern, codebook);
        encode_values(kind->element, kind->mode);
        ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, chunk_size, 1, &info));
    }
    ck_assert_uint_eq(1u << kind->block_mode, info.block_modes);
}

static int judged_status(void)
{
    return judge(chunk_size).verified.result.status;
}

static bool is_bad_page(int status)
{
    return status == STRAIT_ERR_CORRUPT || status == STRAIT_ERR_INTEGRITY;
}

TEST_LOOP(every_other_coder_and_base_is_refused, BASE_KINDS)
{
    kind_init(_i);
    const unsigned right_coder = chunk[chunk_size - 2], right_base = chunk[chunk_size - 1];
    for (unsigned c = 0; c < 256; c += c < 8 ? 1 : 31) {
        for (unsigned b = 0; b < 256; b++) {
            chunk[chunk_size - 2] = (uint8_t)c;
            chunk[chunk_size - 1] = (uint8_t)b;
            int status = judged_status();
            if (c == right_coder && b == right_base)
                require(STRAIT_OK == status);
            else if (c > 3 || (c == 0 && b != 0))
                require(STRAIT_ERR_CORRUPT == status);
            else
                require(is_bad_page(status));
        }
    }
    chunk_teardown();
}

enum { RANKING = 9 };

TEST_RANGE(every_other_byte_of_a_ranking_is_refused, BASE_KINDS, FP8_END)
{
    kind_init(_i);
    const unsigned exponents = kinds[_i / COUNT(kind_bytes)].element == STRAIT_ELEMENT_FP8_E4M3 ? 16 : 32;
    for (unsigned r = 1; r <= RANKING; r++) {
        uint8_t *byte = chunk + chunk_size - r, right = *byte;
        for (unsigned e = 0; e < 256; e++) {
            *byte = (uint8_t)e;
            require((e == right ? STRAIT_OK : STRAIT_ERR_CORRUPT) == judged_status() ||
                    (e != right && e < exponents && is_bad_page(judged_status())));
        }
        *byte = right;
    }
    chunk_teardown();
}

/* Bytes at the end of a block of a kind. */
static size_t end_size_of(int index)
{
    const uint32_t value_bytes = kinds[index / COUNT(kind_bytes)].element == STRAIT_ELEMENT_FP32 ? 4 : 2;
    if (index < BASE_KINDS)
        return 2;
    if (index < FP8_END)
        return RANKING;
    const uint32_t parts = (kind_bytes[index % COUNT(kind_bytes)] / value_bytes + 255) / 256;
    const size_t end = 2 + (chunk[chunk_size - 1] == 0 ? 0 : parts);
    return end + (chunk[chunk_size - 2] < 128 ? 0 : 2 + 4 * load_le16(chunk + chunk_size - end - 2)); /* patches */
}

TEST_LOOP(a_block_of_another_length_is_refused, KINDS)
{
    kind_init(_i);
    const size_t end_size = end_size_of(_i);
    const uint64_t whole = chunk_size;
    static uint8_t right[CHUNK_MAX];
    memcpy(right, chunk, whole);
    for (chunk_size = BLOCK + (end_size + 15) / 16 * 16; chunk_size < whole + 1024; chunk_size += 16) {
        memcpy(chunk, right, whole);
        memset(chunk + whole, 0, CHUNK_MAX - whole);
        if (chunk_size > whole)
            memset(chunk + whole - end_size, 0, end_size);
        memcpy(chunk + chunk_size - end_size, right + whole - end_size, end_size);
        store_le32(chunk + 16, (uint32_t)chunk_size);
        repair_metadata(chunk, chunk_size);
        ck_assert_int_eq(chunk_size == whole ? STRAIT_OK : STRAIT_ERR_CORRUPT, judged_status());
    }
    chunk_teardown();
}

/* Streams of zeros and of ones, with every coder. */
TEST_LOOP(blocks_of_one_byte_are_refused, BASE_KINDS)
{
    kind_init(_i);
    for (unsigned fill = 0; fill < 256; fill += 51) {
        memset(chunk + BLOCK, (int)fill, chunk_size - BLOCK);
        for (unsigned c = 0; c < 4; c++) {
            for (unsigned b = 0; b < 256; b++) {
                chunk[chunk_size - 2] = (uint8_t)c;
                chunk[chunk_size - 1] = (uint8_t)b;
                require(is_bad_page(judged_status()));
            }
        }
    }
    chunk_teardown();
}

TEST_RANGE(blocks_of_one_byte_before_a_ranking_are_refused, BASE_KINDS, FP8_END)
{
    kind_init(_i);
    for (unsigned fill = 0; fill < 256; fill += 17) {
        memset(chunk + BLOCK, (int)fill, chunk_size - BLOCK - RANKING);
        require(is_bad_page(judged_status()));
        memset(chunk + chunk_size - RANKING, (int)fill, RANKING);
        require(is_bad_page(judged_status()));
        for (unsigned r = 0; r < RANKING; r++)
            chunk[chunk_size - RANKING + r] = (uint8_t)r;
        require(is_bad_page(judged_status()));
    }
    chunk_teardown();
}

/* A `tiered` block of these streams has no end of two bytes, without which the last unit may be one too many. */
static bool has_length_of_tiered(uint32_t bytes)
{
    find_streams(bytes, STRAIT_MODE_TIERED);
    return (size_t)(streams.end + streams.t - chunk + 15) / 16 == chunk_size / 16;
}

TEST_LOOP(a_mode_of_another_type_is_refused, KINDS)
{
    static const uint8_t no_id[STRAIT_CODEBOOK_ID_BYTES];
    kind_init(_i);
    const uint8_t right_mode = chunk[48] & 15, right_element = chunk[5];
    const uint8_t other_mode = right_element == STRAIT_ELEMENT_FP32   ? STRAIT_BLOCK_SPLIT
                               : right_element == STRAIT_ELEMENT_BF16 ? STRAIT_BLOCK_TIERED
                                                                      : STRAIT_BLOCK_PARTS;
    const bool whole = load_le16(chunk + chunk_size - 2) == 0 &&
                       (right_mode == STRAIT_BLOCK_PARTS || (right_mode == other_mode && right_mode > 4));
    const bool is_as_long =
        other_mode != STRAIT_BLOCK_TIERED || has_length_of_tiered(kind_bytes[_i % COUNT(kind_bytes)]);
    for (unsigned mode = 0; mode < 16; mode++) {
        for (uint8_t element = 0; element <= STRAIT_ELEMENT_FP8_E5M2; element++) {
            bool known = mode <= 4 || (mode >= 6 && mode <= 8) || mode == 10 || mode == 11,
                 right = mode == right_mode && element == right_element;
            bool fits = mode == 6    ? element == STRAIT_ELEMENT_BF16
                        : mode == 7  ? element == STRAIT_ELEMENT_FP16 || element == STRAIT_ELEMENT_FP32
                        : mode == 8  ? element == STRAIT_ELEMENT_FP32
                        : mode == 10 ? element >= STRAIT_ELEMENT_FP8_E4M3
                        : mode == 11 ? element >= STRAIT_ELEMENT_BF16 && element <= STRAIT_ELEMENT_FP32
                                     : element == STRAIT_ELEMENT_BF16 && memcmp(chunk + 24, no_id, sizeof(no_id)) != 0;
            chunk[48] = (uint8_t)((chunk[48] & 0xf0) | mode);
            chunk[5] = element;
            repair_metadata(chunk, chunk_size);
            int status = judged_status();
            /* With all of their bits, values that a table codes are the same in mode 11 as in mode 4 or 7. */
            right |=
                whole && element == right_element && (mode == STRAIT_BLOCK_PARTS || (mode == other_mode && is_as_long));
            ck_assert_int_eq(right, status == STRAIT_OK);
            ck_assert_int_eq(!known, status == STRAIT_ERR_UNSUPPORTED);
            if (known && !fits)
                ck_assert_int_eq(STRAIT_ERR_CORRUPT, status);
        }
    }
    chunk_teardown();
}

/* ---- Blocks of all modes --------------------------------------------------------------------------------------- */

enum { CODED = 40 }; /* pages of the older modes, of lengths with all kinds of ragged ends */

TEST_LOOP(every_changed_byte_of_a_block_is_seen, CODED + KINDS)
{
    struct rng rng = rng_init(500 + (uint64_t)_i);
    uint32_t n = 120 + (uint32_t)_i / 2;
    if (_i < CODED)
        block_init(n, n % 3 == 0, coded_modes[_i % 2]);
    else
        kind_init(_i - CODED);
    for (uint64_t i = BLOCK; i < chunk_size; i++) {
        for (int k = 0; k < 12; k += STRIDE) {
            uint8_t before = chunk[i], random = (uint8_t)(1 + rng_below(&rng, 255));
            chunk[i] ^= k < 8 ? (uint8_t)(1u << k) : random;
            int status = judged_status();
            if (!is_bad_page(status))
                ck_abort_msg("byte %u ^ %u: %d", (unsigned)i - BLOCK, before ^ chunk[i], status);
            chunk[i] = before;
        }
    }
    ck_assert_int_eq(STRAIT_OK, judged_status());
    chunk_teardown();
}

/* Writes to the blocks of the chunk, and often to the end of the last, until it is told to stop. */
struct meddler {
    uint8_t *blocks;
    size_t size;
    atomic_bool stop;
};

static void *meddle(void *arg)
{
    struct meddler *meddler = arg;
    struct rng rng = rng_init(600);
    while (!atomic_load(&meddler->stop)) {
        uint64_t random = rng_next(&rng);
        bool at_end = rng_below(&rng, 8) == 0;
        volatile uint8_t *byte = meddler->blocks + (at_end ? meddler->size - 1 - random % 2 : random % meddler->size);
        uint8_t before = *byte;
        *byte ^= (uint8_t)(random >> 56 | 1);
        for (int wait = 0; wait < 20; wait++) /* or nobody would see it */
            rng_next(&rng);
        *byte = before;
    }
    return NULL;
}

/* Pages that passed are what was encoded. */
static void check_passed(const struct verdict *verdict)
{
    static uint8_t a[CHUNK_MAX], b[CHUNK_MAX];
    for (uint32_t p = 0; p < layout_count(&dst); p++) {
        layout_read(&src, p, a);
        layout_read(&dst, p, b);
        ck_assert(verdict->page_status[p] != STRAIT_OK || memcmp(a, b, layout_page_bytes(&dst, p)) == 0);
    }
}

static const enum strait_mode busy_modes[] = {STRAIT_MODE_RAW, STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};
enum { BUSY = COUNT(busy_modes) + COUNT(kinds) };

TEST_LOOP(blocks_that_change_during_the_call_fail_or_are_what_was_encoded, BUSY *variant_count())
{
    const struct strait_codec *codec = variant(_i / BUSY);
    const int row = _i % BUSY, later = row - COUNT(busy_modes);
    const struct shape shape = {
        .page_count = 3, .rows = 1, .row_bytes = 16384 + 4001, .page_gap = 3, .table = later < 0 ? 4 : 0};
    struct meddler meddler = {.stop = false};
    struct verdict verdict;
    struct rng rng = rng_init(601);
    pthread_t thread;
    setup_pages(4, &shape);
    layout_fill(&src, &rng, later < 0 ? PATTERN_RARE : kinds[later].pattern, codebook);
    encode_values(later < 0 ? STRAIT_ELEMENT_BF16 : kinds[later].element,
                  later < 0 ? busy_modes[row] : kinds[later].mode);
    uint8_t *bytes = room.bytes + room.size - chunk_size;
    memcpy(bytes, chunk, chunk_size);
    meddler.blocks = bytes + 16 * (load_le32(bytes + 48) >> 4);
    meddler.size = (size_t)(room.bytes + room.size - meddler.blocks);
    ck_assert_int_eq(0, pthread_create(&thread, NULL, meddle, &meddler));
    for (int k = 0; k < (later < 0 ? 2000 : 200); k++) {
        layout_clear(&dst);
        decode_layout(codec, codebook, &dst, NULL, bytes, chunk_size, &verdict);
        ck_assert_int_eq(STRAIT_OK, verdict.result.chunk_status);
        ck_assert(layout_intact(&dst));
        check_passed(&verdict);
    }
    atomic_store(&meddler.stop, true);
    pthread_join(thread, NULL);
    chunk_teardown();
}

int main(void)
{
    print_conditions();
    return run_tests("chunk_blocks", NULL, NULL);
}
