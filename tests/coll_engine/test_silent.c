/* The process that made the unique id does not answer: a firewall drops what is sent to it, or it is stopped. Ranks
 * wait for it as long as the library says, go on without it, and come to no harm when it answers again. */
#include <dlfcn.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"
#include "tests/coll_engine/maker.h"

enum { RANKS = 3 };

static struct maker maker;

/* ---- Time -------------------------------------------------------------------------------------------------------- */

/* For the library, and for what measures it here, this clock runs so many times as fast. */
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

/* In place of the system's. */
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

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/* How long joining takes, and what comes of it. */
struct expected {
    long least_ms, most_ms;
    bool compressed;
};

static coll_id id_for_all;

static void gather_in_time(struct rank *rank)
{
    const struct expected *expected = rank->argument;
    const long begin = now_ms();
    rank_begin(rank, id_for_all);
    const long took_ms = now_ms() - begin;
    if (took_ms < expected->least_ms || took_ms >= expected->most_ms)
        fprintf(stderr, "rank %d has joined after %ld ms\n", rank->rank, took_ms);
    require(took_ms >= expected->least_ms && took_ms < expected->most_ms);
    rank_gather(rank, rank->comm, expected->compressed);
    rank_end(rank);
}

static void run_all(const coll_id *id, void (*body)(struct rank *), struct expected expected)
{
    id_for_all = *id;
    ranks_start(RANKS, body, &expected);
    require(fake_gpu.made == 0);
}

static void set_up(void)
{
    setenv("STRAIT_COLL", "compress", 1);
    setenv("STRAIT_COLL_WAIT", "60", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

/* It answers again: the next communicator joins there. */
static void require_server_is_usable(void)
{
    run_all(&maker.ids[1], gather_in_time, (struct expected){0, 15000, true});
}

/* ---- Packets that are dropped ------------------------------------------------------------------------------------ */

/* Where the maker listens, with room for one connection that is not taken; NULL: as usual. */
static struct sockaddr_storage *dropping_at;

/* In place of the system's. */
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

/* What comes when there is no room is dropped without an answer. */
static int fill_queue(void)
{
    const int filler = socket(dropping_at->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(filler >= 0 && connect(filler, (struct sockaddr *)dropping_at, sizeof(struct sockaddr_in)) == 0);
    return filler;
}

static void begin_dropping(void)
{
    dropping_at = mmap(NULL, sizeof(*dropping_at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(dropping_at != MAP_FAILED);
    maker = maker_begin();
    require(dropping_at->ss_family == AF_INET);
    maker_stop(&maker);
}

START_TEST(when_packets_are_dropped_ranks_join_in_shared_memory_after_4_s)
{
    begin_dropping();
    const int filler = fill_queue();
    hurry();
    run_all(&maker.ids[0], gather_in_time, (struct expected){4000, 19000, true});
    require(close(filler) == 0);
    maker_end(&maker);
}
END_TEST

/* ---- A process that is stopped ----------------------------------------------------------------------------------- */

START_TEST(when_it_is_stopped_before_ranks_join_in_shared_memory_after_20_s)
{
    maker = maker_begin();
    maker_stop(&maker);
    hurry();
    run_all(&maker.ids[0], gather_in_time, (struct expected){20000, 39000, true});
    maker_go_on(&maker);
    require_server_is_usable();
    maker_end(&maker);
}
END_TEST

/* Nothing tells when they have been answered for the first time. */
static void stop_when_others_wait(void)
{
    await_connected(RANKS - 1);
    usleep(500000);
    maker_stop(&maker);
}

/* Rank 0 has no library, and is waited for. */
static void wait_in_vain(struct rank *rank)
{
    if (rank->rank == 0)
        rank_without_library(rank, id_for_all, stop_when_others_wait);
    else
        gather_in_time(rank);
}

START_TEST(when_it_is_stopped_while_ranks_wait_they_stay_raw_after_20_s)
{
    maker = maker_begin();
    hurry();
    run_all(&maker.ids[0], wait_in_vain, (struct expected){20000, 39000, false});
    maker_go_on(&maker);
    require_server_is_usable();
    maker_end(&maker);
}
END_TEST

static void *go_on_soon(void *argument)
{
    await_connected(RANKS);
    usleep(200000);
    maker_go_on(argument);
    return NULL;
}

/* As they have asked, and before they have waited for long. */
START_TEST(when_it_goes_on_soon_ranks_join)
{
    pthread_t thread;
    maker = maker_begin();
    maker_stop(&maker);
    require(pthread_create(&thread, NULL, go_on_soon, &maker) == 0);
    run_all(&maker.ids[0], gather_in_time, (struct expected){200, 19000, true});
    require(pthread_join(thread, NULL) == 0);
    maker_end(&maker);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("silent");
    tcase_set_timeout(tests, 90);
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_test(tests, when_packets_are_dropped_ranks_join_in_shared_memory_after_4_s);
    tcase_add_test(tests, when_it_is_stopped_before_ranks_join_in_shared_memory_after_20_s);
    tcase_add_test(tests, when_it_is_stopped_while_ranks_wait_they_stay_raw_after_20_s);
    tcase_add_test(tests, when_it_goes_on_soon_ranks_join);
    return suite_run("silent", tests);
}
