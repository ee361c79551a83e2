/* STRAIT_COLL=auto: what is compressed follows from what the link was found to cost, and from the table of sizes, alike
 * on all ranks. */
#include <string.h>
#include <unistd.h>

#include "collective/settings.h"
#include "tests/coll_engine/harness.h"

enum { RANKS = 3, MOST = 4 << 20, LINK_NS = 10000, LINK_FS = 400000 /* a byte: 2.5 GB/s */, NVLINK_FS = 2700 };

static void require_reason(coll_comm comm, const char *operation, const char *reason)
{
    const struct told told = told_of(comm, operation, "bf16");
    if (strcmp(told.reason, reason) != 0)
        fprintf(stderr, "%s: %s, not %s\n", operation, told.reason, reason);
    require(told.calls == 1 && strcmp(told.reason, reason) == 0);
}

/* ---- The table and the link -------------------------------------------------------------------------------------- */

static const char compressed[] = "the last: compressed", fast[] = "raw: the link is fast",
                  small[] = "raw: too small, as it was told";

static const struct choice {
    uint32_t fs[RANKS]; /* a byte, by each rank's link */
    uint32_t ring_fs;   /* of what does not fit */
    size_t count;
    const char *reason;
    const char *table; /* NULL: none */
    bool forced;       /* STRAIT_COLL=compress */
} choices[] = {
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, compressed, NULL, false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 40000, fast, NULL, false}, /* too little for what the codec's launches take */
    {{NVLINK_FS, NVLINK_FS, NVLINK_FS}, 0, MOST, fast, NULL, false},
    {{LINK_FS, LINK_FS, NVLINK_FS}, 0, MOST, fast, NULL, false}, /* the fastest counts for all */
    {{4000000, LINK_FS, 1000000}, 0, MOST, compressed, NULL, false},
    {{0, 0, 0}, 0, MOST, fast, NULL, false},
    {{10000000, 10000000, 10000000}, 0, 32768, compressed, NULL, false}, /* slow, and no longer than head and tail */
    {{LINK_FS, LINK_FS, LINK_FS}, 200000, 1 << 20, compressed, NULL, false},  /* of two other ranks */
    {{LINK_FS, LINK_FS, LINK_FS}, 1000000, 1 << 20, compressed, NULL, false}, /* a probe */
    /* The table goes before the link. */
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, small, "all_gather=4M", false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, small, "all_reduce=1,all_gather:bf16=2097153", false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, small, "all_gather=never", false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, compressed, "all_gather=2M", false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, compressed, "all_gather:fp32=never,all_to_all=never", false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, compressed, "all_gather=neve", false}, /* not understood */
    {{NVLINK_FS, NVLINK_FS, NVLINK_FS}, 0, 1 << 20, compressed, "all_gather=2M", false},
    {{NVLINK_FS, NVLINK_FS, NVLINK_FS}, 0, 40000, compressed, "all_gather=0", false},
    {{NVLINK_FS, NVLINK_FS, NVLINK_FS}, 0, 4000, "raw: too small or too large", "all_gather=0", false},
    /* It also bounds what is always compressed. */
    {{0, 0, 0}, 0, 1 << 20, compressed, "all_gather=2M", true},
    {{0, 0, 0}, 0, 1 << 19, small, "all_gather=2M", true},
};

static void gather_as_chosen(struct rank *rank)
{
    const struct choice *choice = rank->argument;
    const struct gather gather = gather_new(rank, COLL_BF16, choice->count, VALUES_NORMAL);
    gather_run(rank, &gather, false);
    require_reason(rank->comm, "all_gather", choice->reason);
}

/* A chain passes one message on, where an all_gather has one of each rank: the same link takes half as long. */
static const struct choice broadcasts[] = {
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, compressed, NULL, false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 600000, fast, NULL, false},              /* which an all_gather would compress */
    {{LINK_FS, LINK_FS, LINK_FS}, 1000000, 1 << 20, compressed, NULL, false}, /* a probe */
    {{NVLINK_FS, NVLINK_FS, NVLINK_FS}, 0, MOST, fast, NULL, false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, small, "broadcast=4M", false},
    {{LINK_FS, LINK_FS, LINK_FS}, 0, 1 << 20, compressed, "all_gather=never,broadcast:fp16=never", false},
    {{NVLINK_FS, NVLINK_FS, NVLINK_FS}, 0, 1 << 20, compressed, "broadcast:bf16=2M", false},
};

