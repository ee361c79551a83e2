#include "tests/chaos/world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/chaos/totals.h"
#include "tests/support.h"

uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t fair_ns(void)
{
    uint64_t late = machine_late_ns();
    return now_ns() - late;
}

void rest_ms(uint32_t ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * MS};
    nanosleep(&time, NULL);
}

uint32_t draw(struct world *w, uint32_t below)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)((w->random >> 32) * below >> 32);
}

/* ---- Daemons -------------------------------------------------------------------------------------------------- */

static void close_inherited(void)
{
    for (int fd = 3; fd < 256; fd++)
        close(fd);
}

static const char *const common_options[] = {"--ucx-options",   "tls=tcp devices=lo",
                                             "--peer-timeout",  "300ms",
                                             "--drain-timeout", "100ms",
                                             "--arena-bytes",   "4M",
                                             "--chunk-bytes",   "1M",
                                             "--workers",       "2",
                                             "--log-level",     "info"};

/* The daemon finds this plugin by name, before its own. */
static void put_plugin_in_front(const struct setting *setting)
{
    char folders[1024];
    const char *others = getenv("LD_LIBRARY_PATH");
    snprintf(folders, sizeof(folders), "%s%s%s", setting->plugin, others != NULL ? ":" : "",
             others != NULL ? others : "");
    setenv("LD_LIBRARY_PATH", folders, 1);
    setenv(CHAOS_PLUGIN, setting->behind, 1);
}

static void log_path(const struct world *w, int side, char *path, size_t size)
{
    snprintf(path, size, "%s/world-%u-%s.log", w->setting->folder, w->number, side == SOURCE ? "source" : "sink");
}

static void __attribute__((noreturn)) become_daemon(const struct world *w, int side)
{
    const struct side *s = &w->sides[side];
    char listen[64], metrics[64], codebook[256], log[256], variable[256];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", s->port);
    snprintf(metrics, sizeof(metrics), "127.0.0.1:%u", s->metrics);
    const char *folder = w->setting->folder;
    snprintf(codebook, sizeof(codebook), "%s/codebook-%u", folder, s->codebook);
    log_path(w, side, log, sizeof(log));
    snprintf(variable, sizeof(variable), "%s:%d", w->shared_path, side);
    setenv(CHAOS_VARIABLE, variable, 1);
    if (w->setting->plugin != NULL)
        put_plugin_in_front(w->setting);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(120);
    close_inherited();
    const char *transports = strcmp(w->transport, "shm") == 0 || w->is_local ? "shm,ucx" : w->transport;
    const char *arguments[13 + COUNT(common_options) + COUNT(w->setting->options)] = {w->setting->program,
                                                                                      "--socket",
                                                                                      s->socket,
                                                                                      "--listen",
                                                                                      listen,
                                                                                      "--metrics",
                                                                                      metrics,
                                                                                      "--transports",
                                                                                      transports,
                                                                                      "--codebook",
                                                                                      codebook,
                                                                                      "--coding",
                                                                                      w->number % 4 < 2 ? "tiered"
                                                                                                        : "auto"};
    uint32_t count = 0;
    while (arguments[count] != NULL)
        count++;
    memcpy(arguments + count, common_options, sizeof(common_options));
    memcpy(arguments + count + COUNT(common_options), w->setting->options, sizeof(w->setting->options));
    execv(w->setting->program, (char **)(uintptr_t)arguments);
    _exit(121);
}

void daemon_start(struct world *w, int side)
{
    struct side *s = &w->sides[side];
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        become_daemon(w, side);
    s->daemon = pid;
    s->rests = 0;
    s->attacked = false;
    atomic_fetch_add(&w->totals->lives, 1);
}

/* Of the daemon that has just ended. */
static void reset_side(struct world *w, int side)
{
    memset((void *)&w->shared->sides[side], 0, sizeof(w->shared->sides[side]));
    w->sides[side].daemon = 0;
    for (int client = 0; client < 2; client++)
        if (daemon_of(w, client) == side)
            w->sides[client].registered = false;
}

void daemon_reap(struct world *w, int side)
{
    int status;
    while (waitpid(w->sides[side].daemon, &status, 0) < 0 && errno == EINTR)
        ;
    reset_side(w, side);
}

