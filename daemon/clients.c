#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/clients.h"
#include "daemon/exchange.h"
#include "daemon/match.h"
#include "daemon/node.h"
#include "daemon/session.h"

#define SESSION_QUEUE_BYTES (64u * 1024 * 1024) /* a client with more unread events is disconnected */
#define SESSION_MESSAGES    64u                 /* read from one client before the others have their turn */

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
        return "the daemon is stopping";
    *reason = STRAIT_REASON_BUSY;
    if (same_name != NULL)
        return "a live request has this name";
    *reason = STRAIT_REASON_NO_MEMORY;
    if (HASH_CNT(by_transfer, session->requests) >= node->options.transfers)
        return "too many transfers (option transfers)";
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
    name_set(&name, id, key);
    HASH_FIND(by_name, names, &name, sizeof(name), same);
    const char *why = why_not(session, pool, same, &reason);
    if (why == NULL)
        return pool;
    refuse(session, transfer, reason, why);
    return NULL;
}

/* Why a request's pages could not be added. */
static const char *why_no_pages(enum strait_reason reason)
{
    switch (reason) {
    case STRAIT_REASON_GEOMETRY:
        return "no such page, or a logical index twice";
    case STRAIT_REASON_BUSY:
        return "a page is in use by another request, or named twice";
    case STRAIT_REASON_NO_MEMORY:
        return "page lists of this client take too much memory";
    default:
        return "";
    }
}

/* False: the request has failed. */
static bool add_lists(struct request *request, const struct wire_page_list *lists, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        enum strait_reason reason = request_add_pages(request, &lists[i]);
        if (reason == STRAIT_REASON_NONE)
            continue;
        fail(request, reason, why_no_pages(reason));
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
    enum strait_reason reason = offer_append((struct offer *)request, message);
    if (reason != STRAIT_REASON_NONE)
        fail(request, reason,
             request_on_failed_gpu(request) ? "" : "append failed"); /* a device gives its own reason */
    return true;
}

static bool on_start(struct session *session, const struct message_start *message)
{
    struct node *node = session->node;
    struct request *request = session_find(session, message->transfer);
    if (request == NULL || request->decided)
        return true;
    if (!request->begun)
        return false;
    struct name name;
    struct view own_key = view_of(request->name.key, request->name.size);
    name_set(&name, &message->peer_pool, message->peer_key.size != 0 ? message->peer_key : own_key);
    char address[MESSAGE_ADDRESS_MAX + 1] = "";
    if (message->peer_address.size != 0)
        memcpy(address, message->peer_address.data, message->peer_address.size);
    struct pool_ref *pool;
    HASH_FIND(hh, node->exchange.pools, &message->peer_pool, sizeof(message->peer_pool), pool);
    bool local = pool != NULL || strcmp(address, peers_address(node->peers)) == 0;
    if (request->is_offer)
        match_start_offer((struct offer *)request, &name, address, local);
    else
        match_start_expectation((struct expectation *)request, &name, address, local);
    return true;
}

static bool on_abort(struct session *session, const struct message_transfer *message)
{
    struct request *request = session_find(session, message->transfer);
    if (request != NULL)
        fail(request, STRAIT_REASON_ABORTED, "");
    return true;
}

static bool on_notify(struct session *session, const struct message_notify *message)
{
    struct node *node = session->node;
    struct message note = {.type = MESSAGE_NOTE};
    note.note = (struct message_note){.pool = message->peer_pool, .key = message->key, .data = message->data};
    struct pool_ref *pool;
    HASH_FIND(hh, node->exchange.pools, &message->peer_pool, sizeof(message->peer_pool), pool);
    if (pool != NULL) {
        session_send_note(pool->session, &note);
        return true;
    }
    char address[MESSAGE_ADDRESS_MAX + 1] = "";
    if (message->peer_address.size != 0)
        memcpy(address, message->peer_address.data, message->peer_address.size);
    note.type = MESSAGE_PEER_NOTE;
    exchange_note(node, address, &note);
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

static bool on_stats(struct session *session)
{
    size_t size;
    char *text = node_report(session->node, &size);
    struct message message = {.type = MESSAGE_STATS_TEXT, .text = {.text = view_of(text, text != NULL ? size : 0)}};
    session_send(session, &message);
    free(text);
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
        return on_notify(session, &message->notify);
    case MESSAGE_POLICY:
        return on_policy(session, &message->policy);
    case MESSAGE_WAIT:
        return on_wait(session, &message->wait);
    case MESSAGE_STATS:
        return on_stats(session);
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
    DL_DELETE(node->sessions, session);
    node->session_count--;
    node->client_gone |= session->embedded;
    session_words_fini(session);
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
        end_if_drained(session);
        if (session->ending && session->channel == NULL && session->jobs == 0) /* else it is asked again */
            session_free(session);
    }
}

