/* Two hosts with a network of their own each, and a cable between them: network namespaces of threads, which end with
 * them. Two ranks are on each. Needs root; else it is skipped. */
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/coll_engine/harness.h"

enum { RANKS = 4, HOSTS = 2, COUNT_OF = 1 << 20, TURNS = 3, SKIPPED = 77 };

/* In place of the system's: the library tells the kernel after how many seconds without an answer a connection is
 * broken; this test has it broken after one. */
__attribute__((visibility("default"))) int setsockopt(int socket, int level, int name, const void *value,
                                                      socklen_t size)
{
    int (*real)(int socket, int level, int name, const void *value, socklen_t size) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "setsockopt");
    require(real != NULL);
    const int second = name == TCP_USER_TIMEOUT ? 1000 : 1;
    if (level != IPPROTO_TCP || (name != TCP_USER_TIMEOUT && name != TCP_KEEPIDLE && name != TCP_KEEPINTVL))
        return real(socket, level, name, value, size);
    require(size == sizeof(second) && *(const int *)value >= second && *(const int *)value <= 30 * second);
    return real(socket, level, name, &second, size);
}

static pid_t threads[HOSTS]; /* of the first rank of each host, whose network it is */

__attribute__((format(printf, 1, 2))) static void command(const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    require(system(text) == 0);
}

static void enter(pid_t thread)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/ns/net", thread);
    const int space = open(path, O_RDONLY | O_CLOEXEC);
    require(space >= 0 && setns(space, CLONE_NEWNET) == 0);
    close(space);
}

static void plug_in(const struct rank *rank)
{
    const int host = rank->rank / HOSTS;
    const bool first = rank->rank % HOSTS == 0;
    if (first) {
        require(unshare(CLONE_NEWNET) == 0);
        threads[host] = (pid_t)syscall(SYS_gettid);
    }
    ranks_meet();
    if (rank->rank == 0)
        command("ip link add name cable type veth peer name cable netns %d", threads[1]);
    ranks_meet();
    if (first)
        command("ip link set lo up && ip addr add 10.77.0.%d/24 dev cable && ip link set cable up", host + 1);
    else
        enter(threads[host]);
    ranks_meet();
}

static void gather(const struct rank *rank)
{
    const struct gather buffers = gather_new(rank, COLL_BF16, COUNT_OF, VALUES_NOISE);
    gather_run(rank, &buffers, false);
}

static void work(struct rank *rank)
{
    plug_in(rank);
    rank_begin(rank);
    for (unsigned turn = 0; turn < TURNS; turn++)
        gather(rank);
    require(told_of(rank->comm, "all_gather", "bf16").compressed >= 2);
    rank_end(rank);
}

static void set_up(void)
{
    setenv("STRAIT_TEST_HOSTS", "2", 1);
    unsetenv("NCCL_SOCKET_IFNAME");
}

START_TEST(overflow_goes_by_the_cable)
{
    ranks_start(RANKS, work, NULL);
    require(fake_gpu.taken > 0);
}
END_TEST

/* No packet arrives any more, so it takes as long as a host may be silent. */
static void lose_the_cable(struct rank *rank)
{
    plug_in(rank);
    rank_begin(rank);
    gather(rank);
    ranks_meet();
    if (rank->rank == 0)
        command("ip link set cable down");
    for (long began = now_ms(); error_of(rank->comm) == COLL_SUCCESS; usleep(10000))
        require(now_ms() - began < 20000);
    require(error_of(rank->comm) == COLL_REMOTE_ERROR);
    ranks_meet();
    require_ok(ncclCommAbort(rank->comm));
    fake_stream_end(rank->stream);
}

/* Frames for an address that nobody has arrive and are dropped without an answer, as by a firewall. */
static void join_behind_a_firewall(struct rank *rank)
{
    plug_in(rank);
    if (rank->rank == 0)
        command("ip neighbour replace 10.77.0.2 lladdr 02:00:00:00:00:fe dev cable nud permanent");
    ranks_meet();
    const long began = now_ms();
    rank_begin(rank);
    require(now_ms() - began >= 4000);
    rank_gather(rank, rank->comm, false);
    rank_end(rank);
}

int main(void)
{
    if (system("unshare -n ip link add name cable type veth peer name other >/dev/null 2>&1") != 0) {
        printf("skipped: networks cannot be made here: that needs root, unshare and ip\n");
        return SKIPPED;
    }
    TCase *tests = tcase_create("spaces");
    tcase_add_checked_fixture(tests, set_up, NULL);
    tcase_add_test(tests, overflow_goes_by_the_cable);
    add_ranks(tests, "a_host_that_is_silent_is_given_up", ranks_start, lose_the_cable, RANKS, 1);
    add_ranks(tests, "a_network_that_drops_packets_keeps_all_raw", ranks_start, join_behind_a_firewall, RANKS, 1);
    return suite_run("spaces", tests);
}
