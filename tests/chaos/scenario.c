/* Scenarios: one transfer is held in a state, a fault is injected, every rule is checked. */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <strait/strait.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/chaos/world.h"
#include "tests/support.h"

#define REACH_MS 800u                  /* for the transfer to reach the point */
#define OVER_MS  (3000u + DEADLINE_MS) /* until everything must have drained */

enum setup {
    PLAIN,
    PUSHED,       /* the source starts, alone */
    STARVED,      /* another transfer wants slots, and encoding is slow */
    ABORTED,      /* held by a job; then its side aborts: it drains */
    ABORTED_FIRST /* the source aborts while its jobs run */
};

struct place {
    enum phase phase;
    int side;
    enum chaos_point at;
    enum setup setup;
};

struct scene {
    enum fault fault;
    const struct place *place;
    struct transfer *target, *other;
    bool struck;
    int64_t lost, errors; /* connections that both daemons had lost before, and had ended for protocol violations */
    uint64_t restored_ns;
};

/* ---- Where a transfer is held ------------------------------------------------------------------------------------ */

static const struct place places[] = {
    {BOOTSTRAP, SINK, AT_SEND_REQUEST, PLAIN},
    {BOOTSTRAP, SINK, AT_SENT_REQUEST, PLAIN},
    {BOOTSTRAP, SOURCE, AT_TAKE_REQUEST, PLAIN},
    {BOOTSTRAP, SOURCE, AT_SEND_ANNOUNCE, PUSHED},
    {BOOTSTRAP, SOURCE, AT_SENT_ANNOUNCE, PUSHED},
    {BOOTSTRAP, SINK, AT_TAKE_ANNOUNCE, PUSHED},
    {BOOTSTRAP, SINK, AT_TAKEN_ANNOUNCE, PUSHED},
    {READY, SOURCE, AT_TAKEN_REQUEST, PLAIN},
    {READY, SOURCE, AT_SEND_SEGMENTS, PLAIN},
    {READY, SOURCE, AT_SENT_SEGMENTS, PLAIN},
    {READY, SINK, AT_TAKE_SEGMENTS, PLAIN},
    {READY, SINK, AT_TAKEN_SEGMENTS, PLAIN},
    {READY, SINK, AT_SEND_GRANT, PLAIN},
    {ENCODING, SINK, AT_SENT_GRANT, PLAIN},
    {ENCODING, SOURCE, AT_TAKE_GRANT, PLAIN},
    {ENCODING, SOURCE, AT_TAKEN_GRANT, PLAIN},
    {ENCODING, SOURCE, AT_ENCODE, PLAIN},
    {ENCODING, SOURCE, AT_ENCODED, PLAIN},
    {ENCODING, SINK, AT_SEND_REVOKE, STARVED},
    {ENCODING, SINK, AT_SENT_REVOKE, STARVED},
    {ENCODING, SOURCE, AT_TAKE_REVOKE, STARVED},
    {ENCODING, SOURCE, AT_TAKEN_REVOKE, STARVED},
    {SENDING, SOURCE, AT_CHUNK, PLAIN},
    {SENDING, SOURCE, AT_CHUNK_SENT, PLAIN},
    {ARRIVING, SINK, AT_ARRIVING, PLAIN},
    {ARRIVING, SINK, AT_ARRIVED, PLAIN},
    {DECODING, SINK, AT_DECODE, PLAIN},
    {DECODING, SINK, AT_DECODED, PLAIN},
    {DONE, SINK, AT_SEND_END, PLAIN},
    {DONE, SINK, AT_SENT_END, PLAIN},
    {DONE, SOURCE, AT_TAKE_END, PLAIN},
    {DONE, SOURCE, AT_TAKEN_END, PLAIN},
    {DONE, SINK, AT_TELL, PLAIN},
    {DONE, SINK, AT_TOLD, PLAIN},
    {DONE, SOURCE, AT_TELL, PLAIN},
    {DONE, SOURCE, AT_TOLD, PLAIN},
    {DRAINING, SINK, AT_DECODE, ABORTED},
    {DRAINING, SOURCE, AT_ENCODE, ABORTED},
    {DRAINING, SOURCE, AT_SEND_RELEASED, ABORTED_FIRST},
    {DRAINING, SOURCE, AT_SENT_RELEASED, ABORTED_FIRST},
    {DRAINING, SINK, AT_TAKE_RELEASED, ABORTED_FIRST},
    {DRAINING, SINK, AT_TAKEN_RELEASED, ABORTED_FIRST},
};
#define PLACES (sizeof(places) / sizeof(places[0]))

