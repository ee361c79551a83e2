/* Nonblocking communicators: they join with their first collective, all ranks or none; and they end while they join or
 * while they are asked for errors. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 60001, SUM_OF = 4 * COUNT_OF, LONG_MS = 30000 };

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static void make(struct rank *rank)
{
    struct fake_config config = {.size = sizeof(config)};
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require(ncclCommInitRankConfig(&rank->comm, rank->ranks, rank->id, rank->rank, &config) == COLL_IN_PROGRESS);
}

static void begin(struct rank *rank)
{
    make(rank);
    comm_settle(rank->comm, COLL_IN_PROGRESS);
}

static void end(struct rank *rank)
{
    fake_stream_wait(rank->stream);
    ranks_meet();
    require_ok(ncclCommDestroy(rank->comm));
    fake_stream_end(rank->stream);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static struct gather new_gather(const struct rank *rank)
{
    return gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
}

static void gather(const struct rank *rank)
{
    const struct gather buffers = new_gather(rank);
    gather_run(rank, &buffers, false);
}

static void gather_grouped(const struct rank *rank)
{
    const struct gather buffers = new_gather(rank);
    gather_run(rank, &buffers, true);
}

static void send_to_next(const struct rank *rank)
{
    uint8_t *out = values_new(rank, COLL_BF16, COUNT_OF), *in = values_new(rank, COLL_BF16, COUNT_OF);
    values_fill(out, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    comm_settle(rank->comm, ring_post(rank, out, in, COLL_BF16, COUNT_OF));
    fake_stream_wait(rank->stream);
    require(values_are(in, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank_before(rank)));
}

static void sum(const struct rank *rank)
{
    uint8_t *own = values_new(rank, COLL_BF16, SUM_OF), *all = values_new(rank, COLL_BF16, SUM_OF);
    memset(own, 0, (size_t)SUM_OF * 2);
    if (rank->rank == 1)
        values_fill(own, COLL_BF16, SUM_OF, VALUES_NORMAL, 1);
    comm_settle(rank->comm, ncclAllReduce(own, all, SUM_OF, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require(values_are(all, COLL_BF16, SUM_OF, VALUES_NORMAL, 1));
}

static void require_gathers(const struct rank *rank, unsigned long long calls, unsigned long long compressed)
{
    require_told(rank->comm, "all_gather", "bf16", calls, compressed);
}

/* ---- All ranks join ---------------------------------------------------------------------------------------------- */

static void run_every_operation(struct rank *rank)
{
    begin(rank);
    gather(rank);
    gather(rank);
    gather_grouped(rank);
    sum(rank); /* in two phases when there are three */
    send_to_next(rank);
    require_gathers(rank, 3, 3);
    require_told(rank->comm, "all_reduce", "bf16", 1, 1);
    require_told(rank->comm, "send", "bf16", 1, 1);
    end(rank);
}

/* All that NCCL moves for measuring links is in progress first. */
static void join_measured(struct rank *rank)
{
    begin(rank);
    gather(rank);
    gather(rank);
    require_gathers(rank, 2, 2);
    end(rank);
}

START_TEST(links_are_measured_in_the_call_that_joins)
{
    links_begin(0, 10000000); /* 0.1 GB/s: worth it for short messages, too */
    ranks_start(_i, join_measured, NULL);
}
END_TEST

static void overlap(struct rank *rank)
{
    enum { TIMES = OVERLAP_AFTER + 2 };
    begin(rank);
    for (int i = 0; i < TIMES; i++) {
        gather(rank);
        sum(rank);
    }
    require_gathers(rank, TIMES, TIMES);
    require_told(rank->comm, "all_reduce", "bf16", TIMES, TIMES);
    end(rank);
}

/* Such an operation is several of NCCL, one right behind the other. */
START_TEST(an_operation_that_overlaps_is_moved_part_by_part)
{
    overlap_begin();
    ranks_start(_i, overlap, NULL);
}
END_TEST

/* Rank 1 has something else to do before it asks whether its communicator is ready, for longer than ranks wait. */
enum { WAIT_MS = 100 };

