/* Channels in host memory that move messages in NCCL's place (collective/engine/shm.h): who gets them, which operations
 * take them, that what they move is right, and that an abort ends what waits for them. */
#include <unistd.h>

#include "tests/coll_engine/harness.h"

/* Femtoseconds per byte, beside the 10000000 of NCCL that overlap_begin sets. */
enum { QUICK_FS = 5000000, SLOW_FS = 200000000, MIDDLE = 100000 };

static const struct way {
    const char *mode, *shm;
    uint32_t fs, no_shm;
    bool channels;
    const char *disabled; /* NCCL_SHM_DISABLE; NULL: not set */
} ways[] = {
    {"auto", "auto", QUICK_FS, 0, true, NULL},       {"auto", "auto", SLOW_FS, 0, false, NULL},
    {"auto", "never", QUICK_FS, 0, false, NULL},     {"auto", "always", SLOW_FS, 0, true, NULL},
    {"auto", "auto", QUICK_FS, 2, false, NULL},      {"compress", "auto", QUICK_FS, 0, false, NULL},
    {"compress", "always", QUICK_FS, 0, true, NULL}, {"compress", "always", QUICK_FS, 1, false, NULL},
    {"auto", "auto", QUICK_FS, 0, false, "1"},       {"auto", "auto", QUICK_FS, 0, true, "0"},
    {"auto", "always", QUICK_FS, 0, true, "1"},
};

static void begin(const struct way *way)
{
    overlap_begin();
    setenv("STRAIT_COLL", way->mode, 1);
    setenv("STRAIT_COLL_SHM", way->shm, 1);
    if (way->disabled != NULL)
        setenv("NCCL_SHM_DISABLE", way->disabled, 1);
    fake_gpu.shm_fs = way->fs;
    fake_gpu.no_shm = way->no_shm;
}

/* How many pieces all ranks have taken from channels since they met last; all of them call it. */
static uint64_t taken_since(uint64_t *before)
{
    ranks_meet();
    const uint64_t now = fake_gpu.channelled, taken = now - *before;
    ranks_meet();
    *before = now;
    return taken;
}

static void run_one(const struct rank *rank, enum coll_operation what, size_t count, bool grouped)
{
    struct operation operation = {.what = what,
                                  .type = COLL_BF16,
                                  .count = count,
                                  .kind = VALUES_WIDENED,
                                  .other = VALUES_NOISE,
                                  .others = what == COLL_ALL_TO_ALL ? 1 : 0, /* rank 0's overflow */
                                  .seed = seed_of(1 + (unsigned)what, 0, 0)};
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    if (grouped)
        require_ok(ncclGroupStart());
    require_ok(operation_post(rank, &operation));
    if (grouped)
        require_ok(ncclGroupEnd());
    operation_check(rank, &operation);
}

static void use(struct rank *rank)
{
    static const enum coll_operation whats[] = {COLL_ALL_GATHER, COLL_ALL_TO_ALL, COLL_REDUCE_SCATTER, COLL_ALL_REDUCE};
    const struct way *way = rank->argument;
    uint64_t before = 0;
    overlap_warm_up(rank, rank->comm, COLL_BF16);
    /* A forced communicator does not know its link, which is so slow that these messages are cut, and cuts long ones.
     */
    const size_t count = way->channels && strcmp(way->mode, "compress") == 0 ? (size_t)5 << 20 : MIDDLE;
    (void)taken_since(&before);
    for (size_t i = 0; i < COUNT(whats); i++) {
        run_one(rank, whats[i], count * (whats[i] == COLL_ALL_REDUCE ? (size_t)rank->ranks : 1) + 2, false);
        require((taken_since(&before) > 0) == way->channels);
    }
    run_one(rank, COLL_BROADCAST, count, false);
    require(taken_since(&before) == 0);
    run_one(rank, COLL_ALL_TO_ALL, count, true); /* which ends the cutting of its class */
    require(taken_since(&before) == 0);
}

START_TEST(operations_outside_of_groups_take_channels_where_there_are_some)
{
    begin(&ways[_i]);
    ranks_run(2, use, &ways[_i]);
}
END_TEST

/* Two channels to each other rank, or one. */
START_TEST(any_number_of_ranks_has_channels)
{
    static const int numbers[] = {3, 5};
    begin(&ways[0]);
    ranks_run(numbers[_i], use, &ways[0]);
}
END_TEST

