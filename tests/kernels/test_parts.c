/* Mode 11: every width of the fields, bases at their limits, symbols that changed places, and ends of blocks that are
 * not well formed. tests/format judges the bytes; here the format's rules are read from single bytes of blocks. */
#include <check.h>
#include <string.h>

#include "internal/element.h"
#include "tests/kernels/chunk_harness.h"
#include "tests/run_suite.h"

static const struct kind {
    enum strait_element element;
    uint32_t bytes, mantissa, bias; /* bias: added to an exponent, it is that of the half */
} kinds[] = {{STRAIT_ELEMENT_BF16, 2, 7, 0}, {STRAIT_ELEMENT_FP16, 2, 10, 112}, {STRAIT_ELEMENT_FP32, 4, 23, 0}};

enum { STORED, CLEAR, SET, SIGNS };

/* ---- Blocks ----------------------------------------------------------------------------------------------------- */

static void put(const struct kind *kind, uint8_t *bytes, uint32_t index, uint32_t sign, uint32_t exponent,
                uint32_t mantissa)
{
    const uint32_t value = sign << (8 * kind->bytes - 1) | exponent << kind->mantissa | mantissa;
    if (kind->bytes == 4)
        store_le32(bytes + 4 * index, value);
    else
        store_le16(bytes + 2 * index, (uint16_t)value);
}

/* Codes a page of these bytes by all variants, without a codebook or with one. */
static void code(const struct kind *kind, const uint8_t *bytes, uint32_t size, bool with)
{
    setup_pages(4, &(struct shape){.page_count = 1, .rows = 1, .row_bytes = size});
    layout_write(&src, 0, bytes);
    encode_asked(&(struct asked){with ? codebook : NULL, kind->element, STRAIT_MODE_PARTS});
}

static unsigned block_mode(void)
{
    return chunk[48] & 15;
}

static unsigned form(void)
{
    return chunk[chunk_size - 2];
}

static unsigned coder(void)
{
    return chunk[chunk_size - 1];
}

static unsigned base_of_part(uint32_t count, uint32_t part)
{
    return chunk[chunk_size - 2 - (count + 255) / 256 + part];
}

/* Bytes of the fields of a block. */
static uint32_t field_bytes(uint32_t f, uint32_t count)
{
    uint32_t bytes = 0;
    for (uint32_t width = 1; width <= 16; width *= 2)
        bytes += f & width ? (count * width + 7) / 8 : 0;
    return bytes;
}

static uint32_t width_of(const struct kind *kind, uint32_t z, uint32_t g)
{
    return kind->mantissa - z + (g == STORED);
}

/* `count` values of which no lower bit of the mantissa is all zero and no other one, with these signs, whose exponents
 * have the symbols -1 and -4 by their bases. */
static void fill(const struct kind *kind, uint8_t *bytes, uint32_t count, uint32_t z, uint32_t g)
{
    struct rng rng = rng_init(z);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t mantissa = (uint32_t)rng_next(&rng) & ((1u << kind->mantissa) - 1);
        const uint32_t sign = g == STORED ? i % 3 == 0 : g == SET;
        const uint32_t exponent = i % 256 < 2 ? 20 : i % 5 == 0 ? 16 : 19;
        put(kind, bytes, i, sign, exponent, i == count / 2 ? 1u << z >> (z == kind->mantissa) : mantissa >> z << z);
    }
    if (z == kind->mantissa)
        put(kind, bytes, count / 2, g == SET || g == STORED, 19, 0);
}

/* ---- Fields ----------------------------------------------------------------------------------------------------- */

static const uint32_t counts[] = {8, 9, 100, 255, 256, 257, 511, 1023, 4096, 5000};

/* Every z and g, of every type, so every f; with every number of tail bytes. */
TEST_LOOP(fields_of_every_width_are_as_wide_as_the_format_says, COUNT(kinds) * SIGNS)
{
    const struct kind *kind = &kinds[_i / SIGNS];
    const uint32_t g = (uint32_t)_i % SIGNS;
    static uint8_t bytes[5000 * 4 + 4];
    for (uint32_t z = 0; z <= kind->mantissa; z++) {
        for (int k = 0; k < COUNT(counts) * 4; k++) {
            const uint32_t count = counts[k / 4], tail = (uint32_t)k % 4;
            if (tail >= kind->bytes || count * kind->bytes + tail > 16384 || (k + (int)z) % 3 != 0)
                continue;
            fill(kind, bytes, count, z, g);
            memset(bytes + kind->bytes * count, 0xa5, tail);
            code(kind, bytes, kind->bytes * count + tail, false);
            const uint32_t first = count < 256 ? 2 : (count + 255) / 256 * 2 - (count % 256 == 1);
            const uint32_t least =
                field_bytes(width_of(kind, z, g), count) + (count + 3) / 4 + tail + 2 + (count + 255) / 256 + first / 4;
            const uint32_t extent = (uint32_t)chunk_size - BLOCK;
            if (least + 16 < kind->bytes * count && count >= 100) {
                ck_assert_uint_eq(STRAIT_BLOCK_PARTS, block_mode());
                ck_assert_uint_eq(z | g << 5, form());
                ck_assert_uint_eq(1, coder());
                ck_assert_uint_ge(extent, least / 16 * 16);
                ck_assert_uint_le(extent, least + count / 16 + 64 + count / 256);
            }
            ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
            chunk_teardown();
        }
    }
}

