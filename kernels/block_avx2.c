/*
 * AVX2 block coder: 32 values at a time. A byte shuffle looks up 16 entries, so ranks are looked up in a window of 32
 * exponents with two shuffles; the few exponents outside it are compared one by one. Compress and expand work on 8
 * bytes at a time, with shuffles whose orders come from tables.
 */
#include <immintrin.h>
#include "internal/bytes.h"
#include "kernels/block.h"
#include "kernels/block_orders.h"
#include "kernels/block_x86.h"

#define STEP 32u

typedef __m256i vec;
typedef uint32_t vec_mask;

static inline vec vec_load(const uint8_t *src)
{
    return _mm256_loadu_si256((const __m256i *)src);
}

static inline void vec_store(uint8_t *dst, vec v)
{
    _mm256_storeu_si256((__m256i *)dst, v);
}

static inline vec vec_all(uint8_t byte)
{
    return _mm256_set1_epi8((char)byte);
}

/* The highest bits of all bytes. */
static inline vec_mask vec_signs(vec v)
{
    return (vec_mask)_mm256_movemask_epi8(v);
}

static inline vec_mask vec_first(uint32_t count)
{
    return count >= STEP ? ~0u : (1u << count) - 1;
}

static inline vec_mask vec_below(vec v, uint8_t limit)
{
    vec capped = _mm256_max_epu8(v, _mm256_set1_epi8((char)limit));
    return ~(vec_mask)_mm256_movemask_epi8(_mm256_cmpeq_epi8(capped, v));
}

static inline vec_mask vec_is(vec v, uint8_t byte)
{
    return (vec_mask)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_set1_epi8((char)byte)));
}

/* v - by, but not below zero. */
static inline vec vec_less(vec v, uint8_t by)
{
    return _mm256_subs_epu8(v, _mm256_set1_epi8((char)by));
}

static inline vec vec_min(vec v, uint8_t limit)
{
    return _mm256_min_epu8(v, _mm256_set1_epi8((char)limit));
}

static inline vec vec_larger(vec a, vec b)
{
    return _mm256_max_epu8(a, b);
}

static inline vec vec_smaller(vec a, vec b)
{
    return _mm256_min_epu8(a, b);
}

static inline vec vec_add(vec v, uint8_t byte)
{
    return _mm256_add_epi8(v, vec_all(byte));
}

static inline vec vec_exchange(vec v, uint8_t a, uint8_t b)
{
    vec either = _mm256_or_si256(_mm256_cmpeq_epi8(v, vec_all(a)), _mm256_cmpeq_epi8(v, vec_all(b)));
    return _mm256_xor_si256(v, _mm256_and_si256(either, vec_all(a ^ b)));
}

static inline uint8_t second_of_lanes(vec first, vec second)
{
    return second_of_32(first, second);
}

static inline uint32_t count_bits(uint64_t bits)
{
    return (uint32_t)_mm_popcnt_u64(bits);
}

/* Copies bit i of the mask to all bits of byte i. */
static inline vec spread_mask(vec_mask mask)
{
    const vec byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const vec bit_of = _mm256_set1_epi64x((long long)0x8040201008040201u);
    vec bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)mask), byte_of);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
}

static inline vec vec_select(vec_mask mask, vec v)
{
    return mask == ~0u ? v : _mm256_and_si256(v, spread_mask(mask));
}

typedef vec vec_table;

static inline vec_table table16(const uint8_t table[16])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
}

static inline vec lookup16(vec_table table, vec index)
{
    return _mm256_shuffle_epi8(table, index);
}

/* 32 values as two vectors of words. */
struct words {
    vec a, b;
};

static inline struct words words_load(const uint8_t *src)
{
    return (struct words){.a = vec_load(src), .b = vec_load(src + 32)};
}

static inline void words_store(uint8_t *dst, struct words v)
{
    vec_store(dst, v.a);
    vec_store(dst + 32, v.b);
}

static inline void words_stream(uint8_t *dst, struct words v)
{
    _mm256_stream_si256((__m256i *)dst, v.a);
    _mm256_stream_si256((__m256i *)(dst + 32), v.b);
}

static inline void words_flush(void)
{
    _mm_sfence();
}

static inline bool words_equal(struct words v)
{
    vec first = _mm256_broadcastw_epi16(_mm256_castsi256_si128(v.a));
    vec same = _mm256_and_si256(_mm256_cmpeq_epi16(v.a, first), _mm256_cmpeq_epi16(v.b, first));
    return _mm256_movemask_epi8(same) == -1;
}

struct split {
    vec sign_mantissa, exponent;
};

