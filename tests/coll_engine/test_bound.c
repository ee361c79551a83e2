/* Where overflows are slow, as between hosts, they are bounded over time: ranks are on hosts of their own, their links
 * and what does not fit take the time of networks, and that of many operations is added up. */
#include <string.h>
#include <unistd.h>

#include "collective/settings.h"
#include "tests/coll_engine/harness.h"

enum { LINK_NS = 10000, RING_FS = 357000 /* 2.8 GB/s of what does not fit */, CODEC_FS = 1000 };

static void set_codec(uint32_t fs)
{
    for (int device = 0; device < FAKE_GPUS; device++)
        fake_gpu.codec_fs[device] = fs;
}

static void set_network(double gbit, const char *neighbours)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("STRAIT_TEST_HOSTS", neighbours, 1);
    links_begin(LINK_NS, (uint32_t)(8e6 / gbit));
    fake_gpu.ring_fs = RING_FS;
    set_codec(CODEC_FS);
}

/* ---- What is compressed ------------------------------------------------------------------------------------------ */

static FILE *printed;

static void read_table(struct coll_sizes *sizes)
{
    char text[8192] = "";
    const char *name = "STRAIT_COLL_TABLE=";
    require(pread(fileno(printed), text, sizeof(text) - 1, 0) > 0);
    char *table = strstr(text, name);
    require(table != NULL);
    table[strcspn(table, "\n")] = '\0';
    require(coll_sizes_read(sizes, table + strlen(name)));
}

static uint64_t from_of(const struct coll_sizes *sizes, enum coll_operation operation)
{
    return coll_sizes_from(sizes, &(struct coll_call){.operation = operation, .type = COLL_BF16});
}

/* By the network of each rank, and by how many neighbours are on one host; near_fs: these reach each other without it.
 */
static const struct {
    double gbit;
    int ranks;
    const char *neighbours;
    bool sums;
    uint32_t near_fs;
} networks[] = {{10, 2, "1", true, 0},     {25, 2, "1", true, 0},   {40, 2, "1", true, 0},   {100, 2, "1", true, 0},
                {400, 2, "1", true, 0},    {10, 4, "2", false, 0},  {100, 4, "2", false, 0}, {10, 4, "2", true, 4000},
                {100, 4, "2", true, 4000}, {25, 8, "4", true, 4000}};

static void look_at_table(struct rank *rank)
{
    const bool sums = *(const bool *)rank->argument;
    struct coll_sizes sizes;
    read_table(&sizes);
    require(from_of(&sizes, COLL_ALL_GATHER) <= 128 << 20);
    require(from_of(&sizes, COLL_ALL_TO_ALL) <= 128 << 20);
    /* Ranks of a host send each other as much by the network as they would to others, unless they are near. */
    require((from_of(&sizes, COLL_REDUCE_SCATTER) != COLL_SIZES_NEVER) == sums);
}

START_TEST(networks_of_all_rates_are_compressed)
{
    printed = tmpfile();
    require(printed != NULL && dup2(fileno(printed), STDERR_FILENO) == STDERR_FILENO);
    setenv("STRAIT_COLL_PRINT", "1", 1);
    set_network(networks[_i].gbit, networks[_i].neighbours);
    fake_gpu.near_fs = networks[_i].near_fs;
    fake_gpu.sum_fs = networks[_i].sums && networks[_i].near_fs == 0 ? fake_gpu.link_fs[0] : 0;
    ranks_run(networks[_i].ranks, look_at_table, &networks[_i].sums);
}
END_TEST

/* ---- What it gains ----------------------------------------------------------------------------------------------- */

enum { COUNT_OF = 1 << 17, QUEUED = 8 };

/* Slots of what did not fit, besides those by which links were measured. */
static _Atomic uint64_t taken_before;

static void begin_to_count(void)
{
    ranks_meet();
    taken_before = fake_gpu.taken;
    ranks_meet();
}

static bool has_overflowed(void)
{
    return fake_gpu.taken > taken_before;
}

/* What a turn's data is: n: it fits; a: noise. */
struct run {
    char (*at)(unsigned turn);
    unsigned operations;
    double least;
    bool overflows;
};

