// Register code of kernels for the typed modes and for parts, on the host: rankings of bases, high halves and low bits
// of FP16 values, fields, bases of parts, symbols, and words of sizes, against the scalar variant. Needs no GPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/parts.cuh"
#include "kernels/cuda/typed.cuh"

extern "C" {
#include "kernels/codebook.h"
#include "kernels/value_ops.h"
}

using namespace strait;

static void require_that(bool good, const char *what, int line)
{
    if (good)
        return;
    std::fprintf(stderr, "%d: %s\n", line, what);
    std::exit(1);
}
#define require(condition) require_that(condition, #condition, __LINE__)

static void check_ranking(uint32_t base)
{
    struct table table;
    base_table(&table, static_cast<uint8_t>(base));
    for (uint32_t e = 0; e < 256; e++)
        require(base_rank(e, base) == table.rank[e]);
    for (uint32_t r = 0; r < TIER4_RANK; r++)
        require(base_exponent(r, base) == table.exponent[r]);
    for (uint32_t i = 0; i < IMAGE_DECODE_BYTES; i++) {
        const uint32_t byte = base_image_byte(i, base);
        if (i < 6)
            require(byte == table.exponent[i]);
        else if (i >= 16 && i < 31)
            require(byte == table.exponent[i - 10]);
        else if (i >= 32 && i < 48)
            require(byte == table.exponent[i - 32]);
        else
            require(byte == 0);
    }
}

// Blocks of two values, which are all pairs of exponents, and of parts that have each one of them.
static void check_base(uint32_t a, uint32_t b)
{
    static uint8_t values[4 * BASE_PART];
    const uint32_t w = a << 7 | b << 23 | 0x807f0000u, greatest = greater_exponent(w);
    const uint8_t pair[4] = {static_cast<uint8_t>(w), static_cast<uint8_t>(w >> 8), static_cast<uint8_t>(w >> 16),
                             static_cast<uint8_t>(w >> 24)};
    require(base_from_order(base_order(greatest)) == values_scalar.find_base(pair, 2));
    std::memset(values, 0, sizeof(values));
    std::memcpy(values + 20, pair, 2);
    std::memcpy(values + 2 * BASE_PART + 300, pair + 2, 2);
    const uint32_t first = base_order(exponent_order(w << 16)), second = base_order(exponent_order(w));
    require(base_from_order(first < second ? first : second) == values_scalar.find_base(values, 2 * BASE_PART));
}

// Codes without a table, of 16 values with all kinds of exponents: as the ranks by the base say.
static void check_codes(uint32_t base, uint32_t from)
{
    uint32_t w[8], z[2], tier1, tier2, expected1 = 0, expected2 = 0;
    for (uint32_t i = 0; i < 16; i++) {
        // Neighbours of the base, exponents far from it, any mantissas and signs.
        const uint32_t any = (from + i) * 2654435761u,
                       exponent = (i % 3 == 0 ? any >> 8 : base + 3 - (any >> 5) % 12) & 255;
        const uint32_t value = exponent << 7 | (any & 0x807f), rank = base_rank(exponent, base);
        const uint32_t tiers = tiers_of_rank(rank);
        w[i / 2] = i % 2 == 0 ? value : w[i / 2] | value << 16;
        expected1 |= (tiers & 3) << (2 * i);
        expected2 |= (tiers >> 16) << (2 * i);
    }
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t inverted[4];
        for (uint32_t j = 0; j < 4; j++)
            inverted[j] = inverted_exponents(w[4 * k + j]);
        z[k] = base_codes(inverted, base_to_add(base));
    }
    part_base_codes(z[0], z[1], tier1, tier2);
    require(tier1 == expected1 && tier2 == expected2);
}

