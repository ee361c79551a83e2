#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "collective/address.h"
#include "collective/engine/ccomm.h"
#include "collective/engine/proxy.h"
#include "internal/thread.h"

/* While the thread carries it, the thread's lock protects the fields below `next`. */
struct proxy {
    struct coll_ccomm *ccomm;
    struct transport *transport;
    unsigned links; /* not closed yet */
    int connected_to;
    bool carried; /* the thread was given it and has not dropped it */
    struct proxy *next;
    struct level_consensus agree;
    bool settled;
    bool finished;             /* proxy_finish was called */
    bool flushing;             /* proxy_leave was */
    bool lost;                 /* a rank has gone without leaving: the communicator has failed */
    bool starved;              /* no memory */
    struct proxy_peer peers[]; /* by rank */
};

/* ---- Consensus on levels: who decides ---------------------------------------------------------------------------- */

bool consensus_init(struct level_consensus *agree, struct coll_ccomm *ccomm)
{
    agree->ccomm = ccomm;
    agree->seen = agree->gone = 0;
    agree->classes = calloc(op_class_count(ccomm), sizeof(*agree->classes));
    return agree->classes != NULL;
}

void consensus_fini(struct level_consensus *agree)
{
    free(agree->classes);
    agree->classes = NULL;
}

/* Sends to all ranks that are asked and still there. */
static bool send_to_all(struct level_consensus *agree, uint32_t number, const struct frame *frame, uint64_t *sent_to)
{
    bool good = true;
    for (int rank = 0; rank < agree->ccomm->ranks; rank++) {
        if (!op_class_is_asked(agree->ccomm, number, rank) || (agree->gone >> rank & 1) != 0)
            continue;
        good &= agree->send(agree->send_arg, rank, frame);
        *sent_to |= UINT64_C(1) << rank;
    }
    return good;
}

/* Called when all have promised. */
static bool settle(struct level_consensus *agree, uint32_t number)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[number];
    const bool early = agree->classes[number].early;
    uint64_t sent_to = 0;
    struct level_span now = {0};
    op_classes_lock(classes);
    if (!early) {
        op_class_step(agree->ccomm, number, agree->classes[number].from);
        now = op_class->level.now;
    }
    op_class->limit = 0;
    op_classes_unlock(classes);
    return send_to_all(
        agree, number,
        &(struct frame){.type = FRAME_STEP, .small = number, .a = now.from, .b = now.until, .c = now.level}, &sent_to);
}

/* An op class's limit, if this rank decides and is not asking already; else 0. */
static uint64_t wanted_of(const struct level_consensus *agree, uint32_t number)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    if (agree->classes[number].missing != 0 || op_class_decider(agree->ccomm, number) != agree->ccomm->rank)
        return 0;
    op_classes_lock(classes);
    const uint64_t limit = classes->classes[number].limit;
    op_classes_unlock(classes);
    return limit;
}

bool consensus_ask(struct level_consensus *agree)
{
    const uint64_t wanted = __atomic_load_n(&agree->ccomm->shared.classes->wanted, __ATOMIC_ACQUIRE);
    bool good = true;
    if (wanted == agree->seen)
        return true;
    agree->seen = wanted;
    for (uint32_t number = 0; number < op_class_count(agree->ccomm); number++) {
        struct class_consensus *agreement = &agree->classes[number];
        const uint64_t limit = wanted_of(agree, number);
        if (limit == 0)
            continue;
        agreement->from = limit;
        agreement->early = false;
        good &= send_to_all(agree, number, &(struct frame){.type = FRAME_ASK, .small = number}, &agreement->missing);
        if (agreement->missing == 0)
            good &= settle(agree, number);
    }
    return good;
}

static bool handle_promise(struct level_consensus *agree, int peer, const struct frame *frame)
{
    struct class_consensus *agreement = &agree->classes[frame->small];
    if ((agreement->missing >> peer & 1) == 0 || frame->a >= UINT64_MAX / 2 || frame->b > 1)
        return false;
    agreement->early |= frame->b == 0;
    agreement->missing &= ~(UINT64_C(1) << peer);
    agreement->from = frame->a > agreement->from ? frame->a : agreement->from;
    return agreement->missing != 0 || settle(agree, frame->small);
}

