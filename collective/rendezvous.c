#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collective/rendezvous.h"
#include "transport/rank_address.h"

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static uint64_t key_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static void key_add(struct coll_key *key, uint64_t ballot)
{
    key->words[0] = key_mix(key->words[0] ^ ballot);
    key->words[1] = key_mix(key->words[1] + ballot + UINT64_C(0x9E3779B97F4A7C15));
}

struct coll_key coll_key_of(const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    struct coll_key key = {.words = {1, 2}};
    for (size_t i = 0; i < size; i++)
        key_add(&key, at[i]);
    return key;
}

struct coll_key coll_key_child(const struct coll_key *parent, uint64_t origin, uint64_t number, int64_t color)
{
    struct coll_key key = *parent;
    if (coll_key_is_none(parent))
        return key;
    key_add(&key, origin);
    key_add(&key, number);
    key_add(&key, (uint64_t)color);
    return key;
}

struct coll_key coll_key_random(void)
{
    struct coll_key key = {.words = {0, 0}};
    if (getrandom(key.words, sizeof(key.words), 0) != sizeof(key.words))
        key.words[0] = key.words[1] = 0;
    return key;
}

bool coll_key_is_none(const struct coll_key *key)
{
    return key->words[0] == 0 && key->words[1] == 0;
}

bool coll_key_has_server(const struct coll_key *key)
{
    return key->server.address.family != 0;
}

/* ---- Votes ------------------------------------------------------------------------------------------------------- */

/* A published result is one word: the result, and above these bits the rank that caused it. */
enum { RESULT_BITS = 8 };

struct voter {
    struct coll_ballot ballots[COLL_VOTE_PHASES];
    _Atomic uint32_t cast[COLL_VOTE_PHASES]; /* the ballot may be read */
    _Atomic uint32_t raw_ops;                /* raw operations that the rank has issued */
};

struct coll_vote_page {
    _Atomic uint32_t decided[COLL_VOTE_PHASES];
    _Atomic uint32_t unlink_claimed;
    struct voter voters[];
};

size_t coll_vote_page_size(int ranks)
{
    return sizeof(struct coll_vote_page) + (size_t)ranks * sizeof(struct voter);
}

bool coll_vote_has_cast(const struct coll_vote *vote, int rank, enum coll_vote_phase phase)
{
    return atomic_load(&vote->page->voters[rank].cast[phase]) != 0;
}

void coll_vote_cast(const struct coll_vote *vote, int rank, enum coll_vote_phase phase,
                    const struct coll_ballot *ballot)
{
    struct voter *own = &vote->page->voters[rank];
    own->ballots[phase] = *ballot;
    atomic_store(&own->cast[phase], 1);
}

void coll_vote_note_raw(const struct coll_vote *vote, int rank, uint32_t begun)
{
    atomic_store(&vote->page->voters[rank].raw_ops, begun);
}

/* Only the first result counts. */
void coll_vote_publish(const struct coll_vote *vote, enum coll_vote_phase phase, enum coll_vote_result result, int rank)
{
    uint32_t open = COLL_VOTE_OPEN;
    const uint32_t decided = (uint32_t)result | (uint32_t)rank << RESULT_BITS;
    (void)atomic_compare_exchange_strong(&vote->page->decided[phase], &open, decided);
}

/* ---- Evaluation -------------------------------------------------------------------------------------------------- */

static bool all_cast(const struct coll_vote *vote, enum coll_vote_phase phase)
{
    bool all = true;
    for (int rank = 0; rank < vote->ranks; rank++)
        all &= coll_vote_has_cast(vote, rank, phase);
    return all;
}

static const struct coll_ballot *ballot_of(const struct coll_vote *vote, int rank, enum coll_vote_phase phase)
{
    return &vote->page->voters[rank].ballots[phase];
}

static bool shares_thread(const struct coll_vote *vote, int rank, enum coll_vote_phase phase)
{
    for (int before = 0; before < rank; before++)
        if (ballot_of(vote, before, phase)->thread == ballot_of(vote, rank, phase)->thread)
            return true;
    return false;
}