static void launch_again(struct rank *rank)
{
    enum { LAUNCHES = 5 };
    uint64_t before = 0;
    overlap_warm_up(rank, rank->comm, COLL_BF16);
    struct operation operation = {
        .what = COLL_REDUCE_SCATTER, .type = COLL_BF16, .count = MIDDLE, .kind = VALUES_WIDENED};
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    fake_capture_begin(rank->stream);
    require_ok(operation_post(rank, &operation));
    struct fake_graph *graph = fake_capture_end(rank->stream);
    (void)taken_since(&before);
    for (int i = 0; i < LAUNCHES; i++) {
        operation.seed = seed_of(10 + (unsigned)i, 0, 0);
        operation_fill(rank, &operation);
        fake_graph_launch(graph, rank->stream);
        operation_check(rank, &operation);
        run_one(rank, COLL_ALL_GATHER, MIDDLE, false); /* between: both count the same slots */
    }
    require(taken_since(&before) > 0);
    fake_graph_end(graph);
}

START_TEST(graphs_take_channels)
{
    begin(&ways[0]);
    ranks_run(2, launch_again, &ways[0]);
}
END_TEST

/* The other rank does not come. */
static void wait_in_vain(struct rank *rank)
{
    struct operation operation = {.what = COLL_ALL_GATHER, .type = COLL_BF16, .count = MIDDLE, .kind = VALUES_WIDENED};
    rank_begin(rank);
    overlap_warm_up(rank, rank->comm, COLL_BF16);
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    if (rank->rank == 0) {
        require_ok(operation_post(rank, &operation));
        require(!ends_within(rank->stream, 300));
    }
    ranks_meet();
    rank_abort(rank);
}

START_TEST(an_abort_ends_what_waits)
{
    begin(&ways[0]);
    ranks_start(2, wait_in_vain, NULL);
}
END_TEST

/* Ranks 0 and 1 have channels in one of the communicators that they make in a group, ranks 2 and 3 in none. */
static void make_two(struct rank *rank)
{
    const coll_id *pairs = rank->argument;
    coll_comm comms[2];
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require_ok(ncclGroupStart());
    require_ok(ncclCommInitRank(&comms[0], rank->ranks, rank->id, rank->rank));
    require_ok(ncclCommInitRank(&comms[1], 2, pairs[rank->rank / 2], rank->rank % 2));
    require_ok(ncclGroupEnd());
    ranks_meet();
    for (int i = 0; i < 2; i++) {
        struct rank of = *rank;
        of.comm = comms[i];
        of.rank = i == 0 ? rank->rank : rank->rank % 2;
        of.ranks = i == 0 ? rank->ranks : 2;
        run_one(&of, COLL_ALL_GATHER, MIDDLE, false);
        require_ok(error_of(comms[i]));
        ranks_meet();
    }
    for (int i = 0; i < 2; i++)
        require_ok(ncclCommDestroy(comms[i]));
    fake_stream_end(rank->stream);
}

START_TEST(communicators_of_a_group_measure_what_each_has)
{
    coll_id pairs[2];
    begin(&ways[0]);
    fake_gpu.no_shm = 1 << 2;
    setenv("STRAIT_TEST_HOSTS", "2", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    for (int i = 0; i < 2; i++)
        require_ok(ncclGetUniqueId(&pairs[i]));
    ranks_start(4, make_two, pairs);
}
END_TEST

/* `test_coll_shm core`: only what is short, for ThreadSanitizer. */
int main(int argc, char **argv)
{
    const bool is_core = argc > 1 && strcmp(argv[1], "core") == 0;
    TCase *tests = tcase_create("shm");
    if (is_core) {
        tcase_add_test(tests, graphs_take_channels);
        return suite_run("shm_core", tests);
    }
    tcase_add_loop_test(tests, operations_outside_of_groups_take_channels_where_there_are_some, 0, COUNT(ways));
    tcase_add_loop_test(tests, any_number_of_ranks_has_channels, 0, 2);
    tcase_add_test(tests, graphs_take_channels);
    tcase_add_test(tests, an_abort_ends_what_waits);
    tcase_add_test(tests, communicators_of_a_group_measure_what_each_has);
    return suite_run("shm", tests);
}
