#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "collective/address.h"
#include "collective/engine/overflow_tcp.h"
#include "collective/engine/ccomm.h"
#include "internal/bytes.h"
#include "internal/socket_address.h"

/* magic, from, to, secret */
enum { AUTH_BYTES = 8 + 4 + 4 + AUTH_SECRET_BYTES, UNAUTHENTICATED_MAX = 128 };
#define CALLS   UINT64_C(0x314c4c4143525453) /* "STRCALL1" */
#define ANSWERS UINT64_C(0x31534e4152525453) /* "STRRANS1" */

static void put(uint8_t *proof, uint64_t magic, int from, int to, const struct peer_endpoint *card)
{
    store_le64(proof, magic);
    store_le32(proof + 8, (uint32_t)from);
    store_le32(proof + 12, (uint32_t)to);
    memcpy(proof + 16, card->secret, AUTH_SECRET_BYTES);
}

/* In constant time, so as not to reveal how much of it is right. */
static bool is_it(const uint8_t *proof, uint64_t magic, int from, int to, const struct peer_endpoint *card)
{
    uint8_t right[AUTH_BYTES];
    unsigned differs = 0;
    put(right, magic, from, to, card);
    for (unsigned i = 0; i < AUTH_BYTES; i++)
        differs |= right[i] ^ proof[i];
    return differs == 0;
}

