#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/client_requests.h"
#include "daemon/clients.h"
#include "daemon/exchange.h"
#include "daemon/handover.h"
#include "daemon/node.h"
#include "daemon/request.h"
#include "daemon/session.h"

#define SESSION_QUEUE_BYTES (64u * 1024 * 1024) /* a client with more unread events is disconnected */
#define SESSION_MESSAGES    64u                 /* read from one client before the others have their turn */
#define RINGED_MAX          64u                 /* clients with rings, which every turn looks at */
#define HALF_OPEN_MAX       256u                /* connections without a hello: beyond these the oldest is closed */

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static void session_free(struct session *session)
{
    struct node *node = session->node;
    if (session->pidfd >= 0)
        close(session->pidfd);
    if (session->tenant != NULL)
        session->tenant->clients--;
    DL_DELETE(node->sessions, session);
    node->session_count--;
    node->half_open -= !session->has_hello;
    node->client_gone |= session->embedded;
    session_words_fini(session);
    free(session->failed);
    free(session);
}

static void give_ring_place(struct session *session)
{
    session->node->ringed -= session->ring_place;
    session->ring_place = false;
}

static void ring_end(struct session *session)
{
    give_ring_place(session);
    socket_ring_close(&session->ring);
}

/* All requests have drained: closing the socket tells the client so. */
static void close_socket(struct session *session)
{
    watch_close(session->socket);
    watch_close(session->process);
    session->socket = session->process = NULL;
    channel_destroy(session->channel);
    session->channel = NULL;
    ring_end(session);
    struct request *request, *next;
    HASH_ITER (by_transfer, session->requests, request, next) { /* decided: only its legs are left */
        HASH_DELETE(by_transfer, session->requests, request);
        request_untell(request);
        request->session = NULL;
    }
}

static void end_if_drained(struct session *session)
{
    if (!session->ending || session->channel == NULL || session->undrained != 0 || session->mapping)
        return;
    session_pools_end(session);
    close_socket(session);
}

void clients_reap(struct node *node)
{
    struct session *session, *next;
    if (!node->sessions_ended)
        return;
    node->sessions_ended = false;
    DL_FOREACH_SAFE (node->sessions, session, next) {
        if (session_lost_tenant(session))
            client_end(session, session_no_tenant); /* it may connect again */
        end_if_drained(session);
        if (session->ending && session->channel == NULL && session->jobs == 0) /* else it is asked again */
            session_free(session);
    }
}

static void end_session(struct session *session)
{
    struct node *node = session->node;
    if (session->ending)
        return;
    handover_session_end(session);
    session->ending = true;
    watch_close(session->socket);
    watch_close(session->process);
    session->socket = session->process = NULL;
    sampling_session_end(session);
    client_requests_end(session);
    node->exchange.events.run(node);
    notes_session_end(session);
    node->sessions_ended = true;
}

void client_end(struct session *session, const char *why)
{
    if (!session->ending && session->has_hello)
        log_limited(session->node->log, LOG_OF_CLIENTS, LOG_INFO,
                    "msg=\"client left\" pid=%u uid=%u why=\"%s\" transfers=%u", session->pid, session->uid, why,
                    HASH_CNT(by_transfer, session->requests));
    end_session(session);
}

/* ---- Refusing ---------------------------------------------------------------------------------------------------- */

/* Counts and logs a refusal, and tells the client. Nothing has been sent on its socket, so there is room. */
static void tell_refused(struct node *node, int fd, enum refusal refusal, const char *why)
{
    const struct message message = {.type = MESSAGE_REFUSED,
                                    .refused = {.status = STRAIT_ERR_NO_SPACE, .text = view_of(why, strlen(why))}};
    struct ucred client = {0};
    socklen_t client_size = sizeof(client);
    uint8_t *frame;
    size_t size;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &client, &client_size);
    node->metrics.clients_refused[refusal]++;
    log_limited(node->log, LOG_OF_CLIENT_ERRORS, LOG_WARN, "msg=\"client refused\" pid=%d uid=%u why=\"%s\"",
                (int)client.pid, client.uid, why);
    if (message_pack(&message, &frame, &size) != STRAIT_OK)
        return;
    (void)!send(fd, frame, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    free(frame);
}

