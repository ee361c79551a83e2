/*
 * Block coders: the inner loops of the codec, one table of functions per variant. A block is at most 8192 values (16384
 * of FP8); FORMAT.md, section 3, specifies the modes. `raw` and `const` need no coder.
 *
 * Encoders write to a stage of BLOCK_STAGE_BYTES and may overwrite all of it, so that their loops need not check for
 * its end. Decoders write exactly the block's bytes and read exactly the coded ones, even if another process changes
 * these meanwhile: a decoder either does not read again what it has checked, or checks it again.
 */
#ifndef STRAIT_KERNELS_BLOCK_H
#define STRAIT_KERNELS_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "internal/bytes.h"
#include "kernels/codebook.h"
#include "kernels/value_ops.h"

#define CHUNK_UNIT  16u /* bytes; blocks begin and end at multiples of it */
#define BLOCK_BYTES (STRAIT_BLOCK_VALUES * 2u)
/* The worst case is `top16` with nothing but escapes, 4.5 bytes a value; the remainder is for vector stores that reach
 * further. */
#define BLOCK_STAGE_BYTES (STRAIT_BLOCK_VALUES * 5u)

/* No vector step that sums words is longer. */
#define BLOCK_PIECE_UNIT 128u

/* What coders of exponents may read and write past the end of a list: no vector is longer. */
#define VECTOR_BYTES 64u

/* First rank of each tier of `tiered`. */
enum { TIER2_RANK = 3, TIER3_RANK = 6, TIER4_RANK = 21, TOP16_RANKS = 16 };

/* ---- Pieces of a page whose rows lie apart, or have columns, one after another ---------------------------------- */

/* Position in a page: the bytes from `at` on lie in one piece. */
struct cursor {
    uint8_t *at, *row;     /* the position; its row's first piece */
    uint32_t left;         /* bytes of the piece from there on */
    uint32_t piece;        /* bytes of a piece */
    uint32_t column, last; /* number of the piece in its row; that of the row's last one */
    uint64_t row_stride, column_stride;
};

/* Moves the position by so many bytes of its piece. */
static inline void cursor_pass(struct cursor *cursor, uint32_t bytes)
{
    cursor->left -= bytes;
    if (cursor->left != 0) {
        cursor->at += bytes;
        return;
    }
    cursor->left = cursor->piece;
    if (cursor->column < cursor->last) {
        cursor->column++;
        cursor->at += cursor->column_stride - (cursor->piece - bytes);
        return;
    }
    cursor->column = 0;
    cursor->at = cursor->row += cursor->row_stride;
}

/* Bytes that lie in a row, without an end. */
static inline struct cursor cursor_in_row(const uint8_t *at)
{
    return (struct cursor){.at = (uint8_t *)at, .left = UINT32_MAX};
}

#define CURSOR_LINE 64u /* bytes of a cache line */

/* Prefetches the line at the position into the L2, as the L1 is full, and passes it. Pieces are whole lines. */
static inline void cursor_prefetch_line(struct cursor *cursor)
{
    __builtin_prefetch(cursor->at, 0, 2);
    cursor_pass(cursor, CURSOR_LINE);
}

/* Prefetches bytes into the L2. */
static inline void cursor_prefetch(const uint8_t *src, uint32_t size)
{
    for (uint32_t at = 0; at < size; at += CURSOR_LINE)
        __builtin_prefetch(src + at, 0, 2);
}

/* ---- Coders ------------------------------------------------------------------------------------------------------ */

/* One uncoded block of a page. The coders compute its sum in passing, while the bytes are in registers. */
struct block_bytes {
    uint8_t *bytes;            /* encoders only read it */
    uint32_t size;             /* 2n + t */
    uint32_t word;             /* number of its first 32-bit word in the page, a multiple of SUM_LANES */
    bool stream;               /* decoders: store past the caches (non-temporal) */
    const struct cursor *next; /* encoders: source that is read next, for prefetching; NULL: none */
    uint64_t sum;              /* out: sum_terms of the bytes */
    bool maybe_const;          /* out, decoders: the first values of the block are all equal */
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

    /* Mode 10. Values become exponents, a byte each, and rests: of four bits, or mantissas of two bits and then signs;
     * unused bits are zero. Both compute the block's sum. */
    void (*split_fp8)(uint8_t *exponents, uint8_t *rests, struct block_bytes *block, bool e5m2);
    void (*join_fp8)(struct block_bytes *block, const uint8_t *exponents, const uint8_t *rests, bool e5m2);

    /* Mode 10: one tier of two bits for a list of `count` exponents, a byte each. The encoder writes ceil(count / 4)
     * bytes, moves the exponents that do not have a rank of `first` to `first` + 2 to the front of the list, and
     * returns how many they are. The decoder takes these from the list `on`, which suffices for any stream if it has
     * `count` of them. Both may go VECTOR_BYTES past the end of every list and stream. */
    uint32_t (*encode_tier)(uint8_t *stream, uint8_t *exponents, uint32_t count, const struct table *table,
                            uint8_t first);
    void (*decode_tier)(uint8_t *exponents, const uint8_t *stream, uint32_t count, const uint8_t *on,
                        const struct table *table, uint8_t first);
    /* The tiers of `tiered` for a list of `count` exponents, a byte each: T1 to T4. Encoding may go VECTOR_BYTES past
     * the end of list and streams, and returns the bytes of the streams. Decoding reads exactly src[0..size), at least
     * T1, may write VECTOR_BYTES past the list, and returns the bytes used, or 0 when no encoder would write these. */
    size_t (*encode_tiers)(uint8_t *streams, const uint8_t *exponents, uint32_t count, const struct table *table,
                           uint32_t *escapes);
    size_t (*decode_tiers)(uint8_t *exponents, const uint8_t *src, size_t size, uint32_t count,
                           const struct table *table, uint32_t *escapes);
    /* The bytes that encode_tiers writes. */
    size_t (*tiers_size)(const uint8_t *exponents, uint32_t count, const struct table *table);