/* ---- Ranks that take steps over ---------------------------------------------------------------------------------- */

static bool promise(struct level_consensus *agree, int peer, uint32_t number)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[number];
    op_classes_lock(classes);
    const bool promised = op_class->limit != 0;
    const uint64_t limit = op_class->level.issued + OP_CLASS_AHEAD, past = op_class_is_past(agree->ccomm, number);
    if (!promised)
        op_class->limit = limit;
    op_classes_unlock(classes);
    return !promised && agree->send(agree->send_arg, peer,
                                    &(struct frame){.type = FRAME_PROMISE, .small = number, .a = limit, .b = past});
}

static bool take_over(struct level_consensus *agree, const struct frame *frame)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[frame->small];
    op_classes_lock(classes);
    const bool none = frame->a == 0 && frame->b == 0 && frame->c == 0;
    const bool step =
        frame->a >= op_class->limit && frame->b >= frame->a && frame->b < UINT64_MAX / 2 && frame->c <= 1024;
    const bool good = op_class->limit != 0 && (none || step);
    if (good && none)
        op_class->limit = 0;
    if (good && step) {
        op_class->past = 0;
        op_class->level.old = op_class->level.now;
        op_class->level.now = (struct level_span){.from = frame->a, .until = frame->b, .level = (unsigned)frame->c};
        op_class->limit = 0;
    }
    op_classes_unlock(classes);
    return good;
}

bool consensus_receive(struct level_consensus *agree, int peer, const struct frame *frame)
{
    const struct coll_ccomm *ccomm = agree->ccomm;
    if (frame->small >= op_class_count(ccomm))
        return false;
    const int decider = op_class_decider(ccomm, frame->small);
    if (frame->type == FRAME_PROMISE)
        return decider == ccomm->rank && handle_promise(agree, peer, frame);
    if (decider != peer || !op_class_is_asked(ccomm, frame->small, ccomm->rank))
        return false;
    return frame->type == FRAME_ASK ? promise(agree, peer, frame->small) : take_over(agree, frame);
}

/* ---- Ranks that have gone ---------------------------------------------------------------------------------------- */

static void forget_promise(struct op_classes *classes, uint32_t number)
{
    op_classes_lock(classes);
    classes->classes[number].limit = 0;
    op_classes_unlock(classes);
}

bool consensus_rank_gone(struct level_consensus *agree, int peer)
{
    const struct coll_ccomm *ccomm = agree->ccomm;
    bool good = true;
    agree->gone |= UINT64_C(1) << peer;
    for (uint32_t number = 0; number < op_class_count(ccomm); number++) {
        struct class_consensus *agreement = &agree->classes[number];
        const bool awaited = (agreement->missing >> peer & 1) != 0;
        agreement->missing &= ~(UINT64_C(1) << peer);
        if (awaited && agreement->missing == 0)
            good &= settle(agree, number);
        if (op_class_decider(ccomm, number) == peer && op_class_is_asked(ccomm, number, ccomm->rank))
            forget_promise(ccomm->shared.classes, number);
    }
    return good;
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *word, uint64_t x)
{
    __atomic_store_n(word, x, __ATOMIC_SEQ_CST);
}

/* A link that has ended takes nothing; that is no failure here. */
static void send_frame(struct proxy_peer *peer, const struct frame *frame, const uint8_t *values, size_t size)
{
    uint8_t header[FRAME_BYTES];
    if (peer->link == NULL)
        return;
    frame_put(header, frame);
    const enum strait_status status = link_send(peer->link, header, FRAME_BYTES, values, size, NULL, size > 0);
    peer->starved |= status == STRAIT_ERR_NO_MEMORY;
    peer->frames += status == STRAIT_OK;
    peer->slots += status == STRAIT_OK && size > 0;
}

static bool has_room(const struct proxy_peer *peer)
{
    return peer->frames < PROXY_FRAMES_MAX;
}

