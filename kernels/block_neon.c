/*
 * NEON block coder, for aarch64: 64 values at a time in four vectors, so that one mask of 64 bits is made of all of
 * them: there is no instruction that takes a bit of each byte, and a tree of pairwise sums costs a whole tree however
 * few bytes it has. A lookup takes bytes of two registers, and leaves what lies outside alone: ranks are looked up in a
 * window of 32 exponents; the few outside it are compared one by one. Compress and expand work on 8 bytes at a time, as
 * in AVX2.
 */
#include <arm_neon.h>
#include "internal/bytes.h"
#include "kernels/block.h"
#include "kernels/block_orders.h"

#define STEP  64u
#define PARTS 4 /* vectors of a step */

typedef uint8x16x4_t vec;
typedef uint64_t vec_mask;

/* The same of each part. */
#define EACH(RESULT, VALUE)                  \
    vec RESULT;                              \
    for (int part = 0; part < PARTS; part++) \
    RESULT.val[part] = (VALUE)

static inline vec vec_load(const uint8_t *src)
{
    EACH(v, vld1q_u8(src + 16 * part));
    return v;
}

static inline void vec_store(uint8_t *dst, vec v)
{
    for (int part = 0; part < PARTS; part++)
        vst1q_u8(dst + 16 * part, v.val[part]);
}

static inline vec_mask vec_first(uint32_t count)
{
    return count >= STEP ? ~0ull : (1ull << count) - 1;
}

static const uint8_t mask_bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};

/* A bit of each byte, all of whose bits are equal. */
static inline vec_mask gather_mask(vec bytes)
{
    const uint8x16_t bit_of = vld1q_u8(mask_bits);
    EACH(bits, vandq_u8(bytes.val[part], bit_of));
    uint8x16_t low = vpaddq_u8(bits.val[0], bits.val[1]), high = vpaddq_u8(bits.val[2], bits.val[3]);
    uint8x16_t all = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
}

/* Copies bit i of the mask to all bits of byte i. */
static inline vec spread_mask(vec_mask mask)
{
    static const uint8_t byte_of[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint8x16_t bit_of = vld1q_u8(mask_bits), first = vld1q_u8(byte_of);
    const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(mask));
    EACH(v, vtstq_u8(vqtbl1q_u8(bits, vaddq_u8(first, vdupq_n_u8((uint8_t)(2 * part)))), bit_of));
    return v;
}

static inline vec_mask vec_below(vec v, uint8_t limit)
{
    EACH(below, vcltq_u8(v.val[part], vdupq_n_u8(limit)));
    return gather_mask(below);
}

static inline vec_mask vec_is(vec v, uint8_t byte)
{
    EACH(is, vceqq_u8(v.val[part], vdupq_n_u8(byte)));
    return gather_mask(is);
}

/* v - by, but not below zero. */
static inline vec vec_less(vec v, uint8_t by)
{
    EACH(less, vqsubq_u8(v.val[part], vdupq_n_u8(by)));
    return less;
}

static inline vec vec_min(vec v, uint8_t limit)
{
    EACH(least, vminq_u8(v.val[part], vdupq_n_u8(limit)));
    return least;
}

static inline vec vec_larger(vec a, vec b)
{
    EACH(larger, vmaxq_u8(a.val[part], b.val[part]));
    return larger;
}

static inline vec vec_smaller(vec a, vec b)
{
    EACH(smaller, vminq_u8(a.val[part], b.val[part]));
    return smaller;
}

static inline vec vec_add(vec v, uint8_t byte)
{
    EACH(sum, vaddq_u8(v.val[part], vdupq_n_u8(byte)));
    return sum;
}

static inline vec vec_exchange(vec v, uint8_t a, uint8_t b)
{
    const uint8x16_t x = vdupq_n_u8(a), y = vdupq_n_u8(b), both = vdupq_n_u8(a ^ b);
    EACH(exchanged,
         veorq_u8(v.val[part], vandq_u8(vorrq_u8(vceqq_u8(v.val[part], x), vceqq_u8(v.val[part], y)), both)));
    return exchanged;
}

/* Lanes are merged in pairs, by turning the vector. */
static inline uint8_t second_of_lanes(vec first, vec second)
{
    uint8x16_t a = first.val[0], s = second.val[0], b;
    for (int part = 1; part < PARTS; part++) {
        b = first.val[part];
        s = vmaxq_u8(vmaxq_u8(s, second.val[part]), vminq_u8(a, b));
        a = vmaxq_u8(a, b);
    }
#define MERGE(BYTES)                                                  \
    b = vextq_u8(a, a, BYTES);                                        \
    s = vmaxq_u8(vmaxq_u8(s, vextq_u8(s, s, BYTES)), vminq_u8(a, b)); \
    a = vmaxq_u8(a, b)
    MERGE(8);
    MERGE(4);
    MERGE(2);
    MERGE(1);
#undef MERGE
    return vgetq_lane_u8(s, 0);
}