/* All ranks gather what fits or noise, some operations ahead. Returns NCCL's time by ours. */
static double gain_of(struct rank *rank, const struct run *run)
{
    struct gather fits = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    struct gather noise = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NOISE);
    struct CUevent_st *begin = fake_event_make(), *end = fake_event_make();
    begin_to_count();
    require_ok(gather_post(rank, run->at(0) == 'n' ? &fits : &noise)); /* behind all that joining took */
    fake_event_record(begin, rank->stream);
    for (unsigned turn = 1; turn < run->operations; turn++) {
        const struct gather *gather = run->at(turn) == 'n' ? &fits : &noise;
        const bool looked_at = gather == &noise ? turn % 100 < 3 || run->overflows : turn % 100 == 0;
        if (looked_at) {
            fake_stream_wait(rank->stream);
            memset(gather->all, 0x5b, (size_t)rank->ranks * COUNT_OF * 2);
        }
        require_ok(gather_post(rank, gather));
        if (looked_at || turn % QUEUED == 0)
            gather_check(rank, gather);
    }
    fake_event_record(end, rank->stream);
    fake_event_wait(end);
    const double ours = fake_event_seconds(begin, end);
    fake_event_end(begin);
    fake_event_end(end);
    const double each = 1e-9 * LINK_NS + 1e-15 * fake_gpu.link_fs[0] * COUNT_OF * 2;
    return (run->operations - 1) * each / ours;
}

static char all_fits(unsigned turn)
{
    (void)turn;
    return 'n';
}

static char five_do_not_fit(unsigned turn)
{
    return turn % 400 == 399 ? 'a' : 'n';
}

static char three_do_not_fit(unsigned turn)
{
    return turn % 200 == 199 ? 'a' : 'n';
}

static char nothing_fits(unsigned turn)
{
    (void)turn;
    return 'a';
}

static const struct run runs[] = {{all_fits, 500, 1.30, false},
                                  {five_do_not_fit, 2000, 1.25, true},
                                  {nothing_fits, 600, 0.98, false},
                                  {three_do_not_fit, 600, 1.10, true}};

static void gather_many(struct rank *rank)
{
    const struct run *run = rank->argument;
    const double gain = gain_of(rank, run);
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    if (gain < run->least)
        fprintf(stderr, "rank %d: %.3f of NCCL's speed, not %.2f; %llu of %llu compressed\n", rank->rank, gain,
                run->least, told.compressed, told.calls);
    require(gain >= run->least);
}

START_TEST(many_operations_gain_whatever_overflows)
{
    set_network(5, runs[_i].at == three_do_not_fit ? "2" : "1");
    if (runs[_i].at == three_do_not_fit) /* on one host, where they are slow too */
        fake_gpu.ring_fs = 10 * RING_FS;
    ranks_run(2, gather_many, &runs[_i]);
    require(has_overflowed() == runs[_i].overflows);
}
END_TEST

/* What has fitted and fits no more goes raw, and hardly anything is moved twice. */
static char no_more_fits(unsigned turn)
{
    return turn < 100 ? 'n' : 'a';
}

static void gather_noise_later(struct rank *rank)
{
    const struct run run = {no_more_fits, 500, 0, false};
    (void)gain_of(rank, &run);
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    require(told.compressed > 60 && told.compressed < 260);
    require(strcmp(told.reason, "the last: not known to shrink") == 0 ||
            strcmp(told.reason, "the last: compressed") == 0);
}

START_TEST(what_fits_no_more_goes_raw)
{
    set_network(5, "1");
    ranks_run(2, gather_noise_later, NULL);
    require(has_overflowed());
}
END_TEST

/* ---- What takes longer than was measured ------------------------------------------------------------------------- */

/* The codec becomes slow when the communicator has been made: on one host and between two. */
static void gather_slowly(struct rank *rank)
{
    const struct run run = {all_fits, 2000, 0.97, false};
    ranks_meet();
    set_codec(*(const int *)rank->argument == 0 ? 400000 : 1300000); /* which overlaps on one host */
    ranks_meet();
    const double gain = gain_of(rank, &run);
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    if (gain < run.least || told.compressed > 200)
        fprintf(stderr, "rank %d: %.3f of NCCL's speed, %llu of %llu compressed: %s\n", rank->rank, gain,
                told.compressed, told.calls, told.reason);
    require(gain >= run.least && told.compressed > 80 && told.compressed < 200);
    require(strcmp(told.reason, "the last: compressing has taken longer") == 0);
}

START_TEST(what_is_slower_than_nccl_goes_raw)
{
    set_network(5, _i == 0 ? "1" : "2");
    ranks_run(2, gather_slowly, &_i);
}
END_TEST

static const struct timed {
    enum coll_operation what;
    const char *name;
} timed[] = {{COLL_ALL_GATHER, "all_gather"},
             {COLL_ALL_TO_ALL, "all_to_all"},
             {COLL_REDUCE_SCATTER, "reduce_scatter"},
             {COLL_ALL_REDUCE, "all_reduce"},
             {COLL_BROADCAST, "broadcast"}};

