/* STRAIT_COLL=auto: what is compressed follows from what the link was found to cost, alike on all ranks. */
#include <string.h>
#include <unistd.h>

#include "collective/settings.h"
#include "tests/coll_engine/harness.h"

enum { MOST = 4 << 20 };

/* Compressed, or why not, by what every rank's link costs. */
struct link {
    uint32_t fs[3]; /* a byte, of each rank */
    size_t count;
    uint32_t ring_fs; /* of what does not fit */
    const char *reason;
};

static const struct link links[] = {
    {{400000, 400000, 400000}, 1 << 20, 0, "the last: compressed"}, /* 2.5 GB/s */
    {{400000, 400000, 400000}, 40000, 0, "raw: the link is fast"},  /* too little for what the codec's launches take */
    {{2700, 2700, 2700}, MOST, 0, "raw: the link is fast"},         /* NVLink */
    {{400000, 400000, 2700}, MOST, 0, "raw: the link is fast"},     /* the fastest counts for all */
    {{4000000, 400000, 1000000}, MOST, 0, "the last: compressed"},
    {{0, 0, 0}, MOST, 0, "raw: the link is fast"},
    {{10000000, 10000000, 10000000}, 32768, 0, "the last: compressed"},  /* slow, and no longer than head and tail */
    {{400000, 400000, 400000}, 1 << 20, 200000, "the last: compressed"}, /* of two other ranks */
    {{400000, 400000, 400000}, 1 << 20, 1000000, "raw: what does not fit would take too long"},
};

