// Blocks of mode 11, FORMAT.md section 3.4: fields of the bits that change, cut into pieces; patches; bases of parts;
// symbols.
// Functions also run on the host, for tests.
#ifndef STRAIT_KERNELS_CUDA_PARTS_CUH
#define STRAIT_KERNELS_CUDA_PARTS_CUH

#include "kernels/cuda/bits.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/typed.cuh"

namespace strait
{

enum parts_coder { PARTS_BY_TABLE, PARTS_BY_BASES, PARTS_CODERS };
constexpr uint32_t PARTS_END_BYTES = 2; // form and coder

ANY_SIDE uint32_t parts_of(uint32_t m)
{
    return (m + PART_VALUES - 1) / PART_VALUES;
}

// Bytes at the end of a block of m values.
ANY_SIDE uint32_t parts_end(uint32_t coder, uint32_t m)
{
    return PARTS_END_BYTES + (coder == PARTS_BY_BASES ? parts_of(m) : 0);
}

// Of patches with their number: two bytes each for the position of a value and its lowest bits.
constexpr uint32_t PATCH_BYTES = 4, PATCHES_MAX = 1024;

ANY_SIDE uint32_t patch_bytes(uint32_t patches)
{
    return patches != 0 ? PATCH_BYTES * patches + 2 : 0;
}

// ---- Fields ---------------------------------------------------------------------------------------------------------

template <typed_type TYPE> ANY_SIDE constexpr uint32_t mantissa_bits()
{
    return TYPE == TYPE_FP32 ? 23 : TYPE == TYPE_FP16 ? 10 : 7;
}

enum sign_form { SIGNS_IN_FIELDS, SIGNS_CLEAR, SIGNS_SET, SIGN_FORMS };

// What the fields of a block are: `zeroes` low bits of mantissas are left out, and signs unless they differ. So many
// values have patches.
struct field_form {
    uint32_t zeroes, signs, bits, patches; // bits of a field

