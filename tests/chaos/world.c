/* Daemons and clients as processes, and transfers with both of their sides: orders to the clients, and their news. */
#include "tests/chaos/world.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <strait/strait.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon.h"
#include "tests/support.h"

uint64_t fair_ns(void)
{
    uint64_t late = machine_late_ns();
    return now_ns() - late;
}

uint32_t draw(struct world *w, uint32_t below)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)((w->random >> 32) * below >> 32);
}

/* ---- Daemons -------------------------------------------------------------------------------------------------- */

static const char *const common_options[] = {"--ucx-options",   "tls=tcp devices=lo",
                                             "--peer-timeout",  "300ms",
                                             "--drain-timeout", "100ms",
                                             "--arena-bytes",   "4M",
                                             "--chunk-bytes",   "1M",
                                             "--workers",       "2",
                                             "--log-level",     "info"};

static void log_path(const struct world *w, int side, char *path, size_t size)
{
    snprintf(path, size, "%s/world-%u-%s.log", w->setting->folder, w->number, side == SOURCE ? "source" : "sink");
}

void daemon_start(struct world *w, int side)
{
    struct side *s = &w->sides[side];
    const struct setting *setting = w->setting;
    char listen[64], metrics[64], codebook[256], secret[256] = "", log[256];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", s->port);
    snprintf(metrics, sizeof(metrics), "127.0.0.1:%u", s->metrics);
    snprintf(codebook, sizeof(codebook), "%s/codebook-%u", setting->folder, s->codebook);
    if (w->encrypts)
        snprintf(secret, sizeof(secret), "%s/secret", setting->folder);
    log_path(w, side, log, sizeof(log));
    const char *transports = strcmp(w->transport, "shm") == 0 || w->is_local ? "shm,tcp" : w->transport;
    const char *own[] = {setting->program, "--socket",
                         s->socket,        "--listen",
                         listen,           "--metrics",
                         metrics,          "--codebook",
                         codebook,         "--transports",
                         transports,       "--secret-file",
                         secret,           w->encrypts ? "--encrypt-pages=yes" : "--encrypt-pages=no",
                         "--coding",       w->number % 4 < 2 ? "tiered" : "auto"};
    const char *arguments[COUNT(own) + COUNT(common_options) + COUNT(setting->options)];
    memcpy(arguments, own, sizeof(own));
    memcpy(arguments + COUNT(own), common_options, sizeof(common_options));
    memcpy(arguments + COUNT(own) + COUNT(common_options), setting->options, sizeof(setting->options));
    s->daemon = daemon_spawn(&(struct daemon_start){.arguments = arguments,
                                                    .log = log,
                                                    .faults = w->shared_path,
                                                    .side = side,
                                                    .plugin = setting->plugin,
                                                    .behind = setting->behind});
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
    (void)process_reap(w->sides[side].daemon);
    reset_side(w, side);
}

/* Prints its end now, as the logs are removed at the end of the test. */
static void print_last_lines(const struct world *w, int side)
{
    char path[256], what[64];
    log_path(w, side, path, sizeof(path));
    snprintf(what, sizeof(what), "daemon %d of world %u said last", side, w->number);
    log_print(path, -16384, what);
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
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        violation(w, "daemon %d ended on SIGTERM with status %x", side, status);
        print_last_lines(w, side);
    }
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
    int status = process_reap(s->client);
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

/* ---- Beginning ------------------------------------------------------------------------------------------------ */

static bool pick(struct world *w, struct pages *pages, uint32_t count, uint32_t *ids)
{
    uint32_t vacant[POOL_PAGES], vacant_count = 0;
    for (uint32_t i = 0; i < POOL_PAGES; i++)
        if (!pages->taken[i])
            vacant[vacant_count++] = i;
    if (vacant_count < count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = i + draw(w, vacant_count - i), id = vacant[j];
        vacant[j] = vacant[i];
        ids[i] = id;
    }
    return true;
}

static struct transfer *vacant_transfer(struct world *w)
{
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (w->transfers[i].id == 0)
            return &w->transfers[i];
    return NULL;
}

