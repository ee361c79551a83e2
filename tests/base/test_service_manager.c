/* What a service manager is told: where the datagrams go, and when none are sent. */
#include <check.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/service_manager.h"
#include "tests/run_suite.h"
#include "tests/support.h"

static char folder[] = "/tmp/strait-test-notify-XXXXXX";
static int manager = -1; /* its socket */
static char name[100];

static void setup(void)
{
    memcpy(folder + sizeof(folder) - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

static void teardown(void)
{
    if (manager >= 0)
        close(manager);
    manager = -1;
    if (name[0] == '/')
        unlink(name);
    ck_assert_int_eq(0, rmdir(folder));
}

static void manager_open(bool abstract)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(name, sizeof(name), "%c%s/notify", abstract ? '@' : '/', folder + 1);
    memcpy(address.sun_path, name, strlen(name));
    if (abstract)
        address.sun_path[0] = '\0';
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(manager, 0);
    ck_assert_int_eq(0, bind(manager, (struct sockaddr *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))));
    setenv("NOTIFY_SOCKET", name, 1);
}

TEST_LOOP(datagrams_reach_a_path_and_an_abstract_name, 2)
{
    char text[64] = "";
    manager_open(_i == 1);
    ck_assert(service_notify("READY=1\nSTATUS=%d", 7));
    ck_assert_int_eq(16, recv(manager, text, sizeof(text), 0));
    ck_assert_mem_eq("READY=1\nSTATUS=7", text, 16);
}

TEST(nothing_is_sent_without_a_manager_or_to_what_is_no_unix_socket)
{
    char too_long[200];
    memset(too_long, 'x', sizeof(too_long) - 1);
    too_long[0] = '/';
    too_long[sizeof(too_long) - 1] = '\0';
    const char *const names[] = {"", "@", "/", "relative", "vsock:2:3", too_long, "/nowhere/notify"};
    ck_assert(!service_notify("READY=1"));
    for (int i = 0; i < COUNT(names); i++) {
        setenv("NOTIFY_SOCKET", names[i], 1);
        ck_assert(!service_notify("READY=1"));
    }
}

TEST(a_manager_that_does_not_read_blocks_nobody)
{
    char text[256] = {0};
    memset(text, 'x', sizeof(text) - 1);
    manager_open(false);
    int sent = 0;
    while (sent < 1000000 && service_notify("STATUS=%s", text))
        sent++;
    ck_assert_int_gt(sent, 0);
    ck_assert_int_lt(sent, 1000000);
}

TEST(text_that_does_not_fit_a_datagram_is_not_cut)
{
    char text[2000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    manager_open(false);
    ck_assert(!service_notify("STATUS=%s", text));
}

TEST(the_watchdog_is_for_this_process_only_and_a_number)
{
    char pid[32];
    ck_assert_uint_eq(0, service_watchdog_us());
    setenv("WATCHDOG_USEC", "30000000", 1);
    ck_assert_uint_eq(30000000, service_watchdog_us());
    snprintf(pid, sizeof(pid), "%ld", (long)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    ck_assert_uint_eq(30000000, service_watchdog_us());
    setenv("WATCHDOG_PID", "1", 1);
    ck_assert_uint_eq(0, service_watchdog_us());
    unsetenv("WATCHDOG_PID");
    static const char *const bad[] = {"", "-1", "1s", " 1", "99999999999999999999"};
    for (int i = 0; i < COUNT(bad); i++) {
        setenv("WATCHDOG_USEC", bad[i], 1);
        ck_assert_uint_eq(0, service_watchdog_us());
    }
}

int main(void)
{
    return run_tests("service_manager", setup, teardown);
}
