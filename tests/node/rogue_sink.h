/* A rogue daemon as the sink of a node whose pages are in a GPU's memory. */
#ifndef STRAIT_TESTS_ROGUE_SINK_H
#define STRAIT_TESTS_ROGUE_SINK_H

#include "tests/node/far_harness.h"
#include "tests/node/rogue.h"

enum { PAGES = 64, LAYERS = 2, UNITS = PAGES * LAYERS, FAR_FIRST = 100, FAR_SLOT_BYTES = 260 << 10 };

enum where { NEAR, FAR, WHERES }; /* the host's slots, the GPU's */

extern const uint32_t first_slots[];
extern const struct wire_span all_pages;

struct scene {
    enum where where;
    struct pair pair;
    struct test_pool *source, *sink;
    struct rogue rogue;
    struct pool_blob blob;
    struct flow *offer;
};

/* The pools and the rogue are there; scene_meet makes it known to the node and, where it is to be, reached. */
void scene_init(struct scene *s, enum where where);
void scene_meet(struct scene *s);
/* All pages are offered, and the rogue knows that they are ready. */
void scene_offer(struct scene *s);
void scene_begin(struct scene *s, enum where where); /* all of these */
/* The node has nothing left of it, has written to no other slots, and serves others as before. */
void scene_end(struct scene *s, uint32_t written);

struct message grant_of(const struct scene *s, uint64_t id, uint32_t first, uint32_t count, uint32_t slot);
void grant(struct scene *s, uint64_t id, uint32_t first, uint32_t count, uint32_t slot);
void end_done(struct scene *s); /* the rogue says that all is well */

#endif