struct transfer *pair_make(struct world *w, uint32_t count)
{
    struct transfer *t = vacant_transfer(w);
    if (t == NULL)
        return NULL;
    memset(t, 0, sizeof(*t));
    if (!pick(w, &w->sides[SOURCE].pages, count, t->halves[SOURCE].pages) ||
        !pick(w, &w->sides[SINK].pages, count, t->halves[SINK].pages))
        return NULL;
    t->id = ++w->next_id;
    t->count = count;
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < count; i++)
            w->sides[side].pages.taken[t->halves[side].pages[i]] = 1;
    for (uint32_t i = 0; i < count; i++)
        t->tags[i] = w->sides[SOURCE].pages.tags[t->halves[SOURCE].pages[i]];
    atomic_fetch_add(&w->totals->transfers, 1);
    return t;
}

static void begin(struct world *w, struct transfer *t, int side, uint32_t type, uint32_t time_ms, bool start)
{
    struct half *half = &t->halves[side];
    struct order order = {.type = type, .id = t->id, .time_ms = time_ms, .start = start, .count = t->count};
    memcpy(order.pages, half->pages, t->count * sizeof(order.pages[0]));
    half->begun = true;
    half->time_ms = time_ms;
    half->late_ns = machine_late_ns();
    half->began_ns = now_ns();
    half->due_ns = half->began_ns + (uint64_t)time_ms * MS;
    send_order(w, side, &order);
}

/* A leg renews the lease, and the loss of the consumer's daemon is noticed only after the peer timeout, so an offer is
 * due after both times. */
void pair_offer(struct world *w, struct transfer *t, uint32_t lease_ms, bool start)
{
    begin(w, t, SOURCE, ORDER_OFFER, lease_ms, start);
    t->halves[SOURCE].due_ns += PEER_TIMEOUT_MS * (uint64_t)MS;
    uint64_t sink = t->halves[SINK].due_ns + PEER_TIMEOUT_MS * (uint64_t)MS;
    if (t->halves[SINK].begun && sink > t->halves[SOURCE].due_ns)
        t->halves[SOURCE].due_ns = sink;
}

void pair_expect(struct world *w, struct transfer *t, uint32_t deadline_ms, bool start)
{
    struct pages *pages = &w->sides[SINK].pages;
    for (uint32_t i = 0; i < t->count; i++)
        pages->uses[t->halves[SINK].pages[i]] = PAGE_OPEN;
    begin(w, t, SINK, ORDER_EXPECT, deadline_ms, start);
    uint64_t source = t->halves[SINK].due_ns + PEER_TIMEOUT_MS * (uint64_t)MS;
    if (t->halves[SOURCE].begun && source > t->halves[SOURCE].due_ns)
        t->halves[SOURCE].due_ns = source;
}

void pair_abort(struct world *w, struct transfer *t, int side)
{
    struct order order = {.type = ORDER_ABORT, .id = t->id};
    send_order(w, side, &order);
}

static bool half_over(const struct half *half)
{
    return !half->begun || half->lost || half->drained;
}

bool pair_over(const struct transfer *t)
{
    return half_over(&t->halves[SOURCE]) && half_over(&t->halves[SINK]);
}

bool pair_done(const struct transfer *t)
{
    return t->halves[SINK].decided && t->halves[SINK].state == STRAIT_DONE;
}

void transfers_forget(struct world *w)
{
    memset(w->transfers, 0, sizeof(w->transfers));
    for (int side = 0; side < 2; side++)
        memset(w->sides[side].pages.taken, 0, sizeof(w->sides[side].pages.taken));
}

/* ---- News ----------------------------------------------------------------------------------------------------- */

static struct transfer *find_transfer(struct world *w, uint32_t id)
{
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (id != 0 && w->transfers[i].id == id)
            return &w->transfers[i];
    return NULL;
}

/* The pages are the client's again: from here on nobody else may touch them. Those of a source are overwritten at once;
 * those of a sink must be right, or get new content that must stay. */
static void on_free(struct world *w, struct transfer *t, int side)
{
    struct pages *pages = &w->sides[side].pages;
    struct half *half = &t->halves[side];
    half->drained = true;
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t page = half->pages[i];
        pages->taken[page] = 0;
        if (side == SINK && half->state == STRAIT_DONE) {
            pages->uses[page] = PAGE_KNOWN;
            pages->tags[page] = t->tags[i];
            if (!pages_hold(pages, page, t->tags[i])) {
                violation(w, "transfer %u is DONE, but page %u of the sink has other bytes", t->id, page);
                pages_fill(pages, page, w->next_tag++);
            }
        } else {
            pages_fill(pages, page, w->next_tag++);
        }
    }
}