// The greatest exponent of eight values, in the three ways that there are.
static void check_greatest(uint32_t a, uint32_t b)
{
    uint32_t w[4], exponents[2] = {0, 0}, order = 0, least = NO_INVERTED, greatest = 0;
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t exponent = i == a % 7 ? a : i == 7 ? b : (a * i + b) % 3 == 0 ? b : 0;
        const uint32_t value = exponent << 7 | (i * 0x9e37u & 0x807fu);
        w[i / 2] = i % 2 == 0 ? value : w[i / 2] | value << 16;
        exponents[i / 4] |= exponent << (8 * (i % 4));
        const uint32_t one = exponent_order(value << 16);
        order = one > order ? one : order;
    }
    for (uint32_t j = 0; j < 4; j++) {
        least = least_inverted(least, inverted_exponents(w[j]));
        greatest = greatest_u16x2(greatest, w[j]);
    }
    // Beside a part that has nothing, and one that has the other exponent alone.
    const uint32_t of_w = base_order(order), of_b = base_order(exponent_order(b << 23));
    const uint32_t least_w = least_of_u16x2(least), greatest_w = greatest_of_u16x2(greatest);
    const uint32_t least_b = least_of_u16x2(least_inverted(NO_INVERTED, inverted_exponents(b << 7)));
    const uint32_t greatest_b = greatest_of_u16x2(greatest_u16x2(0, b << 7));
    const uint32_t inverted = count_part(count_part(0, least_of_u16x2(NO_INVERTED)), least_w);
    const uint32_t parts = least_part(least_part(NO_PART, 0), greatest_w);
    require(order_of_inverted(inverted) == of_w && order_of_parts(parts) == of_w);
    require(order_of_inverted(count_part(inverted, least_b)) == (of_b < of_w ? of_b : of_w));
    require(order_of_parts(least_part(parts, greatest_b)) == (of_b < of_w ? of_b : of_w));
    require(base_order(greatest_of_u16x2(greatest)) == base_order(order));
    require(base_order(greatest_of_u16x2(greatest_exponents(0, exponents))) == base_order(order));
}

// Eight values from each possible one on.
static void check_fp16(uint32_t from)
{
    uint16_t values[8], high_halves[8];
    uint8_t twos[2], one, back[16];
    uint32_t w[4], h[4], again[4];
    for (uint32_t i = 0; i < 8; i++)
        values[i] = static_cast<uint16_t>(from * 40503u + i * 9973u);
    std::memcpy(w, values, sizeof(w));
    values_scalar.split_fp16(reinterpret_cast<uint8_t *>(high_halves), twos, &one, reinterpret_cast<uint8_t *>(values),
                             8);
    for (int j = 0; j < 4; j++) {
        h[j] = fp16_high_halves(w[j]);
        again[j] = fp16_values(h[j]);
        require(fp16_high_halves(again[j]) == h[j]);
    }
    require(std::memcmp(h, high_halves, sizeof(h)) == 0);
    require(pack_low_twos(w) == (twos[0] | static_cast<uint32_t>(twos[1]) << 8) && pack_low_ones(w) == one);
    join_low_bits(again, pack_low_twos(w), pack_low_ones(w));
    require(std::memcmp(again, w, sizeof(w)) == 0);
    require(values_scalar.join_fp16(back, reinterpret_cast<uint8_t *>(high_halves), twos, &one, 8));
    require(std::memcmp(back, w, sizeof(w)) == 0);
}

// Halves that are of no FP16 value are found, whatever is beside them.
static void check_misfits(uint32_t high_half)
{
    const uint32_t beside[] = {0, 0x3f80, 0xffff, 0x7f80, high_half, 0x0080};
    const uint32_t exponent = high_half >> 7 & 255;
    const bool fits = exponent == 0 || exponent == 255 || (exponent > 112 && exponent < 143);
    for (uint32_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
        const uint32_t pair = high_half | beside[i] << 16, other = beside[i] | high_half << 16,
                       e = beside[i] >> 7 & 255;
        const bool both = fits && (e == 0 || e == 255 || (e > 112 && e < 143));
        require((fp16_high_halves(fp16_values(pair)) == pair) == both);
        require((fp16_high_halves(fp16_values(other)) == other) == both);
    }
}

// ---- Mode 11 --------------------------------------------------------------------------------------------------------