/* Prints them now, as the logs are removed at the end of the test. */
static void print_last_lines(const struct world *w, int side)
{
    char path[256], lines[4096];
    log_path(w, side, path, sizeof(path));
    FILE *log = fopen(path, "re");
    if (log == NULL)
        return;
    if (fseek(log, -(long)sizeof(lines), SEEK_END) != 0)
        rewind(log);
    size_t size = fread(lines, 1, sizeof(lines), log);
    fclose(log);
    printf("daemon %d of world %u said last:\n%.*s\n", side, w->number, (int)size, lines);
}

bool daemon_died(struct world *w, int side)
{
    int status;
    struct side *s = &w->sides[side];
    if (s->daemon == 0 || waitpid(s->daemon, &status, WNOHANG) != s->daemon)
        return false;
    if (s->attacked) { /* UCX 1.13 ends its process when it reads nonsense: that is survived, not prevented */
        atomic_fetch_add(&w->totals->crashes, 1);
    } else {
        violation(w, "daemon %d ended by itself, with status %x", side, status);
        print_last_lines(w, side);
    }
    reset_side(w, side);
    return true;
}

void daemon_terminated(struct world *w, int side)
{
    struct side *s = &w->sides[side];
    int status = 0;
    uint64_t until = fair_ns() + (w->setting->memory->has_driver ? 8000ull : 3000ull) * MS;
    pid_t ended = 0;
    while ((ended = waitpid(s->daemon, &status, WNOHANG)) == 0 && fair_ns() < until)
        (void)world_pump(w, 2, NULL, NULL);
    if (ended == 0) {
        violation(w, "daemon %d does not end on SIGTERM", side);
        kill(s->daemon, SIGKILL);
        daemon_reap(w, side);
        return;
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        violation(w, "daemon %d ended on SIGTERM with status %x", side, status);
    reset_side(w, side);
}

/* ---- Clients -------------------------------------------------------------------------------------------------- */

/* The source uses the first device, the sink the last; now and then the host, to move between host and device too. */
static void make_pages(struct world *w, int side)
{
    const struct setting *setting = w->setting;
    bool on_host = setting->devices == 0 || draw(w, 8) == 0;
    int32_t device = on_host ? -1 : side == SOURCE ? 0 : (int32_t)setting->devices - 1;
    char name[40];
    snprintf(name, sizeof(name), "chaos-%d-%u-%u", (int)getpid(), (unsigned)side, w->generation++);
    if (!pages_create(&w->sides[side].pages, on_host ? &memory_host : setting->memory, device, name, w->next_tag)) {
        perror("chaos: memory for a pool");
        exit(1);
    }
    w->next_tag += POOL_PAGES;
}

static void worker_start(struct world *w, int side)
{
    struct side *s = &w->sides[side];
    if (s->pages.base == NULL)
        make_pages(w, side);
    s->registered = s->imported = false;
    w->sides[1 - side].imported = false;
    s->client = client_start(w->sides[daemon_of(w, side)].socket, &s->pages, &s->channel);
    if (s->client < 0) {
        perror("chaos: a worker");
        exit(1);
    }
}

static void leave_orphan(struct world *w, int side)
{
    struct side *s = &w->sides[side];
    for (uint32_t i = 0; i < ORPHANS_MAX; i++)
        if (w->orphans[i].pages.base == NULL) {
            w->orphans[i] = (struct orphan){
                .pages = s->pages, .daemon = w->sides[daemon_of(w, side)].daemon, .since_ns = fair_ns()};
            s->pages.base = NULL;
            return;
        }
    violation(w, "daemons keep the pools of too many clients");
    exit(1);
}

static int worker_over(struct world *w, int side)
{
    struct side *s = &w->sides[side];
    int status;
    while (waitpid(s->client, &status, 0) < 0 && errno == EINTR)
        ;
    (void)world_pump(w, 0, NULL, NULL); /* news that it sent before */
    close(s->channel);
    s->client = 0;
    s->registered = s->imported = false;
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (w->transfers[i].id != 0 && w->transfers[i].halves[side].begun && !w->transfers[i].halves[side].drained)
            w->transfers[i].halves[side].lost = true;
    leave_orphan(w, side);
    return status;
}

void worker_kill(struct world *w, int side)
{
    kill(w->sides[side].client, SIGKILL);
    (void)worker_over(w, side);
}

void worker_close(struct world *w, int side)
{
    struct order order = {.type = ORDER_CLOSE};
    send_order(w, side, &order);
    int status = worker_over(w, side);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        violation(w, "client %d ended with status %x when it was to close", side, status);
}

void send_order(struct world *w, int side, struct order *order)
{
    if (w->sides[side].client != 0 && send(w->sides[side].channel, order, sizeof(*order), MSG_NOSIGNAL) < 0)
        violation(w, "client %d takes no orders: %s", side, strerror(errno));
}

/* ---- Getting ready -------------------------------------------------------------------------------------------- */

static bool is_ready(struct world *w, void *arg)
{
    (void)arg;
    for (int side = 0; side < 2; side++) {
        if (daemon_died(w, side))
            daemon_start(w, side);
        struct side *s = &w->sides[side], *other = &w->sides[1 - side];
        if (s->registered && other->registered && !s->imported) {
            struct order order = {.type = ORDER_IMPORT, .blob_size = other->blob_size};
            memcpy(order.blob, other->blob, other->blob_size);
            send_order(w, side, &order);
            s->imported = true;
        }
    }
    return w->sides[0].registered && w->sides[1].registered && w->sides[0].imported && w->sides[1].imported;
}

bool world_ready(struct world *w)
{
    for (int side = 0; side < 2; side++) {
        if (daemon_of(w, side) == side && w->sides[side].daemon == 0)
            daemon_start(w, side);
        if (w->sides[side].client == 0)
            worker_start(w, side);
    }
    if (world_pump(w, ready_ms(w), is_ready, NULL))
        return true;
    violation(w, "the pools are not registered after %u ms: source %d, sink %d", ready_ms(w), w->sides[0].registered,
              w->sides[1].registered);
    return false;
}

/* ---- The whole ------------------------------------------------------------------------------------------------ */

/* Uses a file in memory, as a store to a page of a file on a busy disk waits for the disk. It stays open as long as
 * this process lives, for daemons that start later. */
static bool map_shared(struct world *w)
{
    int fd = memfd_create("chaos", MFD_CLOEXEC);
    snprintf(w->shared_path, sizeof(w->shared_path), "/proc/%d/fd/%d", (int)getpid(), fd);
    if (fd < 0 || ftruncate(fd, sizeof(*w->shared)) != 0)
        return false;
    w->shared = mmap(NULL, sizeof(*w->shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (w->shared == MAP_FAILED)
        return false;
    w->shared->fakes = !w->setting->memory->has_driver;
    return true;
}

bool world_open(struct world *w)
{
    int reserved[2];
    if (!map_shared(w) || !pages_use_kind(&memory_host) || !pages_use_kind(w->setting->memory))
        return false;
    for (int side = 0; side < 2; side++) {
        struct side *s = &w->sides[side];
        s->port = port_reserve(&reserved[0]); /* as long as this process lives */
        s->metrics = port_reserve(&reserved[1]);
        if (s->port == 0 || s->metrics == 0)
            return false;
        snprintf(s->socket, sizeof(s->socket), "%s/world-%u-%d.sock", w->setting->folder, w->number, side);
        unlink(s->socket);
    }
    return true;
}

void world_close(struct world *w)
{
    for (int side = 0; side < 2; side++)
        if (w->sides[side].client != 0)
            worker_close(w, side);
    for (int i = 0; i < 100; i++) {
        bool any = false;
        world_check(w);
        for (uint32_t o = 0; o < ORPHANS_MAX; o++)
            any |= w->orphans[o].pages.base != NULL;
        if (!any)
            break;
        rest_ms(30);
    }
    for (int side = 0; side < 2; side++)
        if (w->sides[side].daemon != 0) {
            kill(w->sides[side].daemon, SIGTERM);
            daemon_terminated(w, side);
        }
    munmap(w->shared, sizeof(*w->shared));
}
