/* Pages of a chunk that one call decodes, and the values that go from them to places in memory: what targets of every
 * kind of memory have in common. */
#ifndef STRAIT_CHECKPOINT_BATCH_H
#define STRAIT_CHECKPOINT_BATCH_H

#include "checkpoint/target.h"

struct batch {
    struct strait_region *regions; /* a page each */
    uint32_t *select;
    int32_t *status;
    uint32_t *first; /* delivery of each page, and how many it has */
    uint32_t *count;
    uint32_t pages, room;
};

/* Pages whose values are next to one another in memory are decoded in place, others into a stage. */
struct batches {
    struct batch direct, staged;
    struct chunk_work *work;
};

struct batch_ops {
    /* Decodes all pages of a batch, sets `status` of each, and returns OK, or what failed for all of them. */
    enum strait_status (*decode)(void *state, struct batch *batch, const struct chunk_work *work);
    /* Writes the values of a staged page to their place. */
    enum strait_status (*place)(void *state, const struct delivery *delivery, const uint8_t *page);
    /* Room for a page in the stage. NULL: it is full; the batch is run, which empties it, and asked again. */
    uint8_t *(*stage)(void *state, uint32_t page_bytes);
    void (*stage_empty)(void *state);
};

/* Sorts the work's deliveries into batches and runs them; sets the status of each delivery. */
void batches_run(struct batches *batches, const struct batch_ops *ops, void *state, struct chunk_work *work);
void batches_fini(struct batches *batches);

/* The walk of a delivery's part. */
void delivery_walk(struct walk *walk, const struct delivery *delivery);

#endif
