/* Communicators that fail, are aborted or revoked: waiting ends, nothing but the communicator ends with it, and what a
 * call under way uses is there until the call has ended. */
#include <pthread.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 40001 };

enum {
    SOON_MS = 300,
    CUT_MS = 6000,      /* of 10000 that kernels would wait for others */
    PATIENCE_MS = 20000 /* for what comes to its end on any machine */
};

/* ---- A rank that does not come ----------------------------------------------------------------------------------- */

/* Of rank 1 NCCL moves nothing of what did not fit: rank 0 waits on its stream, and its thread too. */
static struct gather begin_waiting(struct rank *rank, size_t count)
{
    const struct gather gather = gather_new(rank, COLL_BF16, count, VALUES_NOISE);
    ranks_meet();
    fake_gpu.lost = 1u << 1;
    require_ok(gather_post(rank, &gather));
    return gather;
}

/* The same of a broadcast by rank 1. */
static struct gather begin_receiving(struct rank *rank)
{
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NOISE);
    ranks_meet();
    fake_gpu.lost = 1u << 1;
    require_ok(ncclBroadcast(gather.own, gather.all, COUNT_OF, COLL_BF16, 1, rank->comm, rank->stream));
    return gather;
}

/* A second operation is behind the first, and need not wait. */
struct losing {
    bool waits, broadcasts;
};

static void lose_overflow(struct rank *rank)
{
    const struct losing *losing = rank->argument;
    rank_begin(rank);
    const struct gather gather = losing->broadcasts ? begin_receiving(rank) : begin_waiting(rank, COUNT_OF);
    require_ok(gather_post(rank, &gather));
    if (rank->rank == 0 && !losing->waits) {
        require(!ends_within(rank->stream, SOON_MS));
        require(error_of(rank->comm) == COLL_SUCCESS);
    } else if (rank->rank == 0) {
        await_error(rank->comm);
        require(ends_within(rank->stream, PATIENCE_MS));
    }
    ranks_meet();
    rank_abort(rank);
}

START_TEST(abort_ends_waiting_for_overflow)
{
    const struct losing losing = {.broadcasts = _i == 1};
    ranks_start(2, lose_overflow, &losing);
}
END_TEST

/* Nobody waits for ever for a rank that is lost: its watchdog learns of it, though the thread is busy with it. */
START_TEST(waiting_for_overflow_ends_as_an_error)
{
    const struct losing losing = {.waits = true, .broadcasts = _i == 1}; /* for a broadcast as long as for a pair */
    fake_gpu.hurry = _i == 1 ? 1200 : 20;
    ranks_start(2, lose_overflow, &losing);
}
END_TEST

/* However its messages would be cut: the other rank has gone. */
static void post_after_failure(struct rank *rank)
{
    rank_begin(rank);
    if (*(const int *)rank->argument > 0)
        overlap_warm_up(rank, rank->comm, COLL_BF16);
    const struct gather gather = begin_waiting(rank, 8 * 16384);
    if (rank->rank == 0) {
        await_error(rank->comm);
        require(gather_post(rank, &gather) == COLL_REMOTE_ERROR);
        require(ends_within(rank->stream, PATIENCE_MS));
    }
    ranks_meet();
    rank_abort(rank);
}

START_TEST(calls_after_a_failure_fail)
{
    if (_i > 0)
        overlap_begin();
    fake_gpu.hurry = 20;
    ranks_start(2, post_after_failure, &_i);
}
END_TEST

static void post_on_one_rank(struct rank *rank)
{
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    rank_begin(rank);
    if (rank->rank == 0) {
        require_ok(gather_post(rank, &gather));
        require(!ends_within(rank->stream, SOON_MS));
    }
    rank_abort(rank);
}

/* The stream of rank 0 stands still for a reason of its own, and goes on after the abort. */
static atomic_bool gate;

static void wait_at_gate(coll_stream stream, void *argument)
{
    (void)stream;
    (void)argument;
    while (!gate)
        usleep(1000);
}

static void abort_behind_gate(struct rank *rank)
{
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    rank_begin(rank);
    if (rank->rank == 0)
        fake_queue(rank->stream, wait_at_gate, NULL, &rank, sizeof(rank));
    require_ok(gather_post(rank, &gather));
    require_ok(ncclCommAbort(rank->comm));
    ranks_meet();
    gate = true;
    fake_stream_wait(rank->stream);
    fake_stream_end(rank->stream);
}

