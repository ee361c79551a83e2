/* Hostile chunks of one block: blocks and streams that no encoder writes. */
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
    chunk_teardown();
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
    chunk_teardown();
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
    chunk_teardown();
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
        chunk_teardown();
    }
}
END_TEST

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
    setup_pages(&(struct shape){.page_count = 1, .rows = 1, .row_bytes = 2 * n + t});
    layout_write(&src, 0, page);
    encode_chunk(mode);
    find_streams(2 * n + t, mode);
    ck_assert_ptr_eq(chunk + chunk_size, chunk + BLOCK + (streams.end + t - chunk - BLOCK + 15) / 16 * 16);
}

/* ---- Faults ---------------------------------------------------------------------------------------------------- */

#define FAULT(name, change) \
    static void name(void)  \
    {                       \
        change;             \
    }

FAULT(no_escapes, store_le16(streams.count, 0))
FAULT(an_escape_less, store_le16(streams.count, load_le16(streams.count) - 1))
FAULT(an_escape_more, store_le16(streams.count, load_le16(streams.count) + 1))
FAULT(more_escapes_than_values, store_le16(streams.count, (uint16_t)(streams.n + 1)))
FAULT(as_many_escapes_as_values, store_le16(streams.count, (uint16_t)streams.n))
FAULT(escapes_65535, store_le16(streams.count, 65535))
FAULT(equal_positions, store_le16(streams.positions + 2, load_le16(streams.positions)))
FAULT(falling_positions, store_le16(streams.positions, load_le16(streams.positions + 2) + 1))
static uint8_t *last_position(void)
{
    return streams.escapes - 2;
}
FAULT(position_n, store_le16(last_position(), (uint16_t)streams.n))
FAULT(position_8192, store_le16(last_position(), 8192))
FAULT(position_65535, store_le16(last_position(), 65535))
FAULT(first_position_beyond, store_le16(streams.positions, 65535))
FAULT(escape_of_rank_15, streams.escapes[0] = exponent_of_rank(15))
FAULT(last_escape_of_rank_0, streams.end[-1] = exponent_of_rank(0))
FAULT(escape_of_another_rank, streams.escapes[0] = exponent_of_rank(17))
FAULT(code_at_an_escape, set_item(streams.codes, load_le16(streams.positions), 4, 1))
FAULT(code_at_the_last_escape, set_item(streams.codes, load_le16(last_position()), 4, 15))
FAULT(another_code, set_item(streams.codes, 0, 4, 5))
static void another_position(void)
{
    store_le16(streams.positions, 0);
} /* of a value of rank 0 */
FAULT(unused_code_bits, set_item(streams.codes, streams.n, 4, 8))
FAULT(padding_begins_nonzero, streams.end[streams.t] = 1)
FAULT(padding_ends_nonzero, chunk[chunk_size - 1] = 0x80)
FAULT(another_tail, streams.end[0] ^= 0x20)
FAULT(another_sign, chunk[BLOCK] ^= 0x80)
FAULT(a_unit_more, block_resize(1))
FAULT(a_unit_less, block_resize(-1))
FAULT(two_units_more, block_resize(2))

FAULT(unused_t1_bits, set_item(streams.codes, streams.n, 2, 1))
FAULT(unused_t1_item_of_3, set_item(streams.codes, streams.n, 2, 3))
FAULT(unused_t2_bits, set_item(streams.t2, streams.n2, 2, 2))
FAULT(unused_t2_item_of_3, set_item(streams.t2, streams.n2, 2, 3))
FAULT(unused_t3_bits, set_item(streams.t3, streams.n3, 4, 1))
FAULT(unused_t3_item_of_15, set_item(streams.t3, streams.n3, 4, 15))
FAULT(t4_of_rank_20, streams.t4[0] = exponent_of_rank(20))
FAULT(last_t4_of_rank_0, streams.end[-1] = exponent_of_rank(0))
FAULT(t4_of_another_rank, streams.t4[0] = exponent_of_rank(22))
FAULT(t1_all_3, memset(streams.codes, 0xff, streams.n / 4))
FAULT(t2_all_3, memset(streams.t2, 0xff, streams.n2 / 4))
FAULT(t3_all_15, memset(streams.t3, 0xff, streams.n3 / 2))
FAULT(everything_ff, memset(streams.codes, 0xff, (size_t)(chunk + chunk_size - streams.codes)))
FAULT(everything_0, memset(streams.codes, 0, (size_t)(chunk + chunk_size - streams.codes)))
FAULT(a_t3_item_more, set_item(streams.t2, 0, 2, 3))
static void a_t4_byte_too_many(void)
{
    for (uint32_t i = 0; i < streams.n3; i++)
        if (item(streams.t3, i, 4) == 15) {
            set_item(streams.t3, i, 4, 0);
            return;
        }
}