static void gather(struct rank *rank)
{
    const struct link *link = rank->argument;
    uint8_t *own = values_new(COLL_BF16, link->count, 0), *all = values_new(COLL_BF16, link->count * 3, 0);
    values_fill(own, COLL_BF16, link->count, VALUES_NORMAL, (unsigned)rank->rank);
    require_ok(ncclAllGather(own, all, link->count, COLL_BF16, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    for (unsigned from = 0; from < 3; from++)
        require(values_are(all + from * link->count * 2, COLL_BF16, link->count, VALUES_NORMAL, from));
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    require(told.calls == 1 && strcmp(told.reason, link->reason) == 0);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

static const struct told_table {
    struct link link;
    const char *table;
} tables[] = {
    {{{400000, 400000, 400000}, 1 << 20, 0, "raw: too small, as it was told"}, "all_gather=4M"},
    {{{400000, 400000, 400000}, 1 << 20, 0, "raw: too small, as it was told"}, "all_reduce=1,all_gather:bf16=2097153"},
    {{{400000, 400000, 400000}, 1 << 20, 0, "raw: too small, as it was told"}, "all_gather=never"},
    {{{400000, 400000, 400000}, 1 << 20, 0, "the last: compressed"}, "all_gather=2M"},
    {{{400000, 400000, 400000}, 1 << 20, 0, "the last: compressed"}, "all_gather:fp32=never,all_to_all=never"},
    {{{400000, 400000, 400000}, 1 << 20, 0, "the last: compressed"}, "all_gather=neve"}, /* not understood */
    {{{2700, 2700, 2700}, 1 << 20, 0, "the last: compressed"}, "all_gather=2M"},
    {{{2700, 2700, 2700}, 40000, 0, "the last: compressed"}, "all_gather=0"},
    {{{2700, 2700, 2700}, 4000, 0, "raw: too small or too large"}, "all_gather=0"},
};

START_TEST(the_table_decides_before_the_link)
{
    setenv("STRAIT_COLL", "auto", 1);
    setenv("STRAIT_COLL_TABLE", tables[_i].table, 1);
    for (int rank = 0; rank < 3; rank++) {
        fake_gpu.link_ns[rank] = 10000;
        fake_gpu.link_fs[rank] = tables[_i].link.fs[rank];
    }
    ranks_run(3, gather, (void *)(uintptr_t)&tables[_i].link);
}
END_TEST

START_TEST(the_table_bounds_what_is_always_compressed)
{
    const struct link large = {.count = 1 << 20, .reason = "the last: compressed"},
                      small = {.count = 1 << 19, .reason = "raw: too small, as it was told"};
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_TABLE", "all_gather=2M", 1);
    ranks_run(3, gather, (void *)(uintptr_t)(_i == 0 ? &large : &small));
}
END_TEST

/* What all ranks print is what they do. */
static FILE *printed;

static struct told gather_of(const struct rank *rank, coll_comm comm, size_t count)
{
    uint8_t *own = values_new(COLL_BF16, count, 0), *all = values_new(COLL_BF16, count * 2, 0);
    values_fill(own, COLL_BF16, count, VALUES_NORMAL, 1);
    require_ok(ncclAllGather(own, all, count, COLL_BF16, comm, rank->stream));
    fake_stream_wait(rank->stream);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
    return told_of(comm, "all_gather", "bf16");
}

static void gather_as_printed(struct rank *rank)
{
    char text[4096] = "";
    const char *name = "STRAIT_COLL_TABLE=";
    struct coll_sizes sizes;
    require(pread(fileno(printed), text, sizeof(text) - 1, 0) > 0);
    char *table = strstr(text, name);
    require(table != NULL);
    table[strcspn(table, "\n")] = '\0';
    require(coll_sizes_read(&sizes, table + strlen(name)));
    const uint64_t from = coll_sizes_from(&sizes, &(struct coll_call){.operation = COLL_ALL_GATHER, .type = COLL_BF16});
    require(from > 32 << 10 && from <= 2 * MOST);
    require(gather_of(rank, rank->comm, from / 2).compressed == 1);
    require(gather_of(rank, rank->comm, from / 4).compressed == 1);
}

START_TEST(the_table_is_printed)
{
    printed = tmpfile();
    require(printed != NULL && dup2(fileno(printed), STDERR_FILENO) == STDERR_FILENO);
    setenv("STRAIT_COLL", "auto", 1);
    setenv("STRAIT_COLL_PRINT", "1", 1);
    for (int rank = 0; rank < 2; rank++) {
        fake_gpu.link_ns[rank] = 10000;
        fake_gpu.link_fs[rank] = 400000;
    }
    ranks_run(2, gather_as_printed, NULL);
}
END_TEST

/* Some calls pay only where coding and moving overlap, which they do not in groups. Ranks group such calls differently,
 * and go on to agree on the levels of others. */
static void gather_mixed(struct rank *rank)
{
    enum { BAND = 900000, LONG = 1200000, TURNS = 4 };
    uint8_t *own = values_new(COLL_BF16, LONG, 0), *all = values_new(COLL_BF16, (size_t)LONG * 8, 0);
    values_fill(own, COLL_BF16, LONG, VALUES_NOISE, (unsigned)rank->rank);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const bool grouped = turn == 0 && rank->rank == 1;
        if (grouped)
            require_ok(ncclGroupStart());
        require_ok(ncclAllGather(own, all, turn == 0 ? BAND : LONG, COLL_BF16, rank->comm, rank->stream));
        if (grouped)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        const size_t count = turn == 0 ? BAND : LONG;
        for (unsigned from = 0; from < 8; from++)
            require(values_are(all + from * count * 2, COLL_BF16, count, VALUES_NOISE, from));
    }
    require(told_of(rank->comm, "all_gather", "bf16").compressed == 2); /* until the data is known */
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(groups_do_not_change_what_is_counted)
{
    setenv("STRAIT_COLL", "auto", 1);
    for (int rank = 0; rank < 8; rank++) {
        fake_gpu.link_ns[rank] = 10000;
        fake_gpu.link_fs[rank] = 200000;
    }
    ranks_run(8, gather_mixed, NULL);
}
END_TEST

START_TEST(the_link_decides)
{
    setenv("STRAIT_COLL", "auto", 1);
    fake_gpu.ring_fs = links[_i].ring_fs;
    for (int rank = 0; rank < 3; rank++) {
        fake_gpu.link_ns[rank] = 10000;
        fake_gpu.link_fs[rank] = links[_i].fs[rank];
    }
    ranks_run(3, gather, (void *)(uintptr_t)&links[_i]);
}
END_TEST

/* Of two ranks, in the fake: a byte by send and recv costs twice what it does in a collective. */
static void sum_and_exchange(struct rank *rank)
{
    const struct link *link = rank->argument;
    const size_t count = link->count;
    uint8_t *own = values_new(COLL_BF16, count * 2, 0), *all = values_new(COLL_BF16, count * 2, 0);
    values_fill(own, COLL_BF16, count * 2, VALUES_NORMAL, (unsigned)rank->rank);
    require_ok(ncclReduceScatter(own, all, count, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    require_ok(ncclAlltoAll(own, all, count, COLL_BF16, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require(strcmp(told_of(rank->comm, "reduce_scatter", "bf16").reason, link->reason) == 0);
    require(strcmp(told_of(rank->comm, "all_to_all", "bf16").reason, "the last: compressed") == 0);
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(sends_and_sums_are_measured)
{
    const struct link fast = {.count = 1 << 20, .reason = "raw: the link is fast"},
                      slow = {.count = 1 << 20, .reason = "the last: compressed"};
    setenv("STRAIT_COLL", "auto", 1);
    for (int rank = 0; rank < 2; rank++) {
        fake_gpu.link_ns[rank] = 10000;
        fake_gpu.link_fs[rank] = 400000;
    }
    fake_gpu.sum_fs = _i == 0 ? 0 : 400000; /* what NCCL adds up takes as long as sends, too */
    ranks_run(2, sum_and_exchange, (void *)(uintptr_t)(_i == 0 ? &fast : &slow));
}
END_TEST

/* Rank 0 makes two communicators in one group, with a rank by a slow link and one by a fast link. */
static coll_id ids[2];

static void make_both(struct rank *rank)
{
    coll_comm slow = NULL, fast = NULL;
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require_ok(ncclGroupStart());
    if (rank->rank != 2)
        require_ok(ncclCommInitRank(&slow, 2, ids[0], rank->rank));
    if (rank->rank != 1)
        require_ok(ncclCommInitRank(&fast, 2, ids[1], rank->rank / 2));
    require_ok(ncclGroupEnd());
    if (slow != NULL)
        require(strcmp(gather_of(rank, slow, 1 << 20).reason, "the last: compressed") == 0);
    if (fast != NULL)
        require(strcmp(gather_of(rank, fast, 1 << 20).reason, "raw: the link is fast") == 0);
    ranks_meet();
    if (slow != NULL)
        require_ok(ncclCommDestroy(slow));
    if (fast != NULL)
        require_ok(ncclCommDestroy(fast));
    fake_stream_end(rank->stream);
}

START_TEST(each_communicator_of_a_group_is_measured_by_itself)
{
    setenv("STRAIT_COLL", "auto", 1);
    for (int rank = 0; rank < 3; rank++) {
        fake_gpu.link_ns[rank] = 10000;
        fake_gpu.link_fs[rank] = rank == 2 ? 2700 : 400000;
    }
    for (unsigned i = 0; i < 2; i++)
        require_ok(ncclGetUniqueId(&ids[i]));
    ranks_start(3, make_both, NULL);
}
END_TEST

/* When every rank has asked for some of them and none was in a group, large ones have ends that are left as they are:
 * more bytes, and the same values. */
static void gather_many(struct rank *rank)
{
    enum { TIMES = 20, ALONE = 16, COUNT_OF = 1 << 20 };
    const bool groups = rank->argument != NULL && rank->rank == 1;
    uint8_t *own = values_new(COLL_BF16, COUNT_OF, 0), *all = values_new(COLL_BF16, COUNT_OF * 2, 0);
    unsigned long long wire[TIMES + 1] = {0};
    for (unsigned turn = 0; turn < TIMES; turn++) {
        const bool grouped = groups && turn == 3;
        if (grouped)
            require_ok(ncclGroupStart());
        values_fill(own, COLL_BF16, COUNT_OF, VALUES_NORMAL, 2 * turn + (unsigned)rank->rank);
        require_ok(ncclAllGather(own, all, COUNT_OF, COLL_BF16, rank->comm, rank->stream));
        if (grouped)
            require_ok(ncclGroupEnd());
        fake_stream_wait(rank->stream);
        for (unsigned from = 0; from < 2; from++)
            require(values_are(all + from * COUNT_OF * 2, COLL_BF16, COUNT_OF, VALUES_NORMAL, 2 * turn + from));
        ranks_meet();
        wire[turn + 1] = told_of(rank->comm, "all_gather", "bf16").wire;
    }
    require(wire[ALONE] == ALONE * wire[1]);
    require((wire[TIMES] > TIMES * wire[1]) == (rank->argument == NULL));
    values_free(own, COLL_BF16, 0);
    values_free(all, COLL_BF16, 0);
}

START_TEST(what_is_alone_everywhere_overlaps_coding_with_moving)
{
    setenv("STRAIT_COLL", "auto", 1);
    for (int rank = 0; rank < 2; rank++) {
        fake_gpu.link_ns[rank] = 10000;
        fake_gpu.link_fs[rank] = 400000;
    }
    ranks_run(2, gather_many, _i == 0 ? NULL : (void *)(uintptr_t)&links[0]);
}
END_TEST

/* Sends and receives of a pair are decided alike on both sides, of sizes around the one from which it pays. */
static void send_sizes(struct rank *rank)
{
    unsigned long long compressed = 0;
    uint8_t *values = values_new(COLL_BF16, MOST, 0);
    for (size_t count = 1000; count < MOST; count = count * 7 / 4) {
        values_fill(values, COLL_BF16, count, VALUES_NORMAL, rank->rank == 0 ? count : 0);
        if (rank->rank == 0)
            require_ok(ncclSend(values, count, COLL_BF16, 1, rank->comm, rank->stream));
        else
            require_ok(ncclRecv(values, count, COLL_BF16, 0, rank->comm, rank->stream));
        fake_stream_wait(rank->stream);
        require(values_are(values, COLL_BF16, count, VALUES_NORMAL, count));
        const struct told told = told_of(rank->comm, rank->rank == 0 ? "send" : "recv", "bf16");
        require(told.compressed == compressed || told.compressed == compressed + 1);
        require(told.compressed > compressed || compressed == 0); /* larger ones too */
        compressed = told.compressed;
    }
    require(compressed > 2 && compressed < 10);
    values_free(values, COLL_BF16, 0);
}

START_TEST(pairs_decide_alike_by_size)
{
    setenv("STRAIT_COLL", "auto", 1);
    for (int rank = 0; rank < 2; rank++) {
        fake_gpu.link_ns[rank] = 10000;
        fake_gpu.link_fs[rank] = 400000 + 30000 * (uint32_t)rank;
    }
    ranks_run(2, send_sizes, NULL);
}
END_TEST

static void send_one(struct rank *rank)
{
    uint8_t *values = values_new(COLL_BF16, MOST, 0);
    values_fill(values, COLL_BF16, MOST, VALUES_NORMAL, 3);
    if (rank->rank == 0)
        require_ok(ncclSend(values, MOST, COLL_BF16, 1, rank->comm, rank->stream));
    else
        require_ok(ncclRecv(values, MOST, COLL_BF16, 0, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    const struct told told = told_of(rank->comm, rank->rank == 0 ? "send" : "recv", "bf16");
    require(told.compressed == 0 && strcmp(told.reason, "raw: sends and receives are to go raw") == 0);
    values_free(values, COLL_BF16, 0);
}

START_TEST(pairs_can_be_left_raw)
{
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_PAIRS", "0", 1);
    ranks_run(2, send_one, NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("choices");
    tcase_set_timeout(tests, 60);
    add_loop(tests, the_table_decides_before_the_link, 0, COUNT(tables));
    tcase_add_loop_test(tests, the_table_bounds_what_is_always_compressed, 0, 2);
    tcase_add_test(tests, the_table_is_printed);
    tcase_add_test(tests, groups_do_not_change_what_is_counted);
    add_loop(tests, the_link_decides, 0, COUNT(links));
    tcase_add_test(tests, each_communicator_of_a_group_is_measured_by_itself);
    tcase_add_loop_test(tests, sends_and_sums_are_measured, 0, 2);
    tcase_add_loop_test(tests, what_is_alone_everywhere_overlaps_coding_with_moving, 0, 2);
    tcase_add_test(tests, pairs_decide_alike_by_size);
    tcase_add_test(tests, pairs_can_be_left_raw);
    return suite_run("choices", tests);
}