static const struct place local_places[] = {
    {DECODING, SINK, AT_COPY, PLAIN},   {DECODING, SINK, AT_COPIED, PLAIN},   {DONE, SINK, AT_TELL, PLAIN},
    {DONE, SINK, AT_TOLD, PLAIN},       {DONE, SOURCE, AT_TELL, PLAIN},       {DONE, SOURCE, AT_TOLD, PLAIN},
    {DRAINING, SINK, AT_COPY, ABORTED}, {DRAINING, SOURCE, AT_COPY, ABORTED},
};
#define LOCAL_PLACES (sizeof(local_places) / sizeof(local_places[0]))

const char *const point_names[CHAOS_POINTS] = {
#define X(name) "before sending " #name, "after sending " #name, "before taking " #name, "after taking " #name,
    CHAOS_MESSAGES(X)
#undef X
        "before sending a chunk",
    "after sending a chunk",
    "a chunk knocks",
    "a chunk has come",
    "before encoding",
    "after encoding",
    "before decoding",
    "after decoding",
    "before copying",
    "after copying",
    "before telling the verdict",
    "after telling the verdict"};

const char *const phase_names[PHASES] = {"BOOTSTRAP", "READY",    "ENCODING", "SENDING",
                                         "ARRIVING",  "DECODING", "DONE",     "DRAINING"};

static const struct place *least_met(struct world *w, enum phase phase)
{
    const struct place *best = NULL;
    uint32_t least = UINT32_MAX, start = draw(w, PLACES);
    for (uint32_t i = 0; i < PLACES; i++) {
        const struct place *place = &places[(start + i) % PLACES];
        uint32_t met = atomic_load(&w->totals->points[place->side][place->at]);
        if (place->phase != phase || met >= least)
            continue;
        least = met;
        best = place;
    }
    return best;
}

/* Chooses a place of the phase. Not always the least met place, as some are hard to reach. */
static const struct place *place_choose(struct world *w, enum phase phase)
{
    const struct place *list = w->is_local ? local_places : places, *place;
    if (!w->is_local && draw(w, 3) != 0)
        return least_met(w, phase);
    do
        place = &list[draw(w, w->is_local ? LOCAL_PLACES : PLACES)];
    while (place->phase != phase);
    return place;
}

static bool in_job(const struct place *place)
{
    return place->at >= AT_ENCODE && place->at <= AT_COPIED;
}

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

static struct chaos_side *injector(struct world *w, int side)
{
    return &w->shared->sides[daemon_of(w, side)];
}

/* A side whose daemon or client did not run cannot tell in time. */
static void excuse(struct world *w, int side, uint32_t more_ms)
{
    uint64_t due = now_ns() + (uint64_t)more_ms * MS;
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (w->transfers[i].id != 0 && w->transfers[i].halves[side].due_ns < due)
            w->transfers[i].halves[side].due_ns = due;
}

/* A lease begins when the daemon hears of it. The sink's library knows the deadline; the source's has none. */
static void excuse_offers(struct world *w)
{
    excuse(w, SOURCE, LEASE_MS + REACH_MS + PEER_TIMEOUT_MS);
}

/* Sometimes waits before a job goes on: it may run on long after the fault has struck everything else. */
static void let_go(struct world *w, const struct scene *s)
{
    if (in_job(s->place) && draw(w, 2) == 0)
        (void)world_pump(w, 10 + draw(w, 40), NULL, NULL);
    if (daemon_of(w, s->place->side) == SOURCE && !in_job(s->place))
        excuse_offers(w);
    atomic_store(&injector(w, s->place->side)->go, 1);
}

