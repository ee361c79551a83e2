#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "internal/socket_address.h"
#include "transport/tcp_internal.h"

/* Connections of a link: their proof, and chunks in fragments. */

const uint8_t tcp_connect_magic[TCP_FIRST_BYTES] = {'S', 'T', 'R', 'D', 'A', 'T', 'A', '1'};
const uint8_t tcp_accept_magic[TCP_FIRST_BYTES] = {'S', 'T', 'R', 'A', 'N', 'S', 'W', '3'};
static const uint8_t fragment_magic[4] = {'F', 'R', 'A', 'G'};

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

bool tcp_watch(struct tcp *tcp, int fd, void *what, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = what};
    return epoll_ctl(tcp->epoll, EPOLL_CTL_MOD, fd, &event) == 0 ||
           (errno == ENOENT && epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

void tcp_drop(struct tcp *tcp, int *fd)
{
    if (*fd < 0)
        return;
    epoll_ctl(tcp->epoll, EPOLL_CTL_DEL, *fd, NULL);
    close(*fd);
    *fd = -1;
}

static bool watch(struct connection *conn, uint32_t events)
{
    return tcp_watch(tcp_of(conn->link), conn->fd, conn, events);
}

/* ---- The end of a link ------------------------------------------------------------------------------------------- */

/* Ends a chunk that is complete, or never will be. */
static void incoming_end(struct tcp_link *link, struct incoming *chunk, enum strait_status status)
{
    TAILQ_REMOVE(&link->in, chunk, entry);
    link->incoming--;
    if (chunk->address != NULL)
        event_due(&chunk->event, status);
    else
        free(chunk);
}

void tcp_shut(struct tcp_link *link)
{
    struct message *message;
    for (unsigned i = 0; i < link->count; i++) {
        struct connection *conn = &link->connections[i];
        tcp_drop(tcp_of(link), &conn->fd);
        conn->first = conn->end = 0;
        conn->chunk = NULL;
        conn->left = conn->in_size = 0;
    }
    link->next_out = NULL;
    while ((message = TAILQ_FIRST(&link->out)) != NULL) {
        TAILQ_REMOVE(&link->out, message, entry);
        event_due(&message->event, STRAIT_ERR_IO);
    }
    while (!TAILQ_EMPTY(&link->in))
        incoming_end(link, TAILQ_FIRST(&link->in), STRAIT_ERR_IO);
    tcp_of(link)->links_changed = true;
}

static void fail(struct tcp_link *link, const char *why)
{
    core_link_break(&link->core, why);
    tcp_shut(link);
}

/* ---- Proof ------------------------------------------------------------------------------------------------------- */

static void preamble_write(uint8_t preamble[PREAMBLE_BYTES], const uint8_t magic[TCP_FIRST_BYTES], uint64_t id,
                           const uint8_t secret[SECRET_BYTES])
{
    memcpy(preamble, magic, TCP_FIRST_BYTES);
    store_le64(preamble + 8, id);
    memcpy(preamble + 16, secret, SECRET_BYTES);
}

/* A new connection's buffer has room. */
static bool preamble_send(const struct connection *conn, const uint8_t magic[TCP_FIRST_BYTES])
{
    uint8_t preamble[PREAMBLE_BYTES];
    preamble_write(preamble, magic, conn->link->peer_id, conn->peer_secret);
    return send(conn->fd, preamble, PREAMBLE_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) == PREAMBLE_BYTES;
}

bool tcp_preamble_is(const uint8_t preamble[PREAMBLE_BYTES], const uint8_t magic[TCP_FIRST_BYTES],
                     const struct connection *conn)
{
    uint8_t right[PREAMBLE_BYTES];
    unsigned differs = 0;
    preamble_write(right, magic, conn->link->id, conn->secret);
    for (unsigned i = 0; i < PREAMBLE_BYTES; i++)
        differs |= right[i] ^ preamble[i];
    return differs == 0;
}

int tcp_preamble_read(int fd, uint8_t preamble[PREAMBLE_BYTES], uint32_t *got)
{
    const ssize_t size = recv(fd, preamble + *got, PREAMBLE_BYTES - *got, MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
        return -1;
    *got += size > 0 ? (uint32_t)size : 0;
    return *got == PREAMBLE_BYTES;
}

/* The last one that comes up connects the link. Until then what the others bring waits. */
static void become_up(struct connection *conn)
{
    struct tcp_link *link = conn->link;
    conn->state = CONNECTION_UP;
    conn->in_size = 0;
    address_tune(conn->fd);
    bool watched = watch(conn, 0);
    if (++link->up == link->count) {
        for (unsigned i = 0; i < link->count; i++)
            watched &= watch(&link->connections[i], EPOLLIN);
        if (watched)
            core_link_connected(&link->core);
    }
    if (!watched)
        fail(link, "the connection cannot be watched");
}

void tcp_answer(struct connection *conn)
{
    if (preamble_send(conn, tcp_accept_magic))
        become_up(conn);
    else
        fail(conn->link, "the peer that connected has gone");
}

/* The dialled side. */
static void finish_dial(struct connection *conn)
{
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0 ||
        !preamble_send(conn, tcp_connect_magic) || !watch(conn, EPOLLIN))
        fail(conn->link, error == ECONNREFUSED ? "the connection was refused" : "the peer is not reached");
    else
        conn->state = CONNECTION_ASKING;
}

static void read_answer(struct connection *conn)
{
    const int complete = tcp_preamble_read(conn->fd, conn->in, &conn->in_size);
    if (complete == 0)
        return;
    if (complete == 1 && tcp_preamble_is(conn->in, tcp_accept_magic, conn))
        become_up(conn);
    else
        fail(conn->link, "the peer does not know this link");
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* 0 4 "FRAG" | 4 4 size of the header | 8 4 size of the chunk | 12 4 offset of the fragment | 16 4 its size | 20 4 zero
 * | 24 8 number of the chunk. The header follows, in every fragment: any may be the first to come. */
static void fragment_write(struct fragment *fragment, const struct message *message, size_t offset, size_t size)
{
    uint8_t *head = fragment->head;
    memcpy(head, fragment_magic, sizeof(fragment_magic));
    store_le32(head + 4, message->header_size);
    store_le32(head + 8, (uint32_t)message->size);
    store_le32(head + 12, (uint32_t)offset);
    store_le32(head + 16, (uint32_t)size);
    store_le32(head + 20, 0);
    store_le64(head + 24, message->number);
    memcpy(head + FRAGMENT_HEAD, message->header, message->header_size);
    fragment->head_size = FRAGMENT_HEAD + message->header_size;
}

/* Takes what this connection is to send next. */
static void take(struct connection *conn)
{
    struct tcp_link *link = conn->link;
    size_t bytes = 0;
    conn->first = conn->end = 0;
    while (link->next_out != NULL && conn->end < FRAGMENTS_MAX && bytes < TURN_BYTES) {
        struct message *message = link->next_out;
        struct fragment *fragment = &conn->fragments[conn->end++];
        size_t size = message->size - message->taken;
        if (link->count > 1 && size > FRAGMENT_BYTES)
            size = FRAGMENT_BYTES;
        fragment->message = message;
        fragment->data = message->data == NULL ? NULL : message->data + message->taken;
        fragment->size = size;
        fragment_write(fragment, message, message->taken, size);
        message->taken += size;
        bytes += fragment->head_size + size;
        if (message->taken == message->size)
            link->next_out = TAILQ_NEXT(message, entry);
    }
}

/* The rest of what was taken, for at most TURN_BYTES. */
static int gather(const struct connection *conn, struct iovec *parts)
{
    int count = 0;
    size_t skipped = conn->done, room = TURN_BYTES;
    for (unsigned i = conn->first; i < conn->end && room > 0; i++) {
        const struct fragment *fragment = &conn->fragments[i];
        const size_t head = skipped < fragment->head_size ? fragment->head_size - skipped : 0;
        const size_t done = head > 0 ? 0 : skipped - fragment->head_size, left = fragment->size - done;
        if (head > 0)
            parts[count++] = (struct iovec){(void *)(uintptr_t)(fragment->head + fragment->head_size - head), head};
        if (left > 0)
            parts[count++] = (struct iovec){(void *)(uintptr_t)(fragment->data + done), left < room ? left : room};
        room -= left < room ? left : room;
        skipped = 0;
    }
    return count;
}

static void fragment_sent(struct tcp_link *link, const struct fragment *fragment)
{
    struct message *message = fragment->message;
    message->written += fragment->size;
    if (message->written < message->size)
        return;
    TAILQ_REMOVE(&link->out, message, entry);
    event_due(&message->event, STRAIT_OK);
}

static void written(struct connection *conn, size_t bytes)
{
    conn->done += bytes;
    while (conn->first < conn->end) {
        const struct fragment *fragment = &conn->fragments[conn->first];
        if (conn->done < fragment->head_size + fragment->size)
            return;
        conn->done -= fragment->head_size + fragment->size;
        conn->first++;
        fragment_sent(conn->link, fragment);
    }
}

static bool connection_may_write(const struct connection *conn)
{
    const struct tcp_link *link = conn->link;
    return link->core.state == LINK_CONNECTED && !link->mute && !conn->blocked &&
           (conn->first < conn->end || link->next_out != NULL);
}

bool tcp_may_write(const struct tcp_link *link)
{
    for (unsigned i = 0; i < link->count; i++)
        if (connection_may_write(&link->connections[i]))
            return true;
    return false;
}

/* False: the socket took nothing. */
static bool write_some(struct connection *conn, size_t *bytes)
{
    struct iovec parts[2 * FRAGMENTS_MAX];
    if (conn->first == conn->end)
        take(conn);
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)gather(conn, parts)};
    const ssize_t size = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size >= 0) {
        written(conn, (size_t)size);
        *bytes += (size_t)size;
        return true;
    }
    if (errno == EINTR)
        return true;
    if (errno == EAGAIN) {
        conn->blocked = true;
        if (!watch(conn, EPOLLIN | EPOLLOUT))
            fail(conn->link, "the connection cannot be watched");
    } else if (errno == ENOMEM || errno == ENOBUFS) {
        fail(conn->link, "out of memory");
    } else {
        conn->link->mute = true;
    }
    return false;
}