/* One value with a lower bit or with the other sign widens the fields of its block. */
TEST_LOOP(one_value_decides_what_is_left_away, COUNT(kinds))
{
    enum { VALUES = 1000 };
    const struct kind *kind = &kinds[_i];
    static const uint32_t places[] = {0, 1, 63, 64, 255, 256, 767, 998, 999};
    static uint8_t bytes[4 * VALUES];
    for (int p = 0; p < COUNT(places); p++) {
        for (uint32_t bit = 0; bit < kind->mantissa; bit++) {
            fill(kind, bytes, VALUES, kind->mantissa, CLEAR);
            put(kind, bytes, places[p], 0, 19, 1u << bit);
            code(kind, bytes, VALUES * kind->bytes, false);
            ck_assert_uint_eq(bit | CLEAR << 5, form());
            chunk_teardown();
        }
        for (uint32_t g = CLEAR; g <= SET; g++) {
            fill(kind, bytes, VALUES, 2, g);
            put(kind, bytes, places[p], g == CLEAR, 19, 4);
            code(kind, bytes, VALUES * kind->bytes, false);
            ck_assert_uint_eq(2 | STORED << 5, form());
            chunk_teardown();
        }
    }
}

/* ---- Patches ---------------------------------------------------------------------------------------------------- */

static const struct kind *const fp16 = &kinds[1];

/* Bytes of FP16 values with z zero bits, but for `patches` of them, which are subnormal: one at each end where there
 * are two, and others between. */
static void narrowed(uint8_t *bytes, uint32_t count, uint32_t z, uint32_t patches)
{
    fill(fp16, bytes, count, z, STORED);
    for (uint32_t i = 0; i < patches; i++)
        put(fp16, bytes, patches == 1 ? count / 2 : i * (count - 1) / (patches - 1), i % 2, 0, 1 + i % 7 + i % 3 * 256);
}

/* Of patch i, the position and the bits. */
static unsigned patch_word(uint32_t count, uint32_t i, uint32_t word)
{
    const size_t end = chunk_size - 2 - (coder() == 0 ? 0 : (count + 255) / 256);
    return load_le16(chunk + end - 2 - 4 * (load_le16(chunk + end - 2) - i) + 2 * word);
}

TEST(few_subnormal_values_have_patches)
{
    /* Values, the most patches that take less than z bits of each value, or that a block has, and z. */
    static const uint32_t of[][3] = {{14, 0, 3},     {100, 8, 3},    {110, 9, 3},     {1000, 93, 3},
                                     {8186, 766, 3}, {8192, 767, 3}, {8192, 1024, 10}};
    static uint8_t bytes[2 * 8192];
    for (int k = 0; k < COUNT(of); k++) {
        const uint32_t count = of[k][0], most = of[k][1], z = of[k][2];
        for (uint32_t patches = 1; patches <= most + 2; patches += patches < 4 || patches + 20 > most ? 1 : 17) {
            const bool are_few = patches <= most;
            narrowed(bytes, count, z, patches);
            code(fp16, bytes, 2 * count, false);
            ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
            if (count >= 100)
                ck_assert_uint_eq(are_few ? 128 | z : 0, form());
            for (uint32_t i = 0; are_few && i < patches; i++) {
                const uint32_t position = patches == 1 ? count / 2 : i * (count - 1) / (patches - 1);
                ck_assert_uint_eq(position, patch_word(count, i, 0));
                ck_assert_uint_eq(load_le16(bytes + 2 * position) & ((1u << z) - 1), patch_word(count, i, 1));
            }
            chunk_teardown();
        }
    }
}

