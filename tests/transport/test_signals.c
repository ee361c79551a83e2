/* An embedded node leaves the signals of its host, though UCX takes some when it is loaded: this program is not linked
 * with it. What the daemon catches is for straitd.sh. */
#include <check.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <strait/strait.h>

#include "tests/run_suite.h"

static const int taken_by_ucx[] = {SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV};
#define TAKEN (int)(sizeof(taken_by_ucx) / sizeof(taken_by_ucx[0]))

static void own(int number)
{
    (void)number;
}

static void own_with_more(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
}

static void get_all(struct sigaction actions[NSIG])
{
    memset(actions, 0, NSIG * sizeof(*actions));
    for (int i = 1; i < NSIG; i++)
        (void)sigaction(i, NULL, &actions[i]);
}

/* 0: the system's defaults; 1, 2: the host has handlers of its own. */
static void set_host(int kind)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    if (kind == 1)
        action.sa_handler = own;
    if (kind == 2)
        action = (struct sigaction){.sa_sigaction = own_with_more, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (int i = 0; i < TAKEN; i++)
        ck_assert_int_eq(0, sigaction(taken_by_ucx[i], &action, NULL));
}

TEST_LOOP(an_embedded_node_leaves_its_hosts_signals, 3)
{
    struct sigaction before[NSIG], after[NSIG];
    struct strait_client_config config = {
        .size = sizeof(config),
        .embedded = "arena-bytes = 2M\nchunk-bytes = 256K\ntransports = ucx\nucx-options = tls=tcp\n"};
    struct strait_client *client = NULL;
    ck_assert_ptr_null(dlopen("libucs.so.0", RTLD_NOW | RTLD_NOLOAD)); /* or nothing is tested */
    set_host(_i);
    get_all(before);
    ck_assert_int_eq(STRAIT_OK, strait_client_open(&config, &client));
    ck_assert_ptr_nonnull(dlopen("libucs.so.0", RTLD_NOW | RTLD_NOLOAD));
    get_all(after);
    for (int i = 1; i < NSIG; i++) {
        ck_assert_msg(before[i].sa_handler == after[i].sa_handler, "signal %d", i);
        ck_assert_msg(before[i].sa_flags == after[i].sa_flags, "flags of signal %d", i);
    }
    strait_client_close(client);
}

int main(void)
{
    unsetenv("UCX_HANDLE_ERRORS");
    unsetenv("UCX_DEBUG_SIGNO");
    return run_tests("signals", NULL, NULL);
}