static inline vec vec_all(uint8_t byte)
{
    EACH(v, vdupq_n_u8(byte));
    return v;
}

/* Shifts and bits, byte by byte. */
static inline vec vec_shl(vec v, unsigned bits)
{
    EACH(shifted, vshlq_u8(v.val[part], vdupq_n_s8((int8_t)bits)));
    return shifted;
}

static inline vec vec_shr(vec v, unsigned bits)
{
    EACH(shifted, vshlq_u8(v.val[part], vdupq_n_s8((int8_t) - (int)bits)));
    return shifted;
}

static inline vec vec_and(vec v, uint8_t byte)
{
    EACH(both, vandq_u8(v.val[part], vdupq_n_u8(byte)));
    return both;
}

static inline vec vec_or(vec a, vec b)
{
    EACH(either, vorrq_u8(a.val[part], b.val[part]));
    return either;
}

/* The highest bits of all bytes. */
static inline vec_mask vec_signs(vec v)
{
    EACH(negative, vcltzq_s8(vreinterpretq_s8_u8(v.val[part])));
    return gather_mask(negative);
}

static inline vec vec_select(vec_mask mask, vec v)
{
    if (mask == ~0ull)
        return v;
    const vec all = spread_mask(mask);
    EACH(selected, vandq_u8(v.val[part], all.val[part]));
    return selected;
}

static inline uint32_t count_bits(uint64_t bits)
{
    return vaddv_u8(vcnt_u8(vcreate_u8(bits)));
}

/* Byte k: how many bits of the mask lie in bytes 0 to k; at most 64, so that none carries over. */
static inline uint64_t count_up(vec_mask mask)
{
    return vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(mask))), 0) * 0x0101010101010101u;
}

/* 16 bytes as a table. */
typedef uint8x16_t vec_table;

static inline vec_table table16(const uint8_t table[16])
{
    return vld1q_u8(table);
}

static inline vec lookup16(vec_table table, vec index)
{
    EACH(found, vqtbl1q_u8(table, index.val[part]));
    return found;
}

/* 64 values as eight vectors of words. */
struct words {
    uint8x16_t at[2 * PARTS];
};

/* The same bytes as two vectors. */
static inline struct words words_of(vec a, vec b)
{
    struct words v;
    for (int part = 0; part < PARTS; part++) {
        v.at[part] = a.val[part];
        v.at[PARTS + part] = b.val[part];
    }
    return v;
}

static inline vec words_first(struct words v)
{
    EACH(first, v.at[part]);
    return first;
}

static inline vec words_second(struct words v)
{
    EACH(second, v.at[PARTS + part]);
    return second;
}

static inline struct words words_load(const uint8_t *src)
{
    struct words v;
    for (int k = 0; k < 2 * PARTS; k++)
        v.at[k] = vld1q_u8(src + 16 * k);
    return v;
}

static inline void words_store(uint8_t *dst, struct words v)
{
    for (int k = 0; k < 2 * PARTS; k++)
        vst1q_u8(dst + 16 * k, v.at[k]);
}

/* Compilers have no intrinsic for stores past the caches. */
static inline void words_stream(uint8_t *dst, struct words v)
{
    words_store(dst, v);
}

static inline void words_flush(void)
{
}

static inline bool words_equal(struct words v)
{
    const uint16x8_t first = vdupq_laneq_u16(vreinterpretq_u16_u8(v.at[0]), 0);
    uint16x8_t same = vdupq_n_u16(0xffff);
    for (int k = 0; k < 2 * PARTS; k++)
        same = vandq_u16(same, vceqq_u16(vreinterpretq_u16_u8(v.at[k]), first));
    return vminvq_u16(same) != 0;
}

struct split {
    vec sign_mantissa, exponent;
};

static inline struct split split_values(struct words v)
{
    const uint8x16_t sign = vdupq_n_u8(0x80);
    struct split s;
    for (int part = 0; part < PARTS; part++) {
        const uint8x16_t low = vuzp1q_u8(v.at[2 * part], v.at[2 * part + 1]);
        const uint8x16_t high = vuzp2q_u8(v.at[2 * part], v.at[2 * part + 1]);
        s.sign_mantissa.val[part] = vbslq_u8(sign, high, low);
        s.exponent.val[part] = vsriq_n_u8(vaddq_u8(high, high), low, 7);
    }
    return s;
}