TEST(a_patch_may_be_of_any_value)
{
    enum { VALUES = 600 };
    static uint8_t bytes[2 * VALUES];
    for (uint32_t at = 0; at < VALUES; at++) {
        fill(fp16, bytes, VALUES, 4, CLEAR);
        put(fp16, bytes, at, 0, 0, 0x3ff);
        code(fp16, bytes, sizeof(bytes), at % 2 == 0);
        ck_assert_uint_eq(128 | CLEAR << 5 | 4, form());
        ck_assert_uint_eq(at, patch_word(VALUES, 0, 0));
        ck_assert_uint_eq(15, patch_word(VALUES, 0, 1));
        ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
        chunk_teardown();
    }
}

/* Values that are all subnormal are no reason for patches, nor are other types. */
TEST(only_values_beside_normal_ones_have_patches)
{
    enum { VALUES = 1000 };
    static uint8_t bytes[4 * VALUES];
    for (uint32_t i = 0; i < VALUES; i++)
        put(fp16, bytes, i, i % 2, 0, i % 1024);
    code(fp16, bytes, 2 * VALUES, false);
    ck_assert_uint_eq(0, form());
    chunk_teardown();
    for (uint32_t k = 0; k < 3; k += 2) {
        fill(&kinds[k], bytes, VALUES, 3, STORED);
        put(&kinds[k], bytes, 500, 0, 0, 1);
        code(&kinds[k], bytes, VALUES * kinds[k].bytes, false);
        ck_assert_uint_eq(0, form());
        chunk_teardown();
    }
}

/* ---- Bases ------------------------------------------------------------------------------------------------------ */

/* Exponents of a part of 256 and the base that it has. */
static const struct part {
    uint32_t most, first, second, others; /* how often the first two come, of the others of 256 all alike */
    uint32_t base;
} parts[] = {
    {1, 200, 150, 100, 150},                          /* one outlier is none */
    {2, 200, 150, 100, 200}, {1, 255, 150, 100, 100}, /* infinities and NaN are no exponents */
    {9, 255, 254, 3, 3},     {1, 254, 254, 9, 254},   {1, 1, 0, 0, 1},     {1, 9, 0, 0, 1}, /* the second largest is 0
                                                                                             */
    {1, 9, 1, 0, 1},         {1, 2, 2, 0, 2},         {256, 255, 0, 0, 1}, {256, 0, 0, 0, 1}, {1, 17, 16, 0, 16},
    {1, 19, 17, 17, 17},
};

TEST_LOOP(a_base_is_the_second_largest_exponent_of_its_part, COUNT(parts))
{
    enum { VALUES = 256 * 3 + 1 }; /* the part in the middle, and a last part of one value */
    const struct part *part = &parts[_i];
    static uint8_t bytes[2 * VALUES];
    for (uint32_t i = 0; i < VALUES; i++)
        put(&kinds[0], bytes, i, 0, i % 256 < 2 ? 120 : 119, 37 * i % 128);
    for (uint32_t i = 0; i < 256; i++) {
        const uint32_t at = 256 + 77 * i % 256;
        put(&kinds[0], bytes, at, 0,
            i < part->most    ? part->first
            : i == part->most ? part->second
                              : part->others,
            i % 128);
    }
    put(&kinds[0], bytes, 768, 0, 200, 1);
    code(&kinds[0], bytes, sizeof(bytes), false);
    ck_assert_uint_eq(STRAIT_BLOCK_PARTS, block_mode());
    ck_assert_uint_eq(120, base_of_part(VALUES, 0));
    ck_assert_uint_eq(part->base, base_of_part(VALUES, 1));
    ck_assert_uint_eq(120, base_of_part(VALUES, 2));
    ck_assert_uint_eq(1, base_of_part(VALUES, 3));
    ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
    chunk_teardown();
}

/* Bytes of the tiers of values that have symbol -1, but for some of 8 bits and some of 16. */
static uint32_t tier_bytes(uint32_t count, uint32_t of8, uint32_t of16)
{
    return (count + 3) / 4 + (of8 + of16 + 3) / 4 + (of8 + of16 + 1) / 2 + of16;
}

/* Zeros have a rank by every base above 16, and below it too while they lie at most 16 below. What lies 128 above a
 * base escapes, also where it has the place of zeros. */