/* Checks the ballot of one rank, after all ranks have cast theirs. */
static enum coll_vote_result compare_ballot(const struct coll_vote *vote, int rank, enum coll_vote_phase phase)
{
    const struct coll_ballot *first = ballot_of(vote, 0, phase), *ballot = ballot_of(vote, rank, phase);
    if (ballot->blocks != first->blocks || ballot->index != first->index)
        return COLL_VOTE_DIFFERS;
    return ballot->blocks == 0 && shares_thread(vote, rank, phase) ? COLL_VOTE_ONE_THREAD : COLL_VOTE_GO;
}

/* Number of the first operation in which a rank waits. */
static uint32_t first_reached(const struct coll_vote *vote)
{
    uint32_t first = UINT32_MAX;
    for (int rank = 0; rank < vote->ranks; rank++) {
        if (!coll_vote_has_cast(vote, rank, COLL_PHASE_REACHED))
            continue;
        const uint32_t index = ballot_of(vote, rank, COLL_PHASE_REACHED)->index;
        first = index < first ? index : first;
    }
    return first;
}

/* Checks one rank while ballots of others may be missing. A rank that has issued raw an operation in which another rank
 * waits, from number `reached` on, differs: waiting for the other ranks could then last forever, as they may wait for
 * each other. */
static enum coll_vote_result check_rank(const struct coll_vote *vote, int rank, enum coll_vote_phase phase,
                                        uint32_t reached, bool lives)
{
    const bool cast = coll_vote_has_cast(vote, rank, phase);
    if (cast && ballot_of(vote, rank, phase)->able == 0)
        return COLL_VOTE_UNABLE;
    const bool present = cast || coll_vote_has_cast(vote, rank, COLL_PHASE_PRESENT);
    if (lives && present && !vote->is_alive(vote->owner, rank))
        return COLL_VOTE_ENDED;
    const bool ahead = phase == COLL_PHASE_REACHED && atomic_load(&vote->page->voters[rank].raw_ops) > reached;
    return ahead ? COLL_VOTE_DIFFERS : COLL_VOTE_GO;
}

/* `always`: whether ranks are alive is asked while ballots are missing, too. */
static void evaluate(const struct coll_vote *vote, enum coll_vote_phase phase, bool always)
{
    if (atomic_load(&vote->page->decided[phase]) != COLL_VOTE_OPEN)
        return;
    const bool all = all_cast(vote, phase);
    const uint32_t reached = first_reached(vote);
    enum coll_vote_result result = COLL_VOTE_GO;
    int cause = 0;
    for (int rank = 0; rank < vote->ranks && result == COLL_VOTE_GO; rank++)
        result = check_rank(vote, cause = rank, phase, reached, always || all);
    for (int rank = 0; rank < vote->ranks && all && result == COLL_VOTE_GO; rank++)
        result = compare_ballot(vote, cause = rank, phase);
    if (all || result != COLL_VOTE_GO)
        coll_vote_publish(vote, phase, result, cause);
}

void coll_vote_evaluate(const struct coll_vote *vote, enum coll_vote_phase phase)
{
    evaluate(vote, phase, true);
}

void coll_vote_evaluate_ballots(const struct coll_vote *vote, enum coll_vote_phase phase)
{
    evaluate(vote, phase, false);
}

/* ---- State ------------------------------------------------------------------------------------------------------- */

bool coll_vote_is_decided(const struct coll_vote *vote, enum coll_vote_phase phase)
{
    return atomic_load(&vote->page->decided[phase]) != COLL_VOTE_OPEN;
}

struct coll_vote_state coll_vote_status(const struct coll_vote *vote, enum coll_vote_phase phase)
{
    const uint32_t decided = atomic_load(&vote->page->decided[phase]);
    struct coll_vote_state state = {.result = (enum coll_vote_result)(decided & ((1u << RESULT_BITS) - 1)),
                                    .rank = (int)(decided >> RESULT_BITS),
                                    .all = all_cast(vote, COLL_PHASE_PRESENT)};
    for (int rank = 0; rank < vote->ranks; rank++) {
        if (coll_vote_has_cast(vote, rank, COLL_PHASE_REACHED))
            state.paired |= ballot_of(vote, rank, COLL_PHASE_REACHED)->paired != 0;
        if (coll_vote_has_cast(vote, rank, phase))
            continue;
        if (state.missing < COLL_MISSING_MAX)
            state.first_missing[state.missing] = rank;
        state.missing++;
    }
    return state;
}

