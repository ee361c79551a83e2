#include "tests/soak/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/port.h"
#include "tests/soak/report.h"

#define READY_MS 20000u
#define STOP_MS  30000u
#define STEP_MS  2u

void daemon_init(struct soak_daemon *daemon, const char *program, const char *folder, const char *name,
                 const struct daemon_options *options)
{
    *daemon = (struct soak_daemon){.program = program, .folder = folder, .options = *options};
    snprintf(daemon->name, sizeof(daemon->name), "%s", name);
    snprintf(daemon->socket, sizeof(daemon->socket), "%s/%s.sock", folder, name);
    snprintf(daemon->log, sizeof(daemon->log), "%s/%s.log", folder, name);
}

static void pause_ms(unsigned ms)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ms * 1000000}, NULL);
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* In the child, of which all other descriptors are closed by exec. */
static void __attribute__((noreturn)) become(const struct soak_daemon *daemon, pid_t parent, int log)
{
    char listen[32], arena[32], chunk[32], codebook[DAEMON_PATH_MAX];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", daemon->port);
    snprintf(arena, sizeof(arena), "%" PRIu64, daemon->options.arena_bytes);
    snprintf(chunk, sizeof(chunk), "%" PRIu64, daemon->options.chunk_bytes);
    snprintf(codebook, sizeof(codebook), "%s/codebook", daemon->folder);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && dup2(log, 1) >= 0 && dup2(log, 2) >= 0)
        execl(daemon->program, daemon->program, "--socket", daemon->socket, "--listen", listen, "--metrics",
              "127.0.0.1:0", "--transports", daemon->options.transports, "--ucx-options", "tls=tcp devices=lo",
              "--codebook", codebook, "--arena-bytes", arena, "--chunk-bytes", chunk, "--workers", "2",
              "--drain-timeout", "2s", (char *)NULL);
    dprintf(log, "%s: %s\n", daemon->program, strerror(errno));
    _exit(127);
}

bool daemon_launch(struct soak_daemon *daemon)
{
    pid_t parent = getpid(), pid = -1;
    if (daemon->port == 0 && (daemon->port = port_reserve(&daemon->reserved)) == 0) {
        complain("there is no port for daemon %s", daemon->name);
        return false;
    }
    int log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    daemon->metrics_port = 0;
    daemon->log_begin = log >= 0 ? (long)lseek(log, 0, SEEK_END) : 0;
    fflush(NULL);
    if (log >= 0)
        pid = fork();
    if (pid == 0)
        become(daemon, parent, log);
    if (log >= 0)
        close(log);
    if (pid < 0)
        complain("daemon %s cannot be started: %s", daemon->name, strerror(errno));
    daemon->pid = pid > 0 ? pid : 0;
    return pid > 0;
}

/* The log of this life, as far as it fits. */
static void read_log(const struct soak_daemon *daemon, char *text, size_t capacity)
{
    FILE *file = fopen(daemon->log, "re");
    size_t size = 0;
    if (file != NULL && fseek(file, daemon->log_begin, SEEK_SET) == 0)
        size = fread(text, 1, capacity - 1, file);
    if (file != NULL)
        fclose(file);
    text[size] = '\0';
}

static bool is_ready(struct soak_daemon *daemon)
{
    static const char served[] = "msg=\"metrics served\" port=";
    char text[4096];
    read_log(daemon, text, sizeof(text));
    const char *port = strstr(text, served);
    if (port == NULL || strstr(text, "msg=ready") == NULL)
        return false;
    daemon->metrics_port = (unsigned)atoi(port + strlen(served));
    return true;
}

/* True until it has ended; then *status is how. */
static bool lives(struct soak_daemon *daemon, int *status)
{
    if (daemon->pid == 0 || waitpid(daemon->pid, status, WNOHANG) == 0)
        return daemon->pid != 0;
    daemon->pid = 0;
    return false;
}

static bool wait_ready(struct soak_daemon *daemon)
{
    int status;
    for (unsigned waited = 0; waited < READY_MS; waited += STEP_MS) {
        if (is_ready(daemon))
            return true;
        if (!lives(daemon, &status))
            return false;
        pause_ms(STEP_MS);
    }
    return false;
}

static void tell_log(const struct soak_daemon *daemon)
{
    char text[4096];
    read_log(daemon, text, sizeof(text));
    fprintf(stderr, "the log of daemon %s begins with:\n%s\n", daemon->name, text);
}

bool daemon_await_ready(struct soak_daemon *daemon)
{
    if (wait_ready(daemon))
        return true;
    complain("daemon %s does not become ready", daemon->name);
    tell_log(daemon);
    return false;
}

bool daemon_start(struct soak_daemon *daemon)
{
    return daemon_launch(daemon) && daemon_await_ready(daemon);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

bool daemon_runs(struct soak_daemon *daemon)
{
    int status;
    if (daemon->pid == 0)
        return false;
    if (lives(daemon, &status))
        return true;
    complain("daemon %s ended by itself, with status 0x%x", daemon->name, (unsigned)status);
    tell_log(daemon);
    return false;
}

void daemon_stop(struct soak_daemon *daemon)
{
    int status = 0;
    if (daemon->pid == 0)
        return;
    kill(daemon->pid, SIGTERM);
    for (unsigned waited = 0; lives(daemon, &status); waited += STEP_MS) {
        if (waited >= STOP_MS) {
            complain("daemon %s does not end", daemon->name);
            daemon_kill(daemon);
            return;
        }
        pause_ms(STEP_MS);
    }
    if (status != 0) {
        complain("daemon %s ended with status 0x%x", daemon->name, (unsigned)status);
        tell_log(daemon);
    }
}

void daemon_kill(struct soak_daemon *daemon)
{
    if (daemon->pid == 0)
        return;
    kill(daemon->pid, SIGKILL);
    waitpid(daemon->pid, NULL, 0);
    daemon->pid = 0;
}
