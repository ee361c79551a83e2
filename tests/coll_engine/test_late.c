/* Communicators that do not block: they join with their first collective, all ranks or none. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/lazy.h"

enum { SUM_OF = 4 * LAZY_COUNT };

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void gather_grouped(struct rank *rank)
{
    struct lazy_buffers buffers = lazy_buffers(rank);
    require_ok(ncclGroupStart());
    (void)lazy_ask(rank, &buffers);
    lazy_settle(rank->comm, ncclGroupEnd());
    lazy_check(rank, &buffers);
}

/* To the next rank, from the one before. */
static void shift(struct rank *rank)
{
    const int to = (rank->rank + 1) % rank->ranks, from = (rank->rank + rank->ranks - 1) % rank->ranks;
    struct lazy_buffers buffers = lazy_buffers(rank);
    require_ok(ncclGroupStart());
    (void)ncclSend(buffers.own, LAZY_COUNT, COLL_BF16, to, rank->comm, rank->stream);
    (void)ncclRecv(buffers.all, LAZY_COUNT, COLL_BF16, from, rank->comm, rank->stream);
    lazy_settle(rank->comm, ncclGroupEnd());
    fake_stream_wait(rank->stream);
    require(values_are(buffers.all, COLL_BF16, LAZY_COUNT, VALUES_NORMAL, (unsigned)from));
    values_free(buffers.own, COLL_BF16, 0);
    values_free(buffers.all, COLL_BF16, 0);
}

/* ---- All ranks --------------------------------------------------------------------------------------------------- */

