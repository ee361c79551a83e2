#include "daemon/handover.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/base/inherited.h"
#include "daemon/node.h"

#define ANSWER_MS   5000
#define CONFIRM_MS  5000u
#define QUEUE_BYTES (64u * 1024)

/* ---- The daemon that runs ---------------------------------------------------------------------------------------- */

/* The sockets stay open here too, and connections are accepted, until the other process is ready. */
static bool answer(struct session *session)
{
    struct node *node = session->node;
    int fds[CHANNEL_FDS_MAX];
    const uint32_t most = INHERITED_MAX + 1;
    uint32_t count = 0;
    fds[count++] = node->lock_fd;
    fds[count++] = acceptor_fd(node->acceptor);
    if (node->http != NULL)
        count += http_listening(node->http, fds + count, most - count);
    count += peers_listening(node->peers, fds + count, most - count);
    const struct message message = {.type = MESSAGE_HANDOVER, .handover.fd_count = count};
    session->dirty = true;
    return channel_send(session->channel, &message, fds, count) == STRAIT_OK;
}

static struct session *successor_of(const struct node *node)
{
    struct session *session;
    DL_FOREACH (node->sessions, session)
        if (session->successor && !session->ending)
            return session;
    return NULL;
}

/* The first message must find a daemon that accepts; meanwhile that may have been told to stop. */
static bool may_ask(const struct session *session, const struct message_handover *message)
{
    const struct node *node = session->node;
    if ((session->uid != 0 && session->uid != geteuid()) || message->fd_count != 0 || message->draining ||
        node->acceptor == NULL || node->lock_fd < 0)
        return false;
    return message->ready ? session->successor : !node->draining && successor_of(node) == NULL;
}

bool handover_message(struct session *session, const struct message_handover *message)
{
    struct node *node = session->node;
    if (!may_ask(session, message))
        return false;
    if (message->ready) {
        node->successor = session->pid != 0 ? session->pid : 1; /* 0: of another pid namespace */
        return true;
    }
    session->successor = answer(session);
    session->ready_until = uv_now(node->loop) + node->options.drain_ms;
    if (session->successor)
        log_write(node->log, LOG_INFO, "msg=\"handover begins\" pid=%u", session->pid);
    return session->successor;
}

void handover_confirm(struct node *node)
{
    const struct message message = {.type = MESSAGE_HANDOVER, .handover.draining = true};
    struct session *session = successor_of(node);
    if (session != NULL)
        session_send(session, &message);
}

void handover_tick(struct session *session)
{
    struct node *node = session->node;
    if (session->ready_until == 0 || node->handed_over || uv_now(node->loop) < session->ready_until)
        return;
    session->ready_until = 0; /* once */
    log_write(node->log, LOG_WARN, "msg=\"handover not complete\" pid=%u why=\"not ready within %u ms\"", session->pid,
              node->options.drain_ms);
}

void handover_session_end(struct session *session)
{
    const struct node *node = session->node;
    if (session->successor && !node->stopping)
        log_write(node->log, LOG_WARN, "msg=\"handover failed\" pid=%u why=\"%s\"", session->pid,
                  node->handed_over ? "the daemon that took over has ended" : "it ended before it was ready");
}

bool handover_pending(const struct node *node)
{
    return successor_of(node) != NULL;
}

/* ---- The new daemon ---------------------------------------------------------------------------------------------- */

