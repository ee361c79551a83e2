/* Blocks of modes 6 to 8: FP16 and FP32, and codes from a block's own large exponents. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "kernels/block_typed.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { PAGE_MAX = 65536, CHUNK_MAX = PAGE_MAX + 4096, BLOCK = 64 }; /* header and one entry */

static struct strait_codebook *codebook;

static void setup(void)
{
    codebook = test_codebook();
}

static void teardown(void)
{
    strait_codebook_destroy(codebook);
}

/* ---- One page ---------------------------------------------------------------------------------------------------- */

static const enum strait_element elements[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32};
static const enum strait_mode modes[] = {STRAIT_MODE_BASE, STRAIT_MODE_SPLIT};

static struct asked ask(enum strait_element element, enum strait_mode mode)
{
    return (struct asked){mode == STRAIT_MODE_BASE ? NULL : codebook, element, mode};
}

/* The chunk of a page that went through every variant and back. */
static uint8_t chunk[CHUNK_MAX];
static uint64_t chunk_size;
static struct verdict encoded;

static void page_chunk(const struct asked *asked, const uint8_t *bytes, uint32_t size)
{
    struct layout src;
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = size};
    layout_init(&src, 4, &shape, 1, NULL, 1);
    layout_write(&src, 0, bytes);
    uint8_t *made = round_trip(asked, &src, &encoded);
    chunk_size = encoded.result.bytes;
    ck_assert_uint_le(chunk_size, CHUNK_MAX);
    memcpy(chunk, made, chunk_size);
    free(made);
    layout_fini(&src);
}

static uint32_t block_modes(void)
{
    struct strait_page_info info;
    ck_assert_int_eq(STRAIT_OK, strait_chunk_pages(chunk, chunk_size, 1, &info));
    return info.block_modes;
}

static const uint32_t sizes[] = {1,    2,     3,     4,     16,    17,    18,    19,    20,    33,    64,    65,
                                 66,   67,    100,   131,   255,   256,   258,   259,   1000,  1023,  4099,  8190,
                                 8191, 16380, 16381, 16382, 16383, 16384, 16385, 16386, 16387, 16388, 32771, 65536};

START_TEST(pages_of_every_type_size_and_pattern_come_back_from_every_variant)
{
    static uint8_t bytes[PAGE_MAX];
    struct rng rng = rng_init(100 + (uint64_t)_i);
    uint32_t size = sizes[_i];
    uint8_t ranking[256];
    test_ranking(ranking, 0);
    for (int k = 0; k < COUNT(elements) * COUNT(modes) * PATTERNS; k++) {
        const struct asked asked = ask(elements[k % 3], modes[k / 3 % 2]);
        fill_pattern(&rng, (enum pattern)(k / 6), ranking, bytes, size);
        page_chunk(&asked, bytes, size);
        ck_assert_uint_le(chunk_size, BLOCK + 16 * (size / 16384 + 1) + (size + 15) / 16 * 16);
    }
}
END_TEST

/* Among values that let the block shrink. */
START_TEST(every_one_of_65536_values_of_fp16_comes_back)
{
    enum { VALUES = 8192, RARE = 128 };
    const struct asked asked = ask(STRAIT_ELEMENT_FP16, modes[_i]);
    struct rng rng = rng_init(200);
    uint8_t bytes[2 * VALUES], ranking[256];
    test_ranking(ranking, 0);
    for (uint32_t first = 0; first < 65536; first += RARE) {
        fill_pattern(&rng, PATTERN_FP16, ranking, bytes, sizeof(bytes));
        for (uint32_t i = 0; i < RARE; i++)
            put_value(bytes, i * (VALUES / RARE), (uint16_t)(first + i));
        page_chunk(&asked, bytes, sizeof(bytes));
        if (modes[_i] == STRAIT_MODE_SPLIT) /* a large one may leave no base for the others */
            ck_assert_uint_eq(1u << STRAIT_BLOCK_SPLIT, block_modes());
    }
}
END_TEST

/* ---- Which mode, which coder, which base ------------------------------------------------------------------------- */

