/* Chunks on a CPU: layout and checks of a chunk (FORMAT.md, sections 4 and 6), encoding,
 * decoding. */
#ifndef STRAIT_KERNELS_CHUNK_H
#define STRAIT_KERNELS_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/codec.h>

#include "kernels/block_typed.h"
#include "kernels/pages.h"

/* ---- Layout and checks ------------------------------------------------------------------------------------------ */

/* The block modes that decoders know, on processors; for GPUs see DEVICE_BLOCK_MODES. Bit m is mode m. Golden vectors
 * rely on modes 5 and 9 being unknown. */
#define CHUNK_BLOCK_MODES (((1u << STRAIT_BLOCK_MODES_ALL) - 1) & ~(1u << STRAIT_BLOCK_MODES | 1u << 9))

#define CHUNK_VERSION      1
#define CHUNK_FLAG_LENGTHS 1u
#define CHUNK_ENTRY_BYTES  16u
#define CHUNK_SUM_OFFSET   40u

struct chunk_layout {
    uint64_t metadata_bytes;
    uint32_t page_count;
    uint32_t page_bytes;
    uint32_t rows_per_page; /* blocks of the longest page, less one */
    bool lengths;
};

void chunk_layout_init(struct chunk_layout *layout, uint32_t page_count, uint32_t page_bytes, bool lengths);

static inline uint32_t page_blocks(uint32_t page_bytes)
{
    return (page_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
}

/* Bytes of block b of a page: 16384, or fewer for the last. */
static inline uint32_t block_bytes(uint32_t page_bytes, uint32_t b)
{
    uint32_t rest = page_bytes - b * BLOCK_BYTES;
    return rest < BLOCK_BYTES ? rest : BLOCK_BYTES;
}

static inline uint32_t entry_offset(uint32_t page)
{
    return STRAIT_CHUNK_HEADER_BYTES + CHUNK_ENTRY_BYTES * page;
}

/* Chunk that has passed checks 1 to 10 of FORMAT.md, section 6. */
struct chunk {
    const uint8_t *src;
    const uint8_t *metadata; /* src, or a private copy of the metadata there */
    struct strait_chunk_info info;
    struct chunk_layout layout;
    uint32_t table_limit; /* largest table index, plus one */
    bool codebook;        /* whether it names a codebook */
};

struct chunk_block {
    const uint8_t *src;
    uint32_t size; /* bytes up to the next block */
    enum strait_block_mode mode;
};

/* Adds the raw bytes of a chunk's blocks by their modes, after the checks of strait_chunk_pages, whose errors it
 * returns. */
enum strait_status chunk_add_modes(const void *src, uint64_t src_size, uint64_t bytes[STRAIT_BLOCK_MODES_ALL]);

/* ---- Encoding and decoding -------------------------------------------------------------------------------------- */

/* Memory that one call needs besides its stack. */
struct chunk_scratch {
    _Alignas(64) uint8_t stage[BLOCK_STAGE_BYTES]; /* a coded block, or a decoded one */
    _Alignas(64) uint8_t rows[BLOCK_BYTES];        /* a block gathered from the rows of a page */
    struct typed_scratch typed;
};

/* Encode pages to a chunk; decode a chunk, which may be hostile, to pages (dst NULL: verify all pages, write none).
 * Arguments have been checked; results go to the run, and scratch comes from there or from the stack. */
void chunk_encode(const struct block_ops *blocks, const struct strait_encode_params *params, uint8_t *dst,
                  const struct strait_pages *src, const struct strait_run *run);
void chunk_decode(const struct block_ops *blocks, const struct strait_codebook *codebook,
                  const struct strait_pages *dst, const uint32_t *select, const uint8_t *src, uint64_t src_size,
                  const struct strait_run *run);

/* Sizes of the struct strait_run before `caching` and before `tables` were added. */
#define RUN_SIZE_FIRST   offsetof(struct strait_run, caching)
#define RUN_SIZE_CACHING offsetof(struct strait_run, tables)

#endif