void tcp_flush(struct tcp_link *link)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < link->count; i++)
        while (bytes < TURN_BYTES && connection_may_write(&link->connections[i]))
            if (!write_some(&link->connections[i], &bytes))
                break;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

struct head {
    uint32_t header_size;
    uint32_t chunk_size, offset, size;
    uint64_t number;
};

static bool head_read(const uint8_t *bytes, struct head *head)
{
    *head = (struct head){
        .header_size = load_le32(bytes + 4),
        .chunk_size = load_le32(bytes + 8),
        .offset = load_le32(bytes + 12),
        .size = load_le32(bytes + 16),
        .number = load_le64(bytes + 24),
    };
    return memcmp(bytes, fragment_magic, sizeof(fragment_magic)) == 0 && head->header_size <= TRANSPORT_HEADER_MAX &&
           load_le32(bytes + 20) == 0 && head->offset <= head->chunk_size &&
           head->size <= head->chunk_size - head->offset && (head->size > 0 || head->chunk_size == 0);
}

/* Counts bytes of the fragment that have come. */
static void received(struct connection *conn, size_t bytes)
{
    struct incoming *chunk = conn->chunk;
    conn->left -= bytes;
    if (conn->into != NULL)
        conn->into += bytes;
    chunk->received += bytes;
    if (conn->left == 0)
        conn->chunk = NULL;
    if (chunk->received == chunk->size)
        incoming_end(conn->link, chunk, STRAIT_OK);
}