static void ask_late(struct rank *rank)
{
    make(rank);
    ranks_meet();
    if (rank->rank == 1)
        usleep(4 * WAIT_MS * 1000);
    comm_settle(rank->comm, COLL_IN_PROGRESS);
    gather(rank);
    require_gathers(rank, 1, 1);
    end(rank);
}

START_TEST(a_rank_that_polls_late_still_joins)
{
    char wait[16];
    snprintf(wait, sizeof(wait), "%dms", WAIT_MS);
    setenv("STRAIT_COLL_WAIT", wait, 1);
    ranks_start(3, ask_late, NULL);
}
END_TEST

/* Rank 0 has found its own ready before rank 1 asks. */
static void ask_one_by_one(struct rank *rank)
{
    make(rank);
    for (int turn = 0; turn < rank->ranks; turn++) {
        if (turn == rank->rank)
            comm_settle(rank->comm, COLL_IN_PROGRESS);
        ranks_meet();
    }
    gather(rank);
    require_gathers(rank, 1, 1);
    end(rank);
}

static void group_first(struct rank *rank)
{
    begin(rank);
    gather_grouped(rank);
    send_to_next(rank);
    gather(rank);
    send_to_next(rank);
    require_gathers(rank, 2, 1);
    require_told(rank->comm, "send", "bf16", 2, 0); /* one of them could have been on its way */
    end(rank);
}

/* Collectives in groups, all alike, as many as are counted or one less, and then one in no group. */
enum { COUNTED = 1024 };

static void group_often(struct rank *rank)
{
    enum { EACH = 64 };
    const unsigned grouped = *(const unsigned *)rank->argument;
    const struct gather buffers = new_gather(rank);
    begin(rank);
    for (unsigned asked = 0; asked < grouped;) {
        require_ok(ncclGroupStart());
        for (unsigned i = 0; i < EACH && asked < grouped; i++, asked++)
            (void)gather_post(rank, &buffers);
        comm_settle(rank->comm, ncclGroupEnd());
    }
    gather_check(rank, &buffers);
    gather(rank);
    require_gathers(rank, grouped + 1, grouped < COUNTED);
    gather_grouped(rank);
    require_gathers(rank, grouped + 2, grouped < COUNTED ? 2 : 0);
    end(rank);
}

START_TEST(ranks_join_after_at_most_1023_collectives_in_groups)
{
    const unsigned grouped = COUNTED - (unsigned)_i;
    ranks_start(2, group_often, &grouped);
}
END_TEST

/* ---- Ranks that stay raw ----------------------------------------------------------------------------------------- */

static void send_only(struct rank *rank)
{
    begin(rank);
    send_to_next(rank);
    require_told(rank->comm, "send", "bf16", 1, 0);
    end(rank);
}

/* NCCL says where they are when they are ready, to those who ask about the parent. */
static void split(struct rank *rank)
{
    struct rank child = *rank;
    begin(rank);
    child.stream = rank->stream;
    child.comm = NULL;
    require_ok(ncclCommSplit(rank->comm, 0, rank->rank, &child.comm, NULL));
    comm_settle(rank->comm, COLL_IN_PROGRESS);
    require(child.comm != NULL);
    comm_settle(child.comm, COLL_IN_PROGRESS);
    gather(&child);
    gather(&child);
    require_gathers(&child, 2, 2);
    fake_stream_wait(rank->stream);
    ranks_meet();
    require_ok(ncclCommDestroy(child.comm));
    end(rank);
}

/* Rank 0 is left out, and rank 1 asks late. */
static void split_off(struct rank *rank)
{
    struct rank child = *rank;
    begin(rank);
    child.stream = rank->stream;
    child.comm = NULL;
    require_ok(ncclCommSplit(rank->comm, rank->rank == 0 ? -1 : 0, rank->rank, &child.comm, NULL));
    if (rank->rank == 1)
        usleep(100 * 1000);
    comm_settle(rank->comm, COLL_IN_PROGRESS);
    require((child.comm == NULL) == (rank->rank == 0));
    if (child.comm != NULL) {
        child.ranks--;
        child.rank--;
        comm_settle(child.comm, COLL_IN_PROGRESS);
        gather(&child);
        require_gathers(&child, 1, 1);
        fake_stream_wait(rank->stream);
        require_ok(ncclCommDestroy(child.comm));
    }
    end(rank);
}

