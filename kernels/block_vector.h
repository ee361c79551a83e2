/*
 * The block coder of the vector variants, in terms of STEP-byte vectors. Each variant includes it once, after it has
 * defined
 *
 *     STEP                          bytes of a vector, values of a step
 *     vec, vec_load, vec_store, vec_all (a byte everywhere), vec_shl, vec_shr, vec_and (a byte), vec_or
 *     vec_mask                      a bit per byte; vec_first (the first `count`), vec_below, vec_is, vec_select
 *     vec_signs                     the highest bits
 *     compress                      stores the bytes that a mask names one after another; may write a whole vector
 *     compress_positions            the same for the numbers of the mask's bits plus a base, as 16-bit words
 *     expand                        the inverse of compress; may read a whole vector
 *     vec_table, table16, lookup16  16 bytes as a table
 *     struct rank_lut               the ranks of all exponents; rank_lut_init, rank_lut_get
 *     pack2, pack4                  STEP codes to STEP / 4 or STEP / 2 bytes in memory
 *     unpack2, unpack4              and back
 *     struct words                  STEP values; words_load, words_store, words_equal
 *     words_of                      of two vectors; words_first, words_second: back
 *     words_stream                  past the caches; words_flush: after it other processors see those
 *     struct split, split_values    the sign+mantissa and exponent bytes of STEP values
 *     join_values                   and back
 *     struct summer                 a running sum; summer_init, summer_add, summer_result
 *
 * Exponents are passed on as lists of bytes with room for a whole vector after the last, so that no loop needs to check
 * for their end; a partial step at the end of the block goes through small buffers.
 */
#ifndef STRAIT_KERNELS_BLOCK_VECTOR_H
#define STRAIT_KERNELS_BLOCK_VECTOR_H

#include <string.h>

#include "internal/bytes.h"
#include "kernels/block.h"

#define LIST_BYTES (STRAIT_BLOCK_VALUES + 2 * STEP)

#ifdef STRAIT_X86 /* compilers give its vectors operators; NEON defines these itself */

/* Shifts and bits. Shifts may cross bytes: what comes from the next one is masked. */
static inline vec vec_shl(vec v, unsigned bits)
{
    return v << bits;
}

static inline vec vec_shr(vec v, unsigned bits)
{
    return v >> bits;
}

static inline vec vec_and(vec v, uint8_t byte)
{
    return v & vec_all(byte);
}

static inline vec vec_or(vec a, vec b)
{
    return a | b;
}

/* The same bytes as two vectors. */
static inline struct words words_of(vec a, vec b)
{
    return (struct words){.a = a, .b = b};
}

static inline vec words_first(struct words v)
{
    return v.a;
}

static inline vec words_second(struct words v)
{
    return v.b;
}

#endif

/* Brings a line to the second-level cache. */
static inline void prefetch_second(const uint8_t *line)
{
    __builtin_prefetch(line, 0, 2);
}

/* ---- Encoding ---- */

/* Takes the values of a block apart, a step at a time: sign+mantissa bytes go to the stage, exponents to the caller,
 * and the sum is computed in passing. Prefetches the next block to the second-level cache: the first level is full. */
struct splitter {
    uint8_t *stage;
    const uint8_t *src;
    struct cursor next;
    struct summer summer;
};

static inline struct cursor next_of(const struct block_bytes *block)
{
    return block->next != NULL ? *block->next : cursor_in_row(block->bytes);
}

static inline struct splitter splitter_init(uint8_t *stage, const struct block_bytes *block)
{
    return (struct splitter){
        .stage = stage, .src = block->bytes, .next = next_of(block), .summer = summer_init(block->word)};
}

static inline vec split_step(struct splitter *s, uint32_t i)
{
    struct words v = words_load(s->src + 2 * i);
    for (uint32_t ahead = 0; ahead < 2 * STEP; ahead += 64)
        cursor_prefetch_line(&s->next);
    struct split parts = split_values(v);
    summer_add(&s->summer, v);
    vec_store(s->stage + i, parts.sign_mantissa);
    return parts.exponent;
}

/* The last `count` values, fewer than STEP; the exponents beyond them are 0. */
static inline vec split_rest(struct splitter *s, uint32_t i, uint32_t count)
{
    uint8_t exponents[STEP] = {0};
    for (uint32_t k = 0; k < count; k++) {
        uint16_t value = load_le16(s->src + 2 * (i + k));
        s->stage[i + k] = value_sign_mantissa(value);
        exponents[k] = value_exponent(value);
    }
    return vec_load(exponents);
}

