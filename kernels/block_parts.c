#include <string.h>

#include "internal/element.h"
#include "kernels/block_parts.h"

/* ---- Layout ----------------------------------------------------------------------------------------------------- */

/* The last bytes of a block, after the bases of coder 1. */
enum { END_BYTES = 2 };

enum parts_coder {
    PARTS_TABLE = 0, /* exponents, by the page's table */
    PARTS_BASES = 1, /* symbols, by the bases of parts */
};

/* The form: z in the lower five bits, g above. */
enum { FORM_ZEROS = 31, FORM_SIGNS_SHIFT = 5 };

static uint32_t base_count(uint32_t count)
{
    return (count + PART_VALUES - 1) / PART_VALUES;
}

static uint32_t end_bytes(enum parts_coder coder, uint32_t count)
{
    return END_BYTES + (coder == PARTS_BASES ? base_count(count) : 0);
}

uint32_t parts_least_bytes(enum strait_element element, uint32_t size)
{
    const uint32_t bytes = element_bytes(element);
    return pack_bytes_2bit(size / bytes) + size % bytes + END_BYTES;
}

/* ---- Encoding --------------------------------------------------------------------------------------------------- */

/* The form of a block: as many zeros as all mantissas end in, and no signs where they are all the same. */
static uint8_t find_form(const struct block_ops *blocks, const uint8_t *src, uint32_t count,
                         enum strait_element element)
{
    const uint32_t mantissa = part_mantissa_bits(element), sign = 1u << (8 * element_bytes(element) - 1);
    uint32_t any, all;
    blocks->values->find_bits(&any, &all, src, count, element_bytes(element));
    const uint32_t zeros = (uint32_t)__builtin_ctz(any | 1u << mantissa);
    const enum part_signs signs = (all & sign) != 0   ? PART_SIGNS_SET
                                  : (any & sign) == 0 ? PART_SIGNS_CLEAR
                                                      : PART_SIGNS_STORED;
    return (uint8_t)(zeros | (uint32_t)signs << FORM_SIGNS_SHIFT);
}

/* How the exponents of a block were coded. */
struct coded_tiers {
    enum parts_coder coder;
    size_t bytes;
    uint32_t escapes;
    uint8_t bases[PART_BASES];
};

/* Codes the exponents of scratch to `tiers`: by bases, unless a table takes no more units. `others`: the bytes of the
 * block besides tiers and end. */
static struct coded_tiers encode_exponents(const struct block_ops *blocks, struct parts_scratch *scratch,
                                           uint8_t *tiers, uint32_t count, const struct table *table, size_t others)
{
    struct coded_tiers coded = {.coder = PARTS_BASES};
    uint8_t *symbols = scratch->exponents;
    if (table != NULL)
        symbols = memcpy(scratch->low, scratch->exponents, count);
    blocks->find_part_bases(coded.bases, scratch->exponents, count);
    blocks->to_symbols(symbols, coded.bases, count);
    if (table != NULL &&
        units(others + blocks->tiers_size(scratch->exponents, count, table) + end_bytes(PARTS_TABLE, count)) <=
            units(others + blocks->tiers_size(symbols, count, &scratch->symbols) + end_bytes(PARTS_BASES, count)))
        coded.coder = PARTS_TABLE;
    if (coded.coder == PARTS_TABLE)
        coded.bytes = blocks->encode_tiers(tiers, scratch->exponents, count, table, &coded.escapes);
    else
        coded.bytes = blocks->encode_tiers(tiers, symbols, count, &scratch->symbols, &coded.escapes);
    return coded;
}

/* Writes tail, padding, bases, form and coder after `used` bytes of streams. Returns the bytes of the block. */
static size_t end_block(uint8_t *stage, size_t used, const struct block_bytes *block, uint32_t count, uint32_t tail,
                        const struct coded_tiers *coded, uint8_t form)
{
    const uint32_t end = end_bytes(coded->coder, count);
    memcpy(stage + used, block->bytes + block->size - tail, tail);
    used += tail;
    size_t size = CHUNK_UNIT * (size_t)units(used + end);
    memset(stage + used, 0, size - used);
    memcpy(stage + size - end, coded->bases, end - END_BYTES);
    stage[size - 2] = form;
    stage[size - 1] = (uint8_t)coded->coder;
    return size;
}

/* Writes the streams of fields in their order, as each may be written past its end. */
static void split_fields(const struct block_ops *blocks, uint8_t *low, uint8_t *stage, const uint8_t *src,
                         uint32_t count, const struct part_fields *fields)
{
    blocks->values->split_fields(stage, low, src, count, fields);
    if (fields->low_bits != 0)
        blocks->pack_low(stage, low, count, fields);
    if ((fields->width & 8) != 0)
        blocks->values->split_eights(stage + fields->at8, src, count, fields);
}