/* mask ? a : b, bit by bit */
static inline vec choose(vec mask, vec a, vec b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

/* The low bytes of the words of a, then of b; the words' high bytes must be zero. */
static inline vec narrow(vec a, vec b)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8);
}

/* Shifts of 16-bit words serve as shifts of bytes: `choose` drops the bits that crossed over. */
static inline struct split split_values(struct words v)
{
    const vec low_byte = _mm256_set1_epi16(0xff);
    vec low = narrow(_mm256_and_si256(v.a, low_byte), _mm256_and_si256(v.b, low_byte));
    vec high = narrow(_mm256_srli_epi16(v.a, 8), _mm256_srli_epi16(v.b, 8));
    return (struct split){.sign_mantissa = choose(_mm256_set1_epi8((char)0x80), high, low),
                          .exponent =
                              choose(_mm256_set1_epi8(1), _mm256_srli_epi16(low, 7), _mm256_slli_epi16(high, 1))};
}

static inline struct words join_values(vec sm, vec e)
{
    const vec sign = _mm256_set1_epi8((char)0x80);
    vec low = choose(sign, _mm256_slli_epi16(e, 7), sm), high = choose(sign, sm, _mm256_srli_epi16(e, 1));
    vec first = _mm256_unpacklo_epi8(low, high), second = _mm256_unpackhi_epi8(low, high);
    return (struct words){.a = _mm256_permute2x128_si256(first, second, 0x20),
                          .b = _mm256_permute2x128_si256(first, second, 0x31)};
}

struct summer {
    vec key[2], step, product, linear;
};

static inline struct summer summer_init(uint32_t word)
{
    struct summer s;
    s.step = _mm256_set1_epi64x((long long)((uint64_t)sum_steps[1] << 32 | sum_steps[0]));
    vec passed = _mm256_mullo_epi32(s.step, _mm256_set1_epi32((int)(word / SUM_LANES)));
    for (int half = 0; half < 2; half++)
        s.key[half] = _mm256_add_epi32(vec_load((const uint8_t *)(sum_keys + 8 * half)), passed);
    s.product = s.linear = _mm256_setzero_si256();
    return s;
}

static inline void summer_add_half(struct summer *s, vec words, int half)
{
    vec x = _mm256_add_epi32(words, s->key[half]);
    s->product = _mm256_add_epi64(s->product, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
    s->linear = _mm256_add_epi64(s->linear, x);
    s->key[half] = _mm256_add_epi32(s->key[half], s->step);
}

static inline void summer_add(struct summer *s, struct words v)
{
    summer_add_half(s, v.a, 0);
    summer_add_half(s, v.b, 1);
}

static inline uint64_t summer_result(const struct summer *s)
{
    uint64_t lane[4];
    vec_store((uint8_t *)lane, _mm256_add_epi64(s->product, s->linear));
    return lane[0] + lane[1] + lane[2] + lane[3];
}

/* Ranks of the 32 exponents from `window` on in two shuffle tables, and of a few strays outside it. */
struct rank_lut {
    vec first, half[2], stray[TABLE_STRAYS], stray_rank[TABLE_STRAYS];
    const struct table *table;
};

static inline struct rank_lut rank_lut_init(const struct table *table)
{
    struct rank_lut ranks = {.first = _mm256_set1_epi8((char)table->window), .table = table};
    ranks.half[0] = table16(table->rank + table->window);
    ranks.half[1] = table16(table->rank + table->window + 16);
    for (int k = 0; k < TABLE_STRAYS; k++) {
        ranks.stray[k] = _mm256_set1_epi8((char)table->strays[k]);
        ranks.stray_rank[k] = _mm256_set1_epi8((char)table->rank[table->strays[k]]);
    }
    return ranks;
}

/* Looks up the ranks of exponents outside the window one by one. */
static inline vec mend_ranks(const uint8_t all[256], vec rank, vec e, vec_mask outside)
{
    uint8_t ranks[STEP], exponents[STEP];
    vec_store(ranks, rank);
    vec_store(exponents, e);
    for (; outside != 0; outside &= outside - 1) {
        unsigned i = (unsigned)__builtin_ctz(outside);
        ranks[i] = all[exponents[i]];
    }
    return vec_load(ranks);
}

/* Ranks of 32 exponents. An exponent that is neither in the window nor a stray gets the highest rank: of ranks from
 * TIER4_RANK on, coders do not care which one it is. */
static inline vec rank_lut_get(const struct rank_lut *ranks, vec e)
{
    vec at = _mm256_sub_epi8(e, ranks->first);
    vec low = lookup16(ranks->half[0], at), high = lookup16(ranks->half[1], at);
    vec inside = _mm256_cmpeq_epi8(_mm256_min_epu8(at, _mm256_set1_epi8(31)), at);
    vec rank = _mm256_blendv_epi8(low, high, _mm256_slli_epi16(at, 3));
    rank = _mm256_blendv_epi8(_mm256_set1_epi8(-1), rank, inside);
    for (int k = 0; k < TABLE_STRAYS && k < ranks->table->stray_count; k++)
        rank = _mm256_blendv_epi8(rank, ranks->stray_rank[k], _mm256_cmpeq_epi8(e, ranks->stray[k]));
    vec_mask outside = ~(vec_mask)_mm256_movemask_epi8(inside);
    if (outside == 0 || ranks->table->stray_count <= TABLE_STRAYS)
        return rank;
    return mend_ranks(ranks->table->rank, rank, e, outside);
}

/* 32 codes of 4 bits to 16 bytes, and back. */
static inline void pack4(uint8_t *dst, vec code)
{
    vec pairs = _mm256_maddubs_epi16(code, _mm256_set1_epi16(0x1001));
    _mm_storeu_si128((__m128i *)dst, _mm256_castsi256_si128(narrow(pairs, pairs)));
}

static inline vec unpack4(const uint8_t *src)
{
    vec word = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)src));
    return _mm256_and_si256(_mm256_or_si256(word, _mm256_slli_epi16(word, 4)), _mm256_set1_epi8(15));
}

