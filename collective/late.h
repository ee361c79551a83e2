/* Communicators that do not block: NCCL makes them while the program goes on, and asks for what they are doing
 * (ncclCommGetAsyncError) until they are ready. They say that they are there as they are being made, which waits for
 * no other rank: so all have said it when NCCL has made them, however long a rank has something else to do then. They
 * join with their first collective that is in no group and not captured: what all ranks come to, and where NCCL waits
 * for them, too. Until then they are raw; ranks compare how far they are by then. */
#ifndef STRAIT_COLLECTIVE_LATE_H
#define STRAIT_COLLECTIVE_LATE_H

#include "collective/decide.h"
#include "collective/meeting.h"

/* Of one that has not joined yet; it belongs to what is known of the communicator (track.h). */
struct coll_late;

/* It is being made, and is known already. */
void coll_late_begin(coll_comm comm, const struct coll_key *key);
/* It has been found ready. */
void coll_late_ready(coll_comm comm);
/* A call comes, which may be the one that joins. *standing, which holds the communicator, is renewed. False: it is gone
 * meanwhile, and nothing is held. */
bool coll_late_call(const struct coll_call *call, struct coll_standing *standing);
void coll_late_end(struct coll_late *late);

/* What NCCL tells, which may be asked only when the communicator is ready; else -1. */
void coll_ask_ranks(coll_comm comm, int *rank, int *ranks);

#endif
