/* Steps of levels (kinds.h) that ranks on several hosts take together. The copy that wants one asks all others, by
 * their connections. Each promises: no operation of the kind from this one on is begun before the step has come. The
 * step is from the last of these operations on, so nobody has begun one that it is for; and who would, waits as long as
 * an answer takes, which other threads give. That is rare: there are KINDS_AHEAD operations until then. */
#ifndef STRAIT_COLLECTIVE_ENGINE_AGREE_H
#define STRAIT_COLLECTIVE_ENGINE_AGREE_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/engine/frame.h"

struct coll_member;

/* By kind, in the process of the rank that decides. */
struct agreement {
    uint64_t missing; /* a bit for each rank that has not promised; 0: nobody was asked */
    uint64_t from;    /* the last of the promises so far */
};

struct agree {
    struct coll_member *member;
    struct agreement *kinds;
    uint64_t seen; /* of kinds.wanted */
    uint64_t gone; /* a bit for each rank */
    /* A frame to a rank on another host. False: no memory. */
    bool (*say)(void *speaker, int peer, const struct frame *frame);
    void *speaker;
};

/* False: no memory. */
bool agree_begin(struct agree *agree, struct coll_member *member);
void agree_end(struct agree *agree);

/* Asks for what is wanted by now. False: no memory. */
bool agree_ask(struct agree *agree);
/* What another rank has said. False: it is not in order. */
bool agree_hear(struct agree *agree, int peer, const struct frame *frame);
/* It begins nothing any more, and decides nothing. False: no memory. */
bool agree_without(struct agree *agree, int peer);

#endif
