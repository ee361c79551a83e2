#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/clients.h"
#include "daemon/exchange.h"
#include "daemon/handover.h"
#include "daemon/match.h"
#include "daemon/node.h"
#include "daemon/session.h"
#include "daemon/withdraw.h"

#define SESSION_QUEUE_BYTES (64u * 1024 * 1024) /* a client with more unread events is disconnected */
#define SESSION_MESSAGES    64u                 /* read from one client before the others have their turn */
#define HALF_OPEN_MAX       256u                /* connections without a hello: beyond these the oldest is closed */

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static struct request *session_find(struct session *session, uint64_t transfer)
{
    struct request *request;
    HASH_FIND(by_transfer, session->requests, &transfer, sizeof(transfer), request);
    return request;
}

/* Sends the verdict on a request that was never created: its pages are free. */
static void refuse(struct session *session, uint64_t transfer, enum strait_reason reason, const char *why)
{
    struct message message = {.type = MESSAGE_STATE};
    message.state = (struct message_state){.transfer = transfer,
                                           .state = STRAIT_FAILED,
                                           .reason = (uint32_t)reason,
                                           .drained = true,
                                           .text = view_of(why, strlen(why))};
    session_send(session, &message);
}

static void fail(struct request *request, enum strait_reason reason, const char *why)
{
    if (request->is_offer)
        offer_fail((struct offer *)request, reason, why);
    else
        expectation_fail((struct expectation *)request, reason, why);
}

/* Why a new request is refused; NULL: it is not. */
static const char *why_not(struct session *session, struct pool_ref *pool, struct request *same_name,
                           enum strait_reason *reason)
{
    struct node *node = session->node;
    *reason = STRAIT_REASON_LOCAL;
    if (pool == NULL)
        return "the daemon does not have the pool";
    if (node->draining)
        return node->handed_over ? "another daemon takes over" : "the daemon is stopping";
    if (session->tenant->removed)
        return session_no_tenant;
    *reason = STRAIT_REASON_BUSY;
    if (same_name != NULL)
        return "a live request has this name";
    *reason = STRAIT_REASON_NO_MEMORY;
    if (HASH_CNT(by_transfer, session->requests) >= node->options.transfers)
        return "too many transfers of this client that have not drained";
    if (session->tenant->transfers != 0 && session->tenant->live >= session->tenant->transfers)
        return "too many transfers of the tenant (transfers in tenants-file)";
    return NULL;
}

/* The pool of a new request; NULL: the request is refused, and the client notified. */
static struct pool_ref *admit(struct session *session, uint64_t transfer, const struct pool_id *id, struct view key,
                              bool is_offer)
{
    struct exchange *x = &session->node->exchange;
    struct request *names = is_offer ? x->offers_by_name : x->expectations_by_name, *same;
    struct pool_ref *pool = session_pool(session, id);
    enum strait_reason reason;
    struct name name;
    name_set(&name, tenant_view(session->tenant), id, key);
    HASH_FIND(by_name, names, &name, sizeof(name), same);
    const char *why = why_not(session, pool, same, &reason);
    if (why == NULL)
        return pool;
    refuse(session, transfer, reason, why);
    session_keep_failed(session, &(struct failed_request){transfer, name, is_offer, reason});
    if (same == NULL) { /* else the name's live request may meet those that wait for it */
        tombstone_set(session->node, &name, is_offer, reason);
        match_refuse(session->node, &name, is_offer, reason);
    }
    return NULL;
}

/* False: the request has failed. */
static bool add_lists(struct request *request, const struct wire_page_list *lists, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *why;
        enum strait_reason reason = request_add_pages(request, &lists[i], &why);
        if (reason == STRAIT_REASON_NONE)
            continue;
        fail(request, reason, why);
        return false;
    }
    return true;
}

/* Parts of one request are consecutive messages: does this one continue the previous one? */
static bool is_part(struct session *session, uint64_t transfer, bool more)
{
    bool continues = session->partial != 0 && session->partial == transfer;
    session->partial = more ? transfer : 0;
    return continues;
}