TEST_RANGE(zeros_and_the_symbol_of_zeros_change_places, 1, 255)
{
    enum { VALUES = 512, ZEROS = 50, FAR = 21 };
    const uint32_t base = (uint32_t)_i, far = (base + 128) % 256;
    static uint8_t bytes[2 * VALUES];
    uint32_t symbols = 0, escapes = 0, ranked = 0;
    for (uint32_t i = 0; i < VALUES; i++) { /* the part's largest two, and what lies one below */
        const uint32_t exponent = i % 256 < 2 ? base : base - 1;
        put(&kinds[0], bytes, i, i % 2, exponent, 37 * i % 128);
        symbols += i % 256 < 2;
    }
    for (uint32_t i = 0; i < ZEROS; i++)
        put(&kinds[0], bytes, 10 + 4 * i, 0, 0, 0);
    for (uint32_t i = 0; i < FAR && far < base; i++)
        put(&kinds[0], bytes, 11 + 4 * i, 0, far, i);
    code(&kinds[0], bytes, sizeof(bytes), false);
    ck_assert_uint_eq(STRAIT_BLOCK_PARTS, block_mode());
    ck_assert_uint_eq(base, base_of_part(VALUES, 0));
    ck_assert_uint_eq(base, base_of_part(VALUES, 1));
    if (base > 6) { /* zeros in the third tier */
        escapes = far < base && far != 0 ? FAR : 0;
        ranked = far == 0 ? ZEROS + FAR : ZEROS;
        const uint32_t tiers = tier_bytes(VALUES, ranked, escapes) + (symbols + ranked % 4 + 3) / 4;
        const uint32_t used = VALUES + tiers + 2 + 2;
        ck_assert_uint_le(chunk_size - BLOCK, (used + 15) / 16 * 16 + 16);
        ck_assert_uint_ge(chunk_size - BLOCK + 16, used / 16 * 16);
    }
    ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
    chunk_teardown();
}

/* ---- Values of every kind --------------------------------------------------------------------------------------- */

static const uint32_t special32[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000,
                                     0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7f7fffff, 0x3f800000};
static const uint16_t special16[] = {0,      0x8000, 1,      0x8001, 0x03ff, 0x0400,
                                     0x7c00, 0xfc00, 0x7e00, 0xffff, 0x7bff, 0x3c00};
static const uint16_t special_bf[] = {0,      0x8000, 1,      0x8001, 0x007f, 0x0080,
                                      0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f7f, 0x3f80};

static void put_special(const struct kind *kind, uint8_t *bytes, uint32_t index, uint32_t which)
{
    if (kind->bytes == 4)
        store_le32(bytes + 4 * index, special32[which]);
    else
        store_le16(bytes + 2 * index, kind->mantissa == 7 ? special_bf[which] : special16[which]);
}

/* Among usual values, one here and there, and nothing else. */
TEST_LOOP(zeros_infinities_nan_and_subnormals_come_back, COUNT(kinds) * COUNT(special32))
{
    enum { VALUES = 1000 };
    const struct kind *kind = &kinds[_i % COUNT(kinds)];
    const uint32_t which = (uint32_t)(_i / COUNT(kinds));
    static uint8_t bytes[4 * VALUES];
    for (uint32_t every = 1; every < 1000; every = 3 * every + 1) {
        for (int with = 0; with < 2; with++) {
            fill(kind, bytes, VALUES, 0, STORED);
            for (uint32_t i = 0; i < VALUES; i += every)
                put_special(kind, bytes, i, every < 2 ? (which + i) % COUNT(special32) : which);
            code(kind, bytes, VALUES * kind->bytes, with != 0);
            ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
            chunk_teardown();
        }
    }
}

TEST_LOOP(every_one_of_65536_values_of_16_bits_comes_back, 2)
{
    enum { VALUES = 8192, RARE = 128, SIZE = 2 * VALUES };
    const struct kind *kind = &kinds[_i];
    static uint8_t bytes[2 * SIZE]; /* twice as many: compilers do not see that values of these kinds have two bytes */
    for (uint32_t first = 0; first < 65536; first += RARE) {
        fill(kind, bytes, VALUES, 0, STORED);
        for (uint32_t i = 0; i < RARE; i++) /* in one part, or many would have another base */
            put_value(bytes, first % VALUES + i, (uint16_t)(first + i));
        code(kind, bytes, SIZE, false);
        ck_assert_uint_eq(STRAIT_BLOCK_PARTS, block_mode());
        chunk_teardown();
    }
}

TEST_LOOP(blocks_that_do_not_shrink_are_raw_and_equal_ones_const, COUNT(kinds))
{
    static uint8_t bytes[16384];
    struct rng rng = rng_init(7);
    rng_fill(&rng, bytes, sizeof(bytes));
    code(&kinds[_i], bytes, sizeof(bytes), false);
    ck_assert_uint_eq(STRAIT_BLOCK_RAW, block_mode());
    chunk_teardown();
    memset(bytes, 0x3f, sizeof(bytes));
    code(&kinds[_i], bytes, sizeof(bytes), false);
    ck_assert_uint_eq(STRAIT_BLOCK_CONST, block_mode());
    chunk_teardown();
}