/* The connection, or -1: nobody listens. */
static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return -1;
    memcpy(address.sun_path, path, strlen(path) + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Waits for the answer: lock and sockets. */
static enum strait_status await_answer(struct channel *channel)
{
    int fds[CHANNEL_FDS_MAX];
    uint32_t count;
    struct message message = {0};
    enum strait_status status = STRAIT_ERR_AGAIN, read = STRAIT_OK;
    while (status == STRAIT_ERR_AGAIN) {
        struct pollfd ready = {.fd = channel_fd(channel), .events = POLLIN};
        if (read != STRAIT_OK || poll(&ready, 1, ANSWER_MS) != 1)
            return STRAIT_ERR_IO;
        read = channel_read(channel); /* the answer may be the last that the other one did */
        status = channel_next(channel, &message, fds, &count);
    }
    if (status != STRAIT_OK)
        return status;
    const bool good = message.type == MESSAGE_HANDOVER && count >= 2;
    message_fini(&message);
    for (uint32_t i = 0; i < count; i++)
        if (!good)
            close(fds[i]);
        else if (i == 0)
            inherited_add_lock(fds[i]);
        else
            inherited_add(fds[i]);
    return good ? STRAIT_OK : STRAIT_ERR_IO;
}

enum strait_status handover_ask(const char *socket, struct channel **channel, char *why, size_t why_size)
{
    const struct message ask = {.type = MESSAGE_HANDOVER};
    const int fd = connect_to(socket);
    *channel = NULL;
    if (fd < 0)
        return STRAIT_OK;
    struct channel *made;
    enum strait_status status = channel_create(fd, MESSAGE_BYTES_MAX, QUEUE_BYTES, &made);
    if (status != STRAIT_OK) {
        close(fd);
        return status;
    }
    status = channel_send(made, &ask, NULL, 0);
    if (status == STRAIT_OK)
        status = channel_flush(made);
    if (status == STRAIT_OK)
        status = await_answer(made);
    if (status == STRAIT_OK) {
        *channel = made;
        return status;
    }
    channel_destroy(made);
    snprintf(why, why_size, "%s: the daemon that runs there does not hand over", socket);
    return status;
}

/* ---- The end of the other daemon --------------------------------------------------------------------------------- */

/* Nothing more is to be heard. */
static void stop_following(struct handover *handover)
{
    uv_timer_stop(&handover->deadline);
    watch_close(handover->watch);
    handover->watch = NULL;
    channel_destroy(handover->channel);
    handover->channel = NULL;
}

static void on_deadline(uv_timer_t *timer)
{
    struct handover *handover = timer->data;
    log_write(handover->log, LOG_WARN, "msg=\"handover not confirmed\" pid=%u why=\"no answer within %u ms\"",
              handover->pid, CONFIRM_MS);
}

static void take_messages(struct handover *handover)
{
    struct message message;
    int fds[CHANNEL_FDS_MAX];
    uint32_t count = 0;
    while (channel_next(handover->channel, &message, fds, &count) == STRAIT_OK) {
        for (uint32_t i = 0; i < count; i++)
            close(fds[i]);
        if (message.type == MESSAGE_HANDOVER && message.handover.draining && !handover->confirmed) {
            handover->confirmed = true;
            uv_timer_stop(&handover->deadline);
            log_write(handover->log, LOG_INFO, "msg=\"handover confirmed\" pid=%u", handover->pid);
        }
        message_fini(&message);
    }
}

static void on_other(void *owner, uint32_t events)
{
    struct handover *handover = owner;
    (void)events;
    const enum strait_status status = channel_read(handover->channel);
    take_messages(handover);
    if (status == STRAIT_OK)
        return;
    if (handover->confirmed)
        log_write(handover->log, LOG_INFO, "msg=\"the daemon before has ended\" pid=%u", handover->pid);
    else
        log_write(handover->log, LOG_WARN, "msg=\"handover not confirmed\" pid=%u why=\"the other daemon ended\"",
                  handover->pid);
    stop_following(handover);
}

void handover_ready(struct handover *handover, struct channel *channel, uv_loop_t *loop, struct watch_count *watches,
                    struct log *log)
{
    const struct message ready = {.type = MESSAGE_HANDOVER, .handover.ready = true};
    uint32_t uid, gid;
    *handover = (struct handover){.log = log, .channel = channel};
    (void)channel_peer(channel, &handover->pid, &uid, &gid);
    uv_timer_init(loop, &handover->deadline);
    handover->deadline.data = handover;
    uv_timer_start(&handover->deadline, on_deadline, CONFIRM_MS, 0);
    if (channel_send(channel, &ready, NULL, 0) == STRAIT_OK)
        (void)channel_flush(channel); /* if it fails, reading does too */
    if (watch_open(loop, channel_fd(channel), on_other, handover, watches, &handover->watch) == STRAIT_OK)
        watch_for(handover->watch, WATCH_READ);
}

void handover_close(struct handover *handover)
{
    if (handover->log == NULL)
        return;
    stop_following(handover);
    uv_close((uv_handle_t *)&handover->deadline, NULL);
}
