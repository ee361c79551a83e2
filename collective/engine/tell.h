/* What the ranks of a new communicator tell each other when all are able (join.c): first their versions and settings,
 * and if any differs, all of them stay raw; then what they need of each other to share memory and to watch each other.
 * NCCL moves it, for all communicators of a group together. */
#ifndef STRAIT_COLLECTIVE_ENGINE_TELL_H
#define STRAIT_COLLECTIVE_ENGINE_TELL_H

#include "collective/engine/member.h"

struct hello;

/* A communicator that is joining. */
struct joining {
    struct coll_joining *what;
    struct coll_member *member; /* NULL: no memory even for that */
    struct hello *told;         /* in the GPU's memory: of all ranks, then of this one */
    coll_comm voted;            /* a communicator of those that are able */
    bool able;
};

/* GPU memory that a rank's part of `told` takes, here and when ranks reach each other (peer.h). */
size_t tell_bytes(void);

/* Calls `what` for all that are able, each with its GPU current; those for which it returns false are not able. */
void joining_each(struct joining *joinings, unsigned count, bool (*what)(struct joining *));
/* Precondition: of each communicator all ranks are able, or none is. Those that are able afterwards have the same
 * version and settings, share memory with their host and are connected to others; else `why` tells what was wrong. */
void tell_all(struct joining *joinings, unsigned count, const struct coll_table *nccl);

#endif