/* EXPECT and OFFER: a request, or a further part of one. */
static bool on_request(struct session *session, const struct message *message)
{
    const bool is_offer = message->type == MESSAGE_OFFER;
    const struct message_expect *expect = &message->expect;
    const struct message_offer *offer = &message->offer;
    const uint64_t transfer = is_offer ? offer->transfer : expect->transfer;
    const bool more = is_offer ? offer->more : expect->more;
    struct request *request = session_find(session, transfer);
    bool continues = is_part(session, transfer, more);
    if (request == NULL) {
        if (continues)
            return true; /* it has failed, and may be forgotten */
        struct pool_ref *pool = admit(session, transfer, is_offer ? &offer->pool : &expect->pool,
                                      is_offer ? offer->key : expect->key, is_offer);
        if (pool == NULL)
            return true;
        request = is_offer ? (struct request *)offer_create(session->node, session, pool, offer)
                           : (struct request *)expectation_create(session->node, session, pool, expect);
        if (request == NULL) {
            refuse(session, transfer, STRAIT_REASON_NO_MEMORY, "");
            return true;
        }
        HASH_ADD(by_transfer, session->requests, transfer, sizeof(request->transfer), request);
    } else if (request->is_offer != is_offer || request->begun) {
        return request->decided; /* further parts of a failed request may still come */
    }
    if (request->decided ||
        !add_lists(request, is_offer ? offer->lists : expect->lists,
                   is_offer ? offer->list_count : expect->list_count) ||
        more)
        return true;
    if (is_offer) {
        offer_begin((struct offer *)request, offer);
        match_offer((struct offer *)request);
    } else {
        session->node->exchange.stepped = true; /* its start may follow */
        expectation_begin((struct expectation *)request);
        match_expectation((struct expectation *)request);
    }
    return true;
}

static bool on_append(struct session *session, const struct message_append *message)
{
    struct request *request = session_find(session, message->transfer);
    if (request == NULL || request->decided)
        return true; /* the verdict is already known */
    if (!request->is_offer || !request->begun)
        return false;
    const char *why;
    enum strait_reason reason = offer_append((struct offer *)request, message, &why);
    if (reason != STRAIT_REASON_NONE)
        fail(request, reason,
             request_on_failed_gpu(request) ? "" /* a device gives its own reason */
             : why[0] != '\0'               ? why
                                            : "append failed");
    return true;
}

/* The other side that a START names. */
struct other_side {
    struct name name;
    char address[MESSAGE_ADDRESS_MAX + 1];
    bool local;
};

static void read_other_side(const struct session *session, const struct message_start *message, const struct name *own,
                            struct other_side *other)
{
    struct node *node = session->node;
    memset(other, 0, sizeof(*other));
    name_set(&other->name, tenant_view(session->tenant), &message->peer_pool,
             message->peer_key.size != 0 ? message->peer_key : view_of(own->key, own->size));
    if (message->peer_address.size != 0)
        memcpy(other->address, message->peer_address.data, message->peer_address.size);
    other->local =
        pool_find(node, session->tenant, &message->peer_pool) != NULL || peers_is_own(node->peers, other->address);
}

/* Whether a live request has the own side's name and looks for the same other side. */
static bool is_sought(const struct node *node, const struct name *own, bool is_offer, const struct name *other)
{
    const struct exchange *x = &node->exchange;
    const struct announce *announce;
    struct request *live;
    HASH_FIND(by_name, is_offer ? x->offers_by_name : x->expectations_by_name, own, sizeof(*own), live);
    if (live == NULL || !is_offer)
        return live != NULL && expectation_find_leg((struct expectation *)live, other) != NULL;
    LL_FOREACH (((struct offer *)live)->announces, announce)
        if (memcmp(&announce->sink, other, sizeof(*other)) == 0)
            return true;
    return false;
}

/* The request was not admitted, or has failed before it was started: whom it names need not wait for it. */
static void start_too_late(struct session *session, const struct message_start *message, const struct request *request)
{
    const struct failed_request *failed = request == NULL ? session_find_failed(session, message->transfer) : NULL;
    if ((request == NULL && failed == NULL) || (request != NULL && request->state != STRAIT_FAILED))
        return;
    const struct name *own = request != NULL ? &request->name : &failed->name;
    const bool is_offer = request != NULL ? request->is_offer : failed->is_offer;
    struct other_side other;
    read_other_side(session, message, own, &other);
    if (is_sought(session->node, own, is_offer, &other.name) ||
        tenant_denied(session->node, &message->peer_pool, tenant_view(session->tenant), "start"))
        return;
    const struct withdrawal what = {.source = is_offer ? *own : other.name,
                                    .sink = is_offer ? other.name : *own,
                                    .from_sink = !is_offer,
                                    .reason = request != NULL ? request->reason : failed->reason};
    if (other.local || other.address[0] != '\0')
        withdraw_post(session->node, &what, other.local ? "" : other.address, session->uid);
}

