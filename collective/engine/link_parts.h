/* Between a link and the thread that carries. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LINK_PARTS_H
#define STRAIT_COLLECTIVE_ENGINE_LINK_PARTS_H

#include "collective/engine/agree.h"
#include "collective/engine/carry.h"

/* What is below `carried` is under the carrier's lock when it is. */
struct link {
    struct coll_member *member;
    int listener; /* -1: nobody is awaited any more */
    int peers;    /* ranks that it is connected to */
    bool carried; /* it was given to the thread, and has not been dropped */
    struct link *next;
    struct agree agree;
    bool finished;          /* link_finish */
    bool lost;              /* a rank has gone that had not left: the communicator has failed */
    bool starved;           /* no memory */
    struct carry carries[]; /* by rank */
};

/* Carries what there is. True: there was something. */
bool link_turn(struct link *link);

#endif
