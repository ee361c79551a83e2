/* The demo's daemons: a private folder, starting straitd, its log and its end; and the signals that end the demo. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/demo.h"
#include "tools/util.h"

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
#define ENDS (sizeof(ends) / sizeof(ends[0]))

static volatile sig_atomic_t caught;

static void record(int number)
{
    caught = number;
}

/* A signal that the parent process had ignored (nohup) stays ignored. A closed pipe becomes an output error, reported
 * at the end. */
void demo_signals_catch(void)
{
    struct sigaction action = {.sa_handler = record}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ENDS; i++)
        if (sigaction(ends[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* Returns the signals that were blocked before. */
static sigset_t signals_block(void)
{
    sigset_t set, before;
    sigemptyset(&set);
    for (size_t i = 0; i < ENDS; i++)
        sigaddset(&set, ends[i]);
    sigprocmask(SIG_BLOCK, &set, &before);
    return before;
}

/* In a child: signals that the demo records end the child, also those that came while they were blocked. */
static void signals_reset(const sigset_t *before)
{
    struct sigaction now;
    for (size_t i = 0; i < ENDS; i++)
        if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler == record)
            signal(ends[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, before, NULL);
}

bool demo_interrupted(void)
{
    return caught != 0;
}

void demo_signals_obey(void)
{
    if (caught == 0)
        return;
    signal(caught, SIG_DFL);
    raise(caught);
}

#define DEMO_CONNECT_MS 20000u
#define STOP_MS         10000u
#define STEP_MS         5u
#define LOG_LINES       8u
#define LOG_END         4096
#define FOLDER_BYTES    64u /* maximum, so that the path of a socket in it is short enough */

extern char **environ;

/* ---- The folder -------------------------------------------------------------------------------------------------- */

bool demo_folder_create(char folder[DEMO_PATH_MAX])
{
    const char *place = getenv("TMPDIR");
    if (place == NULL || place[0] != '/' || strlen(place) + sizeof("/strait-demo-XXXXXX") > FOLDER_BYTES)
        place = "/tmp";
    snprintf(folder, DEMO_PATH_MAX, "%s/strait-demo-XXXXXX", place);
    if (mkdtemp(folder) != NULL)
        return true;
    print_error(folder, "%s", strerror(errno));
    folder[0] = '\0';
    return false;
}

/* The folder has no subfolders. */
void demo_folder_remove(const char *folder)
{
    DIR *list = folder[0] != '\0' ? opendir(folder) : NULL;
    if (list == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(list), entry->d_name, 0);
    closedir(list);
    if (rmdir(folder) != 0)
        print_error(folder, "cannot be removed: %s", strerror(errno));
}

bool demo_file_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "we");
    bool written = file != NULL && fwrite(data, 1, size, file) == size;
    if (file != NULL)
        written = fclose(file) == 0 && written;
    if (!written)
        print_error(path, "cannot be written: %s", strerror(errno));
    return written;
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static char *beside(const char *folder, const char *place)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, place) < 0)
        return NULL;
    if (access(path, X_OK) == 0)
        return path;
    free(path);
    return NULL;
}

static char *named(const char *path)
{
    if (access(path, X_OK) == 0)
        return strdup(path);
    print_error(path, "STRAITD names no program: %s", strerror(errno));
    return NULL;
}

