#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/rendezvous.h"
#include "internal/bytes.h"
#include "internal/socket_address.h"
#include "internal/thread.h"
#include "transport/rank_address.h"

struct rdv_entry {
    struct rdv_entry *older;
    uint64_t words[2];
    unsigned connected;
    uint32_t told; /* bits: phases whose result all connected ranks were told */
    struct coll_vote vote;
    int sockets[RDV_RANKS_MAX]; /* by rank; -1: not connected */
};

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

/* False also if unread requests precede the end of the connection: their sender does not wait for answers. */
static bool is_alive(const void *owner, int rank)
{
    const struct rdv_entry *entry = owner;
    struct pollfd poll_present = {.fd = entry->sockets[rank], .events = POLLRDHUP};
    return poll_present.fd >= 0 && poll(&poll_present, 1, 0) == 0;
}

static void entry_free(struct rdv_entries *entries, struct rdv_entry *ended)
{
    struct rdv_entry **at = &entries->newest;
    while (*at != ended)
        at = &(*at)->older;
    *at = ended->older;
    entries->count--;
    free(ended->vote.page);
    free(ended);
}

/* Frees the oldest entry without connections. */
static bool evict_entry(struct rdv_entries *entries)
{
    struct rdv_entry *oldest = NULL;
    for (struct rdv_entry *entry = entries->newest; entry != NULL; entry = entry->older)
        oldest = entry->connected == 0 ? entry : oldest;
    if (oldest != NULL)
        entry_free(entries, oldest);
    return oldest != NULL;
}

static struct rdv_entry *entry_create(struct rdv_entries *entries, const struct rdv_hello *hello)
{
    if (entries->count == RDV_ENTRIES_MAX && !evict_entry(entries))
        return NULL;
    struct rdv_entry *made = calloc(1, sizeof(*made));
    struct coll_vote_page *page = calloc(1, coll_vote_page_size((int)hello->ranks));
    if (made == NULL || page == NULL) {
        free(made);
        free(page);
        return NULL;
    }
    *made = (struct rdv_entry){.older = entries->newest,
                               .words = {hello->words[0], hello->words[1]},
                               .vote = {.page = page, .ranks = (int)hello->ranks, .is_alive = is_alive, .owner = made}};
    for (int rank = 0; rank < RDV_RANKS_MAX; rank++)
        made->sockets[rank] = -1;
    entries->newest = made;
    entries->count++;
    return made;
}

