/* The life of a client connection. */
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/equipment/fault.h"
#include "daemon/session.h"

#define SESSION_QUEUE_BYTES (64u * 1024 * 1024) /* a client with more unread events is disconnected */
#define NOTES_QUEUED_MAX    (1024u * 1024)
#define SESSION_MESSAGES    64u /* read from one client before the others have their turn */

static void flush(struct session *session)
{
    session->dirty = false;
    if (session->channel == NULL || session->ending)
        return;
    if (session->doomed != NULL)
        session_end(session, session->doomed);
    else if (channel_flush(session->channel) != STRAIT_OK)
        session_end(session, "connection lost");
    else
        watch_for(session->socket, channel_wants_write(session->channel) ? WATCH_READ | WATCH_WRITE : WATCH_READ);
}

void session_flush(struct node *node)
{
    struct session *session, *next;
    DL_FOREACH_SAFE (node->sessions, session, next)
        if (session->dirty)
            flush(session);
}

void session_send(struct session *session, const struct message *message)
{
    if (session == NULL || session->channel == NULL || session->ending || session->doomed != NULL)
        return;
    (void)fault_at(FAULT_TELL, session, message);
    if (channel_send(session->channel, message, NULL, 0) != STRAIT_OK)
        session->doomed = "client does not read its events";
    session->dirty = true;
    (void)fault_at(FAULT_TOLD, session, message);
}

void session_send_note(struct session *session, const struct message *message)
{
    if (session != NULL && session->channel != NULL && channel_queued(session->channel) < NOTES_QUEUED_MAX)
        session_send(session, message);
}

struct request *session_find(struct session *session, uint64_t transfer)
{
    struct request *request;
    HASH_FIND(by_transfer, session->requests, &transfer, sizeof(transfer), request);
    return request;
}

void session_forget(struct session *session, struct request *request)
{
    HASH_DELETE(by_transfer, session->requests, request);
    session->charged -= request->charged;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static void session_free(struct session *session)
{
    struct node *node = session->node;
    if (session->pidfd >= 0)
        close(session->pidfd);
    DL_DELETE(node->sessions, session);
    node->session_count--;
    node->client_gone |= session->inside;
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
    if (!session->ending || session->undrained != 0 || session->mapping)
        return;
    session_pools_end(session);
    close_socket(session);
    session->node->sessions_ended = true; /* freed at the end of the turn, once its jobs have ended too */
}

void session_reap(struct node *node)
{
    struct session *session, *next;
    if (!node->sessions_ended)
        return;
    node->sessions_ended = false;
    DL_FOREACH_SAFE (node->sessions, session, next) {
        if (session->channel != NULL || !session->ending)
            continue;
        if (session->jobs == 0) /* else session_jobs_over asks again */
            session_free(session);
    }
}

void session_drained(struct session *session)
{
    if (session == NULL)
        return;
    session->undrained--;
    end_if_drained(session);
}

void session_end(struct session *session, const char *why)
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
    HASH_ITER (by_transfer, session->requests, request, next) {
        if (request->is_offer)
            offer_fail((struct offer *)request, STRAIT_REASON_LOCAL, "");
        else
            expectation_fail((struct expectation *)request, STRAIT_REASON_LOCAL, "");
    }
    end_if_drained(session);
}

void session_jobs_over(struct session *session)
{
    if (session->ending) {
        end_if_drained(session);
        session->node->sessions_ended = true;
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
    if (node->codebook != NULL)
        message.welcome.codebook_id = view_of(strait_codebook_id(node->codebook), CODEBOOK_ID_BYTES);
    session_send(session, &message);
}

static void hello(struct session *session, const struct message_hello *message)
{
    session->greeted = true;
    session->node->metrics.clients_accepted++;
    welcome(session); /* the version in it lets the client find that it does not speak it */
    if (message->version < PROTOCOL_VERSION_MIN || message->version_min > PROTOCOL_VERSION) {
        session->node->metrics.client_errors++;
        (void)channel_flush(session->channel);
        session_end(session, "no common protocol version");
    }
}

/* Another daemon of this host wants shared memory: from now on its socket belongs to the peers. */
static void hand_over(struct session *session, const struct message_shm_hello *message)
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
    if (!session->greeted) {
        if (message->type == MESSAGE_HELLO)
            hello(session, &message->hello);
        else if (message->type == MESSAGE_SHM_HELLO)
            hand_over(session, &message->shm_hello);
        return message->type == MESSAGE_HELLO || message->type == MESSAGE_SHM_HELLO;
    }
    if (message->type == MESSAGE_POOL_REGISTER)
        return session_pool_register(session, message, fds, fd_count);
    if (message->type == MESSAGE_WORDS)
        return session_words(session, &message->words, fds, fd_count);
    return session_verb(session, message);
}

static void broke_protocol(struct session *session, const char *why)
{
    session->node->metrics.client_errors++;
    log_write(session->node->log, LOG_WARN, "msg=\"client broke the protocol\" pid=%u uid=%u why=\"%s\"", session->pid,
              session->uid, why);
    session_end(session, why);
}

void session_process(struct session *session)
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
    }
    session->backlog = true; /* more may be there: they wait until the others had their turn */
    session->node->backlog = true;
}

void session_backlogs(struct node *node)
{
    struct session *session, *next;
    node->backlog = false;
    DL_FOREACH_SAFE (node->sessions, session, next) {
        if (!session->backlog)
            continue;
        session->backlog = false;
        session_process(session);
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
    session_process(session);
    if (status != STRAIT_OK && !session->ending)
        session_end(session, "connection closed");
}

static void on_death(void *owner, uint32_t events)
{
    (void)events;
    session_end(owner, "process ended");
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

void session_accept(struct node *node, int fd)
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
