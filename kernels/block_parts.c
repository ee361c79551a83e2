#include <string.h>

#include "internal/element.h"
#include "kernels/block_parts.h"

/* ---- Layout ----------------------------------------------------------------------------------------------------- */

/* The last bytes of a block, after patches and the bases of coder 1. */
enum { END_BYTES = 2 };

enum parts_coder {
    PARTS_TABLE = 0, /* exponents, by the page's table */
    PARTS_BASES = 1, /* symbols, by the bases of parts */
};

/* The form: z in the lower five bits, g above, and whether there are patches. */
enum { FORM_ZEROS = 31, FORM_SIGNS_SHIFT = 5, FORM_SIGNS = 3, FORM_PATCHED = 128 };

static uint32_t base_count(uint32_t count)
{
    return (count + PART_VALUES - 1) / PART_VALUES;
}

static uint32_t base_bytes(enum parts_coder coder, uint32_t count)
{
    return coder == PARTS_BASES ? base_count(count) : 0;
}

/* Of patches with their number. */
static uint32_t patch_bytes(uint32_t patches)
{
    return patches > 0 ? PATCH_BYTES * patches + 2 : 0;
}

uint32_t parts_least_bytes(enum strait_element element, uint32_t size)
{
    const uint32_t bytes = element_bytes(element);
    return pack_bytes_2bit(size / bytes) + size % bytes + END_BYTES;
}

/* ---- Encoding --------------------------------------------------------------------------------------------------- */

struct parts_form {
    uint32_t zeros;
    enum part_signs signs;
    uint32_t patches;
};

static uint32_t zero_bits(uint32_t bits, uint32_t mantissa)
{
    return (uint32_t)__builtin_ctz(bits | 1u << mantissa);
}

/* As many zeros as the mantissas of normal values end in, when patches of the others take less than that saves. */
static void find_patches(const struct value_ops *values, struct parts_form *form, uint32_t zeros, uint8_t *patches,
                         const uint8_t *src, uint32_t count)
{
    if (zeros == form->zeros)
        return;
    const uint32_t found = values->find_patches(patches, src, count, zeros);
    if (found > PATCHES_MAX || 8 * patch_bytes(found) >= (zeros - form->zeros) * count)
        return;
    form->zeros = zeros;
    form->patches = found;
}

/* The form of a block: as many zeros as all mantissas end in, and no signs where they are all the same. */
static struct parts_form find_form(const struct value_ops *values, uint8_t *patches, const uint8_t *src, uint32_t count,
                                   enum strait_element element)
{
    const uint32_t mantissa = part_mantissa_bits(element), sign = 1u << (8 * element_bytes(element) - 1);
    const struct part_bits bits = values->find_bits(src, count, element);
    struct parts_form form = {.zeros = zero_bits(bits.any, mantissa)};
    form.signs = (bits.all & sign) != 0   ? PART_SIGNS_SET
                 : (bits.any & sign) == 0 ? PART_SIGNS_CLEAR
                                          : PART_SIGNS_STORED;
    if (element == STRAIT_ELEMENT_FP16)
        find_patches(values, &form, zero_bits(bits.normal, mantissa), patches, src, count);
    return form;
}

/* How the exponents of a block were coded. */
struct coded_tiers {
    enum parts_coder coder;
    size_t bytes;
    uint32_t escapes;
    uint8_t bases[PART_BASES];
};

/* Codes the exponents of scratch to `tiers`: by bases, unless a table takes no more units. `others`: the bytes of the
 * block besides tiers and bases. */
static struct coded_tiers encode_exponents(const struct block_ops *blocks, struct parts_scratch *scratch,
                                           uint8_t *tiers, uint32_t count, const struct table *table, size_t others)
{
    struct coded_tiers coded = {.coder = PARTS_BASES};
    uint8_t *symbols = scratch->exponents;
    if (table != NULL)
        symbols = memcpy(scratch->low, scratch->exponents, count);
    blocks->find_part_bases(coded.bases, scratch->exponents, count);
    blocks->to_symbols(symbols, coded.bases, count);
    if (table != NULL && units(others + blocks->tiers_size(scratch->exponents, count, table)) <=
                             units(others + blocks->tiers_size(symbols, count, &scratch->symbols) + base_count(count)))
        coded.coder = PARTS_TABLE;
    if (coded.coder == PARTS_TABLE)
        coded.bytes = blocks->encode_tiers(tiers, scratch->exponents, count, table, &coded.escapes);
    else
        coded.bytes = blocks->encode_tiers(tiers, symbols, count, &scratch->symbols, &coded.escapes);
    return coded;
}

/* Writes tail, padding, patches, bases, form and coder after `used` bytes of streams. Returns the bytes of the block.
 */
