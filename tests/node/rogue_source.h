/* A rogue daemon as the source of a node whose pages are in a GPU's memory. */
#ifndef STRAIT_TESTS_ROGUE_SOURCE_H
#define STRAIT_TESTS_ROGUE_SOURCE_H

#include "tests/node/far_harness.h"
#include "tests/node/rogue.h"

enum where { NEAR, FAR, WHERES }; /* slots of the host, and of the GPU */

enum { EXPECTED_MAX = 16 };

struct scene {
    enum where where;
    struct pair pair;
    struct test_pool *source, *sink; /* honest ones, which go on */
    struct rogue rogue;
    struct pool_blob blob; /* of the rogue's pool, that looks like theirs */
    struct strait_peer *peer;
    uint32_t expected; /* pages of a request */
    size_t page_bytes;
    uint8_t *pages; /* what the rogue sends of them */
    uint8_t *arena; /* the node's GPU's */
    size_t arena_size, slot_bytes;
    struct flow *expectation;
};

/* The node has asked for the first pages, of this size, with open grants. */
void scene_begin(struct scene *s, enum where where, uint32_t pages, size_t page_bytes);
/* Nothing is left of it, and the node serves others as before. */
void scene_end(struct scene *s);

uint8_t *slot_at(const struct scene *s, uint32_t slot);
/* A good chunk of pages [first, first + count) is in that slot; returns its size. */
size_t encode_chunk(struct scene *s, uint32_t slot, uint32_t first, uint32_t count);
/* For the latest request. */
struct chunk_header header_of(const struct scene *s, uint64_t grant, uint32_t slot);
/* All pages are ready; `granted` of them are for open grants, from `grant` on. */
void say_segments(struct scene *s, uint64_t grant, const uint32_t *granted, uint32_t count);
void say_released(struct scene *s, uint64_t grant);
/* DONE, with the rogue's pages. */
void ends_whole(struct scene *s);

#endif
