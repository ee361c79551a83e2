/* Ranks whose communicators do not block, for tests of how they join. */
#ifndef STRAIT_TESTS_COLL_ENGINE_LAZY_H
#define STRAIT_TESTS_COLL_ENGINE_LAZY_H

#include "tests/coll_engine/harness.h"

enum { LAZY_COUNT = 60001, LAZY_LONG_MS = 30000 };

struct lazy_buffers {
    uint8_t *own, *all;
};

extern coll_id lazy_id; /* of all ranks */

/* Asks for errors until it is no longer in progress, as a program has to before it goes on. */
void lazy_settle(coll_comm comm, coll_result result);
/* The communicator of this rank, as soon as the call returns, or when it is ready. */
void lazy_make(struct rank *rank);
void lazy_begin(struct rank *rank);
void lazy_end(struct rank *rank);
/* Starts the ranks, with STRAIT_COLL=compress unless it is set; afterwards nothing may be left. */
void lazy_run(int ranks, void (*body)(struct rank *), void *argument);

/* An all_gather of LAZY_COUNT values: what it needs, the call alone, its result, which frees the buffers; all of it. */
struct lazy_buffers lazy_buffers(const struct rank *rank);
coll_result lazy_ask(struct rank *rank, const struct lazy_buffers *buffers);
void lazy_check(const struct rank *rank, struct lazy_buffers *buffers);
void lazy_gather(struct rank *rank);

void lazy_require_told(struct rank *rank, const char *operation, unsigned long long calls,
                       unsigned long long compressed);

#endif