/* The sum of a block whose values before i went through split_step. */
static inline uint64_t splitter_sum(const struct splitter *s, const struct block_bytes *block, uint32_t i)
{
    return summer_result(&s->summer) + sum_terms(s->src + 2 * i, block->size - 2 * i, block->word + i / 2);
}

/* The escapes of a block (values outside the top 16), with room for a whole step after the last. */
struct escape_list {
    uint8_t exponents[LIST_BYTES];
    uint16_t positions[LIST_BYTES];
};

/* Writes the codes of a step whose values are those in `inside`; returns the number of escapes so far. */
static inline uint32_t top16_step(uint8_t *codes, struct escape_list *list, uint32_t count,
                                  const struct rank_lut *ranks, vec e, vec_mask inside, uint32_t i)
{
    vec rank = rank_lut_get(ranks, e);
    vec_mask low = vec_below(rank, TOP16_RANKS), escape = inside & ~low;
    pack4(codes + i / 2, vec_select(inside & low, rank));
    if (escape == 0)
        return count;
    compress_positions(list->positions + count, escape, (uint16_t)i);
    return count + compress(list->exponents + count, escape, e);
}

static size_t encode_top16(uint8_t *stage, struct block_bytes *block, const struct table *table, uint32_t *escapes)
{
    struct escape_list list;
    const struct rank_lut ranks = rank_lut_init(table);
    struct splitter split = splitter_init(stage, block);
    uint32_t n = block->size / 2, count = 0, i = 0;
    for (; i + STEP <= n; i += STEP)
        count = top16_step(stage + n, &list, count, &ranks, split_step(&split, i), vec_first(STEP), i);
    block->sum = splitter_sum(&split, block, i);
    if (i < n)
        count = top16_step(stage + n, &list, count, &ranks, split_rest(&split, i, n - i), vec_first(n - i), i);
    size_t used = n + pack_bytes_4bit(n);
    *escapes = count;
    if (count == 0)
        return used;
    store_le16(stage + used, (uint16_t)count);
    memcpy(stage + used + 2, list.positions, 2 * (size_t)count);
    memcpy(stage + used + 2 + 2 * count, list.exponents, count);
    return used + 2 + 3 * (size_t)count;
}

/* Maps ranks `first`, `first` + 1, ... to codes 0, 1, ..., at most `last`. */
static inline vec tier_code(vec rank, uint8_t first, uint8_t last)
{
    return vec_min(vec_less(rank, first), last);
}

/* A step of a two-bit tier that begins with rank `first`. Exponents that go on to the next tier are appended to the
 * list `on`; returns how many. */
static inline uint32_t tier2_step(uint8_t *dst, uint8_t *on, const struct rank_lut *ranks, uint8_t first, vec e,
                                  vec_mask inside)
{
    vec rank = vec_select(inside, rank_lut_get(ranks, e));
    pack2(dst, tier_code(rank, first, 3));
    return compress(on, ~vec_below(rank, (uint8_t)(first + 3)), e);
}

/* Writes S and T1 and computes the sum of the block. */
static uint32_t encode_tier1(uint8_t *stage, struct block_bytes *block, const struct rank_lut *ranks, uint8_t *on)
{
    struct splitter split = splitter_init(stage, block);
    uint32_t n = block->size / 2, count = 0, i = 0;
    uint8_t *t1 = stage + n;
    for (; i + STEP <= n; i += STEP)
        count += tier2_step(t1 + i / 4, on + count, ranks, 0, split_step(&split, i), vec_first(STEP));
    block->sum = splitter_sum(&split, block, i);
    if (i < n)
        count += tier2_step(t1 + i / 4, on + count, ranks, 0, split_rest(&split, i, n - i), vec_first(n - i));
    return count;
}

static uint32_t encode_tier2(uint8_t *t2, const struct rank_lut *ranks, const uint8_t *exponents, uint32_t n2,
                             uint8_t *on)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n2; i += STEP)
        count += tier2_step(t2 + i / 4, on + count, ranks, TIER2_RANK, vec_load(exponents + i), vec_first(n2 - i));
    return count;
}