START_TEST(one_bit_of_a_lower_half_decides_between_fp32z_and_split)
{
    enum { VALUES = 1001 };
    const struct asked asked = ask(STRAIT_ELEMENT_FP32, modes[_i]);
    static const uint32_t places[] = {0, 1, 63, 64, 500, 999, 1000};
    struct rng rng = rng_init(300);
    uint8_t bytes[4 * VALUES], ranking[256];
    test_ranking(ranking, 0);
    fill_pattern(&rng, PATTERN_WIDENED, ranking, bytes, sizeof(bytes));
    page_chunk(&asked, bytes, sizeof(bytes));
    ck_assert_uint_eq(1u << STRAIT_BLOCK_FP32Z, block_modes());
    ck_assert_uint_le(chunk_size, BLOCK + VALUES * 12 / 8 + 16);
    for (int k = 0; k < COUNT(places) * 16; k++) {
        uint8_t *value = bytes + 4 * places[k / 16];
        store_le32(value, load_le32(value) | 1u << k % 16);
        page_chunk(&asked, bytes, sizeof(bytes));
        ck_assert_uint_eq(1u << STRAIT_BLOCK_SPLIT, block_modes());
        store_le16(value, 0);
    }
}
END_TEST

START_TEST(values_without_a_codebook_are_not_of_any_table)
{
    struct strait_chunk_info info;
    struct rng rng = rng_init(301);
    uint8_t bytes[2000], ranking[256];
    const struct asked asked = ask(elements[_i], STRAIT_MODE_BASE);
    test_ranking(ranking, 0);
    fill_pattern(&rng, _i == 1 ? PATTERN_FP16 : PATTERN_LOW, ranking, bytes, sizeof(bytes));
    page_chunk(&asked, bytes, sizeof(bytes));
    ck_assert_int_eq(STRAIT_OK, strait_chunk_info(chunk, chunk_size, &info));
    ck_assert(is_filled(info.codebook_id, sizeof(info.codebook_id), 0));
    ck_assert_uint_ne(0, block_modes() & (1u << STRAIT_BLOCK_BASE | 1u << STRAIT_BLOCK_SPLIT));
}
END_TEST

/* Values whose exponents are `from` less 0, 1, ... `count` - 1, round and round. */
static void fill_falling(uint8_t *bytes, uint32_t values, uint32_t from, uint32_t count)
{
    for (uint32_t i = 0; i < values; i++)
        put_value(bytes, i, join_value((uint8_t)(37 * i), (uint8_t)(from - i % count)));
}

static unsigned coder(void)
{
    return chunk[chunk_size - 2];
}

static unsigned base(void)
{
    return chunk[chunk_size - 1];
}

START_TEST(tiers_are_left_where_codes_of_four_bits_take_less)
{
    enum { VALUES = 1600 };
    const struct asked asked = ask(STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE);
    uint8_t bytes[2 * VALUES];
    fill_falling(bytes, VALUES, 130, 5);
    page_chunk(&asked, bytes, sizeof(bytes));
    ck_assert_uint_eq(1, coder());
    ck_assert_uint_eq(VALUES, encoded.result.values[STRAIT_BLOCK_TIERED]);
    fill_falling(bytes, VALUES, 130, 12);
    page_chunk(&asked, bytes, sizeof(bytes));
    ck_assert_uint_eq(2, coder());
    ck_assert_uint_eq(VALUES, encoded.result.values[STRAIT_BLOCK_TOP16]);
    ck_assert_uint_eq(BLOCK + VALUES + VALUES / 2 + 16, chunk_size);
    put_value(bytes, 77, join_value(1, 100));
    page_chunk(&asked, bytes, sizeof(bytes));
    ck_assert_uint_eq(3, coder());
    ck_assert_uint_eq(VALUES, encoded.result.values[STRAIT_BLOCK_TOP16_ESCAPES]);
    ck_assert_uint_eq(130, base());
}
END_TEST

START_TEST(the_base_is_the_smallest_of_the_largest_exponents_of_parts_of_256)
{
    const struct asked asked = ask(STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE);
    uint8_t bytes[2 * 600];
    for (uint32_t from = 1; from < 255; from++) {
        fill_falling(bytes, 600, from, from < 5 ? from : 5);
        page_chunk(&asked, bytes, sizeof(bytes));
        ck_assert_uint_eq(from, base());
        put_value(bytes, 77, 0x7f80); /* infinities are no exponents */
        put_value(bytes, 555, 0xffff);
        put_value(bytes, 333, 0);
        page_chunk(&asked, bytes, sizeof(bytes));
        ck_assert_uint_eq(from, base());
        put_value(bytes, 300, 0x7f00); /* what is large in one part is not in others */
        put_value(bytes, 599, 0x7f00);
        page_chunk(&asked, bytes, sizeof(bytes));
        ck_assert_uint_eq(from, base());
        memset(bytes, 0, 2 * 512); /* parts of zeros do not count, shorter ones do */
        put_value(bytes, 599, join_value(9, (uint8_t)from));
        page_chunk(&asked, bytes, sizeof(bytes));
        ck_assert_uint_eq(from, base());
    }
}
END_TEST

