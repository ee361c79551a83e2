/* Whose signals are whose. This program is not linked with UCX, which takes some when it is loaded. */
#include <check.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <strait/strait.h>

#include "tests/run_suite.h"

static const int taken_by_ucx[] = {SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV};
#define TAKEN (int)(sizeof(taken_by_ucx) / sizeof(taken_by_ucx[0]))

/* ---- A node inside this process ---------------------------------------------------------------------------------- */

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

/* ---- The daemon -------------------------------------------------------------------------------------------------- */

static char folder[64];

static void setup(void)
{
    snprintf(folder, sizeof(folder), "/tmp/strait-signals-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void teardown(void)
{
    ck_assert_int_eq(0, rmdir(folder));
}

/* Sanitizers take signals too. */
static void run_daemon(const char *handle_errors)
{
    static const char leave[] = "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0";
    char socket[96];
    snprintf(socket, sizeof(socket), "%s/s", folder);
    setenv("ASAN_OPTIONS", leave, 1);
    setenv("TSAN_OPTIONS", leave, 1);
    setenv("UBSAN_OPTIONS", leave, 1);
    if (handle_errors != NULL)
        setenv("UCX_HANDLE_ERRORS", handle_errors, 1);
    execl(STRAITD, STRAITD, "--socket", socket, "--listen", "", "--metrics", "", "--transports", "shm", "--arena-bytes",
          "1M", "--chunk-bytes", "256K", (char *)NULL);
    _exit(127);
}

static void wait_ready(int log)
{
    char text[4096] = "";
    size_t used = 0;
    while (strstr(text, "msg=ready") == NULL) {
        ssize_t got = read(log, text + used, sizeof(text) - 1 - used);
        ck_assert_msg(got > 0, "the daemon does not start: %s", text);
        used += (size_t)got;
        text[used] = '\0';
    }
}

static unsigned long long caught_by(pid_t pid)
{
    char path[64], line[256];
    unsigned long long caught = 0;
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (!found && fgets(line, sizeof(line), file) != NULL)
        found = sscanf(line, "SigCgt: %llx", &caught) == 1;
    fclose(file);
    ck_assert(found);
    return caught;
}

/* Gently, so that its files go. Again and again, since ThreadSanitizer loses a signal now and then that comes while the
 * daemon starts: no handler has run, and none is pending. */
static void end(pid_t pid)
{
    int status;
    do {
        kill(pid, SIGTERM);
        usleep(100000);
    } while (waitpid(pid, &status, WNOHANG) == 0);
}

static unsigned long long daemon_catches(const char *handle_errors)
{
    int log[2];
    ck_assert_int_eq(0, pipe(log));
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(log[1], STDERR_FILENO);
        close(log[0]);
        run_daemon(handle_errors);
    }
    close(log[1]);
    wait_ready(log[0]);
    unsigned long long caught = caught_by(pid);
    end(pid);
    close(log[0]);
    char path[96];
    snprintf(path, sizeof(path), "%s/s.lock", folder);
    unlink(path);
    return caught;
}

static bool is_caught(unsigned long long caught, int number)
{
    return caught >> (number - 1) & 1;
}

TEST(the_daemon_leaves_errors_to_the_system)
{
    unsigned long long caught = daemon_catches(NULL);
    ck_assert(is_caught(caught, SIGTERM));
    for (int i = 0; i < TAKEN; i++)
        ck_assert_msg(!is_caught(caught, taken_by_ucx[i]), "signal %d is caught", taken_by_ucx[i]);
}

TEST(who_wants_backtraces_gets_them)
{
    ck_assert(is_caught(daemon_catches("bt"), SIGSEGV));
}

int main(void)
{
    unsetenv("UCX_HANDLE_ERRORS");
    unsetenv("UCX_DEBUG_SIGNO");
    return run_tests("signals", setup, teardown);
}