/* Does not block: a new connection's buffer has room. */
static bool auth_send(int socket, uint64_t magic, int from, int to, const struct peer_endpoint *card)
{
    uint8_t proof[AUTH_BYTES];
    put(proof, magic, from, to, card);
    return send(socket, proof, AUTH_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) == AUTH_BYTES;
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

int auth_connect(const struct peer_endpoint *card, int from, int to)
{
    const int connected = address_connect(&card->address, AUTH_TIMEOUT_MS);
    if (connected < 0 || auth_send(connected, CALLS, from, to, card))
        return connected;
    close(connected);
    return -1;
}

bool auth_await(int connected, const struct peer_endpoint *own, int from, int to)
{
    const int64_t until = now_ms() + AUTH_TIMEOUT_MS;
    uint8_t answer[AUTH_BYTES];
    size_t got = 0;
    for (int64_t left = AUTH_TIMEOUT_MS; got < AUTH_BYTES && left > 0; left = until - now_ms()) {
        struct pollfd ready = {.fd = connected, .events = POLLIN};
        if (poll(&ready, 1, (int)left) < 0 && errno != EINTR)
            return false;
        const ssize_t size = recv(connected, answer + got, AUTH_BYTES - got, MSG_DONTWAIT);
        if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        got += size > 0 ? (size_t)size : 0;
    }
    return got == AUTH_BYTES && is_it(answer, ANSWERS, from, to, own);
}

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

int auth_listen(struct peer_endpoint *card)
{
    memset(card, 0, sizeof(*card));
    if (getrandom(card->secret, AUTH_SECRET_BYTES, 0) != AUTH_SECRET_BYTES)
        return -1;
    return address_listen(&card->address);
}

struct unauthenticated {
    int socket;
    size_t got;
    uint8_t said[AUTH_BYTES];
};

struct acceptor {
    int listener, to;
    const struct peer_endpoint *cards;
    uint64_t awaited;
    int *sockets;
    struct unauthenticated pending[UNAUTHENTICATED_MAX];
    unsigned count;
};

/* If there is no room, the connection that has been open longest is dropped. */
static void conn_accept(struct acceptor *acceptor)
{
    const int socket = accept4(acceptor->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0)
        return;
    if (acceptor->count == UNAUTHENTICATED_MAX) {
        close(acceptor->pending[0].socket);
        memmove(acceptor->pending, acceptor->pending + 1, --acceptor->count * sizeof(acceptor->pending[0]));
    }
    acceptor->pending[acceptor->count++] = (struct unauthenticated){.socket = socket};
}

/* False: it is a stranger. */
static bool conn_authenticate(struct acceptor *acceptor, const struct unauthenticated *conn)
{
    const uint32_t from = load_le32(conn->said + 8);
    if (from >= 64 || (acceptor->awaited >> from & 1) == 0 ||
        !is_it(conn->said, CALLS, (int)from, acceptor->to, &acceptor->cards[acceptor->to]) ||
        !auth_send(conn->socket, ANSWERS, (int)from, acceptor->to, &acceptor->cards[from]))
        return false;
    acceptor->sockets[from] = conn->socket;
    acceptor->awaited &= ~(UINT64_C(1) << from);
    return true;
}

/* False: the connection has been accepted or dropped. */
static bool conn_receive(struct acceptor *acceptor, struct unauthenticated *conn)
{
    const ssize_t size = recv(conn->socket, conn->said + conn->got, AUTH_BYTES - conn->got, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    conn->got += size > 0 ? (size_t)size : 0;
    if (size > 0 && conn->got < AUTH_BYTES)
        return true;
    if (size <= 0 || !conn_authenticate(acceptor, conn))
        close(conn->socket);
    return false;
}

static void look(struct acceptor *acceptor, int milliseconds)
{
    struct pollfd ready[UNAUTHENTICATED_MAX + 1];
    const unsigned count = acceptor->count;
    for (unsigned i = 0; i < count; i++)
        ready[i] = (struct pollfd){.fd = acceptor->pending[i].socket, .events = POLLIN};
    ready[count] = (struct pollfd){.fd = acceptor->listener, .events = POLLIN};
    (void)poll(ready, count + 1, milliseconds);
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (conn_receive(acceptor, &acceptor->pending[i]))
            acceptor->pending[kept++] = acceptor->pending[i];
    acceptor->count = kept;
    conn_accept(acceptor);
}

bool auth_accept(int listener, const struct peer_endpoint *cards, int to, uint64_t awaited, int *sockets)
{
    struct acceptor acceptor = {.listener = listener, .to = to, .cards = cards, .awaited = awaited, .sockets = sockets};
    const int64_t until = now_ms() + AUTH_TIMEOUT_MS;
    for (int64_t left = AUTH_TIMEOUT_MS; acceptor.awaited != 0 && left > 0; left = until - now_ms())
        look(&acceptor, (int)left);
    for (unsigned i = 0; i < acceptor.count; i++)
        close(acceptor.pending[i].socket);
    return acceptor.awaited == 0;
}

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

/* ---- Who decides ------------------------------------------------------------------------------------------------- */

/* Sends to all ranks that are asked and still there. */
static bool say_all(struct level_consensus *agree, uint32_t number, const struct frame *frame, uint64_t *told)
{
    bool good = true;
    for (int rank = 0; rank < agree->ccomm->ranks; rank++) {
        if (!op_class_is_asked(agree->ccomm, number, rank) || (agree->gone >> rank & 1) != 0)
            continue;
        good &= agree->say(agree->speaker, rank, frame);
        *told |= UINT64_C(1) << rank;
    }
    return good;
}

/* Called when all have promised. */
static bool settle(struct level_consensus *agree, uint32_t number)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[number];
    uint64_t told = 0;
    op_classes_lock(classes);
    levels_step(&op_class->level, op_class->overflow, agree->classes[number].from);
    op_class->limit = 0;
    const struct level_span now = op_class->level.now;
    op_classes_unlock(classes);
    return say_all(agree, number,
                   &(struct frame){.type = FRAME_STEP, .small = number, .a = now.from, .b = now.until, .c = now.level},
                   &told);
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
        good &= say_all(agree, number, &(struct frame){.type = FRAME_ASK, .small = number}, &agreement->missing);
        if (agreement->missing == 0)
            good &= settle(agree, number);
    }
    return good;
}

static bool hear_promise(struct level_consensus *agree, int peer, const struct frame *frame)
{
    struct class_consensus *agreement = &agree->classes[frame->small];
    if ((agreement->missing >> peer & 1) == 0 || frame->a >= UINT64_MAX / 2)
        return false;
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
    const uint64_t limit = op_class->level.issued + OP_CLASS_AHEAD;
    if (!promised)
        op_class->limit = limit;
    op_classes_unlock(classes);
    return !promised &&
           agree->say(agree->speaker, peer, &(struct frame){.type = FRAME_PROMISE, .small = number, .a = limit});
}

