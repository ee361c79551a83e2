/*
 * Block coders: the inner loops of the codec, one table of functions per variant. A block is at most 8192 values;
 * FORMAT.md, section 3, specifies the modes. `raw` and `const` need no coder.
 *
 * Encoders write to a stage of BLOCK_STAGE_BYTES and may scribble on all of it, so that their loops need not check for
 * its end. Decoders write exactly the block's bytes and read exactly the coded ones, even if another process changes
 * these meanwhile: a decoder either does not read again what it has checked, or checks it again.
 */
#ifndef STRAIT_KERNELS_BLOCK_H
#define STRAIT_KERNELS_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/codebook.h"
#include "kernels/value_ops.h"

#define BLOCK_BYTES (STRAIT_BLOCK_VALUES * 2u)
/* The worst case is `top16` with nothing but escapes, 4.5 bytes a value; the rest is room to scribble. */
#define BLOCK_STAGE_BYTES (STRAIT_BLOCK_VALUES * 5u)

/* First rank of each tier of `tiered`. */
enum { TIER2_RANK = 3, TIER3_RANK = 6, TIER4_RANK = 21, TOP16_RANKS = 16 };

/* One uncoded block of a page. The coders compute its sum in passing, while the bytes are in registers. */
struct block_bytes {
    uint8_t *bytes;      /* encoders only read it */
    uint32_t size;       /* 2n + t */
    uint32_t word;       /* number of its first 32-bit word in the page, a multiple of SUM_LANES */
    bool stream;         /* decoders: store past the caches (non-temporal) */
    const uint8_t *next; /* what will be read next, for prefetching; NULL: nothing */
    uint64_t sum;        /* out: sum_terms of the bytes */
    bool maybe_const;    /* out, decoders: the first values of the block are all equal */
};

struct block_ops {
    /* Code the n >= 1 values of a block to the stage. Return the bytes of the streams, and in *escapes the number of
     * values in the last stream. The tail byte is summed but not coded. */
    size_t (*encode_top16)(uint8_t *stage, struct block_bytes *block, const struct table *table, uint32_t *escapes);
    size_t (*encode_tiered)(uint8_t *stage, struct block_bytes *block, const struct table *table, uint32_t *escapes);

    /* Decode the streams and the tail byte of a block of n >= 1 values from src[0..size); size is at least the static
     * part. Return the bytes used, or 0 when no encoder would write these streams (check 14 of section 6, except for
     * padding at the end); the block's bytes are then undefined. `listed`: mode 3, an escape list follows the codes. */
    size_t (*decode_top16)(struct block_bytes *block, const uint8_t *src, size_t size, bool listed,
                           const struct table *table, uint32_t *escapes);
    size_t (*decode_tiered)(struct block_bytes *block, const uint8_t *src, size_t size, const struct table *table,
                            uint32_t *escapes);

    const struct value_ops *values;

    /* sum_terms; the same of the bytes copied; a plain copy. With `stream` the stores go past the caches. */
    uint64_t (*sum)(const uint8_t *src, size_t size, uint32_t word);
    uint64_t (*sum_copy)(uint8_t *dst, const uint8_t *src, size_t size, uint32_t word, bool stream);
    void (*copy)(uint8_t *dst, const uint8_t *src, size_t size, bool stream);

    /* Makes streamed stores visible before any later store. */
    void (*flush)(void);
};

extern const struct block_ops block_scalar;
#ifdef STRAIT_X86
extern const struct block_ops block_avx2, block_avx512;
#endif

static inline uint32_t pack_bytes_2bit(uint32_t items)
{
    return (items + 3) / 4;
}

static inline uint32_t pack_bytes_4bit(uint32_t items)
{
    return (items + 1) / 2;
}

static inline uint8_t value_exponent(uint16_t value)
{
    return (uint8_t)(value >> 7);
}

static inline uint8_t value_sign_mantissa(uint16_t value)
{
    return (uint8_t)((value >> 8 & 0x80) | (value & 0x7f));
}

static inline uint16_t value_join(uint8_t sign_mantissa, uint8_t exponent)
{
    return (uint16_t)((sign_mantissa & 0x80) << 8 | exponent << 7 | (sign_mantissa & 0x7f));
}

#endif
