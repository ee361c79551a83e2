/* Random pairs of pools that reshape_make joins, and what each byte of their pages is, read from strait.h. */
#ifndef STRAIT_TESTS_PROTO_PAIRS_H
#define STRAIT_TESTS_PROTO_PAIRS_H

#include "proto/reshape.h"
#include "tests/support.h"

enum { PAIR_REGIONS_MAX = 64, PAIR_GROUPS = 4 };

/* A description and its regions, in the pool's order. */
struct pair_pool {
    struct pool_blob blob;
    struct blob_region regions[PAIR_REGIONS_MAX];
};

/* The pools of a pair, and what they share: one number of tokens for all regions of a pool. */
struct pair {
    struct pair_pool pools[RESHAPE_SIDES];
    uint32_t tokens[RESHAPE_SIDES];
    uint32_t head_bytes;
};

/* What a byte of a page is; equal labels are equal bytes of the model. */
struct label {
    int32_t layer;
    uint32_t role; /* K or V */
    uint32_t token, head, byte;
};

void pair_random(struct pair *pair, struct rng *rng);
const struct blob_region *pair_region(const struct pair *pair, enum reshape_side side, uint32_t group, uint32_t index);
/* Byte `offset` of the contents of logical page `page`. */
struct label pair_label(const struct pair *pair, const struct blob_region *region, uint32_t page, uint64_t offset);
/* Byte `at` of a tile as an offset in its page's contents. */
uint64_t tile_byte(const struct tile_place *place, uint32_t tile, uint32_t at);

#endif
