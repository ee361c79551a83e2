#include "bench/transfer_process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/util.h"

#define STOP_MS 3000u

extern char **environ;

/* ---- Interrupts ------------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    caught = number;
}

void interrupts_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* if the reader of the report goes away, namespaces must still be removed */
}

bool interrupted(void)
{
    return caught != 0;
}

void sleep_ms(unsigned ms)
{
    if (!interrupted())
        nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

/* ---- Starting -------------------------------------------------------------------------------------------------- */

void command_add(struct command *command, const char *word)
{
    if (command->count + 1 >= PROCESS_ARGS_MAX)
        abort();
    command->words[command->count++] = word;
}

static void clean_environment(void)
{
    char name[64];

    for (char **at = environ; *at != NULL;) {
        size_t length = strcspn(*at, "=");
        if (strncmp(*at, "STRAITD_", 8) != 0 || length >= sizeof(name)) {
            at++;
            continue;
        }
        memcpy(name, *at, length);
        name[length] = '\0';
        unsetenv(name);
        at = environ;
    }
}

/* Runs in the child. Ctrl-C must reach only the bench, which then ends its children. */
static void become(const struct command *command, int output, pid_t parent)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    clean_environment();
    for (unsigned i = 0; command->environment != NULL && command->environment[i] != NULL; i++)
        putenv((char *)(uintptr_t)command->environment[i]);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && dup2(null, STDIN_FILENO) >= 0 &&
        dup2(output < 0 ? null : output, STDOUT_FILENO) >= 0 && dup2(STDOUT_FILENO, STDERR_FILENO) >= 0)
        execvp(command->words[0], (char *const *)(uintptr_t)command->words);
    dprintf(STDERR_FILENO, "%s: %s\n", command->words[0], strerror(errno));
    _exit(127);
}

static pid_t spawn(const struct command *command, int output)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid == 0)
        become(command, output, parent);
    return pid < 0 ? 0 : pid;
}

pid_t process_start(const struct command *command, const char *output)
{
    int file = output == NULL ? -1 : open(output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pid_t pid = 0;

    if (output == NULL || file >= 0)
        pid = spawn(command, file);
    if (file >= 0)
        close(file);
    return pid;
}

/* ---- Ending ---------------------------------------------------------------------------------------------------- */

bool process_runs(pid_t *pid)
{
    if (*pid != 0 && waitpid(*pid, NULL, WNOHANG) != 0)
        *pid = 0;
    return *pid != 0;
}

void process_stop(pid_t *pid)
{
    if (!process_runs(pid))
        return;
    kill(*pid, SIGTERM);
    for (unsigned waited = 0; process_runs(pid); waited += 2) {
        if (waited == STOP_MS)
            kill(*pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* Reads until the end of the pipe, the deadline or an interrupt. False: the end was not reached. */
static bool read_all(int from, uint64_t deadline, char *text, size_t size)
{
    char rest[512];
    size_t used = 0;

    for (;;) {
        uint64_t now = clock_ns();
        struct pollfd fd = {.fd = from, .events = POLLIN};
        if (now >= deadline || interrupted() || poll(&fd, 1, (int)((deadline - now) / 1000000) + 1) < 0)
            return false;
        if (fd.revents == 0)
            continue;
        bool full = used + 1 == size;
        ssize_t got = read(from, full ? rest : text + used, full ? sizeof(rest) : size - 1 - used);
        if (got <= 0)
            return got == 0;
        used += full ? 0 : (size_t)got;
        text[used] = '\0';
    }
}

bool process_run(const struct command *command, unsigned timeout_ms, char *text, size_t size)
{
    int ends[2], status = -1;
    bool ended;
    pid_t pid;

    text[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid = spawn(command, ends[1]);
    close(ends[1]);
    ended = pid != 0 && read_all(ends[0], clock_ns() + timeout_ms * 1000000ull, text, size);
    close(ends[0]);
    if (ended)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
    else
        process_stop(&pid);
    return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- Looking --------------------------------------------------------------------------------------------------- */

/* Fields 14 and 15 of /proc/PID/stat. The name before them may contain anything, but ends with the last ')'. */
uint64_t process_cpu_ms(pid_t pid)
{
    unsigned long long user = 0, system = 0;
    char path[64], line[1024] = "";
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof(line), file) == NULL)
        line[0] = '\0';
    fclose(file);
    const char *at = strrchr(line, ')');
    if (at == NULL || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        return 0;
    return (user + system) * 1000 / (unsigned long long)sysconf(_SC_CLK_TCK);
}

/* Places relative to the folder of this program: installed together, in sbin, in a build tree. */
char *process_find_straitd(void)
{
    static const char *const places[] = {"straitd", "../sbin/straitd", "../daemon/straitd"};
    const char *choice = getenv("STRAITD");
    char program[PATH_MAX], *path = NULL;
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);

    if (choice != NULL && choice[0] != '\0')
        return strdup(choice);
    program[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (asprintf(&path, "%s/%s", program, places[i]) < 0)
            return NULL;
        if (access(path, X_OK) == 0)
            return path;
        free(path);
    }
    print_error(NULL, "no straitd beside this program: STRAITD=PATH says where it is");
    return NULL;
}

bool process_exists(const char *name)
{
    const char *folders = getenv("PATH");
    char path[PATH_MAX];

    while (folders != NULL && *folders != '\0') {
        int length = (int)strcspn(folders, ":");
        snprintf(path, sizeof(path), "%.*s/%s", length, folders, name);
        if (access(path, X_OK) == 0)
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}