/* Refuses a client that has not been welcomed. */
static void refuse_session(struct session *session, enum refusal refusal, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void refuse_session(struct session *session, enum refusal refusal, const char *format, ...)
{
    char why[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    tell_refused(session->node, channel_fd(session->channel), refusal, why);
    end_session(session);
}

/* Whether there is a place for a client of this user. Connections without a hello take none. */
static bool has_place(struct session *session)
{
    const struct node_options *options = &session->node->options;
    const struct session *other;
    uint32_t clients = 0, of_user = 0;
    DL_FOREACH (session->node->sessions, other) {
        clients += other->has_hello;
        of_user += other->has_hello && other->uid == session->uid;
    }
    if (clients >= options->clients)
        refuse_session(session, REFUSED_CLIENTS, "too many clients (option clients=%u)", options->clients);
    else if (of_user >= options->clients_per_user)
        refuse_session(session, REFUSED_CLIENTS_PER_USER, "too many clients of user %u (option clients-per-user=%u)",
                       session->uid, options->clients_per_user);
    else if (session->tenant == NULL)
        refuse_session(session, REFUSED_NO_TENANT, "user %u belongs to no tenant (option tenants-file)", session->uid);
    return !session->ending;
}

/* An honest client sends its hello at once, so the oldest connection without one is none. */
static void make_room(struct node *node)
{
    struct session *session;
    if (node->half_open < HALF_OPEN_MAX)
        return;
    DL_FOREACH (node->sessions, session)
        if (!session->has_hello && !session->ending && !session->successor) {
            refuse_session(session, REFUSED_HALF_OPEN, "more than %u connections that send no hello", HALF_OPEN_MAX);
            return;
        }
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static void welcome(struct session *session)
{
    struct node *node = session->node;
    const char *address = peers_address(node->peers);
    struct message message = {.type = MESSAGE_WELCOME};
    session->ring_place = node->ringed < RINGED_MAX;
    node->ringed += session->ring_place;
    message.welcome = (struct message_welcome){.version = PROTOCOL_VERSION,
                                               .incarnation = node->incarnation,
                                               .address = view_of(address, strlen(address)),
                                               .daemon = view_of(strait_version(), strlen(strait_version())),
                                               .node = node->id,
                                               .samples = true,
                                               .rings = session->ring_place};
    const struct strait_codebook *codebook = node_codebook(node);
    if (codebook != NULL)
        message.welcome.codebook_id = view_of(strait_codebook_id(codebook), CODEBOOK_ID_BYTES);
    session_send(session, &message);
}

static void on_death(void *owner, uint32_t events)
{
    (void)events;
    client_end(owner, "process ended");
}

static void watch_process(struct session *session)
{
    struct node *node = session->node;
    if (session->pid == (uint32_t)getpid() || session->pid == 0)
        return;
    session->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)session->pid, 0);
    if (session->pidfd < 0)
        return; /* another pid namespace, or an old kernel: only the socket tells of its death */
    if (watch_open(node->loop, session->pidfd, on_death, session, &node->watches, &session->process) == STRAIT_OK)
        watch_for(session->process, WATCH_READ);
}

void clients_tell_codebook(struct node *node)
{
    const struct strait_codebook *codebook = node_codebook(node);
    struct message message = {.type = MESSAGE_CODEBOOK};
    struct session *session;
    if (codebook != NULL)
        message.codebook.id = view_of(strait_codebook_id(codebook), CODEBOOK_ID_BYTES);
    DL_FOREACH (node->sessions, session)
        if (session->has_hello)
            session_send(session, &message);
}

void clients_go_away(struct node *node)
{
    const struct message message = {.type = MESSAGE_GOAWAY};
    struct session *session;
    DL_FOREACH (node->sessions, session)
        if (session->has_hello)
            session_send(session, &message);
}

void clients_end_idle(struct node *node)
{
    struct session *session, *next;
    DL_FOREACH_SAFE (node->sessions, session, next)
        if (session->undrained == 0 && !session->mapping && !session->successor)
            client_end(session, "another daemon takes over");
}

static void hello(struct session *session, const struct message_hello *message)
{
    if (!has_place(session))
        return;
    session->has_hello = true;
    session->node->half_open--;
    watch_process(session);
    session->node->metrics.clients_accepted++;
    welcome(session); /* the version in it lets the client find that it does not speak it */
    if (message->version < PROTOCOL_VERSION_MIN || message->version_min > PROTOCOL_VERSION) {
        session->node->metrics.client_errors++;
        (void)channel_flush(session->channel);
        client_end(session, "no common protocol version");
    }
}

/* Another daemon of this host wants shared memory: from now on its socket belongs to the peers. */
static void hand_to_peers(struct session *session, const struct message_shm_hello *message)
{
    struct channel *channel = session->channel;
    watch_close(session->socket);
    watch_close(session->process);
    session->socket = session->process = NULL;
    session->channel = NULL;
    session->ending = true;
    session->node->sessions_ended = true;
    peers_accept_shm(session->node->peers, channel, message);
}

/* What either side sends from now on goes by them. */
static bool take_rings(struct session *session, const struct message_rings *rings, int memfd)
{
    const struct message answer = {.type = MESSAGE_RING};
    if (session->ring.file.base != NULL || !session->ring_place ||
        !socket_ring_map(&session->ring, session->channel, rings, memfd))
        return false;
    session_send(session, &answer);
    channel_send_by(session->channel, &session->ring.layer.layer);
    return channel_receive_by(session->channel, &session->ring.layer.layer);
}

static bool handle(struct session *session, struct message *message, const int *fds, uint32_t fd_count)
{
    if (!session->has_hello) {
        if (message->type == MESSAGE_HELLO)
            hello(session, &message->hello);
        else if (message->type == MESSAGE_SHM_HELLO)
            hand_to_peers(session, &message->shm_hello);
        else if (message->type == MESSAGE_HANDOVER)
            return handover_message(session, &message->handover);
        return message->type == MESSAGE_HELLO || message->type == MESSAGE_SHM_HELLO;
    }
    if (message->type == MESSAGE_RINGS)
        return take_rings(session, &message->rings, fds[0]);
    if (session->ring.file.base == NULL) /* RINGS comes first: this client takes none */
        give_ring_place(session);
    if (message->type == MESSAGE_POOL_REGISTER)
        return session_pool_register(session, message, fds, fd_count);
    if (message->type == MESSAGE_WORDS)
        return session_words(session, &message->words, fds, fd_count);
    return client_request(session, message);
}

static void broke_protocol(struct session *session, const char *why)
{
    session->node->metrics.client_errors++;
    log_limited(session->node->log, LOG_OF_CLIENT_ERRORS, LOG_WARN,
                "msg=\"client broke the protocol\" pid=%u uid=%u why=\"%s\" transfers=%u", session->pid, session->uid,
                why, HASH_CNT(by_transfer, session->requests));
    end_session(session);
}

static void broke_message(struct session *session, enum message_type type)
{
    char why[64];
    snprintf(why, sizeof(why), "%s %s", message_name(type),
             session->has_hello ? "that is not allowed here" : "before hello");
    broke_protocol(session, why);
}

static void process(struct session *session)
{
    for (uint32_t i = 0; i < SESSION_MESSAGES; i++) {
        if (session->ending || session->mapping)
            return;
        struct message message;
        int fds[CHANNEL_FDS_MAX];
        uint32_t fd_count = 0;
        enum strait_status status = channel_next(session->channel, &message, fds, &fd_count);
        if (status == STRAIT_ERR_AGAIN)
            return;
        if (status != STRAIT_OK) {
            broke_protocol(session, channel_why(session->channel));
            return;
        }
        bool fine = handle(session, &message, fds, fd_count);
        for (uint32_t f = 0; f < fd_count; f++)
            close(fds[f]);
        if (!fine)
            broke_message(session, message.type);
        message_fini(&message);
        session->node->exchange.events.run(session->node);
    }
    session->backlog = true; /* more may be there: they wait until the others had their turn */
    session->node->backlog = true;
}

void clients_backlogs(struct node *node)
{
    struct session *session, *next;
    node->backlog = false;
    DL_FOREACH_SAFE (node->sessions, session, next) {
        if (!session->backlog)
            continue;
        session->backlog = false;
        process(session);
    }
}

static void read_on(struct session *session)
{
    uint64_t before = channel_received(session->channel);
    enum strait_status status = channel_read(session->channel);
    if (session->mapping && channel_received(session->channel) != before)
        client_pong(session); /* it may be one, and would wait until the pool is mapped */
    process(session);
    if (status != STRAIT_OK && !session->ending)
        client_end(session, "connection closed");
}

static void on_ready(void *owner, uint32_t events)
{
    struct session *session = owner;
    if (events & WATCH_WRITE)
        session->dirty = true;
    if (!(events & WATCH_READ))
        return;
    if (session->ring.file.base != NULL)
        ring_layer_socket_ready(&session->ring.layer);
    read_on(session);
}

/* Is there something in the rings? */
static bool is_due(struct session *session)
{
    return session->ring.file.base != NULL && session->channel != NULL && !session->ending &&
           (channel_pending(session->channel) || ring_layer_can_write(&session->ring.layer));
}

void clients_look(struct node *node)
{
    struct session *session, *next;
    if (node->ringed == 0)
        return;
    DL_FOREACH_SAFE (node->sessions, session, next) {
        (void)socket_ring_sleep(&session->ring, false);
        if (!is_due(session))
            continue;
        session->dirty |= ring_layer_can_write(&session->ring.layer);
        read_on(session);
    }
}

bool clients_sleep(struct node *node)
{
    struct session *session;
    bool due = false;
    if (node->ringed == 0)
        return false;
    DL_FOREACH (node->sessions, session) {
        (void)socket_ring_sleep(&session->ring, true);
        due |= is_due(session);
    }
    return due;
}

static void flush(struct session *session)
{
    request_tell_states(session);
    session->dirty = session->urgent = false;
    if (session->channel == NULL || session->ending)
        return;
    enum strait_status status;
    do {
        notes_fill(session);
        status = session->doomed == NULL ? channel_flush(session->channel) : STRAIT_OK;
    } while (session->doomed == NULL && status == STRAIT_OK && notes_written(session));
    if (session->doomed != NULL)
        client_end(session, session->doomed);
    else if (status != STRAIT_OK)
        client_end(session, "connection lost");
    else
        watch_for(session->socket, channel_wants_write(session->channel) ? WATCH_READ | WATCH_WRITE : WATCH_READ);
    session->node->sessions_ended |= tenant_is_removed(session->tenant);
}

void clients_flush(struct node *node)
{
    struct session *session, *next;
    bool any = true;
    while (any) { /* what is written to one client may be answered to another */
        any = false;
        DL_FOREACH_SAFE (node->sessions, session, next)
            if (session->urgent)
                flush(session);
        DL_FOREACH_SAFE (node->sessions, session, next)
            if (session->dirty) {
                flush(session);
                any = true;
            }
    }
}

void clients_flush_lazy(struct node *node)
{
    struct session *session, *next;
    DL_FOREACH_SAFE (node->sessions, session, next)
        if (session->untold != NULL)
            flush(session);
    clients_flush(node);
}

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

/* Watches the socket of a new connection. False: there is no memory, and the connection is closed. */
static bool session_open(struct node *node, int fd)
{
    struct session *session = calloc(1, sizeof(*session));
    struct channel *channel = NULL;
    uint32_t gid;
    if (session == NULL || channel_create(fd, MESSAGE_BYTES_MAX, SESSION_QUEUE_BYTES, &channel) != STRAIT_OK ||
        watch_open(node->loop, fd, on_ready, session, &node->watches, &session->socket) != STRAIT_OK) {
        channel_destroy(channel);
        if (channel == NULL)
            close(fd);
        free(session);
        return false;
    }
    session->node = node;
    session->channel = channel;
    session->pidfd = -1;
    session->hello_until = uv_now(node->loop) + node->options.connect_ms;
    if (channel_peer(channel, &session->pid, &session->uid, &gid) == STRAIT_OK)
        session_find_tenant(session, gid);
    watch_for(session->socket, WATCH_READ);
    DL_APPEND(node->sessions, session);
    node->session_count++;
    node->half_open++;
    return true;
}

void client_accept(struct node *node, int fd)
{
    make_room(node);
    if (node->stopping) {
        tell_refused(node, fd, REFUSED_STOPPING, "the daemon is stopping");
        close(fd);
    } else if (!session_open(node, fd)) {
        node->metrics.clients_refused[REFUSED_NO_MEMORY]++;
    }
}

/* A hello that has come while this process did not run is read first. */
void clients_tick(struct node *node)
{
    struct session *session, *next;
    if (node->half_open == 0)
        return;
    DL_FOREACH_SAFE (node->sessions, session, next) {
        if (session->successor)
            handover_tick(session);
        if (session->has_hello || session->ending || session->embedded || session->successor ||
            uv_now(node->loop) < session->hello_until)
            continue;
        on_ready(session, WATCH_READ);
        if (!session->has_hello && !session->ending)
            refuse_session(session, REFUSED_NO_HELLO, "no hello within %u ms (option peer-timeout)",
                           node->options.connect_ms);
    }
}