/* What rank 0 times, and all leave raw for that, gives what it gives anyhow. */
static void run_until_timed(struct rank *rank)
{
    enum { TURNS = 64 };
    const struct timed *of = rank->argument;
    struct operation operation = {.what = of->what, .type = COLL_BF16, .count = COUNT_OF, .reduction = COLL_SUM};
    bool left_raw = false;
    operation_new(rank, &operation, 0, false);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        operation.seed = seed_of(turn, 0, 0);
        operation.root = (int)turn % rank->ranks;
        operation_fill(rank, &operation);
        require_ok(operation_post(rank, &operation));
        operation_check(rank, &operation);
        left_raw |= strstr(told_of(rank->comm, of->name, "bf16").reason, "timed, to compare") != NULL;
    }
    const struct told told = told_of(rank->comm, of->name, "bf16");
    if (!left_raw || told.compressed <= TURNS / 4)
        fprintf(stderr, "%s: %llu of %llu compressed: %s\n", of->name, told.compressed, told.calls, told.reason);
    require(left_raw && told.compressed > TURNS / 4);
}

START_TEST(what_is_timed_raw_gives_the_same)
{
    set_network(5, "1");
    fake_gpu.sum_fs = 4 * fake_gpu.link_fs[0]; /* so that sums pay, too */
    ranks_run(2, run_until_timed, &timed[_i]);
}
END_TEST

/* ---- Probes and graphs ------------------------------------------------------------------------------------------- */

/* The first operations have room for anything. */
static void probe_first(struct rank *rank)
{
    const struct gather noise = gather_new(rank, COLL_BF16, COUNT_OF + 5, VALUES_NOISE);
    begin_to_count();
    for (unsigned turn = 0; turn < 3; turn++) {
        memset(noise.all, 0x5b, (size_t)rank->ranks * noise.count * 2);
        gather_run(rank, &noise, turn == 1);
        ranks_meet();
    }
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    require(told.compressed == 3 && told.wire >= 3 * 2 * noise.count);
}

START_TEST(probes_cannot_overflow)
{
    set_network(5, _i == 0 ? "1" : "2");
    ranks_run(_i == 0 ? 2 : 4, probe_first, NULL);
    require(!has_overflowed());
}
END_TEST

/* A sum of more than two ranks has two phases, which are probed and compressed together. */
static void sum_many(struct rank *rank)
{
    enum { TURNS = 60 };
    struct told told = {0};
    unsigned long long before = 0;
    struct operation operation = {.what = COLL_ALL_REDUCE, .type = COLL_BF16, .count = 3 * COUNT_OF};
    operation_new(rank, &operation, 0, true);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        operation.seed = seed_of(turn, 0, 0);
        operation_fill(rank, &operation);
        require_ok(operation_post(rank, &operation));
        told = told_of(rank->comm, "all_reduce", "bf16");
        operation.order = told.compressed == before ? COLL_REDUCE_NCCL_RING : COLL_REDUCE_IN_FP32;
        before = told.compressed;
        operation_check(rank, &operation);
    }
    require(told.compressed > 10 && strcmp(told.reason, "the last: compressed") == 0);
}

START_TEST(phases_are_probed_together)
{
    set_network(2, "1");
    fake_gpu.sum_fs = 8 * fake_gpu.link_fs[0];
    ranks_run(3, sum_many, NULL);
}
END_TEST

/* What a graph captures overflows again each time, so a single overflow must not take long. */
static void capture(struct rank *rank)
{
    const bool compressed = *(const int *)rank->argument == 0;
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    for (unsigned turn = 0; turn < 40; turn++) {
        gather_run(rank, &gather, false);
        ranks_meet();
    }
    const unsigned long long before = told_of(rank->comm, "all_gather", "bf16").compressed;
    fake_capture_begin(rank->stream);
    require_ok(gather_post(rank, &gather));
    struct fake_graph *graph = fake_capture_end(rank->stream);
    fake_graph_launch(graph, rank->stream);
    gather_check(rank, &gather);
    require(told_of(rank->comm, "all_gather", "bf16").compressed - before == compressed && before > 10);
    fake_graph_end(graph);
}

START_TEST(graphs_are_bounded_by_operation)
{
    set_network(5, "1");
    fake_gpu.ring_fs = _i == 0 ? RING_FS : 10 * RING_FS;
    ranks_run(2, capture, &_i);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("bound");
    add_loop(tests, networks_of_all_rates_are_compressed, 0, COUNT(networks));
    tcase_add_loop_test(tests, many_operations_gain_whatever_overflows, 0, COUNT(runs));
    tcase_add_test(tests, what_fits_no_more_goes_raw);
    tcase_add_loop_test(tests, what_is_slower_than_nccl_goes_raw, 0, 2);
    tcase_add_loop_test(tests, what_is_timed_raw_gives_the_same, 0, COUNT(timed));
    tcase_add_loop_test(tests, probes_cannot_overflow, 0, 2);
    tcase_add_test(tests, phases_are_probed_together);
    tcase_add_loop_test(tests, graphs_are_bounded_by_operation, 0, 2);
    return suite_run("bound", tests);
}
