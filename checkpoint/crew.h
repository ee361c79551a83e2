/* Threads that take jobs of a list until none is left. */
#ifndef STRAIT_CHECKPOINT_CREW_H
#define STRAIT_CHECKPOINT_CREW_H

#include <stdbool.h>
#include <stdint.h>

#define CREW_THREADS_MAX     64u
#define CREW_THREADS_DEFAULT 16u

/* Number of threads for an option: 0 is one for each processor this process may run on, at most CREW_THREADS_DEFAULT.
 */
uint32_t crew_threads(uint32_t asked);

/* What the threads do. Each makes a state before its first job, with `open`, and ends it with `close`; both may be
 * NULL. A thread whose state cannot be made (NULL) takes no job. */
struct crew_work {
    void *(*open)(void *context);
    void (*close)(void *context, void *state);
    void (*run)(void *context, void *state, uint64_t job);
    void *context;
};

/* Runs jobs 0..count-1, in about this order, in at most `threads` threads, and waits for their end. The caller's own
 * thread, which may have a device of its own current, takes none unless no other can be started. False: there are jobs
 * that no thread took, as no state could be made. */
bool crew_run(const struct crew_work *work, uint64_t count, uint32_t threads);

#endif
