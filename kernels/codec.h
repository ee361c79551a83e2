/* A variant of the codec: encodes pages to a chunk and decodes it again. The CPU variants share one chunk loop and
 * differ in their block coders; a device variant is device_ops. Arguments have been checked before these functions run.
 */
#ifndef STRAIT_KERNELS_CODEC_H
#define STRAIT_KERNELS_CODEC_H

#include <stdbool.h>

#include <strait/codec.h>

#include "kernels/block_typed.h"
#include "kernels/device.h"

/* Chunks of at least this size are stored past the caches unless the caller says otherwise: their reader is another
 * device, or comes later. */
#define STREAM_BYTES (1u << 20)

/* Whether the stores for a chunk of this size go past the caches. */
bool run_passes_caches(const struct strait_run *run, uint64_t chunk_bytes);

struct strait_codec {
    const char *name;
    bool (*supported)(void);
    size_t scratch_size;
    void (*encode)(const struct strait_codec *codec, const struct strait_encode_params *params, uint8_t *dst,
                   const struct strait_pages *src, const struct strait_run *run);
    /* dst NULL: verify all pages, write none. */
    void (*decode)(const struct strait_codec *codec, const struct strait_codebook *codebook,
                   const struct strait_pages *dst, const uint32_t *select, const uint8_t *src, uint64_t src_size,
                   const struct strait_run *run);
    const struct block_ops *blocks;  /* CPU variants only */
    const struct device_ops *device; /* device variants only; nothing else of them is used */
};

/* Memory that one CPU call needs besides its stack. */
struct cpu_scratch {
    _Alignas(64) uint8_t stage[BLOCK_STAGE_BYTES]; /* a coded block, or a decoded one */
    _Alignas(64) uint8_t rows[BLOCK_BYTES];        /* a block gathered from the rows of a page */
    struct typed_scratch typed;
};

void cpu_encode(const struct strait_codec *codec, const struct strait_encode_params *params, uint8_t *dst,
                const struct strait_pages *src, const struct strait_run *run);
void cpu_decode(const struct strait_codec *codec, const struct strait_codebook *codebook,
                const struct strait_pages *dst, const uint32_t *select, const uint8_t *src, uint64_t src_size,
                const struct strait_run *run);

/* Values of a page by block mode, and its escapes, kept until the page is known to be good. */
struct page_stats {
    uint64_t values[STRAIT_BLOCK_MODES];
    uint64_t escapes;
};

/* Adds a good page to the result's statistics and to those of its class. */
void run_count_page(const struct strait_run *run, struct strait_result *result, const struct page_stats *stats,
                    uint32_t table);

/* Records a page's status; the first failure becomes the result's. */
void run_page_status(const struct strait_run *run, struct strait_result *result, uint32_t page,
                     enum strait_status status);

#endif
