#include <string.h>

#include "internal/element.h"
#include "kernels/block_typed.h"

/* ---- Layout ----------------------------------------------------------------------------------------------------- */

/* The number of a block's values, the bytes left over at its end, and the bytes of all low bits. */
struct shape {
    uint32_t count, tail, low_bits;
};

static struct shape shape_of(unsigned mode, enum strait_element element, uint32_t size)
{
    uint32_t bytes = element_bytes(element);
    struct shape shape = {.count = size / bytes, .tail = size % bytes};
    if (mode == STRAIT_BLOCK_SPLIT && element == STRAIT_ELEMENT_FP32)
        shape.low_bits = 2 * shape.count;
    else if (mode == STRAIT_BLOCK_SPLIT)
        shape.low_bits = pack_bytes_2bit(shape.count) + (shape.count + 7) / 8;
    return shape;
}

/* Whether values have halves: BF16, FP16, FP32. */
static bool is_float(enum strait_element element)
{
    return element == STRAIT_ELEMENT_BF16 || element == STRAIT_ELEMENT_FP16 || element == STRAIT_ELEMENT_FP32;
}

bool typed_mode_fits(unsigned mode, enum strait_element element)
{
    switch (mode) {
    case STRAIT_BLOCK_BASE:
        return element == STRAIT_ELEMENT_BF16;
    case STRAIT_BLOCK_SPLIT:
        return element == STRAIT_ELEMENT_FP16 || element == STRAIT_ELEMENT_FP32;
    case STRAIT_BLOCK_FP8:
        return is_fp8(element);
    case STRAIT_BLOCK_PARTS:
        return is_float(element);
    default:
        return element == STRAIT_ELEMENT_FP32;
    }
}

enum strait_block_mode typed_mode(const struct typed *typed, enum strait_element element, enum strait_mode asked,
                                  const uint8_t *src, uint32_t size)
{
    if (asked == STRAIT_MODE_PARTS && is_float(element))
        return STRAIT_BLOCK_PARTS;
    switch (element) {
    case STRAIT_ELEMENT_BF16:
        return asked == STRAIT_MODE_BASE ? STRAIT_BLOCK_BASE : STRAIT_BLOCK_TIERED;
    case STRAIT_ELEMENT_FP16:
        return STRAIT_BLOCK_SPLIT;
    case STRAIT_ELEMENT_FP32:
        return typed->blocks->values->are_high_halves(src, size / 4) ? STRAIT_BLOCK_FP32Z : STRAIT_BLOCK_SPLIT;
    case STRAIT_ELEMENT_FP8_E4M3:
    case STRAIT_ELEMENT_FP8_E5M2:
        return STRAIT_BLOCK_FP8;
    default:
        return STRAIT_BLOCK_RAW;
    }
}

/* Bytes that do not depend on the values: streams of fixed size and the end of the block. */
static uint32_t fixed_bytes(const struct shape *shape, enum typed_coder coder)
{
    bool tiers = coder <= TYPED_BASE_TIERS;
    uint32_t codes = tiers ? pack_bytes_2bit(shape->count) : pack_bytes_4bit(shape->count);
    return shape->low_bits + shape->count + codes + shape->tail + TYPED_END_BYTES;
}

uint32_t typed_least_bytes(unsigned mode, enum strait_element element, uint32_t size)
{
    if (mode == STRAIT_BLOCK_FP8)
        return fp8_least_bytes(element, size);
    if (mode == STRAIT_BLOCK_PARTS)
        return parts_least_bytes(element, size);
    struct shape shape = shape_of(mode, element, size);
    return fixed_bytes(&shape, TYPED_BASE_TIERS);
}

/* The sum of a block whose high halves have been coded. Where the values are high halves, the coders have computed it.
 */
static uint64_t sum_of(const struct typed *typed, const struct block_bytes *block,
                       const struct block_bytes *high_halves, enum strait_block_mode mode)
{
    if (mode == STRAIT_BLOCK_BASE && high_halves->size == block->size)
        return high_halves->sum;
    return typed->blocks->sum(block->bytes, block->size, block->word);
}

static enum strait_block_mode stats_mode_of(enum typed_coder coder)
{
    if (coder == TYPED_BASE_CODES)
        return STRAIT_BLOCK_TOP16;
    return coder == TYPED_BASE_LISTED ? STRAIT_BLOCK_TOP16_ESCAPES : STRAIT_BLOCK_TIERED;
}

