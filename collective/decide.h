/* How an operation goes: through NCCL as called, or compressed. */
#ifndef STRAIT_COLLECTIVE_DECIDE_H
#define STRAIT_COLLECTIVE_DECIDE_H

#include "collective/call.h"

enum coll_route {
    COLL_ROUTE_NCCL,     /* NCCL does it, with the arguments unchanged */
    COLL_ROUTE_DEFER,    /* likewise, when its group ends (group.h) */
    COLL_ROUTE_COMPRESS, /* NCCL moves what a step (engine.h) has made of it */
    COLL_ROUTE_REJECT,   /* another thread has ended its communicator meanwhile */
};

struct coll_ccomm;
struct coll_comm_entry;
struct coll_lazy_join;

/* What is known of a communicator, the same on all of its ranks. */
struct coll_comm_info {
    int rank, ranks;              /* -1: not known */
    int memory;                   /* number of registered buffers and windows */
    bool pinned;                  /* the program has pinned it to raw */
    bool ending;                  /* finalized or revoked */
    struct coll_ccomm *member;    /* NULL: it stays raw */
    const char *why;              /* why it stays raw; static */
    struct coll_lazy_join *late;  /* not NULL: it does not block and has not joined yet */
    struct coll_comm_entry *held; /* of coll_track_hold */
};

struct coll_decision {
    enum coll_route way;
    const char *reason; /* static */
    uint64_t wire;      /* bytes that NCCL was handed, if not those of the call */
};

struct coll_op;

/* A function of what all ranks hold alike, never of addresses, data or time, so all ranks decide alike. COLL_COMPRESS:
 * *step is to be run; else it tells only whether it counts. */
struct coll_decision coll_decide(const struct coll_comm_info *standing, const struct coll_call *call,
                                 struct coll_op *step);

#endif
