#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "collective/engine/ccomm.h"
#include "collective/engine/proxy.h"
#include "internal/socket_address.h"
#include "internal/thread.h"
#include "transport/rank_address.h"
#include "transport/rank_listener.h"

/* While the thread carries it, the thread's lock protects the fields below `next`. */
struct proxy {
    struct coll_ccomm *ccomm;
    struct transport *transport;
    struct rank_listener listener; /* closed once all are connected */
    struct proxy_info *infos;      /* by rank; this rank's own is what it tells others */
    unsigned links;                /* not closed yet */
    int connected_to;
    bool carried; /* the thread was given it and has not dropped it */
    struct proxy *next;
    struct level_consensus agree;
    int64_t expected_ms; /* when proxy_expect was called */
    bool settled;
    bool finished;           /* proxy_finish was called */
    bool flushing;           /* proxy_leave was */
    bool looked;             /* at all rings, since then */
    bool lost;               /* a rank has gone without leaving: the communicator has failed */
    bool starved;            /* no memory */
    struct proxy_peer **all; /* links there are or were */
    unsigned count;
    struct proxy_peer *links_of[]; /* by rank: what it dials, and behind these what it accepts, if links are lazy */
};

/* ---- All links of a communicator --------------------------------------------------------------------------------- */

enum { TURNS_MAX = 16 };

bool proxy_is_lazy(const struct coll_ccomm *ccomm)
{
    return ccomm->shared.multi_host && ccomm->ranks > RING_FEW_RANKS;
}

static void lose(struct proxy *proxy, coll_result result, const char *why)
{
    proxy->lost = true;
    ccomm_fail(proxy->ccomm, result, why);
}

/* A lazy link that was for the consensus alone may end as it likes: a rank that is not reached decides nothing. */
static void see_end(struct proxy *proxy, struct proxy_peer *peer)
{
    const bool matters = peer->connected || proxy_peer_is_full(peer) || !proxy_is_lazy(proxy->ccomm);
    peer->gone = true;
    if (peer->trouble != NULL && matters && proxy->settled && !proxy->finished && !proxy->lost) {
        char why[120];
        snprintf(why, sizeof(why), "rank %d, on another host, %s%s%s", peer->rank, peer->trouble,
                 peer->cause != NULL ? ": " : "", peer->cause != NULL ? peer->cause : "");
        lose(proxy, COLL_REMOTE_ERROR, why);
    }
    proxy->starved |= !consensus_rank_gone(&proxy->agree, peer->rank);
}

static void send_waiting(struct proxy_peer *peer)
{
    for (unsigned i = 0; i < peer->waiting_count; i++)
        proxy_peer_frame(peer, &peer->waiting[i]);
    peer->waiting_count = 0;
}

static void send_all(struct proxy *proxy, struct proxy_peer *peer)
{
    send_waiting(peer);
    if (proxy->finished && !peer->leaving) {
        proxy_peer_frame(peer, &(struct frame){.type = FRAME_LEAVE});
        peer->leaving = true;
    }
    proxy_peer_send(peer);
    if (proxy->flushing && !peer->flushing && proxy_peer_is_quiet(peer)) {
        peer->flushing = true;
        proxy_peer_frame(peer, &(struct frame){.type = FRAME_FLUSH});
    }
}

/* ---- Making links ------------------------------------------------------------------------------------------------ */

static struct proxy_info *own_info(const struct proxy *proxy)
{
    return &proxy->infos[proxy->ccomm->rank];
}

/* The rings that the link carries, as soon as they are reached. */
static void give_rings(const struct proxy *proxy, struct proxy_peer *peer, enum link_side side)
{
    const struct coll_ccomm *ccomm = proxy->ccomm;
    const struct ring_set *rings = &ccomm->shared.host_rings;
    const uint32_t rank = (uint32_t)peer->rank;
    peer->slot_bytes = rings->slot_bytes;
    peer->depth = rings->depth;
    peer->records = rings->records;
    if (!proxy_is_lazy(ccomm) || side == LINK_DIALLED)
        peer->to = ring_parts_of(rings, ring_to(rings, rank));
    if (!proxy_is_lazy(ccomm) || side == LINK_ACCEPTED)
        peer->from = ring_parts_of(rings, ring_from(rings, rank));
}

