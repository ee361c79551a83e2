/* Ranks as threads of a test, with communicators of the fake NCCL behind libstrait-coll. */
#ifndef STRAIT_TESTS_COLL_ENGINE_HARNESS_H
#define STRAIT_TESTS_COLL_ENGINE_HARNESS_H

#include <check.h>

#include "collective/api.h"
#include "collective/reduce.h"
#include "tests/coll_engine/values.h"
#include "tests/collective/fake_nccl.h"
#include "tests/fakes/gpu.h"
#include "tests/support.h"

#define require_ok(call) require((call) == COLL_SUCCESS)

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/* One rank, in a thread of its own, whose device is the one with its number. */
struct rank {
    int rank, ranks;
    coll_id id; /* of the communicator that rank_begin makes; the same on all ranks */
    coll_comm comm;
    coll_stream stream;
    void *argument;
    struct memory *memory; /* what values_new has allocated, freed when the rank's body returns; copies share it */
};

/* Runs `body` on all ranks at once, between rank_begin and rank_end. Afterwards no memory, stream or event of a GPU may
 * be left. Settings of the library are what the environment has at the first call of a process: a test sets them
 * before. STRAIT_COLL is `compress` unless a test says otherwise. */
void ranks_run(int ranks, void (*body)(struct rank *), const void *argument);
void ranks_run_with_id(const coll_id *id, int ranks, void (*body)(struct rank *), const void *argument);
/* The same for ranks that call rank_begin, and rank_end or rank_abort, themselves; with an id that the test has made.
 */
void ranks_start(int ranks, void (*body)(struct rank *), const void *argument);
void ranks_start_with_id(const coll_id *id, int ranks, void (*body)(struct rank *), const void *argument);
/* The same, where an abort may leave behind what work that still runs has in use. */
void ranks_start_and_leak(int ranks, void (*body)(struct rank *), const void *argument);

void rank_begin(struct rank *rank);
void rank_end(struct rank *rank);
void rank_abort(struct rank *rank);
void ranks_meet(void); /* all of them, at this point */
int rank_next(const struct rank *rank);
int rank_before(const struct rank *rank);

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Memory for `count` values, filled with a constant; values_at: `shift` elements behind a round address. */
void *values_new(const struct rank *rank, int type, size_t count);
void *values_at(const struct rank *rank, int type, size_t count, size_t shift);
void values_free_all(const struct rank *rank);

/* A seed for what a rank sends another: the next sender's is SEED_STEP more, the next receiver's 1 more. */
enum { SEED_STEP = 1000 };
static inline uint64_t seed_of(unsigned turn, int from, int to)
{
    return 1000000 * (uint64_t)turn + SEED_STEP * (uint64_t)from + (uint64_t)to;
}

/* An all_gather. Values of each rank follow from seed and rank; gather_fill draws others and clears what was received.
 */
struct gather {
    int type;
    size_t count;
    enum values kind;
    uint64_t seed;
    uint8_t *own, *all;
};
struct gather gather_new(const struct rank *rank, int type, size_t count, enum values kind);
void gather_fill(const struct rank *rank, struct gather *gather, enum values kind, uint64_t seed);
coll_result gather_post(const struct rank *rank, const struct gather *gather);
void gather_check(const struct rank *rank, const struct gather *gather); /* waits for the stream */
/* Post and check, in a group of its own or in none, also where a nonblocking communicator is in progress first. */
void gather_run(const struct rank *rank, const struct gather *gather, bool grouped);
/* The first all_gather on this communicator, and whether it was compressed. */
void rank_gather(const struct rank *rank, coll_comm comm, bool compressed);

/* Rank 0 sends to rank 1, which receives. */
coll_result pair_post(const struct rank *rank, void *values, int type, size_t count);
/* Every rank sends to the next one and receives from the one before, in one group: what its end returns. */
coll_result ring_post(const struct rank *rank, const void *out, void *in, int type, size_t count);

/* A collective, or a send of each rank to the next one (COLL_SEND). What rank `from` has for rank `to` follows from
 * seed + SEED_STEP * from, and + to where each rank gets another part. */
struct operation {
    enum coll_operation what;
    int type;
    size_t count;
    enum values kind, other;
    unsigned others; /* bits: ranks, of the first 32, whose values are of the other kind */
    uint64_t seed;
    int reduction, root;          /* root: of a broadcast */
    enum coll_reduce_order order; /* of what is expected */
    uint8_t *out, *in;
};
void operation_new(const struct rank *rank, struct operation *operation, size_t shift, bool in_place);
void operation_fill(const struct rank *rank, const struct operation *operation);
coll_result operation_post(const struct rank *rank, const struct operation *operation);
void operation_check(const struct rank *rank, const struct operation *operation); /* waits for the stream */
bool operation_scatters(enum coll_operation what);                                /* each rank gets another part */
bool operation_reduces(enum coll_operation what);

/* ---- What communicators and streams tell ------------------------------------------------------------------------- */

coll_result error_of(coll_comm comm);                   /* as ncclCommGetAsyncError tells */
void comm_settle(coll_comm comm, coll_result result);   /* asks for errors until it is no longer in progress */
void await_error(coll_comm comm);                       /* for 20 s at most */
void await_halted(void);                                /* a thread is held that queues work on a GPU (fake_gpu.halt) */
bool ends_within(coll_stream stream, int milliseconds); /* as a watchdog looks: it does not wait for it */
long now_ms(void);                                      /* of a clock that only goes on */

/* What the report tells of an operation and a type: calls, and those that were compressed, and bytes for these. */
struct told {
    unsigned long long calls, compressed, wire;
    char reason[160];
};
struct told told_of(coll_comm comm, const char *operation, const char *type);
void require_told(coll_comm comm, const char *operation, const char *type, unsigned long long calls,
                  unsigned long long compressed);

/* ---- Links and overlap ------------------------------------------------------------------------------------------- */

/* STRAIT_COLL is `auto`, which measures the links; what NCCL moves takes so long on all devices, and coding hardly
 * anything. */
void links_begin(uint32_t ns, uint32_t fs_per_byte);

/* Coding overlaps with transfer in operations outside of groups whose messages have at least three pages, from the 17th
 * of a class on, over a link that is slow enough. overlap_begin, before ranks start, makes it so slow that one page at
 * each end of a message stays uncompressed; overlap_warm_up issues the first sixteen operations of every class of
 * collectives of the type. Between hosts nothing overlaps. */
enum { OVERLAP_AFTER = 16 };
void overlap_begin(void);
void overlap_warm_up(const struct rank *rank, coll_comm comm, int type);

/* ---- Suites ------------------------------------------------------------------------------------------------------ */

/* tcase_add_loop_test of every third one, of all with STRAIT_TEST_ALL; under sanitizers of every STRIDEth one. Begins
 * elsewhere in each loop. */
void add_loop(TCase *tests, const TTest *test, int from, int until);

/* Adds a test that does nothing but start ranks, by ranks_run or ranks_start: `scenes` times, with a pointer to the
 * number of the scene, from 0 on, as their argument. */
void add_ranks(TCase *tests, const char *name, void (*start)(int, void (*)(struct rank *), const void *),
               void (*body)(struct rank *), int ranks, int scenes);

/* Runs a suite, each test in a process of its own. */
int suite_run(const char *name, TCase *tests);

#endif