static inline struct words join_values(vec sm, vec e)
{
    struct words v;
    for (int part = 0; part < PARTS; part++) {
        const uint8x16_t low = vsliq_n_u8(sm.val[part], e.val[part], 7);
        const uint8x16_t high = vsriq_n_u8(sm.val[part], e.val[part], 1);
        v.at[2 * part] = vzip1q_u8(low, high);
        v.at[2 * part + 1] = vzip2q_u8(low, high);
    }
    return v;
}

struct summer {
    uint32x4_t key[4], step;
    uint64x2_t product[2], linear[2];
};

static inline struct summer summer_init(uint32_t word)
{
    struct summer s;
    const uint32_t steps[4] = {sum_steps[0], sum_steps[1], sum_steps[0], sum_steps[1]};
    s.step = vld1q_u32(steps);
    for (int k = 0; k < 4; k++)
        s.key[k] = vmlaq_n_u32(vld1q_u32(sum_keys + 4 * k), s.step, word / SUM_LANES);
    for (int k = 0; k < 2; k++)
        s.product[k] = s.linear[k] = vdupq_n_u64(0);
    return s;
}

static inline void summer_add(struct summer *s, struct words v)
{
    for (int k = 0; k < 2 * PARTS; k += 2) {
        const uint32x4_t x = vaddq_u32(vreinterpretq_u32_u8(v.at[k]), s->key[k % 4]);
        const uint32x4_t y = vaddq_u32(vreinterpretq_u32_u8(v.at[k + 1]), s->key[k % 4 + 1]);
        const uint32x4_t even = vuzp1q_u32(x, y), odd = vuzp2q_u32(x, y);
        s->product[0] = vmlal_u32(s->product[0], vget_low_u32(even), vget_low_u32(odd));
        s->product[1] = vmlal_high_u32(s->product[1], even, odd);
        s->linear[0] = vaddq_u64(s->linear[0], vreinterpretq_u64_u32(x));
        s->linear[1] = vaddq_u64(s->linear[1], vreinterpretq_u64_u32(y));
        s->key[k % 4] = vaddq_u32(s->key[k % 4], s->step);
        s->key[k % 4 + 1] = vaddq_u32(s->key[k % 4 + 1], s->step);
    }
}

static inline uint64_t summer_result(const struct summer *s)
{
    return vaddvq_u64(vaddq_u64(vaddq_u64(s->product[0], s->product[1]), vaddq_u64(s->linear[0], s->linear[1])));
}

/* Ranks of the 32 exponents from `window` on as one table, and of a few strays outside it. */
struct rank_lut {
    uint8x16x2_t window;
    uint8x16_t first, stray[TABLE_STRAYS], stray_rank[TABLE_STRAYS];
    const struct table *table;
};

static inline struct rank_lut rank_lut_init(const struct table *table)
{
    struct rank_lut ranks = {.first = vdupq_n_u8(table->window), .table = table};
    ranks.window.val[0] = vld1q_u8(table->rank + table->window);
    ranks.window.val[1] = vld1q_u8(table->rank + table->window + 16);
    for (int k = 0; k < TABLE_STRAYS; k++) {
        ranks.stray[k] = vdupq_n_u8(table->strays[k]);
        ranks.stray_rank[k] = vdupq_n_u8(table->rank[table->strays[k]]);
    }
    return ranks;
}

/* Looks up the ranks of exponents that the window does not have one by one. */
static inline vec mend_ranks(const struct rank_lut *ranks, vec rank, vec e)
{
    EACH(at, vcgeq_u8(vsubq_u8(e.val[part], ranks->first), vdupq_n_u8(32)));
    vec_mask outside = gather_mask(at);
    uint8_t found[STEP], exponents[STEP];
    if (outside == 0)
        return rank;
    vec_store(found, rank);
    vec_store(exponents, e);
    for (; outside != 0; outside &= outside - 1) {
        unsigned i = (unsigned)__builtin_ctzll(outside);
        found[i] = ranks->table->rank[exponents[i]];
    }
    return vec_load(found);
}

/* Ranks of 64 exponents. An exponent that is neither in the window nor a stray gets the highest rank: of ranks from
 * TIER4_RANK on, coders do not care which one it is. */
static inline vec rank_lut_get(const struct rank_lut *ranks, vec e)
{
    EACH(rank, vqtbx2q_u8(vdupq_n_u8(255), ranks->window, vsubq_u8(e.val[part], ranks->first)));
    if (ranks->table->stray_count > TABLE_STRAYS)
        return mend_ranks(ranks, rank, e);
    for (int k = 0; k < TABLE_STRAYS && k < ranks->table->stray_count; k++)
        for (int part = 0; part < PARTS; part++)
            rank.val[part] = vbslq_u8(vceqq_u8(e.val[part], ranks->stray[k]), ranks->stray_rank[k], rank.val[part]);
    return rank;
}

