/* Ranks as threads of a test, with communicators of the fake NCCL behind libstrait-coll. */
#ifndef STRAIT_TESTS_COLL_ENGINE_HARNESS_H
#define STRAIT_TESTS_COLL_ENGINE_HARNESS_H

#include <check.h>

#include "collective/api.h"
#include "tests/coll_engine/values.h"
#include "tests/fakes/gpu.h"
#include "tests/collective/fake_nccl.h"
#include "tests/support.h"

/* One rank, in a thread of its own, whose device is the one with its number. */
struct rank {
    int rank, ranks;
    coll_comm comm;
    coll_stream stream;
    void *argument;
};

/* Makes communicators, runs `body` on all ranks at once, waits for streams, destroys what was made. Settings of the
 * library are what the environment has at the first call of a process: a test sets them before. */
void ranks_run(int ranks, void (*body)(struct rank *), void *argument);

/* The parts of it, for ranks that end in other ways. */
void ranks_start(int ranks, void (*body)(struct rank *), void *argument);
void rank_begin(struct rank *rank, coll_id id);
void rank_end(struct rank *rank);

/* All of them, at this point. */
void ranks_meet(void);

/* An all_gather, the first on this communicator: waits for it and checks what arrived, and whether it was compressed.
 */
void rank_gather(const struct rank *rank, coll_comm comm, bool compressed);

/* Coding overlaps with transfer in operations outside of groups whose messages have at least three pages, from the 17th
 * of a class on, over a link that is slow enough. overlap_begin, before ranks start, makes it so slow that one page at
 * each end of a message stays uncompressed; overlap_warm_up issues the first sixteen operations of every class of
 * collectives of the type. Between hosts nothing overlaps. */
enum { OVERLAP_AFTER = 16 };
void overlap_begin(void);
void overlap_warm_up(const struct rank *rank, coll_comm comm, int type);

/* Of NCCL itself, as a rank without the library calls it. */
struct plain_nccl {
    coll_result (*CommInitRank)(coll_comm *made, int ranks, coll_id id, int rank);
    coll_result (*CommDestroy)(coll_comm comm);
    coll_result (*AllGather)(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                             coll_stream stream);
};
struct plain_nccl plain_nccl(void);
/* A whole rank of them: makes its communicator, calls `then`, does what rank_gather does, and ends beside the others'
 * rank_end. */
void rank_without_library(struct rank *rank, coll_id id, void (*then)(void));

coll_result error_of(coll_comm comm);                   /* as ncclCommGetAsyncError tells */
long now_ms(void);                                      /* of a clock that only goes on */
bool ends_within(coll_stream stream, int milliseconds); /* as a watchdog looks: it does not wait for it */
void await_error(coll_comm comm);                       /* for 20 s at most */

#define require_ok(call) require((call) == COLL_SUCCESS)

/* What the report tells of an operation and a type: calls, and those that were compressed, and bytes for these. */
struct told {
    unsigned long long calls, compressed, wire;
    char reason[160];
};
struct told told_of(coll_comm comm, const char *operation, const char *type);

/* Memory for `count` values, which starts `shift` elements behind a round address and is filled with something. */
void *values_new(int type, size_t count, size_t shift);
void values_free(void *values, int type, size_t shift);

/* tcase_add_loop_test; under sanitizers of every STRIDEth one, beginning elsewhere in each loop. */
void add_loop(TCase *tests, const TTest *test, int from, int until);

/* Runs a suite, each test in a process of its own. */
int suite_run(const char *name, TCase *tests);

#endif
