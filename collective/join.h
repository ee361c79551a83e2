#ifndef STRAIT_COLLECTIVE_JOIN_H
#define STRAIT_COLLECTIVE_JOIN_H

#include "collective/comm.h"
#include "collective/engine.h"
#include "collective/rendezvous.h"

/* Joining of communicators: ranks find out whether all of them are able to compress (meeting.h), and together make what
 * that takes (engine.h). Communicators that block join as they are made, others later (late.h). */

/* A communicator on its way to joining. */
struct coll_joiner {
    struct coll_join_args *args;
    struct coll_rdv *rdv;
    struct coll_comm_entry *held; /* set if it does not block; only then are the fields below used */
    uint32_t index, paired;       /* what it says, as in struct coll_word (board.h) */
};

/* Joins communicators that were just made and are ready, all those that one group's end has made; `keys` are theirs. */
void coll_join(struct coll_join_args *joinings, const struct coll_key *keys, unsigned count);

/* The two parts of joining: coll_join_come says that this rank is there, and waits for no other; coll_join_meet does
 * the rest. Those that have come leave the meeting there. */
void coll_join_enter(struct coll_joiner *joiner, const struct coll_key *key);
void coll_join_complete(struct coll_joiner *joiners, unsigned count);

/* Makes the result known; `held` for a communicator that does not block, else NULL. */
void coll_join_publish(const struct coll_join_args *args, struct coll_comm_entry *held);

/* Communicators that do not block: NCCL makes them while the program goes on, and the program asks for their state
 * (ncclCommGetAsyncError) until they are ready. A rank says that it is there while NCCL makes the communicator, which
 * waits for no other rank. So all ranks have said it by the time that NCCL has made it, even if one is busy with
 * something else afterwards. They join with their first collective that is in no group and not captured: all ranks come
 * to it, and NCCL waits for them there, too. Until then they are raw; then ranks compare how far they are. */

/* The communicator is being made, and is known already. */
void coll_lazy_join_begin(coll_comm comm, const struct coll_key *key);
/* It has been found ready. */
void coll_lazy_join_ready(coll_comm comm);
/* Called with each call, which may be the one that joins. Renews *standing, which holds the communicator. False: the
 * communicator has gone meanwhile, and nothing is held. */
bool coll_lazy_join_call(const struct coll_call *call, struct coll_comm_info *info);

/* NCCL's answer, which may be asked for only if the communicator is ready; else -1. */
void coll_query_ranks(coll_comm comm, int *rank, int *ranks);

#endif