/* Either side may be first; either or both may start. */
static void begin_transfer(struct world *w, struct transfer *t, const struct scene *s)
{
    bool is_target = t == s->target, pushed = is_target && s->place->setup == PUSHED;
    uint32_t how = draw(w, 3);
    bool source_starts = pushed || how != 0, sink_starts = !pushed && (how != 1 || is_target);
    uint32_t more = s->place->setup == STARVED ? REACH_MS : 0;                 /* it may take that long to be held */
    uint32_t lease = s->fault == F_LEASE && is_target ? 150 : LEASE_MS + more; /* 150: enough to find each other */
    uint32_t deadline = s->fault == F_DEADLINE && is_target ? 60 : DEADLINE_MS + more;
    if (draw(w, 2) == 0) {
        pair_offer(w, t, lease, source_starts);
        pair_expect(w, t, deadline, sink_starts);
    } else {
        pair_expect(w, t, deadline, sink_starts);
        pair_offer(w, t, lease, source_starts);
    }
}

/* ---- Rubbish on ports -------------------------------------------------------------------------------------------- */

#define STRANGERS 6u
#define PORTS_MAX 16u
#define RUBBISH   4096u

static bool owns(pid_t pid, unsigned long inode)
{
    char path[64], link[320], target[64], wanted[64];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
        snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
        ssize_t size = readlink(link, target, sizeof(target) - 1);
        found = size > 0 && strncmp(target, wanted, (size_t)size) == 0 && strlen(wanted) == (size_t)size;
    }
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* TCP ports that the process listens on. */
static uint32_t listening(pid_t pid, unsigned ports[PORTS_MAX])
{
    char line[512];
    uint32_t count = 0;
    FILE *file = fopen("/proc/net/tcp", "re");
    while (file != NULL && count < PORTS_MAX && fgets(line, sizeof(line), file) != NULL) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, " %*u: %*x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*u %*u %lu", &port, &state, &inode) == 3 &&
            state == TCP_LISTEN && owns(pid, inode))
            ports[count++] = port;
    }
    if (file != NULL)
        fclose(file);
    return count;
}

