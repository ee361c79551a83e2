/* The scalar block coder: the specification in C, as plain as possible. */
#include <string.h>

#include "internal/bytes.h"
#include "kernels/block.h"

const uint32_t sum_keys[SUM_LANES] = {
    0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89,
    0x452821E6, 0x38D01377, 0xBE5466CF, 0x34E90C6C, 0xC0AC29B7, 0xC97C50DD, 0x3F84D5B5, 0xB5470917,
};
const uint32_t sum_steps[2] = {0x9E3779B1, 0x85EBCA77};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t sum_seed(uint64_t a, uint64_t b, uint64_t c)
{
    return mix(mix(a + (b << 32)) + c);
}

static uint32_t key(uint32_t word)
{
    return sum_keys[word % SUM_LANES] + word / SUM_LANES * sum_steps[word % 2];
}

static uint64_t term(uint64_t pair, uint32_t word)
{
    uint64_t x = (uint32_t)((uint32_t)pair + key(word));
    uint64_t y = (uint32_t)((uint32_t)(pair >> 32) + key(word + 1));
    return x * y + x + (y << 32);
}

uint64_t sum_terms(const uint8_t *src, size_t size, uint32_t word)
{
    uint64_t sum = 0;
    size_t i = 0;
    for (; i + 8 <= size; i += 8, word += 2)
        sum += term(load_le64(src + i), word);
    if (i < size) {
        uint8_t last[8] = {0};
        memcpy(last, src + i, size - i);
        sum += term(load_le64(last), word);
    }
    return sum;
}

/* Items of `width` bits (1, 2 or 4) in increasing order, low bits first. */
static void put_item(uint8_t *stream, uint32_t index, unsigned width, unsigned item)
{
    unsigned per_byte = 8 / width, shift = index % per_byte * width;
    if (shift == 0)
        stream[index / per_byte] = 0;
    stream[index / per_byte] |= (uint8_t)(item << shift);
}

static unsigned get_item(const uint8_t *stream, uint32_t index, unsigned width)
{
    unsigned per_byte = 8 / width;
    return stream[index / per_byte] >> (index % per_byte * width) & ((1u << width) - 1);
}

static uint32_t count_items(const uint8_t *stream, uint32_t items, unsigned width, unsigned wanted)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < items; i++)
        count += get_item(stream, i, width) == wanted;
    return count;
}

static size_t encode_top16(uint8_t *stage, struct block_bytes *block, const struct table *table, uint32_t *escapes)
{
    const uint8_t *src = block->bytes;
    uint32_t n = block->size / 2;
    uint16_t position[STRAIT_BLOCK_VALUES];
    uint8_t *codes = stage + n, *list = codes + pack_bytes_4bit(n);
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t value = load_le16(src + 2 * i);
        uint8_t rank = table->rank[value_exponent(value)];
        stage[i] = value_sign_mantissa(value);
        put_item(codes, i, 4, rank < TOP16_RANKS ? rank : 0);
        if (rank >= TOP16_RANKS)
            position[count++] = (uint16_t)i;
    }
    *escapes = count;
    block->sum = sum_terms(src, block->size, block->word);
    if (count == 0)
        return (size_t)(list - stage);
    store_le16(list, (uint16_t)count);
    uint8_t *exponents = list + 2 + 2 * count;
    for (uint32_t k = 0; k < count; k++) {
        store_le16(list + 2 + 2 * k, position[k]);
        exponents[k] = value_exponent(load_le16(src + 2 * position[k]));
    }
    return (size_t)(exponents + count - stage);
}

static size_t encode_tiers(uint8_t *streams, const uint8_t *exponents, uint32_t count, const struct table *table,
                           uint32_t *escapes)
{
    uint8_t tier2[STRAIT_BLOCK_VALUES], tier3[STRAIT_BLOCK_VALUES], tier4[STRAIT_BLOCK_VALUES];
    uint32_t n2 = 0, n3 = 0, n4 = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t rank = table->rank[exponents[i]];
        put_item(streams, i, 2, rank < TIER2_RANK ? rank : 3);
        if (rank >= TIER2_RANK)
            tier2[n2++] = rank < TIER3_RANK ? rank - TIER2_RANK : 3;
        if (rank >= TIER3_RANK)
            tier3[n3++] = rank < TIER4_RANK ? rank - TIER3_RANK : 15;
        if (rank >= TIER4_RANK)
            tier4[n4++] = exponents[i];
    }
    uint8_t *t2 = streams + pack_bytes_2bit(count), *t3 = t2 + pack_bytes_2bit(n2), *t4 = t3 + pack_bytes_4bit(n3);
    for (uint32_t i = 0; i < n2; i++)
        put_item(t2, i, 2, tier2[i]);
    for (uint32_t i = 0; i < n3; i++)
        put_item(t3, i, 4, tier3[i]);
    memcpy(t4, tier4, n4);
    *escapes = n4;
    return (size_t)(t4 + n4 - streams);
}

