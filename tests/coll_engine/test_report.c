/* STRAIT_COLL_REPORT: what a process's file says is what its ranks did, while it runs, after it, and as the command
 * merges it. */
#include <dirent.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"
#include "tools/coll_report.h"

enum { COUNT_OF = 1 << 17, LINK_NS = 10000, LINK_FS = 400000 /* 2.5 GB/s */, PATIENCE_MS = 20000 };

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/strait-coll-report-XXXXXX", path[512];

static void folder_make(void)
{
    require(mkdtemp(folder) != NULL);
    setenv("STRAIT_COLL_REPORT", folder, 1);
}

/* Stores the path of a report; returns how many there are. */
static unsigned reports_find(void)
{
    DIR *there = opendir(folder);
    unsigned count = 0;
    require(there != NULL);
    for (const struct dirent *entry; (entry = readdir(there)) != NULL;)
        if (strncmp(entry->d_name, "strait-coll-", 12) == 0) {
            require(snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name) < (int)sizeof(path));
            count++;
        }
    closedir(there);
    return count;
}

static void folder_remove(void)
{
    while (reports_find() > 0)
        require(unlink(path) == 0);
    require(rmdir(folder) == 0); /* nothing else is left in it */
}

/* Reads the only report. False: there is none. It is whole at any time. */
static bool report_read(struct coll_process *process)
{
    static char text[1 << 20];
    char why[200] = "";
    const unsigned count = reports_find();
    require(count <= 1);
    if (count == 0)
        return false;
    FILE *from = fopen(path, "r");
    require(from != NULL);
    const size_t size = fread(text, 1, sizeof(text), from);
    require(size < sizeof(text) && fclose(from) == 0);
    const bool good = coll_process_parse(process, text, size, why, sizeof(why));
    if (!good)
        fprintf(stderr, "%s: %.*s\n", why, (int)size, text);
    require(good);
    return true;
}

/* Waits for a report in which `is_done`. */
static struct coll_process report_await(bool (*is_done)(const struct coll_process *))
{
    struct coll_process process;
    for (const long from = now_ms(); now_ms() - from < PATIENCE_MS; usleep(20000)) {
        if (!report_read(&process))
            continue;
        if (is_done(&process))
            return process;
        coll_process_free(&process);
    }
    require(false);
    return process;
}

static bool all_ended(const struct coll_process *process)
{
    bool ended = process->count > 0;
    for (unsigned i = 0; i < process->count; i++)
        ended &= process->communicators[i].ended;
    return ended;
}

static bool both_ended(const struct coll_process *process)
{
    return process->count == 2 && all_ended(process);
}

static const struct coll_row *row_of(const struct coll_group *group, const char *operation, const char *type)
{
    for (unsigned i = 0; i < group->row_count; i++)
        if (strcmp(group->rows[i].operation, operation) == 0 && strcmp(group->rows[i].type, type) == 0)
            return &group->rows[i];
    require(false);
    return NULL;
}

/* The group of both ranks, which are alike. */
static const struct coll_group *merged(struct coll_groups *groups, const struct coll_process *process)
{
    require(coll_merge(groups, process, 1));
    require(groups->count == 1 && groups->list[0].count == 2 && groups->list[0].ranks == 2);
    require(groups->list[0].members[0]->id != NULL && strlen(groups->list[0].members[0]->id) == 12);
    require(groups->list[0].difference_count == 0);
    return &groups->list[0];
}

/* ---- What was done ----------------------------------------------------------------------------------------------- */

static unsigned long long wire_of_gathers;

/* Four all_gathers, one of which does not fit; a product, and integers, which are raw. */
static void do_some(struct rank *rank)
{
    struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    float *values = values_new(rank, COLL_FP32, COUNT_OF);
    for (unsigned turn = 0; turn < 4; turn++) {
        gather_fill(rank, &gather, turn == 1 ? VALUES_NOISE : VALUES_NORMAL, seed_of(turn, 0, 0));
        gather_run(rank, &gather, turn == 2);
    }
    require_ok(ncclAllReduce(values, values, COUNT_OF, COLL_FP32, 1, rank->comm, rank->stream)); /* a product */
    require_ok(ring_post(rank, values, values + COUNT_OF / 2, COLL_INT32, COUNT_OF / 4));
    fake_stream_wait(rank->stream);
    if (rank->rank == 0)
        wire_of_gathers = told_of(rank->comm, "all_gather", "bf16").wire;
}

