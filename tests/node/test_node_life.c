/* straitd as a service manager and an operator see it: what it says of its life. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/listen.h"
#include "daemon/base/lock.h"
#include "daemon/base/service_manager.h"
#include "tests/daemon.h"
#include "tests/node/harness.h"
#include "tests/node/process.h"
#include "tests/support.h"

TEST_CASE(node_life);

/* ---- The service manager ----------------------------------------------------------------------------------------- */

static int manager_open(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", folder);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(0, bind(fd, (struct sockaddr *)&address, sizeof(address)));
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    return fd;
}

/* The next datagram within `ms`; "" after that. */
static const char *told(int manager, int ms)
{
    static char text[512];
    struct pollfd ready = {.fd = manager, .events = POLLIN};
    ssize_t size = 0;
    if (poll(&ready, 1, ms) == 1)
        size = recv(manager, text, sizeof(text) - 1, 0);
    text[size > 0 ? size : 0] = '\0';
    return text;
}

/* Takes datagrams until one begins so; those before it are WATCHDOG=1. */
static const char *told_first(int manager, const char *begin)
{
    for (;;) {
        const char *text = told(manager, 10000 * SLOW);
        if (strcmp(text, "WATCHDOG=1") != 0 || strcmp(begin, text) == 0) {
            ck_assert_msg(strncmp(text, begin, strlen(begin)) == 0, "\"%s\", not \"%s\"", text, begin);
            return text;
        }
    }
}

TEST(the_service_manager_is_told_of_start_reload_hangs_and_stop)
{
    struct test_node node;
    const int manager = manager_open();
    test_node_init(&node, "straitd", "shm");
    setenv("WATCHDOG_USEC", "100000", 1);
    const pid_t pid = straitd_start((struct straitd){.socket = node.options.socket});
    told_first(manager, "READY=1\nSTATUS=ready");
    struct party *party = party_open(&node); /* it listens when it says so */
    WAIT(party->connects == 1);
    for (int i = 0; i < 3; i++)
        ck_assert_str_eq("WATCHDOG=1", told(manager, 10000 * SLOW));
    const uint64_t before = service_monotonic_us();
    kill(pid, SIGHUP);
    unsigned long long when = 0;
    ck_assert_int_eq(1, sscanf(told_first(manager, "RELOADING=1\n"), "RELOADING=1\nMONOTONIC_USEC=%llu", &when));
    ck_assert(when >= before && when <= service_monotonic_us());
    told_first(manager, "READY=1");
    kill(pid, SIGSTOP);
    while (told(manager, 300)[0] != '\0') /* those on the way */
        continue;
    ck_assert_str_eq("", told(manager, 300));
    kill(pid, SIGCONT);
    told_first(manager, "WATCHDOG=1");
    kill(pid, SIGTERM);
    told_first(manager, "STOPPING=1");
    straitd_ends(pid, 0);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    close(manager);
}

TEST(nobody_is_told_that_a_daemon_is_ready_which_does_not_start)
{
    struct test_node node;
    const int manager = manager_open();
    test_node_init(&node, "straitd", "shm");
    snprintf(node.options.socket, sizeof(node.options.socket), "/proc/nowhere/s");
    straitd_ends(straitd_start((struct straitd){.socket = node.options.socket}), 1);
    ck_assert_str_eq("", told(manager, 0));
    unsetenv("NOTIFY_SOCKET");
    close(manager);
}

/* ---- Sockets of the service manager ------------------------------------------------------------------------------ */

enum { CLIENTS, CONTROL, METRICS, EXTRA, SOCKETS };

/* What a socket unit with three addresses would open, and one more that no option names. */
struct sockets {
    int fds[SOCKETS];
    unsigned control, metrics;
    char listen[32], metrics_option[48], log[128];
};

static int tcp_listen(unsigned port)
{
    struct listen_sockets bound;
    char list[32], why[300];
    snprintf(list, sizeof(list), "127.0.0.1:%u", port);
    ck_assert_int_eq(STRAIT_OK, listen_tcp(list, 16, &bound, why, sizeof(why)));
    return bound.fds[0];
}

static void sockets_open(struct sockets *sockets, const struct test_node *node)
{
    char why[300];
    sockets->control = reserve_port();
    sockets->metrics = reserve_port();
    ck_assert_int_eq(STRAIT_OK, listen_unix(node->options.socket, 0600, &sockets->fds[CLIENTS], why, sizeof(why)));
    sockets->fds[CONTROL] = tcp_listen(sockets->control);
    sockets->fds[METRICS] = tcp_listen(sockets->metrics);
    sockets->fds[EXTRA] = tcp_listen(0);
    snprintf(sockets->listen, sizeof(sockets->listen), "127.0.0.1:%u", sockets->control);
    snprintf(sockets->metrics_option, sizeof(sockets->metrics_option), "--metrics=127.0.0.1:%u", sockets->metrics);
    snprintf(sockets->log, sizeof(sockets->log), "%s/log", folder);
}

static void sockets_close(struct sockets *sockets)
{
    for (int i = 0; i < SOCKETS; i++)
        close(sockets->fds[i]);
}

static struct straitd straitd_of(const struct sockets *sockets, const struct test_node *node)
{
    return (struct straitd){.socket = node->options.socket,
                            .listen = sockets->listen,
                            .log = sockets->log,
                            .options = {sockets->metrics_option},
                            .fds = sockets->fds,
                            .fd_count = SOCKETS};
}

static void answers_metrics(unsigned port)
{
    char *text = metrics_fetch(port, 10000 * SLOW);
    ck_assert_ptr_nonnull(text);
    free(text);
}

