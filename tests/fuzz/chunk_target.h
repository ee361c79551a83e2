/* What the two chunk fuzzers share: one chunk through every variant. */
#ifndef STRAIT_TESTS_FUZZ_CHUNK_TARGET_H
#define STRAIT_TESTS_FUZZ_CHUNK_TARGET_H

#include "tests/support.h"

/* The set that chunks may name, made once. */
const struct strait_codebook *target_codebook(void);

/* Where the pages of a chunk go: each to memory of its own, of exactly its size. */
struct target_pages {
    uint32_t count; /* 0: the chunk is refused as a whole, or holds more than a fuzzer has time for */
    struct strait_region *regions;
    int32_t *status;
    struct strait_result result;
};

void target_pages_init(struct target_pages *pages, const uint8_t *chunk, size_t size);
void target_pages_fini(struct target_pages *pages);
void target_pages_decode(struct target_pages *pages, const struct strait_codec *codec, const uint8_t *chunk,
                         size_t size);

/* Decodes and verifies with every variant: all agree. */
void target_check(const uint8_t *chunk, size_t size);

#endif
