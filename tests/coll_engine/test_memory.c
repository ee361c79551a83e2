/* A GPU whose memory is full, and allocations and launches that fail one after the other. */
#include <string.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

/* ---- A GPU without memory for messages --------------------------------------------------------------------------- */

/* What others have begun is moved compressed by way of the host's memory, and what comes next is raw on all ranks,
 * without an error. */
enum { FULL_COUNT = 160001, TURNS = 4 };

struct full {
    unsigned devices; /* bits: those that have none, from the first operation on */
    bool grouped;
};

static void gather_and_sum(const struct rank *rank, struct gather *gather, uint8_t *sum, bool grouped, bool captured)
{
    gather_fill(rank, gather, VALUES_NORMAL, 0);
    if (captured)
        fake_capture_begin(rank->stream);
    if (grouped)
        require_ok(ncclGroupStart());
    require_ok(gather_post(rank, gather));
    require_ok(ncclAllReduce(gather->own, sum, FULL_COUNT, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    if (grouped)
        require_ok(ncclGroupEnd());
    struct fake_graph *graph = captured ? fake_capture_end(rank->stream) : NULL;
    for (int i = 0; i < 3 && captured; i++)
        fake_graph_launch(graph, rank->stream);
    gather_check(rank, gather);
    if (captured)
        fake_graph_end(graph);
}

static void run_full(struct rank *rank)
{
    const struct full *full = rank->argument;
    struct gather gather = gather_new(rank, COLL_BF16, FULL_COUNT, VALUES_NORMAL);
    uint8_t *sum = values_new(rank, COLL_BF16, FULL_COUNT);
    ranks_meet();
    fake_gpu.full = full->devices;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        gather_and_sum(rank, &gather, sum, full->grouped, false);
        ranks_meet(); /* so that it is known how much was compressed */
    }
    const struct told gathers = told_of(rank->comm, "all_gather", "bf16"),
                      sums = told_of(rank->comm, "all_reduce", "bf16");
    require(gathers.calls == TURNS && sums.calls == TURNS);
    require(gathers.compressed == (full->devices == 0 ? TURNS : 1));
    require(full->devices == 0 || (sums.compressed <= 1 && strstr(gathers.reason, "no memory") != NULL));
    fake_gpu.full = 0;
}

START_TEST(gpus_without_memory_make_all_ranks_raw)
{
    const struct full full = {(unsigned)_i, false};
    ranks_run(3, run_full, &full);
}
END_TEST

START_TEST(gpus_without_memory_make_all_groups_raw)
{
    const struct full full = {(unsigned)_i, true};
    ranks_run(3, run_full, &full);
}
END_TEST

static void run_captured(struct rank *rank)
{
    struct gather gather = gather_new(rank, COLL_BF16, FULL_COUNT, VALUES_NORMAL);
    uint8_t *sum = values_new(rank, COLL_BF16, FULL_COUNT);
    gather_and_sum(rank, &gather, sum, false, false);
    ranks_meet();
    fake_gpu.full = (unsigned)*(const int *)rank->argument;
    gather_and_sum(rank, &gather, sum, false, true); /* a graph, which has memory of its own */
    gather_and_sum(rank, &gather, sum, false, false);
    require(told_of(rank->comm, "all_gather", "bf16").compressed == 2);
    ranks_meet();
    fake_gpu.full = 0;
}

START_TEST(graphs_that_are_captured_without_memory_are_right)
{
    ranks_run(3, run_captured, &_i);
}
END_TEST

/* ---- Allocations and launches that fail -------------------------------------------------------------------------- */

enum { COUNT_OF = 40001 };

/* A flow of operations, some of which overflow, on ranks that are aborted as soon as one of them fails. */
struct flow {
    _Atomic int32_t *countdown; /* set to n: when communicators are there, if `late`, else before */
    int32_t n;
    bool late;
    _Atomic int failed, raw, done;
};

static bool wait_or_give_up(struct rank *rank, struct flow *flow)
{
    while (!fake_stream_idle(rank->stream) && !flow->failed)
        usleep(200);
    if (error_of(rank->comm) != COLL_SUCCESS)
        flow->failed = 1;
    return !flow->failed;
}

/* The third is a graph. For the last two there is no room yet. */
static bool run_turn(struct rank *rank, struct flow *flow, struct gather *gather, unsigned turn)
{
    gather->count = turn < 3 ? COUNT_OF : 4 * COUNT_OF;
    gather_fill(rank, gather, turn == 1 ? VALUES_NOISE : VALUES_NORMAL, 10 * turn);
    if (turn == 2)
        fake_capture_begin(rank->stream);
    const coll_result result = gather_post(rank, gather);
    if (turn == 2) {
        struct fake_graph *graph = fake_capture_end(rank->stream);
        if (result == COLL_SUCCESS)
            fake_graph_launch(graph, rank->stream);
        fake_graph_end(graph);
    }
    if (result != COLL_SUCCESS)
        flow->failed = 1;
    if (!wait_or_give_up(rank, flow))
        return false;
    gather_check(rank, gather);
    return true;
}

static void run_flow(struct rank *rank)
{
    struct flow *flow = rank->argument;
    struct gather gather = gather_new(rank, COLL_BF16, 4 * COUNT_OF, VALUES_NORMAL);
    if (rank->rank == 0 && !flow->late)
        *flow->countdown = flow->n;
    ranks_meet();
    rank_begin(rank);
    ranks_meet();
    if (rank->rank == 0 && flow->late)
        *flow->countdown = flow->n;
    ranks_meet();
    bool good = true;
    for (unsigned turn = 0; turn < 5 && good; turn++)
        good = run_turn(rank, flow, &gather, turn);
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    flow->raw += told.calls > 0 && told.compressed == 0;
    flow->done += good;
    ranks_meet();
    if (flow->failed)
        rank_abort(rank);
    else
        rank_end(rank);
}

/* Errors or none, but alike, and all that was made is gone. */
static void fail_every(_Atomic int32_t *countdown, bool late)
{
    int raw = 0, failed = 0;
    for (struct flow flow = {0}; *countdown <= 0;) {
        flow = (struct flow){.countdown = countdown, .n = flow.n + 1, .late = late};
        ranks_start(2, run_flow, &flow);
        require(flow.failed || (flow.done == 2 && (flow.raw == 0 || flow.raw == 2)));
        require(*countdown <= 0 || (!flow.failed && flow.raw == 0)); /* so many are not made at all */
        raw += flow.raw == 2;
        failed += flow.failed;
    }
    printf("%d times raw, %d times an error\n", raw, failed);
    require(raw + failed > 0);
}

START_TEST(an_allocation_that_fails_is_an_error_or_makes_all_raw)
{
    if (_i == 2)
        links_begin(20000, 10000000);
    fake_gpu.fail_device = _i == 1 ? -1 : 0; /* of rank 0, or of both by chance */
    fail_every(&fake_gpu.fail_making, false);
}
END_TEST

/* From the first operation on: before, all ranks would wait for the one that cannot even tell that it cannot. */
START_TEST(a_launch_that_fails_is_an_error)
{
    fail_every(&fake_gpu.fail_work, true);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("memory");
    tcase_add_test(tests, a_launch_that_fails_is_an_error);
    tcase_add_loop_test(tests, an_allocation_that_fails_is_an_error_or_makes_all_raw, 0, 3);
    if (getenv("STRAIT_TEST_HOSTS") == NULL) {                         /* other hosts learn later of a full GPU */
        add_loop(tests, gpus_without_memory_make_all_ranks_raw, 0, 8); /* 0: all have memory */
        add_loop(tests, gpus_without_memory_make_all_groups_raw, 1, 8);
        add_loop(tests, graphs_that_are_captured_without_memory_are_right, 1, 8);
    }
    return suite_run("memory", tests);
}