    ANY_SIDE uint32_t byte() const
    {
        return zeroes + 32 * signs + (patches != 0 ? 128 : 0);
    }
};

ANY_SIDE field_form make_field_form(uint32_t mantissa, uint32_t zeroes, uint32_t signs, uint32_t patches)
{
    return {zeroes, signs, mantissa - zeroes + (signs == SIGNS_IN_FIELDS), patches};
}

// What the values of a block have in common, as a word of which the workers' are joined by "or": the bits of mantissas
// that are set in some value; of FP16 above them those that are set in some value that is not subnormal; whether some
// sign is set; whether some is clear.
constexpr uint32_t NORMAL_SHIFT = 10, SOME_SIGN = 1u << 30, SOME_CLEAR = 1u << 31;

// The bits of two FP16 values of those that are not subnormal.
ANY_SIDE uint32_t normal_mantissas(uint32_t w)
{
    const uint32_t is_normal = ((w & 0x7c007c00u) + 0x7c007c00u) & 0x80008000u;
    return w & ((is_normal >> 5) - (is_normal >> 15));
}

// From an "or" over values, one over inverted values, and one over normal_mantissas: for two values in a word, or one.
template <typed_type TYPE> ANY_SIDE uint32_t bits_in_use(uint32_t set, uint32_t inverted, uint32_t normal)
{
    if (TYPE != TYPE_FP32) {
        set |= set << 16;
        inverted |= inverted << 16;
    }
    const uint32_t mantissa = (TYPE == TYPE_FP32 ? set : set >> 16) & ((1u << mantissa_bits<TYPE>()) - 1);
    const uint32_t of_normal = TYPE == TYPE_FP16 ? ((normal | normal >> 16) & 0x3ff) << NORMAL_SHIFT : 0;
    return mantissa | of_normal | (set >> 31) * SOME_SIGN | (inverted & SOME_CLEAR);
}

// The low bits of mantissas that are all zero.
template <typed_type TYPE> ANY_SIDE uint32_t zero_bits(uint32_t mantissas)
{
    const uint32_t all = mantissa_bits<TYPE>(), used = mantissas & ((1u << all) - 1);
    return used == 0 ? all : lowest_bit(used);
}

template <typed_type TYPE> ANY_SIDE field_form find_field_form(uint32_t in_use)
{
    return make_field_form(mantissa_bits<TYPE>(), zero_bits<TYPE>(in_use),
                           (in_use & SOME_SIGN) == 0    ? SIGNS_CLEAR
                           : (in_use & SOME_CLEAR) == 0 ? SIGNS_SET
                                                        : SIGNS_IN_FIELDS,
                           0);
}

// Where the streams of pieces of m fields begin, and tier 1 after them.
struct piece_offsets {
    uint32_t at4, at2, at1, at8, tier1; // the stream of pieces of 16 bits begins at 0
};

ANY_SIDE uint32_t piece_bytes(uint32_t bits, uint32_t width, uint32_t m)
{
    return (bits & width) != 0 ? (m * width + 7) / 8 : 0;
}

ANY_SIDE piece_offsets find_pieces(uint32_t bits, uint32_t m)
{
    piece_offsets at;
    at.at4 = piece_bytes(bits, 16, m);
    at.at2 = at.at4 + piece_bytes(bits, 4, m);
    at.at1 = at.at2 + piece_bytes(bits, 2, m);
    at.at8 = at.at1 + piece_bytes(bits, 1, m);
    at.tier1 = at.at8 + piece_bytes(bits, 8, m);
    return at;
}

// Fields of eight values, or of four FP32 values. Their pieces of 4, 2 and 1 bits are the lowest bits of `low`, a byte
// of each field; those of 8 bits are in `top`, those of 16 in `middle`.
struct fields {
    uint32_t low[2], top[2], middle[2];
};

// A byte of each of two words of two fields, of each of four words.
ANY_SIDE uint32_t bytes_of_pairs(uint32_t a, uint32_t b)
{
    return permute(a, b, 0x6420);
}
ANY_SIDE uint32_t bytes_of_words(const uint32_t w[4], uint32_t shift)
{
    const uint32_t a = permute(w[0] >> shift, w[1] >> shift, 0x0040), b = permute(w[2] >> shift, w[3] >> shift, 0x0040);
    return permute(a, b, 0x5410);
}

// Cuts the fields out of a vector of values.
template <typed_type TYPE> ANY_SIDE void cut_fields(const field_form &form, const uint32_t w[4], fields &cut)
{
    const uint32_t bits = form.bits, top = bits & ~8u; // the shift of pieces of 8 bits, where there are
    if (TYPE == TYPE_BF16) {
        split_values(w, cut.low);
        if (bits == 8) {
            cut.top[0] = cut.low[0], cut.top[1] = cut.low[1];
            return;
        }
        const uint32_t mask = low_mask(bits) * 0x01010101u;
#pragma unroll
        for (int i = 0; i < 2; i++)
            cut.low[i] = cut.low[i] >> form.zeroes & mask;
        return;
    }
    uint32_t f[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        f[i] = TYPE == TYPE_FP16
                   ? ((w[i] & 0x03ff03ffu) | (w[i] >> 5 & 0x04000400u)) >> form.zeroes & low_mask(bits) * 0x00010001u
                   : ((w[i] & 0x007fffffu) | (w[i] >> 8 & 0x00800000u)) >> form.zeroes & low_mask(bits);
    if (TYPE == TYPE_FP16) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            cut.low[i] = bytes_of_pairs(f[2 * i], f[2 * i + 1]);
            cut.top[i] = bytes_of_pairs(f[2 * i] >> top, f[2 * i + 1] >> top);
        }
        return;
    }
    const uint32_t middle = bits & 7;
    cut.low[0] = bytes_of_words(f, 0);
    cut.top[0] = bytes_of_words(f, top);
#pragma unroll
    for (int i = 0; i < 2; i++)
        cut.middle[i] = permute(f[2 * i] >> middle, f[2 * i + 1] >> middle, 0x5410);
}

