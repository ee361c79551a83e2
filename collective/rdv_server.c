#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/address.h"
#include "collective/rdv_server.h"
#include "internal/bytes.h"

struct rdv_entry {
    struct rdv_entry *older;
    uint64_t words[2];
    unsigned seated;
    struct coll_vote board;
    int sockets[RDV_RANKS_MAX]; /* by rank; -1: nobody */
};

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* Also false if there is unread data before the end: nobody waits for the answer. */
static bool is_there(const void *whom, int rank)
{
    const struct rdv_entry *table = whom;
    struct pollfd look = {.fd = table->sockets[rank], .events = POLLRDHUP};
    return look.fd >= 0 && poll(&look, 1, 0) == 0;
}

static void end(struct rdv_entries *tables, struct rdv_entry *ended)
{
    struct rdv_entry **at = &tables->newest;
    while (*at != ended)
        at = &(*at)->older;
    *at = ended->older;
    tables->count--;
    free(ended->board.sheet);
    free(ended);
}

/* Frees the oldest table at which nobody sits. */
static bool hall_table_make_room(struct rdv_entries *tables)
{
    struct rdv_entry *oldest = NULL;
    for (struct rdv_entry *table = tables->newest; table != NULL; table = table->older)
        oldest = table->seated == 0 ? table : oldest;
    if (oldest != NULL)
        end(tables, oldest);
    return oldest != NULL;
}

static struct rdv_entry *make(struct rdv_entries *tables, const struct meet_hello *hello)
{
    if (tables->count == RDV_ENTRIES_MAX && !hall_table_make_room(tables))
        return NULL;
    struct rdv_entry *made = calloc(1, sizeof(*made));
    struct coll_vote_page *sheet = calloc(1, coll_vote_page_size((int)hello->ranks));
    if (made == NULL || sheet == NULL) {
        free(made);
        free(sheet);
        return NULL;
    }
    *made =
        (struct rdv_entry){.older = tables->newest,
                           .words = {hello->words[0], hello->words[1]},
                           .board = {.sheet = sheet, .ranks = (int)hello->ranks, .is_there = is_there, .whom = made}};
    for (int rank = 0; rank < RDV_RANKS_MAX; rank++)
        made->sockets[rank] = -1;
    tables->newest = made;
    tables->count++;
    return made;
}

static struct rdv_entry *find(const struct rdv_entries *tables, const struct meet_hello *hello)
{
    struct rdv_entry *table = tables->newest;
    while (table != NULL && (table->words[0] != hello->words[0] || table->words[1] != hello->words[1]))
        table = table->older;
    return table;
}

/* ---- Seats ------------------------------------------------------------------------------------------------------- */

bool rdv_admit(struct rdv_entries *tables, const struct meet_hello *hello, int socket, struct rdv_slot *seat)
{
    if (hello->ranks < 2 || hello->ranks > RDV_RANKS_MAX || hello->rank >= hello->ranks)
        return false;
    const int rank = (int)hello->rank;
    struct rdv_entry *table = find(tables, hello);
    if (table == NULL)
        table = make(tables, hello);
    if (table == NULL || table->board.ranks != (int)hello->ranks || table->sockets[rank] >= 0 ||
        coll_vote_has_cast(&table->board, rank, COLL_PHASE_PRESENT))
        return false;
    table->sockets[rank] = socket;
    table->seated++;
    *seat = (struct rdv_slot){table, rank};
    return true;
}

/* One word for each round, and COLL_ROUND_PRESENT before all others. */
static bool may_say(const struct rdv_slot *seat, enum coll_vote_phase round)
{
    const struct coll_vote *board = &seat->table->board;
    return !coll_vote_has_cast(board, seat->rank, round) &&
           (round == COLL_PHASE_PRESENT || coll_vote_has_cast(board, seat->rank, COLL_PHASE_PRESENT));
}

static void leave(const struct rdv_slot *seat)
{
    for (int round = 0; round < COLL_VOTE_PHASES; round++)
        coll_vote_publish(&seat->table->board, (enum coll_vote_phase)round, COLL_VOTE_LEFT, seat->rank);
}