static bool take_over(struct level_consensus *agree, const struct frame *frame)
{
    struct op_classes *classes = agree->ccomm->shared.classes;
    struct op_class *op_class = &classes->classes[frame->small];
    op_classes_lock(classes);
    const bool good = op_class->limit != 0 && frame->a >= op_class->limit && frame->b >= frame->a &&
                      frame->b < UINT64_MAX / 2 && frame->c <= 1024;
    if (good) {
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
        return decider == ccomm->rank && hear_promise(agree, peer, frame);
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

/* How often it polls memory that kernels write, as they wake nobody: often for a while after anything moved. Sockets
 * wake it at once. */
enum { SOON_NS = 20000, LATER_NS = 1000000, BUSY_TURNS = 2000, SOCKETS_MAX = 1024 };

/* All of it is under the lock. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct overflow_tcp *first;
    pid_t process; /* in which the thread runs; 0: it has not been started */
    bool over;     /* the process ends: CUDA's memory may be gone already */
} tcp_thread = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Sockets beyond SOCKETS_MAX are polled as often as kernels' memory is. */
static nfds_t list_sockets(struct pollfd *sockets)
{
    nfds_t count = 0;
    for (const struct overflow_tcp *link = tcp_thread.first; link != NULL; link = link->next)
        for (int rank = 0; rank < link->ccomm->ranks && count < SOCKETS_MAX; rank++)
            if (link->conns[rank].socket >= 0)
                sockets[count++] =
                    (struct pollfd){.fd = link->conns[rank].socket,
                                    .events = (short)(POLLIN | (link->conns[rank].blocked ? POLLOUT : 0))};
    return count;
}

/* Called with the lock held, and releases it meanwhile. */
static void rest(bool busy)
{
    static struct pollfd sockets[SOCKETS_MAX]; /* used by the thread alone */
    const nfds_t count = list_sockets(sockets);
    pthread_mutex_unlock(&tcp_thread.lock);
    (void)ppoll(sockets, count, &(struct timespec){.tv_nsec = busy ? SOON_NS : LATER_NS}, NULL);
    pthread_mutex_lock(&tcp_thread.lock);
}

static void *run(void *argument)
{
    unsigned quiet = BUSY_TURNS;
    (void)prctl(PR_SET_TIMERSLACK, 1000UL);
    pthread_mutex_lock(&tcp_thread.lock);
    while (!tcp_thread.over) {
        bool moved = false;
        while (tcp_thread.first == NULL && !tcp_thread.over)
            pthread_cond_wait(&tcp_thread.changed, &tcp_thread.lock);
        for (struct overflow_tcp *link = tcp_thread.first; link != NULL && !tcp_thread.over; link = link->next)
            moved |= overflow_tcp_progress(link);
        quiet = moved ? 0 : quiet + (quiet < BUSY_TURNS);
        if (!tcp_thread.over)
            rest(quiet < BUSY_TURNS);
    }
    pthread_mutex_unlock(&tcp_thread.lock);
    return argument;
}

/* Registered after CUDA's exit handler, so it runs before that. In a forked child the lock is as it was at the fork. */
static void stop(void)
{
    if (tcp_thread.process != getpid())
        return;
    pthread_mutex_lock(&tcp_thread.lock);
    tcp_thread.over = true;
    pthread_mutex_unlock(&tcp_thread.lock);
}

/* A child closes its copies of the connections: otherwise they would not end with its parent. */
static void before_fork(void)
{
    pthread_mutex_lock(&tcp_thread.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&tcp_thread.lock);
}

static void be_child(void)
{
    for (struct overflow_tcp *link = tcp_thread.first; link != NULL; link = link->next)
        for (int rank = 0; rank < link->ccomm->ranks; rank++)
            if (link->conns[rank].socket >= 0)
                close(link->conns[rank].socket);
    tcp_thread.first = NULL;
    tcp_thread.process = 0;
    pthread_mutex_unlock(&tcp_thread.lock);
}

static bool prepare(void)
{
    static bool prepared;
    if (!prepared)
        prepared = atexit(stop) == 0 && pthread_atfork(before_fork, after_fork, be_child) == 0;
    return prepared;
}

/* All signals are blocked: they are for the program's threads. */
static bool start(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = prepare() && pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    tcp_thread.process = started ? getpid() : 0;
    return started;
}

bool tcp_thread_is_ours(void)
{
    return tcp_thread.process == getpid();
}

bool tcp_thread_add(struct overflow_tcp *link)
{
    pthread_mutex_lock(&tcp_thread.lock);
    const bool good = tcp_thread.process == getpid() || start();
    if (good) {
        link->progressed = true;
        link->next = tcp_thread.first;
        tcp_thread.first = link;
        pthread_cond_signal(&tcp_thread.changed);
    }
    pthread_mutex_unlock(&tcp_thread.lock);
    return good;
}

void tcp_thread_finish(struct overflow_tcp *link)
{
    pthread_mutex_lock(&tcp_thread.lock);
    link->finished = true;
    pthread_mutex_unlock(&tcp_thread.lock);
}

bool tcp_thread_remove(struct overflow_tcp *link, bool (*done)(const struct overflow_tcp *link))
{
    if (!link->progressed || !tcp_thread_is_ours())
        return true;
    pthread_mutex_lock(&tcp_thread.lock);
    const bool drops = done == NULL || tcp_thread.over || done(link);
    for (struct overflow_tcp **at = &tcp_thread.first; *at != NULL && drops; at = &(*at)->next)
        if (*at == link) {
            *at = link->next;
            break;
        }
    link->progressed = !drops;
    pthread_mutex_unlock(&tcp_thread.lock);
    return drops;
}

/* How long leaving may wait for data under way, and after an abort for the last frame. */
enum { LEAVE_LOOK_NS = 1000000, LEAVE_LOOKS_MAX = 10000, ABORT_LOOKS_MAX = 100 };

static bool is_apart(const struct coll_ccomm *ccomm, int rank)
{
    return !host_groups_same(&ccomm->shared.groups, rank, ccomm->rank);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

bool overflow_tcp_prepare(struct coll_ccomm *ccomm, struct peer_endpoint *card)
{
    struct overflow_tcp *link = calloc(1, sizeof(*link) + (size_t)ccomm->ranks * sizeof(link->conns[0]));
    if (link == NULL)
        return false;
    ccomm->shared.link = link;
    link->ccomm = ccomm;
    for (int rank = 0; rank < ccomm->ranks; rank++)
        link->conns[rank] = (struct tcp_conn){.socket = -1, .peer = rank};
    link->listener = auth_listen(card);
    return link->listener >= 0;
}

bool overflow_tcp_connect(struct coll_ccomm *ccomm, const struct peer_endpoint *cards)
{
    struct overflow_tcp *link = ccomm->shared.link;
    for (int rank = ccomm->rank + 1; rank < ccomm->ranks; rank++) {
        if (!is_apart(ccomm, rank))
            continue;
        link->conns[rank].socket = auth_connect(&cards[rank], ccomm->rank, rank);
        if (link->conns[rank].socket < 0)
            return false;
    }
    return true;
}

bool overflow_tcp_accept(struct coll_ccomm *ccomm, const struct peer_endpoint *cards)
{
    struct overflow_tcp *link = ccomm->shared.link;
    int sockets[HOST_RANKS_MAX];
    uint64_t awaited = 0;
    for (int rank = 0; rank < ccomm->rank; rank++) {
        sockets[rank] = -1;
        awaited |= is_apart(ccomm, rank) ? UINT64_C(1) << rank : 0;
    }
    const bool good = auth_accept(link->listener, cards, ccomm->rank, awaited, sockets);
    for (int rank = 0; rank < ccomm->rank; rank++)
        link->conns[rank].socket = sockets[rank];
    close(link->listener);
    link->listener = -1;
    return good;
}

bool overflow_tcp_await(struct coll_ccomm *ccomm, const struct peer_endpoint *own)
{
    const struct overflow_tcp *link = ccomm->shared.link;
    for (int rank = ccomm->rank + 1; rank < ccomm->ranks; rank++)
        if (is_apart(ccomm, rank) && !auth_await(link->conns[rank].socket, own, ccomm->rank, rank))
            return false;
    return true;
}

static struct tcp_ring ring_of(const struct coll_ccomm *ccomm, int from, int to)
{
    const struct shared_resources *shared = &ccomm->shared;
    const uint32_t number = ring_number(&shared->rings, (uint32_t)from, (uint32_t)to);
    uint8_t *slots = (uint8_t *)shared->pinned + ring_flags_size((uint32_t)ccomm->ranks);
    return (struct tcp_ring){(struct ring_flags *)shared->pinned + number,
                             slots + (size_t)number * RING_SLOTS * shared->rings.slot_bytes};
}

static bool on_frame(void *hearer, int peer, const struct frame *frame)
{
    return consensus_receive(&((struct overflow_tcp *)hearer)->agree, peer, frame);
}

static bool send_frame(void *speaker, int peer, const struct frame *frame)
{
    return tcp_queue_frame(&((struct overflow_tcp *)speaker)->conns[peer], frame);
}

bool overflow_tcp_start(struct coll_ccomm *ccomm)
{
    struct overflow_tcp *link = ccomm->shared.link;
    for (int rank = 0; rank < ccomm->ranks; rank++) {
        struct tcp_conn *conn = &link->conns[rank];
        if (conn->socket < 0)
            continue;
        address_tune(conn->socket);
        link->peers++;
        conn->slot_bytes = ccomm->shared.rings.slot_bytes;
        conn->to = ring_of(ccomm, ccomm->rank, rank);
        conn->from = ring_of(ccomm, rank, ccomm->rank);
        conn->hear = on_frame;
        conn->hearer = link;
    }
    link->agree.say = send_frame;
    link->agree.speaker = link;
    return consensus_init(&link->agree, ccomm) && tcp_thread_add(link);
}

void overflow_tcp_describe(const struct coll_ccomm *ccomm, char *text, size_t size)
{
    const struct overflow_tcp *link = ccomm->shared.link;
    snprintf(text, size, "%.0d%s", link != NULL ? link->peers : 0,
             link != NULL ? " ranks on other hosts by TCP, " : "");
}

/* ---- A turn of the thread ---------------------------------------------------------------------------------------- */

static void lose(struct overflow_tcp *link, const struct tcp_conn *conn)
{
    char why[120];
    link->lost = true;
    snprintf(why, sizeof(why), "rank %d, on another host, %s", conn->peer, conn->trouble);
    ccomm_fail(link->ccomm, COLL_REMOTE_ERROR, why);
}

static bool turn_one(struct overflow_tcp *link, struct tcp_conn *conn)
{
    if (link->finished && !conn->leaving)
        conn->leaving = tcp_queue_frame(conn, &(struct frame){.type = FRAME_LEAVE});
    const bool moved = tcp_progress(conn);
    if (conn->socket >= 0)
        return moved;
    if (conn->trouble != NULL && !link->finished && !link->lost)
        lose(link, conn);
    if (!consensus_rank_gone(&link->agree, conn->peer))
        link->starved = true;
    return true;
}

bool overflow_tcp_progress(struct overflow_tcp *link)
{
    bool moved = false;
    link->starved |= !consensus_ask(&link->agree);
    for (int rank = 0; rank < link->ccomm->ranks; rank++)
        if (link->conns[rank].socket >= 0)
            moved |= turn_one(link, &link->conns[rank]);
    if (link->starved && !link->lost) {
        link->lost = true;
        ccomm_fail(link->ccomm, COLL_INTERNAL_ERROR, "no memory for what ranks tell each other");
    }
    if (link->lost) /* also stops what was launched since */
        ccomm_abort_kernels(link->ccomm);
    return moved;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void overflow_tcp_finish(struct coll_ccomm *ccomm)
{
    if (ccomm->shared.link != NULL && tcp_thread_is_ours())
        tcp_thread_finish(ccomm->shared.link);
}

static bool all_are(const struct overflow_tcp *link, bool (*what)(const struct tcp_conn *))
{
    bool all = true;
    for (int rank = 0; rank < link->ccomm->ranks && all; rank++)
        all = link->conns[rank].socket < 0 || (link->conns[rank].leaving && what(&link->conns[rank]));
    return all;
}

static bool has_arrived(const struct overflow_tcp *link)
{
    return all_are(link, tcp_has_flushed);
}

static bool has_said(const struct overflow_tcp *link)
{
    return all_are(link, tcp_has_sent);
}

void overflow_tcp_leave(struct coll_ccomm *ccomm)
{
    struct overflow_tcp *link = ccomm->shared.link;
    if (link == NULL || !link->progressed || !tcp_thread_is_ours())
        return;
    tcp_thread_finish(link);
    const int most = ccomm->aborted ? ABORT_LOOKS_MAX : LEAVE_LOOKS_MAX;
    for (int looks = 0; looks < most && !tcp_thread_remove(link, ccomm->aborted ? has_said : has_arrived); looks++)
        nanosleep(&(struct timespec){.tv_nsec = LEAVE_LOOK_NS}, NULL);
    (void)tcp_thread_remove(link, NULL);
    for (int rank = 0; rank < ccomm->ranks; rank++)
        tcp_close(&link->conns[rank]);
}

void overflow_tcp_end(struct coll_ccomm *ccomm)
{
    struct overflow_tcp *link = ccomm->shared.link;
    if (link == NULL)
        return;
    (void)tcp_thread_remove(link, NULL);
    for (int rank = 0; rank < ccomm->ranks; rank++)
        tcp_close(&link->conns[rank]);
    if (link->listener >= 0)
        close(link->listener);
    consensus_fini(&link->agree);
    ccomm->shared.link = NULL;
    free(link);
}

/* The most that one connection sends or receives before others get their turn. */
enum { TURN_BYTES = 4 << 20 };

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *word, uint64_t x)
{
    __atomic_store_n(word, x, __ATOMIC_SEQ_CST);
}

void tcp_close(struct tcp_conn *conn)
{
    if (conn->socket >= 0)
        close(conn->socket);
    conn->socket = -1;
    conn->out.left = conn->out.size = conn->out.done = 0;
    free(conn->queue);
    conn->queue = NULL;
    conn->queued = conn->queue_room = 0;
}

static void fail(struct tcp_conn *conn, const char *why)
{
    if (!conn->left)
        conn->trouble = why;
    tcp_close(conn);
}

/* ---- Sending frames ---------------------------------------------------------------------------------------------- */

static bool has_room(const struct tcp_tx *out)
{
    return out->size + FRAME_BYTES <= sizeof(out->words);
}

static void add(struct tcp_tx *out, const struct frame *frame)
{
    frame_put(out->words + out->size, frame);
    out->size += FRAME_BYTES;
}

bool tcp_queue_frame(struct tcp_conn *conn, const struct frame *frame)
{
    if (conn->socket < 0)
        return true;
    if (conn->queued == conn->queue_room) {
        const uint32_t room = conn->queue_room != 0 ? 2 * conn->queue_room : 16;
        struct frame *queue = realloc(conn->queue, room * sizeof(*queue));
        if (queue == NULL)
            return false;
        conn->queue = queue;
        conn->queue_room = room;
    }
    conn->queue[conn->queued++] = *frame;
    return true;
}

static void add_queued(struct tcp_conn *conn)
{
    uint32_t taken = 0;
    for (; taken < conn->queued && has_room(&conn->out); taken++)
        add(&conn->out, &conn->queue[taken]);
    conn->queued -= taken;
    if (taken > 0)
        memmove(conn->queue, conn->queue + taken, conn->queued * sizeof(*conn->queue));
}

static void add_taken(struct tcp_conn *conn)
{
    for (uint32_t slot = 0; slot < RING_SLOTS && has_room(&conn->out); slot++) {
        const uint64_t taken = load(&conn->from.flags->taken[slot].number);
        if (taken == conn->out.told[slot])
            continue;
        conn->out.told[slot] = taken;
        add(&conn->out, &(struct frame){.type = FRAME_TAKEN, .a = taken});
    }
}

/* The record with the next number, or a later one if that was overwritten. False: there is none yet. */
static bool next_record(struct tcp_conn *conn, uint32_t pairs, struct frame *frame)
{
    uint64_t *next = &conn->out.records[pairs];
    for (;;) {
        const struct ring_record *record = &conn->to.flags->records[pairs][*next % RING_RECORDS];
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

static void add_records(struct tcp_conn *conn)
{
    struct frame frame;
    for (uint32_t pairs = 0; pairs < 2; pairs++)
        while (has_room(&conn->out) && next_record(conn, pairs, &frame))
            add(&conn->out, &frame);
}

/* The full slot with the lowest number that has not been sent; RING_SLOTS: there is none. */
static uint32_t next_slot(const struct tcp_conn *conn)
{
    uint32_t found = RING_SLOTS;
    uint64_t least = UINT64_MAX;
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++) {
        const uint64_t full = load(&conn->to.flags->full[slot].number);
        if (full == conn->out.sent[slot] || full >= least)
            continue;
        found = slot;
        least = full;
    }
    return found;
}

static void add_slot(struct tcp_conn *conn)
{
    const uint32_t slot = next_slot(conn);
    if (slot == RING_SLOTS || !has_room(&conn->out))
        return;
    const struct ring_flag *full = &conn->to.flags->full[slot];
    const uint64_t number = load(&full->number);
    conn->out.sent[slot] = number;
    conn->out.values = conn->to.slots + (size_t)slot * conn->slot_bytes;
    conn->out.left = full->bytes < conn->slot_bytes ? full->bytes : conn->slot_bytes;
    add(&conn->out, &(struct frame){.type = FRAME_SLOT, .small = (uint32_t)conn->out.left, .a = number - 1});
}

/* Records go before the slots of their messages, and words before values, which take a while to send. */
static void gather(struct tcp_conn *conn)
{
    struct tcp_tx *out = &conn->out;
    if (out->size > 0 || out->left > 0)
        return;
    add_queued(conn);
    add_taken(conn);
    add_records(conn);
    add_slot(conn);
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void sent(struct tcp_tx *out, size_t bytes)
{
    const size_t words = bytes < out->size - out->done ? bytes : out->size - out->done;
    out->done += (uint32_t)words;
    if (bytes > words) { /* values is NULL while only words are sent */
        out->values += bytes - words;
        out->left -= bytes - words;
    }
    if (out->done == out->size)
        out->size = out->done = 0;
}

/* A send error does not end the connection: what the peer has said last is read first. */
static size_t send_some(struct tcp_conn *conn)
{
    struct tcp_tx *out = &conn->out;
    gather(conn);
    struct iovec parts[2] = {{out->words + out->done, out->size - out->done},
                             {(void *)(uintptr_t)out->values, out->left}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (parts[0].iov_len + parts[1].iov_len == 0)
        return 0;
    const ssize_t size = sendmsg(conn->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    conn->blocked = size < 0 && errno == EAGAIN;
    if (size > 0)
        sent(out, (size_t)size);
    return size > 0 ? (size_t)size : 0;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The slot is free, as the peer fills it again only after it was told. */
static bool begin_slot(struct tcp_conn *conn, const struct frame *frame)
{
    struct tcp_rx *in = &conn->in;
    const uint32_t slot = frame->a % RING_SLOTS;
    if (frame->small == 0 || frame->small > conn->slot_bytes || frame->a >= UINT64_MAX / 2 ||
        frame->a < in->filled[slot] || conn->out.told[slot] != in->filled[slot])
        return false;
    in->values = conn->from.slots + (size_t)slot * conn->slot_bytes;
    in->left = frame->small;
    return true;
}

static void end_slot(struct tcp_conn *conn)
{
    struct tcp_rx *in = &conn->in;
    const uint32_t slot = in->frame.a % RING_SLOTS;
    struct ring_flag *full = &conn->from.flags->full[slot];
    in->filled[slot] = in->frame.a + 1;
    full->bytes = in->frame.small;
    store(&full->number, in->frame.a + 1);
}

static bool hear_taken(struct tcp_conn *conn, const struct frame *frame)
{
    const uint32_t slot = (frame->a - 1) % RING_SLOTS;
    if (frame->a == 0 || frame->a != conn->out.sent[slot])
        return false;
    store(&conn->to.flags->taken[slot].number, frame->a);
    return true;
}

static bool hear_record(struct tcp_conn *conn, const struct frame *frame)
{
    if (frame->small > 1 || frame->a < conn->in.records[frame->small] || frame->a >= UINT64_MAX / 2)
        return false;
    struct ring_record *record = &conn->from.flags->records[frame->small][frame->a % RING_RECORDS];
    conn->in.records[frame->small] = frame->a + 1;
    store(&record->number, 0);
    store(&record->first, frame->b);
    store(&record->number, frame->a + 1);
    return true;
}

/* False: the frame is invalid. */
static bool hear(struct tcp_conn *conn, const struct frame *frame)
{
    switch (frame->type) {
    case FRAME_SLOT:
        return begin_slot(conn, frame);
    case FRAME_TAKEN:
        return hear_taken(conn, frame);
    case FRAME_RECORD:
        return hear_record(conn, frame);
    case FRAME_LEAVE:
        conn->left = true;
        return true;
    case FRAME_ASK:
    case FRAME_PROMISE:
    case FRAME_STEP:
        return conn->hear(conn->hearer, conn->peer, frame);
    default:
        return false;
    }
}

static void received(struct tcp_conn *conn, size_t bytes)
{
    struct tcp_rx *in = &conn->in;
    if (in->left > 0) {
        in->values += bytes;
        in->left -= bytes;
        if (in->left == 0)
            end_slot(conn);
        return;
    }
    in->got += (uint32_t)bytes;
    if (in->got < FRAME_BYTES)
        return;
    in->got = 0;
    in->frame = frame_get(in->head);
    if (!hear(conn, &in->frame))
        fail(conn, "has said what is not in order");
}

static size_t receive_some(struct tcp_conn *conn)
{
    struct tcp_rx *in = &conn->in;
    uint8_t *into = in->left > 0 ? in->values : in->head + in->got;
    const ssize_t size =
        recv(conn->socket, into, in->left > 0 ? in->left : (size_t)(FRAME_BYTES - in->got), MSG_DONTWAIT);
    if (size > 0)
        received(conn, (size_t)size);
    else if (size == 0 || (errno != EAGAIN && errno != EINTR))
        fail(conn, "is not connected any more");
    return size > 0 ? (size_t)size : 0;
}

/* ---- Both directions --------------------------------------------------------------------------------------------- */

bool tcp_progress(struct tcp_conn *conn)
{
    size_t moved = 0;
    for (size_t last = 1; last > 0 && moved < TURN_BYTES && conn->socket >= 0; moved += last) {
        last = receive_some(conn);
        if (conn->socket >= 0)
            last += send_some(conn);
    }
    return moved > 0;
}

static bool is_quiet(const struct tcp_conn *conn)
{
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++)
        if (load(&conn->to.flags->full[slot].number) != conn->out.sent[slot] ||
            load(&conn->from.flags->taken[slot].number) != conn->out.told[slot])
            return false;
    for (uint32_t pairs = 0; pairs < 2; pairs++)
        if (load(&conn->to.flags->records[pairs][conn->out.records[pairs] % RING_RECORDS].number) >
            conn->out.records[pairs])
            return false;
    return true;
}

bool tcp_has_sent(const struct tcp_conn *conn)
{
    return conn->queued == 0 && conn->out.size == 0;
}

bool tcp_has_flushed(const struct tcp_conn *conn)
{
    int waiting = 0;
    return tcp_has_sent(conn) && conn->out.left == 0 && is_quiet(conn) &&
           ioctl(conn->socket, SIOCOUTQ, &waiting) == 0 && waiting == 0;
}