/* ---- Coders ----------------------------------------------------------------------------------------------------- */

/* Ranks of table 0 that its tiers code well and bases badly, and the other way round. */
TEST(a_table_is_taken_where_it_needs_no_more)
{
    enum { VALUES = 2000 };
    static uint8_t bytes[2 * VALUES];
    struct rng rng = rng_init(8);
    uint8_t ranking[256];
    test_ranking(ranking, 0);
    fill_pattern(&rng, PATTERN_LOW, ranking, bytes, sizeof(bytes));
    code(&kinds[0], bytes, sizeof(bytes), true);
    ck_assert_uint_eq(0, coder());
    chunk_teardown();
    for (uint32_t i = 0; i < VALUES; i++) /* a base for each part */
        put(&kinds[0], bytes, i, i % 3 == 0, 60 + 20 * (i / 256) - i % 3, 37 * i % 128);
    code(&kinds[0], bytes, sizeof(bytes), true);
    ck_assert_uint_eq(1, coder());
    chunk_teardown();
}

/* ---- Blocks by hand --------------------------------------------------------------------------------------------- */

/* A chunk of one page of one block of mode 11; its sums are right. */
static void craft(const struct kind *kind, const uint8_t *page, uint32_t page_bytes, const uint8_t *block,
                  uint32_t size, bool names_codebook)
{
    setup_pages(4, &(struct shape){.page_count = 1, .rows = 1, .row_bytes = page_bytes});
    memset(chunk, 0, BLOCK);
    memcpy(chunk, "STRC\1", 5);
    chunk[5] = (uint8_t)kind->element;
    chunk_size = BLOCK + size;
    store_le32(chunk + 8, 1);
    store_le32(chunk + 12, page_bytes);
    store_le32(chunk + 16, (uint32_t)chunk_size);
    if (names_codebook)
        memcpy(chunk + 24, strait_codebook_id(codebook), 16);
    store_le32(chunk + 48, BLOCK / 16 << 4 | STRAIT_BLOCK_PARTS);
    store_le64(chunk + 56, reference_page_sum(page, page_bytes, 0, 0));
    memcpy(chunk + BLOCK, block, size);
    repair_metadata(chunk, chunk_size);
}

enum { VALUES = 61 }; /* so that all streams have unused bits */

/* Where the streams of a block by hand are. */
static struct hand {
    uint8_t page[4 * VALUES], block[4 * VALUES];
    uint32_t t1, t2, t3, t4, end, size; /* offsets; those of tiers, their end, the block */
} hand;

/* 61 values without signs, whose mantissas have the upper f bits set: symbols -1, but the first is -16, of rank 16 and
 * tier 3, and the second of tier 4. */
static void by_hand(const struct kind *kind, uint32_t f, uint32_t base, uint8_t last_symbol)
{
    static const uint32_t widths[] = {16, 4, 2, 1, 8};
    struct hand *h = &hand;
    memset(h, 0, sizeof(*h));
    const uint32_t z = kind->mantissa - f, fields = field_bytes(f, VALUES);
    for (uint32_t k = 0, at = 0; k < COUNT(widths); k++) {
        const uint32_t bits = f & widths[k] ? VALUES * widths[k] : 0;
        memset(h->block + at, 0xff, bits / 8);
        at += bits / 8;
        if (bits % 8 != 0)
            h->block[at++] = (uint8_t)((1u << bits % 8) - 1);
    }
    h->t1 = fields;
    h->t2 = h->t1 + (VALUES + 3) / 4;
    h->t3 = h->t2 + 1;
    h->t4 = h->t3 + 1;
    h->end = h->t4 + 1;
    h->block[h->t1] = 3 | 3 << 2;   /* 0 and 1 go on, the others have symbol -1 */
    h->block[h->t2] = 3 | 3 << 2;   /* both go on */
    h->block[h->t3] = 10 | 15 << 4; /* rank 16: symbol -16; and tier 4 */
    h->block[h->t4] = last_symbol;
    h->size = (h->end + 3 + 15) / 16 * 16;
    h->block[h->size - 3] = (uint8_t)base;
    h->block[h->size - 2] = (uint8_t)(z | CLEAR << 5);
    h->block[h->size - 1] = 1;
    for (uint32_t i = 0; i < VALUES; i++) {
        uint32_t symbol = i == 0 ? 240 : i == 1 ? last_symbol : 255, e = (symbol + base) % 256;
        if (base > 16)
            e = e == 0 ? (base + 128) % 256 : e == (base + 128) % 256 ? 0 : e;
        put(kind, h->page, i, 0, kind->bias > 0 && e != 0 ? e - kind->bias : e, ((1u << f) - 1) << z);
    }
}