static struct incoming *incoming_find(const struct tcp_link *link, uint64_t number)
{
    struct incoming *chunk;
    TAILQ_FOREACH(chunk, &link->in, entry)
    {
        if (chunk->number == number)
            break;
    }
    return chunk;
}

/* Asks the owner where a chunk goes of which this is the first fragment. Earlier chunks are called back first. The
 * chunk is allocated before that, so that an accepted one gets its callback; the owner may close the link in either.
 * NULL: the link has ended. */
static struct incoming *incoming_begin(struct tcp_link *link, const struct head *head, const uint8_t *header)
{
    struct transport *transport = link->core.base.transport;
    core_deliver(link->core.core);
    if (link->core.state != LINK_CONNECTED)
        return NULL;
    struct incoming *chunk = link->incoming < INCOMING_MAX ? malloc(sizeof(*chunk)) : NULL;
    if (chunk == NULL) {
        fail(link, link->incoming < INCOMING_MAX ? "out of memory" : "the peer begins too many chunks at once");
        return NULL;
    }
    const struct landing landing =
        transport->events.arriving(transport->owner, &link->core.base, header, head->header_size, head->chunk_size);
    *chunk = (struct incoming){.address = landing.address, .number = head->number, .size = head->chunk_size};
    if (landing.address != NULL)
        event_begin(&chunk->event, &link->core, EVENT_ARRIVED, landing.cookie);
    TAILQ_INSERT_HEAD(&link->in, chunk, entry);
    link->incoming++;
    if (link->core.state == LINK_CONNECTED)
        return chunk;
    incoming_end(link, chunk, STRAIT_ERR_IO);
    return NULL;
}

