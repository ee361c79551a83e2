/* What the ranks of a communicator share on a host: kinds.h, and the rings of rings.h, which their GPUs reach. Ranks of
 * one host share memory that the lowest of them makes (divide.h); ranks on different hosts have a link (link.h). */
#ifndef STRAIT_COLLECTIVE_ENGINE_SHARE_H
#define STRAIT_COLLECTIVE_ENGINE_SHARE_H

#include <stdbool.h>

#include "collective/engine/divide.h"
#include "collective/engine/greet.h"
#include "collective/engine/kinds.h"
#include "collective/engine/rings.h"
#include "collective/engine/segment.h"

struct coll_member;

/* What a rank tells the others: the segment it made, if it leads, and how to reach it, if ranks are on several
 * hosts. */
struct share_card {
    struct segment_card segment;
    struct greet_card greet;
};

struct share {
    struct division division;
    bool apart; /* they are on several hosts */
    struct segment segment;
    struct share_card card;  /* this rank's own */
    struct share_card *told; /* in the GPU's memory: of all ranks, then of this one */
    struct kinds *kinds;
    void *pinned; /* the part with the rings, pinned */
    struct ring_set rings;
    struct link *link;        /* NULL: all are on one host */
    struct greet_card *greet; /* by rank; likewise */
    bool good;                /* nothing has failed so far */
};

/* On the member's GPU, before ranks tell each other whether they are able. False: no memory. */
bool share_prepare(struct coll_member *member);

/* Called for all ranks, in this order, on their GPUs; each `tell` in a group that the caller opens. False: the GPU or
 * NCCL failed; from `accept` and `settle` also that some rank cannot reach the memory or another rank, which all ranks
 * find alike. */
bool share_tell_seen(struct coll_member *member);
bool share_divide(struct coll_member *member);
bool share_tell(struct coll_member *member);
bool share_open(struct coll_member *member);
bool share_tell_opened(struct coll_member *member);
bool share_accept(struct coll_member *member);
bool share_tell_accepted(struct coll_member *member);
bool share_settle(struct coll_member *member);

/* On the member's GPU, when nothing of ours runs on it. */
void share_end(struct coll_member *member);

#endif
