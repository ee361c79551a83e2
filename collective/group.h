#ifndef STRAIT_COLLECTIVE_GROUP_H
#define STRAIT_COLLECTIVE_GROUP_H

#include "collective/comm.h"
#include "collective/engine.h"

/* ---- The calling thread ------------------------------------------------------------------------------------------ */

struct coll_thread {
    unsigned depth;                /* of ncclGroupStart */
    unsigned inside;               /* NCCL calls under way: what arrives now comes from NCCL or a library before it */
    const struct coll_table *nccl; /* where the current call goes on to */
};

extern _Thread_local struct coll_thread coll_thread;

/* Calls NCCL from a hook, and yields the result. */
#define COLL_NCCL(invocation) (coll_thread.inside++, coll_leave_nccl(coll_thread.nccl->invocation))

static inline coll_result coll_leave_nccl(coll_result result)
{
    coll_thread.inside--;
    return result;
}

/* Called once by each thread of ours: NCCL is called by nobody else there. */
void coll_thread_enter(void);

/* ---- Running ----------------------------------------------------------------------------------------------------- */

/* The route of a call, decided once and here alone, by what all ranks hold alike (never addresses, data or time), so
 * that all ranks decide alike. *op is to be run if the route is COMPRESS, and else tells only whether it counts. */
struct coll_decision coll_decide(const struct coll_comm_info *info, const struct coll_call *call, struct coll_op *op);

/* Runs compressed operations: at once, or at the end of their thread's group. */

/* Outside of groups runs the step, else adds it to the group. Releases what it holds when it is over. */
coll_result coll_run(const struct coll_op *step);

/* For group.c. One of the engine's parts for these steps, all of which may be none; refused if one of their
 * communicators has ended or failed. */
typedef coll_result coll_part(struct coll_op *steps, unsigned count);
coll_result coll_run_stage(coll_part *what, struct coll_op *steps, unsigned count);
/* One phase of steps that are not cut, in a group of ours: encode, what `move` does, decode. */
coll_result coll_run_moved(struct coll_op *steps, unsigned count, coll_part *move);
/* The phases behind the first one, of those that have more. Changes the order of steps. */
coll_result coll_run_later_phases(struct coll_op *steps, unsigned count);

/* The call is done with it (coll_track_hold; may be NULL). */
void coll_run_release(struct coll_comm_entry *held);

/* Likewise of a communicator that is destroyed or aborted: in a group, NCCL ends it when the group does. Until then its
 * work may go on, and so may that of others which the group aborts, and freeing memory of the GPU waits for all of it.
 * So in a group coll_run_release_all releases it, when the outermost group of this thread has ended. */
void coll_run_release_ended(struct coll_comm_entry *held);
void coll_run_release_all(void);

/* What the calling thread's group holds back until it ends.
 *
 * NCCL moves the collectives of a group first, then its sends and receives, each in the order of the calls, and it
 * makes sends and receives of all_to_all, gather and scatter. Ranks may group their calls differently, so what is
 * compressed has to come in this order, and so does what goes raw beside it. NCCL also starts when all streams of a
 * group have come to it, and none goes on before it has ended. */

/* A call in a group, on a communicator that compresses. */
void coll_group_note(const struct coll_call *call);

/* A call of route DEFER. */
coll_result coll_group_keep(const struct coll_call *call);

/* A step that is to be run. False: no memory. It is released when the group has ended. */
bool coll_group_add(const struct coll_op *step);
/* A step that goes raw: whether it has to be kept, because it counts and the group may come to nothing. */
bool coll_group_counts(const struct coll_op *step);

/* A call of the group was refused. NCCL then does nothing of the group, and its end is an error. */
void coll_group_fail(coll_result result);

/* Called before and after NCCL ends the outermost group of this thread; `ended` is NCCL's result. All is forgotten
 * afterwards. */
coll_result coll_group_before_end(void);
coll_result coll_group_after_end(coll_result ended);
/* Called before NCCL only simulates that end: hands it the raw calls that were kept, and nothing of the steps. */
coll_result coll_group_before_simulation(void);

#endif