static bool on_frame(void *arg, int rank, const struct frame *frame)
{
    return consensus_receive(&((struct proxy *)arg)->agree, rank, frame);
}

static struct proxy_peer **place_of(struct proxy *proxy, int rank, enum link_side side)
{
    const bool behind = proxy_is_lazy(proxy->ccomm) && side == LINK_ACCEPTED;
    return &proxy->links_of[rank + (behind ? proxy->ccomm->ranks : 0)];
}

/* A link that is not connected yet. On both sides it has the number of the other one. NULL: no memory. */
static struct proxy_peer *link_make(struct proxy *proxy, int rank, enum link_side side)
{
    struct proxy_peer *peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    *peer = (struct proxy_peer){.rank = rank, .on_consensus = on_frame, .consensus_arg = proxy};
    if (link_open(proxy->transport, -1, side, peer, &peer->link) != STRAIT_OK) {
        free(peer);
        return NULL;
    }
    tcp_name(peer->link, (uint64_t)rank, own_info(proxy)->secret);
    proxy->links++;
    proxy->all[proxy->count++] = *place_of(proxy, rank, side) = peer;
    return peer;
}

/* Ends it if it cannot be connected. */
static void link_begin(const struct proxy *proxy, struct proxy_peer *peer, enum link_side side)
{
    const struct proxy_info *info = &proxy->infos[peer->rank];
    uint8_t address[TCP_ADDRESS_BYTES(1)];
    struct sockaddr_storage at;
    const socklen_t size = address_unpack(&at, &info->address);
    give_rings(proxy, peer, side);
    peer->dialled = side == LINK_DIALLED;
    tcp_address_write(address, (uint64_t)proxy->ccomm->rank, info->secret);
    if (peer->dialled)
        tcp_reach(peer->link, (struct sockaddr *)&at, size);
    if (size > 0 && link_connect(peer->link, address, sizeof(address)) == STRAIT_OK)
        return;
    peer->cause = "no connection can be begun from here";
    proxy_peer_end(peer, "could not be connected to");
}

/* A lazy one. NULL: no memory. */
static struct proxy_peer *link_lazily(struct proxy *proxy, int rank, enum link_side side)
{
    struct proxy_peer *peer = *place_of(proxy, rank, side);
    if (peer != NULL)
        return peer;
    peer = link_make(proxy, rank, side);
    if (peer == NULL)
        proxy->starved = true;
    else
        link_begin(proxy, peer, side);
    return peer;
}

/* Rings from which nothing was ever sent, and that have something now. */
static void look_at_rings(struct proxy *proxy)
{
    const struct coll_ccomm *ccomm = proxy->ccomm;
    const struct ring_set *rings = &ccomm->shared.host_rings;
    for (int rank = 0; rank < ccomm->ranks; rank++) {
        if (rank_set_has(&ccomm->shared.here, (uint32_t)rank) || proxy->links_of[rank] != NULL)
            continue;
        const struct ring_parts ring = ring_parts_of(rings, ring_to(rings, (uint32_t)rank));
        uint64_t any = 0;
        for (uint32_t slot = 0; slot < rings->depth; slot++)
            any |= __atomic_load_n(&ring.full[slot].number, __ATOMIC_ACQUIRE);
        if (any != 0)
            (void)link_lazily(proxy, rank, LINK_DIALLED);
    }
}

