/* NCCL for callers that cannot go on before their work is on a stream. With communicators that do not block, NCCL may
 * return that a call is in progress; these functions then ask until it is not. Groups, and what the library puts into
 * them, are wrapped so; all else is NCCL's own. */
#ifndef STRAIT_COLLECTIVE_PATIENT_H
#define STRAIT_COLLECTIVE_PATIENT_H

#include "collective/load.h"

/* The functions named pncclX. Any thread. */
const struct coll_table *coll_patient(void);

/* Around ncclCommGetAsyncError, wherever it is called: it completes what was in progress, and NCCL does not support two
 * threads doing so at once, as a watchdog and a waiting thread might. Held for no longer than that call. */
void coll_patient_lock(void);
void coll_patient_unlock(void);

/* Returns `result` or, if that is in progress, its outcome on `comm`: an error also if another thread has ended the
 * communicator meanwhile. */
coll_result coll_patient_await(coll_comm comm, coll_result result);

#endif