START_TEST(a_block_without_exponents_has_base_0)
{
    const struct asked asked = ask(STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE);
    static const uint16_t exponents[] = {0, 0x7f80};
    uint8_t bytes[1000];
    for (uint32_t i = 0; i < 500; i++)
        put_value(bytes, i, (uint16_t)(exponents[_i] | (37 * i & 0x807f)));
    page_chunk(&asked, bytes, sizeof(bytes));
    ck_assert_uint_eq(1u << STRAIT_BLOCK_BASE, block_modes());
    ck_assert_uint_eq(0, base());
}
END_TEST

START_TEST(every_base_ranks_every_exponent_once)
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
END_TEST

/* Histograms count the exponents that are coded. */
START_TEST(histograms_are_those_of_the_halves)
{
    enum { VALUES = 65536 };
    static uint8_t values[4 * VALUES], high_halves[2 * VALUES], low_bits[2 * VALUES];
    static uint64_t counts[256], of_high_halves[256];
    struct rng rng = rng_init(302);
    rng_fill(&rng, values, sizeof(values));
    for (uint32_t i = 0; i < VALUES && _i == STRAIT_ELEMENT_FP16; i++)
        put_value(values, i, (uint16_t)i);
    if (_i == STRAIT_ELEMENT_FP16)
        values_scalar.split_fp16(high_halves, low_bits, low_bits + VALUES / 4, values, VALUES);
    else if (_i == STRAIT_ELEMENT_FP32)
        values_scalar.split_fp32(high_halves, low_bits, values, VALUES);
    else
        memcpy(high_halves, values, sizeof(high_halves));
    bool has = _i >= STRAIT_ELEMENT_BF16 && _i <= STRAIT_ELEMENT_FP32;
    ck_assert_int_eq(has ? STRAIT_OK : STRAIT_ERR_INVALID,
                     strait_histogram_add_values(counts, (enum strait_element)_i, values, VALUES));
    if (has)
        strait_histogram_add(of_high_halves, high_halves, VALUES);
    ck_assert_mem_eq(of_high_halves, counts, sizeof(counts));
}
END_TEST

/* ---- Hostile blocks ---------------------------------------------------------------------------------------------- */

/* Kinds of blocks. */
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
};

enum { KIND_SIZES = 5 };
static uint32_t page_size;
static struct layout dst;
static struct guarded room; /* chunks end where it ends */

/* The chunk of a page of a kind, of a length with ragged ends. */
static void kind_init(int index)
{
    static const uint32_t page_sizes[KIND_SIZES] = {801, 802, 803, 516, 1024};
    const struct kind *kind = &kinds[index / KIND_SIZES];
    const struct asked asked = ask(kind->element, kind->mode);
    struct rng rng = rng_init(400 + (uint64_t)index);
    uint8_t bytes[1024], ranking[256];
    page_size = page_sizes[index % KIND_SIZES];
    test_ranking(ranking, 0);
    fill_pattern(&rng, kind->pattern, ranking, bytes, page_size);
    page_chunk(&asked, bytes, page_size);
    ck_assert_uint_eq(1u << kind->block_mode, block_modes());
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = page_size};
    layout_init(&dst, 4, &shape, 1, NULL, 1);
    guarded_init(&room, CHUNK_MAX);
}

static void kind_fini(void)
{
    layout_fini(&dst);
    memset(room.bytes, CANARY, room.size);
    guarded_fini(&room);
}

/* The verdict of every variant: chunk's, page's or OK. */
static int judge(void)
{
    int status = STATUS_UNSET;
    uint8_t *bytes = room.bytes + room.size - chunk_size;
    memcpy(bytes, chunk, chunk_size);
    for (int v = 0; v < VARIANTS; v++) {
        struct verdict verdict, decoded;
        if (variant(v) == NULL)
            continue;
        verify_chunk(variant(v), codebook, bytes, chunk_size, &verdict);
        decode_layout(variant(v), codebook, &dst, NULL, bytes, chunk_size, &decoded);
        require(verdict.result.status == decoded.result.status);
        require(layout_intact(&dst));
        require(status == STATUS_UNSET || status == verdict.result.status);
        status = verdict.result.status;
    }
    return status;
}

