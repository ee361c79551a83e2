/* Processes of this machine that are ranks of a bench: started, synchronised and ended together. */
#ifndef STRAIT_BENCH_RANKS_H
#define STRAIT_BENCH_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RANKS_PROCESSES_MAX 64u

/* In memory that the ranks share, zeroed. */
struct ranks_barrier {
    _Atomic bool failed;              /* a rank has failed: the others give up when they notice */
    _Atomic uint32_t arrived, passed; /* of a barrier */
};

/* Memory that ranks will share, zeroed; freed by munmap. NULL: there is none, which is on stderr. */
void *ranks_memory(size_t bytes);

/* A barrier of all ranks. False: one has failed. */
bool ranks_wait(struct ranks_barrier *barrier, unsigned ranks);

struct ranks {
    unsigned count;
    uint64_t seconds; /* that they may take (--timeout) */
    struct ranks_barrier *barrier;
    bool (*run)(void *context, unsigned number); /* what a rank does; false: failed, with the error on stderr */
    void (*explain)(void *context);              /* prints where ranks are that do not end; may be NULL */
    void *context;
};

/* Runs all ranks, each in a process of its own, to their end. False: one has failed, did not end in time, or an
 * interrupt came; the error is on stderr, and no process is left. */
bool ranks_run(const struct ranks *ranks);

#endif
