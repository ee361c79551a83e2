/* What a link sends: messages wait in a list until the socket takes them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "internal/bytes.h"
#include "transport/shm_hello.h"
#include "transport/shm_internal.h"

const uint8_t shm_record_magic[4] = {'C', 'H', 'N', 'K'};
const uint8_t shm_farewell[RECORD_HEAD] = {'C', 'H', 'N', 'K', ' ', 'g', 'o', 'o', 'd', ' ', 'b', 'y', 'e', '.'};

/* ---- Watching -------------------------------------------------------------------------------------------------- */

bool shm_watch(struct shm_link *link, uint32_t events)
{
    if (link->watched == events)
        return true;
    struct epoll_event event = {.events = events, .data.ptr = link};
    int how = events == 0 ? EPOLL_CTL_DEL : link->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(shm_of(link)->epoll, how, link->dying ? link->process : link->fd, &event) != 0)
        return false;
    link->watched = events;
    return true;
}

/* ---- Sending --------------------------------------------------------------------------------------------------- */

static struct message *out_pop(struct shm_link *link)
{
    struct message *message = link->out_head;
    link->out_head = message->next;
    if (link->out_head == NULL)
        link->out_tail = &link->out_head;
    link->out_written = 0;
    return message;
}

static void out_push(struct shm_link *link, struct message *message)
{
    message->next = NULL;
    *link->out_tail = message;
    link->out_tail = &message->next;
}

void shm_out_fail(struct shm_link *link)
{
    while (link->out_head != NULL)
        event_due(&out_pop(link)->event, STRAIT_ERR_IO);
}

void shm_fail(struct shm_link *link, const char *why)
{
    core_link_break(&link->core, why);
    shm_out_fail(link);
    shm_watch(link, 0);
}

static struct message *message_new(struct shm_link *link, enum event_kind kind, uint64_t cookie)
{
    struct message *message = calloc(1, sizeof(*message));
    if (message != NULL)
        event_begin(&message->event, &link->core, kind, cookie);
    return message;
}

/* Writes from the first message. Returns the bytes written, or -1. */
static ptrdiff_t write_some(struct shm_link *link)
{
    const struct message *message = link->out_head;
    const uint8_t *from = message->bytes + link->out_written;
    size_t left = message->size - link->out_written;
    if (!message->hello || link->out_written > 0)
        return send(link->fd, from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
    ptrdiff_t sent = shm_hello_send(link->fd, from, left, shm_of(link)->arena.fd);
    link->shared |= sent > 0;
    return sent;
}

void shm_flush(struct shm_link *link)
{
    while (link->out_head != NULL) {
        ptrdiff_t sent = write_some(link);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno != EAGAIN && link->finishing) {
            shm_out_fail(link); /* nobody reads it; what the peer has said is still to come, and its end */
            break;
        }
        if (sent < 0 && errno != EAGAIN) {
            shm_fail(link, "the peer's end of the socket is gone");
            return;
        }
        if (sent < 0)
            break;
        link->out_written += (uint32_t)sent;
        if (link->out_written == link->out_head->size)
            event_due(&out_pop(link)->event, STRAIT_OK);
    }
    if (link->finishing && link->out_head == NULL)
        shutdown(link->fd, SHUT_WR);
    uint32_t in = link->ended ? 0 : EPOLLIN;
    if (!shm_watch(link, in | (link->out_head != NULL ? EPOLLOUT : 0)))
        shm_fail(link, "the socket cannot be watched");
}

void shm_send_farewell(struct shm_link *link)
{
    struct message *message = message_new(link, EVENT_NONE, 0);
    const struct message *begun = link->out_written > 0 ? link->out_head : NULL;
    if (message != NULL && begun != NULL) {
        message->size = begun->size - link->out_written;
        memcpy(message->bytes, begun->bytes + link->out_written, message->size);
    }
    shm_out_fail(link);
    link->finishing = true;
    if (message == NULL) /* the peer then waits for the end of this process */
        return;
    memcpy(message->bytes + message->size, shm_farewell, sizeof(shm_farewell));
    message->size += sizeof(shm_farewell);
    out_push(link, message);
}

bool shm_send_hello(struct shm_link *link)
{
    struct message *message = message_new(link, EVENT_NONE, 0);
    if (message == NULL)
        return false;
    message->hello = true;
    message->size = SHM_HELLO_BYTES;
    shm_hello_write(message->bytes, shm_of(link)->arena.size);
    out_push(link, message);
    return true;
}

enum strait_status shm_link_send(struct link *base, const void *header, size_t header_size, const void *data,
                                 size_t size, void *handle, uint64_t cookie)
{
    struct shm_link *link = (struct shm_link *)base;
    (void)handle;
    if (header_size > TRANSPORT_HEADER_MAX || data != NULL)
        return STRAIT_ERR_INVALID;
    if (link->core.state != LINK_CONNECTED)
        return STRAIT_ERR_IO;
    if (size > UINT32_MAX)
        return STRAIT_ERR_INVALID;
    struct message *message = message_new(link, EVENT_SENT, cookie);
    if (message == NULL)
        return STRAIT_ERR_NO_MEMORY;
    memcpy(message->bytes, shm_record_magic, sizeof(shm_record_magic));
    store_le32(message->bytes + 4, (uint32_t)header_size);
    store_le64(message->bytes + 8, size);
    if (header_size > 0)
        memcpy(message->bytes + RECORD_HEAD, header, header_size);
    message->size = RECORD_HEAD + (uint32_t)header_size;
    out_push(link, message);
    if (link->out_head == message)
        shm_flush(link);
    return STRAIT_OK;
}
