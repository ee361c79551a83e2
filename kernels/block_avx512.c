/*
 * AVX-512 (VBMI, VBMI2, VPOPCNTDQ) block coder: 64 values at a time. A lookup in a 256-entry table takes two byte
 * permutes, compress and expand are one instruction each. Compress goes to a register that is then stored, because
 * compressing straight to memory is microcoded on Zen 4.
 */
#include <immintrin.h>

#include "kernels/block.h"
#include "kernels/block_x86.h"

#define STEP 64u

typedef __m512i vec;
typedef __mmask64 vec_mask;

static inline vec vec_load(const uint8_t *src)
{
    return _mm512_loadu_si512(src);
}

static inline void vec_store(uint8_t *dst, vec v)
{
    _mm512_storeu_si512(dst, v);
}

static inline vec vec_all(uint8_t byte)
{
    return _mm512_set1_epi8((char)byte);
}

/* The highest bits of all bytes. */
static inline vec_mask vec_signs(vec v)
{
    return _mm512_movepi8_mask(v);
}

static inline vec_mask vec_first(uint32_t count)
{
    return count >= STEP ? ~0ull : (1ull << count) - 1;
}

static inline vec_mask vec_below(vec v, uint8_t limit)
{
    return _mm512_cmplt_epu8_mask(v, _mm512_set1_epi8((char)limit));
}

static inline vec_mask vec_is(vec v, uint8_t byte)
{
    return _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8((char)byte));
}

static inline vec vec_select(vec_mask mask, vec v)
{
    return _mm512_maskz_mov_epi8(mask, v);
}

/* v - by, but not below zero. */
static inline vec vec_less(vec v, uint8_t by)
{
    return _mm512_subs_epu8(v, _mm512_set1_epi8((char)by));
}

static inline vec vec_min(vec v, uint8_t limit)
{
    return _mm512_min_epu8(v, _mm512_set1_epi8((char)limit));
}

static inline vec vec_larger(vec a, vec b)
{
    return _mm512_max_epu8(a, b);
}

static inline vec vec_smaller(vec a, vec b)
{
    return _mm512_min_epu8(a, b);
}

static inline vec vec_add(vec v, uint8_t byte)
{
    return _mm512_add_epi8(v, vec_all(byte));
}

static inline vec vec_exchange(vec v, uint8_t a, uint8_t b)
{
    return _mm512_xor_si512(v, _mm512_maskz_set1_epi8(vec_is(v, a) | vec_is(v, b), (char)(a ^ b)));
}

static inline uint8_t second_of_lanes(vec first, vec second)
{
    __m256i a = _mm512_castsi512_si256(first), b = _mm512_extracti64x4_epi64(first, 1);
    __m256i more = _mm256_max_epu8(_mm512_castsi512_si256(second), _mm512_extracti64x4_epi64(second, 1));
    return second_of_32(_mm256_max_epu8(a, b), _mm256_max_epu8(more, _mm256_min_epu8(a, b)));
}

/* 0, 1, 2, ... */
static const uint8_t iota[STEP] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63,
};

static inline uint32_t count_bits(uint64_t bits)
{
    return (uint32_t)_mm_popcnt_u64(bits);
}

static inline uint32_t compress(uint8_t *dst, vec_mask mask, vec v)
{
    vec_store(dst, _mm512_maskz_compress_epi8(mask, v));
    return count_bits(mask);
}

static inline void compress_positions(uint16_t *dst, vec_mask mask, uint16_t base)
{
    vec inside = _mm512_maskz_compress_epi8(mask, vec_load(iota)), first = _mm512_set1_epi16((short)base);
    vec low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(inside));
    vec high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(inside, 1));
    vec_store((uint8_t *)dst, _mm512_add_epi16(first, low));
    vec_store((uint8_t *)(dst + 32), _mm512_add_epi16(first, high));
}

static inline vec expand(vec v, vec_mask mask, const uint8_t *src)
{
    return _mm512_mask_expand_epi8(v, mask, vec_load(src));
}

typedef vec vec_table;

static inline vec_table table16(const uint8_t table[16])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
}

static inline vec lookup16(vec_table table, vec index)
{
    return _mm512_shuffle_epi8(table, index);
}

/* The ranks of all exponents in registers. */
struct rank_lut {
    vec quarter[4];
};

static inline struct rank_lut rank_lut_init(const struct table *table)
{
    struct rank_lut ranks;
    for (int q = 0; q < 4; q++)
        ranks.quarter[q] = vec_load(table->rank + 64 * q);
    return ranks;
}