static size_t tiers_size(const uint8_t *exponents, uint32_t count, const struct table *table)
{
    uint32_t n2 = 0, n3 = 0, n4 = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t rank = table->rank[exponents[i]];
        n2 += rank >= TIER2_RANK;
        n3 += rank >= TIER3_RANK;
        n4 += rank >= TIER4_RANK;
    }
    return pack_bytes_2bit(count) + pack_bytes_2bit(n2) + pack_bytes_4bit(n3) + n4;
}

static size_t encode_tiered(uint8_t *stage, struct block_bytes *block, const struct table *table, uint32_t *escapes)
{
    const uint8_t *src = block->bytes;
    uint8_t exponents[STRAIT_BLOCK_VALUES];
    uint32_t n = block->size / 2;
    for (uint32_t i = 0; i < n; i++) {
        stage[i] = value_sign_mantissa(load_le16(src + 2 * i));
        exponents[i] = value_exponent(load_le16(src + 2 * i));
    }
    block->sum = sum_terms(src, block->size, block->word);
    return n + encode_tiers(stage + n, exponents, n, table, escapes);
}

/* Copies the tail byte, which follows the streams; the rest of the block is decoded. Returns all bytes used. */
static size_t finish_block(struct block_bytes *block, const uint8_t *src, size_t used, size_t size)
{
    size_t tail = block->size % 2;
    if (used + tail > size)
        return 0;
    memcpy(block->bytes + block->size - tail, src + used, tail);
    block->sum = sum_terms(block->bytes, block->size, block->word);
    block->maybe_const = true;
    return used + tail;
}

/* Puts the listed exponents in place. Returns the list's bytes, 0 when no encoder would write it. */
static size_t decode_list(uint8_t *dst, const uint8_t *codes, const uint8_t *src, size_t size, uint32_t n,
                          const struct table *table, uint32_t *escapes)
{
    struct listed_escapes list;
    size_t bytes = listed_open(&list, src, size, n, table);
    if (bytes == 0)
        return 0;
    for (uint32_t k = 0; k < list.count; k++) {
        uint32_t position = listed_at(&list, k);
        if (get_item(codes, position, 4) != 0)
            return 0;
        uint8_t sign_mantissa = value_sign_mantissa(load_le16(dst + 2 * position));
        store_le16(dst + 2 * position, value_join(sign_mantissa, list.exponents[k]));
    }
    *escapes = list.count;
    return bytes;
}

/* Decoders read streams more than once. They work on a copy, so that nothing changes between the reads. */
static size_t decode_top16(struct block_bytes *block, const uint8_t *coded, size_t size, bool listed,
                           const struct table *table, uint32_t *escapes)
{
    uint8_t src[BLOCK_BYTES];
    uint32_t n = block->size / 2;
    const uint8_t *codes = memcpy(src, coded, size) + n;
    size_t used = n + pack_bytes_4bit(n);
    *escapes = 0;
    if (!is_padded(codes, n, 4))
        return 0;
    for (uint32_t i = 0; i < n; i++)
        store_le16(block->bytes + 2 * i, value_join(src[i], table->exponent[get_item(codes, i, 4)]));
    if (listed) {
        size_t list = decode_list(block->bytes, codes, src + used, size - used, n, table, escapes);
        if (list == 0)
            return 0;
        used += list;
    }
    return finish_block(block, src, used, size);
}