static void check_some(const struct coll_group *group)
{
    const struct coll_row *gathers = row_of(group, "all_gather", "bf16"),
                          *product = row_of(group, "all_reduce", "fp32"), *sends = row_of(group, "send", "int32");
    require(gathers->calls == 8 && gathers->calls_least == 4 && gathers->calls_most == 4 && gathers->grouped == 2);
    require(gathers->bytes == 8.0 * 2 * COUNT_OF && gathers->compressed == 8 && gathers->raw_count == 0);
    require(gathers->plain_bytes == gathers->bytes && gathers->wire_bytes == 2.0 * (double)wire_of_gathers);
    require(gathers->overflows == 1 && gathers->probes == 0 && gathers->captured == 0 && gathers->failed == 0);
    require(product->calls == 2 && product->compressed == 0 && product->raw_count == 1);
    require(strcmp(product->raw[0].why, "neither sum nor average") == 0);
    require(product->raw[0].calls == 2 && product->raw[0].bytes == product->bytes);
    require(sends->calls == 2 && sends->bytes == 2.0 * COUNT_OF);
    require(strcmp(sends->raw[0].why, "type is not compressed") == 0);
    const struct coll_communicator *first = group->members[0];
    require(strcmp(first->state, "joined") == 0 && first->has_figures && first->hosts == 1);
    require(first->messages >= 4 << 20 && first->host > 16 << 20 && first->host_messages == 0);
}

static void run_strait(const char *options, const char *said)
{
    char command[1024], text[8192];
    require(snprintf(command, sizeof(command), "%s collectives report %s %s", getenv("STRAIT"), options, folder) <
            (int)sizeof(command));
    FILE *from = popen(command, "r");
    require(from != NULL);
    text[fread(text, 1, sizeof(text) - 1, from)] = '\0';
    const bool good = pclose(from) == 0 && strstr(text, said) != NULL;
    if (!good)
        fprintf(stderr, "%s: no \"%s\" in\n%s\n", command, said, text);
    require(good);
}

START_TEST(a_report_says_what_was_done)
{
    struct coll_groups groups;
    folder_make();
    ranks_run(2, do_some, NULL);
    struct coll_process process = report_await(both_ended);
    require(strcmp(process.mode, "compress") == 0 && process.process == getpid() && !process.exited);
    check_some(merged(&groups, &process));
    require(groups.list[0].members[0]->start_us < 0); /* no links were measured */
    run_strait("", "all_gather     bf16               4  256.0 KiB     100.0 %     1.46        -        -         1");
    run_strait("--json", "\"why\":\t\"neither sum nor average\"");
    coll_groups_free(&groups);
    coll_process_free(&process);
    folder_remove();
}
END_TEST

/* Sanitizers allow no threads in a child of several threads, or look for leaks where threads were lost. */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CHILDREN 1

/* The process writes a last time when it exits, also of what has not ended. */
static void leave_without_end(struct rank *rank)
{
    rank_begin(rank);
    do_some(rank);
    ranks_meet();
    if (rank->rank == 0)
        exit(EXIT_SUCCESS);
    pause();
}

START_TEST(a_process_that_exits_has_reported)
{
    struct coll_process process;
    struct coll_groups groups;
    int status;
    folder_make();
    const pid_t child = fork();
    require(child >= 0);
    if (child == 0)
        ranks_start(2, leave_without_end, NULL);
    require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    require(report_read(&process) && process.exited && process.process == child && process.count == 2);
    require(!process.communicators[0].ended);
    const struct coll_row *gathers = row_of(merged(&groups, &process), "all_gather", "bf16");
    require(gathers->calls == 8 && gathers->overflows == 1);
    coll_groups_free(&groups);
    coll_process_free(&process);
    folder_remove();
}
END_TEST

#endif

/* ---- While it runs ----------------------------------------------------------------------------------------------- */

static double calls_there;

static bool has_calls(const struct coll_process *process)
{
    double calls = 0;
    for (unsigned i = 0; i < process->count; i++)
        for (unsigned row = 0; row < process->communicators[i].row_count; row++)
            calls += process->communicators[i].rows[row].calls;
    return calls == calls_there;
}