// Symbols of all exponents by a base, and what encoders and decoders have in place of tables.
static void check_symbols(const struct table &table, uint32_t base)
{
    const uint32_t far = base > 16 ? (base + 128) & 255 : 0; // changes places with 0
    uint32_t image[IMAGE_DECODE_BYTES / 4], first[2];
    uint8_t image_bytes[sizeof(image)], first_bytes[sizeof(first)];
    for (uint32_t e = 0; e < 256; e++) {
        const uint32_t other = e == 0     ? far
                               : e == far ? 0
                                          : e,
                       symbol = (other - base) & 255, rank = table.rank[symbol];
        require(part_symbol(e, base) == symbol && part_exponent(symbol, base) == e);
        require(part_symbol(e, 0) == e && part_exponent(e, 0) == e);
        require(rank < TIER3_RANK || symbol_tier3(symbol) == (rank < TIER4_RANK ? rank - TIER3_RANK : 15));
    }
    for (uint32_t i = 0; i < IMAGE_DECODE_BYTES / 4; i++)
        image[i] = symbol_image_word(i);
    std::memcpy(image_bytes, image, sizeof(image));
    for (uint32_t i = 0; i < sizeof(image); i++)
        require(image_bytes[i] == (i < TIER3_RANK           ? table.exponent[i]
                                   : i >= 16 && i < 16 + 15 ? table.exponent[i - 16 + TIER3_RANK]
                                                            : 0));
    first_exponents(image, base, first);
    std::memcpy(first_bytes, first, sizeof(first));
    for (uint32_t r = 0; r < 8; r++)
        require(first_bytes[r] == (r < TIER3_RANK ? part_exponent(table.exponent[r], base) : 0));
}

// The base of a part of 256 values that has few exponents besides zeroes, or many.
static void check_part_base(uint32_t number)
{
    uint32_t largest = 0, next = 0; // of those below 255
    two_least least = {NO_INVERTED, NO_INVERTED};
    uint32_t state = number * 2654435761u + 1;
    for (uint32_t i = 0; i < PART_VALUES; i += 2) {
        uint32_t pair = 0;
        for (uint32_t j = 0; j < 2; j++) {
            state = state * 1664525u + 1013904223u;
            const uint32_t few = (state >> 8) % PART_VALUES < number % 5, any = state >> 20 & 255;
            const uint32_t e = number % 11 == 0 ? 255 : number % 3 == 0 || few ? any : 0;
            if (e < 255 && e > next)
                next = e > largest ? largest : e, largest = e > largest ? e : largest;
            pair |= (e << 7 | (state >> 3 & 0x807f)) << (16 * j);
        }
        least.add(inverted_exponents(pair));
    }
    least.join();
    require(part_base(least.second) == (next == 0 ? 1 : next));
}

// Eight values of a form, or four: fields, their pieces, and values from them again.
template <typed_type TYPE> static void check_fields(uint32_t zeroes, uint32_t signs, uint32_t seed)
{
    constexpr uint32_t BYTES = typed_values<TYPE>::BYTES, COUNT = 16 / BYTES, MANTISSA = mantissa_bits<TYPE>();
    constexpr enum strait_element ELEMENT = TYPE == TYPE_FP32   ? STRAIT_ELEMENT_FP32
                                            : TYPE == TYPE_FP16 ? STRAIT_ELEMENT_FP16
                                                                : STRAIT_ELEMENT_BF16;
    uint32_t w[4], again[4], exponents[2] = {0, 0}, low[2] = {0, 0}, set = 0, clear = 0, normal = 0;
    uint8_t bytes[16], list[64], lows[64] = {0}, eights[64] = {0}, sixteens[64] = {0};
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t left = (1u << MANTISSA) - (1u << zeroes), sign = 1u << (8 * BYTES - 1);
        seed = seed * 1664525u + 1013904223u;
        const uint32_t any = seed ^ seed >> 13, all = BYTES == 2 ? 0x00010001u : 1;
        w[i] = any & ~(all * (((1u << MANTISSA) - 1) | sign));
        w[i] |= (any & all * left) | (signs == SIGNS_SET ? all * sign : signs == SIGNS_CLEAR ? 0 : any & all * sign);
        if (i == 0) // all that the form has is in use
            w[i] |= zeroes < MANTISSA ? 1u << zeroes : 0, w[i] = signs != 0 ? w[i] : w[i] | sign;
        if (i == 1 && signs == SIGNS_IN_FIELDS)
            w[i] &= ~sign;
        set |= w[i], clear |= ~w[i], normal |= normal_mantissas(w[i]);
    }
    const uint32_t in_use = bits_in_use<TYPE>(set, clear, normal);
    const field_form form = find_field_form<TYPE>(in_use);
    struct part_fields expected;
    require(form.byte() == zeroes + 32 * signs && part_fields_init(&expected, ELEMENT, zeroes, signs, COUNT));
    require(form.bits == expected.width);
    std::memcpy(bytes, w, sizeof(w));
    require(TYPE != TYPE_FP16 ||
            (in_use >> NORMAL_SHIFT & 0x3ff) == (values_scalar.find_bits(bytes, COUNT, ELEMENT).normal & 0x3ff));
    values_scalar.find_exponents(list, bytes, COUNT, ELEMENT);
    std::memcpy(exponents, list, COUNT);
    values_scalar.split_fields(sixteens, lows, bytes, COUNT, &expected);
    values_scalar.split_eights(eights, bytes, COUNT, &expected);
    fields cut = {}, back = {};
    cut_fields<TYPE>(form, w, cut);
    const uint32_t mask = low_mask(form.bits % 8) * 0x01010101u, words = COUNT / 4;
    for (uint32_t i = 0; i < words; i++)
        low[i] = cut.low[i] & mask;
    require(std::memcmp(low, lows, COUNT) == 0);
    require((form.bits & 8) == 0 || std::memcmp(cut.top, eights, COUNT) == 0);
    require((form.bits & 16) == 0 || std::memcmp(cut.middle, sixteens, 2 * COUNT) == 0);
    if ((form.bits & 16) != 0)
        back.middle[0] = cut.middle[0], back.middle[1] = cut.middle[1];
    if ((form.bits & 8) != 0)
        back.top[0] = cut.top[0], back.top[1] = cut.top[1];
    if ((form.bits & 4) != 0)
        unpack_pieces4(form.bits, pack_pieces4(form.bits, cut.low), back.low);
    if ((form.bits & 2) != 0)
        unpack_pieces2(form.bits, pack_pieces2(form.bits, cut.low), back.low);
    if ((form.bits & 1) != 0)
        unpack_pieces1(pack_pieces1(cut.low), back.low);
    require(std::memcmp(back.low, lows, COUNT) == 0);
    require(paste_fields<TYPE>(form, back, exponents, again) == 0 && std::memcmp(again, w, sizeof(w)) == 0);
}

