/* Operations that are compressed: at once, or with the end of their thread's group. */
#ifndef STRAIT_COLLECTIVE_RUN_H
#define STRAIT_COLLECTIVE_RUN_H

#include "collective/engine.h"

/* Outside of groups runs it, else keeps it; releases what it holds when it is over. */
coll_result coll_run(const struct coll_step *step);

/* Before NCCL ends the outermost group of this thread, and after; `ended` is what that returned. What was kept is
 * forgotten then. */
coll_result coll_run_before_end(void);
coll_result coll_run_after_end(coll_result ended);
void coll_run_forget(void);

/* A call has no more to do with it (coll_track_hold; may be NULL). */
void coll_run_release(struct coll_tracked *held);

#endif
