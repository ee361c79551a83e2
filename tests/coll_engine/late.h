/* Ranks whose communicators do not block, for tests of how they join. */
#ifndef STRAIT_TESTS_COLL_ENGINE_LATE_H
#define STRAIT_TESTS_COLL_ENGINE_LATE_H

#include "tests/coll_engine/harness.h"

enum { LATE_COUNT = 60001, LATE_LONG_MS = 30000 };

struct late_buffers {
    uint8_t *own, *all;
};

extern coll_id late_id; /* of all ranks */

/* Asks for errors until it is no longer in progress, as a program has to before it goes on. */
void late_settle(coll_comm comm, coll_result result);
/* The communicator of this rank, as soon as the call returns, or when it is ready. */
void late_make(struct rank *rank);
void late_begin(struct rank *rank);
void late_end(struct rank *rank);
/* Starts the ranks, with STRAIT_COLL=compress unless it is set; afterwards nothing may be left. */
void late_run(int ranks, void (*body)(struct rank *), void *argument);

/* An all_gather of LATE_COUNT values: what it needs, the call alone, its result, which frees the buffers; all of it. */
struct late_buffers late_buffers(const struct rank *rank);
coll_result late_ask(struct rank *rank, const struct late_buffers *buffers);
void late_check(const struct rank *rank, struct late_buffers *buffers);
void late_gather(struct rank *rank);

void late_require_told(struct rank *rank, const char *operation, unsigned long long calls,
                       unsigned long long compressed);

#endif