    /* Mode 11, for lists with a byte for each value and room for VECTOR_BYTES more: the base of each part; exponents to
     * symbols by these bases and back, in place; the lower bits of fields to their streams and back. Packing may go
     * VECTOR_BYTES past the end of each stream. */
    void (*find_part_bases)(uint8_t *bases, const uint8_t *exponents, uint32_t count);
    void (*to_symbols)(uint8_t *list, const uint8_t *bases, uint32_t count);
    void (*to_exponents)(uint8_t *list, const uint8_t *bases, uint32_t count);
    void (*pack_low)(uint8_t *streams, const uint8_t *low, uint32_t count, const struct part_fields *fields);
    void (*unpack_low)(uint8_t *low, const uint8_t *streams, uint32_t count, const struct part_fields *fields);
    /* How many of these items of two bits are 3. */
    uint32_t (*count_threes)(const uint8_t *stream, uint32_t items);

    const struct value_ops *values;

    /* sum_terms; a copy and sum_terms of the bytes copied; a plain copy. With `stream` the stores go past the caches.
     */
    uint64_t (*sum)(const uint8_t *src, size_t size, uint32_t word);
    uint64_t (*sum_copy)(uint8_t *dst, const uint8_t *src, size_t size, uint32_t word, bool stream);
    void (*copy)(uint8_t *dst, const uint8_t *src, size_t size, bool stream);

    /* The same as sum_copy, from pieces of a page, or to them, that have a multiple of BLOCK_PIECE_UNIT bytes. `ahead`:
     * the distance to what is read next at the same places, which is prefetched, as processors prefetch no rows; 0:
     * none. */
    uint64_t (*sum_gather)(uint8_t *dst, struct cursor *src, size_t size, uint32_t word, ptrdiff_t ahead, bool stream);
    uint64_t (*sum_scatter)(struct cursor *dst, const uint8_t *src, size_t size, uint32_t word, bool stream);

    /* Makes streamed stores visible before any later store. */
    void (*flush)(void);
};

extern const struct block_ops block_scalar;
#ifdef STRAIT_X86
extern const struct block_ops block_avx2, block_avx512;
#endif
#ifdef STRAIT_AARCH64
extern const struct block_ops block_neon;
#endif

static inline uint32_t units(uint64_t bytes)
{
    return (uint32_t)((bytes + CHUNK_UNIT - 1) / CHUNK_UNIT);
}

static inline uint32_t pack_bytes_2bit(uint32_t items)
{
    return (items + 3) / 4;
}

static inline uint32_t pack_bytes_4bit(uint32_t items)
{
    return (items + 1) / 2;
}

static inline uint32_t pack_bytes_1bit(uint32_t items)
{
    return (items + 7) / 8;
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

/* ---- Checks of streams, for all decoders ------------------------------------------------------------------------ */

/* Whether the unused bits after the last of `items` items of 2 or 4 bits are zero. */
static inline bool is_padded(const uint8_t *stream, uint32_t items, unsigned width)
{
    unsigned used = items % (8 / width) * width;
    return used == 0 || stream[items / (8 / width)] >> used == 0;
}

/* Whether the bytes after the streams are zero. */
static inline bool all_zero(const uint8_t *src, size_t size)
{
    uint8_t any = 0;
    for (size_t i = 0; i < size; i++)
        any |= src[i];
    return any == 0;
}

/* The escape list of a `top16` block, read in order. */
struct listed_escapes {
    const uint8_t *positions, *exponents;
    uint32_t count;
};

static inline uint32_t listed_at(const struct listed_escapes *list, uint32_t k)
{
    return load_le16(list->positions + 2 * k);
}

/* Opens the list at src and checks all of it except the codes at its positions. Returns the list's bytes, 0 when no
 * encoder would write it. */
static inline size_t listed_open(struct listed_escapes *list, const uint8_t *src, size_t size, uint32_t n,
                                 const struct table *table)
{
    uint32_t count = size < 2 ? 0 : load_le16(src);
    if (count == 0 || count > n || size < 2 + 3 * (size_t)count)
        return 0;
    *list = (struct listed_escapes){.positions = src + 2, .exponents = src + 2 + 2 * count, .count = count};
    for (uint32_t k = 0; k < count; k++) {
        if (listed_at(list, k) >= n || (k > 0 && listed_at(list, k) <= listed_at(list, k - 1)) ||
            table->rank[list->exponents[k]] < TOP16_RANKS)
            return 0;
    }
    return 2 + 3 * (size_t)count;
}

/* ---- Order-independent 64-bit sum of FORMAT.md, section 5 ------------------------------------------------------- */

#define SUM_LANES 16 /* words that share a key step */

extern const uint32_t sum_keys[SUM_LANES];
extern const uint32_t sum_steps[2];

uint64_t sum_seed(uint64_t a, uint64_t b, uint64_t c);

/* Seeds of the sum of a page and of that of the metadata. */
static inline uint64_t sum_seed_page(uint32_t page_bytes, uint32_t index, uint32_t table)
{
    return sum_seed(page_bytes, index, table);
}

static inline uint64_t sum_seed_metadata(uint32_t metadata_bytes)
{
    return sum_seed(metadata_bytes, UINT32_MAX, 65535);
}

/* Sum of the terms of the `size` bytes at src; their first 32-bit word is number `word` of the page, a multiple of
 * SUM_LANES. */
uint64_t sum_terms(const uint8_t *src, size_t size, uint32_t word);

#endif
