#include "tests/node/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/node/harness.h"

enum { ARGUMENTS = 16, FIRST_FD = 3 };

/* From FIRST_FD on, as sd_listen_fds() finds them. In the child, where few descriptors are open: none of the sockets
 * has a low number. */
static void pass_sockets(const struct straitd *straitd)
{
    int above[STRAITD_OPTIONS];
    char text[24];
    for (int i = 0; i < straitd->fd_count; i++)
        above[i] = fcntl(straitd->fds[i], F_DUPFD_CLOEXEC, FIRST_FD + STRAITD_OPTIONS);
    for (int i = 0; i < straitd->fd_count; i++)
        if (dup2(above[i], FIRST_FD + i) < 0)
            _exit(127);
    snprintf(text, sizeof(text), "%d", (int)getpid());
    setenv("LISTEN_PID", straitd->listen_pid != NULL ? straitd->listen_pid : text, 1);
    snprintf(text, sizeof(text), "%d", straitd->fd_count);
    setenv("LISTEN_FDS", straitd->listen_fds != NULL ? straitd->listen_fds : text, 1);
    if (straitd->fd_names != NULL)
        setenv("LISTEN_FDNAMES", straitd->fd_names, 1);
}

static void log_to(const char *log)
{
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(127);
}

pid_t straitd_start(struct straitd straitd)
{
    const char *listen = straitd.listen != NULL ? straitd.listen : "127.0.0.1:0";
    const char *arguments[ARGUMENTS] = {
        STRAITD,      "--socket",         straitd.socket,     "--listen",          listen,
        "--metrics=", "--transports=shm", "--arena-bytes=4M", "--chunk-bytes=256K"};
    int count = 9;
    for (int i = 0; i < STRAITD_OPTIONS && straitd.options[i] != NULL && count < ARGUMENTS - 2; i++)
        arguments[count++] = straitd.options[i];
    if (straitd.log == NULL)
        arguments[count] = "--log-level=error";
    const pid_t parent = getpid(), pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid != 0)
        return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(127);
    if (straitd.log != NULL)
        log_to(straitd.log);
    if (straitd.fds != NULL)
        pass_sockets(&straitd);
    execv(STRAITD, (char *const *)arguments);
    _exit(127);
}

void straitd_ends(pid_t pid, int wanted)
{
    int status = -1;
    pid_t ended = 0;
    WAIT(ended == pid || (ended = waitpid(pid, &status, WNOHANG)) == pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == wanted, "status %x", (unsigned)status);
}

void straitd_stop(pid_t pid)
{
    kill(pid, SIGTERM);
    straitd_ends(pid, 0);
}

bool log_has(const char *log, const char *text)
{
    char line[1024];
    bool found = false;
    FILE *file = fopen(log, "re");
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        found = strstr(line, text) != NULL;
    if (file != NULL)
        fclose(file);
    return found;
}

void log_says(const char *log, const char *text)
{
    for (uint64_t end = wait_clock() + 15000000000u * SLOW; !log_has(log, text) && wait_clock() < end;)
        pump(20);
    ck_assert_msg(log_has(log, text), "%s does not say: %s", log, text);
}