/* ---- Backend: shared memory -------------------------------------------------------------------------------------- */

/* The page is a file in /dev/shm whose name follows from the key. */

struct shm_rdv {
    struct coll_rdv rdv;
    struct coll_vote vote;
    size_t size;
    int file; /* its byte number `rank` is locked while the rank is alive */
    char name[64];
};

static bool is_alive(const void *owner, int rank)
{
    const struct shm_rdv *shm_rdv = owner;
    struct flock server = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return rank == shm_rdv->rdv.rank || fcntl(shm_rdv->file, F_OFD_GETLK, &server) != 0 || server.l_type != F_UNLCK;
}

/* Signals may interrupt it, for example a profiler's. */
static bool shm_allocate(int file, size_t size)
{
    int error;
    while ((error = posix_fallocate(file, 0, (off_t)size)) == EINTR)
        ;
    return error == 0;
}

/* The file has to be this user's alone, and large enough: touching mapped memory beyond the end of a file faults. */
static bool shm_is_private(int file, size_t size)
{
    struct stat status;
    return shm_allocate(file, size) && fstat(file, &status) == 0 && status.st_uid == geteuid() &&
           (status.st_mode & 077) == 0 && status.st_size == (off_t)size;
}

static bool shm_open_page(struct shm_rdv *shm_rdv)
{
    shm_rdv->file = shm_open(shm_rdv->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (shm_rdv->file < 0)
        return false;
    /* The lock belongs to the open file description, not to the process, which may have several ranks. The kernel
     * releases it when the process ends, however it does. */
    struct flock server = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = shm_rdv->rdv.rank, .l_len = 1};
    if (shm_is_private(shm_rdv->file, shm_rdv->size) && fcntl(shm_rdv->file, F_OFD_SETLK, &server) == 0) {
        void *memory = mmap(NULL, shm_rdv->size, PROT_READ | PROT_WRITE, MAP_SHARED, shm_rdv->file, 0);
        shm_rdv->vote.page = memory != MAP_FAILED ? memory : NULL;
    }
    return shm_rdv->vote.page != NULL;
}

/* Unlinks the name once. If not all ranks have joined by then, the result is that all stay raw; a page made under the
 * name later belongs to another rendezvous, which not all ranks can join. */
static void shm_unlink_name(const struct shm_rdv *shm_rdv)
{
    /* Exactly one rank unlinks the page's name. */
    if (atomic_exchange(&shm_rdv->vote.page->unlink_claimed, 1) == 0)
        (void)shm_unlink(shm_rdv->name);
}

static struct coll_vote_state shm_poll(struct coll_rdv *rdv, enum coll_vote_phase phase)
{
    const struct shm_rdv *shm_rdv = (const struct shm_rdv *)rdv;
    coll_vote_evaluate(&shm_rdv->vote, phase);
    return coll_vote_status(&shm_rdv->vote, phase);
}