/* Writes T3, the four-bit tier, and T4, which is simply the list of the exponents that go on. */
static uint32_t encode_tier4(uint8_t *dst, const struct rank_lut *ranks, const uint8_t *exponents, uint32_t count)
{
    uint8_t on[LIST_BYTES];
    uint32_t on_count = 0;
    for (uint32_t i = 0; i < count; i += STEP) {
        vec e = vec_load(exponents + i), rank = vec_select(vec_first(count - i), rank_lut_get(ranks, e));
        pack4(dst + i / 2, tier_code(rank, TIER3_RANK, 15));
        on_count += compress(on + on_count, ~vec_below(rank, TIER4_RANK), e);
    }
    memcpy(dst + pack_bytes_4bit(count), on, on_count);
    return on_count;
}

/* Writes T2 to T4 of the n2 exponents that T1 passed on. Returns their bytes. */
static inline size_t encode_later_tiers(uint8_t *t2, const struct rank_lut *ranks, const uint8_t *exponents2,
                                        uint32_t n2, uint32_t *escapes)
{
    uint8_t exponents3[LIST_BYTES], *t3 = t2 + pack_bytes_2bit(n2);
    uint32_t n3 = encode_tier2(t2, ranks, exponents2, n2, exponents3);
    *escapes = encode_tier4(t3, ranks, exponents3, n3);
    return (size_t)(t3 + pack_bytes_4bit(n3) + *escapes - t2);
}

static size_t encode_tiered(uint8_t *stage, struct block_bytes *block, const struct table *table, uint32_t *escapes)
{
    uint8_t exponents2[LIST_BYTES];
    const struct rank_lut ranks = rank_lut_init(table);
    uint32_t n = block->size / 2, n2 = encode_tier1(stage, block, &ranks, exponents2);
    size_t fixed = n + pack_bytes_2bit(n);
    return fixed + encode_later_tiers(stage + fixed, &ranks, exponents2, n2, escapes);
}

static size_t encode_tiers(uint8_t *streams, const uint8_t *exponents, uint32_t count, const struct table *table,
                           uint32_t *escapes)
{
    uint8_t exponents2[LIST_BYTES];
    const struct rank_lut ranks = rank_lut_init(table);
    uint32_t n2 = 0, fixed = pack_bytes_2bit(count);
    for (uint32_t i = 0; i < count; i += STEP)
        n2 += tier2_step(streams + i / 4, exponents2 + n2, &ranks, 0, vec_load(exponents + i), vec_first(count - i));
    return fixed + encode_later_tiers(streams + fixed, &ranks, exponents2, n2, escapes);
}

static size_t tiers_size(const uint8_t *exponents, uint32_t count, const struct table *table)
{
    const struct rank_lut ranks = rank_lut_init(table);
    uint32_t n2 = 0, n3 = 0, n4 = 0;
    for (uint32_t i = 0; i < count; i += STEP) {
        vec rank = vec_select(vec_first(count - i), rank_lut_get(&ranks, vec_load(exponents + i)));
        n2 += STEP - count_bits(vec_below(rank, TIER2_RANK));
        n3 += STEP - count_bits(vec_below(rank, TIER3_RANK));
        n4 += STEP - count_bits(vec_below(rank, TIER4_RANK));
    }
    return pack_bytes_2bit(count) + pack_bytes_2bit(n2) + pack_bytes_4bit(n3) + n4;
}

/* ---- Decoding ---- */

/* Joins sign+mantissa bytes and exponents to the values of a block and computes their sum. Prefetches from `end`, where
 * the next block's streams begin: about 3/2 bytes a value. */
static void join_block(struct block_bytes *block, const uint8_t *sign_mantissa, const uint8_t *exponents,
                       const uint8_t *end, const uint8_t *tail)
{
    uint8_t *dst = block->bytes;
    bool stream = block->stream && (uintptr_t)dst % 64 == 0;
    struct summer summer = summer_init(block->word);
    uint32_t n = block->size / 2, i = 0;
    block->maybe_const = true;
    for (; i + STEP <= n; i += STEP) {
        for (uint32_t ahead = 0; ahead < 2 * STEP; ahead += 64)
            prefetch_second(end + i + i / 2 + ahead);
        struct words v = join_values(vec_load(sign_mantissa + i), vec_load(exponents + i));
        summer_add(&summer, v);
        if (i == 0)
            block->maybe_const = words_equal(v);
        if (stream)
            words_stream(dst + 2 * i, v);
        else
            words_store(dst + 2 * i, v);
    }
    for (uint32_t k = i; k < n; k++)
        store_le16(dst + 2 * k, value_join(sign_mantissa[k], exponents[k]));
    memcpy(dst + 2 * n, tail, block->size % 2);
    block->sum = summer_result(&summer) + sum_terms(dst + 2 * i, block->size - 2 * i, block->word + i / 2);
}