/* Places relative to the folder of this program: installed together, in /usr/sbin, in a build tree. */
char *demo_straitd(void)
{
    static const char *const places[] = {"straitd", "../sbin/straitd", "../daemon/straitd"};
    const char *choice = getenv("STRAITD");
    if (choice != NULL && choice[0] != '\0')
        return named(choice);
    char program[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char *path = beside(program, places[i]);
        if (path != NULL)
            return path;
    }
    print_error(NULL, "no straitd in %s: STRAITD=PATH says where it is", program);
    return NULL;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* Leaves out options in the environment, which are meant for the node's own daemon. The caller frees the list. */
static char **clean_environment(void)
{
    size_t count = 0, kept = 0;
    while (environ[count] != NULL)
        count++;
    char **list = calloc(count + 1, sizeof(*list));
    for (size_t i = 0; list != NULL && i < count; i++)
        if (strncmp(environ[i], "STRAITD_", 8) != 0)
            list[kept++] = environ[i];
    return list;
}

/* Runs in the child, which only reads the memory that it shares. Ctrl-C must reach only the demo, which then ends its
 * daemons. */
static void exec_daemon(char *const *arguments, char *const *environment, int log, pid_t parent)
{
    int null = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && dup2(null, STDIN_FILENO) >= 0 &&
        dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        execve(arguments[0], arguments, environment);
    dprintf(log, "%s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

static pid_t spawn(char *const *arguments, const char *log_path)
{
    pid_t parent = getpid(), pid = -1;
    char **environment = clean_environment();
    int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    sigset_t before = signals_block(); /* a child must not record the signal that is to end it */
    if (log >= 0 && environment != NULL)
        pid = fork();
    if (pid == 0) {
        signals_reset(&before);
        exec_daemon(arguments, environment, log, parent);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        print_error(arguments[0], "cannot be started: %s", strerror(errno));
    if (log >= 0)
        close(log);
    free(environment);
    return pid;
}

/* Restricts UCX to tcp: between processes of one host it would use shared memory. */
static bool write_options(const struct demo_daemon *daemon, const char *path, const char *transport, const char *set)
{
    char text[1024];
    int size = snprintf(text, sizeof(text),
                        "socket = %s\n"
                        "listen = 127.0.0.1:0\n"
                        "metrics =\n"
                        "codebook = %s\n"
                        "transports = %s\n"
                        "ucx-options = tls=tcp devices=lo\n"
                        "arena-bytes = 64M\n",
                        daemon->socket, set, transport);
    return demo_file_write(path, text, (size_t)size);
}

bool demo_daemon_start(struct demo_daemon *daemon, const char *straitd, const char *folder, const char *name,
                       const char *transport, const char *set)
{
    char options[DEMO_PATH_MAX];
    *daemon = (struct demo_daemon){.name = name};
    snprintf(daemon->socket, sizeof(daemon->socket), "%.64s/%.20s.sock", folder, name);
    snprintf(daemon->log, sizeof(daemon->log), "%.64s/%.20s.log", folder, name);
    snprintf(options, sizeof(options), "%.64s/%.20s.conf", folder, name);
    if (!write_options(daemon, options, transport, set))
        return false;
    const char *const arguments[] = {straitd, "--config", options, NULL};
    char *list[sizeof(arguments) / sizeof(arguments[0])];
    memcpy(list, arguments, sizeof(list));
    pid_t pid = spawn(list, daemon->log);
    if (pid > 0)
        daemon->pid = pid;
    return pid > 0;
}

/* ---- Watching ---------------------------------------------------------------------------------------------------- */

static const char *last_lines(char *text, unsigned lines)
{
    char *at = text + strlen(text);
    while (at > text && at[-1] == '\n')
        *--at = '\0';
    for (; at > text; at--)
        if (at[-1] == '\n' && --lines == 0)
            break;
    return at;
}

void demo_daemon_print_log(const struct demo_daemon *daemon)
{
    char text[LOG_END + 1] = "";
    FILE *file = fopen(daemon->log, "re");
    if (file == NULL)
        return;
    if (fseek(file, -LOG_END, SEEK_END) != 0)
        rewind(file);
    text[fread(text, 1, LOG_END, file)] = '\0';
    fclose(file);
    if (text[0] != '\0')
        fprintf(stderr, "the log of the %s's straitd ends with:\n%s\n", daemon->name, last_lines(text, LOG_LINES));
}

/* Reports how the daemon ended, unless it ended cleanly. */
static bool ended_cleanly(struct demo_daemon *daemon, int status)
{
    daemon->pid = 0;
    if (WIFSIGNALED(status))
        print_error(NULL, "the %s's straitd was ended by signal %d", daemon->name, WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        print_error(NULL, "the %s's straitd ended with status %d", daemon->name, WEXITSTATUS(status));
    else
        return true;
    demo_daemon_print_log(daemon);
    return false;
}

bool demo_daemon_runs(struct demo_daemon *daemon)
{
    int status;
    if (daemon->pid == 0)
        return false;
    if (waitpid(daemon->pid, &status, WNOHANG) == 0)
        return true;
    if (ended_cleanly(daemon, status))
        print_error(NULL, "the %s's straitd has ended", daemon->name);
    return false;
}

bool demo_daemon_listens(struct demo_daemon *daemon)
{
    for (unsigned waited = 0; access(daemon->socket, F_OK) != 0; waited += STEP_MS) {
        if (waited >= DEMO_CONNECT_MS || demo_interrupted() || !demo_daemon_runs(daemon))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
    }
    return true;
}

/* ---- Stopping ---------------------------------------------------------------------------------------------------- */

bool demo_daemon_stop(struct demo_daemon *daemon)
{
    int status = 0;
    if (daemon->pid == 0)
        return true;
    kill(daemon->pid, SIGTERM);
    for (unsigned waited = 0; waitpid(daemon->pid, &status, WNOHANG) == 0; waited += STEP_MS) {
        if (waited == STOP_MS)
            kill(daemon->pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000}, NULL);
    }
    return ended_cleanly(daemon, status);
}