bool rdv_handle(const struct rdv_slot *seat, const struct meet_request *request, struct coll_vote_state *view)
{
    const struct coll_vote *board = &seat->table->board;
    if (request->action == MEET_SAY) {
        if (!may_say(seat, request->round))
            return false;
        coll_vote_cast(board, seat->rank, request->round, &request->word);
        coll_vote_evaluate(board, request->round);
    } else if (request->action == MEET_GIVE_UP) {
        coll_vote_publish(board, request->round, COLL_VOTE_ABSENT, seat->rank);
    } else if (request->action == MEET_PASS) {
        coll_vote_note_raw(board, seat->rank, request->word.index);
        coll_vote_evaluate(board, COLL_PHASE_REACHED);
    } else if (request->action == MEET_LEAVE) {
        leave(seat);
        return false;
    }
    *view = coll_vote_status(board, request->round);
    return true;
}

/* Decides for the others what can be told now. */
void rdv_depart(struct rdv_entries *tables, struct rdv_slot *seat)
{
    struct rdv_entry *table = seat->table;
    const int rank = seat->rank;
    if (table == NULL)
        return;
    table->sockets[rank] = -1;
    table->seated--;
    *seat = (struct rdv_slot){0};
    for (int round = 0; round < COLL_VOTE_PHASES; round++)
        coll_vote_evaluate(&table->board, (enum coll_vote_phase)round);
    const struct coll_vote_state view = coll_vote_status(&table->board, COLL_PHASE_PRESENT);
    if (table->seated == 0 && (view.all || view.ending == COLL_VOTE_OPEN))
        end(tables, table);
}

void rdv_entries_free(struct rdv_entries *tables)
{
    while (tables->newest != NULL)
        end(tables, tables->newest);
}

/* A frame has to be complete within FRAME_MS, and so does a connection's first one. When descriptors run out, nothing
 * is accepted for DEAF_MS. */
enum { CONNS_MAX = 1024, FRAME_MS = 10000, LOOK_MS = 500, ACCEPT_PAUSE_MS = 100 };

struct rdv_conn {
    int socket;
    struct rdv_slot seat; /* without a table: a stranger */
    int64_t since_ms;     /* when the current frame began; for a stranger, when it came */
    size_t got;
    uint8_t frame[MEET_FRAME_BYTES];
};

struct rdv_server {
    int listener;
    uint8_t secret[COLL_SECRET_BYTES];
    int64_t accept_paused_until_ms;
    struct rdv_entries tables;
    unsigned count, most;
    struct rdv_conn conns[CONNS_MAX];
    struct pollfd ready[CONNS_MAX + 1]; /* of guests in their order, then of the listener */
};

/* ---- Guests ------------------------------------------------------------------------------------------------------ */

static bool is_unauthenticated(const struct rdv_conn *rdv_conn)
{
    return rdv_conn->seat.table == NULL;
}

/* The last guest takes its place in the array. */
static void conn_drop(struct rdv_server *rdv_server, unsigned number)
{
    struct rdv_conn *rdv_conn = &rdv_server->conns[number];
    rdv_depart(&rdv_server->tables, &rdv_conn->seat);
    (void)close(rdv_conn->socket);
    *rdv_conn = rdv_server->conns[--rdv_server->count];
}

/* Sends off the stranger that has been there longest. */
static bool hall_make_room(struct rdv_server *rdv_server)
{
    unsigned oldest = rdv_server->count;
    for (unsigned i = 0; i < rdv_server->count; i++)
        if (is_unauthenticated(&rdv_server->conns[i]) &&
            (oldest == rdv_server->count || rdv_server->conns[i].since_ms < rdv_server->conns[oldest].since_ms))
            oldest = i;
    if (oldest == rdv_server->count)
        return false;
    conn_drop(rdv_server, oldest);
    return true;
}

void rdv_server_adopt(struct rdv_server *rdv_server, int socket)
{
    if (rdv_server->count >= rdv_server->most && !hall_make_room(rdv_server)) {
        (void)close(socket);
        return;
    }
    address_tune(socket);
    rdv_server->conns[rdv_server->count++] = (struct rdv_conn){.socket = socket, .since_ms = now_ms()};
}

