/* Runs compressed operations: at once, or at the end of their thread's group. */
#ifndef STRAIT_COLLECTIVE_RUN_H
#define STRAIT_COLLECTIVE_RUN_H

#include "collective/engine.h"

/* Outside of groups runs the step, else keeps it. Releases what it holds when it is over. */
coll_result coll_run(const struct coll_step *step);

/* Whether a call that goes raw has to be kept, too: one rank's sends to another have to come in the order of their
 * calls, as the other side may receive them in other groups, and those that are compressed go when the group ends. */
bool coll_run_has_to_wait(const struct coll_call *call);
coll_result coll_run_keep(const struct coll_call *call);

/* A step that goes raw: whether it has to be kept, because it counts and its group may only be simulated. */
bool coll_run_counts(const struct coll_step *step);

/* Called before and after NCCL ends the outermost group of this thread; `ended` is NCCL's result. Kept steps are
 * forgotten afterwards. */
coll_result coll_run_before_end(void);
coll_result coll_run_after_end(coll_result ended);
/* Called before NCCL only simulates that end: hands it the raw calls that were kept, and nothing of the steps. */
coll_result coll_run_before_simulation(void);

/* The call is done with it (coll_track_hold; may be NULL). */
void coll_run_release(struct coll_tracked *held);

/* Likewise of a communicator that is destroyed or aborted: in a group, NCCL ends it when the group does. Until then its
 * work may go on, and so may that of others which the group aborts, and freeing memory of the GPU waits for all of it.
 * So in a group coll_run_release_all releases it, when the outermost group of this thread has ended. */
void coll_run_release_ended(struct coll_tracked *held);
void coll_run_release_all(void);

#endif
