/* A GPU without memory for messages: what the others have begun is moved compressed by way of the host's memory, and
 * what comes next is raw on all ranks, without an error. */
#include <string.h>

#include "tests/coll_engine/harness.h"

enum { COUNT_OF = 160001, TURNS = 4 };

struct full {
    unsigned devices; /* bits: those that have none, from the first operation on */
    bool captured, grouped;
};

static void ask(struct rank *rank, const uint8_t *own, uint8_t *all, uint8_t *sum)
{
    const struct full *full = rank->argument;
    if (full->grouped)
        require_ok(ncclGroupStart());
    require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
    require_ok(ncclAllReduce(own, sum, COUNT_OF, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    if (full->grouped)
        require_ok(ncclGroupEnd());
}

static void turn(struct rank *rank, unsigned number, const uint8_t *own, uint8_t *all, uint8_t *sum)
{
    const struct full *full = rank->argument;
    const bool captured = full->captured && number == 1;
    memset(all, 0, (size_t)rank->ranks * COUNT_OF * 2);
    if (captured)
        fake_capture_begin(rank->stream);
    ask(rank, own, all, sum);
    struct fake_graph *graph = captured ? fake_capture_end(rank->stream) : NULL;
    for (int i = 0; i < 3 && captured; i++)
        fake_graph_launch(graph, rank->stream);
    fake_stream_wait(rank->stream);
    for (int from = 0; from < rank->ranks; from++)
        require(values_are(all + (size_t)from * COUNT_OF * 2, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)from));
    if (captured)
        fake_graph_end(graph);
}

static void run(struct rank *rank)
{
    const struct full *full = rank->argument;
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *sum = values_new(COLL_BF16, COUNT_OF, 0);
    uint8_t *all = values_new(COLL_BF16, (size_t)rank->ranks * COUNT_OF, 0);
    uint8_t *first = values_new(COLL_BF16, COUNT_OF, 0);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    ranks_meet();
    fake_gpu.full = full->devices;
    for (unsigned number = 0; number < TURNS; number++) {
        turn(rank, number, own, all, number == 0 ? first : sum);
        ranks_meet(); /* so that it is known how much was compressed */
    }
    const struct told gathers = told_of(rank->comm, "all_gather", "bf16"),
                      sums = told_of(rank->comm, "all_reduce", "bf16");
    require(gathers.calls == TURNS && sums.calls == TURNS);
    require(gathers.compressed == (full->devices == 0 ? TURNS : 1));
    require(full->devices == 0 || (sums.compressed <= 1 && strstr(gathers.reason, "no memory") != NULL));
    fake_gpu.full = 0;
    values_free(own, COLL_BF16, 0);
    values_free(sum, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
    values_free(first, COLL_BF16, 0);
}

static void run_full(unsigned devices, bool captured, bool grouped)
{
    struct full full = {devices, captured, grouped};
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(3, run, &full);
}

START_TEST(who_has_memory_compresses)
{
    run_full(0, false, false);
}
END_TEST

START_TEST(ranks_without_memory_make_all_raw)
{
    run_full((unsigned)_i, false, false);
}
END_TEST

START_TEST(so_do_they_in_groups)
{
    run_full((unsigned)_i, false, true);
}
END_TEST

static void run_captured(struct rank *rank)
{
    const struct full *full = rank->argument;
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *sum = values_new(COLL_BF16, COUNT_OF, 0);
    uint8_t *all = values_new(COLL_BF16, (size_t)rank->ranks * COUNT_OF, 0);
    values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, (unsigned)rank->rank);
    turn(rank, 0, own, all, sum);
    ranks_meet();
    fake_gpu.full = full->devices;
    turn(rank, 1, own, all, sum); /* a graph, which has memory of its own */
    turn(rank, 2, own, all, sum);
    require(told_of(rank->comm, "all_gather", "bf16").compressed == 2);
    ranks_meet();
    fake_gpu.full = 0;
    values_free(own, COLL_BF16, 0);
    values_free(sum, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(graphs_that_are_captured_without_memory_are_right)
{
    struct full full = {(unsigned)_i, true, false};
    setenv("STRAIT_COLL", "compress", 1);
    ranks_run(3, run_captured, &full);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("memory");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, who_has_memory_compresses);
    add_loop(tests, ranks_without_memory_make_all_raw, 1, 8);
    add_loop(tests, so_do_they_in_groups, 1, 8);
    add_loop(tests, graphs_that_are_captured_without_memory_are_right, 1, 8);
    return suite_run("memory", tests);
}
