/* Communicators that do not block: NCCL makes them while the program goes on, and the program asks for their state
 * (ncclCommGetAsyncError) until they are ready. A rank says that it is there while NCCL makes the communicator, which
 * waits for no other rank. So all ranks have said it by the time that NCCL has made it, even if one is busy with
 * something else afterwards. They join with their first collective that is in no group and not captured: all ranks come
 * to it, and NCCL waits for them there, too. Until then they are raw; then ranks compare how far they are. */
#ifndef STRAIT_COLLECTIVE_LATE_H
#define STRAIT_COLLECTIVE_LATE_H

#include "collective/decide.h"
#include "collective/meeting.h"

/* State of a communicator that has not joined yet; owned by its entry in track.h. */
struct coll_late;

/* The communicator is being made, and is known already. */
void coll_late_begin(coll_comm comm, const struct coll_key *key);
/* It has been found ready. */
void coll_late_ready(coll_comm comm);
/* Called with each call, which may be the one that joins. Renews *standing, which holds the communicator. False: the
 * communicator has gone meanwhile, and nothing is held. */
bool coll_late_call(const struct coll_call *call, struct coll_standing *standing);
void coll_late_end(struct coll_late *late);

/* NCCL's answer, which may be asked for only if the communicator is ready; else -1. */
void coll_ask_ranks(coll_comm comm, int *rank, int *ranks);

#endif
