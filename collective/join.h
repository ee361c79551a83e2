/* Joining of communicators: the ranks agree by a rendezvous (rendezvous.h) that all of them are able to compress, and
 * set up the engine together (engine.h). Communicators that block join as they are made, others lazily. */
#ifndef STRAIT_COLLECTIVE_JOIN_H
#define STRAIT_COLLECTIVE_JOIN_H

#include "collective/comm.h"
#include "collective/engine.h"
#include "collective/rendezvous.h"

/* A communicator that is joining. */
struct coll_joiner {
    struct coll_join_args *args;
    struct coll_rdv *rdv;
    struct coll_comm_entry *held; /* not NULL: a lazy join; only then are the fields below used */
    uint32_t index, paired;       /* fields of its ballot */
};

/* Joins the communicators, all of them ready, that one call or the end of one group has made; `keys` are theirs. */
void coll_join(struct coll_join_args *joins, const struct coll_key *keys, unsigned count);

/* ---- Lazy joins -------------------------------------------------------------------------------------------------- */

/* Communicators with config.blocking = 0. NCCL makes them while the program goes on and polls ncclCommGetAsyncError.
 * Each rank posts its presence while NCCL makes the communicator, waiting for nobody, so that all ranks have done so
 * when NCCL is ready. They join in the first collective that is ungrouped and not captured, which all ranks reach, as
 * NCCL waits for them there too. Until then they are raw, and ranks whose numbers of raw operations differ then stay
 * raw. */

/* The communicator is in the registry, and NCCL is making it. */
void coll_lazy_join_begin(coll_comm comm, const struct coll_key *key);
/* ncclCommGetAsyncError has found the communicator ready. */
void coll_lazy_join_ready(coll_comm comm);
/* Called before each operation, which may be the one that joins. Renews *info, which holds the communicator. False: the
 * communicator was removed meanwhile, and nothing is held. */
bool coll_lazy_join_call(const struct coll_call *call, struct coll_comm_info *info);

/* Asks NCCL, which may be done only if the communicator is ready; -1: not known. */
void coll_query_ranks(coll_comm comm, int *rank, int *ranks);

#endif