/* Exponents of n values from their 4-bit ranks. */
static void decode_codes(uint8_t *exponents, const uint8_t *codes, uint32_t n, const struct table *table)
{
    const vec_table exponent_of = table16(table->exponent);
    uint32_t i = 0;
    for (; i + STEP <= n; i += STEP)
        vec_store(exponents + i, lookup16(exponent_of, unpack4(codes + i / 2)));
    for (; i < n; i++)
        exponents[i] = table->exponent[codes[i / 2] >> (i % 2 * 4) & 15];
}

static size_t decode_top16(struct block_bytes *block, const uint8_t *src, size_t size, bool listed,
                           const struct table *table, uint32_t *escapes)
{
    uint8_t exponents[LIST_BYTES], bad = 0;
    uint32_t n = block->size / 2;
    const uint8_t *codes = src + n;
    size_t used = n + pack_bytes_4bit(n);
    struct listed_escapes list = {.count = 0};
    if (listed) {
        size_t bytes = listed_open(&list, src + used, size - used, n, table);
        if (bytes == 0)
            return 0;
        used += bytes;
    }
    if (used + block->size % 2 > size || !is_padded(codes, n, 4))
        return 0;
    decode_codes(exponents, codes, n, table);
    for (uint32_t k = 0; k < list.count; k++) {
        uint32_t position = listed_at(&list, k);
        if (position >= n) /* a position that has changed since the check */
            return 0;
        bad |= exponents[position] ^ table->exponent[0]; /* the code there must be 0 */
        exponents[position] = list.exponents[k];
    }
    join_block(block, src, exponents, src + size, src + used);
    *escapes = list.count;
    return bad != 0 ? 0 : used + block->size % 2;
}

/* The exponents of `count` items of a two-bit tier that begins with rank `first`: a code below 3 is one of the tier's
 * own, a 3 takes the next exponent from the list `on`. Returns the rest of the list. Reads whole vectors of `items` and
 * `on`. */
static const uint8_t *decode_tier2(uint8_t *exponents, const uint8_t *items, uint32_t count, const uint8_t *on,
                                   const struct table *table, uint8_t first)
{
    const uint8_t own[16] = {table->exponent[first], table->exponent[first + 1], table->exponent[first + 2]};
    const vec_table exponent_of = table16(own);
    for (uint32_t i = 0; i < count; i += STEP) {
        vec code = vec_select(vec_first(count - i), unpack2(items + i / 4));
        vec_mask threes = vec_is(code, 3);
        vec_store(exponents + i, expand(lookup16(exponent_of, code), threes, on));
        on += count_bits(threes);
    }
    return on;
}

/* The exponents of the n3 items of T3. Returns the number of T4 items, or -1 when no encoder would write these. A whole
 * vector past t3[0..size) must be readable. */
static int32_t decode_tier4(uint8_t *exponents, const uint8_t *t3, uint32_t n3, size_t size, const struct table *table)
{
    const vec_table exponent_of = table16(table->exponent + TIER3_RANK);
    const uint8_t *t4 = t3 + pack_bytes_4bit(n3);
    size_t limit = size - pack_bytes_4bit(n3);
    uint32_t n4 = 0, low = 0;
    for (uint32_t i = 0; i < n3; i += STEP) {
        vec code = vec_select(vec_first(n3 - i), unpack4(t3 + i / 2));
        vec_mask raw = vec_is(code, 15);
        if (n4 + count_bits(raw) > limit)
            return -1;
        vec e = vec_select(~raw, lookup16(exponent_of, code));
        vec_store(exponents + i, expand(e, raw, t4 + n4));
        n4 += count_bits(raw);
    }
    for (uint32_t i = 0; i < n4; i++)
        low |= table->rank[t4[i]] < TIER4_RANK;
    return low != 0 ? -1 : (int32_t)n4;
}

/* The number of two-bit items that are 3. */
static uint32_t count_threes(const uint8_t *stream, uint32_t items)
{
    uint32_t count = 0, i = 0;
    for (; i + 32 <= items; i += 32) {
        uint64_t word = load_le64(stream + i / 4);
        count += count_bits(word & word >> 1 & 0x5555555555555555u);
    }
    for (; i < items; i += 4)
        count += count_bits(stream[i / 4] & stream[i / 4] >> 1 & 0x55u);
    return count;
}