static size_t end_block(uint8_t *stage, size_t used, const struct block_bytes *block, uint32_t count, uint32_t tail,
                        const struct coded_tiers *coded, const struct parts_form *form, const uint8_t *patches)
{
    const uint32_t of_bases = base_bytes(coded->coder, count), of_patches = patch_bytes(form->patches);
    const uint32_t end = of_patches + of_bases + END_BYTES;
    memcpy(stage + used, block->bytes + block->size - tail, tail);
    used += tail;
    size_t size = CHUNK_UNIT * (size_t)units(used + end);
    memset(stage + used, 0, size - used);
    uint8_t *at = stage + size - end;
    if (of_patches > 0) {
        memcpy(at, patches, of_patches - 2);
        store_le16(at + of_patches - 2, (uint16_t)form->patches);
    }
    memcpy(at + of_patches, coded->bases, of_bases);
    stage[size - 2] =
        (uint8_t)(form->zeros | (uint32_t)form->signs << FORM_SIGNS_SHIFT | (form->patches > 0 ? FORM_PATCHED : 0));
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
    const struct parts_form form = find_form(blocks->values, scratch->patches, block->bytes, count, element);
    struct part_fields fields;
    part_fields_init(&fields, element, form.zeros, form.signs, count);
    blocks->values->find_exponents(scratch->exponents, block->bytes, count, element);
    split_fields(blocks, scratch->low, stage, block->bytes, count, &fields);
    const struct coded_tiers coded = encode_exponents(blocks, scratch, stage + fields.end, count, table,
                                                      fields.end + tail + patch_bytes(form.patches) + END_BYTES);
    block->sum = blocks->sum(block->bytes, block->size, block->word);
    *escapes = coded.escapes;
    return end_block(stage, fields.end + coded.bytes, block, count, tail, &coded, &form, scratch->patches);
}

/* ---- Decoding --------------------------------------------------------------------------------------------------- */

/* The end of a block, copied: its bytes may change meanwhile. Its patches are in scratch. */
struct parts_end {
    enum parts_coder coder;
    uint32_t bytes, patches;
    struct part_fields fields;
    uint8_t bases[PART_BASES];
};

/* Copies the patches of a block, which end at byte `size`. False when they are not well formed. */
static bool read_patches(struct parts_end *end, uint8_t *patches, const uint8_t *src, size_t size, uint32_t count)
{
    end->patches = size < 2 ? 0 : load_le16(src + size - 2);
    if (end->patches == 0 || end->patches > PATCHES_MAX || patch_bytes(end->patches) > size)
        return false;
    memcpy(patches, src + size - patch_bytes(end->patches), PATCH_BYTES * end->patches);
    bool bad = false;
    for (uint32_t i = 0, least = 0; i < end->patches; i++) {
        const uint32_t position = load_le16(patches + PATCH_BYTES * i),
                       lowest = load_le16(patches + PATCH_BYTES * i + 2);
        bad |= position < least || position >= count || lowest == 0 || lowest >> end->fields.zeros != 0;
        least = position + 1;
    }
    return !bad;
}

/* False when no block ends so: another coder, no such form, bases of 0 and 255, or no room for bases or patches. */
static bool read_end(struct parts_end *end, uint8_t *patches, const uint8_t *src, size_t size, uint32_t count,
                     enum strait_element element)
{
    const uint8_t form = src[size - 2], coder = src[size - 1];
    const bool is_patched = (form & FORM_PATCHED) != 0;
    if (coder > PARTS_BASES || (is_patched && element != STRAIT_ELEMENT_FP16) ||
        !part_fields_init(&end->fields, element, form & FORM_ZEROS, form >> FORM_SIGNS_SHIFT & FORM_SIGNS, count))
        return false;
    end->coder = (enum parts_coder)coder;
    end->patches = 0;
    const uint32_t of_bases = base_bytes(end->coder, count);
    end->bytes = of_bases + END_BYTES;
    if (end->bytes > size)
        return false;
    memcpy(end->bases, src + size - end->bytes, of_bases);
    bool bad = false;
    for (uint32_t i = 0; i < of_bases; i++)
        bad |= end->bases[i] == 0 || end->bases[i] == 255;
    if (bad || (is_patched && !read_patches(end, patches, src, size - end->bytes, count)))
        return false;
    end->bytes += patch_bytes(end->patches);
    return true;
}

/* Adds the bits that fields lack. */
static void apply_patches(uint8_t *values, const uint8_t *patches, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *value = values + 2 * load_le16(patches + PATCH_BYTES * i);
        store_le16(value, load_le16(value) | load_le16(patches + PATCH_BYTES * i + 2));
    }
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
    if (!read_end(&end, scratch->patches, src, size, count, element) || (end.coder == PARTS_TABLE && table == NULL) ||
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
    apply_patches(block->bytes, scratch->patches, end.patches);
    memcpy(block->bytes + block->size - tail, src + used - tail, tail);
    block->sum = blocks->sum(block->bytes, block->size, block->word);
    return true;
}
