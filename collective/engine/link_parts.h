/* What a link and the thread that carries share. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LINK_PARTS_H
#define STRAIT_COLLECTIVE_ENGINE_LINK_PARTS_H

#include "collective/engine/agree.h"
#include "collective/engine/carry.h"

/* While `carried`, the carrier's lock protects the fields below it. */
struct link {
    struct coll_member *member;
    int listener; /* -1: no more connections are awaited */
    int peers;    /* number of ranks that it is connected to */
    bool carried; /* the thread was given the link and has not dropped it */
    struct link *next;
    struct agree agree;
    bool finished;          /* link_finish was called */
    bool lost;              /* a rank has gone without leaving: the communicator has failed */
    bool starved;           /* no memory */
    struct carry carries[]; /* by rank */
};

/* Carries what it can. True: there was something. */
bool link_turn(struct link *link);

#endif