static const struct spoiled_block {
    const char *what;
    void (*spoil)(void);
    enum strait_status expected;
    enum strait_mode mode;
    uint32_t n, t;
} spoiled_blocks[] = {
#define CASE(spoil, expected, mode, n, t)                              \
    {                                                                  \
#spoil, spoil, STRAIT_ERR_##expected, STRAIT_MODE_##mode, n, t \
    }
#define TOP16(spoil, expected)  CASE(spoil, expected, TOP16, 250, 0), CASE(spoil, expected, TOP16, 251, 1)
#define TIERED(spoil, expected) CASE(spoil, expected, TIERED, 131, 0), CASE(spoil, expected, TIERED, 153, 1)
    TOP16(no_escapes, CORRUPT),
    TOP16(an_escape_less, CORRUPT),
    TOP16(an_escape_more, CORRUPT),
    TOP16(more_escapes_than_values, CORRUPT),
    TOP16(as_many_escapes_as_values, CORRUPT),
    TOP16(escapes_65535, CORRUPT),
    TOP16(equal_positions, CORRUPT),
    TOP16(falling_positions, CORRUPT),
    TOP16(position_n, CORRUPT),
    TOP16(position_8192, CORRUPT),
    TOP16(position_65535, CORRUPT),
    TOP16(first_position_beyond, CORRUPT),
    TOP16(escape_of_rank_15, CORRUPT),
    TOP16(last_escape_of_rank_0, CORRUPT),
    TOP16(escape_of_another_rank, INTEGRITY),
    TOP16(code_at_an_escape, CORRUPT),
    TOP16(code_at_the_last_escape, CORRUPT),
    TOP16(another_code, INTEGRITY),
    TOP16(another_position, INTEGRITY),
    CASE(unused_code_bits, CORRUPT, TOP16, 251, 1),
    CASE(unused_code_bits, CORRUPT, TOP16, 253, 0),
    TOP16(padding_begins_nonzero, CORRUPT),
    TOP16(padding_ends_nonzero, CORRUPT),
    CASE(another_tail, INTEGRITY, TOP16, 251, 1),
    TOP16(another_sign, INTEGRITY),
    TOP16(a_unit_more, CORRUPT),
    TOP16(two_units_more, CORRUPT),
    TOP16(a_unit_less, CORRUPT),
    TOP16(everything_ff, CORRUPT),
    TOP16(everything_0, CORRUPT),
    TIERED(unused_t1_bits, CORRUPT),
    TIERED(unused_t1_item_of_3, CORRUPT),
    TIERED(unused_t2_bits, CORRUPT),
    TIERED(unused_t2_item_of_3, CORRUPT),
    TIERED(unused_t3_bits, CORRUPT),
    TIERED(unused_t3_item_of_15, CORRUPT),
    TIERED(t4_of_rank_20, CORRUPT),
    TIERED(last_t4_of_rank_0, CORRUPT),
    TIERED(t4_of_another_rank, INTEGRITY),
    TIERED(t1_all_3, CORRUPT),
    TIERED(t2_all_3, CORRUPT),
    TIERED(t3_all_15, CORRUPT),
    TIERED(everything_ff, CORRUPT),
    TIERED(everything_0, CORRUPT),
    TIERED(a_t3_item_more, INTEGRITY),
    TIERED(a_t4_byte_too_many, CORRUPT),
    TIERED(padding_begins_nonzero, CORRUPT),
    TIERED(padding_ends_nonzero, CORRUPT),
    CASE(another_tail, INTEGRITY, TIERED, 153, 1),
    TIERED(another_sign, INTEGRITY),
    TIERED(a_unit_more, CORRUPT),
    TIERED(two_units_more, CORRUPT),
    TIERED(a_unit_less, CORRUPT),
};

START_TEST(streams_that_no_encoder_writes_are_refused)
{
    const struct spoiled_block *spoiled = &spoiled_blocks[_i];
    block_init(spoiled->n, spoiled->t, spoiled->mode);
    spoiled->spoil();
    assert_page_fails(judge_repaired(chunk_size), 0, spoiled->expected, spoiled->what);
    chunk_teardown();
}
END_TEST

/* Every change of one bit or byte of a block, for lengths with all kinds of ragged ends. */
START_TEST(every_changed_byte_of_a_block_is_seen)
{
    struct rng rng = rng_init(500 + (uint64_t)_i);
    uint32_t n = 120 + (uint32_t)_i / 2;
    block_init(n, n % 3 == 0, coded_modes[_i % 2]);
    for (uint64_t i = BLOCK; i < chunk_size; i++) {
        for (int k = 0; k < 12; k += STRIDE) {
            uint8_t before = chunk[i], random = (uint8_t)(1 + rng_below(&rng, 255));
            chunk[i] ^= k < 8 ? (uint8_t)(1u << k) : random;
            struct judgement j = judge(chunk_size);
            if (!is_refused(&j))
                ck_abort_msg("byte %u ^ %u", (unsigned)i - BLOCK, before ^ chunk[i]);
            chunk[i] = before;
        }
    }
    chunk_teardown();
}
END_TEST

/* ---- All of it ------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("chunk_blocks");
    TCase *blocks = add_case(suite, "blocks");
    TCase *streams_case = add_case(suite, "blocks");
    print_conditions();
    tcase_add_loop_test(blocks, a_coded_block_of_equal_values_is_corrupt_and_of_nearly_equal_ones_is_not, 0, 14);
    tcase_add_test(blocks, a_const_block_has_a_value_a_tail_and_zeros);
    tcase_add_test(blocks, a_raw_block_ends_in_zeros);
    tcase_add_loop_test(blocks, a_block_of_impossible_size_is_refused_before_it_is_decoded, 0, STRAIT_BLOCK_MODES);
    tcase_add_loop_test(streams_case, streams_that_no_encoder_writes_are_refused, 0, COUNT(spoiled_blocks));
    tcase_add_loop_test(streams_case, every_changed_byte_of_a_block_is_seen, 0, 40);
    return run_suite(suite);
}