/* One has its first collective in a group, the others not, and is over with it before it goes on. */
static void group_on_one_rank(struct rank *rank)
{
    begin(rank);
    if (rank->rank == *(const int *)rank->argument)
        gather_grouped(rank);
    else
        gather(rank);
    gather(rank);
    require_gathers(rank, 2, 0);
    end(rank);
}

static void block_on_one_rank(struct rank *rank)
{
    if (rank->rank == 0)
        rank_begin(rank);
    else
        begin(rank);
    gather(rank);
    require_gathers(rank, 1, 0);
    end(rank);
}

/* Nothing blocks, so one thread may call for one rank after the other. */
static void be_two_ranks(struct rank *thread)
{
    struct rank ranks[2] = {*thread, *thread};
    struct gather buffers[2];
    coll_result results[2];
    for (int i = 0; i < 2; i++) {
        ranks[i].rank = i;
        ranks[i].ranks = 2;
        buffers[i] = new_gather(&ranks[i]);
        make(&ranks[i]);
    }
    for (int i = 0; i < 2; i++)
        comm_settle(ranks[i].comm, COLL_IN_PROGRESS);
    const long began = now_ms();
    for (int i = 0; i < 2; i++)
        results[i] = gather_post(&ranks[i], &buffers[i]);
    require(now_ms() - began < LONG_MS);
    for (int i = 0; i < 2; i++)
        comm_settle(ranks[i].comm, results[i]);
    for (int i = 0; i < 2; i++)
        gather_check(&ranks[i], &buffers[i]);
    for (int i = 0; i < 2; i++) {
        require_gathers(&ranks[i], 1, 0);
        require_ok(ncclCommDestroy(ranks[i].comm));
        fake_stream_end(ranks[i].stream);
    }
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

struct watchdog {
    pthread_t thread;
    coll_comm comm;
    bool revokes;
    atomic_bool over;
    coll_result result;
};

static void *end_soon(void *argument)
{
    struct watchdog *watchdog = argument;
    usleep(100000);
    watchdog->result = watchdog->revokes ? ncclCommRevoke(watchdog->comm, 0) : ncclCommAbort(watchdog->comm);
    return NULL;
}

enum ending { OWN_ABORT, OWN_REVOKE, ABORT, REVOKE, ENDINGS };

/* Beside the call that waits. */
static coll_result gather_watched(const struct rank *rank, const struct gather *buffers, bool revokes)
{
    struct watchdog watchdog = {.comm = rank->comm, .revokes = revokes};
    require(pthread_create(&watchdog.thread, NULL, end_soon, &watchdog) == 0);
    const coll_result result = gather_post(rank, buffers);
    require(pthread_join(watchdog.thread, NULL) == 0 && watchdog.result == COLL_SUCCESS);
    return result;
}

/* Rank 0 waits in its first collective for rank 1, which is ended, or for nobody any more. */
static void give_up(struct rank *rank)
{
    const enum ending ending = (enum ending) * (const int *)rank->argument;
    const bool own = ending == OWN_ABORT || ending == OWN_REVOKE;
    const struct gather buffers = new_gather(rank);
    begin(rank);
    ranks_meet();
    if (rank->rank == 0) {
        const coll_result result =
            own ? gather_watched(rank, &buffers, ending == OWN_REVOKE) : gather_post(rank, &buffers);
        require(result == (ending == OWN_ABORT ? COLL_INVALID_USAGE : COLL_IN_PROGRESS));
        if (ending != OWN_ABORT)
            require_ok(ncclCommAbort(rank->comm));
        fake_stream_wait(rank->stream);
    } else if (!own) {
        usleep(100000);
        if (ending == REVOKE)
            require_ok(ncclCommRevoke(rank->comm, 0));
        require_ok(ncclCommAbort(rank->comm));
    }
    ranks_meet();
    if (rank->rank == 1 && own)
        require_ok(ncclCommAbort(rank->comm));
    fake_stream_end(rank->stream);
}

static void *ask_again_and_again(void *argument)
{
    struct watchdog *watchdog = argument;
    while (!watchdog->over)
        (void)error_of(watchdog->comm);
    return NULL;
}

/* A watchdog asks for errors while calls wait until NCCL has put them on the stream. */
static void be_watched(struct rank *rank)
{
    enum { CALLS = 200 / STRIDE };
    struct watchdog watchdog = {0};
    struct gather buffers = new_gather(rank);
    begin(rank);
    gather(rank);
    watchdog.comm = rank->comm;
    require(pthread_create(&watchdog.thread, NULL, ask_again_and_again, &watchdog) == 0);
    for (unsigned i = 0; i < CALLS; i++) {
        gather_fill(rank, &buffers, VALUES_NORMAL, i);
        require_ok(gather_post(rank, &buffers));
        gather_check(rank, &buffers);
    }
    watchdog.over = true;
    require(pthread_join(watchdog.thread, NULL) == 0);
    require_gathers(rank, CALLS + 1, CALLS + 1);
    end(rank);
}

static void *abort_halted(void *argument)
{
    struct watchdog *watchdog = argument;
    await_halted();
    watchdog->result = ncclCommAbort(watchdog->comm);
    fake_gpu.halt = 0;
    return NULL;
}

/* Rank 0 is aborted while it makes ready what joining takes: others need not wait for it. */
static void be_aborted_while_joining(struct rank *rank)
{
    const struct gather buffers = new_gather(rank);
    struct watchdog watchdog = {0};
    begin(rank);
    watchdog.comm = rank->comm;
    if (rank->rank == 0) {
        fake_gpu.halt = 1;
        require(pthread_create(&watchdog.thread, NULL, abort_halted, &watchdog) == 0);
    }
    ranks_meet();
    require(gather_post(rank, &buffers) == (rank->rank == 0 ? COLL_INVALID_USAGE : COLL_IN_PROGRESS));
    if (rank->rank == 0)
        require(pthread_join(watchdog.thread, NULL) == 0 && watchdog.result == COLL_SUCCESS);
    else
        require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    fake_stream_end(rank->stream);
}

int main(void)
{
    TCase *tests = tcase_create("nonblocking");
    add_ranks(tests, "ranks_join_with_their_first_collective", ranks_start, run_every_operation, 2, 1);
    add_ranks(tests, "ranks_join_with_their_first_collective", ranks_start, run_every_operation, 3, 1);
    add_ranks(tests, "ranks_join_with_their_first_collective", ranks_start, run_every_operation, 4, 1);
    add_loop(tests, links_are_measured_in_the_call_that_joins, 2, 4);
    add_loop(tests, an_operation_that_overlaps_is_moved_part_by_part, 2, 4);
    add_ranks(tests, "a_communicator_gets_ready_without_the_other_ranks", ranks_start, ask_one_by_one, 3, 1);
    add_ranks(tests, "groups_before_the_first_collective_are_raw_and_so_are_all_sends", ranks_start, group_first, 3, 1);
    tcase_add_loop_test(tests, ranks_join_after_at_most_1023_collectives_in_groups, 0, 2);
    add_ranks(tests, "a_communicator_without_collectives_stays_raw", ranks_start, send_only, 2, 1);
    tcase_add_test(tests, a_rank_that_polls_late_still_joins);
    add_ranks(tests, "children_join_with_their_first_collective", ranks_start, split, 2, 1);
    add_ranks(tests, "children_of_some_ranks_join", ranks_start, split_off, 3, 1);
    add_ranks(tests, "one_rank_that_groups_its_first_collective_keeps_all_raw", ranks_start, group_on_one_rank, 3, 3);
    add_ranks(tests, "one_rank_that_blocks_keeps_all_raw", ranks_start, block_on_one_rank, 2, 1);
    add_ranks(tests, "two_ranks_of_one_thread_stay_raw_without_waiting", ranks_start, be_two_ranks, 1, 1);
    add_ranks(tests, "a_rank_that_waits_in_its_first_collective_can_be_aborted_and_revoked", ranks_start, give_up, 2,
              ENDINGS);
    add_ranks(tests, "one_thread_at_a_time_asks_nccl_for_errors", ranks_start, be_watched, 2, 1);
    add_ranks(tests, "a_rank_can_be_aborted_while_it_joins", ranks_start, be_aborted_while_joining, 3, 1);
    return suite_run("nonblocking", tests);
}