/* Never reads past the end of T1: its last part goes through a copy. If T1 changes meanwhile, the list `on` still
 * suffices: it has room for as many items as there are values. */
static void decode_tier1(uint8_t *exponents, const uint8_t *t1, uint32_t n, const uint8_t *on,
                         const struct table *table)
{
    uint32_t whole = n / STEP * STEP;
    uint8_t rest[STEP / 4] = {0};
    on = decode_tier2(exponents, t1, whole, on, table, 0);
    memcpy(rest, t1 + whole / 4, pack_bytes_2bit(n - whole));
    decode_tier2(exponents + whole, rest, n - whole, on, table, 0);
}

static inline size_t decode_tiers(uint8_t *exponents, const uint8_t *t1, size_t size, uint32_t count,
                                  const struct table *table, uint32_t *escapes)
{
    uint8_t exponents2[LIST_BYTES], exponents3[LIST_BYTES];
    uint8_t tiers[BLOCK_BYTES + 2 * STEP]; /* what follows T1, with room for whole-vector reads past its end */
    uint32_t n2 = count_threes(t1, count), bytes1 = pack_bytes_2bit(count), bytes2 = pack_bytes_2bit(n2);
    size_t rest = size - bytes1;
    memcpy(tiers, t1 + bytes1, rest);
    memset(tiers + rest, 0, 2 * STEP);
    if (bytes2 > rest || !is_padded(t1, count, 2) || !is_padded(tiers, n2, 2))
        return 0;
    uint32_t n3 = count_threes(tiers, n2), bytes3 = pack_bytes_4bit(n3);
    if (bytes2 + bytes3 > rest || !is_padded(tiers + bytes2, n3, 4))
        return 0;
    int32_t n4 = decode_tier4(exponents3, tiers + bytes2, n3, rest - bytes2, table);
    if (n4 < 0 || bytes2 + bytes3 + (size_t)n4 > rest)
        return 0;
    decode_tier2(exponents2, tiers, n2, exponents3, table, TIER2_RANK);
    decode_tier1(exponents, t1, count, exponents2, table);
    *escapes = (uint32_t)n4;
    return bytes1 + bytes2 + bytes3 + (size_t)n4;
}

static size_t decode_tiered(struct block_bytes *block, const uint8_t *src, size_t size, const struct table *table,
                            uint32_t *escapes)
{
    uint8_t exponents[LIST_BYTES];
    uint32_t n = block->size / 2, t = block->size % 2;
    size_t used = decode_tiers(exponents, src + n, size - n, n, table, escapes);
    if (used == 0 || n + used + t > size)
        return 0;
    join_block(block, src, exponents, src + size, src + n + used);
    return n + used + t;
}

/* ---- FP8 ---- */

/* A step of values. Shifts cross bytes; masks take out what came from the next byte. */
static inline void split_fp8_step(uint8_t *exponents, uint8_t *rests, uint8_t *signs, vec v, uint32_t i, bool e5m2)
{
    if (e5m2) {
        vec_mask negative = vec_signs(v);
        vec_store(exponents + i, vec_and(vec_shr(v, 2), 31));
        pack2(rests + i / 4, vec_and(v, 3));
        memcpy(signs + i / 8, &negative, STEP / 8);
    } else {
        vec_store(exponents + i, vec_and(vec_shr(v, 3), 15));
        pack4(rests + i / 2, vec_or(vec_and(v, 7), vec_and(vec_shr(v, 4), 8)));
    }
}

static inline vec join_fp8_step(const uint8_t *exponents, const uint8_t *rests, const uint8_t *signs, uint32_t i,
                                bool e5m2)
{
    vec e = vec_load(exponents + i);
    if (e5m2) {
        vec_mask negative;
        memcpy(&negative, signs + i / 8, STEP / 8);
        return vec_or(vec_or(vec_shl(e, 2), unpack2(rests + i / 4)), vec_select(negative, vec_all(0x80)));
    }
    vec rest = unpack4(rests + i / 2);
    return vec_or(vec_shl(e, 3), vec_or(vec_and(rest, 7), vec_shl(vec_and(rest, 8), 4)));
}