static void broadcast_as_chosen(struct rank *rank)
{
    const struct choice *choice = rank->argument;
    struct operation operation = {.what = COLL_BROADCAST, .type = COLL_BF16, .count = choice->count, .root = 1};
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    require_ok(operation_post(rank, &operation));
    operation_check(rank, &operation);
    require_reason(rank->comm, "broadcast", choice->reason);
}

static void measure_and_run(const struct choice *choice, void (*body)(struct rank *))
{
    links_begin(LINK_NS, 0);
    for (int device = 0; device < RANKS; device++)
        fake_gpu.link_fs[device] = choice->fs[device];
    fake_gpu.ring_fs = choice->ring_fs;
    if (choice->forced)
        setenv("STRAIT_COLL", "compress", 1);
    if (choice->table != NULL)
        setenv("STRAIT_COLL_TABLE", choice->table, 1);
    ranks_run(RANKS, body, choice);
}

START_TEST(the_table_decides_and_else_the_link)
{
    measure_and_run(&choices[_i], gather_as_chosen);
}
END_TEST

START_TEST(broadcasts_are_weighed_by_what_they_cost)
{
    measure_and_run(&broadcasts[_i], broadcast_as_chosen);
}
END_TEST

/* What all ranks print is what they do. */
static FILE *printed;

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
    for (unsigned i = 0; i < 2; i++) { /* the size from which it pays, and half of it */
        const struct gather gather = gather_new(rank, COLL_BF16, from / (i == 0 ? 2 : 4), VALUES_NORMAL);
        gather_run(rank, &gather, false);
        require(told_of(rank->comm, "all_gather", "bf16").compressed == 1);
    }
}

START_TEST(the_table_is_printed)
{
    printed = tmpfile();
    require(printed != NULL && dup2(fileno(printed), STDERR_FILENO) == STDERR_FILENO);
    setenv("STRAIT_COLL_PRINT", "1", 1);
    links_begin(LINK_NS, LINK_FS);
    ranks_run(2, gather_as_printed, NULL);
}
END_TEST

/* Some calls pay only where coding and moving overlap, which they do not in groups. Ranks group such calls differently,
 * and go on to agree on the levels of others. */
static void gather_mixed(struct rank *rank)
{
    enum { BAND = 900000, LONG = 1200000, TURNS = 4 };
    struct gather gather = gather_new(rank, COLL_BF16, LONG, VALUES_NOISE);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        gather.count = turn == 0 ? BAND : LONG;
        gather_run(rank, &gather, turn == 0 && rank->rank == 1);
    }
    require_told(rank->comm, "all_gather", "bf16", TURNS, 2); /* until the data is known */
}

START_TEST(groups_do_not_change_what_is_counted)
{
    links_begin(LINK_NS, 200000);
    ranks_run(8, gather_mixed, NULL);
}
END_TEST

/* ---- What is measured -------------------------------------------------------------------------------------------- */

/* How fast GPUs code is measured, too, and the slowest counts for all. */
static void gather_one(struct rank *rank)
{
    const struct gather gather = gather_new(rank, COLL_BF16, 1 << 20, VALUES_NORMAL);
    gather_run(rank, &gather, false);
    require_reason(rank->comm, "all_gather", rank->argument);
}

START_TEST(codecs_are_measured)
{
    links_begin(LINK_NS, LINK_FS);
    for (int device = 0; device < RANKS; device++)
        fake_gpu.codec_fs[device] = _i == 0 ? 0 : 1000; /* 0: as if it could not be measured */
    if (_i == 2)
        fake_gpu.codec_fs[1] = 60000; /* 17 GB/s */
    ranks_run(RANKS, gather_one, _i == 2 ? fast : compressed);
}
END_TEST