/* Frames for a rank that is not connected yet wait. A promise goes where it was asked for. */
static bool send_consensus(void *arg, int rank, const struct frame *frame)
{
    struct proxy *proxy = arg;
    const enum link_side side = frame->type == FRAME_PROMISE ? LINK_ACCEPTED : LINK_DIALLED;
    struct proxy_peer *peer =
        proxy_is_lazy(proxy->ccomm) ? link_lazily(proxy, rank, side) : *place_of(proxy, rank, side);
    if (peer == NULL)
        return false;
    if (peer->connected || peer->link == NULL) {
        proxy_peer_frame(peer, frame);
        return !peer->starved;
    }
    struct frame *waiting = realloc(peer->waiting, (peer->waiting_count + 1) * sizeof(*waiting));
    if (waiting == NULL)
        return false;
    peer->waiting = waiting;
    waiting[peer->waiting_count++] = *frame;
    return true;
}

/* ---- Those who connect ------------------------------------------------------------------------------------------- */

/* Whether a link to this rank is for it to make. */
static bool may_dial(const struct proxy *proxy, uint64_t rank)
{
    const struct coll_ccomm *ccomm = proxy->ccomm;
    return rank < (uint64_t)ccomm->ranks && !rank_set_has(&ccomm->shared.here, (uint32_t)rank) &&
           (proxy_is_lazy(ccomm) || rank < (uint64_t)ccomm->rank);
}

static bool awaits(void *arg, uint64_t rank)
{
    struct proxy *proxy = arg;
    if (!may_dial(proxy, rank))
        return false;
    const struct proxy_peer *peer = proxy_is_lazy(proxy->ccomm) ? link_lazily(proxy, (int)rank, LINK_ACCEPTED)
                                                                : *place_of(proxy, (int)rank, LINK_ACCEPTED);
    return peer != NULL && peer->link != NULL && !peer->connected;
}

/* ---- Progress ---------------------------------------------------------------------------------------------------- */

static bool carry(struct proxy *proxy)
{
    bool moved = false, more = true;
    for (unsigned turn = 0; more && turn < TURNS_MAX; turn++) {
        for (unsigned i = 0; i < proxy->count; i++)
            if (proxy->all[i]->link != NULL && proxy->all[i]->connected)
                send_all(proxy, proxy->all[i]);
        more = transport_progress(proxy->transport);
        moved |= more;
    }
    return moved;
}

/* Carries what it can. True: there was something. */
static bool progress(struct proxy *proxy)
{
    struct coll_ccomm *ccomm = proxy->ccomm;
    proxy->starved |= !consensus_ask(&proxy->agree);
    rank_listener_accept(&proxy->listener, proxy->transport, awaits, proxy);
    if (proxy_is_lazy(ccomm) && (__atomic_exchange_n(&ccomm->host_status->bell, 0, __ATOMIC_ACQ_REL) != 0 ||
                                 (proxy->flushing && !proxy->looked))) {
        proxy->looked = proxy->flushing;
        look_at_rings(proxy);
    }
    const bool moved = carry(proxy);
    for (unsigned i = 0; i < proxy->count; i++) {
        struct proxy_peer *peer = proxy->all[i];
        proxy->starved |= peer->starved;
        if (peer->link == NULL && !peer->gone)
            see_end(proxy, peer);
    }
    if (proxy->starved && !proxy->lost)
        lose(proxy, COLL_INTERNAL_ERROR, "no memory for what ranks tell each other");
    if (proxy->lost) /* also stops what was launched since */
        ccomm_abort_kernels(ccomm);
    return moved;
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

/* How often it polls memory that kernels write, as they wake nobody: often for a while after anything moved. Links wake
 * it at once, but beyond LINKED_MAX communicators are polled as often as kernels' memory is. */
enum { SOON_NS = 20000, LATER_NS = 1000000, BUSY_TURNS = 2000, LINKED_MAX = 256 };

/* All of it is under the lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct proxy *first;
    pid_t process; /* in which the thread runs; 0: it has not been started */
    bool over;     /* the process ends: CUDA's memory may be gone already */
} thread = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Called with the lock held, and releases it meanwhile. */
static void rest(bool busy)
{
    struct pollfd ready[2 * LINKED_MAX];
    nfds_t count = 0;
    long nanoseconds = busy ? SOON_NS : LATER_NS;
    for (struct proxy *at = thread.first; at != NULL && count < 2 * LINKED_MAX; at = at->next) {
        if (transport_arm(at->transport) == STRAIT_ERR_AGAIN)
            nanoseconds = 0;
        at->listener.ready = true; /* asking costs less than finding out which of them it was */
        ready[count++] = (struct pollfd){.fd = transport_fd(at->transport), .events = POLLIN};
        ready[count++] = (struct pollfd){.fd = at->listener.file, .events = POLLIN};
    }
    pthread_mutex_unlock(&thread.lock);
    (void)ppoll(ready, count, &(struct timespec){.tv_nsec = nanoseconds}, NULL);
    pthread_mutex_lock(&thread.lock);
}