/* Ranks issue nothing while the file is waited for: so it is the thread that writes it, and that sees the overflow. */
static void report_meanwhile(struct rank *rank)
{
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NOISE);
    gather_run(rank, &gather, false);
    ranks_meet();
    if (rank->rank == 0) {
        struct coll_groups groups;
        calls_there = 2;
        struct coll_process process = report_await(has_calls);
        require(!all_ended(&process) && row_of(merged(&groups, &process), "all_gather", "bf16")->overflows == 1);
        coll_groups_free(&groups);
        coll_process_free(&process);
    }
    ranks_meet();
}

START_TEST(a_report_is_there_while_ranks_run)
{
    folder_make();
    ranks_run(2, report_meanwhile, NULL);
    folder_remove();
}
END_TEST

/* ---- Times ------------------------------------------------------------------------------------------------------- */

static void gather_until_compared(struct rank *rank)
{
    enum { TURNS = 110 };
    struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        gather_fill(rank, &gather, turn == 1 ? VALUES_NOISE : VALUES_NORMAL, seed_of(turn, 0, 0));
        gather_run(rank, &gather, false);
        ranks_meet();
    }
}

/* Links and codec of the fake take the time that they are measured to take. */
START_TEST(times_are_those_of_the_links)
{
    struct coll_groups groups;
    folder_make();
    links_begin(LINK_NS, 4 * LINK_FS);
    fake_gpu.ring_fs = LINK_FS;
    ranks_run(2, gather_until_compared, NULL);
    struct coll_process process = report_await(both_ended);
    const struct coll_group *group = merged(&groups, &process);
    const struct coll_row *row = row_of(group, "all_gather", "bf16");
    const struct coll_communicator *first = group->members[0];
    require(strcmp(process.mode, "auto") == 0 && first->start_us >= 0 && strstr(first->table, "all_gather") != NULL);
    require(row->compressed > 200 && row->compressed < row->calls && row->overflows == 1);
    require(row->raw_count == 1 && strcmp(row->raw[0].why, "timed, to compare") == 0);
    require(row->raw[0].calls == row->calls - row->compressed);
    /* NCCL moves the values at the rate of the link, and compressed ones in 0.684 of that time, and coding. */
    const double plain = row->compressed * (first->start_us * 1e-6 + 2.0 * COUNT_OF / (first->rates[0] * 1e9));
    require(row->nccl_seconds > 0.999 * plain && row->nccl_seconds < 1.001 * plain);
    require(row->coded_seconds > 0.684 * row->nccl_seconds && row->coded_seconds < row->nccl_seconds);
    /* Of both ranks; ends of messages, where coding overlaps with transfer, are not moved again. */
    const double again = 2 * (2.0 * COUNT_OF / (first->rates[3] * 1e9));
    require(row->overflow_seconds > 0.5 * again && row->overflow_seconds <= 1.001 * again);
    require(row->compared >= 1 && row->x > 1);
    coll_groups_free(&groups);
    coll_process_free(&process);
    folder_remove();
}
END_TEST

/* ---- Several hosts ----------------------------------------------------------------------------------------------- */

static void set_hosts(const char *neighbours)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("STRAIT_TEST_HOSTS", neighbours, 1);
}

static bool all_four_ended(const struct coll_process *process)
{
    return process->count == 4 && all_ended(process);
}

/* Until the kind is known to shrink. */
static void sum_some(struct rank *rank)
{
    enum { TURNS = 60 };
    struct operation operation = {
        .what = COLL_REDUCE_SCATTER, .type = COLL_BF16, .count = 1 << 20, .reduction = COLL_SUM};
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        require_ok(operation_post(rank, &operation));
        fake_stream_wait(rank->stream);
        ranks_meet();
    }
}