static void send_taken(struct proxy_peer *peer)
{
    for (uint32_t slot = 0; slot < RING_SLOTS && has_room(peer); slot++) {
        const uint64_t taken = load(&peer->from.flags->taken[slot].number);
        if (taken == peer->reported[slot])
            continue;
        peer->reported[slot] = taken;
        send_frame(peer, &(struct frame){.type = FRAME_TAKEN, .a = taken}, NULL, 0);
    }
}

/* The record with the next number, or a later one if that was overwritten. False: there is none yet. */
static bool next_record(struct proxy_peer *peer, uint32_t pairs, struct frame *frame)
{
    uint64_t *next = &peer->next_records[pairs];
    for (;;) {
        const struct ring_record *record = &peer->to.flags->records[pairs][*next % RING_RECORDS];
        const uint64_t number = load(&record->number);
        if (number < *next + 1)
            return false;
        const uint64_t first = load(&record->first);
        if (number == *next + 1 && load(&record->number) == number) {
            *frame = (struct frame){.type = FRAME_RECORD, .small = pairs, .a = (*next)++, .b = first};
            return true;
        }
        *next += number > *next + 1 ? number - *next - RING_RECORDS : 1;
    }
}

static void send_records(struct proxy_peer *peer)
{
    struct frame frame;
    for (uint32_t pairs = 0; pairs < 2; pairs++)
        while (has_room(peer) && next_record(peer, pairs, &frame))
            send_frame(peer, &frame, NULL, 0);
}

/* The full slot with the lowest number that has not been sent; RING_SLOTS: there is none. */
static uint32_t next_slot(const struct proxy_peer *peer)
{
    uint32_t found = RING_SLOTS;
    uint64_t least = UINT64_MAX;
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++) {
        const uint64_t full = load(&peer->to.flags->full[slot].number);
        if (full == peer->sent[slot] || full >= least)
            continue;
        found = slot;
        least = full;
    }
    return found;
}

/* False: there is none. */
static bool send_slot(struct proxy_peer *peer)
{
    const uint32_t slot = next_slot(peer);
    if (slot == RING_SLOTS)
        return false;
    const struct ring_flag *full = &peer->to.flags->full[slot];
    const uint64_t number = load(&full->number);
    const uint32_t bytes = full->bytes < peer->slot_bytes ? (uint32_t)full->bytes : peer->slot_bytes;
    peer->sent[slot] = number;
    send_frame(peer, &(struct frame){.type = FRAME_SLOT, .small = bytes, .a = number - 1},
               peer->to.slots + (size_t)slot * peer->slot_bytes, bytes);
    return true;
}

/* Records go before the slots of their messages, and whatever is short before slots, which take a while to send. */
void proxy_peer_send(struct proxy_peer *peer)
{
    send_taken(peer);
    send_records(peer);
    while (peer->slots < PROXY_SLOTS_MAX && has_room(peer) && send_slot(peer))
        ;
}

static bool is_quiet(const struct proxy_peer *peer)
{
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++)
        if (load(&peer->to.flags->full[slot].number) != peer->sent[slot] ||
            load(&peer->from.flags->taken[slot].number) != peer->reported[slot])
            return false;
    for (uint32_t pairs = 0; pairs < 2; pairs++)
        if (load(&peer->to.flags->records[pairs][peer->next_records[pairs] % RING_RECORDS].number) >
            peer->next_records[pairs])
            return false;
    return true;
}

