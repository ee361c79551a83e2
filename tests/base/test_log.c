#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "tests/support.h"
#include "tests/run_suite.h"

static int ends[2];
static struct log *logger;

static void setup(void)
{
    logger = NULL;
    ck_assert_int_eq(0, pipe2(ends, O_CLOEXEC));
}

static void open_log(enum log_level level)
{
    ck_assert_int_eq(STRAIT_OK, log_create(ends[1], level, &logger));
}

/* Ends the log and gives what the pipe held, NUL-terminated. The caller frees it. */
static char *close_and_read(void)
{
    size_t capacity = 1 << 20, size = 0;
    char *text = malloc(capacity);
    ck_assert_ptr_nonnull(text);
    log_destroy(logger);
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], text + size, capacity - 1 - size)) > 0;)
        size += (size_t)got;
    close(ends[0]);
    text[size] = 0;
    return text;
}

static void close_ends(void)
{
    close(ends[0]);
    close(ends[1]);
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

TEST(a_line_has_time_level_and_text)
{
    static const char shape[] = "ts=dddd-dd-ddTdd:dd:dd.dddZ level=warn msg=hello n=7\n";
    open_log(LOG_INFO);
    log_write(logger, LOG_WARN, "msg=hello n=%d", 7);
    char *text = close_and_read();
    ck_assert_uint_eq(strlen(shape), strlen(text));
    for (size_t i = 0; i < strlen(shape); i++) {
        bool digit = i < 27 && shape[i] == 'd';
        ck_assert_msg(digit ? text[i] >= '0' && text[i] <= '9' : text[i] == shape[i], "%s", text);
    }
    free(text);
}

TEST_LOOP(only_lines_of_the_level_and_above_are_written, 4)
{
    open_log((enum log_level)_i);
    for (enum log_level level = LOG_ERROR; level <= LOG_DEBUG; level++) {
        ck_assert_int_eq((int)level <= _i, log_enabled(logger, level));
        log_write(logger, level, "at=%d.", (int)level);
    }
    char *text = close_and_read(), word[16];
    for (int level = 0; level <= LOG_DEBUG; level++) {
        snprintf(word, sizeof(word), "at=%d.", level);
        ck_assert_int_eq(level <= _i, strstr(text, word) != NULL);
    }
    free(text);
}

TEST(without_a_log_nothing_happens)
{
    ck_assert(!log_enabled(NULL, LOG_ERROR));
    log_write(NULL, LOG_ERROR, "x=%d", 1);
    log_destroy(NULL);
    close_ends();
}

TEST(one_event_is_one_line)
{
    open_log(LOG_INFO);
    log_write(logger, LOG_INFO, "msg=%s", "a\nlevel=error\r\x1b[0m\x7f");
    char *text = close_and_read();
    ck_assert_ptr_eq(text + strlen(text) - 1, strchr(text, '\n'));
    ck_assert_ptr_nonnull(strstr(text, "msg=a level=error  [0m \n"));
    free(text);
}

/* Is it a value in quotes, to the end of it? */
static const char *skip_quoted(const char *at)
{
    ck_assert_int_eq('"', *at++);
    for (; *at != '"'; at++) {
        ck_assert_int_ne(0, *at);
        if (*at == '\\' && *++at == 'x') {
            ck_assert(strspn(at + 1, "0123456789abcdef") >= 2);
            at += 2;
        }
    }
    return at + 1;
}

TEST(a_line_that_is_too_long_is_cut_and_stays_logfmt)
{
    static char value[8192], bytes[8192];
    memset(bytes, 0xfe, sizeof(bytes));
    bytes[0] = '"';
    open_log(LOG_INFO);
    for (int shift = 0; shift < 9; shift++) {
        log_quote(value, sizeof(value), bytes, sizeof(bytes));
        log_write(logger, LOG_INFO, "%.*smsg=%s after=1", shift, "xxxxxxxxx", value);
    }
    log_write(logger, LOG_INFO, "msg=%s", "next");
    char *text = close_and_read(), *line = text;
    for (int shift = 0; shift < 9; shift++) {
        const char *end = skip_quoted(strstr(line, "msg=") + 4);
        ck_assert_int_eq(0, strncmp(end, " cut=true\n", 10));
        ck_assert_uint_le((size_t)(end + 10 - line), 4096);
        ck_assert_uint_gt((size_t)(end + 10 - line), 4080);
        line = strchr(line, '\n') + 1;
    }
    ck_assert_ptr_nonnull(strstr(line, "msg=next\n"));
    free(text);
}

/* ---- Readers that stall ------------------------------------------------------------------------------------------ */

static uint64_t told_lost(const char *text)
{
    uint64_t lost = 0;
    for (const char *at = text; (at = strstr(at, "msg=\"log lines lost\" lines=")) != NULL; at++)
        lost += strtoull(at + 27, NULL, 10);
    return lost;
}

static uint64_t count(const char *text, const char *word)
{
    uint64_t found = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        found++;
    return found;
}

enum { MANY = 20000 };

struct reader {
    pthread_t thread;
    size_t size;
    char *text;
    sem_t told; /* of a loss, the first time */
    bool was_told;
};

static void *read_all(void *arg)
{
    struct reader *reader = arg;
    for (ssize_t got; (got = read(ends[0], reader->text + reader->size, 65536)) > 0;) {
        reader->size += (size_t)got;
        if (!reader->was_told && told_lost(reader->text) > 0) {
            reader->was_told = true;
            sem_post(&reader->told);
        }
    }
    return NULL;
}

static void start_reading(struct reader *reader)
{
    reader->text = calloc(1, 8 << 20);
    ck_assert_int_eq(0, sem_init(&reader->told, 0, 0));
    ck_assert_int_eq(0, pthread_create(&reader->thread, NULL, read_all, reader));
}

/* Ends the log; the reader then has all that was written, NUL-terminated. The caller frees it. */
static char *end_reading(struct reader *reader)
{
    log_destroy(logger);
    close(ends[1]);
    pthread_join(reader->thread, NULL);
    close(ends[0]);
    return reader->text;
}

/* More than the queue and a pipe take. */
static void write_many(const char *what)
{
    for (int i = 0; i < MANY; i++)
        log_write(logger, LOG_INFO, "msg=\"%s\" number=%d.", what, i);
}

TEST(a_pipe_that_nobody_reads_blocks_no_writer_and_lost_lines_are_told)
{
    struct reader reader = {0};
    double begin = clock_s(), late = machine_late_s();
    open_log(LOG_INFO);
    write_many("something long enough to fill a queue soon");
    ck_assert_double_lt(clock_s() - begin, 2.0 * STRIDE + machine_late_s() - late);
    start_reading(&reader);
    char *text = end_reading(&reader);
    uint64_t written = count(text, " number="), lost = told_lost(text);
    ck_assert_uint_gt(lost, 0);
    ck_assert_uint_eq(MANY, written + lost);
    ck_assert_ptr_nonnull(strstr(text, " number=0.\n"));
    free(text);
}

TEST(the_loss_is_told_where_it_happened)
{
    struct reader reader = {0};
    open_log(LOG_INFO);
    write_many("before");
    start_reading(&reader);
    while (sem_wait(&reader.told) != 0) /* the queue is empty */
        ck_assert_int_eq(EINTR, errno);
    log_write(logger, LOG_INFO, "msg=after");
    char *text = end_reading(&reader);
    const char *told = strstr(text, "log lines lost"), *after = strstr(text, "msg=after");
    ck_assert(told != NULL && after != NULL && told < after);
    free(text);
}

TEST(the_end_waits_a_second_for_a_stalled_reader_and_no_longer)
{
    open_log(LOG_INFO);
    write_many("something");
    double begin = clock_s(), late = machine_late_s();
    log_destroy(logger);
    double took = clock_s() - begin;
    ck_assert_double_gt(took, 0.9);
    ck_assert_double_lt(took, 3.0 + machine_late_s() - late);
    close_ends();
}

TEST(a_socket_that_nobody_reads_does_not_hold_up_the_end)
{
    close_ends();
    ck_assert_int_eq(0, socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    open_log(LOG_INFO);
    write_many("something");
    double begin = clock_s(), late = machine_late_s();
    log_destroy(logger);
    ck_assert_double_lt(clock_s() - begin, 3.0 + machine_late_s() - late);
    close_ends();
}

TEST(a_reader_that_went_away_ends_nothing)
{
    open_log(LOG_INFO);
    close(ends[0]);
    for (int i = 0; i < 100; i++) {
        log_write(logger, LOG_INFO, "msg=\"to nobody\"");
        usleep(500);
    }
    log_destroy(logger); /* and SIGPIPE would have ended this process */
    close(ends[1]);
}

TEST(a_descriptor_that_does_not_block_loses_nothing)
{
    struct reader reader = {0};
    ck_assert_int_eq(0, fcntl(ends[1], F_SETFL, O_NONBLOCK));
    ck_assert_int_ge(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
    open_log(LOG_INFO);
    for (int i = 0; i < 1000; i++)
        log_write(logger, LOG_INFO, "number=%d.", i);
    usleep(100000); /* it waits for room by now */
    start_reading(&reader);
    char *text = end_reading(&reader);
    ck_assert_uint_eq(1000, count(text, " number="));
    free(text);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 8, LINES = 400 };

static void *write_lines(void *arg)
{
    for (int i = 0; i < LINES; i++)
        log_write(logger, LOG_INFO, "writer=%d number=%d end=1", (int)(intptr_t)arg, i);
    return NULL;
}

/* Each writer's lines are whole and in order. */
static void check_lines(const char *text)
{
    int next[THREADS] = {0};
    for (const char *line = text; *line != 0; line = strchr(line, '\n') + 1) {
        int writer = -1, number = -1, used = 0;
        ck_assert_int_eq(2, sscanf(strstr(line, "writer="), "writer=%d number=%d end=1%n", &writer, &number, &used));
        ck_assert(writer >= 0 && writer < THREADS && used > 0);
        ck_assert_int_eq(next[writer]++, number);
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(LINES, next[i]);
}

TEST(lines_of_many_threads_do_not_mix)
{
    pthread_t threads[THREADS];
    struct reader reader = {0};
    open_log(LOG_INFO);
    start_reading(&reader);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(0, pthread_create(&threads[i], NULL, write_lines, (void *)(intptr_t)i));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    char *text = end_reading(&reader);
    check_lines(text);
    free(text);
}

/* ---- Limited lines ----------------------------------------------------------------------------------------------- */

TEST_FIXTURE(limited, setup, NULL);

static int count_of(const char *text, const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        count++;
    return count;
}

static int64_t second_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

TEST(ten_lines_of_a_class_are_written_in_a_second_and_the_next_counts_the_others)
{
    open_log(LOG_INFO);
    int64_t second = second_now();
    for (int i = 0; i < 1000; i++)
        log_limited(logger, LOG_OF_CLIENTS, LOG_WARN, "msg=again number=%d", i);
    log_limited(logger, LOG_OF_CLIENTS, LOG_DEBUG, "msg=\"not of this level\"");
    log_limited(logger, LOG_OF_STRANGERS, LOG_WARN, "msg=other");
    log_limited(NULL, LOG_OF_STRANGERS, LOG_WARN, "msg=nowhere");
    bool one_second = second_now() == second;
    while (second_now() <= second + !one_second)
        usleep(1000);
    log_limited(logger, LOG_OF_CLIENTS, LOG_WARN, "msg=last");
    char *text = close_and_read();
    if (one_second) {
        ck_assert_int_eq(10, count_of(text, "msg=again"));
        ck_assert_ptr_nonnull(strstr(text, "msg=last left_out=990\n"));
    }
    ck_assert_int_le(count_of(text, "msg=again"), 20);
    ck_assert_ptr_nonnull(strstr(text, "number=9\n"));
    ck_assert_ptr_nonnull(strstr(text, "msg=other\n"));
    free(text);
}

/* Peers that come and go for as long as they like, requests of a trace. */
static const struct {
    enum log_class class;
    int at_once, per_second;
} generous[] = {{LOG_OF_PEERS, 100, 10}, {LOG_OF_SPANS, 200, 100}};

TEST_LOOP(peers_and_spans_have_more_lines_at_once_and_then_a_number_each_second, COUNT(generous))
{
    enum { SECONDS = 2 };
    open_log(LOG_INFO);
    const int64_t first = second_now();
    int64_t now;
    while ((now = second_now()) < first + SECONDS + 1) {
        log_limited(logger, generous[_i].class, LOG_WARN, "msg=again");
        usleep(200);
    }
    char *text = close_and_read();
    const int count = count_of(text, "msg=again");
    ck_assert_int_ge(count, generous[_i].at_once);
    ck_assert_int_le(count, generous[_i].at_once + generous[_i].per_second * (int)(now - first));
    free(text);
}

TEST(a_limited_line_that_is_cut_still_counts_the_others)
{
    static char value[8192];
    memset(value, 'x', sizeof(value) - 1);
    open_log(LOG_INFO);
    int64_t second = second_now();
    for (int i = 0; i < 20; i++)
        log_limited(logger, LOG_OF_CLIENTS, LOG_WARN, "msg=short");
    while (second_now() == second)
        usleep(1000);
    log_limited(logger, LOG_OF_CLIENTS, LOG_WARN, "msg=\"%s\"", value);
    char *text = close_and_read(), *cut = strstr(text, "x\" cut=true left_out=");
    ck_assert_ptr_nonnull(cut);
    free(text);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static const struct quote_case {
    const char *bytes;
    size_t size, capacity;
    const char *expected;
} quotes[] = {
    {"plain-1.2:3/x", 13, 64, "plain-1.2:3/x"},
    {"", 0, 64, "\"\""},
    {"a b", 3, 64, "\"a b\""},
    {"a=b", 3, 64, "\"a=b\""},
    {"a\"b\\", 4, 64, "\"a\\\"b\\\\\""},
    {"\n\r\t\0\x7f", 5, 64, "\"\\n\\r\\t\\x00\\x7f\""},
    {"\xc3\xa4", 2, 64, "\"\\xc3\\xa4\""},
    {"plain", 5, 6, "plain"},
    {"plain", 5, 5, "plai"},
    {"plain", 5, 1, ""},
    {"a b", 3, 6, "\"a b\""},
    {"a b", 3, 5, "\"a \""},
    {"a b", 3, 4, "\"a\""},
    {"a b", 3, 3, "\"\""},
    {"a b", 3, 2, ""},
    {"a b", 3, 1, ""},
    {"\n\n", 2, 6, "\"\\n\""},
    {"\x01z", 2, 6, "\"\""},
    {"", 0, 3, "\"\""},
    {"", 0, 2, ""},
};

TEST_FIXTURE(values, NULL, NULL);

TEST_LOOP(a_value_is_quoted_where_needed_and_cut_to_fit, COUNT(quotes))
{
    const struct quote_case *test = &quotes[_i];
    struct guarded guarded;
    guarded_init(&guarded, test->capacity);
    char *dst = (char *)guarded.bytes;
    ck_assert_ptr_eq(dst, log_quote(dst, test->capacity, test->bytes, test->size));
    ck_assert_str_eq(test->expected, dst);
    guarded_fini(&guarded);
    ck_assert_str_eq("", log_quote(NULL, 0, test->bytes, test->size));
}

int main(void)
{
    (void)machine_watch();
    return run_tests("log", setup, NULL);
}
