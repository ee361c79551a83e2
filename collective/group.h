/* Groups of NCCL calls: the state of the calling thread, the route of a call, and the ops and calls that a group defers
 * to its end.
 *
 * NCCL moves the collectives of a group first, then its sends and receives, each in the order of the calls, and it
 * makes sends and receives of all_to_all, gather and scatter. Ranks may group their calls differently, so compressed
 * ops have to be issued in this order, and so do the raw calls beside them. NCCL also starts when all streams of a
 * group have reached it, and none goes on before it has ended. */
#ifndef STRAIT_COLLECTIVE_GROUP_H
#define STRAIT_COLLECTIVE_GROUP_H

#include "collective/comm.h"
#include "collective/engine.h"

/* ---- The calling thread ------------------------------------------------------------------------------------------ */

struct coll_thread {
    unsigned depth;   /* of ncclGroupStart */
    unsigned in_nccl; /* > 0: NCCL or the engine is working for this thread; its calls are not intercepted */
    const struct coll_table *nccl; /* the functions that the intercepted call goes on to: ncclX or pncclX */
};

extern _Thread_local struct coll_thread coll_thread;

/* Calls NCCL from a hook, and yields the result. */
#define COLL_NCCL(invocation) (coll_thread.in_nccl++, coll_leave_nccl(coll_thread.nccl->invocation))

static inline coll_result coll_leave_nccl(coll_result result)
{
    coll_thread.in_nccl--;
    return result;
}

/* Called once by each thread of the engine, whose calls are never intercepted. */
void coll_thread_enter(void);

/* ---- Routes ------------------------------------------------------------------------------------------------------ */

/* The route of a call, decided once and only here, by what all ranks hold alike (never addresses, data or time), so
 * that all ranks decide alike. Route COMPRESS: *op is to be run. Other routes: *op says only whether it counts in its
 * class. */
struct coll_decision coll_decide(const struct coll_comm_info *info, const struct coll_call *call, struct coll_op *op);

/* ---- Ops --------------------------------------------------------------------------------------------------------- */

/* Runs an op, or adds it to the thread's group. Releases op->held when the op is over. */
coll_result coll_op_run(const struct coll_op *op);

/* Gives back an entry of coll_comm_get (NULL is allowed). The last holder of one that was removed makes its
 * communicator leave. */
void coll_release(struct coll_comm_entry *held);

/* The same for a communicator that is destroyed or aborted. In a group, NCCL ends it only when the group does, and
 * until then its work may go on, for which freeing GPU memory would wait: coll_release_all, called when the outermost
 * group of this thread has ended, then releases it. */
void coll_release_after_group(struct coll_comm_entry *held);
void coll_release_all(void);

/* ---- The group of the calling thread ----------------------------------------------------------------------------- */

/* Notes the stream of a call on a communicator that compresses. */
void coll_group_note(const struct coll_call *call);

/* Defers a call of route DEFER. */
coll_result coll_group_keep(const struct coll_call *call);

/* Keeps a raw op that counts in its class, as the count is undone if the group fails. False: nothing was kept. */
bool coll_group_counts(const struct coll_op *op);

/* A call of the group was refused: NCCL issues nothing of the group, and its end is an error. */
void coll_group_fail(coll_result result);

/* Called before and after NCCL ends the outermost group of this thread; `ended` is NCCL's result. The state of the
 * group is empty afterwards. */
coll_result coll_group_before_end(void);
coll_result coll_group_after_end(coll_result ended);
/* Called before NCCL only simulates that end: passes the deferred raw calls on, and drops the ops. */
coll_result coll_group_before_simulation(void);

#endif