static void fragment_begin(struct connection *conn, const struct head *head, const uint8_t *header)
{
    struct incoming *chunk = incoming_find(conn->link, head->number);
    if (chunk == NULL)
        chunk = incoming_begin(conn->link, head, header);
    if (chunk == NULL)
        return;
    if (chunk->size != head->chunk_size || head->size > chunk->size - chunk->begun) {
        fail(conn->link, "the peer sent more than a chunk has");
        return;
    }
    chunk->begun += head->size;
    conn->chunk = chunk;
    conn->into = chunk->address != NULL ? chunk->address + head->offset : NULL;
    conn->left = head->size;
    if (head->size == 0)
        received(conn, 0);
}

/* Bytes taken; 0: more have to come, or the link has ended. */
static uint32_t take_head(struct connection *conn, const uint8_t *at, uint32_t size)
{
    struct head head;
    if (size < FRAGMENT_HEAD)
        return 0;
    if (!head_read(at, &head)) {
        fail(conn->link, "the peer sent a malformed fragment");
        return 0;
    }
    if (size < FRAGMENT_HEAD + head.header_size)
        return 0;
    fragment_begin(conn, &head, at + FRAGMENT_HEAD);
    return FRAGMENT_HEAD + head.header_size;
}

static uint32_t take_bytes(struct connection *conn, const uint8_t *at, uint32_t size)
{
    const uint32_t taken = conn->left < size ? (uint32_t)conn->left : size;
    if (conn->into != NULL)
        memcpy(conn->into, at, taken);
    received(conn, taken);
    return taken;
}

static void parse(struct connection *conn)
{
    const struct core_link *link = &conn->link->core;
    uint32_t at = 0, taken = 1;
    for (; taken > 0 && link->state == LINK_CONNECTED && at < conn->in_size; at += taken) {
        const uint32_t size = conn->in_size - at;
        taken = conn->left > 0 ? take_bytes(conn, conn->in + at, size) : take_head(conn, conn->in + at, size);
    }
    conn->in_size = link->state == LINK_CONNECTED ? conn->in_size - at : 0;
    memmove(conn->in, conn->in + at, conn->in_size);
}

/* What belongs to the fragment goes straight into its landing, and what follows it into the input. */
static ssize_t read_some(struct connection *conn, size_t *room)
{
    struct tcp *tcp = tcp_of(conn->link);
    const size_t most = conn->into != NULL ? TURN_BYTES : sizeof(tcp->refused);
    struct iovec parts[2] = {{conn->into != NULL ? conn->into : tcp->refused, conn->left},
                             {conn->in + conn->in_size, INPUT_BYTES - conn->in_size}};
    if (conn->left > most) {
        parts[0].iov_len = most;
        parts[1].iov_len = 0;
    }
    *room = parts[0].iov_len + parts[1].iov_len;
    const ssize_t size = readv(conn->fd, parts, 2);
    if (size <= 0)
        return size;
    const size_t bytes = (size_t)size < parts[0].iov_len ? (size_t)size : parts[0].iov_len;
    conn->in_size += (uint32_t)((size_t)size - bytes);
    if (bytes > 0)
        received(conn, bytes);
    parse(conn);
    return size;
}

/* Less than there was room for: the socket is empty. */
static void receive(struct connection *conn)
{
    struct tcp_link *link = conn->link;
    size_t room = 0;
    ssize_t size = 0;
    for (size_t bytes = 0; link->core.state == LINK_CONNECTED && bytes < TURN_BYTES && (size_t)size == room;
         bytes += (size_t)size) {
        size = read_some(conn, &room);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (size <= 0) {
            fail(link, "the peer's end of the connection is gone");
            return;
        }
    }
}

/* ---- What the system reports ------------------------------------------------------------------------------------- */

static void serve_connected(struct connection *conn, uint32_t events)
{
    struct tcp_link *link = conn->link;
    if ((events & EPOLLOUT) != 0 && conn->blocked) {
        conn->blocked = false;
        if (!watch(conn, EPOLLIN))
            fail(link, "the connection cannot be watched");
    }
    if (link->core.state == LINK_CONNECTED && (events & ~(uint32_t)EPOLLOUT) != 0)
        receive(conn);
}

void tcp_serve(struct connection *conn, uint32_t events)
{
    const enum link_state link = conn->link->core.state;
    if (link == LINK_CONNECTED)
        serve_connected(conn, events);
    else if (link == LINK_CONNECTING && conn->state == CONNECTION_DIALLING)
        finish_dial(conn);
    else if (link == LINK_CONNECTING && conn->state == CONNECTION_ASKING)
        read_answer(conn);
    else if (link == LINK_CONNECTING && conn->state == CONNECTION_UP) /* watched for errors only */
        fail(conn->link, "the peer's end of the connection is gone");
}