static void on_sent(void *owner, struct link *link, uint64_t slots, enum strait_status status)
{
    struct proxy_peer *peer = link->owner;
    (void)owner, (void)status;
    peer->frames--;
    peer->slots -= (uint32_t)slots;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The slot is free, as the peer fills it again only after that has been reported to it. */
static struct landing begin_slot(struct proxy_peer *peer, const struct frame *frame)
{
    const uint32_t slot = frame->a % RING_SLOTS;
    if (frame->small == 0 || frame->small > peer->slot_bytes || frame->a >= UINT64_MAX / 2 ||
        frame->a < peer->filled[slot] || peer->reported[slot] != peer->filled[slot])
        return (struct landing){0};
    peer->filled[slot] = frame->a + 1;
    peer->from.flags->full[slot].bytes = frame->small;
    return (struct landing){.address = peer->from.slots + (size_t)slot * peer->slot_bytes, .cookie = frame->a};
}

static void on_arrived(void *owner, struct link *link, uint64_t number, enum strait_status status)
{
    struct proxy_peer *peer = link->owner;
    (void)owner;
    if (status == STRAIT_OK)
        store(&peer->from.flags->full[number % RING_SLOTS].number, number + 1);
}

static bool handle_taken(struct proxy_peer *peer, const struct frame *frame)
{
    const uint32_t slot = (frame->a - 1) % RING_SLOTS;
    if (frame->a == 0 || frame->a != peer->sent[slot])
        return false;
    store(&peer->to.flags->taken[slot].number, frame->a);
    return true;
}

static bool handle_record(struct proxy_peer *peer, const struct frame *frame)
{
    if (frame->small > 1 || frame->a < peer->least_records[frame->small] || frame->a >= UINT64_MAX / 2)
        return false;
    struct ring_record *record = &peer->from.flags->records[frame->small][frame->a % RING_RECORDS];
    peer->least_records[frame->small] = frame->a + 1;
    store(&record->number, 0);
    store(&record->first, frame->b);
    store(&record->number, frame->a + 1);
    return true;
}

/* A frame without values. False: it is invalid. */
static bool handle(struct proxy_peer *peer, const struct frame *frame)
{
    switch (frame->type) {
    case FRAME_TAKEN:
        return handle_taken(peer, frame);
    case FRAME_RECORD:
        return handle_record(peer, frame);
    case FRAME_LEAVE:
        peer->left = true;
        return true;
    case FRAME_FLUSH:
        if (peer->answered)
            return false;
        peer->answered = true;
        send_frame(peer, &(struct frame){.type = FRAME_FLUSHED}, NULL, 0);
        return true;
    case FRAME_FLUSHED:
        peer->flushed = peer->flushing;
        return peer->flushing;
    case FRAME_ASK:
    case FRAME_PROMISE:
    case FRAME_STEP:
        return peer->on_consensus(peer->consensus_arg, peer->rank, frame);
    default:
        return false;
    }
}

static struct landing on_arriving(void *owner, struct link *link, const void *header, size_t header_size, size_t size)
{
    struct proxy_peer *peer = link->owner;
    struct landing landing = {0};
    (void)owner;
    const struct frame frame = header_size == FRAME_BYTES ? frame_get(header) : (struct frame){0};
    if (frame.type == FRAME_SLOT && frame.small == size)
        landing = begin_slot(peer, &frame);
    if (landing.address == NULL && (size > 0 || !handle(peer, &frame)))
        proxy_peer_end(peer, "has said what is not in order");
    return landing;
}

/* ---- The end of a link ------------------------------------------------------------------------------------------- */

void proxy_peer_end(struct proxy_peer *peer, const char *why)
{
    if (peer->link == NULL)
        return;
    if (!peer->left)
        peer->trouble = why;
    link_close(peer->link);
    peer->link = NULL;
}

static void on_broken(void *owner, struct link *link, const char *why)
{
    (void)owner, (void)why;
    proxy_peer_end(link->owner, "is not connected any more");
}

static void on_connected(void *owner, struct link *link)
{
    (void)owner;
    ((struct proxy_peer *)link->owner)->connected = true;
}

static void on_closed(void *owner, struct link *link)
{
    (void)link;
    --*(unsigned *)owner;
}

const struct transport_events proxy_events = {
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .connected = on_connected,
    .broken = on_broken,
    .closed = on_closed,
};

/* ---- All links of a communicator --------------------------------------------------------------------------------- */

enum { TURNS_MAX = 16 };

static void lose(struct proxy *proxy, coll_result result, const char *why)
{
    proxy->lost = true;
    ccomm_fail(proxy->ccomm, result, why);
}

static void see_end(struct proxy *proxy, struct proxy_peer *peer)
{
    peer->gone = true;
    if (peer->trouble != NULL && proxy->settled && !proxy->finished && !proxy->lost) {
        char why[120];
        snprintf(why, sizeof(why), "rank %d, on another host, %s", peer->rank, peer->trouble);
        lose(proxy, COLL_REMOTE_ERROR, why);
    }
    proxy->starved |= !consensus_rank_gone(&proxy->agree, peer->rank);
}

static void send_all(struct proxy *proxy, struct proxy_peer *peer)
{
    if (proxy->finished && !peer->leaving) {
        send_frame(peer, &(struct frame){.type = FRAME_LEAVE}, NULL, 0);
        peer->leaving = true;
    }
    proxy_peer_send(peer);
    if (proxy->flushing && !peer->flushing && is_quiet(peer)) {
        peer->flushing = true;
        send_frame(peer, &(struct frame){.type = FRAME_FLUSH}, NULL, 0);
    }
}

/* Carries what it can. True: there was something. */
static bool progress(struct proxy *proxy)
{
    const int ranks = proxy->ccomm->ranks;
    bool moved = false, more = true;
    proxy->starved |= !consensus_ask(&proxy->agree);
    for (unsigned turn = 0; more && turn < TURNS_MAX; turn++) {
        for (int rank = 0; rank < ranks; rank++)
            if (proxy->peers[rank].link != NULL && proxy->peers[rank].connected)
                send_all(proxy, &proxy->peers[rank]);
        more = transport_progress(proxy->transport);
        moved |= more;
    }
    for (int rank = 0; rank < ranks; rank++) {
        struct proxy_peer *peer = &proxy->peers[rank];
        proxy->starved |= peer->starved;
        if (peer->link == NULL && !peer->gone)
            see_end(proxy, peer);
    }
    if (proxy->starved && !proxy->lost)
        lose(proxy, COLL_INTERNAL_ERROR, "no memory for what ranks tell each other");
    if (proxy->lost) /* also stops what was launched since */
        ccomm_abort_kernels(proxy->ccomm);
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
    struct pollfd ready[LINKED_MAX];
    nfds_t count = 0;
    long nanoseconds = busy ? SOON_NS : LATER_NS;
    for (struct proxy *at = thread.first; at != NULL && count < LINKED_MAX; at = at->next) {
        if (transport_arm(at->transport) == STRAIT_ERR_AGAIN)
            nanoseconds = 0;
        ready[count++] = (struct pollfd){.fd = transport_fd(at->transport), .events = POLLIN};
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
    for (struct proxy *at = thread.first; at != NULL; at = at->next)
        transport_after_fork(at->transport);
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

/* How long joining may wait for connections, leaving for data under way, and after an abort for the last frame. */
enum { LOOK_NS = 1000000, JOIN_MS = 10000, LEAVE_LOOKS_MAX = 10000, ABORT_LOOKS_MAX = 100 };

static struct proxy_ring ring_of(const struct coll_ccomm *ccomm, int from, int to)
{
    const struct shared_resources *shared = &ccomm->shared;
    const uint32_t number = ring_number(&shared->rings, (uint32_t)from, (uint32_t)to);
    uint8_t *slots = (uint8_t *)shared->pinned + ring_flags_size((uint32_t)ccomm->ranks);
    return (struct proxy_ring){(struct ring_flags *)shared->pinned + number,
                               slots + (size_t)number * RING_SLOTS * shared->rings.slot_bytes};
}

static bool on_frame(void *arg, int rank, const struct frame *frame)
{
    return consensus_receive(&((struct proxy *)arg)->agree, rank, frame);
}

static bool send_consensus(void *arg, int rank, const struct frame *frame)
{
    struct proxy_peer *peer = &((struct proxy *)arg)->peers[rank];
    send_frame(peer, frame, NULL, 0);
    return !peer->starved;
}

bool proxy_prepare(struct coll_ccomm *ccomm, struct proxy_info *info)
{
    struct proxy *proxy = calloc(1, sizeof(*proxy) + (size_t)ccomm->ranks * sizeof(proxy->peers[0]));
    const struct transport_arena arena = {.fd = -1, .memory = TRANSPORT_HOST};
    char host[ADDRESS_TEXT], options[ADDRESS_TEXT + 32];
    if (proxy == NULL)
        return false;
    ccomm->shared.proxy = proxy;
    proxy->ccomm = ccomm;
    proxy->agree.send = send_consensus;
    proxy->agree.send_arg = proxy;
    if (!address_choose(host))
        return false;
    snprintf(options, sizeof(options), "listen=%s connections=1", host);
    if (transport_create(&transport_tcp, &arena, &proxy_events, &proxy->links, options, &proxy->transport) != STRAIT_OK)
        return false;
    for (int rank = 0; rank < ccomm->ranks; rank++) {
        struct proxy_peer *peer = &proxy->peers[rank];
        *peer = (struct proxy_peer){.rank = rank, .on_consensus = on_frame, .consensus_arg = proxy};
        peer->gone = host_groups_same(&ccomm->shared.groups, rank, ccomm->rank);
        if (peer->gone)
            continue;
        if (link_open(proxy->transport, -1, rank > ccomm->rank ? LINK_DIALLED : LINK_ACCEPTED, peer, &peer->link) !=
            STRAIT_OK)
            return false;
        proxy->links++;
        (void)link_address(peer->link, info->addresses[rank], TCP_ADDRESS_BYTES(1));
    }
    return true;
}

bool proxy_connect(struct coll_ccomm *ccomm, int rank, const struct proxy_info *info)
{
    struct proxy_peer *peer = &ccomm->shared.proxy->peers[rank];
    if (peer->link == NULL)
        return true;
    peer->slot_bytes = ccomm->shared.rings.slot_bytes;
    peer->to = ring_of(ccomm, ccomm->rank, rank);
    peer->from = ring_of(ccomm, rank, ccomm->rank);
    return link_connect(peer->link, info->addresses[ccomm->rank], TCP_ADDRESS_BYTES(1)) == STRAIT_OK;
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

bool proxy_await(struct coll_ccomm *ccomm)
{
    struct proxy *proxy = ccomm->shared.proxy;
    const int64_t until = now_ms() + JOIN_MS;
    bool all = false, ended = false;
    while (!all && !ended && now_ms() < until) {
        all = true;
        pthread_mutex_lock(&thread.lock);
        for (int rank = 0; rank < ccomm->ranks; rank++) {
            const struct proxy_peer *peer = &proxy->peers[rank];
            all &= peer->connected || (peer->gone && peer->trouble == NULL);
            ended |= peer->trouble != NULL;
        }
        pthread_mutex_unlock(&thread.lock);
        if (!all)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return all && !ended;
}

bool proxy_settle(struct coll_ccomm *ccomm)
{
    struct proxy *proxy = ccomm->shared.proxy;
    bool good = true;
    pthread_mutex_lock(&thread.lock);
    proxy->settled = true;
    for (int rank = 0; rank < ccomm->ranks; rank++) {
        proxy->connected_to += proxy->peers[rank].connected;
        good &= proxy->peers[rank].trouble == NULL;
    }
    pthread_mutex_unlock(&thread.lock);
    return good;
}

void proxy_describe(const struct coll_ccomm *ccomm, char *text, size_t size)
{
    const struct proxy *proxy = ccomm->shared.proxy;
    snprintf(text, size, "%.0d%s", proxy != NULL ? proxy->connected_to : 0,
             proxy != NULL ? " ranks on other hosts by TCP, " : "");
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
    bool all = true;
    for (int rank = 0; rank < proxy->ccomm->ranks && all; rank++) {
        const struct proxy_peer *peer = &proxy->peers[rank];
        all = peer->link == NULL || (proxy->flushing ? peer->flushed : peer->leaving && peer->frames == 0);
    }
    return all;
}

static void shut(struct proxy *proxy)
{
    for (int rank = 0; rank < proxy->ccomm->ranks; rank++)
        proxy_peer_end(&proxy->peers[rank], NULL);
    while (proxy->links > 0)
        (void)transport_progress(proxy->transport);
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
    ccomm->shared.proxy = NULL;
    free(proxy);
}