START_TEST(abort_waits_for_no_other_work)
{
    ranks_start_and_leak(2, abort_behind_gate, NULL);
    require(fake_gpu.made > 0); /* of rank 0 only, whose memory was in use */
}
END_TEST

/* ---- While links are measured ------------------------------------------------------------------------------------ */

/* On rank 1 a launch fails, or it comes too late: all stay raw, and nothing has failed. */
static void stay_raw(struct rank *rank)
{
    rank_begin(rank);
    rank_gather(rank, rank->comm, false);
    rank_end(rank);
}

static const char *const hosts[] = {NULL, "1", "2"};

START_TEST(a_rank_that_fails_while_links_are_measured_keeps_all_raw)
{
    _Atomic uint32_t *fails = _i / (int)COUNT(hosts) == 0 ? &fake_gpu.refuses : &fake_gpu.lost;
    const char *neighbours = hosts[_i % (int)COUNT(hosts)];
    if (neighbours != NULL) {
        setenv("STRAIT_TEST_HOSTS", neighbours, 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    }
    links_begin(0, 10000000);
    *fails = 1u << 1;
    fake_gpu.hurry = 20;
    ranks_start(4, stay_raw, NULL);
}
END_TEST

/* ---- Aborted from another thread --------------------------------------------------------------------------------- */

struct aborting {
    struct rank *rank;
    atomic_bool called; /* the call is under way, but not on the GPU */
};

static void *abort_called(void *argument)
{
    struct aborting *aborting = argument;
    for (int i = 0; !aborting->called; i++) {
        require(i < PATIENCE_MS);
        usleep(1000);
    }
    require_ok(ncclCommAbort(aborting->rank->comm));
    return NULL;
}

static void *abort_halted(void *argument)
{
    struct aborting *aborting = argument;
    await_halted();
    require_ok(ncclCommAbort(aborting->rank->comm)); /* and does not wait for the call */
    require(fake_gpu.made > 0);
    fake_gpu.halt = 0;
    return NULL;
}

static void post_beside_abort(struct rank *rank, bool grouped)
{
    struct aborting aborting = {.rank = rank};
    pthread_t thread;
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    if (!grouped)
        fake_gpu.halt = 1;
    require(pthread_create(&thread, NULL, grouped ? abort_called : abort_halted, &aborting) == 0);
    if (grouped)
        require_ok(ncclGroupStart());
    require((gather_post(rank, &gather) == COLL_SUCCESS) == grouped);
    aborting.called = true;
    require(pthread_join(thread, NULL) == 0);
    if (grouped)
        require(ncclGroupEnd() != COLL_SUCCESS);
    require(ends_within(rank->stream, PATIENCE_MS));
}

/* In the first scene during a call in no group, in the second in an open group. It ends with an error and asks NCCL for
 * nothing any more. */
static void be_aborted(struct rank *rank)
{
    rank_begin(rank);
    ranks_meet();
    if (rank->rank == 0)
        post_beside_abort(rank, *(const int *)rank->argument != 0);
    ranks_meet();
    if (rank->rank != 0)
        require_ok(ncclCommAbort(rank->comm));
    fake_stream_end(rank->stream);
}

/* Freeing memory of a GPU waits for all of its work, such as that of a communicator that is aborted next. */
static void end_in_group(struct rank *rank)
{
    coll_result (*const end)(coll_comm comm) = *(const int *)rank->argument == 0 ? ncclCommAbort : ncclCommDestroy;
    rank_begin(rank);
    rank_gather(rank, rank->comm, true);
    ranks_meet();
    for (int turn = 0; turn < rank->ranks; turn++) {
        if (turn == rank->rank) {
            const int64_t made = fake_gpu.made;
            require_ok(ncclGroupStart());
            require_ok(end(rank->comm));
            require(fake_gpu.made == made);
            require_ok(ncclGroupEnd());
            require(fake_gpu.made < made);
        }
        ranks_meet();
    }
    fake_stream_end(rank->stream);
}

/* ---- Revoked, and shrunk with abort ------------------------------------------------------------------------------ */

/* Rank 0 waits for the overflow of rank 1. */
static struct gather require_waiting(struct rank *rank)
{
    const struct gather gather = begin_waiting(rank, COUNT_OF);
    require(rank->rank == 1 || !ends_within(rank->stream, SOON_MS));
    ranks_meet();
    return gather;
}

/* It is told as no error, and from then on nothing is compressed. */
static void be_revoked(struct rank *rank)
{
    rank_begin(rank);
    const struct gather gather = require_waiting(rank);
    require_ok(ncclCommRevoke(rank->comm, 0));
    require(ends_within(rank->stream, CUT_MS) && error_of(rank->comm) == COLL_SUCCESS);
    require_ok(gather_post(rank, &gather));
    require_told(rank->comm, "all_gather", "bf16", 2, 1);
    rank_abort(rank);
}

/* The child joins anew, and compresses. */
static void be_shrunk(struct rank *rank)
{
    coll_comm child = NULL;
    rank_begin(rank);
    (void)require_waiting(rank);
    const long began = now_ms(); /* what joins may wait for the GPU, too */
    require_ok(ncclCommShrink(rank->comm, NULL, 0, &child, NULL, COLL_SHRINK_ABORT));
    require(ends_within(rank->stream, CUT_MS) && now_ms() - began < CUT_MS && error_of(rank->comm) == COLL_SUCCESS);
    rank_gather(rank, child, true);
    require(error_of(child) == COLL_SUCCESS);
    ranks_meet();
    require_ok(ncclCommDestroy(child));
    rank_abort(rank);
}

/* ---- Bytes that change on their way ------------------------------------------------------------------------------ */

/* In a message: its head (what it begins with, its row, what is needed, its sum), its chunk's header, its tables, its
 * blocks. */
static const uint32_t bad_bytes[] = {0, 3, 12, 16, 32, 33, 95, 96, 104, 128, 129, 140, 1000, 5000};

static void receive_corrupt(struct rank *rank)
{
    uint8_t *values = values_new(rank, COLL_BF16, COUNT_OF);
    rank_begin(rank);
    values_fill(values, COLL_BF16, COUNT_OF, VALUES_NORMAL, 0);
    if (rank->rank == 0) {
        fake_nccl.corrupt_at = bad_bytes[*(const int *)rank->argument / 2];
        fake_nccl.corrupt_least = 4096;
        fake_nccl.corrupt = 1;
    }
    if (*(const int *)rank->argument % 2 == 0)
        require_ok(pair_post(rank, values, COLL_BF16, COUNT_OF));
    else
        require_ok(ncclBcast(values, COUNT_OF, COLL_BF16, 0, rank->comm, rank->stream));
    require(ends_within(rank->stream, CUT_MS)); /* and waits for nobody */
    if (rank->rank == 1)
        await_error(rank->comm);
    else
        require(error_of(rank->comm) == COLL_SUCCESS);
    ranks_meet();
    rank_abort(rank);
}

START_TEST(corrupt_messages_are_errors)
{
    ranks_start(2, receive_corrupt, &_i);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("failures");
    tcase_add_loop_test(tests, abort_ends_waiting_for_overflow, 0, 2);
    tcase_add_loop_test(tests, waiting_for_overflow_ends_as_an_error, 0, 2);
    tcase_add_loop_test(tests, calls_after_a_failure_fail, 0, 2);
    add_ranks(tests, "abort_ends_waiting_for_messages", ranks_start, post_on_one_rank, 2, 1);
    tcase_add_test(tests, abort_waits_for_no_other_work);
    add_loop(tests, a_rank_that_fails_while_links_are_measured_keeps_all_raw, 0, 2 * COUNT(hosts));
    add_ranks(tests, "a_call_under_way_keeps_what_it_uses", ranks_start, be_aborted, 2, 2);
    add_ranks(tests, "nothing_is_freed_before_the_end_of_a_group", ranks_start, end_in_group, 2, 2);
    add_ranks(tests, "revoke_ends_waiting_for_overflow", ranks_start, be_revoked, 2, 1);
    add_ranks(tests, "shrink_with_abort_ends_waiting_for_overflow", ranks_start, be_shrunk, 2, 1);
    add_loop(tests, corrupt_messages_are_errors, 0, 2 * COUNT(bad_bytes));
    return suite_run("failures", tests);
}