size_t parts_encode(const struct block_ops *blocks, struct parts_scratch *scratch, uint8_t *stage,
                    struct block_bytes *block, enum strait_element element, const struct table *table,
                    uint32_t *escapes)
{
    const uint32_t bytes = element_bytes(element), count = block->size / bytes, tail = block->size % bytes;
    const uint8_t form = find_form(blocks, block->bytes, count, element);
    struct part_fields fields;
    part_fields_init(&fields, element, form & FORM_ZEROS, form >> FORM_SIGNS_SHIFT, count);
    blocks->values->find_exponents(scratch->exponents, block->bytes, count, element);
    split_fields(blocks, scratch->low, stage, block->bytes, count, &fields);
    const struct coded_tiers coded =
        encode_exponents(blocks, scratch, stage + fields.end, count, table, fields.end + tail);
    block->sum = blocks->sum(block->bytes, block->size, block->word);
    *escapes = coded.escapes;
    return end_block(stage, fields.end + coded.bytes, block, count, tail, &coded, form);
}

/* ---- Decoding --------------------------------------------------------------------------------------------------- */

/* The end of a block, copied: its bytes may change meanwhile. */
struct parts_end {
    enum parts_coder coder;
    uint32_t bytes;
    struct part_fields fields;
    uint8_t bases[PART_BASES];
};

/* False when no block ends so: another coder, no such form, bases of 0 and 255, or no room for bases. */
static bool read_end(struct parts_end *end, const uint8_t *src, size_t size, uint32_t count,
                     enum strait_element element)
{
    const uint8_t form = src[size - 2], coder = src[size - 1];
    if (coder > PARTS_BASES ||
        !part_fields_init(&end->fields, element, form & FORM_ZEROS, form >> FORM_SIGNS_SHIFT, count))
        return false;
    end->coder = (enum parts_coder)coder;
    end->bytes = end_bytes(end->coder, count);
    if (end->bytes > size)
        return false;
    memcpy(end->bases, src + size - end->bytes, end->bytes - END_BYTES);
    bool bad = false;
    for (uint32_t i = 0; i < end->bytes - END_BYTES; i++)
        bad |= end->bases[i] == 0 || end->bases[i] == 255;
    return !bad;
}

/* Whether the unused bits of the pieces of 4, 2 and 1 bits are zero. */
static bool fields_padded(const struct part_fields *fields, const uint8_t *src, uint32_t count)
{
    return ((fields->width & 4) == 0 || is_padded(src + fields->at4, count, 4)) &&
           ((fields->width & 2) == 0 || is_padded(src + fields->at2, count, 2)) &&
           ((fields->width & 1) == 0 || is_padded(src + fields->at1, count, 1));
}

/* Decodes the exponents of values, as the type has them, to scratch. Returns the bytes of the tiers, 0 when these are
 * not well formed. */
static size_t decode_exponents(const struct block_ops *blocks, struct parts_scratch *scratch, const uint8_t *src,
                               size_t size, uint32_t count, const struct parts_end *end, const struct table *table,
                               uint32_t *escapes)
{
    size_t used = blocks->decode_tiers(scratch->exponents, src, size, count,
                                       end->coder == PARTS_TABLE ? table : &scratch->symbols, escapes);
    if (used != 0 && end->coder == PARTS_BASES)
        blocks->to_exponents(scratch->exponents, end->bases, count);
    if (used != 0 && end->fields.element == STRAIT_ELEMENT_FP16 &&
        !blocks->values->narrow_exponents(scratch->exponents, count))
        return 0;
    return used;
}

bool parts_decode(const struct block_ops *blocks, struct parts_scratch *scratch, struct block_bytes *block,
                  const uint8_t *src, size_t size, enum strait_element element, const struct table *table,
                  uint32_t *escapes)
{
    const uint32_t bytes = element_bytes(element), count = block->size / bytes, tail = block->size % bytes;
    struct parts_end end;
    if (!read_end(&end, src, size, count, element) || (end.coder == PARTS_TABLE && table == NULL) ||
        end.fields.end + pack_bytes_2bit(count) + tail + end.bytes > size || !fields_padded(&end.fields, src, count))
        return false;
    size_t used = decode_exponents(blocks, scratch, src + end.fields.end, size - end.fields.end - end.bytes, count,
                                   &end, table, escapes);
    if (used == 0)
        return false;
    used += end.fields.end + tail;
    if (units(used + end.bytes) * CHUNK_UNIT != size || !all_zero(src + used, size - end.bytes - used))
        return false;
    if (end.fields.low_bits != 0)
        blocks->unpack_low(scratch->low, src, count, &end.fields);
    blocks->values->join_fields(block->bytes, src, scratch->exponents, scratch->low, count, &end.fields);
    memcpy(block->bytes + block->size - tail, src + used - tail, tail);
    block->sum = blocks->sum(block->bytes, block->size, block->word);
    return true;
}
