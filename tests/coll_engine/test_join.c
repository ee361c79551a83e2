/* How ranks find each other and agree on whether to compress: by the default rendezvous, which is TCP at the process
 * that asked for the unique id; by shared memory; and with ranks that do not compress, that are slow or that differ. */
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine/hosts.h"
#include "tests/coll_engine/harness.h"

enum { RANKS = 3, LONG_MS = 30000 };

/* ---- In place of the system's ------------------------------------------------------------------------------------ */

/* Without shared memory, ranks are as on several hosts. */
static bool no_memory;
static _Atomic int asked_for_memory;

__attribute__((visibility("default"))) int shm_open(const char *name, int flags, mode_t mode)
{
    int (*real)(const char *name, int flags, mode_t mode) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "shm_open");
    asked_for_memory++;
    return !no_memory && real != NULL ? real(name, flags, mode) : -1;
}

/* For the library, and for what measures it here, the clock runs so many times as fast after `hurry`. */
enum { HURRY = 8 };
static int speed = 1;
static int64_t hurried_ns; /* since then */

static int64_t real_ns(void)
{
    struct timespec now;
    require(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Before there are threads. */
static void hurry(void)
{
    hurried_ns = real_ns();
    speed = HURRY;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock != CLOCK_MONOTONIC || speed == 1)
        return (int)syscall(SYS_clock_gettime, clock, now);
    const int64_t ns = hurried_ns + (real_ns() - hurried_ns) * speed;
    *now = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}

__attribute__((visibility("default"))) int poll(struct pollfd *files, nfds_t count, int milliseconds)
{
    int (*real)(struct pollfd * files, nfds_t count, int milliseconds) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "poll");
    require(real != NULL);
    return real(files, count, milliseconds > 0 ? (milliseconds + speed - 1) / speed : milliseconds);
}

/* Where a server listens that has room for one connection that is not taken; NULL: as usual. */
static struct sockaddr_storage *dropping_at;

__attribute__((visibility("default"))) int listen(int socket, int backlog)
{
    int (*real)(int socket, int backlog) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "listen");
    require(real != NULL);
    if (dropping_at == NULL)
        return real(socket, backlog);
    socklen_t size = sizeof(*dropping_at);
    require(getsockname(socket, (struct sockaddr *)dropping_at, &size) == 0);
    return real(socket, 0);
}

/* ---- A process that makes unique ids and runs their server ------------------------------------------------------- */

static pid_t maker;
static coll_id ids[2];

static void make_ids(int to)
{
    require_ok(ncclGetUniqueId(&ids[0]));
    require_ok(ncclGetUniqueId(&ids[1]));
    require(write(to, ids, sizeof(ids)) == sizeof(ids));
    for (;;)
        pause();
}

static void maker_begin(void)
{
    int ends[2];
    require(pipe(ends) == 0);
    maker = fork();
    require(maker >= 0);
    if (maker == 0)
        make_ids(ends[1]);
    require(read(ends[0], ids, sizeof(ids)) == sizeof(ids));
    close(ends[0]);
    close(ends[1]);
}

static void maker_kill(void)
{
    require(kill(maker, SIGKILL) == 0 && waitpid(maker, NULL, 0) == maker);
}

/* Returns when it has stopped. Its system still takes connections, but nobody answers. */
static void maker_stop(void)
{
    int status;
    require(kill(maker, SIGSTOP) == 0);
    require(waitpid(maker, &status, WUNTRACED) == maker && WIFSTOPPED(status));
}

static void maker_continue(void)
{
    require(kill(maker, SIGCONT) == 0);
}

