/* Paged pools in device memory, and the calls that encode and decode them. */
#ifndef STRAIT_BENCH_DEVICE_POOL_H
#define STRAIT_BENCH_DEVICE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "tools/calibrate.h"

#define POOL_REGIONS_MAX 64u

struct device_pool_params {
    const struct tensors *tensors; /* each region repeats one of them */
    const struct strait_codebook *codebook;
    uint64_t bytes, page_bytes, chunk_bytes; /* of values */
    bool scattered;                          /* pages in random order */
    uint32_t number; /* of the pool among pools of its kind: each uses another part of the tensors */
};

/* Source pages, a buffer of chunks and destination pages, and a batch for each direction. */
struct device_pool {
    uint64_t bytes;
    uint8_t *raw, *coded, *back;
    uint64_t coded_room;
    struct strait_region from[POOL_REGIONS_MAX], to[POOL_REGIONS_MAX];
    struct strait_encode_item *encode;
    struct strait_decode_item *decode;
    uint32_t chunks;
    uint32_t *ids;                 /* in device memory */
    struct strait_result *results; /* pinned: first those of encoding */
};

/* Both print why they failed. */
bool device_pool_init(struct device_pool *pool, const struct device_pool_params *params);
/* Reads the chunks' sizes, after an encoding has finished. *coded_bytes becomes their sum. */
bool device_pool_read_results(struct device_pool *pool, uint64_t *coded_bytes);
/* Whether the destination's pages equal the source's; whether every chunk was decoded without an error. */
bool device_pool_same(const struct device_pool *pool);
bool device_pool_decoded(const struct device_pool *pool);
/* device_sum of the source's pages, region by region. */
bool device_pool_sum(const struct device_pool *pool, uint64_t *sum);
/* Safe on zeroes. */
void device_pool_fini(struct device_pool *pool);

/* False, with a message on stderr, unless the call returned cudaSuccess. */
bool device_ok(int error, const char *what);

#endif