/* In the fake a byte by send and recv costs more than in a collective. */
static void sum_and_exchange(struct rank *rank)
{
    const size_t count = 1 << 20, most = count * (size_t)rank->ranks;
    uint8_t *own = values_new(rank, COLL_BF16, most), *all = values_new(rank, COLL_BF16, most);
    values_fill(own, COLL_BF16, most, VALUES_NORMAL, (unsigned)rank->rank);
    require_ok(ncclReduceScatter(own, all, count, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    require_ok(ncclAlltoAll(own, all, count, COLL_BF16, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require_reason(rank->comm, "reduce_scatter", rank->argument);
    require_reason(rank->comm, "all_to_all", compressed);
}

/* What the ranks of a sum send each other takes longer than what NCCL adds up, unless that is slow, too; two ranks
 * gather it. */
static const struct sums_choice {
    int ranks;
    uint32_t sum_fs;
    const char *reason;
} sums_choices[] = {{RANKS, 0, fast}, {RANKS, 2 * LINK_FS, compressed}, {2, 0, compressed}};

START_TEST(sends_and_sums_are_measured)
{
    const struct sums_choice *choice = &sums_choices[_i];
    links_begin(LINK_NS, LINK_FS);
    fake_gpu.sum_fs = choice->sum_fs;
    ranks_run(choice->ranks, sum_and_exchange, choice->reason);
}
END_TEST

/* Rank 0 makes two communicators in one group, with rank 1 by a slow link and rank 2 by a fast one. */
static coll_id ids[2];

static void make_both(struct rank *rank)
{
    coll_comm comms[2] = {NULL, NULL};
    const struct gather gather = gather_new(rank, COLL_BF16, 1 << 20, VALUES_NORMAL);
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require_ok(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        if (rank->rank != 2 - i)
            require_ok(ncclCommInitRank(&comms[i], 2, ids[i], rank->rank == 0 ? 0 : 1));
    require_ok(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
        rank->comm = comms[i];
        if (comms[i] == NULL)
            continue;
        require_ok(gather_post(rank, &gather));
        fake_stream_wait(rank->stream);
        require_reason(comms[i], "all_gather", i == 0 ? compressed : fast);
    }
    ranks_meet();
    for (int i = 0; i < 2; i++)
        if (comms[i] != NULL)
            require_ok(ncclCommDestroy(comms[i]));
    fake_stream_end(rank->stream);
}

START_TEST(each_communicator_of_a_group_is_measured_by_itself)
{
    links_begin(LINK_NS, LINK_FS);
    fake_gpu.link_fs[2] = NVLINK_FS;
    for (unsigned i = 0; i < 2; i++)
        require_ok(ncclGetUniqueId(&ids[i]));
    ranks_start(RANKS, make_both, NULL);
}
END_TEST

/* When every rank has asked for some of them and none was in a group, large ones have ends that are left as they are:
 * more bytes, and the same values. */
static void gather_many(struct rank *rank)
{
    enum { TIMES = 20, COUNT_OF = 1 << 20 };
    const bool groups = *(const int *)rank->argument != 0;
    struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    unsigned long long wire[TIMES + 1] = {0};
    for (unsigned turn = 0; turn < TIMES; turn++) {
        gather_fill(rank, &gather, VALUES_NORMAL, 2 * turn);
        gather_run(rank, &gather, groups && rank->rank == 1 && turn == 3);
        ranks_meet();
        wire[turn + 1] = told_of(rank->comm, "all_gather", "bf16").wire;
    }
    require(wire[OVERLAP_AFTER] == OVERLAP_AFTER * wire[1]);
    require((wire[TIMES] > TIMES * wire[1]) == !groups);
}

START_TEST(coding_overlaps_with_transfer_unless_a_rank_has_grouped_one)
{
    links_begin(LINK_NS, LINK_FS);
    ranks_run(2, gather_many, &_i);
}
END_TEST

/* ---- Multiprocessors --------------------------------------------------------------------------------------------- */

/* Coding outside of groups and in one, and a sum. */
static void occupy(struct rank *rank)
{
    uint8_t *values = values_new(rank, COLL_BF16, MOST), *all = values_new(rank, COLL_BF16, 2 * MOST);
    values_fill(values, COLL_BF16, MOST, VALUES_NORMAL, (size_t)rank->rank);
    for (unsigned turn = 0; turn < OVERLAP_AFTER + 2; turn++)
        require_ok(ncclAllGather(values, all, MOST, COLL_BF16, rank->comm, rank->stream));
    require_ok(ncclAllReduce(values, values, MOST, COLL_BF16, COLL_SUM, rank->comm, rank->stream));
    fake_stream_wait(rank->stream);
    require(told_of(rank->comm, "all_gather", "bf16").compressed > 0);
    require(told_of(rank->comm, "all_reduce", "bf16").compressed > 0);
}

static const struct {
    const char *sms;
    uint32_t most;
} budgets[] = {{"", UINT32_MAX},   {"7", 7},           {"65535", 65535},     {"0", UINT32_MAX},
               {"-3", UINT32_MAX}, {"7x", UINT32_MAX}, {"65536", UINT32_MAX}};

START_TEST(coding_and_adding_keep_to_the_multiprocessors_that_are_given)
{
    setenv("STRAIT_COLL_SMS", budgets[_i].sms, 1);
    links_begin(LINK_NS, LINK_FS);
    setenv("STRAIT_COLL_TABLE", "all_gather=1,all_reduce=1", 1);
    ranks_run(2, occupy, NULL);
    require(fake_gpu.sms == budgets[_i].most);
}
END_TEST

/* ---- Sends and receives ------------------------------------------------------------------------------------------ */

/* Of sizes around the one from which it pays. */
static void send_sizes(struct rank *rank)
{
    unsigned long long before = 0;
    uint8_t *values = values_new(rank, COLL_BF16, MOST);
    for (size_t count = 1000; count < MOST; count = count * 7 / 4) {
        values_fill(values, COLL_BF16, count, VALUES_NORMAL, rank->rank == 0 ? count : 0);
        require_ok(pair_post(rank, values, COLL_BF16, count));
        fake_stream_wait(rank->stream);
        require(values_are(values, COLL_BF16, count, VALUES_NORMAL, count));
        const struct told told = told_of(rank->comm, rank->rank == 0 ? "send" : "recv", "bf16");
        require(told.compressed == before || told.compressed == before + 1);
        require(told.compressed > before || before == 0); /* larger ones too */
        before = told.compressed;
    }
    require(before > 2 && before < 10);
}

START_TEST(sender_and_receiver_decide_alike_by_size)
{
    links_begin(LINK_NS, LINK_FS);
    fake_gpu.link_fs[1] = 430000;
    ranks_run(2, send_sizes, NULL);
}
END_TEST

static void send_one(struct rank *rank)
{
    uint8_t *values = values_new(rank, COLL_BF16, MOST);
    values_fill(values, COLL_BF16, MOST, VALUES_NORMAL, 3);
    require_ok(pair_post(rank, values, COLL_BF16, MOST));
    fake_stream_wait(rank->stream);
    require_told(rank->comm, rank->rank == 0 ? "send" : "recv", "bf16", 1, 0);
    require_reason(rank->comm, rank->rank == 0 ? "send" : "recv", "raw: sends and receives are to go raw");
}

START_TEST(sends_and_receives_can_be_left_raw)
{
    setenv("STRAIT_COLL_PAIRS", "0", 1);
    ranks_run(2, send_one, NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("choices");
    add_loop(tests, the_table_decides_and_else_the_link, 0, COUNT(choices));
    add_loop(tests, broadcasts_are_weighed_by_what_they_cost, 0, COUNT(broadcasts));
    tcase_add_test(tests, the_table_is_printed);
    tcase_add_test(tests, groups_do_not_change_what_is_counted);
    tcase_add_test(tests, each_communicator_of_a_group_is_measured_by_itself);
    tcase_add_loop_test(tests, codecs_are_measured, 0, 3);
    tcase_add_loop_test(tests, sends_and_sums_are_measured, 0, COUNT(sums_choices));
    tcase_add_loop_test(tests, coding_overlaps_with_transfer_unless_a_rank_has_grouped_one, 0, 2);
    add_loop(tests, coding_and_adding_keep_to_the_multiprocessors_that_are_given, 0, COUNT(budgets));
    tcase_add_test(tests, sender_and_receiver_decide_alike_by_size);
    tcase_add_test(tests, sends_and_receives_can_be_left_raw);
    return suite_run("choices", tests);
}
