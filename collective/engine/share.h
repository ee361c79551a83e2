/* What the ranks of a communicator share when they are all on one host: kinds.h, and the rings of rings.h, which their
 * GPUs reach. */
#ifndef STRAIT_COLLECTIVE_ENGINE_SHARE_H
#define STRAIT_COLLECTIVE_ENGINE_SHARE_H

#include <stdbool.h>

#include "collective/engine/kinds.h"
#include "collective/engine/rings.h"
#include "collective/engine/segment.h"

struct coll_member;

struct share {
    struct segment segment;
    struct segment_card card;  /* rank 0's own: what it made */
    struct segment_card *told; /* in the GPU's memory: of all ranks, then of this one */
    struct kinds *kinds;
    void *pinned; /* the part with the rings */
    struct ring_set rings;
    bool good;
};

/* On the member's GPU, before ranks tell each other whether they are able. False: no memory. */
bool share_prepare(struct coll_member *member);
/* All ranks, one after the other, on their GPUs; the first and the third in a group of the caller's. False: the GPU or
 * NCCL failed; of the last one, also that a rank cannot reach the memory. */
bool share_tell(struct coll_member *member);
bool share_open(struct coll_member *member);
bool share_tell_opened(struct coll_member *member);
bool share_settle(struct coll_member *member);
/* On the member's GPU, when nothing of ours runs on it. */
void share_end(struct coll_member *member);

#endif