static bool on_start(struct session *session, const struct message_start *message)
{
    struct node *node = session->node;
    struct request *request = session_find(session, message->transfer);
    struct other_side other;
    if (request == NULL || request->decided) {
        start_too_late(session, message, request);
        return true;
    }
    if (!request->begun)
        return false;
    node->exchange.stepped = true;
    if (tenant_denied(node, &message->peer_pool, tenant_view(session->tenant), "start")) {
        fail(request, STRAIT_REASON_DENIED, "the peer's pool belongs to another tenant");
        return true;
    }
    read_other_side(session, message, &request->name, &other);
    if (request->is_offer)
        match_start_offer((struct offer *)request, &other.name, other.address, other.local);
    else
        match_start_expectation((struct expectation *)request, &other.name, other.address, other.local);
    return true;
}

static bool on_abort(struct session *session, const struct message_transfer *message)
{
    struct request *request = session_find(session, message->transfer);
    if (request != NULL)
        fail(request, STRAIT_REASON_ABORTED, "");
    return true;
}

static bool on_wait(struct session *session, const struct message_wait *message)
{
    struct request *request = session_find(session, message->transfer);
    bool fits = request == NULL || request->decided || (!request->is_offer && request->begun);
    if (!fits || message->word >= session->word_count)
        return false;
    if (request == NULL || request->is_offer)
        session_raise(session, message->word, message->value);
    else
        expectation_wait((struct expectation *)request, message);
    return true;
}

static bool on_pool_remove(struct session *session, const struct message_pool_remove *message)
{
    struct pool_ref *pool = session_pool(session, &message->pool);
    if (pool == NULL) { /* the registration was refused */
        session_pool_removed(session, &message->pool);
        return true;
    }
    struct request *request, *next;
    HASH_ITER (by_transfer, session->requests, request, next)
        if (request->pool == pool)
            fail(request, STRAIT_REASON_ABORTED, "pool removed");
    session_pool_remove(pool);
    return true;
}

static bool on_policy(struct session *session, const struct message_policy *message)
{
    struct pool_ref *pool = session_pool(session, &message->pool);
    if (pool != NULL)
        pool->pool->coding = message->coding;
    return true;
}

/* Answered at the end of the turn: a report takes long to write, and can be asked for with two bytes. */
static bool on_stats(struct session *session)
{
    session->stats_wanted++;
    session->node->stats_wanted = true;
    return true;
}

/* The client asks whether the daemon hangs. */
static bool on_ping(struct session *session)
{
    struct message message = {.type = MESSAGE_PONG};
    session_send(session, &message);
    return true;
}

static bool handle_request(struct session *session, const struct message *message)
{
    switch (message->type) {
    case MESSAGE_POOL_REMOVE:
        return on_pool_remove(session, &message->pool_remove);
    case MESSAGE_EXPECT:
    case MESSAGE_OFFER:
        return on_request(session, message);
    case MESSAGE_APPEND:
        return on_append(session, &message->append);
    case MESSAGE_START:
        return on_start(session, &message->start);
    case MESSAGE_ABORT:
    case MESSAGE_RELEASE: /* a live request ends with its handle */
        return on_abort(session, &message->transfer);
    case MESSAGE_NOTIFY:
        return notes_post(session, &message->notify);
    case MESSAGE_POLICY:
        return on_policy(session, &message->policy);
    case MESSAGE_WAIT:
        return on_wait(session, &message->wait);
    case MESSAGE_STATS:
        return on_stats(session);
    case MESSAGE_PING:
        return on_ping(session);
    default:
        return false;
    }
}

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

/* All requests have drained: closing the socket tells the client so. */
static void close_socket(struct session *session)
{
    watch_close(session->socket);
    watch_close(session->process);
    session->socket = session->process = NULL;
    channel_destroy(session->channel);
    session->channel = NULL;
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
    struct request *request, *next;
    HASH_ITER (by_transfer, session->requests, request, next)
        fail(request, STRAIT_REASON_LOCAL, "");
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
    message.welcome = (struct message_welcome){.version = PROTOCOL_VERSION,
                                               .incarnation = node->incarnation,
                                               .address = view_of(address, strlen(address)),
                                               .daemon = view_of(strait_version(), strlen(strait_version())),
                                               .node = node->id};
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
    if (message->type == MESSAGE_POOL_REGISTER)
        return session_pool_register(session, message, fds, fd_count);
    if (message->type == MESSAGE_WORDS)
        return session_words(session, &message->words, fds, fd_count);
    return handle_request(session, message);
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

static void on_ready(void *owner, uint32_t events)
{
    struct session *session = owner;
    if (events & WATCH_WRITE)
        session->dirty = true;
    if (!(events & WATCH_READ))
        return;
    uint64_t before = channel_received(session->channel);
    enum strait_status status = channel_read(session->channel);
    if (session->mapping && channel_received(session->channel) != before)
        (void)on_ping(session); /* it may be one, and would wait until the pool is mapped */
    process(session);
    if (status != STRAIT_OK && !session->ending)
        client_end(session, "connection closed");
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
