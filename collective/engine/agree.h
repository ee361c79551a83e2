/* Steps of levels (kinds.h) that ranks on several hosts take together. The copy that wants a step asks all others, over
 * their connections. Each promises an operation number: none of the kind from that one on begins before the step has
 * come. The step takes effect from the highest of these numbers on, so nobody has begun an operation that it applies
 * to. A rank that gets there too early waits for as long as an answer takes, which other threads give; that is rare,
 * since there are KINDS_AHEAD operations until then. */
#ifndef STRAIT_COLLECTIVE_ENGINE_AGREE_H
#define STRAIT_COLLECTIVE_ENGINE_AGREE_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/engine/frame.h"

struct coll_member;

/* One for each kind, in the process of the rank that decides. */
struct agreement {
    uint64_t missing; /* a bit for each rank that has not promised yet; 0: nobody was asked */
    uint64_t from;    /* the highest number promised so far */
};

struct agree {
    struct coll_member *member;
    struct agreement *kinds;
    uint64_t seen; /* value of kinds.wanted that was handled */
    uint64_t gone; /* a bit for each rank that has gone */
    /* Sends a frame to a rank on another host. False: no memory. */
    bool (*say)(void *speaker, int peer, const struct frame *frame);
    void *speaker;
};

/* False: no memory. */
bool agree_begin(struct agree *agree, struct coll_member *member);
void agree_end(struct agree *agree);

/* Asks for all steps wanted by now. False: no memory. */
bool agree_ask(struct agree *agree);
/* Handles a frame from another rank. False: it is invalid. */
bool agree_hear(struct agree *agree, int peer, const struct frame *frame);
/* The peer has gone: it begins no operation and decides nothing any more. False: no memory. */
bool agree_without(struct agree *agree, int peer);

#endif