/* The rate of the network, and that between neighbours. What NCCL is handed for a sum is what crosses between hosts. */
START_TEST(sums_by_rail_are_reported)
{
    struct coll_groups groups;
    folder_make();
    set_hosts("2");
    links_begin(LINK_NS, 320000);
    fake_gpu.near_fs = 5000;
    fake_gpu.ring_fs = 320000;
    ranks_run(4, sum_some, NULL);
    struct coll_process process = report_await(all_four_ended);
    require(coll_merge(&groups, &process, 1) && groups.count == 1);
    const struct coll_row *row = row_of(&groups.list[0], "reduce_scatter", "bf16");
    const struct coll_communicator *first = groups.list[0].members[0];
    require(first->hosts == 2 && first->rails == 2);
    require(first->rates[COLL_RATE_RAIL] > 2.9 && first->rates[COLL_RATE_RAIL] < 3.2);
    require(first->rates[COLL_RATE_LOCAL] > 150 && first->rates[COLL_RATE_LOCAL] < 220);
    require(row->compressed > 60 && row->plain_bytes == row->compressed * (2 << 20));
    require(row->wire_bytes > 0.6 * row->plain_bytes && row->wire_bytes < row->plain_bytes);
    require(row->coded_seconds > 0 && row->coded_seconds < 0.75 * row->nccl_seconds);
    run_strait("", "sums         inside each host, then between hosts by 2 rails");
    coll_groups_free(&groups);
    coll_process_free(&process);
    folder_remove();
}
END_TEST

/* ---- Where nothing is compressed --------------------------------------------------------------------------------- */

START_TEST(raw_calls_are_reported)
{
    struct coll_groups groups;
    folder_make();
    setenv("STRAIT_COLL", "raw", 1);
    ranks_run(2, do_some, NULL);
    struct coll_process process = report_await(both_ended);
    const struct coll_group *group = merged(&groups, &process);
    const struct coll_row *row = row_of(group, "all_gather", "bf16");
    require(strcmp(process.mode, "raw") == 0 && strcmp(group->members[0]->state, "raw") == 0);
    require(strcmp(group->members[0]->why, "STRAIT_COLL=raw") == 0 && !group->members[0]->has_figures);
    require(row->calls == 8 && row->compressed == 0 && row->raw_count == 1 && row->raw[0].calls == 8);
    require(strcmp(row->raw[0].why, "pinned") == 0);
    run_strait("", "state        pinned to raw, raw: STRAIT_COLL=raw (STRAIT_COLL=raw)");
    coll_groups_free(&groups);
    coll_process_free(&process);
    folder_remove();
}
END_TEST

static void use_nothing(struct rank *rank)
{
    rank_gather(rank, rank->comm, true);
}

START_TEST(a_folder_that_cannot_be_had_does_no_harm)
{
    setenv("STRAIT_COLL_REPORT", _i == 0 ? "/proc/nowhere" : "/proc/self/status", 1);
    ranks_run(2, use_nothing, NULL);
}
END_TEST

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

enum { PART = 4 << 20 /* bytes */ };

/* GPU memory for messages of one operation, as docs/collectives.md has it: a power of two above `parts` times the part,
 * of which 1 GiB would take the same multiple. */
static const struct memory_case {
    enum coll_operation what;
    int ranks;
    double parts;
    const char *neighbours; /* on one host; NULL: all are */
} memory_cases[] = {
    {COLL_ALL_GATHER, 2, 2.4, NULL}, {COLL_ALL_GATHER, 4, 3.8, NULL},     {COLL_ALL_TO_ALL, 2, 3.4, NULL},
    {COLL_ALL_TO_ALL, 4, 6.8, NULL}, {COLL_REDUCE_SCATTER, 2, 5.4, NULL}, {COLL_REDUCE_SCATTER, 4, 10.8, NULL},
    {COLL_ALL_REDUCE, 2, 4.4, NULL}, {COLL_ALL_REDUCE, 4, 2.7, NULL},     {COLL_BROADCAST, 2, 1.1, NULL},
    {COLL_SEND, 2, 1.7, NULL},       {COLL_REDUCE_SCATTER, 4, 7.4, "2"},  {COLL_REDUCE_SCATTER, 8, 10, "4"},
    {COLL_ALL_REDUCE, 4, 1.9, "2"}};

static void operate_once(struct rank *rank)
{
    const struct memory_case *of = rank->argument;
    struct operation operation = {.what = of->what, .type = COLL_BF16, .count = PART / 2, .reduction = COLL_SUM};
    operation_new(rank, &operation, 0, false);
    operation_fill(rank, &operation);
    require_ok(operation_post(rank, &operation));
    operation_check(rank, &operation);
}

static bool has_ranks(const struct coll_process *process)
{
    return all_ended(process) && process->count == (unsigned)process->communicators[0].ranks;
}