static void *run(void *argument)
{
    unsigned quiet = BUSY_TURNS;
    (void)prctl(PR_SET_TIMERSLACK, 1000UL);
    pthread_mutex_lock(&thread.lock);
    while (!thread.over) {
        bool moved = false;
        while (thread.first == NULL && !thread.over)
            pthread_cond_wait(&thread.changed, &thread.lock);
        for (struct proxy *at = thread.first; at != NULL && !thread.over; at = at->next)
            moved |= progress(at);
        quiet = moved ? 0 : quiet + (quiet < BUSY_TURNS);
        if (!thread.over)
            rest(quiet < BUSY_TURNS);
    }
    pthread_mutex_unlock(&thread.lock);
    return argument;
}

/* Registered after CUDA's exit handler, so it runs before that. In a forked child the lock is as it was at the fork. */
static void stop(void)
{
    if (thread.process != getpid())
        return;
    pthread_mutex_lock(&thread.lock);
    thread.over = true;
    pthread_mutex_unlock(&thread.lock);
}

static void before_fork(void)
{
    pthread_mutex_lock(&thread.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&thread.lock);
}

/* Otherwise connections would not end with the parent. */
static void be_child(void)
{
    for (struct proxy *at = thread.first; at != NULL; at = at->next) {
        transport_after_fork(at->transport);
        rank_listener_close(&at->listener);
    }
    thread.first = NULL;
    thread.process = 0;
    pthread_mutex_unlock(&thread.lock);
}

static bool prepare(void)
{
    static bool prepared;
    if (!prepared)
        prepared = atexit(stop) == 0 && pthread_atfork(before_fork, after_fork, be_child) == 0;
    return prepared;
}

static bool start(void)
{
    pthread_t started;
    const bool good = prepare() && thread_start(&started, run, NULL) == 0;
    if (good)
        pthread_detach(started);
    thread.process = good ? getpid() : 0;
    return good;
}

/* False in a process that was forked from the one in which the thread runs. */
static bool thread_is_ours(void)
{
    return thread.process == getpid();
}