static inline void split_fp8_of(uint8_t *exponents, uint8_t *rests, struct block_bytes *block, bool e5m2)
{
    uint8_t *signs = rests + pack_bytes_2bit(block->size);
    const uint8_t *src = block->bytes;
    struct cursor next = next_of(block);
    struct summer summer = summer_init(block->word);
    uint32_t i = 0;
    for (; i + 2 * STEP <= block->size; i += 2 * STEP) {
        struct words v = words_load(src + i);
        for (uint32_t ahead = 0; ahead < 2 * STEP; ahead += 64)
            cursor_prefetch_line(&next);
        summer_add(&summer, v);
        split_fp8_step(exponents, rests, signs, words_first(v), i, e5m2);
        split_fp8_step(exponents, rests, signs, words_second(v), i + STEP, e5m2);
    }
    /* The last step goes through buffers: the streams behind it must not be overwritten, nor memory be read. */
    if (i < block->size) {
        uint8_t values[2 * STEP] = {0}, last[2 * STEP], packed[STEP], last_signs[STEP / 4];
        const uint32_t left = block->size - i;
        memcpy(values, src + i, left);
        split_fp8_step(last, packed, last_signs, vec_load(values), 0, e5m2);
        split_fp8_step(last, packed, last_signs, vec_load(values + STEP), STEP, e5m2);
        memcpy(exponents + i, last, left);
        memcpy(rests + (e5m2 ? i / 4 : i / 2), packed, e5m2 ? pack_bytes_2bit(left) : pack_bytes_4bit(left));
        if (e5m2)
            memcpy(signs + i / 8, last_signs, pack_bytes_1bit(left));
    }
    block->sum = summer_result(&summer) + sum_terms(src + i, block->size - i, block->word + i / 4);
}

static inline void join_fp8_of(struct block_bytes *block, const uint8_t *exponents, const uint8_t *rests, bool e5m2)
{
    const uint8_t *signs = rests + pack_bytes_2bit(block->size);
    uint8_t *dst = block->bytes;
    bool stream = block->stream && (uintptr_t)dst % 64 == 0;
    struct summer summer = summer_init(block->word);
    uint32_t i = 0;
    for (; i + 2 * STEP <= block->size; i += 2 * STEP) {
        struct words v = words_of(join_fp8_step(exponents, rests, signs, i, e5m2),
                                  join_fp8_step(exponents, rests, signs, i + STEP, e5m2));
        summer_add(&summer, v);
        if (stream)
            words_stream(dst + i, v);
        else
            words_store(dst + i, v);
    }
    if (i < block->size) {
        uint8_t last[2 * STEP] = {0}, packed[STEP] = {0}, last_signs[STEP / 4] = {0}, values[2 * STEP];
        const uint32_t left = block->size - i;
        memcpy(last, exponents + i, left);
        memcpy(packed, rests + (e5m2 ? i / 4 : i / 2), e5m2 ? pack_bytes_2bit(left) : pack_bytes_4bit(left));
        if (e5m2)
            memcpy(last_signs, signs + i / 8, pack_bytes_1bit(left));
        vec_store(values, join_fp8_step(last, packed, last_signs, 0, e5m2));
        vec_store(values + STEP, join_fp8_step(last, packed, last_signs, STEP, e5m2));
        memcpy(dst + i, values, left);
    }
    block->sum = summer_result(&summer) + sum_terms(dst + i, block->size - i, block->word + i / 4);
}

/* Each type has loops of its own. */
static void split_fp8(uint8_t *exponents, uint8_t *rests, struct block_bytes *block, bool e5m2)
{
    if (e5m2)
        split_fp8_of(exponents, rests, block, true);
    else
        split_fp8_of(exponents, rests, block, false);
}

static void join_fp8(struct block_bytes *block, const uint8_t *exponents, const uint8_t *rests, bool e5m2)
{
    if (e5m2)
        join_fp8_of(block, exponents, rests, true);
    else
        join_fp8_of(block, exponents, rests, false);
}

/* ---- Tiers of lists of exponents ---- */

/* In place: no vector of the list is overwritten before it has been read. */
static uint32_t encode_tier(uint8_t *stream, uint8_t *exponents, uint32_t count, const struct table *table,
                            uint8_t first)
{
    const struct rank_lut ranks = rank_lut_init(table);
    uint32_t on = 0;
    for (uint32_t i = 0; i < count; i += STEP)
        on += tier2_step(stream + i / 4, exponents + on, &ranks, first, vec_load(exponents + i), vec_first(count - i));
    return on;
}