/* Waits until so many connections of this process have been made. */
static void await_connected(int count)
{
    for (int found = 0; found < count; usleep(1000)) {
        found = 0;
        for (int file = 0; file < 1024; file++) {
            struct sockaddr_storage at;
            socklen_t size = sizeof(at);
            found += getpeername(file, (struct sockaddr *)&at, &size) == 0 && at.ss_family == AF_INET;
        }
    }
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/* How long joining takes, and what comes of it. */
struct expected {
    long least_ms, most_ms;
    bool compressed;
    void (*when_joined)(void); /* of rank 0, which has no library then; NULL: it has one */
};

static void join_and_gather(struct rank *rank)
{
    const struct expected *expected = rank->argument;
    const long began = now_ms();
    rank_begin(rank);
    const long took_ms = now_ms() - began;
    if (took_ms < expected->least_ms || took_ms >= expected->most_ms)
        fprintf(stderr, "rank %d has joined after %ld ms\n", rank->rank, took_ms);
    require(took_ms >= expected->least_ms && took_ms < expected->most_ms);
    rank_gather(rank, rank->comm, expected->compressed);
    rank_end(rank);
}

/* A rank that calls NCCL itself. It ends beside the others' rank_end. */
static void be_without_library(struct rank *rank, void (*when_joined)(void))
{
    coll_result (*init)(coll_comm *, int, coll_id, int) = NULL, (*destroy)(coll_comm) = NULL;
    coll_result (*all_gather)(const void *, void *, size_t, coll_type, coll_comm, coll_stream) = NULL;
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    require(nccl != NULL);
    *(void **)&init = dlsym(nccl, "pncclCommInitRank");
    *(void **)&destroy = dlsym(nccl, "pncclCommDestroy");
    *(void **)&all_gather = dlsym(nccl, "pncclAllGather");
    require(init != NULL && destroy != NULL && all_gather != NULL);
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    require_ok(init(&rank->comm, rank->ranks, rank->id, rank->rank));
    if (when_joined != NULL)
        when_joined();
    const struct gather gather = gather_new(rank, COLL_BF16, 40001, VALUES_NORMAL);
    require_ok(all_gather(gather.own, gather.all, gather.count, gather.type, rank->comm, rank->stream));
    gather_check(rank, &gather);
    ranks_meet();
    require_ok(destroy(rank->comm));
    fake_stream_end(rank->stream);
}

static void join_without_rank_0(struct rank *rank)
{
    const struct expected *expected = rank->argument;
    if (rank->rank == 0)
        be_without_library(rank, expected->when_joined);
    else
        join_and_gather(rank);
}

/* By the id of another process, or of this one if NULL. */
static void join_all(const coll_id *id, struct expected expected)
{
    coll_id own;
    int version;
    /* ThreadSanitizer takes the lock under which NCCL is loaded for this thread's, as a fork has made it anew. */
    require_ok(ncclGetVersion(&version));
    if (id == NULL)
        require_ok(ncclGetUniqueId(&own));
    ranks_start_with_id(id != NULL ? id : &own, RANKS,
                        expected.when_joined != NULL ? join_without_rank_0 : join_and_gather, &expected);
}

static void set_up(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

/* As on hosts of their own. */
static void set_up_hosts(void)
{
    no_memory = true;
    setenv("STRAIT_COLL_WAIT", "300ms", 1);
    setenv("STRAIT_TEST_HOSTS", "1", 1);
}

/* ---- Ranks that do not compress, or are slow --------------------------------------------------------------------- */

/* So many scenes on one host, and then the same with each rank on a host of its own. */
static int scene_of(int i, int scenes)
{
    if (i >= scenes)
        setenv("STRAIT_TEST_HOSTS", "1", 1);
    return i % scenes;
}

static void gather_beside_plain_nccl(struct rank *rank)
{
    const int absent = *(const int *)rank->argument;
    const long began = now_ms();
    if (rank->rank == absent) {
        be_without_library(rank, NULL);
        return;
    }
    rank_begin(rank);
    require(now_ms() - began < LONG_MS);
    rank_gather(rank, rank->comm, false);
    rank_end(rank);
}

START_TEST(a_rank_without_the_library_keeps_all_raw)
{
    const int absent = scene_of(_i, RANKS);
    setenv("STRAIT_COLL_WAIT", "200ms", 1);
    ranks_start(RANKS, gather_beside_plain_nccl, &absent);
    require(fake_gpu.makings == 0); /* nobody took a GPU's memory for it */
}
END_TEST

static _Atomic int gave_up;

static void begin_and_release(struct rank *rank)
{
    rank_begin(rank);
    if (++gave_up == rank->ranks - 1)
        fake_nccl.held = false;
    rank_gather(rank, rank->comm, false);
    rank_end(rank);
}

/* The others have given up, and it finds out. */
START_TEST(a_rank_that_joins_after_the_time_limit_is_as_raw_as_the_others)
{
    setenv("STRAIT_COLL_WAIT", "200ms", 1);
    fake_nccl.slow = scene_of(_i, RANKS) + 1;
    fake_nccl.held = true;
    ranks_start(RANKS, begin_and_release, NULL);
}
END_TEST

static void gather_compressed(struct rank *rank)
{
    rank_gather(rank, rank->comm, true);
}

START_TEST(a_rank_that_is_slow_is_waited_for)
{
    (void)scene_of(_i, 1);
    setenv("STRAIT_COLL_WAIT", "60", 1);
    fake_nccl.slow = 2;
    fake_nccl.slow_ms = 300;
    ranks_run(RANKS, gather_compressed, NULL);
}
END_TEST

/* ---- Ranks that differ ------------------------------------------------------------------------------------------- */

static void require_raw(struct rank *rank)
{
    rank_gather(rank, rank->comm, false);
    const struct told told = told_of(rank->comm, "all_gather", "bf16");
    require(strstr(told.reason, "raw: the ranks could not agree") != NULL);
}

/* Of what ranks tell each other: the format, its version, settings, the release. */
static const uint32_t differences[] = {0, 8, 16, 20, 24, 28, 32, 40, 48, 184, 192};

START_TEST(ranks_that_differ_stay_raw)
{
    const int scene = scene_of(_i, RANKS * COUNT(differences));
    fake_nccl.differ = 1 + scene % RANKS;
    fake_nccl.differ_size = 224;
    fake_nccl.differ_at = differences[scene / RANKS];
    ranks_run(RANKS, require_raw, NULL);
    require(fake_gpu.taken == 0);
}
END_TEST

/* As one of another host, or one that may not look at the process that made the memory. */
static const uint32_t card_parts[] = {0, 8, 16, 20}; /* of a segment's card */

START_TEST(a_rank_that_does_not_reach_the_shared_segment_keeps_all_raw)
{
    fake_nccl.differ = 1 + _i % RANKS;
    fake_nccl.differ_size = sizeof(struct peer_info);
    fake_nccl.differ_at = card_parts[_i / RANKS];
    ranks_run(RANKS, require_raw, NULL);
    require(fake_gpu.offered == 0);
}
END_TEST

START_TEST(a_rank_without_the_codec_keeps_all_raw)
{
    fake_gpu.no_codec = 1u << scene_of(_i, RANKS);
    ranks_run(RANKS, require_raw, NULL);
}
END_TEST

START_TEST(a_rank_whose_launches_may_not_run_keeps_all_raw)
{
    fake_gpu.troubled = 1u << scene_of(_i, RANKS);
    ranks_run(RANKS, require_raw, NULL);
}
END_TEST

/* ---- The server of this process ---------------------------------------------------------------------------------- */

static void gather_with_child(struct rank *rank)
{
    coll_comm child = NULL;
    rank_gather(rank, rank->comm, true);
    require_ok(ncclCommSplit(rank->comm, 4, rank->rank, &child, NULL));
    rank_gather(rank, child, true);
    ranks_meet();
    require_ok(ncclCommDestroy(child));
}

START_TEST(ranks_without_shared_memory_join_by_tcp)
{
    set_up_hosts();
    ranks_run(RANKS, gather_with_child, NULL);
    require(asked_for_memory == 0);
}
END_TEST

START_TEST(ranks_that_may_use_shared_memory_only_stay_raw_without_it)
{
    set_up_hosts();
    setenv("STRAIT_COLL_MEET", "host", 1);
    join_all(NULL, (struct expected){0, LONG_MS, false, NULL});
    require(asked_for_memory == RANKS);
}
END_TEST

/* They would only wait for ranks of other hosts, which cannot come. */
START_TEST(more_ranks_than_the_host_has_gpus_do_not_wait_in_shared_memory)
{
    char folder[] = "/tmp/strait-gpus-XXXXXX", gpu[sizeof(folder) + 16];
    require(mkdtemp(folder) != NULL);
    snprintf(gpu, sizeof(gpu), "%s/0000:01:00.0", folder);
    require(mkdir(gpu, 0700) == 0);
    fake_gpu.list = folder;
    set_up_hosts();
    no_memory = false;
    setenv("STRAIT_COLL_MEET", "host", 1);
    join_all(NULL, (struct expected){0, LONG_MS, false, NULL});
    require(asked_for_memory == 0);
    require(rmdir(gpu) == 0 && rmdir(folder) == 0);
}
END_TEST

static bool has_payload(coll_id *id)
{
    static const char nothing[64];
    require_ok(ncclGetUniqueId(id));
    return memcmp(id->bytes + 64, nothing, sizeof(nothing)) != 0;
}

static const struct {
    const char *name, *value;
    bool has_payload;
} settings[] = {{"STRAIT_COLL", "compress", true},
                {"STRAIT_COLL", "auto", true},
                {"STRAIT_COLL", "raw", false},
                {"STRAIT_COLL", "off", false},
                {"STRAIT_COLL_MEET", "auto", true},
                {"STRAIT_COLL_MEET", "host", false},
                {"NCCL_COMM_ID", "127.0.0.1:7000", false},
                {"NCCL_SOCKET_IFNAME", "=no-such-interface", false}};

START_TEST(ids_name_a_server_if_ranks_may_use_it)
{
    coll_id id;
    setenv(settings[_i].name, settings[_i].value, 1);
    require(has_payload(&id) == settings[_i].has_payload);
}
END_TEST

#if !defined(__SANITIZE_THREAD__) /* by which no child of several threads may start one */
/* Its parent's is not its own: nobody would answer there. */
START_TEST(a_forked_child_has_a_server_of_its_own)
{
    coll_id before, after;
    set_up_hosts();
    require(has_payload(&before));
    const pid_t child = fork();
    require(child >= 0);
    if (child == 0) {
        require(has_payload(&after));
        _exit(memcmp(before.bytes + 64, after.bytes + 64, 64) == 0);
    }
    int status;
    require(waitpid(child, &status, 0) == child && status == 0);
    require(has_payload(&after) && memcmp(before.bytes + 64, after.bytes + 64, 64) == 0);
    join_all(&after, (struct expected){0, LONG_MS, true, NULL});
}
END_TEST
#endif

/* ---- The server of another process, which ends ------------------------------------------------------------------- */

START_TEST(the_process_that_made_the_id_need_not_be_a_rank)
{
    set_up_hosts();
    maker_begin();
    join_all(&ids[0], (struct expected){0, LONG_MS, true, NULL});
    require(asked_for_memory == 0);
    maker_kill();
}
END_TEST

/* Those of one host still have that; others stay raw. */
START_TEST(after_the_server_has_ended_ranks_join_in_shared_memory)
{
    set_up_hosts();
    no_memory = _i == 0;
    maker_begin();
    maker_kill();
    join_all(&ids[0], (struct expected){0, LONG_MS, _i == 1, NULL});
    require(asked_for_memory == RANKS);
}
END_TEST

static void kill_when_others_wait(void)
{
    await_connected(RANKS - 1);
    maker_kill();
}

/* They wait for rank 0, and would for a minute. */
START_TEST(when_the_server_ends_while_ranks_wait_they_stay_raw_at_once)
{
    set_up_hosts();
    setenv("STRAIT_COLL_WAIT", "60", 1);
    maker_begin();
    join_all(&ids[0], (struct expected){0, LONG_MS, false, kill_when_others_wait});
}
END_TEST

/* ---- The server of another process, which does not answer -------------------------------------------------------- */

/* What is to take 20 s takes less than twice as long; under a sanitizer, whose delays the clock multiplies too, less
 * than STRAIT_COLL_WAIT. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STOPPED_MOST_MS = 59000 };
#else
enum { STOPPED_MOST_MS = 39000 };
#endif

/* It answers again: the next communicator joins there. */
static void require_server_is_usable(void)
{
    join_all(&ids[1], (struct expected){0, 15000, true, NULL});
}

/* What comes when there is no room for a connection is dropped without an answer, as by a firewall. */
START_TEST(when_packets_are_dropped_ranks_join_in_shared_memory_after_4_s)
{
    setenv("STRAIT_COLL_WAIT", "60", 1);
    dropping_at = mmap(NULL, sizeof(*dropping_at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(dropping_at != MAP_FAILED);
    maker_begin();
    require(dropping_at->ss_family == AF_INET);
    maker_stop();
    const int filler = socket(dropping_at->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(filler >= 0 && connect(filler, (struct sockaddr *)dropping_at, sizeof(struct sockaddr_in)) == 0);
    hurry();
    join_all(&ids[0], (struct expected){4000, 19000, true, NULL});
    require(close(filler) == 0);
    maker_kill();
}
END_TEST

START_TEST(when_the_server_is_stopped_before_ranks_join_in_shared_memory_after_20_s)
{
    setenv("STRAIT_COLL_WAIT", "60", 1);
    maker_begin();
    maker_stop();
    hurry();
    join_all(&ids[0], (struct expected){20000, STOPPED_MOST_MS, true, NULL});
    maker_continue();
    require_server_is_usable();
    maker_kill();
}
END_TEST

/* Nothing tells when they have been answered for the first time. */
static void stop_when_others_wait(void)
{
    await_connected(RANKS - 1);
    usleep(500000);
    maker_stop();
}

START_TEST(when_the_server_is_stopped_while_ranks_wait_they_stay_raw_after_20_s)
{
    setenv("STRAIT_COLL_WAIT", "60", 1);
    maker_begin();
    hurry();
    join_all(&ids[0], (struct expected){20000, STOPPED_MOST_MS, false, stop_when_others_wait});
    maker_continue();
    require_server_is_usable();
    maker_kill();
}
END_TEST

static void *continue_soon(void *argument)
{
    await_connected(RANKS);
    usleep(200000);
    maker_continue();
    return argument;
}

/* As they have asked, and before they have waited for long. */
START_TEST(when_the_server_is_continued_soon_ranks_join)
{
    pthread_t thread;
    setenv("STRAIT_COLL_WAIT", "60", 1);
    maker_begin();
    maker_stop();
    require(pthread_create(&thread, NULL, continue_soon, NULL) == 0);
    join_all(&ids[0], (struct expected){200, 19000, true, NULL});
    require(pthread_join(thread, NULL) == 0);
    maker_kill();
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("join");
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_loop_test(tests, a_rank_without_the_library_keeps_all_raw, 0, 2 * RANKS);
    tcase_add_loop_test(tests, a_rank_that_joins_after_the_time_limit_is_as_raw_as_the_others, 0, 2 * RANKS);
    tcase_add_loop_test(tests, a_rank_that_is_slow_is_waited_for, 0, 2);
    add_loop(tests, ranks_that_differ_stay_raw, 0, 2 * RANKS * COUNT(differences));
    add_loop(tests, a_rank_that_does_not_reach_the_shared_segment_keeps_all_raw, 0, RANKS * COUNT(card_parts));
    tcase_add_loop_test(tests, a_rank_without_the_codec_keeps_all_raw, 0, 2 * RANKS);
    tcase_add_loop_test(tests, a_rank_whose_launches_may_not_run_keeps_all_raw, 0, 2 * RANKS);
    tcase_add_test(tests, ranks_without_shared_memory_join_by_tcp);
    tcase_add_test(tests, ranks_that_may_use_shared_memory_only_stay_raw_without_it);
    tcase_add_test(tests, more_ranks_than_the_host_has_gpus_do_not_wait_in_shared_memory);
    tcase_add_loop_test(tests, ids_name_a_server_if_ranks_may_use_it, 0, COUNT(settings));
#if !defined(__SANITIZE_THREAD__)
    tcase_add_test(tests, a_forked_child_has_a_server_of_its_own);
#endif
    tcase_add_test(tests, the_process_that_made_the_id_need_not_be_a_rank);
    tcase_add_loop_test(tests, after_the_server_has_ended_ranks_join_in_shared_memory, 0, 2);
    tcase_add_test(tests, when_the_server_ends_while_ranks_wait_they_stay_raw_at_once);
    tcase_add_test(tests, when_packets_are_dropped_ranks_join_in_shared_memory_after_4_s);
    tcase_add_test(tests, when_the_server_is_stopped_before_ranks_join_in_shared_memory_after_20_s);
    tcase_add_test(tests, when_the_server_is_stopped_while_ranks_wait_they_stay_raw_after_20_s);
    tcase_add_test(tests, when_the_server_is_continued_soon_ranks_join);
    return suite_run("join", tests);
}