static size_t decode_tiers(uint8_t *exponents, const uint8_t *coded, size_t size, uint32_t count,
                           const struct table *table, uint32_t *escapes)
{
    uint8_t src[BLOCK_BYTES];
    const uint8_t *t1 = memcpy(src, coded, size);
    uint32_t n2 = count_items(t1, count, 2, 3);
    size_t at2 = pack_bytes_2bit(count), at3 = at2 + pack_bytes_2bit(n2);
    if (at3 > size || !is_padded(t1, count, 2) || !is_padded(src + at2, n2, 2))
        return 0;
    uint32_t n3 = count_items(src + at2, n2, 2, 3);
    size_t at4 = at3 + pack_bytes_4bit(n3);
    if (at4 > size || !is_padded(src + at3, n3, 4))
        return 0;
    uint32_t n4 = count_items(src + at3, n3, 4, 15);
    if (at4 + n4 > size)
        return 0;
    uint32_t i2 = 0, i3 = 0, i4 = 0;
    for (uint32_t i = 0; i < count; i++) {
        unsigned rank = get_item(t1, i, 2);
        if (rank == 3)
            rank = TIER2_RANK + get_item(src + at2, i2++, 2);
        if (rank == TIER3_RANK)
            rank = TIER3_RANK + get_item(src + at3, i3++, 4);
        exponents[i] = rank < TIER4_RANK ? table->exponent[rank] : src[at4 + i4++];
        if (rank >= TIER4_RANK && table->rank[exponents[i]] < TIER4_RANK)
            return 0;
    }
    *escapes = n4;
    return at4 + n4;
}

static size_t decode_tiered(struct block_bytes *block, const uint8_t *coded, size_t size, const struct table *table,
                            uint32_t *escapes)
{
    uint8_t src[BLOCK_BYTES], exponents[STRAIT_BLOCK_VALUES];
    uint32_t n = block->size / 2;
    size_t used = decode_tiers(exponents, memcpy(src, coded, size) + n, size - n, n, table, escapes);
    if (used == 0)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        store_le16(block->bytes + 2 * i, value_join(src[i], exponents[i]));
    return finish_block(block, src, n + used, size);
}

static void split_fp8(uint8_t *exponents, uint8_t *rests, struct block_bytes *block, bool e5m2)
{
    const uint8_t *src = block->bytes;
    uint8_t *signs = rests + pack_bytes_2bit(block->size);
    for (uint32_t i = 0; i < block->size; i++) {
        exponents[i] = e5m2 ? src[i] >> 2 & 31 : src[i] >> 3 & 15;
        if (e5m2) {
            put_item(rests, i, 2, src[i] & 3);
            put_item(signs, i, 1, src[i] >> 7);
        } else {
            put_item(rests, i, 4, (src[i] & 7) | (src[i] >> 4 & 8));
        }
    }
    block->sum = sum_terms(src, block->size, block->word);
}

static void join_fp8(struct block_bytes *block, const uint8_t *exponents, const uint8_t *rests, bool e5m2)
{
    const uint8_t *signs = rests + pack_bytes_2bit(block->size);
    for (uint32_t i = 0; i < block->size; i++) {
        if (e5m2) {
            block->bytes[i] = (uint8_t)(get_item(signs, i, 1) << 7 | exponents[i] << 2 | get_item(rests, i, 2));
        } else {
            unsigned rest = get_item(rests, i, 4);
            block->bytes[i] = (uint8_t)((rest & 8) << 4 | exponents[i] << 3 | (rest & 7));
        }
    }
    block->sum = sum_terms(block->bytes, block->size, block->word);
}

static uint32_t encode_tier(uint8_t *stream, uint8_t *exponents, uint32_t count, const struct table *table,
                            uint8_t first)
{
    uint32_t on = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t exponent = exponents[i], rank = table->rank[exponent];
        put_item(stream, i, 2, rank < first + 3 ? rank - first : 3);
        if (rank >= first + 3)
            exponents[on++] = exponent;
    }
    return on;
}

static void decode_tier(uint8_t *exponents, const uint8_t *stream, uint32_t count, const uint8_t *on,
                        const struct table *table, uint8_t first)
{
    for (uint32_t i = 0; i < count; i++) {
        unsigned item = get_item(stream, i, 2);
        exponents[i] = item == 3 ? *on++ : table->exponent[first + item];
    }
}

/* ---- Mode 11 ---- */

static void find_part_bases(uint8_t *bases, const uint8_t *exponents, uint32_t count)
{
    for (uint32_t from = 0; from < count; from += PART_VALUES) {
        const uint32_t end = from + PART_VALUES < count ? from + PART_VALUES : count;
        uint8_t first = 0, second = 0;
        for (uint32_t i = from; i < end; i++) {
            const uint8_t e = exponents[i] == 255 ? 0 : exponents[i], smaller = e < first ? e : first;
            second = smaller > second ? smaller : second;
            first = e > first ? e : first;
        }
        bases[from / PART_VALUES] = second > 0 ? second : 1;
    }
}