static void decode_tier(uint8_t *exponents, const uint8_t *stream, uint32_t count, const uint8_t *on,
                        const struct table *table, uint8_t first)
{
    decode_tier2(exponents, stream, count, on, table, first);
}

#include "kernels/block_vector_parts.h"

/* ---- Sums and copies ---- */

static uint64_t sum(const uint8_t *src, size_t size, uint32_t word)
{
    struct summer s = summer_init(word);
    size_t i = 0;
    for (; i + 2 * STEP <= size; i += 2 * STEP)
        summer_add(&s, words_load(src + i));
    return summer_result(&s) + sum_terms(src + i, size - i, word + (uint32_t)(i / 4));
}

static uint64_t sum_copy(uint8_t *dst, const uint8_t *src, size_t size, uint32_t word, bool stream)
{
    struct summer s = summer_init(word);
    bool past = stream && (uintptr_t)dst % 64 == 0;
    size_t i = 0;
    for (; i + 2 * STEP <= size; i += 2 * STEP) {
        struct words v = words_load(src + i);
        summer_add(&s, v);
        if (past)
            words_stream(dst + i, v);
        else
            words_store(dst + i, v);
    }
    memcpy(dst + i, src + i, size - i);
    return summer_result(&s) + sum_terms(dst + i, size - i, word + (uint32_t)(i / 4));
}

/* Copies whole steps and sums them. */
static inline void sum_piece(struct summer *s, uint8_t *dst, const uint8_t *src, size_t size, bool past)
{
    for (size_t i = 0; i < size; i += 2 * STEP) {
        struct words v = words_load(src + i);
        summer_add(s, v);
        if (past)
            words_stream(dst + i, v);
        else
            words_store(dst + i, v);
    }
}

/* Pieces are whole steps, and so are their parts in a block. */
static uint64_t sum_gather(uint8_t *dst, struct cursor *src, size_t size, uint32_t word, ptrdiff_t ahead, bool stream)
{
    struct summer s = summer_init(word);
    const bool past = stream && (uintptr_t)dst % 64 == 0;
    while (size > 0) {
        const uint32_t n = src->left < size ? src->left : (uint32_t)size;
        if (ahead != 0)
            cursor_prefetch(src->at + ahead, n);
        sum_piece(&s, dst, src->at, n, past);
        cursor_pass(src, n);
        dst += n;
        size -= n;
    }
    return summer_result(&s);
}

static uint64_t sum_scatter(struct cursor *dst, const uint8_t *src, size_t size, uint32_t word, bool stream)
{
    struct summer s = summer_init(word);
    while (size > 0) {
        const uint32_t n = dst->left < size ? dst->left : (uint32_t)size;
        sum_piece(&s, dst->at, src, n, stream && (uintptr_t)dst->at % 64 == 0);
        cursor_pass(dst, n);
        src += n;
        size -= n;
    }
    return summer_result(&s);
}

static void copy(uint8_t *dst, const uint8_t *src, size_t size, bool stream)
{
    size_t head = -(uintptr_t)dst % 64, i;
    if (!stream || size < head) {
        memcpy(dst, src, size);
        return;
    }
    if (head != 0)
        memcpy(dst, src, head);
    for (i = head; i + 2 * STEP <= size; i += 2 * STEP)
        words_stream(dst + i, words_load(src + i));
    if (i != size)
        memcpy(dst + i, src + i, size - i);
}

static void flush(void)
{
    words_flush();
}

#define BLOCK_VECTOR_OPS(VALUES)                                                                                  \
    {                                                                                                             \
        .encode_top16 = encode_top16, .encode_tiered = encode_tiered, .decode_top16 = decode_top16,               \
        .decode_tiered = decode_tiered, .split_fp8 = split_fp8, .join_fp8 = join_fp8, .encode_tier = encode_tier, \
        .decode_tier = decode_tier, .encode_tiers = encode_tiers, .decode_tiers = decode_tiers,                   \
        .tiers_size = tiers_size, .count_threes = count_threes, .find_part_bases = find_part_bases,               \
        .to_symbols = to_symbols, .to_exponents = to_exponents, .pack_low = pack_low, .unpack_low = unpack_low,   \
        .values = &(VALUES), .sum = sum, .sum_copy = sum_copy, .copy = copy, .sum_gather = sum_gather,            \
        .sum_scatter = sum_scatter, .flush = flush                                                                \
    }

#endif