static void add_up(struct rank *rank)
{
    uint8_t *own = values_new(COLL_BF16, SUM_OF, 0), *sum = values_new(COLL_BF16, SUM_OF, 0);
    memset(own, 0, (size_t)SUM_OF * 2);
    if (rank->rank == 1)
        values_fill(own, COLL_BF16, SUM_OF, VALUES_NORMAL, 1);
    lazy_settle(rank->comm, ncclAllReduce(own, sum, SUM_OF, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require(values_are(sum, COLL_BF16, SUM_OF, VALUES_NORMAL, 1));
    values_free(own, COLL_BF16, 0);
    values_free(sum, COLL_BF16, 0);
}

static void go_on(struct rank *rank)
{
    lazy_begin(rank);
    lazy_gather(rank);
    lazy_gather(rank);
    gather_grouped(rank);
    add_up(rank); /* in two phases when there are three */
    shift(rank);
    lazy_require_told(rank, "all_gather", 3, 3);
    lazy_require_told(rank, "all_reduce", 1, 1);
    lazy_require_told(rank, "send", 1, 1);
    lazy_end(rank);
}

START_TEST(they_join_with_the_first_collective)
{
    lazy_run(_i, go_on, NULL);
}
END_TEST

/* Links are measured in the call that joins: all that NCCL moves for that is in progress first. */
static void join_measured(struct rank *rank)
{
    lazy_begin(rank);
    lazy_gather(rank);
    lazy_gather(rank);
    lazy_require_told(rank, "all_gather", 2, 2);
    lazy_end(rank);
}

START_TEST(links_are_measured_when_they_join)
{
    setenv("STRAIT_COLL", "auto", 1);
    for (int device = 0; device < _i; device++)
        fake_gpu.link_fs[device] = 10000000; /* 0.1 GB/s: worth it for short messages, too */
    lazy_run(_i, join_measured, NULL);
}
END_TEST

/* One that overlaps coding with transfer is several operations of NCCL, one right behind the other. */
static void gather_overlapped(struct rank *rank)
{
    enum { TIMES = OVERLAP_AFTER + 2 };
    lazy_begin(rank);
    for (int i = 0; i < TIMES; i++) {
        lazy_gather(rank);
        add_up(rank);
    }
    lazy_require_told(rank, "all_gather", TIMES, TIMES);
    lazy_require_told(rank, "all_reduce", TIMES, TIMES);
    lazy_end(rank);
}

START_TEST(what_overlaps_is_moved_part_by_part)
{
    overlap_begin();
    lazy_run(_i, gather_overlapped, NULL);
}
END_TEST

/* One has something else to do before it looks whether its own is ready, for longer than is waited. */
enum { WAIT_MS = 100 };

static void look_late(struct rank *rank)
{
    lazy_make(rank);
    ranks_meet();
    if (rank->rank == 1)
        usleep(4 * WAIT_MS * 1000);
    lazy_settle(rank->comm, COLL_IN_PROGRESS);
    lazy_gather(rank);
    lazy_require_told(rank, "all_gather", 1, 1);
    lazy_end(rank);
}

START_TEST(who_looks_late_is_there)
{
    char wait[16];
    snprintf(wait, sizeof(wait), "%dms", WAIT_MS);
    setenv("STRAIT_COLL_WAIT", wait, 1);
    lazy_run(3, look_late, NULL);
}
END_TEST

/* Rank 0 has found its own ready before rank 1 looks. */
static void look_one_by_one(struct rank *rank)
{
    lazy_make(rank);
    for (int turn = 0; turn < rank->ranks; turn++) {
        if (turn == rank->rank)
            lazy_settle(rank->comm, COLL_IN_PROGRESS);
        ranks_meet();
    }
    lazy_gather(rank);
    lazy_require_told(rank, "all_gather", 1, 1);
    lazy_end(rank);
}

START_TEST(finding_one_ready_waits_for_nobody)
{
    lazy_run(3, look_one_by_one, NULL);
}
END_TEST

static void group_first(struct rank *rank)
{
    lazy_begin(rank);
    gather_grouped(rank);
    shift(rank);
    lazy_gather(rank);
    shift(rank);
    lazy_require_told(rank, "all_gather", 2, 1);
    lazy_require_told(rank, "send", 2, 0); /* one of them could have been on its way */
    lazy_end(rank);
}

START_TEST(what_comes_before_is_raw_and_so_are_sends_then)
{
    lazy_run(3, group_first, NULL);
}
END_TEST

/* Collectives in groups, all alike, as many as are counted or one less, and then one in no group. */
enum { COUNTED = 1024 };

static void group_often(struct rank *rank)
{
    enum { EACH = 64 };
    const unsigned grouped = *(const unsigned *)rank->argument;
    struct lazy_buffers buffers = lazy_buffers(rank);
    lazy_begin(rank);
    for (unsigned asked = 0; asked < grouped;) {
        require_ok(ncclGroupStart());
        for (unsigned i = 0; i < EACH && asked < grouped; i++, asked++)
            (void)lazy_ask(rank, &buffers);
        lazy_settle(rank->comm, ncclGroupEnd());
    }
    lazy_check(rank, &buffers);
    lazy_gather(rank);
    lazy_require_told(rank, "all_gather", grouped + 1, grouped < COUNTED);
    gather_grouped(rank);
    lazy_require_told(rank, "all_gather", grouped + 2, grouped < COUNTED ? 2 : 0);
    lazy_end(rank);
}

START_TEST(who_groups_what_is_counted_stays_raw)
{
    static unsigned grouped = COUNTED;
    lazy_run(2, group_often, &grouped);
}
END_TEST

START_TEST(who_groups_one_less_joins)
{
    static unsigned grouped = COUNTED - 1;
    lazy_run(2, group_often, &grouped);
}
END_TEST

static void never_collective(struct rank *rank)
{
    lazy_begin(rank);
    shift(rank);
    lazy_require_told(rank, "send", 1, 0);
    lazy_end(rank);
}

START_TEST(one_that_has_no_collective_stays_raw)
{
    lazy_run(2, never_collective, NULL);
}
END_TEST

/* NCCL does not say where they are before they are ready, and nobody tells when that is. */
static void split(struct rank *rank)
{
    struct rank child = *rank;
    lazy_begin(rank);
    child.stream = rank->stream;
    require_ok(ncclCommSplit(rank->comm, 0, rank->rank, &child.comm, NULL));
    lazy_settle(rank->comm, COLL_IN_PROGRESS);
    require(child.comm != NULL);
    ranks_meet();
    const uint64_t counted = fake_nccl.counted;
    ranks_meet();
    lazy_settle(child.comm, COLL_IN_PROGRESS);
    lazy_gather(&child);
    ranks_meet();
    require(fake_nccl.counted == counted); /* a watchdog looks at it while another thread calls */
    lazy_require_told(&child, "all_gather", 0, 0);
    require_ok(ncclCommDestroy(child.comm));
    lazy_end(rank);
}

START_TEST(children_stay_raw)
{
    lazy_run(2, split, NULL);
}
END_TEST

/* ---- Ranks that differ ------------------------------------------------------------------------------------------- */

/* One has its first collective in a group, the others not, and is over with it before it goes on. */
static void be_ahead(struct rank *rank)
{
    lazy_begin(rank);
    if (rank->rank == *(const int *)rank->argument) {
        gather_grouped(rank);
        lazy_gather(rank);
    } else {
        lazy_gather(rank);
        lazy_gather(rank);
    }
    lazy_require_told(rank, "all_gather", 2, 0);
    lazy_end(rank);
}

START_TEST(ranks_that_are_not_equally_far_stay_raw)
{
    lazy_run(3, be_ahead, &_i);
}
END_TEST

static void block_or_not(struct rank *rank)
{
    if (rank->rank == 0) {
        rank_begin(rank, lazy_id);
    } else {
        lazy_begin(rank);
    }
    lazy_gather(rank);
    lazy_require_told(rank, "all_gather", 1, 0);
    lazy_end(rank);
}

START_TEST(one_rank_that_blocks_keeps_all_raw)
{
    lazy_run(2, block_or_not, NULL);
}
END_TEST

/* Which may call one rank after the other, since nothing blocks. */
START_TEST(two_ranks_of_one_thread_stay_raw_at_once)
{
    struct fake_config config = {.size = sizeof(config)};
    struct rank ranks[2] = {{.ranks = 2}, {.rank = 1, .ranks = 2}};
    struct lazy_buffers buffers[2];
    coll_result results[2];
    setenv("STRAIT_COLL", "compress", 1);
    require_ok(ncclGetUniqueId(&lazy_id));
    for (int i = 0; i < 2; i++) {
        fake_device_set(i);
        ranks[i].stream = fake_stream_make();
        buffers[i] = lazy_buffers(&ranks[i]);
        require(ncclCommInitRankConfig(&ranks[i].comm, 2, lazy_id, i, &config) == COLL_IN_PROGRESS);
    }
    for (int i = 0; i < 2; i++)
        lazy_settle(ranks[i].comm, COLL_IN_PROGRESS);
    const long begin = now_ms();
    for (int i = 0; i < 2; i++)
        results[i] = lazy_ask(&ranks[i], &buffers[i]);
    require(now_ms() - begin < LAZY_LONG_MS);
    for (int i = 0; i < 2; i++)
        lazy_settle(ranks[i].comm, results[i]);
    for (int i = 0; i < 2; i++)
        lazy_check(&ranks[i], &buffers[i]);
    for (int i = 0; i < 2; i++) {
        lazy_require_told(&ranks[i], "all_gather", 1, 0);
        require_ok(ncclCommDestroy(ranks[i].comm));
        fake_stream_end(ranks[i].stream);
    }
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("late");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, they_join_with_the_first_collective, 2, 5);
    tcase_add_loop_test(tests, links_are_measured_when_they_join, 2, 4);
    tcase_add_loop_test(tests, what_overlaps_is_moved_part_by_part, 2, 4);
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
    return suite_run("late", tests);
}
