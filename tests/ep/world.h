/* Ranks of a group as threads or processes of a test, and their all_gather. */
#ifndef STRAIT_TESTS_EP_WORLD_H
#define STRAIT_TESTS_EP_WORLD_H

#include <strait/ep.h>

#include "tests/support.h"

enum { WORLD_GATHER_BYTES = 4096 };

/* In memory that all ranks share. */
struct world {
    uint32_t ranks;
    uint32_t arrived, turn; /* of an all_gather */
    uint8_t gathered[2][STRAIT_EP_RANKS_MAX][WORLD_GATHER_BYTES];
    uint64_t words[STRAIT_EP_RANKS_MAX]; /* for the test */
};

/* One rank's; `context` is the test's. */
struct member {
    struct world *world;
    uint32_t rank;
    const void *context;
};

typedef void member_run(struct member *member);

/* Runs all ranks and waits for them. Of processes: one that is killed by SIGKILL is no failure, any other end but
 * exit(0) is. */
void world_run(uint32_t ranks, bool processes, member_run *run, const void *context);
/* Of processes, which are told that they are on so many hosts, ranks in a row on each. */
void world_run_hosts(uint32_t ranks, uint32_t hosts, member_run *run, const void *context);

/* all_gather of a member: strait_ep_config.context is the member. */
int world_gather(void *member, const void *send, void *receive, size_t bytes);

/* All ranks have come here. */
void world_barrier(struct member *member);

/* A configuration of a group with this member's rank and all_gather; other fields are the test's. */
struct strait_ep_config world_config(struct member *member);

#endif