/* The sockets are there before the first daemon and between two: nobody who connects is refused. */
TEST(sockets_of_the_service_manager_are_served_in_any_order_and_stay)
{
    struct test_node a, b;
    struct sockets sockets;
    test_node_init(&a, "a", "shm");
    test_node_init(&b, "b", "shm");
    sockets_open(&sockets, &a);
    struct party *to = party_open(&a); /* nobody accepts yet */
    pump_for(20);
    struct straitd straitd = straitd_of(&sockets, &a);
    straitd.fd_names = "clients:control:metrics:straitd.socket";
    pid_t pid = straitd_start(straitd);
    WAIT(to->connects == 1);
    const pid_t other = straitd_start((struct straitd){.socket = b.options.socket});
    struct party *from = party_open(&b);
    struct test_pool *sink = pool_open(to, (struct geometry){0}), *source = pool_open(from, (struct geometry){0});
    move_all(sink, source); /* b dials the control port: the sink's daemon asks the source's */
    answers_metrics(sockets.metrics);
    log_says(sockets.log, "msg=\"sockets not used\" count=1");
    for (int i = 0; i < SOCKETS; i++) { /* in another order, and without names */
        const int fd = sockets.fds[i];
        sockets.fds[i] = sockets.fds[(i + 1) % (SOCKETS - 1)];
        sockets.fds[(i + 1) % (SOCKETS - 1)] = fd;
    }
    straitd_stop(pid);
    ck_assert_int_eq(0, access(a.options.socket, F_OK));
    struct party *early = party_open(&a);
    pump_for(20);
    pid = straitd_start(straitd_of(&sockets, &a));
    WAIT(early->connects == 1 && to->connects == 2);
    answers_metrics(sockets.metrics);
    straitd_stop(pid);
    straitd_stop(other);
    sockets_close(&sockets);
}

/* LISTEN_PID of another process, numbers that are none, or more descriptors than are taken. */
static const struct no_sockets {
    const char *pid, *fds;
} no_sockets[] = {{"1", NULL}, {"x", NULL},  {NULL, "-1"},         {NULL, "x"},
                  {NULL, "0"}, {NULL, "63"}, {NULL, "99999999999"}};

TEST_LOOP(sockets_that_are_not_its_own_are_left_alone, COUNT(no_sockets))
{
    struct test_node node;
    struct sockets sockets;
    test_node_init(&node, "a", "shm");
    snprintf(sockets.log, sizeof(sockets.log), "%s/log", folder);
    snprintf(sockets.listen, sizeof(sockets.listen), "127.0.0.1:0");
    snprintf(sockets.metrics_option, sizeof(sockets.metrics_option), "--metrics=");
    for (int i = 0; i < SOCKETS; i++)
        sockets.fds[i] = tcp_listen(0);
    struct straitd straitd = straitd_of(&sockets, &node);
    straitd.listen_pid = no_sockets[_i].pid;
    straitd.listen_fds = no_sockets[_i].fds;
    const pid_t pid = straitd_start(straitd);
    struct party *party = party_open(&node);
    WAIT(party->connects == 1);
    ck_assert(!log_has(sockets.log, "sockets not used"));
    straitd_stop(pid);
    ck_assert_int_ne(0, access(node.options.socket, F_OK)); /* its own */
    sockets_close(&sockets);
}

TEST(descriptors_that_do_not_listen_are_closed)
{
    struct test_node node;
    struct sockets sockets;
    int pipe_ends[2];
    test_node_init(&node, "a", "shm");
    sockets_open(&sockets, &node);
    ck_assert_int_eq(0, pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK));
    close(sockets.fds[EXTRA]);
    sockets.fds[EXTRA] = pipe_ends[1];
    const pid_t pid = straitd_start(straitd_of(&sockets, &node));
    struct party *party = party_open(&node);
    WAIT(party->connects == 1);
    sockets_close(&sockets);
    char byte;
    ck_assert_int_eq(0, read(pipe_ends[0], &byte, 1)); /* no other process has it */
    close(pipe_ends[0]);
    ck_assert(!log_has(sockets.log, "sockets not used"));
    straitd_stop(pid);
}

/* ---- Without descriptors ----------------------------------------------------------------------------------------- */

/* Clients that send no hello yet take all that the process may have. */
TEST(metrics_are_answered_when_clients_have_taken_all_descriptors)
{
    enum { CROWD = 48, MORE = 8 };
    struct test_node node;
    struct process_size size;
    struct rlimit limit;
    char option[48], log[128];
    int crowd[CROWD];
    const unsigned port = reserve_port();
    test_node_init(&node, "a", "shm");
    snprintf(option, sizeof(option), "--metrics=127.0.0.1:%u", port);
    snprintf(log, sizeof(log), "%s/log", folder);
    const pid_t pid = straitd_start(
        (struct straitd){.socket = node.options.socket, .log = log, .options = {option, "--peer-timeout=60s"}});
    struct party *party = party_open(&node);
    WAIT(party->connects == 1);
    ck_assert(process_size_read(pid, &size));
    ck_assert_int_eq(0, prlimit(pid, RLIMIT_NOFILE, NULL, &limit));
    limit.rlim_cur = size.descriptors + MORE;
    ck_assert_int_eq(0, prlimit(pid, RLIMIT_NOFILE, &limit, NULL));
    for (int i = 0; i < CROWD; i++)
        crowd[i] = unix_dial(node.options.socket);
    log_says(log, "msg=\"cannot accept\" listener=clients");
    for (int i = 0; i < 5; i++)
        answers_metrics(port);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    straitd_stop(pid);
}

int main(void)
{
    return node_main("node_life");
}