static void craft_hand(const struct kind *kind, bool names_codebook)
{
    craft(kind, hand.page, VALUES * kind->bytes, hand.block, hand.size, names_codebook);
}

static int verdict_of_hand(const struct kind *kind)
{
    craft_hand(kind, false);
    const struct judgement j = judge(chunk_size);
    ck_assert_int_eq(STRAIT_OK, j.verified.result.chunk_status);
    chunk_teardown();
    return j.verified.result.status;
}

/* Widths with which the block shrinks. */
static uint32_t widest(const struct kind *kind)
{
    return kind->bytes == 4 ? 23 : kind->mantissa;
}

/* The bases 1 and 254, and some between, and a symbol of tier 4 that wraps around. */
TEST_LOOP(bases_from_1_to_254_are_allowed, COUNT(kinds))
{
    const struct kind *kind = &kinds[_i];
    for (uint32_t f = 0; f <= widest(kind); f++) {
        for (uint32_t base = 1; base < 255; base++) {
            if (kind->bias > 0 && (base < 130 || base > 143))
                continue;
            by_hand(kind, f, base, kind->bias > 0 ? (uint8_t)(120 - base - 17 + 10) : 77);
            if (kind->bias > 0 && (base < 131 || (uint8_t)(hand.block[hand.t4] + base) < 113))
                continue;
            ck_assert_int_eq(STRAIT_OK, verdict_of_hand(kind));
        }
    }
}

TEST_LOOP(other_bases_are_refused, 2 * COUNT(kinds))
{
    const struct kind *kind = &kinds[_i / 2];
    for (uint32_t f = 0; f <= widest(kind); f++) {
        by_hand(kind, f, 140, 230);
        ck_assert_int_eq(STRAIT_OK, verdict_of_hand(kind));
        hand.block[hand.size - 3] = _i % 2 == 0 ? 0 : 255;
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict_of_hand(kind));
    }
}

/* Forms: more zero bits than there are, signs of a fourth kind, and all others: well formed, or with streams that do
 * not fit, or of other values. */
TEST_LOOP(other_forms_and_coders_are_refused, COUNT(kinds))
{
    const struct kind *kind = &kinds[_i];
    for (uint32_t f = 0; f <= widest(kind); f++) {
        by_hand(kind, f, 140, 230);
        const uint8_t right = hand.block[hand.size - 2];
        for (uint32_t other = 0; other < 256; other++) {
            hand.block[hand.size - 2] = (uint8_t)other;
            const int status = verdict_of_hand(kind);
            if (other == right)
                ck_assert_int_eq(STRAIT_OK, status);
            else if ((other & 31) > kind->mantissa || other >> 5 > 2)
                ck_assert_int_eq(STRAIT_ERR_CORRUPT, status);
            else
                ck_assert_int_ne(STRAIT_OK, status);
        }
        hand.block[hand.size - 2] = right;
        for (uint32_t other = 0; other < 256; other++) {
            hand.block[hand.size - 1] = (uint8_t)other;
            ck_assert_int_eq(other == 1 ? STRAIT_OK : STRAIT_ERR_CORRUPT, verdict_of_hand(kind));
        }
    }
}

/* Makes the block by hand one with patches, of values that have their bits, too; `says` is the number that it tells. */
static void patch_hand(const uint16_t (*patches)[2], uint32_t count, uint32_t says)
{
    struct hand *h = &hand;
    const uint8_t base = h->block[h->size - 3], z_and_signs = h->block[h->size - 2];
    memset(h->block + h->end, 0, h->size - h->end);
    h->size = (h->end + 4 * count + 2 + 3 + 15) / 16 * 16;
    uint8_t *at = h->block + h->size - 3 - 2 - 4 * count;
    for (uint32_t i = 0; i < count; i++, at += 4) {
        store_le16(at, patches[i][0]);
        store_le16(at + 2, patches[i][1]);
        if (patches[i][0] < VALUES)
            h->page[2 * patches[i][0]] |= (uint8_t)patches[i][1];
    }
    const uint8_t end[] = {(uint8_t)says, (uint8_t)(says >> 8), base, z_and_signs | 128, 1};
    memcpy(at, end, sizeof(end));
}