void client_end(struct session *session, const char *why)
{
    struct node *node = session->node;
    if (session->ending)
        return;
    session->ending = true;
    log_write(node->log, LOG_INFO, "msg=\"client left\" pid=%u why=\"%s\" transfers=%u", session->pid, why,
              HASH_CNT(by_transfer, session->requests));
    watch_close(session->socket);
    watch_close(session->process);
    session->socket = session->process = NULL;
    struct request *request, *next;
    HASH_ITER (by_transfer, session->requests, request, next)
        fail(request, STRAIT_REASON_LOCAL, "");
    node->exchange.events.run(node);
    node->sessions_ended = true;
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
    if (node->codebook != NULL)
        message.welcome.codebook_id = view_of(strait_codebook_id(node->codebook), CODEBOOK_ID_BYTES);
    session_send(session, &message);
}

static void hello(struct session *session, const struct message_hello *message)
{
    session->has_hello = true;
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
    log_write(session->node->log, LOG_WARN, "msg=\"client broke the protocol\" pid=%u uid=%u why=\"%s\"", session->pid,
              session->uid, why);
    client_end(session, why);
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
            broke_protocol(session, strait_status_string(status));
            return;
        }
        bool fine = handle(session, &message, fds, fd_count);
        for (uint32_t f = 0; f < fd_count; f++)
            close(fds[f]);
        if (!fine)
            broke_protocol(session, message_name(message.type));
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
    enum strait_status status = channel_read(session->channel);
    process(session);
    if (status != STRAIT_OK && !session->ending)
        client_end(session, "connection closed");
}

static void on_death(void *owner, uint32_t events)
{
    (void)events;
    client_end(owner, "process ended");
}

static void flush(struct session *session)
{
    session->dirty = false;
    if (session->channel == NULL || session->ending)
        return;
    if (session->doomed != NULL)
        client_end(session, session->doomed);
    else if (channel_flush(session->channel) != STRAIT_OK)
        client_end(session, "connection lost");
    else
        watch_for(session->socket, channel_wants_write(session->channel) ? WATCH_READ | WATCH_WRITE : WATCH_READ);
}

void clients_flush(struct node *node)
{
    struct session *session, *next;
    DL_FOREACH_SAFE (node->sessions, session, next)
        if (session->dirty)
            flush(session);
}

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

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

void client_accept(struct node *node, int fd)
{
    struct session *session = NULL;
    struct channel *channel = NULL;
    if (node->session_count >= node->options.clients || node->stopping)
        goto refuse;
    session = calloc(1, sizeof(*session));
    if (session == NULL || channel_create(fd, MESSAGE_BYTES_MAX, SESSION_QUEUE_BYTES, &channel) != STRAIT_OK)
        goto refuse;
    fd = -1;
    session->node = node;
    session->channel = channel;
    session->pidfd = -1;
    uint32_t gid;
    (void)channel_peer(channel, &session->pid, &session->uid, &gid);
    if (watch_open(node->loop, channel_fd(channel), on_ready, session, &node->watches, &session->socket) != STRAIT_OK)
        goto refuse;
    watch_for(session->socket, WATCH_READ);
    watch_process(session);
    DL_APPEND(node->sessions, session);
    node->session_count++;
    return;
refuse:
    channel_destroy(channel);
    if (fd >= 0)
        close(fd);
    free(session);
    node->metrics.clients_refused++;
}
