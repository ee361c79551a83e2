/* Communicators that do not block: they join with their first collective, all ranks or none. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 40001, SUM_OF = 4 * COUNT_OF, LONG_MS = 30000 };

static coll_id id_for_all;

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

/* As a program has to, before it goes on. */
static void settle(coll_comm comm, coll_result result)
{
    while (result == COLL_IN_PROGRESS)
        require_ok(ncclCommGetAsyncError(comm, &result));
    require_ok(result);
}

static void make(struct rank *rank)
{
    struct fake_config config = {.size = sizeof(config)};
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require(ncclCommInitRankConfig(&rank->comm, rank->ranks, id_for_all, rank->rank, &config) == COLL_IN_PROGRESS);
}

static void begin(struct rank *rank)
{
    make(rank);
    settle(rank->comm, COLL_IN_PROGRESS);
}

static void run_all(int ranks, void (*body)(struct rank *), void *argument)
{
    setenv("STRAIT_COLL", "compress", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    ranks_start(ranks, body, argument);
    require(fake_gpu.made == 0);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

struct buffers {
    uint8_t *own, *all;
};

static struct buffers buffers_of(const struct rank *rank)
{
    const struct buffers made = {values_new(COLL_BF16, COUNT_OF, 0),
                                 values_new(COLL_BF16, (size_t)rank->ranks * COUNT_OF, 0)};
    values_fill(made.own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    return made;
}

static void check_gathered(const struct rank *rank, struct buffers *buffers)
{
    fake_stream_wait(rank->stream);
    for (int from = 0; from < rank->ranks; from++)
        require(
            values_are(buffers->all + (size_t)from * COUNT_OF * 2, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)from));
    values_free(buffers->own, COLL_BF16, 0);
    values_free(buffers->all, COLL_BF16, 0);
}

static coll_result ask_gather(struct rank *rank, const struct buffers *buffers)
{
    return ncclAllGather(buffers->own, buffers->all, COUNT_OF, COLL_BF16, rank->comm, rank->stream);
}

static void gather(struct rank *rank)
{
    struct buffers buffers = buffers_of(rank);
    settle(rank->comm, ask_gather(rank, &buffers));
    check_gathered(rank, &buffers);
}

static void gather_grouped(struct rank *rank)
{
    struct buffers buffers = buffers_of(rank);
    require_ok(ncclGroupStart());
    (void)ask_gather(rank, &buffers);
    settle(rank->comm, ncclGroupEnd());
    check_gathered(rank, &buffers);
}

/* To the next rank, from the one before. */
static void shift(struct rank *rank)
{
    const int to = (rank->rank + 1) % rank->ranks, from = (rank->rank + rank->ranks - 1) % rank->ranks;
    struct buffers buffers = buffers_of(rank);
    require_ok(ncclGroupStart());
    (void)ncclSend(buffers.own, COUNT_OF, COLL_BF16, to, rank->comm, rank->stream);
    (void)ncclRecv(buffers.all, COUNT_OF, COLL_BF16, from, rank->comm, rank->stream);
    settle(rank->comm, ncclGroupEnd());
    fake_stream_wait(rank->stream);
    require(values_are(buffers.all, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)from));
    values_free(buffers.own, COLL_BF16, 0);
    values_free(buffers.all, COLL_BF16, 0);
}

static void end(struct rank *rank)
{
    fake_stream_wait(rank->stream);
    ranks_meet();
    require_ok(ncclCommDestroy(rank->comm));
    fake_stream_end(rank->stream);
}

static void require_told(struct rank *rank, const char *operation, unsigned long long calls,
                         unsigned long long compressed)
{
    const struct told told = told_of(rank->comm, operation, "bf16");
    if (told.calls != calls || told.compressed != compressed)
        fprintf(stderr, "%s: %llu calls, %llu compressed: %s\n", operation, told.calls, told.compressed, told.reason);
    require(told.calls == calls && told.compressed == compressed);
}

/* ---- All ranks --------------------------------------------------------------------------------------------------- */

static void add_up(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, SUM_OF, 0), *sum = values_new(COLL_BF16, SUM_OF, 0);
    memset(own, 0, (size_t)SUM_OF * 2);
    if (rank->rank == 1)
        values_fill(own, COLL_BF16, SUM_OF, VALUES_NORMAL, 1);
    settle(rank->comm, ncclAllReduce(own, sum, SUM_OF, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require(values_are(sum, COLL_BF16, SUM_OF, VALUES_NORMAL, 1));
    values_free(own, COLL_BF16, 0);
    values_free(sum, COLL_BF16, 0);
}

static void go_on(struct rank *rank)
{
    begin(rank);
    gather(rank);
    gather(rank);
    gather_grouped(rank);
    add_up(rank); /* in two phases when there are three */
    shift(rank);
    require_told(rank, "all_gather", 3, 3);
    require_told(rank, "all_reduce", 1, 1);
    require_told(rank, "send", 1, 1);
    end(rank);
}

START_TEST(they_join_with_the_first_collective)
{
    run_all(_i, go_on, NULL);
}
END_TEST

/* What is cut is several operations of NCCL, one right behind the other. */
static void gather_in_pieces(struct rank *rank)
{
    begin(rank);
    gather(rank);
    gather(rank);
    add_up(rank);
    require_told(rank, "all_gather", 2, 2);
    require_told(rank, "all_reduce", 1, 1);
    end(rank);
}

START_TEST(what_is_cut_is_moved_piece_by_piece)
{
    static const char *const pieces[] = {"32+32", "32+0", "0+32", "3"};
    setenv("STRAIT_COLL_PIECES", pieces[_i / 2], 1);
    run_all(2 + _i % 2, gather_in_pieces, NULL);
}
END_TEST

/* One has something else to do before it looks whether its own is ready, for longer than is waited. */
static void look_late(struct rank *rank)
{
    make(rank);
    ranks_meet();
    if (rank->rank == 1)
        sleep(3);
    settle(rank->comm, COLL_IN_PROGRESS);
    gather(rank);
    require_told(rank, "all_gather", 1, 1);
    end(rank);
}

START_TEST(who_looks_late_is_there)
{
    setenv("STRAIT_COLL_WAIT", "1", 1);
    run_all(3, look_late, NULL);
}
END_TEST

/* Rank 0 has found its own ready before rank 1 looks. */
static void look_one_by_one(struct rank *rank)
{
    make(rank);
    for (int turn = 0; turn < rank->ranks; turn++) {
        if (turn == rank->rank)
            settle(rank->comm, COLL_IN_PROGRESS);
        ranks_meet();
    }
    gather(rank);
    require_told(rank, "all_gather", 1, 1);
    end(rank);
}

START_TEST(finding_one_ready_waits_for_nobody)
{
    run_all(3, look_one_by_one, NULL);
}
END_TEST

static void group_first(struct rank *rank)
{
    begin(rank);
    gather_grouped(rank);
    shift(rank);
    gather(rank);
    shift(rank);
    require_told(rank, "all_gather", 2, 1);
    require_told(rank, "send", 2, 0); /* one of them could have been on its way */
    end(rank);
}

START_TEST(what_comes_before_is_raw_and_so_are_sends_then)
{
    run_all(3, group_first, NULL);
}
END_TEST

/* Collectives in groups, all alike, as many as are counted or one less, and then one in no group. */
enum { COUNTED = 1024 };

static void group_often(struct rank *rank)
{
    enum { EACH = 64 };
    const unsigned grouped = *(const unsigned *)rank->argument;
    struct buffers buffers = buffers_of(rank);
    begin(rank);
    for (unsigned asked = 0; asked < grouped;) {
        require_ok(ncclGroupStart());
        for (unsigned i = 0; i < EACH && asked < grouped; i++, asked++)
            (void)ask_gather(rank, &buffers);
        settle(rank->comm, ncclGroupEnd());
    }
    check_gathered(rank, &buffers);
    gather(rank);
    require_told(rank, "all_gather", grouped + 1, grouped < COUNTED);
    gather_grouped(rank);
    require_told(rank, "all_gather", grouped + 2, grouped < COUNTED ? 2 : 0);
    end(rank);
}

START_TEST(who_groups_what_is_counted_stays_raw)
{
    static unsigned grouped = COUNTED;
    run_all(2, group_often, &grouped);
}
END_TEST

START_TEST(who_groups_one_less_joins)
{
    static unsigned grouped = COUNTED - 1;
    run_all(2, group_often, &grouped);
}
END_TEST

static void never_collective(struct rank *rank)
{
    begin(rank);
    shift(rank);
    require_told(rank, "send", 1, 0);
    end(rank);
}

START_TEST(one_that_has_no_collective_stays_raw)
{
    run_all(2, never_collective, NULL);
}
END_TEST

/* NCCL does not say where they are before they are ready, and nobody tells when that is. */
static void split(struct rank *rank)
{
    struct rank child = *rank;
    begin(rank);
    child.stream = rank->stream;
    require_ok(ncclCommSplit(rank->comm, 0, rank->rank, &child.comm, NULL));
    settle(rank->comm, COLL_IN_PROGRESS);
    require(child.comm != NULL);
    ranks_meet();
    const uint64_t counted = fake_nccl.counted;
    ranks_meet();
    settle(child.comm, COLL_IN_PROGRESS);
    gather(&child);
    ranks_meet();
    require(fake_nccl.counted == counted); /* a watchdog looks at it while another thread calls */
    require_told(&child, "all_gather", 0, 0);
    require_ok(ncclCommDestroy(child.comm));
    end(rank);
}

START_TEST(children_stay_raw)
{
    run_all(2, split, NULL);
}
END_TEST

/* ---- Ranks that differ ------------------------------------------------------------------------------------------- */

/* One has its first collective in a group, the others not, and is over with it before it goes on. */
static void be_ahead(struct rank *rank)
{
    begin(rank);
    if (rank->rank == *(const int *)rank->argument) {
        gather_grouped(rank);
        gather(rank);
    } else {
        gather(rank);
        gather(rank);
    }
    require_told(rank, "all_gather", 2, 0);
    end(rank);
}

START_TEST(ranks_that_are_not_equally_far_stay_raw)
{
    run_all(3, be_ahead, &_i);
}
END_TEST

static void block_or_not(struct rank *rank)
{
    if (rank->rank == 0) {
        rank_begin(rank, id_for_all);
    } else {
        begin(rank);
    }
    gather(rank);
    require_told(rank, "all_gather", 1, 0);
    end(rank);
}

START_TEST(one_rank_that_blocks_keeps_all_raw)
{
    run_all(2, block_or_not, NULL);
}
END_TEST

/* Which may call one rank after the other, since nothing blocks. */
START_TEST(two_ranks_of_one_thread_stay_raw_at_once)
{
    struct fake_config config = {.size = sizeof(config)};
    struct rank ranks[2] = {{.ranks = 2}, {.rank = 1, .ranks = 2}};
    struct buffers buffers[2];
    coll_result results[2];
    setenv("STRAIT_COLL", "compress", 1);
    require_ok(ncclGetUniqueId(&id_for_all));
    for (int i = 0; i < 2; i++) {
        fake_device_set(i);
        ranks[i].stream = fake_stream_make();
        buffers[i] = buffers_of(&ranks[i]);
        require(ncclCommInitRankConfig(&ranks[i].comm, 2, id_for_all, i, &config) == COLL_IN_PROGRESS);
    }
    for (int i = 0; i < 2; i++)
        settle(ranks[i].comm, COLL_IN_PROGRESS);
    const long begin = now_ms();
    for (int i = 0; i < 2; i++)
        results[i] = ask_gather(&ranks[i], &buffers[i]);
    require(now_ms() - begin < LONG_MS);
    for (int i = 0; i < 2; i++)
        settle(ranks[i].comm, results[i]);
    for (int i = 0; i < 2; i++)
        check_gathered(&ranks[i], &buffers[i]);
    for (int i = 0; i < 2; i++) {
        require_told(&ranks[i], "all_gather", 1, 0);
        require_ok(ncclCommDestroy(ranks[i].comm));
        fake_stream_end(ranks[i].stream);
    }
}
END_TEST

/* ---- Ranks that end ---------------------------------------------------------------------------------------------- */

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
static coll_result gather_watched(struct rank *rank, const struct buffers *buffers, bool revokes)
{
    struct watchdog watchdog = {.comm = rank->comm, .revokes = revokes};
    require(pthread_create(&watchdog.thread, NULL, end_soon, &watchdog) == 0);
    const coll_result result = ask_gather(rank, buffers);
    require(pthread_join(watchdog.thread, NULL) == 0 && watchdog.result == COLL_SUCCESS);
    return result;
}

/* Rank 0 waits in its first collective for rank 1, which is ended, or for nobody any more. */
static void give_up(struct rank *rank)
{
    const enum ending ending = *(const enum ending *)rank->argument;
    const bool own = ending == OWN_ABORT || ending == OWN_REVOKE;
    begin(rank);
    ranks_meet();
    if (rank->rank == 0) {
        struct buffers buffers = buffers_of(rank);
        const coll_result result =
            own ? gather_watched(rank, &buffers, ending == OWN_REVOKE) : ask_gather(rank, &buffers);
        require(result == (ending == OWN_ABORT ? COLL_INVALID_USAGE : COLL_IN_PROGRESS));
        if (ending != OWN_ABORT)
            require_ok(ncclCommAbort(rank->comm));
        fake_stream_wait(rank->stream);
        values_free(buffers.own, COLL_BF16, 0);
        values_free(buffers.all, COLL_BF16, 0);
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

START_TEST(who_waits_for_the_first_collective_can_be_ended)
{
    static enum ending ending;
    ending = (enum ending)_i;
    run_all(2, give_up, &ending);
}
END_TEST

static void *look_again_and_again(void *argument)
{
    struct watchdog *watchdog = argument;
    while (!watchdog->over)
        (void)error_of(watchdog->comm);
    return NULL;
}

/* A watchdog looks for errors while calls wait until NCCL has put them on the stream. */
static void be_watched(struct rank *rank)
{
    enum { CALLS = 200 };
    struct watchdog watchdog = {0};
    begin(rank);
    gather(rank);
    watchdog.comm = rank->comm;
    require(pthread_create(&watchdog.thread, NULL, look_again_and_again, &watchdog) == 0);
    for (int i = 0; i < CALLS; i++) {
        struct buffers buffers = buffers_of(rank);
        require_ok(ask_gather(rank, &buffers));
        check_gathered(rank, &buffers);
    }
    watchdog.over = true;
    require(pthread_join(watchdog.thread, NULL) == 0);
    require_told(rank, "all_gather", CALLS + 1, CALLS + 1);
    end(rank);
}

START_TEST(one_thread_at_a_time_asks_what_is_in_progress)
{
    run_all(2, be_watched, NULL);
}
END_TEST

static void *abort_what_is_halted(void *argument)
{
    struct watchdog *watchdog = argument;
    for (int i = 0; fake_gpu.halted == 0; i++) {
        require(i < LONG_MS);
        usleep(1000);
    }
    watchdog->result = ncclCommAbort(watchdog->comm);
    fake_gpu.halt = 0;
    return NULL;
}

/* Rank 0 is aborted while it makes ready what joining takes: others need not wait for it. */
static void be_aborted_as_it_joins(struct rank *rank)
{
    struct buffers buffers = buffers_of(rank);
    struct watchdog watchdog = {0};
    begin(rank);
    watchdog.comm = rank->comm;
    if (rank->rank == 0) {
        fake_gpu.halt = 1;
        require(pthread_create(&watchdog.thread, NULL, abort_what_is_halted, &watchdog) == 0);
    }
    ranks_meet();
    require(ask_gather(rank, &buffers) == (rank->rank == 0 ? COLL_INVALID_USAGE : COLL_IN_PROGRESS));
    if (rank->rank == 0)
        require(pthread_join(watchdog.thread, NULL) == 0 && watchdog.result == COLL_SUCCESS);
    else
        require_ok(ncclCommAbort(rank->comm));
    fake_stream_wait(rank->stream);
    values_free(buffers.own, COLL_BF16, 0);
    values_free(buffers.all, COLL_BF16, 0);
    fake_stream_end(rank->stream);
}

START_TEST(who_joins_can_be_aborted)
{
    run_all(3, be_aborted_as_it_joins, NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("late");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, they_join_with_the_first_collective, 2, 5);
    tcase_add_loop_test(tests, what_is_cut_is_moved_piece_by_piece, 0, 8);
    tcase_add_test(tests, finding_one_ready_waits_for_nobody);
    tcase_add_test(tests, what_comes_before_is_raw_and_so_are_sends_then);
    tcase_add_test(tests, who_groups_what_is_counted_stays_raw);
    tcase_add_test(tests, who_groups_one_less_joins);
    tcase_add_test(tests, one_that_has_no_collective_stays_raw);
    tcase_add_test(tests, who_looks_late_is_there);
    tcase_add_test(tests, children_stay_raw);
    tcase_add_loop_test(tests, ranks_that_are_not_equally_far_stay_raw, 0, 3);
    tcase_add_test(tests, one_rank_that_blocks_keeps_all_raw);
    tcase_add_test(tests, two_ranks_of_one_thread_stay_raw_at_once);
    tcase_add_loop_test(tests, who_waits_for_the_first_collective_can_be_ended, 0, ENDINGS);
    tcase_add_test(tests, one_thread_at_a_time_asks_what_is_in_progress);
    tcase_add_test(tests, who_joins_can_be_aborted);
    return suite_run("late", tests);
}
