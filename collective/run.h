/* Runs compressed operations: at once, or at the end of their thread's group. */
#ifndef STRAIT_COLLECTIVE_RUN_H
#define STRAIT_COLLECTIVE_RUN_H

#include "collective/engine.h"

/* Outside of groups runs the step, else adds it to the group. Releases what it holds when it is over. */
coll_result coll_run(const struct coll_step *step);

/* For group.c. One of the engine's parts for these steps, all of which may be none; refused if one of their
 * communicators has ended or failed. */
typedef coll_result coll_part(struct coll_step *steps, unsigned count);
coll_result coll_run_part(coll_part *what, struct coll_step *steps, unsigned count);
/* One phase of steps that are not cut, in a group of ours: encode, what `move` does, decode. */
coll_result coll_run_moved(struct coll_step *steps, unsigned count, coll_part *move);
/* The phases behind the first one, of those that have more. Changes the order of steps. */
coll_result coll_run_later_phases(struct coll_step *steps, unsigned count);

/* The call is done with it (coll_track_hold; may be NULL). */
void coll_run_release(struct coll_tracked *held);

/* Likewise of a communicator that is destroyed or aborted: in a group, NCCL ends it when the group does. Until then its
 * work may go on, and so may that of others which the group aborts, and freeing memory of the GPU waits for all of it.
 * So in a group coll_run_release_all releases it, when the outermost group of this thread has ended. */
void coll_run_release_ended(struct coll_tracked *held);
void coll_run_release_all(void);

#endif
