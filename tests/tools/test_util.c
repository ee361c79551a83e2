#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/run_suite.h"
#include "tools/pipeline.h"
#include "tools/util.h"
#include "tools/files.h"

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

static const struct size_case {
    const char *text;
    uint64_t max;
    bool good;
    uint64_t value;
} sizes[] = {
    {"0", 0, true, 0},
    {"1", 0, false, 0},
    {"007", 10, true, 7},
    {"4K", UINT64_MAX, true, 4096},
    {"4M", UINT64_MAX, true, 4194304},
    {"1G", (uint64_t)1 << 30, true, (uint64_t)1 << 30},
    {"1T", UINT64_MAX, true, (uint64_t)1 << 40},
    {"0T", 5, true, 0},
    {"2G", (uint64_t)1 << 30, false, 0},
    {"18446744073709551615", UINT64_MAX, true, UINT64_MAX},
    {"18446744073709551616", UINT64_MAX, false, 0},
    {"16777216T", UINT64_MAX, false, 0}, /* 2^64 */
    {"", 10, false, 0},
    {"K", 10, false, 0},
    {" 1", 10, false, 0},
    {"+1", 10, false, 0},
    {"-1", UINT64_MAX, false, 0},
    {"1 ", 10, false, 0},
    {"1k", 10000, false, 0},
    {"1KB", 10000, false, 0},
    {"1KK", UINT64_MAX, false, 0},
    {"0x10", 100, false, 0},
    {"1.5M", UINT64_MAX, false, 0},
};

TEST_FIXTURE(numbers, NULL, NULL);

TEST_LOOP(a_size_is_read_or_refused, COUNT(sizes))
{
    const struct size_case *test = &sizes[_i];
    uint64_t value = 12345;
    ck_assert_int_eq(test->good, parse_size(test->text, test->max, &value));
    ck_assert_uint_eq(test->good ? test->value : 12345, value);
}

TEST(a_number_has_no_unit)
{
    uint64_t value = 12345;
    ck_assert(!parse_number("4K", UINT64_MAX, &value));
    ck_assert(!parse_number("11", 10, &value));
    ck_assert_uint_eq(12345, value);
    ck_assert(parse_number("10", 10, &value));
    ck_assert_uint_eq(10, value);
}

/* ---- Files ----------------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/strait-test-util-XXXXXX";
static char path[sizeof(folder) + 8];

static void setup(void)
{
    memcpy(folder + sizeof(folder) - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/file", folder);
}

/* Fails when anything but `path` is left in the folder. */
static void teardown(void)
{
    unlink(path);
    ck_assert_int_eq(0, rmdir(folder));
}

static void assert_holds(const char *text)
{
    struct input input;
    ck_assert(input_open(&input, path));
    ck_assert_uint_eq(strlen(text), input.size);
    ck_assert_mem_eq(text, input.data, input.size);
    input_close(&input);
}

static void write_file(const char *text)
{
    struct output output;
    ck_assert(output_open(&output, path, 0666, true));
    ck_assert(output_write(&output, text, strlen(text)));
    ck_assert(output_commit(&output));
}

TEST_FIXTURE(files, setup, teardown);

TEST(an_output_appears_when_it_is_committed)
{
    struct output output;
    ck_assert(output_open(&output, path, 0666, true));
    ck_assert(output_write(&output, "ab", 2));
    ck_assert(output_write(&output, "", 0));
    ck_assert(output_write(&output, "c", 1));
    ck_assert_int_ne(0, access(path, F_OK));
    ck_assert(output_commit(&output));
    assert_holds("abc");
}

TEST(an_abandoned_output_changes_nothing)
{
    struct output output;
    write_file("before");
    ck_assert(output_open(&output, path, 0666, true));
    ck_assert(output_write(&output, "after", 5));
    output_abandon(&output);
    assert_holds("before");
}

TEST(a_committed_output_replaces_the_file)
{
    write_file("before");
    write_file("");
    assert_holds("");
}

TEST(a_file_that_appears_meanwhile_is_not_replaced_unasked)
{
    struct output output;
    ck_assert(output_open(&output, path, 0666, false));
    ck_assert(output_write(&output, "late", 4));
    write_file("early");
    ck_assert(!output_commit(&output));
    assert_holds("early");
}

static unsigned mode_of_file(void)
{
    struct stat info;
    ck_assert_int_eq(0, stat(path, &info));
    return info.st_mode & 07777;
}

TEST(a_new_output_has_the_mode_asked_for_and_a_replaced_one_keeps_its_own)
{
    struct output output;
    mode_t mask = umask(027);
    ck_assert(output_open(&output, path, 0604, false));
    ck_assert(output_commit(&output));
    ck_assert_uint_eq(0600, mode_of_file());
    ck_assert_int_eq(0, chmod(path, 0642));
    ck_assert(output_open(&output, path, 0600, true));
    ck_assert(output_commit(&output));
    ck_assert_uint_eq(0642, mode_of_file());
    umask(mask);
}

TEST_LOOP(a_signal_removes_the_unfinished_output, 7)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU, SIGXFSZ};
    write_file("before");
    pid_t child = fork();
    if (child == 0) {
        struct output output;
        setrlimit(RLIMIT_CORE, &(struct rlimit){0}); /* some of them would leave one */
        signal(signals[_i], SIG_DFL);
        if (output_open(&output, path, 0666, true) && output_write(&output, "after", 5))
            raise(signals[_i]);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(child, waitpid(child, &status, 0));
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == signals[_i]);
    assert_holds("before"); /* and teardown finds nothing else */
}