TEST(patches_that_are_not_well_formed_are_refused)
{
    static const struct {
        uint16_t patches[3][2];
        uint32_t count, says;
        int status;
    } cases[] = {
        {{{0, 1}}, 1, 1, STRAIT_OK},
        {{{0, 7}, {1, 4}, {60, 2}}, 3, 3, STRAIT_OK},
        {{{7, 1}}, 1, 0, STRAIT_ERR_CORRUPT},   /* none, says the block */
        {{{7, 1}}, 1, 16, STRAIT_ERR_CORRUPT},  /* they would reach into the streams */
        {{{7, 1}}, 1, 255, STRAIT_ERR_CORRUPT}, /* before the block */
        {{{7, 0}}, 1, 1, STRAIT_ERR_CORRUPT},   /* no bits */
        {{{7, 8}}, 1, 1, STRAIT_ERR_CORRUPT},   /* more bits than fields lack */
        {{{7, 0x8001}}, 1, 1, STRAIT_ERR_CORRUPT},
        {{{61, 1}}, 1, 1, STRAIT_ERR_CORRUPT}, /* behind the last value */
        {{{0xffff, 1}}, 1, 1, STRAIT_ERR_CORRUPT},
        {{{7, 1}, {7, 1}}, 2, 2, STRAIT_ERR_CORRUPT},         /* twice */
        {{{7, 1}, {9, 1}, {8, 1}}, 3, 3, STRAIT_ERR_CORRUPT}, /* not in order */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        by_hand(fp16, 7, 140, 230);
        patch_hand(cases[i].patches, cases[i].count, cases[i].says);
        ck_assert_msg(verdict_of_hand(fp16) == cases[i].status, "case %d", i);
    }
    for (uint32_t k = 0; k < 3; k += 2) { /* of other types */
        by_hand(&kinds[k], 4, 140, 230);
        patch_hand(cases[0].patches, 1, 1);
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict_of_hand(&kinds[k]));
    }
}

/* Whether a block is decoded that has one more patch, of its last value, than the encoder has made: over padding, or
 * with one more unit, of which one is well formed. */
static bool is_decoded_with_one_more(uint8_t *page, uint32_t patches)
{
    enum { COUNT = 8192, END = 2 + COUNT / 256 };
    static uint8_t right[2 * COUNT], block[2 * COUNT + 16];
    bool decoded = false;
    narrowed(page, COUNT - 1, 10, patches);
    put(fp16, page, COUNT - 1, 0, 19, 0);
    code(fp16, page, 2 * COUNT, false);
    const uint32_t size = (uint32_t)chunk_size - BLOCK, of_patches = 4 * patches + 2;
    memcpy(right, chunk + BLOCK, size);
    chunk_teardown();
    ck_assert_uint_eq(patches, load_le16(right + size - END - 2));
    page[2 * COUNT - 2] |= 1;
    for (uint32_t more = 0; more <= 16; more += 16) {
        const uint32_t before = size - END - of_patches, at = before + more - 4;
        memset(block, 0, sizeof(block));
        memcpy(block, right, more == 0 ? at : before);
        memcpy(block + at, right + before, of_patches - 2);
        store_le16(block + at + of_patches - 2, COUNT - 1);
        store_le16(block + at + of_patches, 1);
        store_le16(block + at + of_patches + 2, (uint16_t)(patches + 1));
        memcpy(block + size + more - END, right + size - END, END);
        craft(fp16, page, 2 * COUNT, block, size + more, false);
        decoded |= judge(chunk_size).verified.result.status == STRAIT_OK;
        chunk_teardown();
    }
    return decoded;
}

TEST(a_block_has_1024_patches_at_most)
{
    static uint8_t page[2 * 8192];
    ck_assert(is_decoded_with_one_more(page, 1023));
    ck_assert(!is_decoded_with_one_more(page, 1024));
}

/* The page's table: only where the chunk names a codebook. */
TEST(a_table_needs_a_codebook)
{
    by_hand(&kinds[0], 7, 140, 230);
    codebook = test_codebook();
    uint8_t ranking[256];
    test_ranking(ranking, 0);
    strait_codebook_destroy(codebook);
    hand.block[hand.size - 3] = 0;
    hand.block[hand.size - 1] = 0;
    hand.block[hand.t4] = ranking[21];
    for (uint32_t i = 0; i < VALUES; i++)
        put(&kinds[0], hand.page, i, 0, ranking[i == 0 ? 16 : i == 1 ? 21 : 0], 127);
    craft_hand(&kinds[0], true);
    ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
    chunk_teardown();
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict_of_hand(&kinds[0]));
}

/* A symbol of tier 4 that has a rank. */
TEST_RANGE(a_last_symbol_with_a_rank_is_refused, 0, 256)
{
    static const uint8_t ranked[] = {255, 254, 253, 0,   252, 251, 250, 249, 248, 247, 246,
                                     245, 244, 243, 242, 241, 240, 1,   2,   3,   128};
    const bool has_rank = memchr(ranked, _i, sizeof(ranked)) != NULL;
    by_hand(&kinds[2], 23, 140, (uint8_t)_i);
    ck_assert_int_eq(has_rank ? STRAIT_ERR_CORRUPT : STRAIT_OK, verdict_of_hand(&kinds[2]));
}