static void sleep_for(struct coll_rdv *rdv, int64_t ns)
{
    (void)rdv;
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void shm_vote(struct coll_rdv *rdv, enum coll_vote_phase phase, const struct coll_ballot *ballot)
{
    const struct shm_rdv *shm_rdv = (const struct shm_rdv *)rdv;
    coll_vote_cast(&shm_rdv->vote, rdv->rank, phase, ballot);
    if (shm_poll(rdv, phase).all)
        shm_unlink_name(shm_rdv);
}

static void shm_note_raw(struct coll_rdv *rdv, uint32_t begun)
{
    coll_vote_note_raw(&((const struct shm_rdv *)rdv)->vote, rdv->rank, begun);
}

static void shm_abort(struct coll_rdv *rdv, enum coll_vote_phase phase)
{
    const struct shm_rdv *shm_rdv = (const struct shm_rdv *)rdv;
    coll_vote_publish(&shm_rdv->vote, phase, COLL_VOTE_MISSING, rdv->rank);
    shm_unlink_name(shm_rdv);
}

static void shm_leave(struct coll_rdv *rdv)
{
    struct shm_rdv *shm_rdv = (struct shm_rdv *)rdv;
    for (int phase = 0; phase < COLL_VOTE_PHASES && shm_rdv->vote.page != NULL; phase++)
        coll_vote_publish(&shm_rdv->vote, (enum coll_vote_phase)phase, COLL_VOTE_LEFT, rdv->rank);
    if (shm_rdv->vote.page != NULL) {
        shm_unlink_name(shm_rdv);
        (void)munmap(shm_rdv->vote.page, shm_rdv->size);
    }
    if (shm_rdv->file >= 0)
        (void)close(shm_rdv->file);
    free(shm_rdv);
}

static const struct coll_rdv_ops shm_ops = {.vote = shm_vote,
                                            .note_raw = shm_note_raw,
                                            .poll = shm_poll,
                                            .ask = shm_poll,
                                            .rest = sleep_for,
                                            .abort = shm_abort,
                                            .leave = shm_leave,
                                            .poll_min_ns = 20000,
                                            .poll_max_ns = 1000000,
                                            .linger_ms = 100};

static struct coll_rdv *coll_rdv_join_shm(const struct coll_key *key, int rank, int ranks)
{
    struct shm_rdv *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    *made = (struct shm_rdv){.rdv = {&shm_ops, rank, ranks},
                             .vote = {.ranks = ranks, .is_alive = is_alive, .owner = made},
                             .size = coll_vote_page_size(ranks),
                             .file = -1};
    snprintf(made->name, sizeof(made->name), "/strait-coll-%016llx%016llx", (unsigned long long)key->words[0],
             (unsigned long long)key->words[1]);
    if (shm_open_page(made))
        return &made->rdv;
    shm_leave(&made->rdv);
    return NULL;
}

/* ---- Backend: TCP ------------------------------------------------------------------------------------------------ */

/* Time limit of an answer, which the server gives at once. If its process is stopped for longer, it finds this rank
 * disconnected before it publishes that all ranks go on. */
enum { ANSWER_MS = 20000 };
/* How often a rank asks although the server tells results: so that it notices a server that is gone. */
enum { ASK_MS = 1000 };

struct tcp_rdv {
    struct coll_rdv rdv;
    int socket;                                      /* -1: disconnected */
    struct coll_vote_state states[COLL_VOTE_PHASES]; /* as last received, by phase */
    int64_t asked_ms;                                /* when a request was sent last */
    size_t got;
    uint8_t frame[RDV_FRAME_BYTES]; /* that is being received */
};

/* A full send buffer means that the server has not read for long. */
static bool tcp_send(int socket, const uint8_t *frame)
{
    return send(socket, frame, RDV_FRAME_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) == RDV_FRAME_BYTES;
}

/* shutdown also ends the connection that a forked child has inherited. */
static void tcp_disconnect(struct tcp_rdv *tcp_rdv)
{
    if (tcp_rdv->socket < 0)
        return;
    (void)shutdown(tcp_rdv->socket, SHUT_RDWR);
    (void)close(tcp_rdv->socket);
    tcp_rdv->socket = -1;
}

/* Receives a part of a frame, within so many milliseconds. 1: the frame is complete; 0: not yet; -1: disconnected. */
static int tcp_receive(struct tcp_rdv *tcp_rdv, int milliseconds)
{
    struct pollfd ready = {.fd = tcp_rdv->socket, .events = POLLIN};
    if (milliseconds > 0 && poll(&ready, 1, milliseconds) < 0 && errno != EINTR)
        return -1;
    const ssize_t size =
        recv(tcp_rdv->socket, tcp_rdv->frame + tcp_rdv->got, RDV_FRAME_BYTES - tcp_rdv->got, MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
        return -1;
    tcp_rdv->got += size > 0 ? (size_t)size : 0;
    return tcp_rdv->got == RDV_FRAME_BYTES;
}

/* Takes the frame that is complete. Returns its phase if it was told unasked, `asked` if it is an answer about that
 * phase, -1 if it is neither. */
static int tcp_take(struct tcp_rdv *tcp_rdv, int asked)
{
    struct coll_vote_state state;
    const enum coll_vote_phase told = rdv_state_told(tcp_rdv->frame);
    const int phase = told != COLL_VOTE_PHASES ? (int)told : asked;
    tcp_rdv->got = 0;
    if (phase < 0 || !rdv_state_read(tcp_rdv->frame, &state))
        return -1;
    if (tcp_rdv->states[phase].result == COLL_VOTE_OPEN)
        tcp_rdv->states[phase] = state;
    return phase;
}

static struct coll_vote_state tcp_lose(struct tcp_rdv *tcp_rdv, enum coll_vote_phase phase)
{
    tcp_disconnect(tcp_rdv);
    if (tcp_rdv->states[phase].result == COLL_VOTE_OPEN)
        tcp_rdv->states[phase].result = COLL_VOTE_LOST;
    return tcp_rdv->states[phase];
}

/* Sends a request and awaits its answer. A result is final and is not requested again. */
static struct coll_vote_state tcp_exchange(struct tcp_rdv *tcp_rdv, enum coll_vote_phase phase, const uint8_t *frame)
{
    if (tcp_rdv->states[phase].result != COLL_VOTE_OPEN)
        return tcp_rdv->states[phase];
    if (tcp_rdv->socket < 0 || !tcp_send(tcp_rdv->socket, frame))
        return tcp_lose(tcp_rdv, phase);
    tcp_rdv->asked_ms = now_ms();
    for (int64_t left = ANSWER_MS; left > 0; left = tcp_rdv->asked_ms + ANSWER_MS - now_ms()) {
        const int got = tcp_receive(tcp_rdv, (int)left);
        const bool answers = got == 1 && rdv_state_told(tcp_rdv->frame) == COLL_VOTE_PHASES;
        if (got < 0 || (got == 1 && tcp_take(tcp_rdv, (int)phase) < 0))
            break;
        if (answers)
            return tcp_rdv->states[phase];
    }
    return tcp_lose(tcp_rdv, phase);
}

static struct coll_vote_state tcp_request(struct coll_rdv *rdv, enum rdv_action action, enum coll_vote_phase phase,
                                          const struct coll_ballot *ballot)
{
    uint8_t frame[RDV_FRAME_BYTES];
    struct rdv_request tcp_request = {.action = action, .phase = phase};
    if (ballot != NULL)
        tcp_request.ballot = *ballot;
    rdv_request_write(frame, &tcp_request);
    return tcp_exchange((struct tcp_rdv *)rdv, phase, frame);
}

static void tcp_vote(struct coll_rdv *rdv, enum coll_vote_phase phase, const struct coll_ballot *ballot)
{
    (void)tcp_request(rdv, RDV_VOTE, phase, ballot);
}

/* The server does not answer, so the operation goes on at once. */
static void tcp_note_raw(struct coll_rdv *rdv, uint32_t begun)
{
    struct tcp_rdv *tcp_rdv = (struct tcp_rdv *)rdv;
    uint8_t frame[RDV_FRAME_BYTES];
    rdv_request_write(frame, &(struct rdv_request){.action = RDV_NOTE_RAW, .ballot = {.index = begun}});
    if (tcp_rdv->socket >= 0 && !tcp_send(tcp_rdv->socket, frame))
        tcp_disconnect(tcp_rdv);
}

static struct coll_vote_state tcp_ask(struct coll_rdv *rdv, enum coll_vote_phase phase)
{
    return tcp_request(rdv, RDV_POLL, phase, NULL);
}

/* What the server has told, and now and then what it answers. */
static struct coll_vote_state tcp_poll(struct coll_rdv *rdv, enum coll_vote_phase phase)
{
    struct tcp_rdv *tcp_rdv = (struct tcp_rdv *)rdv;
    int got = 1;
    while (tcp_rdv->socket >= 0 && (got = tcp_receive(tcp_rdv, 0)) == 1 && tcp_take(tcp_rdv, -1) >= 0)
        ;
    if (got != 0)
        return tcp_lose(tcp_rdv, phase);
    return now_ms() - tcp_rdv->asked_ms < ASK_MS ? tcp_rdv->states[phase] : tcp_ask(rdv, phase);
}

/* What the server tells ends it. */
static void tcp_rest(struct coll_rdv *rdv, int64_t ns)
{
    struct pollfd ready = {.fd = ((struct tcp_rdv *)rdv)->socket, .events = POLLIN};
    (void)ppoll(&ready, 1, &(struct timespec){.tv_nsec = ns}, NULL);
}

static void tcp_abort(struct coll_rdv *rdv, enum coll_vote_phase phase)
{
    (void)tcp_request(rdv, RDV_ABORT, phase, NULL);
}

static void tcp_leave(struct coll_rdv *rdv)
{
    struct tcp_rdv *tcp_rdv = (struct tcp_rdv *)rdv;
    uint8_t frame[RDV_FRAME_BYTES];
    rdv_request_write(frame, &(struct rdv_request){.action = RDV_LEAVE});
    if (tcp_rdv->socket >= 0)
        (void)tcp_send(tcp_rdv->socket, frame);
    tcp_disconnect(tcp_rdv);
    free(tcp_rdv);
}

static const struct coll_rdv_ops tcp_ops = {.vote = tcp_vote,
                                            .note_raw = tcp_note_raw,
                                            .poll = tcp_poll,
                                            .ask = tcp_ask,
                                            .rest = tcp_rest,
                                            .abort = tcp_abort,
                                            .leave = tcp_leave,
                                            .poll_min_ns = 20000000,
                                            .poll_max_ns = 20000000,
                                            .linger_ms = 0};

/* Precondition: the key is not zero, and the rank is in range. */
static struct coll_rdv *coll_rdv_join_tcp(const struct coll_key *key, int rank, int ranks)
{
    uint8_t frame[RDV_FRAME_BYTES];
    struct rdv_hello hello = {
        .words = {key->words[0], key->words[1]}, .rank = (uint32_t)rank, .ranks = (uint32_t)ranks};
    struct tcp_rdv *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    made->rdv = (struct coll_rdv){&tcp_ops, rank, ranks};
    made->socket = address_connect(&key->server.address, ADDRESS_CONNECT_MS);
    memcpy(hello.secret, key->server.secret, COLL_SECRET_BYTES);
    rdv_hello_write(frame, &hello);
    if (tcp_exchange(made, COLL_PHASE_PRESENT, frame).result != COLL_VOTE_LOST)
        return &made->rdv;
    tcp_leave(&made->rdv);
    return NULL;
}

struct coll_rdv *coll_rdv_join(const struct coll_key *key, int rank, int ranks)
{
    if (coll_key_is_none(key) || rank < 0 || rank >= ranks)
        return NULL;
    return coll_key_has_server(key) ? coll_rdv_join_tcp(key, rank, ranks) : coll_rdv_join_shm(key, rank, ranks);
}

void coll_rdv_vote(struct coll_rdv *rdv, enum coll_vote_phase phase, const struct coll_ballot *ballot)
{
    rdv->ops->vote(rdv, phase, ballot);
}

void coll_rdv_leave(struct coll_rdv *rdv)
{
    if (rdv != NULL)
        rdv->ops->leave(rdv);
}

void coll_rdv_note_raw(struct coll_rdv *rdv, uint32_t begun)
{
    rdv->ops->note_raw(rdv, begun);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* A rank that has not joined yet may be close behind, and reads the result if the page lives a little longer. */
static bool is_decided(struct coll_rdv *rdv, enum coll_vote_phase phase, int64_t ms, int64_t *decided_ms)
{
    const struct coll_vote_state state = rdv->ops->poll(rdv, phase);
    if (state.result == COLL_VOTE_OPEN)
        return false;
    if (*decided_ms < 0)
        *decided_ms = ms;
    return state.all || ms - *decided_ms >= rdv->ops->linger_ms;
}

enum coll_verdict coll_rdv_wait(struct coll_rdv *rdv, enum coll_vote_phase phase,
                                bool (*go_on)(struct coll_rdv *rdv, int64_t ms, void *argument), void *argument)
{
    const int64_t begin = now_ms();
    int64_t ms = 0, decided_ms = -1;
    while (!is_decided(rdv, phase, ms, &decided_ms) && go_on(rdv, ms, argument)) {
        /* Ranks usually join within moments of each other. Later, a sixteenth of the time so far is often enough. */
        const int64_t part = ms * 1000000 / 16, most = part < rdv->ops->poll_max_ns ? part : rdv->ops->poll_max_ns;
        rdv->ops->rest(rdv, most > rdv->ops->poll_min_ns ? most : rdv->ops->poll_min_ns);
        ms = now_ms() - begin;
    }
    rdv->ops->abort(rdv, phase);
    const struct coll_vote_state state = rdv->ops->poll(rdv, phase);
    if (state.result == COLL_VOTE_OPEN)
        return COLL_VERDICT_OPEN;
    return state.result == COLL_VOTE_GO ? COLL_VERDICT_GO : COLL_VERDICT_RAW;
}

bool coll_rdv_any_paired(struct coll_rdv *rdv)
{
    return rdv->ops->poll(rdv, COLL_PHASE_REACHED).paired;
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    const size_t used = strlen(text);
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

static void put_missing(const struct coll_vote_state *state, char *text, size_t size)
{
    const int first_missing = state->missing < COLL_MISSING_MAX ? state->missing : COLL_MISSING_MAX;
    snprintf(text, size, state->missing == 1 ? "rank" : "ranks");
    for (int i = 0; i < first_missing; i++)
        append(text, size, "%s %d", i == 0 ? "" : ",", state->first_missing[i]);
    if (state->missing > first_missing)
        append(text, size, " and %d more", state->missing - first_missing);
}

void coll_rdv_missing(struct coll_rdv *rdv, enum coll_vote_phase phase, char *text, size_t size)
{
    const struct coll_vote_state state = rdv->ops->ask(rdv, phase);
    put_missing(&state, text, size);
}

/* If no rank is missing any more, some came after the phase was aborted. */
static void put_missing_reason(const struct coll_rdv *rdv, const struct coll_vote_state *state, char *text, size_t size)
{
    char missing[96];
    put_missing(state, missing, sizeof(missing));
    if (state->missing == 0)
        snprintf(text, size, "some of its ranks came too late");
    else
        snprintf(text, size, "%s did not come in time: other values of STRAIT_COLL there, no libstrait-coll%s", missing,
                 rdv->ops->linger_ms > 0 ? ", or another host" : "");
}

void coll_rdv_reason(struct coll_rdv *rdv, enum coll_vote_phase phase, char *text, size_t size)
{
    static const char *const texts[COLL_VOTE_RESULTS] = {
        [COLL_VOTE_ENDED] = "rank %d has ended",
        [COLL_VOTE_UNABLE] = "rank %d is not able to, and has said why",
        [COLL_VOTE_DIFFERS] = "rank %d blocks where others do not, or has begun other operations",
        [COLL_VOTE_ONE_THREAD] =
            "rank %d is called by a thread that has another rank of it, and nothing of it may block",
        [COLL_VOTE_LEFT] = "rank %d has left",
        [COLL_VOTE_LOST] = "the process that made the unique id is not reached any more"};
    const struct coll_vote_state state = rdv->ops->poll(rdv, phase);
    if (state.result == COLL_VOTE_MISSING)
        put_missing_reason(rdv, &state, text, size);
    else if (state.result < COLL_VOTE_RESULTS && texts[state.result] != NULL)
        snprintf(text, size, texts[state.result], state.rank);
}
