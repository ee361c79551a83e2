/* Memory that values are loaded into: one table of functions for each kind. A thread of a load opens a target, which
 * belongs to it, gives it chunk after chunk, and closes it. */
#ifndef STRAIT_CHECKPOINT_TARGET_H
#define STRAIT_CHECKPOINT_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format.h"
#include "checkpoint/walk.h"

/* Values of one page that one piece of a box wants. */
struct delivery {
    const struct checkpoint_shard *shard;  /* that gives the values, */
    const struct checkpoint_shard *source; /* and the one whose pages they are in: another one for a rounding */
    const struct box_memory *memory;       /* where they go */
    struct checkpoint_box part;            /* of the tensor: what the piece has */
    uint64_t first, end;                   /* values of the shard that the page has */
    uint32_t page;                         /* of the chunk */
    uint32_t need;                         /* the owner's */
    enum strait_status status;             /* set by deliver */
};

/* A chunk in memory: what its footer says and its metadata have been checked; of its blocks those are there that the
 * deliveries are of. */
struct chunk_work {
    const uint8_t *chunk;
    const struct strait_page_info *pages; /* info.page_count */
    struct strait_chunk_info info;
    struct delivery *deliveries; /* sorted by page */
    uint32_t count;
};

struct target {
    /* Makes what a thread needs. NULL: no memory, or no device. */
    void *(*open)(void);
    void (*close)(void *state);
    /* Decodes pages, writes the values to their places and sets the status of each delivery: OK, ERR_CORRUPT,
     * ERR_INTEGRITY, ERR_NO_MEMORY, ERR_DEVICE. Values of one that failed are undefined. */
    void (*deliver)(void *state, struct chunk_work *work);
};

/* NULL: not supported; *why is a static text. */
const struct target *target_find(enum strait_checkpoint_memory memory, const char **why);

#endif