/* Exponents that FP16 has not: all but 0, 255 and 113 to 142. */
TEST_RANGE(an_exponent_that_fp16_has_not_is_refused, 0, 256)
{
    const struct kind *kind = &kinds[1];
    const uint32_t base = 140, far = (base + 128) % 256;
    const uint8_t symbol = (uint8_t)((_i == 0 ? far : (uint32_t)_i == far ? 0 : (uint32_t)_i) - base);
    by_hand(kind, 8, base, 228);
    const bool fits = _i == 0 || _i == 255 || (_i > 112 && _i < 143);
    hand.block[hand.t4] = symbol;
    put(kind, hand.page, 1, 0, _i == 0 ? 0 : _i == 255 ? 31 : (uint32_t)(_i - 112) & 31, 255 << 2);
    craft_hand(kind, false);
    const int status = judge(chunk_size).verified.result.status;
    chunk_teardown();
    static const uint8_t ranked[] = {255, 254, 253, 0,   252, 251, 250, 249, 248, 247, 246,
                                     245, 244, 243, 242, 241, 240, 1,   2,   3,   128};
    if (!fits || memchr(ranked, symbol, sizeof(ranked)) != NULL)
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, status);
    else
        ck_assert_int_eq(STRAIT_OK, status);
}

/* Unused bits of every stream, and padding. */
TEST_LOOP(unused_bits_and_padding_are_zero, COUNT(kinds))
{
    const struct kind *kind = &kinds[_i];
    for (uint32_t f = 0; f <= widest(kind); f++) {
        uint32_t at = f & 16 ? 2 * VALUES : 0;
        by_hand(kind, f, 140, 230);
        for (uint32_t width = 4; width >= 1; width /= 2) {
            if ((f & width) == 0)
                continue;
            at += (VALUES * width + 7) / 8;
            for (uint32_t bit = VALUES * width % 8; bit < 8; bit++) {
                hand.block[at - 1] ^= (uint8_t)(1u << bit);
                ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict_of_hand(kind));
                hand.block[at - 1] ^= (uint8_t)(1u << bit);
            }
        }
        hand.block[hand.t2 - 1] ^= 0x40;
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict_of_hand(kind));
        hand.block[hand.t2 - 1] ^= 0x40;
        for (uint32_t i = hand.end; i < hand.size - 3; i++) {
            hand.block[i] = 1;
            ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict_of_hand(kind));
            hand.block[i] = 0;
        }
        ck_assert_int_eq(STRAIT_OK, verdict_of_hand(kind));
    }
}

/* Items of the first tier that go on until the tiers reach the bases; a unit of zeros more; a unit less. */
TEST_LOOP(streams_that_do_not_end_before_the_bases_are_refused, COUNT(kinds))
{
    const struct kind *kind = &kinds[_i];
    by_hand(kind, widest(kind), 140, 230);
    memset(hand.block + hand.t1, 0xff, hand.size - 3 - hand.t1);
    hand.block[hand.t2 - 1] = 3;
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict_of_hand(kind));
    for (int by = -16; by <= 16; by += 32) {
        by_hand(kind, widest(kind) - 2, 140, 230);
        memmove(hand.block + hand.size - 3 + by, hand.block + hand.size - 3, 3);
        if (by > 0)
            memset(hand.block + hand.size - 3, 0, 3);
        hand.size = (uint32_t)((int)hand.size + by);
        ck_assert_int_eq(STRAIT_ERR_CORRUPT, verdict_of_hand(kind));
    }
}

/* Equal values are well formed: only encoders have to make them `const`. */
TEST_LOOP(a_block_of_equal_values_is_allowed, COUNT(kinds))
{
    const struct kind *kind = &kinds[_i];
    uint8_t page[4 * 64], block[32] = {0};
    for (uint32_t i = 0; i < 64; i++)
        put(kind, page, i, 0, 139 - kind->bias, 0);
    block[29] = 140;
    block[30] = (uint8_t)(kind->mantissa | CLEAR << 5);
    block[31] = 1;
    craft(kind, page, 64 * kind->bytes, block, sizeof(block), false);
    ck_assert_int_eq(STRAIT_OK, judge(chunk_size).verified.result.status);
    chunk_teardown();
}

int main(void)
{
    print_conditions();
    return run_tests("parts", NULL, NULL);
}