/* 64 codes of 4 bits to 32 bytes, and back. */
static inline void pack4(uint8_t *dst, vec code)
{
    for (int half = 0; half < 2; half++) {
        const uint8x16_t even = vuzp1q_u8(code.val[2 * half], code.val[2 * half + 1]);
        const uint8x16_t odd = vuzp2q_u8(code.val[2 * half], code.val[2 * half + 1]);
        vst1q_u8(dst + 16 * half, vsliq_n_u8(even, odd, 4));
    }
}

static inline vec unpack4(const uint8_t *src)
{
    vec code;
    for (int half = 0; half < 2; half++) {
        const uint8x16_t bytes = vld1q_u8(src + 16 * half);
        const uint8x16_t low = vandq_u8(bytes, vdupq_n_u8(15)), high = vshrq_n_u8(bytes, 4);
        code.val[2 * half] = vzip1q_u8(low, high);
        code.val[2 * half + 1] = vzip2q_u8(low, high);
    }
    return code;
}

/* 64 codes of 2 bits to 16 bytes, and back. */
static inline void pack2(uint8_t *dst, vec code)
{
    uint8x16_t pairs[2];
    for (int half = 0; half < 2; half++) {
        const uint8x16_t even = vuzp1q_u8(code.val[2 * half], code.val[2 * half + 1]);
        const uint8x16_t odd = vuzp2q_u8(code.val[2 * half], code.val[2 * half + 1]);
        pairs[half] = vsliq_n_u8(even, odd, 2);
    }
    vst1q_u8(dst, vsliq_n_u8(vuzp1q_u8(pairs[0], pairs[1]), vuzp2q_u8(pairs[0], pairs[1]), 4));
}

static inline vec unpack2(const uint8_t *src)
{
    const uint8x16_t bytes = vld1q_u8(src), low = vandq_u8(bytes, vdupq_n_u8(15)), high = vshrq_n_u8(bytes, 4);
    const uint8x16_t pairs[2] = {vzip1q_u8(low, high), vzip2q_u8(low, high)};
    vec code;
    for (int half = 0; half < 2; half++) {
        const uint8x16_t even = vandq_u8(pairs[half], vdupq_n_u8(3)), odd = vshrq_n_u8(pairs[half], 2);
        code.val[2 * half] = vzip1q_u8(even, odd);
        code.val[2 * half + 1] = vzip2q_u8(even, odd);
    }
    return code;
}

static inline uint8x8_t order_at(const uint64_t orders[256], vec_mask mask, int byte)
{
    return vcreate_u8(orders[mask >> (8 * byte) & 255]);
}

/* Bits of the mask below its byte `byte`. */
static inline uint32_t bits_before(uint64_t counts, int byte)
{
    return byte == 0 ? 0 : counts >> (8 * (byte - 1)) & 255;
}

static inline uint32_t compress(uint8_t *dst, vec_mask mask, vec v)
{
    const uint64_t counts = count_up(mask);
    for (int k = 0; k < 8; k++) {
        const uint8x8_t bytes = k % 2 == 0 ? vget_low_u8(v.val[k / 2]) : vget_high_u8(v.val[k / 2]);
        vst1_u8(dst + bits_before(counts, k), vtbl1_u8(bytes, order_at(compress_order, mask, k)));
    }
    return (uint32_t)(counts >> 56);
}

static inline void compress_positions(uint16_t *dst, vec_mask mask, uint16_t base)
{
    const uint64_t counts = count_up(mask);
    for (int k = 0; k < 8; k++) {
        const uint16x8_t first = vdupq_n_u16((uint16_t)(base + 8 * k));
        vst1q_u16(dst + bits_before(counts, k), vaddw_u8(first, order_at(compress_order, mask, k)));
    }
}

/* v must be zero in the places that the mask names. */
static inline vec expand(vec v, vec_mask mask, const uint8_t *src)
{
    const uint64_t counts = count_up(mask);
    uint8x8_t put[8];
    for (int k = 0; k < 8; k++)
        put[k] = vtbl1_u8(vld1_u8(src + bits_before(counts, k)), order_at(expand_order, mask, k));
    EACH(all, vorrq_u8(v.val[part], vcombine_u8(put[2 * part], put[2 * part + 1])));
    return all;
}

#include "kernels/block_vector.h"

/* The loops over values that every variant compiles make vectors of this kind on any aarch64. */
const struct block_ops block_neon = BLOCK_VECTOR_OPS(values_scalar);