/* The scratch of mode 11, with the ranking of symbols. */
static struct parts_scratch *parts_scratch_of(struct typed *typed)
{
    if (!typed->ranks_symbols)
        parts_table(&typed->scratch->parts.symbols);
    typed->ranks_symbols = true;
    return &typed->scratch->parts;
}

/* ---- Encoding --------------------------------------------------------------------------------------------------- */

/* Writes the low bits to the stage. Returns the block of high halves: in scratch, or in place where the values are high
 * halves. */
static struct block_bytes split_block(struct typed *typed, uint8_t *stage, struct block_bytes *block,
                                      enum strait_block_mode mode, enum strait_element element,
                                      const struct shape *shape)
{
    struct block_bytes high_halves = *block;
    high_halves.size = 2 * shape->count;
    if (mode == STRAIT_BLOCK_BASE)
        return high_halves;
    const struct value_ops *values = typed->blocks->values;
    high_halves.bytes = typed->scratch->high_halves;
    if (element == STRAIT_ELEMENT_FP16)
        values->split_fp16(high_halves.bytes, stage, stage + pack_bytes_2bit(shape->count), block->bytes, shape->count);
    else
        values->split_fp32(high_halves.bytes, shape->low_bits == 0 ? NULL : stage, block->bytes, shape->count);
    return high_halves;
}

/* Codes high halves by a base: in tiers, unless codes of four bits take fewer units. Returns the bytes of the streams.
 */
static size_t encode_by_base(struct typed *typed, uint8_t *stage, struct block_bytes *high_halves,
                             const struct shape *shape, uint8_t base, enum typed_coder *coder, uint32_t *escapes)
{
    const struct table *table = base_tables_get(&typed->bases, base);
    uint32_t others = shape->low_bits + shape->tail + TYPED_END_BYTES;
    size_t tiers = typed->blocks->encode_tiered(stage, high_halves, table, escapes);
    *coder = TYPED_BASE_TIERS;
    if (units(others + tiers) <= units(fixed_bytes(shape, TYPED_BASE_CODES)))
        return tiers;
    size_t codes = typed->blocks->encode_top16(stage, high_halves, table, escapes);
    if (units(others + tiers) <= units(others + codes))
        return typed->blocks->encode_tiered(stage, high_halves, table, escapes);
    *coder = *escapes == 0 ? TYPED_BASE_CODES : TYPED_BASE_LISTED;
    return codes;
}

/* Writes tail, padding and end after `used` bytes of streams. Returns the bytes of the block. */
static size_t end_block(uint8_t *stage, size_t used, const struct block_bytes *block, const struct shape *shape,
                        enum typed_coder coder, uint8_t base)
{
    memcpy(stage + used, block->bytes + block->size - shape->tail, shape->tail);
    used += shape->tail;
    size_t size = CHUNK_UNIT * (size_t)units(used + TYPED_END_BYTES);
    memset(stage + used, 0, size - used);
    stage[size - 2] = (uint8_t)coder;
    stage[size - 1] = base;
    return size;
}

size_t typed_encode(struct typed *typed, uint8_t *stage, struct block_bytes *block, enum strait_block_mode mode,
                    enum strait_element element, const struct table *table, uint32_t *escapes)
{
    if (mode == STRAIT_BLOCK_FP8) {
        typed->stats_mode = STRAIT_BLOCK_TIERED;
        return fp8_encode(typed->blocks, typed->scratch->high_halves, stage, block, element, escapes);
    }
    if (mode == STRAIT_BLOCK_PARTS) {
        typed->stats_mode = STRAIT_BLOCK_TIERED;
        return parts_encode(typed->blocks, parts_scratch_of(typed), stage, block, element, table, escapes);
    }
    struct shape shape = shape_of(mode, element, block->size);
    struct block_bytes high_halves = split_block(typed, stage, block, mode, element, &shape);
    uint8_t *streams = stage + shape.low_bits, base = 0;
    enum typed_coder coder = TYPED_TABLE_TIERS;
    size_t used;
    if (table != NULL) {
        used = typed->blocks->encode_tiered(streams, &high_halves, table, escapes);
    } else {
        base = typed->blocks->values->find_base(high_halves.bytes, shape.count);
        used = encode_by_base(typed, streams, &high_halves, &shape, base, &coder, escapes);
    }
    block->sum = sum_of(typed, block, &high_halves, mode);
    typed->stats_mode = stats_mode_of(coder);
    return end_block(stage, shape.low_bits + used, block, &shape, coder, base);
}