START_TEST(every_changed_byte_is_seen)
{
    struct rng rng = rng_init(500 + (uint64_t)_i);
    kind_init(_i);
    for (uint64_t i = BLOCK; i < chunk_size; i++) {
        for (int k = 0; k < 10; k += STRIDE) {
            uint8_t before = chunk[i];
            chunk[i] ^= k < 8 ? (uint8_t)(1u << k) : (uint8_t)(1 + rng_below(&rng, 255));
            int status = judge();
            if (status != STRAIT_ERR_CORRUPT && status != STRAIT_ERR_INTEGRITY)
                ck_abort_msg("byte %u: %d", (unsigned)i - BLOCK, status);
            chunk[i] = before;
        }
    }
    ck_assert_int_eq(STRAIT_OK, judge());
    kind_fini();
}
END_TEST

START_TEST(every_other_coder_and_base_is_refused)
{
    kind_init(_i);
    unsigned right_coder = coder(), right_base = base();
    for (unsigned c = 0; c < 256; c += c < 8 ? 1 : 31) {
        for (unsigned b = 0; b < 256; b++) {
            chunk[chunk_size - 2] = (uint8_t)c;
            chunk[chunk_size - 1] = (uint8_t)b;
            int status = judge();
            if (c == right_coder && b == right_base)
                require(STRAIT_OK == status);
            else if (c > 3 || (c == 0 && b != 0))
                require(STRAIT_ERR_CORRUPT == status);
            else
                require(status == STRAIT_ERR_CORRUPT || status == STRAIT_ERR_INTEGRITY);
        }
    }
    kind_fini();
}
END_TEST

START_TEST(a_block_of_another_length_is_refused)
{
    kind_init(_i);
    const uint8_t end[2] = {chunk[chunk_size - 2], chunk[chunk_size - 1]};
    const uint64_t whole = chunk_size;
    for (chunk_size = BLOCK + 16; chunk_size < whole + 1024; chunk_size += 16) {
        uint8_t before[16];
        memset(chunk + whole, 0, CHUNK_MAX - whole);
        memcpy(before, chunk + chunk_size - 16, 16);
        if (chunk_size > whole)
            memset(chunk + whole - 2, 0, 2);
        memcpy(chunk + chunk_size - 2, end, 2);
        store_le32(chunk + 16, (uint32_t)chunk_size);
        repair_metadata(chunk, chunk_size);
        ck_assert_int_eq(chunk_size == whole ? STRAIT_OK : STRAIT_ERR_CORRUPT, judge());
        memcpy(chunk + chunk_size - 16, before, 16);
        memcpy(chunk + whole - 2, end, 2);
    }
    kind_fini();
}
END_TEST

/* Streams of zeros and of ones, with every coder. */
START_TEST(blocks_of_one_byte_are_refused)
{
    kind_init(_i);
    for (unsigned fill = 0; fill < 256; fill += 51) {
        memset(chunk + BLOCK, (int)fill, chunk_size - BLOCK);
        for (unsigned c = 0; c < 4; c++) {
            for (unsigned b = 0; b < 256; b++) {
                chunk[chunk_size - 2] = (uint8_t)c;
                chunk[chunk_size - 1] = (uint8_t)b;
                int status = judge();
                require(status == STRAIT_ERR_CORRUPT || status == STRAIT_ERR_INTEGRITY);
            }
        }
    }
    kind_fini();
}
END_TEST

START_TEST(a_mode_of_another_type_is_refused)
{
    static const uint8_t no_id[STRAIT_CODEBOOK_ID_BYTES];
    kind_init(_i);
    const uint8_t right_mode = chunk[48] & 15, right_element = chunk[5];
    for (unsigned mode = 0; mode < 16; mode++) {
        for (uint8_t element = 0; element <= STRAIT_ELEMENT_FP8_E5M2; element++) {
            bool known = mode <= 4 || (mode >= 6 && mode <= 8), right = mode == right_mode && element == right_element;
            bool fits = mode == 6   ? element == STRAIT_ELEMENT_BF16
                        : mode == 7 ? element == STRAIT_ELEMENT_FP16 || element == STRAIT_ELEMENT_FP32
                        : mode == 8 ? element == STRAIT_ELEMENT_FP32
                                    : element == STRAIT_ELEMENT_BF16 && memcmp(chunk + 24, no_id, sizeof(no_id)) != 0;
            chunk[48] = (uint8_t)((chunk[48] & 0xf0) | mode);
            chunk[5] = element;
            repair_metadata(chunk, chunk_size);
            int status = judge();
            ck_assert_int_eq(right, status == STRAIT_OK);
            ck_assert_int_eq(!known, status == STRAIT_ERR_UNSUPPORTED);
            if (known && !fits)
                ck_assert_int_eq(STRAIT_ERR_CORRUPT, status);
        }
    }
    kind_fini();
}
END_TEST