static void check_parts()
{
    static struct table table;
    parts_table(&table);
    for (uint32_t base = 1; base < 255; base++)
        check_symbols(table, base);
    for (uint32_t i = 0; i < 20000; i++)
        check_part_base(i);
    for (uint32_t seed = 0; seed < 200; seed++) {
        for (uint32_t signs = 0; signs < SIGN_FORMS; signs++) {
            for (uint32_t zeroes = 0; zeroes <= 23; zeroes++) {
                check_fields<TYPE_FP32>(zeroes, signs, seed);
                if (zeroes <= 10)
                    check_fields<TYPE_FP16>(zeroes, signs, seed);
                if (zeroes <= 7)
                    check_fields<TYPE_BF16>(zeroes, signs, seed);
            }
        }
    }
}

static void check_forms()
{
    for (uint32_t mode = 0; mode < STRAIT_BLOCK_MODES_ALL; mode++) {
        if (mode == STRAIT_BLOCK_MODES || mode == 9) // unused
            continue;
        const uint32_t least = mode >= STRAIT_BLOCK_FP8 ? STRAIT_BLOCK_TIERED : STRAIT_BLOCK_TOP16;
        for (uint32_t counted = least; counted <= STRAIT_BLOCK_TIERED; counted++) {
            const uint32_t form = make_form(mode, mode < STRAIT_BLOCK_BASE ? mode : counted);
            const uint32_t size = make_size(1024, form, 8180);
            const uint32_t asked = mode == STRAIT_BLOCK_PARTS ? STRAIT_MODE_PARTS : STRAIT_MODE_BASE;
            require(form < 16 && form_mode(form, asked) == mode);
            require(form_stats_mode(form) == (mode < STRAIT_BLOCK_BASE ? mode : counted));
            require(size <= TAG_MASK && size_units(size) == 1024 && size_form(size) == form &&
                    size_escapes(size) == 8180);
        }
    }
}

int main()
{
    for (uint32_t base = 0; base < 255; base++) {
        check_ranking(base);
        for (uint32_t i = 0; i < 64; i++)
            check_codes(base, base * 977 + i * 16);
    }
    check_ranking(255); // a hostile chunk may say so
    for (uint32_t a = 0; a < 256; a++)
        for (uint32_t b = 0; b < 256; b++)
            check_base(a, b), check_greatest(a, b);
    for (uint32_t i = 0; i < 65536; i++) {
        check_fp16(i);
        check_misfits(i);
    }
    check_forms();
    check_parts();
    std::printf("rankings, high halves, low bits, forms, fields, bases and symbols agree\n");
    return 0;
}