TEST(a_file_that_shrinks_ends_the_process_with_a_message)
{
    write_file("x");
    ck_assert_int_eq(0, truncate(path, 1 << 20));
    pid_t child = fork();
    if (child == 0) {
        struct input input;
        fclose(stderr);
        signal(SIGBUS, SIG_DFL); /* a sanitizer may have its own */
        if (!input_open(&input, path) || truncate(path, 0) != 0)
            _exit(100);
        _exit(100 + *(const volatile uint8_t *)(input.data + input.size - 1));
    }
    int status;
    ck_assert_int_eq(child, waitpid(child, &status, 0));
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(EXIT_CODE_DATA, WEXITSTATUS(status));
}

/* ---- Cutting --------------------------------------------------------------------------------------------------- */

#define TINY (1u << 20)

/* As many tensors of one value as a chunk has pages for, and a long page behind them. */
static void plan_tiny_and_long(struct plan *plan, uint64_t long_bytes)
{
    ck_assert(plan_init_plain(plan, 2 * TINY, STRAIT_ELEMENT_BF16));
    free(plan->segments);
    plan->segments = calloc(TINY, sizeof(plan->segments[0]));
    ck_assert_ptr_nonnull(plan->segments);
    plan->segment_count = TINY;
    for (uint32_t i = 0; i < TINY; i++)
        plan->segments[i] = (struct segment){.begin = 2 * i, .end = 2 * i + 2, .element = STRAIT_ELEMENT_BF16};
    plan->segments[TINY - 1].end += long_bytes;
}

TEST_FIXTURE(cutting, NULL, NULL);

TEST(short_pages_and_a_long_one_are_not_cut_into_one_chunk)
{
    struct plan plan;
    struct cut cut = {0};
    uint64_t page_bytes = (uint64_t)16 << 20, next = 0;
    struct cutter cutter = {.plan = &plan, .page_bytes = page_bytes, .chunk_bytes = 64 * page_bytes};

    plan_tiny_and_long(&plan, page_bytes - 2);
    while (cutter_next(&cutter, &cut) == CUT_OK) {
        uint64_t bytes = 0, longest = 0;
        for (uint32_t i = 0; i < cut.run_count; i++) {
            ck_assert_uint_eq(next, cut.runs[i].offset);
            next += cut.runs[i].bytes;
            bytes += cut.runs[i].bytes;
            longest = cut.runs[i].bytes > longest ? cut.runs[i].bytes : longest;
        }
        ck_assert_uint_le(4 * (uint64_t)cut.run_count * ((longest + 16383) / 16384 - 1), bytes / 64 + 4096);
    }
    ck_assert_uint_eq(plan.segments[TINY - 1].end, next);
    cut_fini(&cut);
    plan_fini(&plan);
}

/* ---- Threads --------------------------------------------------------------------------------------------------- */

struct shared {
    _Atomic unsigned calls;
    _Atomic uint64_t indices; /* one bit each */
};

static void note_call(void *arg, unsigned index)
{
    struct shared *shared = arg;
    atomic_fetch_add(&shared->calls, 1);
    atomic_fetch_or(&shared->indices, (uint64_t)1 << index);
}

TEST_LOOP(every_thread_runs_once, 4)
{
    static const unsigned threads[] = {1, 2, 3, 64};
    struct shared shared = {0};
    parallel_run(threads[_i], note_call, &shared);
    ck_assert_uint_eq(threads[_i], shared.calls);
    ck_assert_uint_eq(UINT64_MAX >> (64 - threads[_i]), shared.indices);
    ck_assert_uint_ge(cpu_count(), 1);
}

/* A run that the first piece of a thread other than the caller stops, while the next piece is being taken and further
 * threads wait for their turn to take. The stop is known to the run when the refusing thread ends, not when `give`
 * returns: that thread may be preempted in between for as long as it pleases. */
struct stopping {
    pthread_t caller;
    pthread_key_t end; /* its destructor runs when the refusing thread ends */
    unsigned later;    /* pieces taken after the refused one */
    atomic_bool chosen, ended;
};

static void note_end(void *ended)
{
    atomic_store((atomic_bool *)ended, true);
}

static bool take_until_the_end(void *job, void *slot)
{
    struct stopping *stopping = job;
    bool refused = !stopping->chosen && !pthread_equal(pthread_self(), stopping->caller);
    stopping->later += stopping->chosen;
    while (stopping->chosen && !stopping->ended)
        usleep(1000);
    stopping->chosen = stopping->chosen || refused;
    *(bool *)slot = refused;
    return stopping->later < 100;
}

/* The caller leaves the next piece to another thread. */
static void wait_for_another(void *job, void *slot)
{
    (void)slot;
    while (!((struct stopping *)job)->chosen)
        usleep(1000);
}

static bool refuse_chosen(void *job, void *slot)
{
    struct stopping *stopping = job;
    if (*(bool *)slot)
        ck_assert_int_eq(0, pthread_setspecific(stopping->end, &stopping->ended));
    return !*(bool *)slot;
}

static unsigned released;

static void count_released(void *slot)
{
    (void)slot;
    released++;
}

TEST(nothing_is_taken_after_a_refusal)
{
    static const struct ordered_steps steps = {take_until_the_end, wait_for_another, refuse_chosen, count_released};
    struct stopping stopping = {.caller = pthread_self()};
    ck_assert_int_eq(0, pthread_key_create(&stopping.end, note_end));
    ck_assert(ordered_run(&steps, &stopping, sizeof(bool), 4));
    ck_assert_uint_eq(released, 4);
    ck_assert(stopping.ended);
    ck_assert_uint_le(stopping.later, 1);
    pthread_key_delete(stopping.end);
}

int main(void)
{
    return run_tests("util", setup, teardown);
}
