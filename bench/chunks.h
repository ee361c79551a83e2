/* The data cut into chunks of pages: where the encoder reads them and where the decoder writes them. */
#ifndef STRAIT_BENCH_CHUNKS_H
#define STRAIT_BENCH_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "bench/data.h"

struct chunk {
    struct strait_pages src;
    struct strait_pages dst;
    uint64_t coded_at;       /* its place in the buffer of coded bytes */
    uint64_t coded_capacity; /* strait_encode_bound */
};

/* Every page is a region of its own, so that pages of different tables and lengths share a chunk. */
struct bench_chunks {
    struct chunk *chunks;
    uint32_t count;
    uint32_t capacity;
    uint64_t page_bytes;
    uint64_t coded_bytes; /* total capacity that the chunks need */
};

/* Pages are read in place from the data and written at the same offsets of `back`. False when out of memory or when a
 * chunk would be too large, with the error on stderr. */
bool bench_chunks_init(struct bench_chunks *list, const struct data *data, uint8_t *back, uint64_t page_bytes,
                       uint64_t chunk_bytes);
/* Safe on zeroes. */
void bench_chunks_fini(struct bench_chunks *list);

#endif