static struct rdv_entry *entry_find(const struct rdv_entries *entries, const struct rdv_hello *hello)
{
    struct rdv_entry *entry = entries->newest;
    while (entry != NULL && (entry->words[0] != hello->words[0] || entry->words[1] != hello->words[1]))
        entry = entry->older;
    return entry;
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

/* False: this rank, connected by `socket`, is refused. */
static bool rdv_admit(struct rdv_entries *entries, const struct rdv_hello *hello, int socket, struct rdv_slot *slot)
{
    if (hello->ranks < 2 || hello->ranks > RDV_RANKS_MAX || hello->rank >= hello->ranks)
        return false;
    const int rank = (int)hello->rank;
    struct rdv_entry *entry = entry_find(entries, hello);
    if (entry == NULL)
        entry = entry_create(entries, hello);
    if (entry == NULL || entry->vote.ranks != (int)hello->ranks || entry->sockets[rank] >= 0 ||
        coll_vote_has_cast(&entry->vote, rank, COLL_PHASE_PRESENT))
        return false;
    entry->sockets[rank] = socket;
    entry->connected++;
    *slot = (struct rdv_slot){entry, rank};
    return true;
}

/* Tells results that nobody was told yet. A rank whose socket takes no more will ask. */
static void tell_results(struct rdv_entry *entry)
{
    for (int phase = 0; phase < COLL_VOTE_PHASES; phase++) {
        uint8_t frame[RDV_FRAME_BYTES];
        if ((entry->told >> phase & 1) != 0 || !coll_vote_is_decided(&entry->vote, (enum coll_vote_phase)phase))
            continue;
        const struct coll_vote_state state = coll_vote_status(&entry->vote, (enum coll_vote_phase)phase);
        entry->told |= 1u << phase;
        rdv_state_write(frame, &state);
        rdv_state_tell(frame, (enum coll_vote_phase)phase);
        for (int rank = 0; rank < entry->vote.ranks; rank++)
            if (entry->sockets[rank] >= 0)
                (void)send(entry->sockets[rank], frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

/* Handles a request; *state is the answer, if it has one. False: the request breaks a rule, or is RDV_LEAVE. */
static bool rdv_handle(const struct rdv_slot *slot, const struct rdv_request *request, struct coll_vote_state *state)
{
    const struct coll_vote *vote = &slot->entry->vote;
    if (request->action == RDV_VOTE) {
        if (coll_vote_has_cast(vote, slot->rank, request->phase) ||
            (request->phase != COLL_PHASE_PRESENT && !coll_vote_has_cast(vote, slot->rank, COLL_PHASE_PRESENT)))
            return false;
        coll_vote_cast(vote, slot->rank, request->phase, &request->ballot);
        coll_vote_evaluate_ballots(vote, request->phase);
    } else if (request->action == RDV_ABORT) {
        coll_vote_publish(vote, request->phase, COLL_VOTE_MISSING, slot->rank);
    } else if (request->action == RDV_NOTE_RAW) {
        coll_vote_note_raw(vote, slot->rank, request->ballot.index);
        coll_vote_evaluate_ballots(vote, COLL_PHASE_REACHED);
    } else if (request->action == RDV_LEAVE) {
        for (int phase = 0; phase < COLL_VOTE_PHASES; phase++)
            coll_vote_publish(&slot->entry->vote, (enum coll_vote_phase)phase, COLL_VOTE_LEFT, slot->rank);
        return false;
    }
    *state = coll_vote_status(vote, request->phase);
    tell_results(slot->entry);
    return true;
}

/* The end of a connection may give the open phases a result. */
static void rdv_depart(struct rdv_entries *entries, struct rdv_slot *slot)
{
    struct rdv_entry *entry = slot->entry;
    const int rank = slot->rank;
    if (entry == NULL)
        return;
    entry->sockets[rank] = -1;
    entry->connected--;
    *slot = (struct rdv_slot){0};
    for (int phase = 0; phase < COLL_VOTE_PHASES; phase++)
        coll_vote_evaluate(&entry->vote, (enum coll_vote_phase)phase);
    tell_results(entry);
    const struct coll_vote_state state = coll_vote_status(&entry->vote, COLL_PHASE_PRESENT);
    if (entry->connected == 0 && (state.all || state.result == COLL_VOTE_OPEN))
        entry_free(entries, entry);
}

/* A frame has to be complete within FRAME_MS, and so does a connection's first one. When descriptors run out, nothing
 * is accepted for DEAF_MS. */
enum { CONNS_MAX = 4096, ACCEPTS_MAX = 64, FRAME_MS = 10000, CHECK_MS = 500, ACCEPT_PAUSE_MS = 100 };

struct rdv_conn {
    int socket;
    struct rdv_slot slot; /* without an entry: unauthenticated */
    int64_t since_ms;     /* when the current frame began; unauthenticated: when it was accepted */
    size_t received;
    uint8_t frame[RDV_FRAME_BYTES];
};

struct rdv_server {
    int listener;
    uint8_t secret[COLL_SECRET_BYTES];
    int64_t accept_paused_until_ms;
    struct rdv_entries entries;
    unsigned count;
    struct rdv_conn conns[CONNS_MAX];
    struct pollfd ready[CONNS_MAX + 1]; /* of connections in their order, then of the listener */
};

/* ---- Connections ------------------------------------------------------------------------------------------------- */

static bool is_unauthenticated(const struct rdv_conn *conn)
{
    return conn->slot.entry == NULL;
}

/* The last connection takes its index in the array. */
static void conn_drop(struct rdv_server *server, unsigned number)
{
    struct rdv_conn *conn = &server->conns[number];
    rdv_depart(&server->entries, &conn->slot);
    (void)close(conn->socket);
    *conn = server->conns[--server->count];
}

/* Drops the oldest unauthenticated connection. */
static bool evict_unauthenticated(struct rdv_server *server)
{
    unsigned oldest = server->count;
    for (unsigned i = 0; i < server->count; i++)
        if (is_unauthenticated(&server->conns[i]) &&
            (oldest == server->count || server->conns[i].since_ms < server->conns[oldest].since_ms))
            oldest = i;
    if (oldest == server->count)
        return false;
    conn_drop(server, oldest);
    return true;
}

/* Most of a process's descriptors are left to the program. Their number may be raised at any time. */
static unsigned conns_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / 4 >= CONNS_MAX)
        return CONNS_MAX;
    return files.rlim_cur >= 64 ? (unsigned)files.rlim_cur / 4 : 16;
}

void rdv_server_adopt(struct rdv_server *server, int socket)
{
    if (server->count >= conns_limit() && !evict_unauthenticated(server)) {
        (void)close(socket);
        return;
    }
    address_tune(socket);
    server->conns[server->count++] = (struct rdv_conn){.socket = socket, .since_ms = now_ms()};
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* In constant time, so as not to reveal how many bytes are right. */
static bool secret_matches(const struct rdv_server *server, const struct rdv_hello *hello)
{
    unsigned differs = 0;
    for (unsigned i = 0; i < COLL_SECRET_BYTES; i++)
        differs |= server->secret[i] ^ hello->secret[i];
    return differs == 0;
}

static bool on_hello(struct rdv_server *server, struct rdv_conn *conn, struct coll_vote_state *state)
{
    const struct rdv_request poll_present = {.action = RDV_POLL, .phase = COLL_PHASE_PRESENT};
    struct rdv_hello hello;
    return rdv_hello_read(conn->frame, &hello) && secret_matches(server, &hello) &&
           rdv_admit(&server->entries, &hello, conn->socket, &conn->slot) &&
           rdv_handle(&conn->slot, &poll_present, state);
}

static bool on_request(const struct rdv_conn *conn, struct coll_vote_state *state, bool *answered)
{
    struct rdv_request request;
    if (!rdv_request_read(conn->frame, &request))
        return false;
    *answered = request.action != RDV_NOTE_RAW;
    return rdv_handle(&conn->slot, &request, state);
}

/* A peer that sends requests without reading the answers fills its buffer, and is dropped. */
static bool answer_frame(struct rdv_server *server, struct rdv_conn *conn)
{
    uint8_t frame[RDV_FRAME_BYTES];
    struct coll_vote_state state;
    bool answered = true;
    if (!(is_unauthenticated(conn) ? on_hello(server, conn, &state) : on_request(conn, &state, &answered)))
        return false;
    conn->received = 0;
    if (!answered)
        return true;
    rdv_state_write(frame, &state);
    return send(conn->socket, frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(frame);
}

/* False: the connection has to be dropped. */
static bool conn_read(struct rdv_server *server, struct rdv_conn *conn)
{
    const ssize_t size =
        recv(conn->socket, conn->frame + conn->received, RDV_FRAME_BYTES - conn->received, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (size <= 0)
        return false;
    if (conn->received == 0 && !is_unauthenticated(conn))
        conn->since_ms = now_ms();
    conn->received += (size_t)size;
    return conn->received < RDV_FRAME_BYTES || answer_frame(server, conn);
}

/* ---- Poll loop --------------------------------------------------------------------------------------------------- */

static bool has_deadline(const struct rdv_conn *conn)
{
    return is_unauthenticated(conn) || conn->received > 0;
}

void rdv_server_wait(struct rdv_server *server, int milliseconds)
{
    const bool paused = server->accept_paused_until_ms > now_ms();
    int limit = paused ? ACCEPT_PAUSE_MS : milliseconds;
    for (unsigned i = 0; i < server->count; i++) {
        server->ready[i] = (struct pollfd){.fd = server->conns[i].socket, .events = POLLIN};
        if (has_deadline(&server->conns[i]) && (limit < 0 || limit > CHECK_MS))
            limit = CHECK_MS;
    }
    server->ready[server->count] = (struct pollfd){.fd = paused ? -1 : server->listener, .events = POLLIN};
    if (poll(server->ready, server->count + 1, limit) >= 0)
        return;
    for (unsigned i = 0; i <= server->count; i++) /* after an error of poll they are undefined */
        server->ready[i].revents = 0;
}

/* From the last connection to the first, as the last one replaces one that is dropped. */
void rdv_server_progress(struct rdv_server *server)
{
    const bool listener_ready = server->ready[server->count].revents != 0;
    const int64_t expired_ms = now_ms() - FRAME_MS;
    for (unsigned i = server->count; i-- > 0;) {
        struct rdv_conn *conn = &server->conns[i];
        if ((server->ready[i].revents != 0 && !conn_read(server, conn)) ||
            (has_deadline(conn) && conn->since_ms < expired_ms))
            conn_drop(server, i);
    }
    for (unsigned i = 0; i < ACCEPTS_MAX && listener_ready; i++) {
        const int socket = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (socket >= 0) {
            rdv_server_adopt(server, socket);
            continue;
        }
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            server->accept_paused_until_ms = now_ms() + ACCEPT_PAUSE_MS;
        break;
    }
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

struct rdv_server *rdv_server_open(struct coll_rdv_endpoint *endpoint)
{
    struct rdv_server *made = calloc(1, sizeof(*made));
    memset(endpoint, 0, sizeof(*endpoint));
    if (made == NULL || getrandom(made->secret, COLL_SECRET_BYTES, 0) != COLL_SECRET_BYTES ||
        (made->listener = address_listen(&endpoint->address)) < 0) {
        free(made);
        return NULL;
    }
    memcpy(endpoint->secret, made->secret, COLL_SECRET_BYTES);
    return made;
}

void rdv_server_close(struct rdv_server *server)
{
    for (unsigned i = 0; i < server->count; i++)
        (void)close(server->conns[i].socket);
    (void)close(server->listener);
    while (server->entries.newest != NULL)
        entry_free(&server->entries, server->entries.newest);
    free(server);
}

void rdv_server_counts(const struct rdv_server *server, unsigned *conns, unsigned *entries)
{
    *conns = server->count;
    *entries = server->entries.count;
}

/* magic, family, port, scope, address, secret, words of a key or zeros: "STRCARD1", "STRGROW1" */
#define MAGIC      UINT64_C(0x3144524143525453)
#define MAGIC_GROW UINT64_C(0x31574f5247525453)
enum { PAYLOAD_OFFSET = 64, PAYLOAD_BYTES = COLL_ID_BYTES - PAYLOAD_OFFSET };

/* ---- Payload of unique ids --------------------------------------------------------------------------------------- */

static void endpoint_read(const uint8_t *payload, struct coll_rdv_endpoint *endpoint)
{
    endpoint->address = (struct address){
        .family = load_le16(payload + 8), .port = load_le16(payload + 10), .scope = load_le32(payload + 12)};
    memcpy(endpoint->address.bytes, payload + 16, sizeof(endpoint->address.bytes));
    memcpy(endpoint->secret, payload + 32, COLL_SECRET_BYTES);
}

static void endpoint_write(uint8_t *payload, const struct coll_rdv_endpoint *endpoint)
{
    store_le16(payload + 8, endpoint->address.family);
    store_le16(payload + 10, endpoint->address.port);
    store_le32(payload + 12, endpoint->address.scope);
    memcpy(payload + 16, endpoint->address.bytes, sizeof(endpoint->address.bytes));
    memcpy(payload + 32, endpoint->secret, COLL_SECRET_BYTES);
}

static bool is_in_use(const uint8_t *payload)
{
    static const uint8_t nothing[PAYLOAD_BYTES];
    return memcmp(payload, nothing, PAYLOAD_BYTES) != 0;
}

void coll_unique_id_read(const coll_id *id, struct coll_rdv_endpoint *endpoint)
{
    const uint8_t *payload = (const uint8_t *)id->bytes + PAYLOAD_OFFSET;
    memset(endpoint, 0, sizeof(*endpoint));
    if (load_le64(payload) == MAGIC)
        endpoint_read(payload, endpoint);
}

void coll_grow_id_put(coll_id *id, const struct coll_key *key)
{
    uint8_t *payload = (uint8_t *)id->bytes + PAYLOAD_OFFSET;
    if (coll_key_is_none(key) || is_in_use(payload))
        return;
    store_le64(payload, MAGIC_GROW);
    endpoint_write(payload, &key->server);
    store_le64(payload + 48, key->words[0]);
    store_le64(payload + 56, key->words[1]);
}

struct coll_key coll_grow_id_read(const coll_id *id)
{
    const uint8_t *payload = (const uint8_t *)id->bytes + PAYLOAD_OFFSET;
    struct coll_key key = {0};
    if (load_le64(payload) != MAGIC_GROW)
        return key;
    endpoint_read(payload, &key.server);
    key.words[0] = load_le64(payload + 48);
    key.words[1] = load_le64(payload + 56);
    return key;
}

/* ---- The server of the process ----------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    struct rdv_server *server; /* NULL: not open */
    struct coll_rdv_endpoint endpoint;
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
    if (own.server != NULL)
        rdv_server_close(own.server);
    own.server = NULL;
}

/* Serves until the process ends, as children of a communicator may be made at any time. */
static void *run(void *argument)
{
    struct rdv_server *server = argument;
    for (;;) {
        rdv_server_wait(server, -1);
        coll_unique_id_lock();
        rdv_server_progress(server);
        coll_unique_id_unlock();
    }
    return NULL;
}

static bool open_own(void)
{
    struct rdv_server *opened = own.server == NULL ? rdv_server_open(&own.endpoint) : NULL;
    pthread_t thread;
    if (opened != NULL && thread_start(&thread, run, opened) == 0) {
        pthread_detach(thread);
        own.server = opened;
    } else if (opened != NULL) {
        rdv_server_close(opened);
    }
    return own.server != NULL;
}

/* With NCCL_COMM_ID all processes may ask for the same id, which can then name no server. */
void coll_unique_id_put(coll_id *id)
{
    uint8_t *payload = (uint8_t *)id->bytes + PAYLOAD_OFFSET;
    const char *named = getenv("NCCL_COMM_ID");
    if ((named != NULL && *named != '\0') || is_in_use(payload))
        return;
    coll_unique_id_lock();
    if (open_own()) {
        store_le64(payload, MAGIC);
        endpoint_write(payload, &own.endpoint);
    }
    coll_unique_id_unlock();
}
