/* Calls for the NCCL transport without NCCL and without a GPU: memory is the host's, a communicator is a thread and a
 * unix socket to the other rank, of this process or of another one, and a stream is what its thread has begun and not
 * ended. It is as little forgiving as the real one: what runs goes on until it is over or aborted, a peer that is gone
 * is not noticed, and calls that the interface does not allow end the program. */
#ifndef STRAIT_TESTS_FAKE_NCCL_H
#define STRAIT_TESTS_FAKE_NCCL_H

#include <stdatomic.h>
#include <stdint.h>

#include "transport/nccl.h"
#include "transport/nccl_calls.h"

#define FAKE_NCCL_LIBRARY 22809u
#define FAKE_NCCL_LATE    "the fake failed behind our backs"
#define FAKE_NCCL_REFUSED "the fake refused"

/* What the tests tell it. Operations and communicators are counted over the process, from 1; 0: none. */
struct fake_nccl {
    _Atomic uint32_t delay_us;       /* every operation takes so much longer */
    _Atomic uint32_t posting_us;     /* so long a send or receive is BUSY */
    _Atomic uint32_t fail_operation; /* this one is refused */
    _Atomic uint32_t late_operation; /* with this one the communicator fails */
    _Atomic uint32_t hang_operation; /* this one, and all after it, never end */
    _Atomic uint32_t fail_id;        /* set: no id can be made */
    _Atomic uint32_t fail_join;      /* this communicator is refused */
    _Atomic uint32_t hang_join;      /* set: none comes up */
    _Atomic uint32_t stuck;          /* set: aborted streams do not drain */
    _Atomic uint32_t multiprocessors;
    _Atomic uint32_t same_gpu; /* set: memory of all who ask is on one */
    /* Counted. */
    _Atomic uint32_t operations, joined, aborted;
    _Atomic uint32_t live; /* communicators, streams and events */
};

extern struct fake_nccl fake_nccl;
extern const struct nccl_calls fake_nccl_calls;

void fake_nccl_reset(void); /* as at first */

/* The same, and transports of this process use it from now on. */
static inline void fake_nccl_use(void)
{
    fake_nccl_reset();
    nccl_use_calls(&fake_nccl_calls);
}

#endif
