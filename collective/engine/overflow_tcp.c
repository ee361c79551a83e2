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

/* magic, from, to, secret */
enum { GREETING = 8 + 4 + 4 + GREET_SECRET, GUESTS_MAX = 128 };
#define CALLS   UINT64_C(0x314c4c4143525453) /* "STRCALL1" */
#define ANSWERS UINT64_C(0x31534e4152525453) /* "STRRANS1" */

static void put(uint8_t *greeting, uint64_t magic, int from, int to, const struct peer_endpoint *card)
{
    store_le64(greeting, magic);
    store_le32(greeting + 8, (uint32_t)from);
    store_le32(greeting + 12, (uint32_t)to);
    memcpy(greeting + 16, card->secret, GREET_SECRET);
}

/* In constant time, so as not to reveal how much of it is right. */
static bool is_it(const uint8_t *greeting, uint64_t magic, int from, int to, const struct peer_endpoint *card)
{
    uint8_t right[GREETING];
    unsigned differs = 0;
    put(right, magic, from, to, card);
    for (unsigned i = 0; i < GREETING; i++)
        differs |= right[i] ^ greeting[i];
    return differs == 0;
}

/* Does not block: a new connection's buffer has room. */
static bool greet_say(int socket, uint64_t magic, int from, int to, const struct peer_endpoint *card)
{
    uint8_t greeting[GREETING];
    put(greeting, magic, from, to, card);
    return send(socket, greeting, GREETING, MSG_NOSIGNAL | MSG_DONTWAIT) == GREETING;
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

int auth_connect(const struct peer_endpoint *card, int from, int to)
{
    const int connected = address_connect(&card->address, GREET_MILLISECONDS);
    if (connected < 0 || greet_say(connected, CALLS, from, to, card))
        return connected;
    close(connected);
    return -1;
}

bool auth_await(int connected, const struct peer_endpoint *own, int from, int to)
{
    const int64_t until = now_ms() + GREET_MILLISECONDS;
    uint8_t answer[GREETING];
    size_t got = 0;
    for (int64_t left = GREET_MILLISECONDS; got < GREETING && left > 0; left = until - now_ms()) {
        struct pollfd ready = {.fd = connected, .events = POLLIN};
        if (poll(&ready, 1, (int)left) < 0 && errno != EINTR)
            return false;
        const ssize_t size = recv(connected, answer + got, GREETING - got, MSG_DONTWAIT);
        if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        got += size > 0 ? (size_t)size : 0;
    }
    return got == GREETING && is_it(answer, ANSWERS, from, to, own);
}

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

int auth_listen(struct peer_endpoint *card)
{
    memset(card, 0, sizeof(*card));
    if (getrandom(card->secret, GREET_SECRET, 0) != GREET_SECRET)
        return -1;
    return address_listen(&card->address);
}

struct guest {
    int socket;
    size_t got;
    uint8_t said[GREETING];
};

struct reception {
    int listener, to;
    const struct peer_endpoint *cards;
    uint64_t awaited;
    int *sockets;
    struct guest guests[GUESTS_MAX];
    unsigned count;
};

/* If there is no room, the guest that has been there longest goes. */
static void let_in(struct reception *here)
{
    const int socket = accept4(here->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0)
        return;
    if (here->count == GUESTS_MAX) {
        close(here->guests[0].socket);
        memmove(here->guests, here->guests + 1, --here->count * sizeof(here->guests[0]));
    }
    here->guests[here->count++] = (struct guest){.socket = socket};
}

/* False: it is a stranger. */
static bool welcome(struct reception *here, const struct guest *guest)
{
    const uint32_t from = load_le32(guest->said + 8);
    if (from >= 64 || (here->awaited >> from & 1) == 0 ||
        !is_it(guest->said, CALLS, (int)from, here->to, &here->cards[here->to]) ||
        !greet_say(guest->socket, ANSWERS, (int)from, here->to, &here->cards[from]))
        return false;
    here->sockets[from] = guest->socket;
    here->awaited &= ~(UINT64_C(1) << from);
    return true;
}

/* False: the guest has been let in or sent away. */
static bool listen_to(struct reception *here, struct guest *guest)
{
    const ssize_t size = recv(guest->socket, guest->said + guest->got, GREETING - guest->got, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    guest->got += size > 0 ? (size_t)size : 0;
    if (size > 0 && guest->got < GREETING)
        return true;
    if (size <= 0 || !welcome(here, guest))
        close(guest->socket);
    return false;
}

static void look(struct reception *here, int milliseconds)
{
    struct pollfd ready[GUESTS_MAX + 1];
    const unsigned count = here->count;
    for (unsigned i = 0; i < count; i++)
        ready[i] = (struct pollfd){.fd = here->guests[i].socket, .events = POLLIN};
    ready[count] = (struct pollfd){.fd = here->listener, .events = POLLIN};
    (void)poll(ready, count + 1, milliseconds);
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (listen_to(here, &here->guests[i]))
            here->guests[kept++] = here->guests[i];
    here->count = kept;
    let_in(here);
}

bool auth_accept(int listener, const struct peer_endpoint *cards, int to, uint64_t awaited, int *sockets)
{
    struct reception here = {.listener = listener, .to = to, .cards = cards, .awaited = awaited, .sockets = sockets};
    const int64_t until = now_ms() + GREET_MILLISECONDS;
    for (int64_t left = GREET_MILLISECONDS; here.awaited != 0 && left > 0; left = until - now_ms())
        look(&here, (int)left);
    for (unsigned i = 0; i < here.count; i++)
        close(here.guests[i].socket);
    return here.awaited == 0;
}

bool agree_begin(struct agree *agree, struct coll_ccomm *member)
{
    agree->member = member;
    agree->seen = agree->gone = 0;
    agree->kinds = calloc(kinds_count(member), sizeof(*agree->kinds));
    return agree->kinds != NULL;
}

void agree_end(struct agree *agree)
{
    free(agree->kinds);
    agree->kinds = NULL;
}

/* ---- Who decides ------------------------------------------------------------------------------------------------- */

/* Sends to all ranks that are asked and still there. */
static bool say_all(struct agree *agree, uint32_t number, const struct frame *frame, uint64_t *told)
{
    bool good = true;
    for (int rank = 0; rank < agree->member->ranks; rank++) {
        if (!kinds_asked(agree->member, number, rank) || (agree->gone >> rank & 1) != 0)
            continue;
        good &= agree->say(agree->speaker, rank, frame);
        *told |= UINT64_C(1) << rank;
    }
    return good;
}

/* Called when all have promised. */
static bool settle(struct agree *agree, uint32_t number)
{
    struct kinds *kinds = agree->member->share.kinds;
    struct kind *kind = &kinds->kinds[number];
    uint64_t told = 0;
    kinds_lock(kinds);
    levels_step(&kind->level, kind->overflow, agree->kinds[number].from);
    kind->limit = 0;
    const struct level_span now = kind->level.now;
    kinds_unlock(kinds);
    return say_all(agree, number,
                   &(struct frame){.type = FRAME_STEP, .small = number, .a = now.from, .b = now.until, .c = now.level},
                   &told);
}

/* A kind's limit, if this rank decides and is not asking already; else 0. */
static uint64_t wanted_of(const struct agree *agree, uint32_t number)
{
    struct kinds *kinds = agree->member->share.kinds;
    if (agree->kinds[number].missing != 0 || kinds_decider(agree->member, number) != agree->member->rank)
        return 0;
    kinds_lock(kinds);
    const uint64_t limit = kinds->kinds[number].limit;
    kinds_unlock(kinds);
    return limit;
}

bool agree_ask(struct agree *agree)
{
    const uint64_t wanted = __atomic_load_n(&agree->member->share.kinds->wanted, __ATOMIC_ACQUIRE);
    bool good = true;
    if (wanted == agree->seen)
        return true;
    agree->seen = wanted;
    for (uint32_t number = 0; number < kinds_count(agree->member); number++) {
        struct agreement *agreement = &agree->kinds[number];
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

static bool hear_promise(struct agree *agree, int peer, const struct frame *frame)
{
    struct agreement *agreement = &agree->kinds[frame->small];
    if ((agreement->missing >> peer & 1) == 0 || frame->a >= UINT64_MAX / 2)
        return false;
    agreement->missing &= ~(UINT64_C(1) << peer);
    agreement->from = frame->a > agreement->from ? frame->a : agreement->from;
    return agreement->missing != 0 || settle(agree, frame->small);
}

/* ---- Ranks that take steps over ---------------------------------------------------------------------------------- */

static bool promise(struct agree *agree, int peer, uint32_t number)
{
    struct kinds *kinds = agree->member->share.kinds;
    struct kind *kind = &kinds->kinds[number];
    kinds_lock(kinds);
    const bool promised = kind->limit != 0;
    const uint64_t limit = kind->level.issued + KINDS_AHEAD;
    if (!promised)
        kind->limit = limit;
    kinds_unlock(kinds);
    return !promised &&
           agree->say(agree->speaker, peer, &(struct frame){.type = FRAME_PROMISE, .small = number, .a = limit});
}

static bool take_over(struct agree *agree, const struct frame *frame)
{
    struct kinds *kinds = agree->member->share.kinds;
    struct kind *kind = &kinds->kinds[frame->small];
    kinds_lock(kinds);
    const bool good = kind->limit != 0 && frame->a >= kind->limit && frame->b >= frame->a &&
                      frame->b < UINT64_MAX / 2 && frame->c <= 1024;
    if (good) {
        kind->level.old = kind->level.now;
        kind->level.now = (struct level_span){.from = frame->a, .until = frame->b, .level = (unsigned)frame->c};
        kind->limit = 0;
    }
    kinds_unlock(kinds);
    return good;
}

bool agree_hear(struct agree *agree, int peer, const struct frame *frame)
{
    const struct coll_ccomm *member = agree->member;
    if (frame->small >= kinds_count(member))
        return false;
    const int decider = kinds_decider(member, frame->small);
    if (frame->type == FRAME_PROMISE)
        return decider == member->rank && hear_promise(agree, peer, frame);
    if (decider != peer || !kinds_asked(member, frame->small, member->rank))
        return false;
    return frame->type == FRAME_ASK ? promise(agree, peer, frame->small) : take_over(agree, frame);
}

/* ---- Ranks that have gone ---------------------------------------------------------------------------------------- */

static void forget_promise(struct kinds *kinds, uint32_t number)
{
    kinds_lock(kinds);
    kinds->kinds[number].limit = 0;
    kinds_unlock(kinds);
}

bool agree_without(struct agree *agree, int peer)
{
    const struct coll_ccomm *member = agree->member;
    bool good = true;
    agree->gone |= UINT64_C(1) << peer;
    for (uint32_t number = 0; number < kinds_count(member); number++) {
        struct agreement *agreement = &agree->kinds[number];
        const bool awaited = (agreement->missing >> peer & 1) != 0;
        agreement->missing &= ~(UINT64_C(1) << peer);
        if (awaited && agreement->missing == 0)
            good &= settle(agree, number);
        if (kinds_decider(member, number) == peer && kinds_asked(member, number, member->rank))
            forget_promise(member->share.kinds, number);
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
    struct link *first;
    pid_t process; /* in which the thread runs; 0: it has not been started */
    bool over;     /* the process ends: CUDA's memory may be gone already */
} carrier = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Sockets beyond SOCKETS_MAX are polled as often as kernels' memory is. */
static nfds_t list_sockets(struct pollfd *sockets)
{
    nfds_t count = 0;
    for (const struct link *link = carrier.first; link != NULL; link = link->next)
        for (int rank = 0; rank < link->member->ranks && count < SOCKETS_MAX; rank++)
            if (link->carries[rank].socket >= 0)
                sockets[count++] =
                    (struct pollfd){.fd = link->carries[rank].socket,
                                    .events = (short)(POLLIN | (link->carries[rank].blocked ? POLLOUT : 0))};
    return count;
}

/* Called with the lock held, and releases it meanwhile. */
static void rest(bool busy)
{
    static struct pollfd sockets[SOCKETS_MAX]; /* used by the thread alone */
    const nfds_t count = list_sockets(sockets);
    pthread_mutex_unlock(&carrier.lock);
    (void)ppoll(sockets, count, &(struct timespec){.tv_nsec = busy ? SOON_NS : LATER_NS}, NULL);
    pthread_mutex_lock(&carrier.lock);
}

static void *run(void *argument)
{
    unsigned quiet = BUSY_TURNS;
    (void)prctl(PR_SET_TIMERSLACK, 1000UL);
    pthread_mutex_lock(&carrier.lock);
    while (!carrier.over) {
        bool moved = false;
        while (carrier.first == NULL && !carrier.over)
            pthread_cond_wait(&carrier.changed, &carrier.lock);
        for (struct link *link = carrier.first; link != NULL && !carrier.over; link = link->next)
            moved |= link_turn(link);
        quiet = moved ? 0 : quiet + (quiet < BUSY_TURNS);
        if (!carrier.over)
            rest(quiet < BUSY_TURNS);
    }
    pthread_mutex_unlock(&carrier.lock);
    return argument;
}

/* Registered after CUDA's exit handler, so it runs before that. In a forked child the lock is as it was at the fork. */
static void stop(void)
{
    if (carrier.process != getpid())
        return;
    pthread_mutex_lock(&carrier.lock);
    carrier.over = true;
    pthread_mutex_unlock(&carrier.lock);
}

/* A child closes its copies of the connections: otherwise they would not end with its parent. */
static void before_fork(void)
{
    pthread_mutex_lock(&carrier.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&carrier.lock);
}

static void be_child(void)
{
    for (struct link *link = carrier.first; link != NULL; link = link->next)
        for (int rank = 0; rank < link->member->ranks; rank++)
            if (link->carries[rank].socket >= 0)
                close(link->carries[rank].socket);
    carrier.first = NULL;
    carrier.process = 0;
    pthread_mutex_unlock(&carrier.lock);
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
    carrier.process = started ? getpid() : 0;
    return started;
}

bool carrier_is_ours(void)
{
    return carrier.process == getpid();
}

bool carrier_take(struct link *link)
{
    pthread_mutex_lock(&carrier.lock);
    const bool good = carrier.process == getpid() || start();
    if (good) {
        link->carried = true;
        link->next = carrier.first;
        carrier.first = link;
        pthread_cond_signal(&carrier.changed);
    }
    pthread_mutex_unlock(&carrier.lock);
    return good;
}

void carrier_finish(struct link *link)
{
    pthread_mutex_lock(&carrier.lock);
    link->finished = true;
    pthread_mutex_unlock(&carrier.lock);
}

bool carrier_drop(struct link *link, bool (*done)(const struct link *link))
{
    if (!link->carried || !carrier_is_ours())
        return true;
    pthread_mutex_lock(&carrier.lock);
    const bool drops = done == NULL || carrier.over || done(link);
    for (struct link **at = &carrier.first; *at != NULL && drops; at = &(*at)->next)
        if (*at == link) {
            *at = link->next;
            break;
        }
    link->carried = !drops;
    pthread_mutex_unlock(&carrier.lock);
    return drops;
}

/* How long leaving may wait for data under way, and after an abort for the last frame. */
enum { LEAVE_LOOK_NS = 1000000, LEAVE_LOOKS_MAX = 10000, ABORT_LOOKS_MAX = 100 };

static bool is_apart(const struct coll_ccomm *member, int rank)
{
    return !host_groups_same(&member->share.division, rank, member->rank);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

bool link_prepare(struct coll_ccomm *member, struct peer_endpoint *card)
{
    struct link *link = calloc(1, sizeof(*link) + (size_t)member->ranks * sizeof(link->carries[0]));
    if (link == NULL)
        return false;
    member->share.link = link;
    link->member = member;
    for (int rank = 0; rank < member->ranks; rank++)
        link->carries[rank] = (struct carry){.socket = -1, .peer = rank};
    link->listener = auth_listen(card);
    return link->listener >= 0;
}

bool link_connect(struct coll_ccomm *member, const struct peer_endpoint *cards)
{
    struct link *link = member->share.link;
    for (int rank = member->rank + 1; rank < member->ranks; rank++) {
        if (!is_apart(member, rank))
            continue;
        link->carries[rank].socket = auth_connect(&cards[rank], member->rank, rank);
        if (link->carries[rank].socket < 0)
            return false;
    }
    return true;
}

bool link_accept(struct coll_ccomm *member, const struct peer_endpoint *cards)
{
    struct link *link = member->share.link;
    int sockets[DIVIDE_RANKS_MAX];
    uint64_t awaited = 0;
    for (int rank = 0; rank < member->rank; rank++) {
        sockets[rank] = -1;
        awaited |= is_apart(member, rank) ? UINT64_C(1) << rank : 0;
    }
    const bool good = auth_accept(link->listener, cards, member->rank, awaited, sockets);
    for (int rank = 0; rank < member->rank; rank++)
        link->carries[rank].socket = sockets[rank];
    close(link->listener);
    link->listener = -1;
    return good;
}

bool link_await(struct coll_ccomm *member, const struct peer_endpoint *own)
{
    const struct link *link = member->share.link;
    for (int rank = member->rank + 1; rank < member->ranks; rank++)
        if (is_apart(member, rank) && !auth_await(link->carries[rank].socket, own, member->rank, rank))
            return false;
    return true;
}

static struct carry_ring ring_of(const struct coll_ccomm *member, int from, int to)
{
    const struct share *share = &member->share;
    const uint32_t number = ring_number(&share->rings, (uint32_t)from, (uint32_t)to);
    uint8_t *slots = (uint8_t *)share->pinned + ring_flags_size((uint32_t)member->ranks);
    return (struct carry_ring){(struct ring_flags *)share->pinned + number,
                               slots + (size_t)number * RING_SLOTS * share->rings.slot_bytes};
}

static bool link_hear(void *hearer, int peer, const struct frame *frame)
{
    return agree_hear(&((struct link *)hearer)->agree, peer, frame);
}

static bool link_say(void *speaker, int peer, const struct frame *frame)
{
    return carry_say(&((struct link *)speaker)->carries[peer], frame);
}

bool link_begin(struct coll_ccomm *member)
{
    struct link *link = member->share.link;
    for (int rank = 0; rank < member->ranks; rank++) {
        struct carry *carry = &link->carries[rank];
        if (carry->socket < 0)
            continue;
        address_tune(carry->socket);
        link->peers++;
        carry->slot_bytes = member->share.rings.slot_bytes;
        carry->to = ring_of(member, member->rank, rank);
        carry->from = ring_of(member, rank, member->rank);
        carry->hear = link_hear;
        carry->hearer = link;
    }
    link->agree.say = link_say;
    link->agree.speaker = link;
    return agree_begin(&link->agree, member) && carrier_take(link);
}

void link_describe(const struct coll_ccomm *member, char *text, size_t size)
{
    const struct link *link = member->share.link;
    snprintf(text, size, "%.0d%s", link != NULL ? link->peers : 0,
             link != NULL ? " ranks on other hosts by TCP, " : "");
}

/* ---- A turn of the thread ---------------------------------------------------------------------------------------- */

static void lose(struct link *link, const struct carry *carry)
{
    char why[120];
    link->lost = true;
    snprintf(why, sizeof(why), "rank %d, on another host, %s", carry->peer, carry->trouble);
    member_fail(link->member, COLL_REMOTE_ERROR, why);
}

static bool turn_one(struct link *link, struct carry *carry)
{
    if (link->finished && !carry->leaving)
        carry->leaving = carry_say(carry, &(struct frame){.type = FRAME_LEAVE});
    const bool moved = carry_pass(carry);
    if (carry->socket >= 0)
        return moved;
    if (carry->trouble != NULL && !link->finished && !link->lost)
        lose(link, carry);
    if (!agree_without(&link->agree, carry->peer))
        link->starved = true;
    return true;
}

bool link_turn(struct link *link)
{
    bool moved = false;
    link->starved |= !agree_ask(&link->agree);
    for (int rank = 0; rank < link->member->ranks; rank++)
        if (link->carries[rank].socket >= 0)
            moved |= turn_one(link, &link->carries[rank]);
    if (link->starved && !link->lost) {
        link->lost = true;
        member_fail(link->member, COLL_INTERNAL_ERROR, "no memory for what ranks tell each other");
    }
    if (link->lost) /* also stops what was launched since */
        member_give_up(link->member);
    return moved;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void link_finish(struct coll_ccomm *member)
{
    if (member->share.link != NULL && carrier_is_ours())
        carrier_finish(member->share.link);
}

static bool all_are(const struct link *link, bool (*what)(const struct carry *))
{
    bool all = true;
    for (int rank = 0; rank < link->member->ranks && all; rank++)
        all = link->carries[rank].socket < 0 || (link->carries[rank].leaving && what(&link->carries[rank]));
    return all;
}

static bool has_arrived(const struct link *link)
{
    return all_are(link, carry_has_arrived);
}

static bool has_said(const struct link *link)
{
    return all_are(link, carry_has_said);
}

void link_leave(struct coll_ccomm *member)
{
    struct link *link = member->share.link;
    if (link == NULL || !link->carried || !carrier_is_ours())
        return;
    carrier_finish(link);
    const int most = member->aborted ? ABORT_LOOKS_MAX : LEAVE_LOOKS_MAX;
    for (int looks = 0; looks < most && !carrier_drop(link, member->aborted ? has_said : has_arrived); looks++)
        nanosleep(&(struct timespec){.tv_nsec = LEAVE_LOOK_NS}, NULL);
    (void)carrier_drop(link, NULL);
    for (int rank = 0; rank < member->ranks; rank++)
        carry_end(&link->carries[rank]);
}

void link_end(struct coll_ccomm *member)
{
    struct link *link = member->share.link;
    if (link == NULL)
        return;
    (void)carrier_drop(link, NULL);
    for (int rank = 0; rank < member->ranks; rank++)
        carry_end(&link->carries[rank]);
    if (link->listener >= 0)
        close(link->listener);
    agree_end(&link->agree);
    member->share.link = NULL;
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

void carry_end(struct carry *carry)
{
    if (carry->socket >= 0)
        close(carry->socket);
    carry->socket = -1;
    carry->out.left = carry->out.size = carry->out.done = 0;
    free(carry->queue);
    carry->queue = NULL;
    carry->queued = carry->queue_room = 0;
}

static void fail(struct carry *carry, const char *why)
{
    if (!carry->left)
        carry->trouble = why;
    carry_end(carry);
}

/* ---- Sending frames ---------------------------------------------------------------------------------------------- */

static bool has_room(const struct carry_out *out)
{
    return out->size + FRAME_BYTES <= sizeof(out->words);
}

static void add(struct carry_out *out, const struct frame *frame)
{
    frame_put(out->words + out->size, frame);
    out->size += FRAME_BYTES;
}

bool carry_say(struct carry *carry, const struct frame *frame)
{
    if (carry->socket < 0)
        return true;
    if (carry->queued == carry->queue_room) {
        const uint32_t room = carry->queue_room != 0 ? 2 * carry->queue_room : 16;
        struct frame *queue = realloc(carry->queue, room * sizeof(*queue));
        if (queue == NULL)
            return false;
        carry->queue = queue;
        carry->queue_room = room;
    }
    carry->queue[carry->queued++] = *frame;
    return true;
}

static void add_queued(struct carry *carry)
{
    uint32_t taken = 0;
    for (; taken < carry->queued && has_room(&carry->out); taken++)
        add(&carry->out, &carry->queue[taken]);
    carry->queued -= taken;
    if (taken > 0)
        memmove(carry->queue, carry->queue + taken, carry->queued * sizeof(*carry->queue));
}

static void add_taken(struct carry *carry)
{
    for (uint32_t slot = 0; slot < RING_SLOTS && has_room(&carry->out); slot++) {
        const uint64_t taken = load(&carry->from.flags->taken[slot].number);
        if (taken == carry->out.told[slot])
            continue;
        carry->out.told[slot] = taken;
        add(&carry->out, &(struct frame){.type = FRAME_TAKEN, .a = taken});
    }
}

/* The record with the next number, or a later one if that was overwritten. False: there is none yet. */
static bool next_record(struct carry *carry, uint32_t pairs, struct frame *frame)
{
    uint64_t *next = &carry->out.records[pairs];
    for (;;) {
        const struct ring_record *record = &carry->to.flags->records[pairs][*next % RING_RECORDS];
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

static void add_records(struct carry *carry)
{
    struct frame frame;
    for (uint32_t pairs = 0; pairs < 2; pairs++)
        while (has_room(&carry->out) && next_record(carry, pairs, &frame))
            add(&carry->out, &frame);
}

/* The full slot with the lowest number that has not been sent; RING_SLOTS: there is none. */
static uint32_t next_slot(const struct carry *carry)
{
    uint32_t found = RING_SLOTS;
    uint64_t least = UINT64_MAX;
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++) {
        const uint64_t full = load(&carry->to.flags->full[slot].number);
        if (full == carry->out.sent[slot] || full >= least)
            continue;
        found = slot;
        least = full;
    }
    return found;
}

static void add_slot(struct carry *carry)
{
    const uint32_t slot = next_slot(carry);
    if (slot == RING_SLOTS || !has_room(&carry->out))
        return;
    const struct ring_flag *full = &carry->to.flags->full[slot];
    const uint64_t number = load(&full->number);
    carry->out.sent[slot] = number;
    carry->out.values = carry->to.slots + (size_t)slot * carry->slot_bytes;
    carry->out.left = full->bytes < carry->slot_bytes ? full->bytes : carry->slot_bytes;
    add(&carry->out, &(struct frame){.type = FRAME_SLOT, .small = (uint32_t)carry->out.left, .a = number - 1});
}

/* Records go before the slots of their messages, and words before values, which take a while to send. */
static void gather(struct carry *carry)
{
    struct carry_out *out = &carry->out;
    if (out->size > 0 || out->left > 0)
        return;
    add_queued(carry);
    add_taken(carry);
    add_records(carry);
    add_slot(carry);
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void sent(struct carry_out *out, size_t bytes)
{
    const size_t words = bytes < out->size - out->done ? bytes : out->size - out->done;
    out->done += (uint32_t)words;
    out->values += bytes - words;
    out->left -= bytes - words;
    if (out->done == out->size)
        out->size = out->done = 0;
}

/* A send error does not end the connection: what the peer has said last is read first. */
static size_t send_some(struct carry *carry)
{
    struct carry_out *out = &carry->out;
    gather(carry);
    struct iovec parts[2] = {{out->words + out->done, out->size - out->done},
                             {(void *)(uintptr_t)out->values, out->left}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (parts[0].iov_len + parts[1].iov_len == 0)
        return 0;
    const ssize_t size = sendmsg(carry->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    carry->blocked = size < 0 && errno == EAGAIN;
    if (size > 0)
        sent(out, (size_t)size);
    return size > 0 ? (size_t)size : 0;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The slot is free, as the peer fills it again only after it was told. */
static bool begin_slot(struct carry *carry, const struct frame *frame)
{
    struct carry_in *in = &carry->in;
    const uint32_t slot = frame->a % RING_SLOTS;
    if (frame->small == 0 || frame->small > carry->slot_bytes || frame->a >= UINT64_MAX / 2 ||
        frame->a < in->filled[slot] || carry->out.told[slot] != in->filled[slot])
        return false;
    in->values = carry->from.slots + (size_t)slot * carry->slot_bytes;
    in->left = frame->small;
    return true;
}

static void end_slot(struct carry *carry)
{
    struct carry_in *in = &carry->in;
    const uint32_t slot = in->frame.a % RING_SLOTS;
    struct ring_flag *full = &carry->from.flags->full[slot];
    in->filled[slot] = in->frame.a + 1;
    full->bytes = in->frame.small;
    store(&full->number, in->frame.a + 1);
}

static bool hear_taken(struct carry *carry, const struct frame *frame)
{
    const uint32_t slot = (frame->a - 1) % RING_SLOTS;
    if (frame->a == 0 || frame->a != carry->out.sent[slot])
        return false;
    store(&carry->to.flags->taken[slot].number, frame->a);
    return true;
}

static bool hear_record(struct carry *carry, const struct frame *frame)
{
    if (frame->small > 1 || frame->a < carry->in.records[frame->small] || frame->a >= UINT64_MAX / 2)
        return false;
    struct ring_record *record = &carry->from.flags->records[frame->small][frame->a % RING_RECORDS];
    carry->in.records[frame->small] = frame->a + 1;
    store(&record->number, 0);
    store(&record->first, frame->b);
    store(&record->number, frame->a + 1);
    return true;
}

/* False: the frame is invalid. */
static bool hear(struct carry *carry, const struct frame *frame)
{
    switch (frame->type) {
    case FRAME_SLOT:
        return begin_slot(carry, frame);
    case FRAME_TAKEN:
        return hear_taken(carry, frame);
    case FRAME_RECORD:
        return hear_record(carry, frame);
    case FRAME_LEAVE:
        carry->left = true;
        return true;
    case FRAME_ASK:
    case FRAME_PROMISE:
    case FRAME_STEP:
        return carry->hear(carry->hearer, carry->peer, frame);
    default:
        return false;
    }
}

static void received(struct carry *carry, size_t bytes)
{
    struct carry_in *in = &carry->in;
    if (in->left > 0) {
        in->values += bytes;
        in->left -= bytes;
        if (in->left == 0)
            end_slot(carry);
        return;
    }
    in->got += (uint32_t)bytes;
    if (in->got < FRAME_BYTES)
        return;
    in->got = 0;
    in->frame = frame_get(in->head);
    if (!hear(carry, &in->frame))
        fail(carry, "has said what is not in order");
}

static size_t receive_some(struct carry *carry)
{
    struct carry_in *in = &carry->in;
    uint8_t *into = in->left > 0 ? in->values : in->head + in->got;
    const ssize_t size =
        recv(carry->socket, into, in->left > 0 ? in->left : (size_t)(FRAME_BYTES - in->got), MSG_DONTWAIT);
    if (size > 0)
        received(carry, (size_t)size);
    else if (size == 0 || (errno != EAGAIN && errno != EINTR))
        fail(carry, "is not connected any more");
    return size > 0 ? (size_t)size : 0;
}

/* ---- Both directions --------------------------------------------------------------------------------------------- */

bool carry_pass(struct carry *carry)
{
    size_t moved = 0;
    for (size_t last = 1; last > 0 && moved < TURN_BYTES && carry->socket >= 0; moved += last) {
        last = receive_some(carry);
        if (carry->socket >= 0)
            last += send_some(carry);
    }
    return moved > 0;
}

static bool is_quiet(const struct carry *carry)
{
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++)
        if (load(&carry->to.flags->full[slot].number) != carry->out.sent[slot] ||
            load(&carry->from.flags->taken[slot].number) != carry->out.told[slot])
            return false;
    for (uint32_t pairs = 0; pairs < 2; pairs++)
        if (load(&carry->to.flags->records[pairs][carry->out.records[pairs] % RING_RECORDS].number) >
            carry->out.records[pairs])
            return false;
    return true;
}

bool carry_has_said(const struct carry *carry)
{
    return carry->queued == 0 && carry->out.size == 0;
}

bool carry_has_arrived(const struct carry *carry)
{
    int waiting = 0;
    return carry_has_said(carry) && carry->out.left == 0 && is_quiet(carry) &&
           ioctl(carry->socket, SIOCOUTQ, &waiting) == 0 && waiting == 0;
}