static void on_verdict(struct world *w, struct transfer *t, int side, const struct news *news)
{
    struct half *half = &t->halves[side];
    if (half->decided) {
        violation(w, "transfer %u has a second verdict at side %d", t->id, side);
        return;
    }
    half->decided = true;
    half->state = news->state;
    half->reason = news->reason;
    int64_t late = (int64_t)(news->at_ns - half->due_ns);
    totals_max(&w->totals->late_ns[side], late);
    half->kept_ns = machine_late_ns() - half->late_ns;
    if (late > (int64_t)(TOLERANCE_MS * MS + half->kept_ns))
        violation(w, "the verdict of transfer %u at side %d came %lld ms late, %lld ms after its beginning: %s", t->id,
                  side, (long long)(late / (int64_t)MS), (long long)((news->at_ns - half->began_ns) / MS),
                  strait_reason_string((int)half->reason));
    atomic_fetch_add(half->state == STRAIT_DONE ? &w->totals->done : &w->totals->failed, 1);
    if (half->state == STRAIT_DONE && !news->drained)
        violation(w, "transfer %u is DONE and not drained at side %d", t->id, side);
    if (side == SOURCE && half->state == STRAIT_DONE && t->halves[SINK].decided &&
        t->halves[SINK].state != STRAIT_DONE && t->halves[SINK].reason != STRAIT_REASON_LOCAL &&
        t->halves[SINK].reason != STRAIT_REASON_TIMEOUT)
        violation(w, "transfer %u is DONE at the source and failed at the sink: %s", t->id,
                  strait_reason_string((int)t->halves[SINK].reason));
}

static void on_pool(struct world *w, int side, const struct news *news)
{
    struct side *s = &w->sides[side];
    bool same = s->blob_size == news->blob_size && memcmp(s->blob, news->blob, news->blob_size) == 0;
    s->registered = true;
    s->blob_size = news->blob_size;
    memcpy(s->blob, news->blob, news->blob_size);
    if (!same)
        w->sides[1 - side].imported = false;
}

static void on_news(struct world *w, int side, const struct news *news)
{
    struct transfer *t = find_transfer(w, news->id);
    if (news->type == NEWS_POOL)
        on_pool(w, side, news);
    else if (news->type == NEWS_REFUSED)
        violation(w, "the library refused an order at side %d: %s", side, strait_status_string((int)news->reason));
    else if (t == NULL || !t->halves[side].begun)
        violation(w, "news of transfer %u, which is over, at side %d", news->id, side);
    else if (news->type == NEWS_DRAINED) {
        if (!t->halves[side].decided || t->halves[side].drained)
            violation(w, "transfer %u drained before its verdict, or twice, at side %d", t->id, side);
        on_free(w, t, side);
    } else if (news->state == STRAIT_DONE || news->state == STRAIT_FAILED) {
        on_verdict(w, t, side, news);
        if (news->drained && !t->halves[side].drained)
            on_free(w, t, side);
    }
}

static bool take_news(struct world *w, int side)
{
    struct news news;
    struct side *s = &w->sides[side];
    bool any = false;
    while (s->client != 0 && recv(s->channel, &news, sizeof(news), MSG_DONTWAIT) == sizeof(news)) {
        on_news(w, side, &news);
        any = true;
    }
    return any;
}

bool world_pump(struct world *w, uint32_t ms, bool (*until)(struct world *w, void *arg), void *arg)
{
    uint64_t (*clock)(void) = until != NULL ? fair_ns : now_ns;
    uint64_t end = clock() + (uint64_t)ms * MS;
    for (;;) {
        bool any = take_news(w, SOURCE);
        any |= take_news(w, SINK);
        if (until != NULL && until(w, arg))
            return true;
        if (clock() >= end)
            return false;
        if (any)
            continue;
        struct pollfd fds[2];
        nfds_t count = 0;
        for (int side = 0; side < 2; side++)
            if (w->sides[side].client != 0)
                fds[count++] = (struct pollfd){.fd = w->sides[side].channel, .events = POLLIN};
        (void)poll(fds, count, ms == 0 ? 0 : 1); /* conditions are checked every millisecond */
        for (nfds_t i = 0; i < count; i++)
            if (fds[i].revents & POLLHUP)
                rest_ms(1);
    }
}