static inline vec rank_lut_get(const struct rank_lut *ranks, vec e)
{
    vec low = _mm512_permutex2var_epi8(ranks->quarter[0], e, ranks->quarter[1]);
    vec high = _mm512_permutex2var_epi8(ranks->quarter[2], e, ranks->quarter[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(e), low, high);
}

/* Byte orders over two vectors: the low bytes of all words (the high ones are next to them), and the order that joins
 * low and high bytes again. */
static const uint8_t order_even[64] = {
    0,  2,  4,  6,  8,  10, 12,  14,  16,  18,  20,  22,  24,  26,  28,  30,  32,  34,  36,  38,  40, 42,
    44, 46, 48, 50, 52, 54, 56,  58,  60,  62,  64,  66,  68,  70,  72,  74,  76,  78,  80,  82,  84, 86,
    88, 90, 92, 94, 96, 98, 100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 122, 124, 126,
};
static const uint8_t order_pairs[64] = {
    0,  64, 1,  65, 2,  66, 3,  67, 4,  68, 5,  69, 6,  70, 7,  71, 8,  72, 9,  73, 10, 74,
    11, 75, 12, 76, 13, 77, 14, 78, 15, 79, 16, 80, 17, 81, 18, 82, 19, 83, 20, 84, 21, 85,
    22, 86, 23, 87, 24, 88, 25, 89, 26, 90, 27, 91, 28, 92, 29, 93, 30, 94, 31, 95,
};

/* 64 values as two vectors of words. */
struct words {
    vec a, b;
};

static inline struct words words_load(const uint8_t *src)
{
    return (struct words){.a = vec_load(src), .b = vec_load(src + 64)};
}

static inline void words_store(uint8_t *dst, struct words v)
{
    vec_store(dst, v.a);
    vec_store(dst + 64, v.b);
}

static inline void words_stream(uint8_t *dst, struct words v)
{
    _mm512_stream_si512((__m512i *)dst, v.a);
    _mm512_stream_si512((__m512i *)(dst + 64), v.b);
}

static inline void words_flush(void)
{
    _mm_sfence();
}

static inline bool words_equal(struct words v)
{
    vec first = _mm512_broadcastw_epi16(_mm512_castsi512_si128(v.a));
    return (_mm512_cmpneq_epi16_mask(v.a, first) | _mm512_cmpneq_epi16_mask(v.b, first)) == 0;
}

struct split {
    vec sign_mantissa, exponent;
};

/* mask ? a : b, bit by bit */
static inline vec choose(uint8_t byte_mask, vec a, vec b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)byte_mask), a, b, 0xCA);
}

/* Shifts of 16-bit words serve as shifts of bytes: `choose` drops the bits that crossed over. */
static inline struct split split_values(struct words v)
{
    const vec even = vec_load(order_even), odd = _mm512_add_epi8(even, _mm512_set1_epi8(1));
    vec low = _mm512_permutex2var_epi8(v.a, even, v.b), high = _mm512_permutex2var_epi8(v.a, odd, v.b);
    return (struct split){.sign_mantissa = choose(0x80, high, low),
                          .exponent = choose(0x01, _mm512_srli_epi16(low, 7), _mm512_slli_epi16(high, 1))};
}

static inline struct words join_values(vec sm, vec e)
{
    const vec first = vec_load(order_pairs), second = _mm512_add_epi8(first, _mm512_set1_epi8(32));
    vec low = choose(0x80, _mm512_slli_epi16(e, 7), sm), high = choose(0x80, sm, _mm512_srli_epi16(e, 1));
    return (struct words){.a = _mm512_permutex2var_epi8(low, first, high),
                          .b = _mm512_permutex2var_epi8(low, second, high)};
}

struct summer {
    vec key, step, product, linear;
};

static inline struct summer summer_init(uint32_t word)
{
    struct summer s;
    s.step = _mm512_set1_epi64((long long)((uint64_t)sum_steps[1] << 32 | sum_steps[0]));
    s.key = _mm512_add_epi32(_mm512_loadu_si512(sum_keys),
                             _mm512_mullo_epi32(s.step, _mm512_set1_epi32((int)(word / SUM_LANES))));
    s.product = s.linear = _mm512_setzero_si512();
    return s;
}

static inline void summer_add_half(struct summer *s, vec words)
{
    vec x = _mm512_add_epi32(words, s->key);
    s->product = _mm512_add_epi64(s->product, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32)));
    s->linear = _mm512_add_epi64(s->linear, x);
    s->key = _mm512_add_epi32(s->key, s->step);
}

static inline void summer_add(struct summer *s, struct words v)
{
    summer_add_half(s, v.a);
    summer_add_half(s, v.b);
}

static inline uint64_t summer_result(const struct summer *s)
{
    uint64_t lane[8], total = 0;
    vec_store((uint8_t *)lane, _mm512_add_epi64(s->product, s->linear));
    for (int i = 0; i < 8; i++)
        total += lane[i];
    return total;
}

/* 64 codes of 4 bits to 32 bytes, of 2 bits to 16 bytes, and back. */
static inline void pack4(uint8_t *dst, vec code)
{
    vec pairs = _mm512_maddubs_epi16(code, _mm512_set1_epi16(0x1001));
    _mm256_storeu_si256((__m256i *)dst, _mm512_cvtepi16_epi8(pairs));
}

static inline void pack2(uint8_t *dst, vec code)
{
    vec pairs = _mm512_maddubs_epi16(code, _mm512_set1_epi16(0x0401));
    vec fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001));
    _mm_storeu_si128((__m128i *)dst, _mm512_cvtepi32_epi8(fours));
}

static inline vec unpack4(const uint8_t *src)
{
    vec word = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)src));
    return _mm512_and_si512(_mm512_or_si512(word, _mm512_slli_epi16(word, 4)), _mm512_set1_epi8(15));
}

static inline vec unpack2(const uint8_t *src)
{
    vec dword = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)src));
    vec pairs = _mm512_or_si512(dword, _mm512_slli_epi32(dword, 12));
    return _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 6)), _mm512_set1_epi8(3));
}

#include "kernels/block_vector.h"

const struct block_ops block_avx512 = BLOCK_VECTOR_OPS(values_avx512);