/* Half of it is noise, half begins like a plausible length. */
static bool write_rubbish(struct world *w, int fd)
{
    uint8_t bytes[RUBBISH];
    uint32_t size = 1 + draw(w, RUBBISH);
    for (uint32_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)draw(w, 256);
    if (size > 8 && draw(w, 2) == 0)
        memcpy(bytes, (const uint8_t[]){0x40, 0, 0, 0, 0x0a, 0x3e, 0, 1}, 8);
    return send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

static bool meet(struct world *w, const struct sockaddr *address, socklen_t size)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    (void)connect(fd, address, size); /* loopback: it is made at once or not at all */
    bool met = write_rubbish(w, fd);
    if (draw(w, 3) == 0) {
        const struct linger reset = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    close(fd);
    return met;
}

static uint32_t attack_port(struct world *w, unsigned port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    uint32_t met = 0;
    for (uint32_t i = 0; i < STRANGERS; i++)
        met += meet(w, (const struct sockaddr *)&address, sizeof(address));
    return met;
}

/* Both return the number of connections that were made and written to: to every port that it listens on, except control
 * and metrics; to control, metrics and the Unix socket. */
static uint32_t attack_ucx(struct world *w, int side)
{
    unsigned ports[PORTS_MAX];
    const struct side *s = &w->sides[side];
    uint32_t met = 0, count = listening(s->daemon, ports);
    for (uint32_t i = 0; i < count; i++)
        if (ports[i] != s->port && ports[i] != s->metrics)
            met += attack_port(w, ports[i]);
    return met;
}

static uint32_t attack_ports(struct world *w, int side)
{
    const struct side *s = &w->sides[side];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.100s", s->socket);
    uint32_t met = attack_port(w, s->port) + attack_port(w, s->metrics);
    for (uint32_t i = 0; i < STRANGERS; i++)
        met += meet(w, (const struct sockaddr *)&address, sizeof(address));
    return met;
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

static void kill_daemon(struct world *w, struct scene *s, int side)
{
    bool lets_go = side != daemon_of(w, s->place->side);
    kill(w->sides[side].daemon, SIGKILL);
    if (w->setting->devices == 0)
        daemon_reap(w, side);
    if (lets_go)
        let_go(w, s);
    if (w->setting->devices > 0)
        daemon_reap(w, side); /* its contexts end with it, and that takes longer than peers wait */
    if (draw(w, 3) == 0)
        (void)world_pump(w, draw(w, 80), NULL, NULL);
}

static void stop_daemon(struct world *w, struct scene *s, int side)
{
    static const uint32_t times[] = {60, 120, 120, 200, 420, 420, 600, 1300};
    kill(w->sides[side].daemon, SIGSTOP);
    let_go(w, s);
    (void)world_pump(w, times[draw(w, 8)], NULL, NULL);
    kill(w->sides[side].daemon, SIGCONT);
    if (side == SOURCE)
        excuse_offers(w);
}

static void stop_client(struct world *w, struct scene *s, int side)
{
    kill(w->sides[side].client, SIGSTOP);
    let_go(w, s);
    (void)world_pump(w, 20 + draw(w, 180), NULL, NULL);
    kill(w->sides[side].client, SIGCONT);
    excuse(w, side, 0);
}

static void kill_client(struct world *w, struct scene *s, int side)
{
    worker_kill(w, side);
    let_go(w, s);
}

static void restart_daemon(struct world *w, struct scene *s, int side)
{
    kill(w->sides[side].daemon, SIGTERM);
    let_go(w, s);
    daemon_terminated(w, side);
}

static void restart_client(struct world *w, struct scene *s, int side)
{
    worker_close(w, side);
    let_go(w, s);
}

static void abort_target(struct world *w, struct scene *s, int side)
{
    pair_abort(w, s->target, side);
    (void)world_pump(w, 3, NULL, NULL);
    let_go(w, s);
}

/* The lease of the source, the deadline of the sink. */
static void wait_too_long(struct world *w, struct scene *s, int side)
{
    (void)world_pump(w, side == SOURCE ? 220 : 200, NULL, NULL);
    let_go(w, s);
}

static void change_codebook(struct world *w, struct scene *s, int side)
{
    w->sides[side].codebook ^= 1;
    kill_daemon(w, s, side);
}

static void cut_connection(struct world *w, struct scene *s, int side)
{
    (void)side;
    struct chaos_side *held = injector(w, s->place->side);
    atomic_store(&held->cut, strcmp(w->transport, "shm") != 0 ? 1 + draw(w, 2) : 1);
    let_go(w, s);
    for (uint32_t i = 0; i < 200 && atomic_load(&held->cuts) == 0; i++)
        (void)world_pump(w, 1, NULL, NULL);
    s->struck = atomic_load(&held->cuts) > 0;
}

/* For longer than the peer timeout. TCP loses nothing inside of a connection that lives on: if one has, it is cut. */
static void darken(struct world *w, struct scene *s, int side)
{
    (void)side;
    s->struck = false;
    for (int i = 0; i < 2; i++)
        atomic_store(&injector(w, i)->dark, 1);
    let_go(w, s);
    (void)world_pump(w, PEER_TIMEOUT_MS + 80 + draw(w, 250), NULL, NULL);
    for (int i = 0; i < 2; i++) {
        s->struck |= atomic_load(&injector(w, i)->darkened) > 0;
        atomic_store(&injector(w, i)->cut, 1);
        atomic_store(&injector(w, i)->dark, 0);
    }
}

static void fill_arena(struct world *w, struct scene *s, int side)
{
    (void)side;
    for (uint32_t i = 0; i < 4; i++) {
        struct transfer *t = pair_make(w, 3 + draw(w, 3));
        if (t != NULL)
            begin_transfer(w, t, s);
    }
    (void)world_pump(w, 3, NULL, NULL);
    let_go(w, s);
}

static void send_old(struct world *w, struct scene *s, int side)
{
    (void)side;
    for (int i = 0; i < 2; i++)
        atomic_store(&injector(w, i)->replay, 1);
    if (!in_job(s->place))
        let_go(w, s);
    for (uint32_t i = 0; i < 160; i++) { /* the next heartbeats at the latest */
        (void)world_pump(w, 1, NULL, NULL);
        if (atomic_load(&injector(w, SOURCE)->replayed) > 0 && atomic_load(&injector(w, SINK)->replayed) > 0)
            break;
    }
    (void)world_pump(w, 5, NULL, NULL);
    s->struck = atomic_load(&injector(w, SOURCE)->replayed) > 0;
    let_go(w, s);
}

static void attack(struct world *w, struct scene *s, uint32_t met)
{
    s->struck = met > 0;
    (void)world_pump(w, 3, NULL, NULL);
    let_go(w, s);
    (void)world_pump(w, 20, NULL, NULL);
}

static void attack_ucx_port(struct world *w, struct scene *s, int side)
{
    side ^= (int)draw(w, 2);
    w->sides[side].attacked = true;
    attack(w, s, attack_ucx(w, side));
}

static void attack_other_ports(struct world *w, struct scene *s, int side)
{
    side ^= (int)draw(w, 2);
    attack(w, s, attack_ports(w, side));
}

/* Transfers of all its daemon's devices fail, and what is on the host goes on, until the operator has started the
 * daemon again. */
static void break_device(struct world *w, struct scene *s, int side)
{
    struct chaos_side *broken = injector(w, side);
    int32_t device = w->sides[side].pages.device;
    bool before = draw(w, 2) == 0;
    s->struck = device >= 0; /* this pool may be the host's */
    if (!before)
        let_go(w, s);
    if (s->struck)
        atomic_store(&broken->breaks, 1u << device);
    for (uint32_t i = 0; s->struck && i < 500 && atomic_load(&broken->broken) == 0; i++)
        (void)world_pump(w, 1, NULL, NULL);
    if (before)
        let_go(w, s);
    (void)world_pump(w, 20 + draw(w, 150), NULL, NULL);
    if (!s->struck)
        return;
    bool gently = draw(w, 3) != 0;
    kill(w->sides[daemon_of(w, side)].daemon, gently ? SIGTERM : SIGKILL);
    if (gently)
        daemon_terminated(w, daemon_of(w, side));
    else
        daemon_reap(w, daemon_of(w, side));
}

static void send_twice(struct world *w, struct scene *s, int side)
{
    (void)side;
    for (int i = 0; i < 2; i++)
        atomic_store(&injector(w, i)->doubles, 3);
    let_go(w, s);
}

static void reorder(struct world *w, struct scene *s, int side)
{
    (void)side;
    for (int i = 0; i < 2; i++)
        atomic_store(&injector(w, i)->reorders, 2);
    let_go(w, s);
}

/* Which transfers a fault must not cost anything but time. */
enum spared { NONE, OTHERS, ALL };

struct fault_row {
    const char *name;
    void (*strike)(struct world *w, struct scene *s, int side); /* while a daemon is held, which it then lets go */
    int side;                                                   /* the one that is struck, where it matters */
    bool is_local;                                              /* possible when both sides are under one daemon, too */
    enum spared spared;
};

static const struct fault_row faults[FAULTS] = {
    [F_KILL_SOURCE_DAEMON] = {"kill -9 source daemon", kill_daemon, SOURCE, true, NONE},
    [F_KILL_SINK_DAEMON] = {"kill -9 sink daemon", kill_daemon, SINK, false, NONE},
    [F_KILL_SOURCE_CLIENT] = {"kill -9 source client", kill_client, SOURCE, true, NONE},
    [F_KILL_SINK_CLIENT] = {"kill -9 sink client", kill_client, SINK, true, NONE},
    [F_STOP_SOURCE_DAEMON] = {"stop/cont source daemon", stop_daemon, SOURCE, true, NONE},
    [F_STOP_SINK_DAEMON] = {"stop/cont sink daemon", stop_daemon, SINK, false, NONE},
    [F_STOP_SOURCE_CLIENT] = {"stop/cont source client", stop_client, SOURCE, true, ALL},
    [F_STOP_SINK_CLIENT] = {"stop/cont sink client", stop_client, SINK, true, ALL},
    [F_RESTART_SOURCE_DAEMON] = {"restart source daemon", restart_daemon, SOURCE, true, NONE},
    [F_RESTART_SINK_DAEMON] = {"restart sink daemon", restart_daemon, SINK, false, NONE},
    [F_RESTART_SOURCE_CLIENT] = {"restart source client", restart_client, SOURCE, true, NONE},
    [F_RESTART_SINK_CLIENT] = {"restart sink client", restart_client, SINK, true, NONE},
    [F_CUT] = {"connection cut", cut_connection, SOURCE, false, NONE},
    [F_DARK] = {"link down", darken, SOURCE, false, NONE},
    [F_ABORT_SOURCE] = {"abort by source", abort_target, SOURCE, true, OTHERS},
    [F_ABORT_SINK] = {"abort by sink", abort_target, SINK, true, OTHERS},
    [F_LEASE] = {"lease runs out", wait_too_long, SOURCE, true, ALL},
    [F_DEADLINE] = {"deadline runs out", wait_too_long, SINK, true, OTHERS},
    [F_CODEBOOK] = {"codebook mismatch", change_codebook, SINK, false, NONE},
    [F_FULL] = {"arena full", fill_arena, SOURCE, true, ALL},
    [F_DOUBLE] = {"duplicates", send_twice, SOURCE, false, ALL},
    [F_REPLAY] = {"old messages again", send_old, SOURCE, false, ALL},
    [F_REORDER] = {"reordering", reorder, SOURCE, false, NONE},
    [F_UCX_PORT] = {"attack on UCX's port", attack_ucx_port, SOURCE, false, NONE},
    [F_OTHER_PORTS] = {"attack on control port", attack_other_ports, SOURCE, false, ALL},
    [F_SOURCE_DEVICE] = {"source's device fails", break_device, SOURCE, true, NONE},
    [F_SINK_DEVICE] = {"sink's device fails", break_device, SINK, true, NONE},
};

const char *fault_name(enum fault fault)
{
    return faults[fault].name;
}

bool scenario_is_local(enum fault fault, enum phase phase)
{
    return faults[fault].is_local && (phase == DECODING || phase == DONE || phase == DRAINING);
}

static void strike(struct world *w, struct scene *s)
{
    s->struck = true;
    require(faults[s->fault].strike != NULL);
    faults[s->fault].strike(w, s, faults[s->fault].side);
}

/* ---- One scenario ------------------------------------------------------------------------------------------------ */

static bool is_over(struct world *w, void *arg)
{
    const struct transfer *t = arg;
    if (t != NULL)
        return pair_over(t);
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++)
        if (w->transfers[i].id != 0 && !pair_over(&w->transfers[i]))
            return false;
    return true;
}

static bool is_held(struct world *w, void *arg)
{
    const struct scene *s = arg;
    return atomic_load(&injector(w, s->place->side)->held) != 0;
}

static bool is_held_or_over(struct world *w, void *arg)
{
    const struct scene *s = arg;
    return is_held(w, arg) || pair_over(s->target);
}

static bool is_encoding(struct world *w, void *arg)
{
    (void)arg;
    return atomic_load(&injector(w, SOURCE)->hits[AT_ENCODE]) > 0;
}

static bool is_decided(struct world *w, void *arg)
{
    const struct half *half = arg;
    (void)w;
    return half->decided;
}

static uint32_t target_size(struct world *w, const struct scene *s)
{
    if (s->fault == F_REPLAY)
        return 6; /* one chunk, with the grant, the slot and the size of the transfer before */
    if (s->place->setup == STARVED)
        return 16; /* all slots */
    if (in_job(s->place) || s->place->setup != PLAIN)
        return 10 + draw(w, 7); /* chunks that are worth a worker */
    return 1 + draw(w, 16);
}

/* Of the time that a side had, a good part passed while the machine ran nobody. */
static bool was_kept(const struct transfer *t)
{
    const struct half *source = &t->halves[SOURCE], *sink = &t->halves[SINK];
    uint64_t time_ms = source->time_ms < sink->time_ms ? source->time_ms : sink->time_ms;
    return (source->kept_ns > sink->kept_ns ? source->kept_ns : sink->kept_ns) > time_ms * MS / 4;
}

/* A transfer whose messages and chunks are kept, to come again in another one. */
static bool record_one(struct world *w, const struct scene *s)
{
    for (int side = 0; side < 2; side++)
        atomic_store(&injector(w, side)->record, 1);
    struct transfer *t = pair_make(w, target_size(w, s));
    pair_expect(w, t, DEADLINE_MS, true);
    pair_offer(w, t, LEASE_MS, false);
    bool over = world_pump(w, OVER_MS, is_over, t);
    for (int side = 0; side < 2; side++)
        atomic_store(&injector(w, side)->record, 0);
    return over && (pair_done(t) || was_kept(t));
}

/* Waits until a daemon is held at the place; false: the transfer did not pass there this time. */
static bool reach_place(struct world *w, struct scene *s)
{
    struct chaos_side *held = injector(w, s->place->side);
    bool chunks = s->place->at >= AT_CHUNK && s->place->at <= AT_COPIED && s->place->setup == PLAIN;
    if (s->place->setup == STARVED || s->place->setup == ABORTED_FIRST)
        atomic_store(&injector(w, SOURCE)->slow_ms, s->place->setup == STARVED ? 110 : 25);
    atomic_store(&held->skip, chunks && s->fault != F_REPLAY && s->fault != F_DEADLINE ? draw(w, 2) : 0);
    atomic_store(&held->armed, (uint32_t)s->place->at + 1);
    begin_transfer(w, s->target, s);
    if (s->place->setup == STARVED && world_pump(w, REACH_MS, is_encoding, NULL))
        begin_transfer(w, s->other, s);
    if (s->place->setup == ABORTED_FIRST && world_pump(w, REACH_MS, is_encoding, NULL))
        pair_abort(w, s->target, SOURCE);
    (void)world_pump(w, REACH_MS, is_held_or_over, s);
    if (!is_held(w, s)) {
        atomic_store(&held->armed, 0);
        let_go(w, s);
        return false;
    }
    atomic_store(&injector(w, SOURCE)->slow_ms, 0); /* it is there: from here on deadlines are to be met */
    if (s->place->setup == ABORTED) {
        pair_abort(w, s->target, s->place->side);
        (void)world_pump(w, 300, is_decided, &s->target->halves[s->place->side]);
    }
    return true;
}

/* ---- What must be true afterwards -------------------------------------------------------------------------------- */

/* What is aborted, or held before it has begun when its lease runs out, fails all the same. */
static bool must_be_done(const struct scene *s, const struct transfer *t)
{
    const enum spared spared = faults[s->fault].spared;
    const enum phase phase = s->place->phase;
    if (t != s->target)
        return spared != NONE;
    return spared == ALL && phase != DRAINING && !(s->fault == F_LEASE && phase == BOOTSTRAP);
}

static int64_t sum_of(const struct world *w, const char *metric)
{
    int64_t sum = 0;
    for (int side = 0; side <= daemon_of(w, SINK); side++) {
        char *text = NULL;
        for (int i = 0; i < 5 && text == NULL; i++)
            text = metrics_fetch(w->sides[side].metrics, 1000);
        sum += text != NULL ? metric_read(text, metric) : 0;
        free(text);
    }
    return sum;
}

/* What an earlier fault has left behind may still cost a connection. What these faults do may not. */
static bool lost_connection(struct world *w, const struct scene *s)
{
    if (sum_of(w, "strait_peers_lost_total") == s->lost)
        return false;
    if ((s->fault == F_DOUBLE || s->fault == F_REPLAY) && sum_of(w, "strait_peer_errors_total") != s->errors)
        violation(w, "a message that came twice or late was taken for a violation of the protocol");
    atomic_fetch_add(&w->totals->excused, 1);
    return true;
}

static void check_verdicts(struct world *w, const struct scene *s)
{
    for (uint32_t i = 0; i < TRANSFERS_MAX; i++) {
        const struct transfer *t = &w->transfers[i];
        if (t->id == 0)
            continue;
        if (!pair_over(t))
            violation(w, "transfer %u is not over: source %s%s, sink %s%s", t->id,
                      t->halves[SOURCE].decided ? "decided" : "waits", t->halves[SOURCE].drained ? ", drained" : "",
                      t->halves[SINK].decided ? "decided" : "waits", t->halves[SINK].drained ? ", drained" : "");
        else if (must_be_done(s, t) && !pair_done(t) && !was_kept(t) && !lost_connection(w, s))
            violation(w, "transfer %u%s failed for nothing: source %s, sink %s", t->id,
                      t == s->target ? " (the target)" : "", strait_reason_string((int)t->halves[SOURCE].reason),
                      strait_reason_string((int)t->halves[SINK].reason));
    }
}

/* The next request uses the very pages that the fault struck, as soon as they are free. */
static struct transfer *make_again(struct world *w, const struct transfer *old)
{
    struct transfer *t = pair_make(w, old->count);
    if (t == NULL)
        return NULL;
    for (int side = 0; side < 2; side++) {
        struct pages *pages = &w->sides[side].pages;
        bool vacant = true;
        for (uint32_t i = 0; i < t->count; i++)
            pages->taken[t->halves[side].pages[i]] = 0;
        for (uint32_t i = 0; i < t->count; i++)
            vacant &= !pages->taken[old->halves[side].pages[i]];
        if (vacant)
            memcpy(t->halves[side].pages, old->halves[side].pages, t->count * sizeof(old->halves[side].pages[0]));
        for (uint32_t i = 0; i < t->count; i++)
            pages->taken[t->halves[side].pages[i]] = 1;
    }
    for (uint32_t i = 0; i < t->count; i++)
        t->tags[i] = w->sides[SOURCE].pages.tags[t->halves[SOURCE].pages[i]];
    return t;
}

static bool recover(struct world *w, const struct scene *s)
{
    uint64_t until = s->restored_ns + ready_ms(w) * (uint64_t)MS;
    while (fair_ns() < until) {
        struct transfer *t = world_ready(w) ? make_again(w, s->target) : NULL;
        if (t == NULL)
            return false;
        pair_expect(w, t, DEADLINE_MS, true);
        pair_offer(w, t, LEASE_MS, draw(w, 2) == 0);
        (void)world_pump(w, OVER_MS, is_over, t);
        if (pair_done(t)) {
            totals_max(&w->totals->recovery_ns, (int64_t)(fair_ns() - s->restored_ns));
            return true;
        }
        if (!pair_over(t))
            return true; /* check_verdicts says so */
        t->id = 0;       /* its entry is needed */
    }
    violation(w, "no transfer has worked for %u ms after the fault", ready_ms(w));
    return true;
}

static void count(struct world *w, const struct scene *s)
{
    bool struck = s->struck;
    if (s->fault == F_DOUBLE || s->fault == F_REORDER) {
        struck = false;
        for (int side = 0; side < 2; side++)
            struck |= atomic_load(&injector(w, side)->doubled) + atomic_load(&injector(w, side)->reordered) > 0;
    }
    if (!struck) {
        atomic_fetch_add(&w->totals->missed, 1);
        return;
    }
    atomic_fetch_add(
        w->is_local ? &w->totals->local[s->fault][s->place->phase] : &w->totals->table[s->fault][s->place->phase], 1);
    atomic_fetch_add(&w->totals->points[s->place->side][s->place->at], 1);
}

static void settle(struct world *w)
{
    for (int side = 0; side < 2; side++) {
        struct chaos_side *injected = injector(w, side);
        memset((void *)injected, 0, sizeof(*injected));
        atomic_store(&injected->forget, 1);
    }
    transfers_forget(w);
}

/* A GPU's fault can never strike a pool in host memory, which is made now and then: makes another pool. */
static void leave_host(struct world *w, enum fault fault)
{
    if (fault != F_SOURCE_DEVICE && fault != F_SINK_DEVICE)
        return;
    const int side = fault == F_SINK_DEVICE;
    if (w->sides[side].client != 0 && w->sides[side].pages.device < 0)
        worker_close(w, side);
}

bool scenario_run(struct world *w, enum fault fault, enum phase phase)
{
    struct scene s = {.fault = fault, .place = place_choose(w, phase)};
    snprintf(w->scene, sizeof(w->scene), "%s in %s, %s at the %s", faults[fault].name, phase_names[phase],
             point_names[s.place->at], s.place->side == SOURCE ? "source" : "sink");
    atomic_fetch_add(&w->totals->scenarios, 1);
    leave_host(w, fault);
    if (!world_ready(w))
        return false;
    if (fault == F_REPLAY && !record_one(w, &s)) {
        violation(w, "a transfer that nothing disturbs failed");
        settle(w);
        return true;
    }
    s.lost = sum_of(w, "strait_peers_lost_total");
    s.errors = sum_of(w, "strait_peer_errors_total");
    s.target = pair_make(w, target_size(w, &s));
    s.other = pair_make(w, 1 + draw(w, 8));
    bool held = reach_place(w, &s);
    if (s.place->setup != STARVED || !s.other->halves[SINK].begun)
        begin_transfer(w, s.other, &s);
    if (held)
        strike(w, &s);
    s.restored_ns = fair_ns();
    bool ready = world_ready(w);
    (void)world_pump(w, OVER_MS, is_over, s.target);
    world_check(w);
    ready = ready && recover(w, &s);
    (void)world_pump(w, OVER_MS, is_over, NULL);
    check_verdicts(w, &s);
    count(w, &s);
    if (ready)
        world_at_rest(w);
    world_check(w);
    settle(w);
    return ready;
}
