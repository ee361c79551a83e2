/* The NCCL calls of the NCCL transport, without NCCL and without a GPU: memory is host memory, a communicator is a
 * thread and a unix socket to the other rank, in this process or another, and a stream is the work that the thread has
 * begun and not ended. It is as unforgiving as the real one: work runs until it is complete or aborted, a dead peer is
 * not noticed, and calls that the interface does not allow abort the program. */
#ifndef STRAIT_TESTS_FAKE_NCCL_H
#define STRAIT_TESTS_FAKE_NCCL_H

#include <stdatomic.h>
#include <stdint.h>

#include "transport/nccl.h"
#include "transport/nccl_calls.h"

#define FAKE_NCCL_LIBRARY 22809u
#define FAKE_NCCL_LATE    "the fake failed behind our backs"
#define FAKE_NCCL_REFUSED "the fake refused"

/* Controls for the tests. Operations and communicators are numbered per process, from 1; 0: none. */
struct fake_nccl {
    _Atomic uint32_t delay_us;       /* every operation takes this much longer */
    _Atomic uint32_t posting_us;     /* a send or receive is BUSY for this time */
    _Atomic uint32_t fail_operation; /* this operation is refused */
    _Atomic uint32_t late_operation; /* this operation makes the communicator fail */
    _Atomic uint32_t hang_operation; /* this operation, and all after it, never end */
    _Atomic uint32_t fail_id;        /* set: no id can be made */
    _Atomic uint32_t fail_join;      /* this communicator is refused */
    _Atomic uint32_t hang_join;      /* set: no communicator comes up */
    _Atomic uint32_t stuck;          /* set: aborted streams do not drain */
    _Atomic uint32_t multiprocessors;
    _Atomic uint32_t same_gpu; /* set: all memory is reported to be on one GPU */
    /* Counted. */
    _Atomic uint32_t operations, joined, aborted;
    _Atomic uint32_t live; /* communicators, streams and events */
};

extern struct fake_nccl fake_nccl;
extern const struct nccl_calls fake_nccl_calls;

void fake_nccl_reset(void); /* to the initial state */

/* Resets it, and makes transports of this process use it from now on. */
static inline void fake_nccl_use(void)
{
    fake_nccl_reset();
    nccl_use_calls(&fake_nccl_calls);
}

#endif