/* Stops carrying it if `done` returns true or is NULL. True: it is not carried any more. */
static bool thread_remove(struct proxy *proxy, bool (*done)(const struct proxy *proxy))
{
    if (!proxy->carried || !thread_is_ours())
        return true;
    pthread_mutex_lock(&thread.lock);
    const bool drops = done == NULL || thread.over || done(proxy);
    for (struct proxy **at = &thread.first; *at != NULL && drops; at = &(*at)->next)
        if (*at == proxy) {
            *at = proxy->next;
            break;
        }
    proxy->carried = !drops;
    pthread_mutex_unlock(&thread.lock);
    return drops;
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* How long leaving may wait for data under way, and after an abort for the last frame. */
enum { LOOK_NS = 1000000, LEAVE_LOOKS_MAX = 10000, ABORT_LOOKS_MAX = 100 };

static bool listen_for_ranks(struct proxy *proxy)
{
    struct proxy_info *own = own_info(proxy);
    const struct transport_arena arena = {.fd = -1, .memory = TRANSPORT_HOST};
    return rank_listener_open(&proxy->listener, &own->address) &&
           getrandom(own->secret, sizeof(own->secret), 0) == sizeof(own->secret) &&
           transport_create(&transport_tcp, &arena, &proxy_events, &proxy->links, "listen=none connections=1",
                            &proxy->transport) == STRAIT_OK;
}

/* Whether the link to this rank is one of the start. */
static bool is_of_start(const struct coll_ccomm *ccomm, int rank)
{
    const struct host_groups *groups = &ccomm->shared.groups;
    return proxy_is_lazy(ccomm) ? rank == host_groups_next(groups, ccomm->rank, ccomm->ranks)
                                : !rank_set_has(&ccomm->shared.here, (uint32_t)rank);
}

static enum link_side side_of_start(const struct coll_ccomm *ccomm, int rank)
{
    return proxy_is_lazy(ccomm) || rank > ccomm->rank ? LINK_DIALLED : LINK_ACCEPTED;
}

bool proxy_prepare(struct coll_ccomm *ccomm, struct proxy_info *info)
{
    const size_t ranks = (size_t)ccomm->ranks;
    struct proxy *proxy = calloc(1, sizeof(*proxy) + 2 * ranks * sizeof(proxy->links_of[0]));
    if (proxy == NULL)
        return false;
    ccomm->shared.proxy = proxy;
    proxy->ccomm = ccomm;
    proxy->agree.send = send_consensus;
    proxy->agree.send_arg = proxy;
    rank_listener_init(&proxy->listener);
    proxy->infos = calloc(ranks, sizeof(*proxy->infos));
    proxy->all = calloc(2 * ranks, sizeof(*proxy->all));
    if (proxy->infos == NULL || proxy->all == NULL || !listen_for_ranks(proxy))
        return false;
    *info = *own_info(proxy);
    for (int rank = 0; rank < ccomm->ranks; rank++)
        if (is_of_start(ccomm, rank) && link_make(proxy, rank, side_of_start(ccomm, rank)) == NULL)
            return false;
    return true;
}

void proxy_connect(struct coll_ccomm *ccomm, int rank, const struct proxy_info *info)
{
    struct proxy *proxy = ccomm->shared.proxy;
    if (rank == ccomm->rank)
        return;
    proxy->infos[rank] = *info;
    if (is_of_start(ccomm, rank))
        link_begin(proxy, *place_of(proxy, rank, side_of_start(ccomm, rank)), side_of_start(ccomm, rank));
}

bool proxy_start(struct coll_ccomm *ccomm)
{
    struct proxy *proxy = ccomm->shared.proxy;
    if (!consensus_init(&proxy->agree, ccomm))
        return false;
    pthread_mutex_lock(&thread.lock);
    proxy->carried = thread.process == getpid() || start();
    if (proxy->carried) {
        proxy->next = thread.first;
        thread.first = proxy;
        pthread_cond_signal(&thread.changed);
    }
    pthread_mutex_unlock(&thread.lock);
    return proxy->carried;
}

void proxy_expect(struct coll_ccomm *ccomm)
{
    ccomm->shared.proxy->expected_ms = now_ms();
}

/* Why a rank that was dialled is given up, so many milliseconds after it was expected; NULL: it is not. */
static const char *given_up(const struct proxy_peer *peer, int64_t ms)
{
    if (peer->trouble != NULL)
        return peer->cause != NULL ? peer->cause : "the connection has ended";
    if (peer->connected || peer->link == NULL)
        return NULL;
    if (ms >= ADDRESS_CONNECT_MS && !tcp_is_reached(peer->link))
        return "nothing has answered";
    return ms >= PROXY_ANSWER_MS ? "it takes connections, and does not answer" : NULL;
}

/* Returns false when nothing is awaited any more: *why is set if a rank is given up, of those that were dialled. Links
 * that were accepted do not count: strangers begin some, and whoever dials knows before. */
static bool is_awaited(const struct proxy *proxy, int *rank, const char **why)
{
    bool awaited = false;
    for (unsigned i = 0; i < proxy->count; i++) {
        const struct proxy_peer *peer = proxy->all[i];
        if (!peer->dialled)
            continue;
        *rank = peer->rank;
        if ((*why = given_up(peer, now_ms() - proxy->expected_ms)) != NULL)
            return false;
        awaited |= !peer->connected && peer->link != NULL;
    }
    return awaited;
}

const char *proxy_await(struct coll_ccomm *ccomm, int *rank)
{
    struct proxy *proxy = ccomm->shared.proxy;
    const char *why = NULL;
    for (;;) {
        pthread_mutex_lock(&thread.lock);
        const bool awaited = is_awaited(proxy, rank, &why);
        pthread_mutex_unlock(&thread.lock);
        if (!awaited)
            return why;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
}

const struct address *proxy_address(const struct coll_ccomm *ccomm, int rank)
{
    return &ccomm->shared.proxy->infos[rank].address;
}

bool proxy_settle(struct coll_ccomm *ccomm)
{
    struct proxy *proxy = ccomm->shared.proxy;
    bool good = true;
    pthread_mutex_lock(&thread.lock);
    proxy->settled = true;
    for (unsigned i = 0; i < proxy->count; i++) {
        proxy->connected_to += proxy->all[i]->connected;
        good &= proxy->all[i]->trouble == NULL;
    }
    if (!proxy_is_lazy(ccomm))
        rank_listener_close(&proxy->listener);
    pthread_mutex_unlock(&thread.lock);
    return good;
}

void proxy_describe(const struct coll_ccomm *ccomm, char *text, size_t size)
{
    const struct proxy *proxy = ccomm->shared.proxy;
    const bool lazy = proxy_is_lazy(ccomm);
    snprintf(text, size, "%.0d%s", proxy != NULL && !lazy ? proxy->connected_to : 0,
             proxy == NULL ? ""
             : lazy        ? "ranks on other hosts by TCP when needed, "
                           : " ranks on other hosts by TCP, ");
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void proxy_finish(struct coll_ccomm *ccomm)
{
    if (ccomm->shared.proxy == NULL || !thread_is_ours())
        return;
    pthread_mutex_lock(&thread.lock);
    ccomm->shared.proxy->finished = true;
    pthread_mutex_unlock(&thread.lock);
}

static bool all_are_through(const struct proxy *proxy)
{
    bool all = !proxy->flushing || proxy->looked || !proxy_is_lazy(proxy->ccomm);
    for (unsigned i = 0; i < proxy->count && all; i++) {
        const struct proxy_peer *peer = proxy->all[i];
        all = peer->link == NULL || (proxy->flushing ? peer->flushed : peer->leaving && peer->frames == 0);
    }
    return all;
}

static void shut(struct proxy *proxy)
{
    for (unsigned i = 0; i < proxy->count; i++)
        proxy_peer_end(proxy->all[i], NULL);
    while (proxy->links > 0)
        (void)transport_progress(proxy->transport);
    rank_listener_close(&proxy->listener);
    transport_destroy(proxy->transport);
    proxy->transport = NULL;
}

void proxy_leave(struct coll_ccomm *ccomm)
{
    struct proxy *proxy = ccomm->shared.proxy;
    if (proxy == NULL || !proxy->carried || !thread_is_ours())
        return;
    pthread_mutex_lock(&thread.lock);
    proxy->finished = true;
    proxy->flushing = !ccomm->aborted;
    pthread_mutex_unlock(&thread.lock);
    const int most = ccomm->aborted ? ABORT_LOOKS_MAX : LEAVE_LOOKS_MAX;
    for (int looks = 0; looks < most && !thread_remove(proxy, all_are_through); looks++)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    (void)thread_remove(proxy, NULL);
    shut(proxy);
}

void proxy_end(struct coll_ccomm *ccomm)
{
    struct proxy *proxy = ccomm->shared.proxy;
    if (proxy == NULL)
        return;
    (void)thread_remove(proxy, NULL);
    shut(proxy);
    consensus_fini(&proxy->agree);
    for (unsigned i = 0; i < proxy->count; i++) {
        free(proxy->all[i]->waiting);
        free(proxy->all[i]);
    }
    ccomm->shared.proxy = NULL;
    free(proxy->all);
    free(proxy->infos);
    free(proxy);
}
