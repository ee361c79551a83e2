// Register code of kernels for the typed modes, on the host: rankings of bases, high halves and low bits of FP16
// values, and words of sizes, against the scalar variant. Needs no GPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

static void check_forms()
{
    for (uint32_t mode = 0; mode <= STRAIT_BLOCK_FP8; mode++) { // what kernels have
        if (mode == STRAIT_BLOCK_MODES || mode == 9)            // unused
            continue;
        const uint32_t least = mode == STRAIT_BLOCK_FP8 ? STRAIT_BLOCK_TIERED : STRAIT_BLOCK_TOP16;
        for (uint32_t counted = least; counted <= STRAIT_BLOCK_TIERED; counted++) {
            const uint32_t form = make_form(mode, mode < STRAIT_BLOCK_BASE ? mode : counted);
            const uint32_t size = make_size(1024, form, 4096);
            require(form < 16 && form_mode(form) == mode);
            require(form_stats_mode(form) == (mode < STRAIT_BLOCK_BASE ? mode : counted));
            require(size <= TAG_MASK && size_units(size) == 1024 && size_form(size) == form &&
                    size_escapes(size) == 4096);
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
    std::printf("rankings, high halves, low bits and forms agree\n");
    return 0;
}
