/* Blocks of modes 6 to 8: FP16 and FP32, and codes from a block's own large exponents. */
#include <check.h>
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

/* ---- The suite --------------------------------------------------------------------------------------------------- */

int main(void)
{
    Suite *suite = suite_create("typed");
    TCase *tcase = add_case(suite, "values");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, pages_of_every_type_size_and_pattern_come_back_from_every_variant, 0, COUNT(sizes));
    tcase_add_loop_test(tcase, every_one_of_65536_values_of_fp16_comes_back, 0, COUNT(modes));
    tcase_add_loop_test(tcase, one_bit_of_a_lower_half_decides_between_fp32z_and_split, 0, COUNT(modes));
    tcase_add_loop_test(tcase, values_without_a_codebook_are_not_of_any_table, 0, COUNT(elements));
    tcase_add_test(tcase, tiers_are_left_where_codes_of_four_bits_take_less);
    tcase_add_test(tcase, the_base_is_the_smallest_of_the_largest_exponents_of_parts_of_256);
    tcase_add_loop_test(tcase, a_block_without_exponents_has_base_0, 0, 2);
    tcase_add_test(tcase, every_base_ranks_every_exponent_once);
    tcase_add_loop_test(tcase, histograms_are_those_of_the_halves, 0, STRAIT_ELEMENT_FP8_E5M2 + 1);
    print_conditions();
    return run_suite(suite);
}