START_TEST(memory_is_what_is_documented)
{
    const struct memory_case *of = &memory_cases[_i];
    double most = 0, expected = 4 << 20;
    folder_make();
    if (of->neighbours != NULL)
        set_hosts(of->neighbours);
    ranks_run(of->ranks, operate_once, of);
    struct coll_process process = report_await(has_ranks);
    while (expected < of->parts * PART)
        expected *= 2;
    for (unsigned i = 0; i < process.count; i++)
        most = process.communicators[i].messages > most ? process.communicators[i].messages : most;
    if (most != expected)
        fprintf(stderr, "case %d: %.0f, not %.0f\n", _i, most, expected);
    require(most == expected);
    /* 16 MiB for each rank but one, and flags. */
    const double rings = (of->ranks - 1) * 16.0 * (1 << 20);
    require(of->neighbours != NULL ||
            (process.communicators[0].host >= rings && process.communicators[0].host < 1.05 * rings));
    coll_process_free(&process);
    folder_remove();
}
END_TEST

/* Pairs of many ranks have places that take memory when they are used: these do not count before. */
START_TEST(memory_of_many_ranks_is_what_is_documented)
{
    enum { MANY_RANKS = 66 };
    const double mib = 1 << 20;
    folder_make();
    ranks_run(MANY_RANKS, use_nothing, NULL);
    struct coll_process process = report_await(has_ranks);
    require(process.count == MANY_RANKS);
    require(process.communicators[0].host > 2 * MANY_RANKS * mib &&
            process.communicators[0].host < 3 * MANY_RANKS * mib);
    coll_process_free(&process);
    folder_remove();
}
END_TEST

/* ---- Many, and in children --------------------------------------------------------------------------------------- */

enum { MANY = 260, KEPT = 256 };

static void make_and_end(struct rank *rank)
{
    fake_device_set(0);
    for (int i = 0; i < MANY; i++) {
        coll_comm comm;
        coll_id id;
        require_ok(ncclGetUniqueId(&id));
        require_ok(ncclCommInitRank(&comm, 1, id, 0));
        require_ok(ncclCommDestroy(comm));
    }
    (void)rank;
}

/* The last one may have been reported while it lived, beside as many as are kept of those that have ended. */
static bool has_many(const struct coll_process *process)
{
    return process->dropped + process->count == MANY && all_ended(process);
}

START_TEST(of_many_communicators_the_last_are_kept)
{
    folder_make();
    ranks_start(1, make_and_end, NULL);
    struct coll_process process = report_await(has_many);
    require(process.count == KEPT && process.communicators[0].number == MANY - KEPT + 1);
    coll_process_free(&process);
    folder_remove();
}
END_TEST

#ifdef CHILDREN

/* A forked child reports neither what its parent did nor anything that it did not do, and leaves the parent's file. */
static void fork_within(struct rank *rank)
{
    const struct gather gather = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NORMAL);
    gather_run(rank, &gather, false);
    ranks_meet();
    if (rank->rank == 0) {
        int status;
        const pid_t child = fork();
        if (child == 0)
            exit(EXIT_SUCCESS);
        require(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    ranks_meet();
    gather_run(rank, &gather, false);
}

START_TEST(a_child_does_not_report_for_its_parent)
{
    struct coll_groups groups;
    folder_make();
    ranks_run(2, fork_within, NULL);
    struct coll_process process = report_await(both_ended);
    require(process.process == getpid() && !process.exited);
    require(row_of(merged(&groups, &process), "all_gather", "bf16")->calls_least == 2);
    coll_groups_free(&groups);
    coll_process_free(&process);
    folder_remove();
}
END_TEST

#endif

int main(void)
{
    TCase *tests = tcase_create("report");
    tcase_add_test(tests, a_report_says_what_was_done);
    tcase_add_test(tests, a_report_is_there_while_ranks_run);
    tcase_add_test(tests, times_are_those_of_the_links);
    tcase_add_test(tests, sums_by_rail_are_reported);
    tcase_add_test(tests, raw_calls_are_reported);
    tcase_add_loop_test(tests, a_folder_that_cannot_be_had_does_no_harm, 0, 2);
    add_loop(tests, memory_is_what_is_documented, 0, COUNT(memory_cases));
    tcase_add_test(tests, memory_of_many_ranks_is_what_is_documented);
    tcase_add_test(tests, of_many_communicators_the_last_are_kept);
#ifdef CHILDREN
    tcase_add_test(tests, a_process_that_exits_has_reported);
    tcase_add_test(tests, a_child_does_not_report_for_its_parent);
#endif
    return suite_run("report", tests);
}
