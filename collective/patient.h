/* NCCL for who cannot go on before it has put on a stream what it was asked for: of communicators that do not block it
 * may say that this is in progress, and is asked then until it is not. Groups and what the engine puts into them are
 * so; all else is NCCL's own. */
#ifndef STRAIT_COLLECTIVE_PATIENT_H
#define STRAIT_COLLECTIVE_PATIENT_H

#include "collective/load.h"

/* By the names pncclX. Any thread. */
const struct coll_table *coll_patient(void);

/* Around ncclCommGetAsyncError, wherever it is called: it ends what was in progress, and NCCL is not made for two
 * threads that do so at once, as a watchdog and who waits may. Held for no longer than that. */
void coll_patient_lock(void);
void coll_patient_unlock(void);

/* `result`, or when that is in progress what became of it on `comm`. An error, too, when another thread has ended it
 * meanwhile. */
coll_result coll_patient_await(coll_comm comm, coll_result result);

#endif