static void conn_accept(struct rdv_server *rdv_server)
{
    const int socket = accept4(rdv_server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0)
        rdv_server_adopt(rdv_server, socket);
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        rdv_server->accept_paused_until_ms = now_ms() + ACCEPT_PAUSE_MS;
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* In constant time, so as not to reveal how much of it is right. */
static bool secret_matches(const struct rdv_server *rdv_server, const struct meet_hello *hello)
{
    unsigned differs = 0;
    for (unsigned i = 0; i < COLL_SECRET_BYTES; i++)
        differs |= rdv_server->secret[i] ^ hello->secret[i];
    return differs == 0;
}

static bool on_hello(struct rdv_server *rdv_server, struct rdv_conn *rdv_conn, struct coll_vote_state *view)
{
    const struct meet_request look = {.action = MEET_LOOK, .round = COLL_PHASE_PRESENT};
    struct meet_hello hello;
    return meet_hello_get(rdv_conn->frame, &hello) && secret_matches(rdv_server, &hello) &&
           rdv_admit(&rdv_server->tables, &hello, rdv_conn->socket, &rdv_conn->seat) &&
           rdv_handle(&rdv_conn->seat, &look, view);
}

static bool on_request(const struct rdv_conn *rdv_conn, struct coll_vote_state *view, bool *answered)
{
    struct meet_request request;
    if (!meet_request_get(rdv_conn->frame, &request))
        return false;
    *answered = request.action != MEET_PASS;
    return rdv_handle(&rdv_conn->seat, &request, view);
}

/* A guest that goes on asking without reading the answers runs out of buffer, and is sent off. */
static bool answer(struct rdv_server *rdv_server, struct rdv_conn *rdv_conn)
{
    uint8_t frame[MEET_FRAME_BYTES];
    struct coll_vote_state view;
    bool answered = true;
    if (!(is_unauthenticated(rdv_conn) ? on_hello(rdv_server, rdv_conn, &view)
                                       : on_request(rdv_conn, &view, &answered)))
        return false;
    rdv_conn->got = 0;
    if (!answered)
        return true;
    meet_view_put(frame, &view);
    return send(rdv_conn->socket, frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(frame);
}

/* False: the guest has to be sent off. */
static bool conn_read(struct rdv_server *rdv_server, struct rdv_conn *rdv_conn)
{
    const ssize_t size =
        recv(rdv_conn->socket, rdv_conn->frame + rdv_conn->got, MEET_FRAME_BYTES - rdv_conn->got, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (size <= 0)
        return false;
    if (rdv_conn->got == 0 && !is_unauthenticated(rdv_conn))
        rdv_conn->since_ms = now_ms();
    rdv_conn->got += (size_t)size;
    return rdv_conn->got < MEET_FRAME_BYTES || answer(rdv_server, rdv_conn);
}

/* ---- A turn ------------------------------------------------------------------------------------------------------ */

static bool is_timed(const struct rdv_conn *rdv_conn)
{
    return is_unauthenticated(rdv_conn) || rdv_conn->got > 0;
}

void rdv_server_wait(struct rdv_server *rdv_server, int milliseconds)
{
    const bool deaf = rdv_server->accept_paused_until_ms > now_ms();
    int most = deaf ? ACCEPT_PAUSE_MS : milliseconds;
    for (unsigned i = 0; i < rdv_server->count; i++) {
        rdv_server->ready[i] = (struct pollfd){.fd = rdv_server->conns[i].socket, .events = POLLIN};
        if (is_timed(&rdv_server->conns[i]) && (most < 0 || most > LOOK_MS))
            most = LOOK_MS;
    }
    rdv_server->ready[rdv_server->count] = (struct pollfd){.fd = deaf ? -1 : rdv_server->listener, .events = POLLIN};
    if (poll(rdv_server->ready, rdv_server->count + 1, most) >= 0)
        return;
    for (unsigned i = 0; i <= rdv_server->count; i++) /* after an error, nothing is known of them */
        rdv_server->ready[i].revents = 0;
}

/* Goes from the last guest to the first, as the last one replaces one that is sent off. */
void rdv_server_progress(struct rdv_server *rdv_server)
{
    const bool called = rdv_server->ready[rdv_server->count].revents != 0;
    const int64_t late_ms = now_ms() - FRAME_MS;
    for (unsigned i = rdv_server->count; i-- > 0;) {
        struct rdv_conn *rdv_conn = &rdv_server->conns[i];
        if ((rdv_server->ready[i].revents != 0 && !conn_read(rdv_server, rdv_conn)) ||
            (is_timed(rdv_conn) && rdv_conn->since_ms < late_ms))
            conn_drop(rdv_server, i);
    }
    if (called)
        conn_accept(rdv_server);
}

/* ---- Opened and closed ------------------------------------------------------------------------------------------- */

/* Most of a process's descriptors are left to the program. */
static unsigned conns_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / 4 >= CONNS_MAX)
        return CONNS_MAX;
    return files.rlim_cur >= 64 ? (unsigned)files.rlim_cur / 4 : 16;
}

struct rdv_server *rdv_server_open(struct coll_rdv_endpoint *place)
{
    struct rdv_server *made = calloc(1, sizeof(*made));
    memset(place, 0, sizeof(*place));
    if (made == NULL || getrandom(made->secret, COLL_SECRET_BYTES, 0) != COLL_SECRET_BYTES ||
        (made->listener = address_listen(&place->address)) < 0) {
        free(made);
        return NULL;
    }
    made->most = conns_limit();
    memcpy(place->secret, made->secret, COLL_SECRET_BYTES);
    return made;
}

void rdv_server_close(struct rdv_server *rdv_server)
{
    for (unsigned i = 0; i < rdv_server->count; i++)
        (void)close(rdv_server->conns[i].socket);
    (void)close(rdv_server->listener);
    rdv_entries_free(&rdv_server->tables);
    free(rdv_server);
}

void rdv_server_counts(const struct rdv_server *rdv_server, unsigned *conns, unsigned *tables)
{
    *conns = rdv_server->count;
    *tables = rdv_server->tables.count;
}

/* magic, family, port, scope, address, secret, zeros: "STRCARD1" */
#define MAGIC UINT64_C(0x3144524143525453)
enum { CARD_AT = 64, CARD_BYTES = COLL_ID_BYTES - CARD_AT };

/* ---- In bytes ---------------------------------------------------------------------------------------------------- */

static void store(uint8_t *card, const struct coll_rdv_endpoint *place)
{
    store_le64(card, MAGIC);
    store_le16(card + 8, place->address.family);
    store_le16(card + 10, place->address.port);
    store_le32(card + 12, place->address.scope);
    memcpy(card + 16, place->address.bytes, sizeof(place->address.bytes));
    memcpy(card + 32, place->secret, COLL_SECRET_BYTES);
}

void coll_unique_id_read(const coll_id *id, struct coll_rdv_endpoint *place)
{
    const uint8_t *card = (const uint8_t *)id->bytes + CARD_AT;
    memset(place, 0, sizeof(*place));
    if (load_le64(card) != MAGIC)
        return;
    place->address =
        (struct address){.family = load_le16(card + 8), .port = load_le16(card + 10), .scope = load_le32(card + 12)};
    memcpy(place->address.bytes, card + 16, sizeof(place->address.bytes));
    memcpy(place->secret, card + 32, COLL_SECRET_BYTES);
}

/* ---- The process's place ----------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    struct rdv_server *rdv_server; /* NULL: it has not been opened */
    struct coll_rdv_endpoint place;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

void coll_unique_id_lock(void)
{
    pthread_mutex_lock(&own.lock);
}

void coll_unique_id_unlock(void)
{
    pthread_mutex_unlock(&own.lock);
}

void coll_unique_id_clear(void)
{
    if (own.rdv_server != NULL)
        rdv_server_close(own.rdv_server);
    own.rdv_server = NULL;
}

/* Runs for as long as the process does: children of a communicator may be made at any time. */
static void *run(void *argument)
{
    struct rdv_server *rdv_server = argument;
    for (;;) {
        rdv_server_wait(rdv_server, -1);
        coll_unique_id_lock();
        rdv_server_progress(rdv_server);
        coll_unique_id_unlock();
    }
    return NULL;
}

/* All signals are blocked: they are for the program's threads. */
static bool start(struct rdv_server *rdv_server)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, run, rdv_server) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

static bool open_own(void)
{
    struct rdv_server *opened = own.rdv_server == NULL ? rdv_server_open(&own.place) : NULL;
    if (opened != NULL && start(opened))
        own.rdv_server = opened;
    else if (opened != NULL)
        rdv_server_close(opened);
    return own.rdv_server != NULL;
}

/* An id named by NCCL_COMM_ID is the same in all processes, and each of them may have asked for it. */
void coll_unique_id_put(coll_id *id)
{
    static const uint8_t nothing[CARD_BYTES];
    uint8_t *card = (uint8_t *)id->bytes + CARD_AT;
    const char *named = getenv("NCCL_COMM_ID");
    if ((named != NULL && *named != '\0') || memcmp(card, nothing, CARD_BYTES) != 0)
        return;
    coll_unique_id_lock();
    if (open_own())
        store(card, &own.place);
    coll_unique_id_unlock();
}