// Values from fields and exponents, a byte each. Pieces that there are not must be zero, and so must be other bits of
// `low` than those of its pieces. Nonzero: some exponent is that of no FP16 value.
template <typed_type TYPE>
ANY_SIDE uint32_t paste_fields(const field_form &form, const fields &cut, const uint32_t exponents[2], uint32_t w[4])
{
    const uint32_t bits = form.bits, top = bits & ~8u, set = form.signs == SIGNS_SET;
    uint32_t invalid = 0;
    if (TYPE == TYPE_BF16) {
        uint32_t sm[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            sm[i] = (cut.low[i] | cut.top[i]) << form.zeroes | set * 0x80808080u;
        join_values(sm, exponents, w);
        return 0;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (TYPE == TYPE_FP16) {
            const uint32_t pick = i % 2 == 0 ? 0x4140 : 0x4342;
            const uint32_t high_halves = permute(exponents[i / 2], 0, pick) << 7, value = fp16_values(high_halves);
            const uint32_t f = permute(cut.low[i / 2], 0, pick) | permute(cut.top[i / 2], 0, pick) << (top & 15);
            invalid |= fp16_high_halves(value) ^ high_halves;
            w[i] = value | (f << form.zeroes & 0x03ff03ffu) | (f << form.zeroes & 0x04000400u) << 5 | set * 0x80008000u;
        } else {
            const uint32_t f = (cut.low[0] >> (8 * i) & 255) |
                               permute(cut.middle[i / 2], 0, i % 2 == 0 ? 0x4410 : 0x4432) << (bits & 7) |
                               (cut.top[0] >> (8 * i) & 255) << top;
            w[i] = (f << form.zeroes & 0x007fffffu) | (f << form.zeroes & 0x00800000u) << 8 |
                   (exponents[0] >> (8 * i) & 255) << 23 | set * 0x80000000u;
        }
    }
    return invalid;
}

// Pieces of 4, 2 and 1 bits of eight values, or those of four, which are the lower half.
ANY_SIDE uint32_t pack_pieces4(uint32_t bits, const uint32_t low[2])
{
    const uint32_t shift = bits & 3;
    return pack_eight(low[0] >> shift & 0x0f0f0f0fu, low[1] >> shift & 0x0f0f0f0fu);
}
ANY_SIDE uint32_t pack_pieces2(uint32_t bits, const uint32_t low[2])
{
    const uint32_t shift = bits & 1;
    return pack_four_twos(low[0] >> shift) | pack_four_twos(low[1] >> shift) << 8;
}
ANY_SIDE uint32_t pack_pieces1(const uint32_t low[2])
{
    return pack_four_ones(low[0]) | pack_four_ones(low[1]) << 4;
}

// Back: adds pieces to `low`.
ANY_SIDE void unpack_pieces4(uint32_t bits, uint32_t pieces, uint32_t low[2])
{
    uint32_t four[2];
    unpack_eight(pieces, four);
    low[0] |= four[0] << (bits & 3), low[1] |= four[1] << (bits & 3);
}
ANY_SIDE void unpack_pieces2(uint32_t bits, uint32_t pieces, uint32_t low[2])
{
    low[0] |= unpack_four_twos(pieces) << (bits & 1), low[1] |= unpack_four_twos(pieces >> 8) << (bits & 1);
}
ANY_SIDE void unpack_pieces1(uint32_t pieces, uint32_t low[2])
{
    low[0] |= unpack_four_ones(pieces), low[1] |= unpack_four_ones(pieces >> 4);
}

// ---- Bases of parts -------------------------------------------------------------------------------------------------

// The two least inverted exponents of a part, as u16x2. Infinities and NaN have the greatest.
struct two_least {
    uint32_t first, second;

    ANY_SIDE void add(uint32_t inverted)
    {
        const uint32_t next = add_min_u16x2(inverted, 0xff00ff00u, NO_INVERTED);
        second = add_min_u16x2(second, 0, add_max_u16x2(first, 0, next));
        first = add_min_u16x2(first, 0, next);
    }

    // Both u16 together, as inverted exponents in the lowest byte.
    ANY_SIDE void join()
    {
        const uint32_t other = permute(first, 0, 0x1032), more = permute(second, 0, 0x1032);
        second = add_min_u16x2(add_min_u16x2(second, 0, more), 0, add_max_u16x2(first, 0, other)) >> 8 & 255;
        first = add_min_u16x2(first, 0, other) >> 8 & 255;
    }
};

// The base from the second least of a part.
ANY_SIDE uint32_t part_base(uint32_t second)
{
    return second >= 254 ? 1 : 254 - second;
}

// ---- Symbols --------------------------------------------------------------------------------------------------------

// The symbol of an exponent by the base of its part; and back. By base 0 they are the same: exponents by a table.
ANY_SIDE uint32_t part_symbol(uint32_t exponent, uint32_t base)
{
    const uint32_t symbol = (exponent - base) & 255;
    if (base <= 16)
        return symbol;
    return exponent == 0 ? 128 : symbol == 128 ? 256 - base : symbol;
}
ANY_SIDE uint32_t part_exponent(uint32_t symbol, uint32_t base)
{
    const uint32_t exponent = (symbol + base) & 255;
    if (base <= 16)
        return exponent;
    return symbol == 128 ? 0 : exponent == 0 ? (base + 128) & 255 : exponent;
}

// Item in tier 3 of a symbol that is not in tiers 1 and 2.
ANY_SIDE uint32_t symbol_tier3(uint32_t symbol)
{
    const uint32_t below = (250 - symbol) & 255; // from -6 down
    return below <= 10 ? below : symbol - 1 < 3 ? symbol + 10 : symbol == 128 ? 14 : 15;
}

// Word i of the 64 bytes of a table_image before its `rank`, for symbols.
ANY_SIDE uint32_t symbol_image_word(uint32_t i)
{
    return i == 0   ? 0x00fdfeffu
           : i == 1 ? 0x0000fbfcu
           : i == 4 ? 0xf7f8f9fau
           : i == 5 ? 0xf3f4f5f6u
           : i == 6 ? 0x01f0f1f2u
           : i == 7 ? 0x00800302u
                    : 0;
}

// Exponents of ranks 0 to 5 from the symbols or exponents that the first two words of a table_image have.
ANY_SIDE void first_exponents(const uint32_t *image, uint32_t base, uint32_t first[2])
{
    constexpr uint32_t LOW = 0x7f7f7f7fu;
    const uint32_t all = base * 0x01010101u;
    first[0] = ((image[0] & LOW) + (all & LOW)) ^ ((image[0] ^ all) & ~LOW);
    first[1] = (((image[1] & LOW) + (all & LOW)) ^ ((image[1] ^ all) & ~LOW)) & 0xffff;
}

} // namespace strait
#endif
