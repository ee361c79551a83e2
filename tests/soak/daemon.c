#include "tests/soak/daemon.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support.h"

#define TOLD_MAX 20u

static uint32_t count;

double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

uint64_t now_ms(void)
{
    return (uint64_t)(now_seconds() * 1e3);
}

void complain(const char *format, ...)
{
    va_list arguments;
    if (count++ >= TOLD_MAX)
        return;
    fflush(stdout);
    fprintf(stderr, "soak: FAIL: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

uint32_t complaints(void)
{
    return count;
}

bool too_many_complaints(void)
{
    return count >= TOLD_MAX;
}

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

#define TEXT_ROOM (256u * 1024)

/* ---- /metrics ---------------------------------------------------------------------------------------------------- */

static int dial(unsigned port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    const struct timeval patience = {.tv_sec = 10};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool receive_all(int fd, char *text)
{
    size_t used = 0;
    ssize_t got;
    while ((got = recv(fd, text + used, TEXT_ROOM - 1 - used, 0)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    return got == 0 && strncmp(text, "HTTP/1.1 200", 12) == 0;
}

char *figures_fetch(const struct soak_daemon *daemon)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char *text = malloc(TEXT_ROOM);
    int fd = dial(daemon->metrics_port);
    bool good =
        text != NULL && fd >= 0 && send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0 && receive_all(fd, text);
    if (fd >= 0)
        close(fd);
    if (good)
        return text;
    free(text);
    return NULL;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end != NULL ? end + 1 : NULL;
}

int64_t figure_read(const char *text, const char *name)
{
    size_t size = strlen(name);
    for (const char *line = text; line != NULL; line = next_line(line))
        if (strncmp(line, name, size) == 0 && line[size] == ' ')
            return atoll(line + size);
    return -1;
}

int64_t figure_sum(const char *text, const char *family)
{
    size_t size = strlen(family);
    int64_t sum = 0, found = 0;
    for (const char *line = text; line != NULL; line = next_line(line)) {
        const char *labels_end = strncmp(line, family, size) == 0 && line[size] == '{' ? strchr(line, '}') : NULL;
        if (labels_end == NULL)
            continue;
        sum += atoll(labels_end + 1);
        found++;
    }
    return found != 0 ? sum : -1;
}

struct bucket {
    double bound, below;
};

static bool read_bucket(const char *line, const char *family, struct bucket *bucket)
{
    size_t size = strlen(family);
    char bound[32];
    if (strncmp(line, family, size) != 0 ||
        sscanf(line + size, "_bucket{le=\"%31[^\"]\"} %lf", bound, &bucket->below) != 2)
        return false;
    bucket->bound = strtod(bound, NULL); /* "+Inf" too */
    return true;
}

static double within(const struct bucket *lower, const struct bucket *upper, double rank)
{
    if (isinf(upper->bound))
        return upper->bound;
    return lower->bound + (upper->bound - lower->bound) * (rank - lower->below) / (upper->below - lower->below);
}

double figure_quantile(const char *text, const char *family, double quantile)
{
    char name[128];
    snprintf(name, sizeof(name), "%s_count", family);
    double rank = quantile * (double)figure_read(text, name);
    struct bucket lower = {0, 0}, bucket;
    for (const char *line = text; rank > 0 && line != NULL; line = next_line(line)) {
        if (!read_bucket(line, family, &bucket))
            continue;
        if (bucket.below >= rank)
            return within(&lower, &bucket, rank);
        lower = bucket;
    }
    return -1;
}

/* ---- /proc ------------------------------------------------------------------------------------------------------- */

static bool read_status(pid_t pid, struct process_size *size)
{
    char path[64], line[128];
    unsigned long resident = 0, anonymous = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        (void)sscanf(line, "VmRSS: %lu", &resident);
        (void)sscanf(line, "RssAnon: %lu", &anonymous);
        (void)sscanf(line, "Threads: %u", &size->threads);
    }
    if (file != NULL)
        fclose(file);
    size->resident = (uint64_t)resident * 1024;
    size->anonymous = (uint64_t)anonymous * 1024;
    return resident != 0;
}

bool process_size_read(pid_t pid, struct process_size *size)
{
    char path[64];
    *size = (struct process_size){0};
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        size->descriptors += entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return read_status(pid, size);
}

#define SPREAD_MAX       0.02
#define HEAP_MORE        (4 * MIB) /* the heap is small: a leak of a page per transfer is more than this in minutes */
#define DESCRIPTORS_MORE 2u

void watch_init(struct watch *watch, const struct soak_daemon *daemon)
{
    *watch = (struct watch){.daemon = daemon};
}

void watch_fini(struct watch *watch)
{
    free(watch->samples);
}

void watch_sample(struct watch *watch)
{
    if (watch->count == watch->room) {
        watch->room = watch->room != 0 ? 2 * watch->room : 64;
        watch->samples = realloc(watch->samples, watch->room * sizeof(*watch->samples));
        require(watch->samples != NULL);
    }
    if (process_size_read(watch->daemon->pid, &watch->samples[watch->count]))
        watch->count++;
}

struct process_size watch_last(const struct watch *watch)
{
    return watch->count != 0 ? watch->samples[watch->count - 1] : (struct process_size){0};
}

static bool is_judged(const struct watch *watch)
{
    return watch->count >= WATCH_JUDGED_S;
}

double watch_resident_spread(const struct watch *watch)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t i = WATCH_SETTLED_S; is_judged(watch) && i < watch->count; i++) {
        uint64_t resident = watch->samples[i].resident;
        least = resident < least ? resident : least;
        most = resident > most ? resident : most;
    }
    return most != 0 ? (double)(most - least) / (double)least : -1;
}

void watch_judge(const struct watch *watch)
{
    if (!is_judged(watch))
        return;
    const struct process_size then = watch->samples[WATCH_SETTLED_S], now = watch_last(watch);
    double spread = watch_resident_spread(watch);
    if (spread > SPREAD_MAX)
        complain("daemon %s: resident memory varied by %.1f %% after minute 3", watch->daemon->name, spread * 100);
    if (now.anonymous > then.anonymous + HEAP_MORE)
        complain("daemon %s: %" PRIu64 " KiB of heap at minute 3, %" PRIu64 " KiB in the end", watch->daemon->name,
                 then.anonymous / 1024, now.anonymous / 1024);
    if (now.descriptors > then.descriptors + DESCRIPTORS_MORE)
        complain("daemon %s: %u descriptors at minute 3, %u in the end", watch->daemon->name, then.descriptors,
                 now.descriptors);
}