/* ---- Blocks that change during the call -------------------------------------------------------------------------- */

static struct guarded shared_chunk;
static atomic_bool stop;

static void *meddle(void *arg)
{
    struct rng rng = rng_init(600);
    (void)arg;
    while (!atomic_load(&stop)) {
        volatile uint8_t *byte = shared_chunk.bytes + BLOCK + rng_below(&rng, (uint32_t)(shared_chunk.size - BLOCK));
        uint8_t before = *byte;
        if (rng_below(&rng, 4) == 0) /* the end, too */
            byte = shared_chunk.bytes + shared_chunk.size - 1 - rng_below(&rng, 2), before = *byte;
        *byte = (uint8_t)rng_next(&rng);
        *byte = before;
    }
    return NULL;
}

/* A page passes with the bytes that went in, or fails. */
START_TEST(blocks_that_change_during_the_call_fail_or_are_what_was_encoded)
{
    const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = 16384};
    const struct kind *kind = &kinds[_i];
    const struct asked asked = ask(kind->element, kind->mode);
    static uint8_t bytes[16384], back[16384];
    struct rng rng = rng_init(601);
    uint8_t ranking[256];
    pthread_t thread;
    test_ranking(ranking, 0);
    fill_pattern(&rng, kind->pattern, ranking, bytes, sizeof(bytes));
    page_chunk(&asked, bytes, sizeof(bytes));
    guarded_init(&shared_chunk, chunk_size);
    memcpy(shared_chunk.bytes, chunk, chunk_size);
    atomic_store(&stop, false);
    ck_assert_int_eq(0, pthread_create(&thread, NULL, meddle, NULL));
    for (int k = 0; k < 600; k++) {
        struct verdict verdict;
        struct layout target;
        const struct strait_codec *codec = variant(k % VARIANTS);
        if (codec == NULL)
            continue;
        layout_init(&target, 64, &shape, 1, NULL, 1);
        decode_layout(codec, codebook, &target, NULL, shared_chunk.bytes, chunk_size, &verdict);
        ck_assert_int_eq(STRAIT_OK, verdict.result.chunk_status);
        layout_read(&target, 0, back);
        if (verdict.result.status == STRAIT_OK)
            ck_assert_mem_eq(bytes, back, sizeof(bytes));
        layout_fini(&target);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    guarded_fini(&shared_chunk);
}
END_TEST

/* ---- The suite --------------------------------------------------------------------------------------------------- */

int main(void)
{
    enum { KINDS = COUNT(kinds) * KIND_SIZES };
    Suite *suite = suite_create("typed");
    TCase *tcase = add_case(suite, "values"), *hostile = add_case(suite, "hostile");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_checked_fixture(hostile, setup, teardown);
    tcase_add_loop_test(tcase, pages_of_every_type_size_and_pattern_come_back_from_every_variant, 0, COUNT(sizes));
    tcase_add_loop_test(tcase, every_one_of_65536_values_of_fp16_comes_back, 0, COUNT(modes));
    tcase_add_loop_test(tcase, one_bit_of_a_lower_half_decides_between_fp32z_and_split, 0, COUNT(modes));
    tcase_add_loop_test(tcase, values_without_a_codebook_are_not_of_any_table, 0, COUNT(elements));
    tcase_add_test(tcase, tiers_are_left_where_codes_of_four_bits_take_less);
    tcase_add_test(tcase, the_base_is_the_smallest_of_the_largest_exponents_of_parts_of_256);
    tcase_add_loop_test(tcase, a_block_without_exponents_has_base_0, 0, 2);
    tcase_add_test(tcase, every_base_ranks_every_exponent_once);
    tcase_add_loop_test(tcase, histograms_are_those_of_the_halves, 0, STRAIT_ELEMENT_FP8_E5M2 + 1);
    tcase_add_loop_test(hostile, every_changed_byte_is_seen, 0, KINDS);
    tcase_add_loop_test(hostile, every_other_coder_and_base_is_refused, 0, KINDS);
    tcase_add_loop_test(hostile, a_block_of_another_length_is_refused, 0, KINDS);
    tcase_add_loop_test(hostile, blocks_of_one_byte_are_refused, 0, KINDS);
    tcase_add_loop_test(hostile, a_mode_of_another_type_is_refused, 0, KINDS);
    tcase_add_loop_test(hostile, blocks_that_change_during_the_call_fail_or_are_what_was_encoded, 0, COUNT(kinds));
    print_conditions();
    return run_suite(suite);
}
