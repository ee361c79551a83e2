/* all_reduce of any number of ranks among other operations: in groups, on several streams and communicators, in graphs.
 */
#include "tests/coll_engine/harness.h"

enum { TIMES = 4 };

static void set_up(void)
{
    fake_gpu.jitter_us = 300;
}

/* Operations of one phase and of two, on two communicators and streams, in one group. */
static void sum_in_groups(struct rank *rank)
{
    enum { SUMS = 3 };
    const size_t count = 10001 * (size_t)rank->ranks;
    struct rank second = *rank;
    const struct rank *const sides[SUMS] = {rank, &second, rank};
    float *sums[SUMS];
    struct gather gather = gather_new(rank, COLL_BF16, 40000, VALUES_NORMAL);
    second.stream = fake_stream_make();
    require_ok(ncclCommSplit(rank->comm, 0, rank->rank, &second.comm, NULL));
    for (unsigned i = 0; i < SUMS; i++)
        sums[i] = values_new(rank, COLL_FP32, count);
    for (unsigned turn = 0; turn < TIMES; turn++) {
        gather_fill(rank, &gather, VALUES_NORMAL, seed_of(turn, 0, 50));
        require_ok(ncclGroupStart());
        for (unsigned i = 0; i < SUMS; i++) {
            values_fill_whole(sums[i], count, true, 100 * turn + 10 * i + (unsigned)rank->rank);
            require_ok(ncclAllReduce(sums[i], sums[i], count, COLL_FP32, COLL_SUM, sides[i]->comm, sides[i]->stream));
            if (i == 0)
                require_ok(gather_post(rank, &gather));
        }
        require_ok(ncclGroupEnd());
        gather_check(rank, &gather);
        fake_stream_wait(second.stream);
        for (unsigned i = 0; i < SUMS; i++)
            require(values_are_sums(sums[i], count, rank->ranks, true, 100 * turn + 10 * i));
    }
    require(told_of(rank->comm, "all_reduce", "fp32").compressed == 2 * TIMES);
    require(told_of(second.comm, "all_reduce", "fp32").compressed == TIMES);
    ranks_meet();
    require_ok(ncclCommDestroy(second.comm));
    fake_stream_end(second.stream);
}

/* Sums captured once, and launched with values that fit and with others that do not. */
static void replay_sums(struct rank *rank)
{
    const size_t count = 20003 * (size_t)rank->ranks;
    float *values = values_new(rank, COLL_FP32, count), *sum = values_new(rank, COLL_FP32, count);
    fake_capture_begin(rank->stream);
    require_ok(ncclAllReduce(values, sum, count, COLL_FP32, COLL_SUM, rank->comm, rank->stream));
    struct fake_graph *graph = fake_capture_end(rank->stream);
    for (unsigned turn = 0; turn < 6; turn++) {
        const bool fits = turn % 3 != 1;
        values_fill_whole(values, count, fits || rank->rank > 0, 10 * turn + (unsigned)rank->rank);
        fake_graph_launch(graph, rank->stream);
        fake_stream_wait(rank->stream);
        require(values_are_sums(sum, count, rank->ranks, fits, 10 * turn));
        ranks_meet();
    }
    require(told_of(rank->comm, "all_reduce", "fp32").compressed == 1);
    ranks_meet();
    fake_graph_end(graph);
}

START_TEST(graphs_hold_both_phases)
{
    ranks_run(_i, replay_sums, NULL);
    require(fake_gpu.taken > 0);
}
END_TEST

/* NCCL uses memory that a program has registered, or that is in a graph, as it is, if it is so on both sides of a send.
 * What is to be added up arrives in memory of the library, so then it may not be sent from the program's; otherwise it
 * is, rather than copied. */
static const struct sending {
    int ranks;
    bool all; /* an all_reduce, not a reduce_scatter */
    bool registered, captured;
} sendings[] = {{3, false, false, false}, {2, false, false, false}, {2, true, false, false},
                {3, false, true, false},  {2, false, true, false},  {2, true, true, false},
                {3, false, false, true},  {2, false, false, true},  {2, true, false, true}};

/* Tails end at a multiple of 16 bytes, or not, and are gathered or sent. */
static const size_t sent_counts[] = {100000, 100001};
static size_t sent_count;

static void sum_and_wait(struct rank *rank, const struct sending *sending, const float *own, float *sum, size_t count)
{
    struct fake_graph *graph = NULL;
    if (sending->captured)
        fake_capture_begin(rank->stream);
    require_ok(sending->all ? ncclAllReduce(own, sum, count, COLL_FP32, COLL_SUM, rank->comm, rank->stream)
                            : ncclReduceScatter(own, sum, count, COLL_FP32, COLL_SUM, rank->comm, rank->stream));
    if (sending->captured) {
        graph = fake_capture_end(rank->stream);
        fake_graph_launch(graph, rank->stream);
    }
    fake_stream_wait(rank->stream);
    ranks_meet();
    if (graph != NULL)
        fake_graph_end(graph);
}

static void sum_from_there(struct rank *rank)
{
    const struct sending *sending = rank->argument;
    const size_t count = sent_count, ranks = (size_t)rank->ranks;
    float *own = values_new(rank, COLL_FP32, count * ranks), *sum = values_new(rank, COLL_FP32, count);
    void *handle = NULL;
    overlap_warm_up(rank, rank->comm, COLL_FP32);
    for (size_t part = 0; part < ranks; part++)
        values_fill_whole(own + part * count, count, true, 100 * part + (unsigned)rank->rank);
    if (rank->rank == 0) {
        fake_nccl.watched = (const uint8_t *)own;
        fake_nccl.watched_bytes = count * ranks * sizeof(*own);
    }
    if (sending->registered)
        require_ok(ncclCommRegister(rank->comm, own, count * ranks * sizeof(*own), &handle));
    ranks_meet();
    sum_and_wait(rank, sending, own, sum, count);
    require(values_are_sums(sum, count, rank->ranks, true, sending->all ? 0 : 100 * (unsigned)rank->rank));
    require(told_of(rank->comm, sending->all ? "all_reduce" : "reduce_scatter", "fp32").compressed ==
            OVERLAP_AFTER + 1);
    require((fake_nccl.watched_sent == 0) == (sending->registered || sending->captured));
    if (sending->registered)
        require_ok(ncclCommDeregister(rank->comm, handle));
}

START_TEST(sums_are_not_sent_from_registered_memory)
{
    overlap_begin();
    const struct sending *sending = &sendings[_i / COUNT(sent_counts)];
    sent_count = sent_counts[_i % COUNT(sent_counts)];
    ranks_run(sending->ranks, sum_from_there, sending);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("sums");
    tcase_add_checked_fixture(tests, set_up, NULL);
    add_ranks(tests, "groups_run_phase_by_phase", ranks_run, sum_in_groups, 2, 1);
    add_ranks(tests, "groups_run_phase_by_phase", ranks_run, sum_in_groups, 3, 1);
    add_ranks(tests, "groups_run_phase_by_phase", ranks_run, sum_in_groups, 4, 1);
    tcase_add_loop_test(tests, graphs_hold_both_phases, 2, 5);
    tcase_add_loop_test(tests, sums_are_not_sent_from_registered_memory, 0, COUNT(sendings) * COUNT(sent_counts));
    return suite_run("sums", tests);
}