/* 32 codes of 2 bits to 8 bytes, and back. */
static inline void pack2(uint8_t *dst, vec code)
{
    const vec low_bytes = _mm256_set1_epi32(0x0c080400), halves = _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4);
    vec pairs = _mm256_maddubs_epi16(code, _mm256_set1_epi16(0x0401));
    vec fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001));
    vec packed = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(fours, low_bytes), halves);
    _mm_storel_epi64((__m128i *)dst, _mm256_castsi256_si128(packed));
}

static inline vec unpack2(const uint8_t *src)
{
    const vec byte_of =
        _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707);
    const vec low_of = _mm256_set1_epi32(0x40100401), high_of = _mm256_set1_epi32((int)0x80200802);
    vec bytes = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)load_le64(src)), byte_of);
    vec low = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, low_of), low_of);
    vec high = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, high_of), high_of);
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(1)), _mm256_and_si256(high, _mm256_set1_epi8(2)));
}

static inline __m128i load8(const void *src)
{
    return _mm_loadl_epi64((const __m128i *)src);
}

/* Stores those of the low 8 bytes of v that the mask names, one after another. */
static inline uint8_t *compress8(uint8_t *dst, uint32_t mask, __m128i v)
{
    _mm_storel_epi64((__m128i *)dst, _mm_shuffle_epi8(v, load8(&compress_order[mask & 255])));
    return dst + count_bits(mask & 255);
}

static inline uint32_t compress(uint8_t *dst, vec_mask mask, vec v)
{
    __m128i low = _mm256_castsi256_si128(v), high = _mm256_extracti128_si256(v, 1);
    uint8_t *at = compress8(dst, mask, low);
    at = compress8(at, mask >> 8, _mm_unpackhi_epi64(low, low));
    at = compress8(at, mask >> 16, high);
    at = compress8(at, mask >> 24, _mm_unpackhi_epi64(high, high));
    return (uint32_t)(at - dst);
}

static inline void compress_positions(uint16_t *dst, vec_mask mask, uint16_t base)
{
    for (unsigned k = 0; k < STEP; k += 8, mask >>= 8) {
        __m128i places = _mm_cvtepu8_epi16(load8(&compress_order[mask & 255]));
        _mm_storeu_si128((__m128i *)dst, _mm_add_epi16(places, _mm_set1_epi16((short)(base + k))));
        dst += count_bits(mask & 255);
    }
}

/* Puts successive bytes of src into the places of the mask's low 8 bits; skips as many bytes as `before` has bits. */
static inline __m128i expand8(uint32_t mask, const uint8_t *src, uint32_t before)
{
    return _mm_shuffle_epi8(load8(src + count_bits(before)), load8(&expand_order[mask & 255]));
}

/* v must be zero in the places that the mask names. */
static inline vec expand(vec v, vec_mask mask, const uint8_t *src)
{
    __m128i low = _mm_unpacklo_epi64(expand8(mask, src, 0), expand8(mask >> 8, src, mask & 0xff));
    __m128i high =
        _mm_unpacklo_epi64(expand8(mask >> 16, src, mask & 0xffff), expand8(mask >> 24, src, mask & 0xffffff));
    return _mm256_or_si256(v, _mm256_set_m128i(high, low));
}

#include "kernels/block_vector.h"

const struct block_ops block_avx2 = BLOCK_VECTOR_OPS(values_avx2);
