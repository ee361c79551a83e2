/* all_reduce of any number of ranks among other operations: in groups, on several streams and communicators, in graphs.
 */
#include "tests/coll_engine/harness.h"

enum { TIMES = 4 };

static uint64_t seed_of(unsigned turn, int from, int to)
{
    return 10000 * turn + 100 * (unsigned)from + (unsigned)to;
}

static void begin(void)
{
    fake_gpu.jitter_us = 300;
    setenv("STRAIT_COLL", "compress", 1);
}

/* Operations of one phase and of two, on two communicators and streams, in one group. */
static void sum_in_groups(struct rank *rank)
{
    enum { SUMS = 3 };
    const size_t count = 10001 * (size_t)rank->ranks, ranks = (size_t)rank->ranks;
    coll_comm second;
    coll_stream stream = fake_stream_make();
    float *sums[SUMS];
    uint8_t *own = values_new(COLL_BF16, 40000, 0), *all = values_new(COLL_BF16, 40000 * ranks, 0);
    require_ok(ncclCommSplit(rank->comm, 0, rank->rank, &second, NULL));
    for (unsigned i = 0; i < SUMS; i++)
        sums[i] = values_new(COLL_FP32, count, 0);
    for (unsigned turn = 0; turn < TIMES; turn++) {
        for (unsigned i = 0; i < SUMS; i++)
            values_fill_whole(sums[i], count, true, 100 * turn + 10 * i + (unsigned)rank->rank);
        values_fill(own, COLL_BF16, 40000, VALUES_NORMAL, seed_of(turn, rank->rank, 50));
        require_ok(ncclGroupStart());
        require_ok(ncclAllReduce(sums[0], sums[0], count, COLL_FP32, COLL_SUM, rank->comm, rank->stream));
        require_ok(ncclAllGather(own, all, 40000, COLL_BF16, rank->comm, rank->stream));
        require_ok(ncclAllReduce(sums[1], sums[1], count, COLL_FP32, COLL_SUM, second, stream));
        require_ok(ncclAllReduce(sums[2], sums[2], count, COLL_FP32, COLL_SUM, rank->comm, rank->stream));
        require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        fake_stream_wait(stream);
        for (unsigned i = 0; i < SUMS; i++)
            require(values_are_sums(sums[i], count, rank->ranks, true, 100 * turn + 10 * i));
        for (size_t from = 0; from < ranks; from++)
            require(values_are(all + from * 80000, COLL_BF16, 40000, VALUES_NORMAL, seed_of(turn, (int)from, 50)));
    }
    require(told_of(rank->comm, "all_reduce", "fp32").compressed == 2 * TIMES);
    require(told_of(second, "all_reduce", "fp32").compressed == TIMES);
    ranks_meet();
    require_ok(ncclCommDestroy(second));
    fake_stream_end(stream);
    for (unsigned i = 0; i < SUMS; i++)
        values_free(sums[i], COLL_FP32, 0);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(groups_run_phase_by_phase)
{
    begin();
    ranks_run(_i, sum_in_groups, NULL);
}
END_TEST

/* Sums captured once, and launched with values that fit and with others that do not. */
static void replay_sums(struct rank *rank)
{
    const size_t count = 20003 * (size_t)rank->ranks;
    float *values = values_new(COLL_FP32, count, 0), *sum = values_new(COLL_FP32, count, 0);
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
    values_free(values, COLL_FP32, 0);
    values_free(sum, COLL_FP32, 0);
}

START_TEST(graphs_hold_both_phases)
{
    begin();
    ranks_run(_i, replay_sums, NULL);
    require(fake_gpu.taken > 0);
}
END_TEST

/* NCCL uses memory that a program has registered, or that is in a graph, as it is, if it is so on both sides of a send.
 * What is to be added up arrives in memory of the library, so then it may not be sent from the program's; otherwise it
 * is, rather than copied. */
static const struct sending {
    bool all; /* an all_reduce of two ranks, or a reduce_scatter of three */
    bool registered, captured;
} sendings[] = {{false, false, false}, {true, false, false}, {false, true, false},
                {true, true, false},   {false, false, true}, {true, false, true}};

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
    const size_t count = 100000, ranks = (size_t)rank->ranks;
    float *own = values_new(COLL_FP32, count * ranks, 0), *sum = values_new(COLL_FP32, count, 0);
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
    values_free(own, COLL_FP32, 0);
    values_free(sum, COLL_FP32, 0);
}

START_TEST(sums_are_not_sent_from_registered_memory)
{
    begin();
    overlap_begin();
    ranks_run(sendings[_i].all ? 2 : 3, sum_from_there, (void *)(uintptr_t)&sendings[_i]);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("sums");
    tcase_add_loop_test(tests, groups_run_phase_by_phase, 2, 5);
    tcase_add_loop_test(tests, graphs_hold_both_phases, 2, 5);
    tcase_add_loop_test(tests, sums_are_not_sent_from_registered_memory, 0, COUNT(sendings));
    return suite_run("sums", tests);
}