/* ---- Decoding --------------------------------------------------------------------------------------------------- */

/* Decodes high halves from their streams. Returns the bytes of the streams, 0 when no encoder would write them. */
static size_t decode_high_halves(struct typed *typed, struct block_bytes *high_halves, const uint8_t *src, size_t size,
                                 enum typed_coder coder, uint8_t base, const struct table *table, uint32_t *escapes)
{
    const struct block_ops *blocks = typed->blocks;
    if (coder == TYPED_TABLE_TIERS)
        return base == 0 && table != NULL ? blocks->decode_tiered(high_halves, src, size, table, escapes) : 0;
    const struct table *own = base_tables_get(&typed->bases, base);
    size_t used = coder == TYPED_BASE_TIERS
                      ? blocks->decode_tiered(high_halves, src, size, own, escapes)
                      : blocks->decode_top16(high_halves, src, size, coder == TYPED_BASE_LISTED, own, escapes);
    return used != 0 && blocks->values->find_base(high_halves->bytes, high_halves->size / 2) == base ? used : 0;
}

/* Joins high halves and low bits to values. False when no encoder would have produced them. */
static bool join_values(const struct value_ops *values, struct block_bytes *block, const uint8_t *high_halves,
                        const uint8_t *low_bits, enum strait_block_mode mode, enum strait_element element,
                        uint32_t count)
{
    if (element == STRAIT_ELEMENT_FP16) {
        const uint8_t *ones = low_bits + pack_bytes_2bit(count);
        return is_padded(low_bits, count, 2) && is_padded(ones, count, 1) &&
               values->join_fp16(block->bytes, high_halves, low_bits, ones, count);
    }
    if (mode == STRAIT_BLOCK_FP32Z) {
        values->join_fp32(block->bytes, high_halves, NULL, count);
        return true;
    }
    values->join_fp32(block->bytes, high_halves, low_bits, count);
    return !values->are_high_halves(block->bytes, count); /* all low bits zero: the mode would be fp32z */
}

bool typed_decode(struct typed *typed, struct block_bytes *block, const uint8_t *src, size_t size,
                  enum strait_block_mode mode, enum strait_element element, const struct table *table,
                  uint32_t *escapes)
{
    if (mode == STRAIT_BLOCK_FP8) {
        typed->stats_mode = STRAIT_BLOCK_TIERED;
        return fp8_decode(typed->blocks, typed->scratch->high_halves, block, src, size, element, escapes);
    }
    if (mode == STRAIT_BLOCK_PARTS) {
        typed->stats_mode = STRAIT_BLOCK_TIERED;
        return parts_decode(typed->blocks, parts_scratch_of(typed), block, src, size, element, table, escapes);
    }
    struct shape shape = shape_of(mode, element, block->size);
    const unsigned coder = src[size - 2], base = src[size - 1];
    if (coder >= TYPED_CODERS || (mode == STRAIT_BLOCK_BASE && coder == TYPED_TABLE_TIERS) ||
        fixed_bytes(&shape, (enum typed_coder)coder) > size)
        return false;
    struct block_bytes high_halves = *block;
    high_halves.size = 2 * shape.count;
    high_halves.stream = false; /* they are read once more, and the values go past the caches then */
    if (mode != STRAIT_BLOCK_BASE || block->stream)
        high_halves.bytes = typed->scratch->high_halves;
    size_t used = decode_high_halves(typed, &high_halves, src + shape.low_bits, size - shape.low_bits - TYPED_END_BYTES,
                                     (enum typed_coder)coder, (uint8_t)base, table, escapes);
    if (used == 0)
        return false;
    block->maybe_const = mode != STRAIT_BLOCK_BASE || high_halves.maybe_const;
    if (mode == STRAIT_BLOCK_BASE && block->stream)
        typed->blocks->copy(block->bytes, high_halves.bytes, high_halves.size, true);
    else if (mode != STRAIT_BLOCK_BASE &&
             !join_values(typed->blocks->values, block, high_halves.bytes, src, mode, element, shape.count))
        return false;
    used += shape.low_bits + shape.tail;
    if (units(used + TYPED_END_BYTES) * CHUNK_UNIT != size || !all_zero(src + used, size - TYPED_END_BYTES - used))
        return false;
    memcpy(block->bytes + block->size - shape.tail, src + used - shape.tail, shape.tail);
    block->sum = sum_of(typed, block, &high_halves, mode);
    typed->stats_mode = stats_mode_of((enum typed_coder)coder);
    return true;
}