static uint8_t exchange(uint8_t byte, uint8_t a, uint8_t b)
{
    return byte == a ? b : byte == b ? a : byte;
}

static void to_symbols(uint8_t *list, const uint8_t *bases, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t base = bases[i / PART_VALUES];
        list[i] = (uint8_t)(exchange(list[i], 0, part_far(base)) - base);
    }
}

static void to_exponents(uint8_t *list, const uint8_t *bases, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t base = bases[i / PART_VALUES];
        list[i] = exchange((uint8_t)(list[i] + base), 0, part_far(base));
    }
}

static void pack_low(uint8_t *streams, const uint8_t *low, uint32_t count, const struct part_fields *fields)
{
    const uint32_t f = fields->low_bits;
    for (uint32_t i = 0; i < count; i++) {
        if ((f & 4) != 0)
            put_item(streams + fields->at4, i, 4, low[i] >> (f & 3) & 15);
        if ((f & 2) != 0)
            put_item(streams + fields->at2, i, 2, low[i] >> (f & 1) & 3);
        if ((f & 1) != 0)
            put_item(streams + fields->at1, i, 1, low[i] & 1);
    }
}

static void unpack_low(uint8_t *low, const uint8_t *streams, uint32_t count, const struct part_fields *fields)
{
    const uint32_t f = fields->low_bits;
    for (uint32_t i = 0; i < count; i++) {
        unsigned bits = 0;
        if ((f & 4) != 0)
            bits |= get_item(streams + fields->at4, i, 4) << (f & 3);
        if ((f & 2) != 0)
            bits |= get_item(streams + fields->at2, i, 2) << (f & 1);
        if ((f & 1) != 0)
            bits |= get_item(streams + fields->at1, i, 1);
        low[i] = (uint8_t)bits;
    }
}

static uint32_t count_threes(const uint8_t *stream, uint32_t items)
{
    return count_items(stream, items, 2, 3);
}

static uint64_t sum_copy(uint8_t *dst, const uint8_t *src, size_t size, uint32_t word, bool stream)
{
    (void)stream;
    memcpy(dst, src, size);
    return sum_terms(dst, size, word); /* of the bytes stored: the source may change meanwhile */
}

static void copy(uint8_t *dst, const uint8_t *src, size_t size, bool stream)
{
    (void)stream;
    memcpy(dst, src, size);
}

static uint64_t sum_gather(uint8_t *dst, struct cursor *src, size_t size, uint32_t word, ptrdiff_t ahead, bool stream)
{
    uint8_t *at = dst;
    (void)ahead;
    (void)stream;
    for (size_t left = size, n; left > 0; at += n, left -= n) {
        n = src->left < left ? src->left : left;
        memcpy(at, src->at, n);
        cursor_pass(src, (uint32_t)n);
    }
    return sum_terms(dst, size, word);
}

static uint64_t sum_scatter(struct cursor *dst, const uint8_t *src, size_t size, uint32_t word, bool stream)
{
    uint64_t sum = 0;
    (void)stream;
    for (size_t n; size > 0; src += n, word += (uint32_t)n / 4, size -= n) {
        n = dst->left < size ? dst->left : size;
        memcpy(dst->at, src, n);
        sum += sum_terms(dst->at, n, word); /* of the bytes stored: the source may change meanwhile */
        cursor_pass(dst, (uint32_t)n);
    }
    return sum;
}

static void flush(void)
{
}

const struct block_ops block_scalar = {
    .encode_top16 = encode_top16,
    .encode_tiered = encode_tiered,
    .decode_top16 = decode_top16,
    .decode_tiered = decode_tiered,
    .split_fp8 = split_fp8,
    .join_fp8 = join_fp8,
    .encode_tier = encode_tier,
    .decode_tier = decode_tier,
    .encode_tiers = encode_tiers,
    .tiers_size = tiers_size,
    .decode_tiers = decode_tiers,
    .count_threes = count_threes,
    .find_part_bases = find_part_bases,
    .to_symbols = to_symbols,
    .to_exponents = to_exponents,
    .pack_low = pack_low,
    .unpack_low = unpack_low,
    .values = &values_scalar,
    .sum = sum_terms,
    .sum_copy = sum_copy,
    .copy = copy,
    .sum_gather = sum_gather,
    .sum_scatter = sum_scatter,
    .flush = flush,
};
