#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "internal/socket_address.h"
#include "transport/core.h"
#include "transport/tcp.h"

#define SECRET_BYTES 16u
#define HELLO_BYTES  24u /* magic, secret */
#define INPUT_BYTES  4096u
#define TURN_BYTES   262144u /* read and written of a link per progress, so that others get their turn */
#define PARTS_MAX    64
#define READY_MAX    64
#define BACKLOG      512
#define PENDING_MAX  128 /* unproved connections: beyond these the oldest is closed */
#define HELLO_NS     10000000000
#define TICK_NS      1000000000

static const uint8_t address_magic[4] = {'T', 'C', 'P', '1'};
static const uint8_t connect_magic[8] = {'S', 'T', 'R', 'C', 'A', 'L', 'L', '2'};
static const uint8_t accept_magic[8] = {'S', 'T', 'R', 'A', 'N', 'S', 'W', '2'};

/* A chunk to send. */
struct message {
    struct event event;
    struct message *next;
    const uint8_t *data;
    size_t size;
    uint32_t head_size;
    uint8_t head[RECORD_MAX];
};

/* An accepted connection that has not proved itself. */
struct pending {
    int fd; /* -1: none */
    uint32_t got;
    int64_t until;
    uint8_t hello[HELLO_BYTES];
};

struct tcp {
    struct core core;
    int epoll, timer;
    int listener;                   /* -1: no link awaits its peer */
    bool resting, ticking;          /* no descriptor is left for those who connect; the timer runs */
    struct address listen, address; /* as the options have it; as peers are told, with the port */
    struct pending pending[PENDING_MAX];
    uint8_t refused[65536]; /* bytes that nobody wants are read to here */
};

struct tcp_link {
    struct core_link core;
    enum link_side side;
    int fd;          /* -1: none */
    bool hello_sent; /* dialled: the hello was sent, and its answer is awaited */
    uint8_t secret[SECRET_BYTES], peer_secret[SECRET_BYTES];

    struct message *out_head, **out_tail;
    size_t out_done; /* bytes written of the first message */
    bool blocked;    /* the socket takes no more for now */
    bool mute;       /* a write has failed; what the peer said last is still to be read */

    struct event *receipt; /* of the chunk that is being received; NULL: refused, or none */
    uint8_t *into;         /* where its bytes go; NULL: nowhere */
    size_t left;           /* of its bytes */
    uint32_t in_size;
    uint8_t in[INPUT_BYTES];
};

static struct tcp *tcp_of(const struct tcp_link *link)
{
    return (struct tcp *)link->core.core;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

static bool watch(struct tcp *tcp, int fd, void *what, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = what};
    return epoll_ctl(tcp->epoll, EPOLL_CTL_MOD, fd, &event) == 0 ||
           (errno == ENOENT && epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* Closing alone would leave it in the set for as long as a forked child has a copy. */
static void drop(struct tcp *tcp, int *fd)
{
    if (*fd < 0)
        return;
    epoll_ctl(tcp->epoll, EPOLL_CTL_DEL, *fd, NULL);
    close(*fd);
    *fd = -1;
}

static void tick(struct tcp *tcp, bool on)
{
    const struct timespec second = {.tv_sec = on ? TICK_NS / 1000000000 : 0};
    if (tcp->ticking != on)
        timerfd_settime(tcp->timer, 0, &(struct itimerspec){.it_interval = second, .it_value = second}, NULL);
    tcp->ticking = on;
}

/* ---- The end of a link ------------------------------------------------------------------------------------------- */

static bool awaits(const struct tcp_link *link)
{
    return link->side == LINK_ACCEPTED && link->fd < 0 && link->core.state <= LINK_CONNECTING;
}

static bool begin_to_listen(struct tcp *tcp)
{
    struct sockaddr_storage at;
    const int on = 1;
    socklen_t size = address_unpack(&at, &tcp->listen);
    tcp->listener = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (tcp->listener >= 0 && setsockopt(tcp->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(tcp->listener, (struct sockaddr *)&at, size) == 0 && listen(tcp->listener, BACKLOG) == 0 &&
        getsockname(tcp->listener, (struct sockaddr *)&at, &size) == 0 &&
        watch(tcp, tcp->listener, &tcp->listener, EPOLLIN)) {
        tcp->address = address_pack(&at);
        return true;
    }
    drop(tcp, &tcp->listener);
    return false;
}

/* Where no link awaits its peer, whoever connects is a stranger. */
static void unlisten_if_idle(struct tcp *tcp)
{
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next)
        if (awaits((struct tcp_link *)at))
            return;
    drop(tcp, &tcp->listener);
    for (unsigned i = 0; i < PENDING_MAX; i++)
        drop(tcp, &tcp->pending[i].fd);
    tcp->resting = false;
    tick(tcp, false);
}

static struct message *out_pop(struct tcp_link *link)
{
    struct message *message = link->out_head;
    link->out_head = message->next;
    if (link->out_head == NULL)
        link->out_tail = &link->out_head;
    link->out_done = 0;
    return message;
}

/* Nothing is read or written from here on. */
static void shut(struct tcp_link *link)
{
    drop(tcp_of(link), &link->fd);
    while (link->out_head != NULL)
        event_due(&out_pop(link)->event, STRAIT_ERR_IO);
    if (link->receipt != NULL)
        event_due(link->receipt, STRAIT_ERR_IO);
    link->receipt = NULL;
    link->left = link->in_size = 0;
    unlisten_if_idle(tcp_of(link));
}

static void fail(struct tcp_link *link, const char *why)
{
    core_link_break(&link->core, why);
    shut(link);
}

/* ---- Proof ------------------------------------------------------------------------------------------------------- */

static void hello_write(uint8_t hello[HELLO_BYTES], const uint8_t magic[8], const uint8_t secret[SECRET_BYTES])
{
    memcpy(hello, magic, 8);
    memcpy(hello + 8, secret, SECRET_BYTES);
}

/* A new connection's buffer has room. */
static bool hello_send(const struct tcp_link *link, const uint8_t magic[8])
{
    uint8_t hello[HELLO_BYTES];
    hello_write(hello, magic, link->peer_secret);
    return send(link->fd, hello, HELLO_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) == HELLO_BYTES;
}

/* In constant time, so as not to reveal how much of it is right. */
static bool hello_is(const uint8_t hello[HELLO_BYTES], const uint8_t magic[8], const struct tcp_link *link)
{
    uint8_t right[HELLO_BYTES];
    unsigned differs = 0;
    hello_write(right, magic, link->secret);
    for (unsigned i = 0; i < HELLO_BYTES; i++)
        differs |= right[i] ^ hello[i];
    return differs == 0;
}

/* Reads up to a hello and no further. 1: it is complete; 0: more has to come; -1: it ended. */
static int hello_read(int fd, uint8_t hello[HELLO_BYTES], uint32_t *got)
{
    const ssize_t size = recv(fd, hello + *got, HELLO_BYTES - *got, MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
        return -1;
    *got += size > 0 ? (uint32_t)size : 0;
    return *got == HELLO_BYTES;
}

static void become_connected(struct tcp_link *link)
{
    address_tune(link->fd);
    core_link_connected(&link->core);
}

/* The accepted side, once the peer has proved itself and link_connect has said who that is. */
static void accept_link(struct tcp_link *link)
{
    if (hello_send(link, accept_magic) && watch(tcp_of(link), link->fd, link, EPOLLIN))
        become_connected(link);
    else
        fail(link, "the peer that connected has gone");
}

/* The dialled side. */
static void finish_dial(struct tcp_link *link)
{
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0 ||
        !hello_send(link, connect_magic) || !watch(tcp_of(link), link->fd, link, EPOLLIN))
        fail(link, "the peer is not reached");
    else
        link->hello_sent = true;
}

static void read_accept(struct tcp_link *link)
{
    const int complete = hello_read(link->fd, link->in, &link->in_size);
    if (complete == 0)
        return;
    link->in_size = 0;
    if (complete == 1 && hello_is(link->in, accept_magic, link))
        become_connected(link);
    else
        fail(link, "the peer does not know this link");
}

/* ---- Those who connect ------------------------------------------------------------------------------------------- */

/* Its link; NULL: a stranger. */
static struct tcp_link *proved(const struct tcp *tcp, const struct pending *conn)
{
    struct tcp_link *found = NULL;
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next) {
        struct tcp_link *link = (struct tcp_link *)at;
        if (hello_is(conn->hello, connect_magic, link) && awaits(link))
            found = link;
    }
    return found;
}

static void read_pending(struct tcp *tcp, struct pending *conn)
{
    const int complete = conn->fd < 0 ? 0 : hello_read(conn->fd, conn->hello, &conn->got);
    if (complete == 0)
        return;
    struct tcp_link *link = complete == 1 ? proved(tcp, conn) : NULL;
    if (link == NULL) {
        drop(tcp, &conn->fd);
        return;
    }
    epoll_ctl(tcp->epoll, EPOLL_CTL_DEL, conn->fd, NULL);
    link->fd = conn->fd;
    conn->fd = -1;
    if (link->core.state == LINK_CONNECTING)
        accept_link(link);
    unlisten_if_idle(tcp);
}

/* A place that is free, or that of the oldest. */
static struct pending *place(struct tcp *tcp)
{
    struct pending *oldest = &tcp->pending[0];
    for (unsigned i = 0; i < PENDING_MAX; i++) {
        struct pending *conn = &tcp->pending[i];
        if (conn->fd < 0)
            return conn;
        if (conn->until < oldest->until)
            oldest = conn;
    }
    drop(tcp, &oldest->fd);
    return oldest;
}

static void accept_some(struct tcp *tcp)
{
    for (unsigned i = 0; i < PENDING_MAX && tcp->listener >= 0; i++) {
        const int fd = accept4(tcp->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            tcp->resting = watch(tcp, tcp->listener, &tcp->listener, 0); /* it would wake us all the time */
        tick(tcp, tcp->ticking || fd >= 0 || tcp->resting);
        if (fd < 0)
            return;
        struct pending *conn = place(tcp);
        *conn = (struct pending){.fd = fd, .until = nanoseconds() + HELLO_NS};
        if (!watch(tcp, fd, conn, EPOLLIN))
            drop(tcp, &conn->fd);
    }
}

static void on_tick(struct tcp *tcp)
{
    uint64_t times;
    bool any = false;
    (void)!read(tcp->timer, &times, sizeof(times));
    tcp->resting = tcp->resting && !watch(tcp, tcp->listener, &tcp->listener, EPOLLIN);
    for (unsigned i = 0; i < PENDING_MAX; i++) {
        if (tcp->pending[i].until <= nanoseconds())
            drop(tcp, &tcp->pending[i].fd);
        any |= tcp->pending[i].fd >= 0;
    }
    tick(tcp, any || tcp->resting);
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* The rest of what is to be written, for at most TURN_BYTES. */
static int gather(const struct tcp_link *link, struct iovec *parts)
{
    int count = 0;
    size_t skipped = link->out_done, room = TURN_BYTES;
    for (struct message *message = link->out_head; message != NULL && room > 0 && count + 2 <= PARTS_MAX;
         message = message->next) {
        const size_t head = skipped < message->head_size ? message->head_size - skipped : 0;
        const size_t done = head > 0 ? 0 : skipped - message->head_size, left = message->size - done;
        if (head > 0)
            parts[count++] = (struct iovec){message->head + message->head_size - head, head};
        if (left > 0)
            parts[count++] = (struct iovec){(void *)(uintptr_t)(message->data + done), left < room ? left : room};
        room -= left < room ? left : room;
        skipped = 0;
    }
    return count;
}

static void written(struct tcp_link *link, size_t bytes)
{
    link->out_done += bytes;
    while (link->out_head != NULL && link->out_done >= link->out_head->head_size + link->out_head->size) {
        const size_t rest = link->out_done - link->out_head->head_size - link->out_head->size;
        event_due(&out_pop(link)->event, STRAIT_OK);
        link->out_done = rest;
    }
}

static bool may_write(const struct tcp_link *link)
{
    return link->core.state == LINK_CONNECTED && link->out_head != NULL && !link->blocked && !link->mute;
}

static void flush(struct tcp_link *link)
{
    for (size_t bytes = 0; bytes < TURN_BYTES && may_write(link);) {
        struct iovec parts[PARTS_MAX];
        const struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)gather(link, parts)};
        const ssize_t size = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (size >= 0) {
            written(link, (size_t)size);
            bytes += (size_t)size;
        } else if (errno == EAGAIN) {
            link->blocked = true;
            if (!watch(tcp_of(link), link->fd, link, EPOLLIN | EPOLLOUT))
                fail(link, "the connection cannot be watched");
        } else if (errno == ENOMEM || errno == ENOBUFS) {
            fail(link, "out of memory");
        } else if (errno != EINTR) {
            link->mute = true;
        }
    }
}

static enum strait_status tcp_link_send(struct link *base, const void *header, size_t header_size, const void *data,
                                        size_t size, void *handle, uint64_t cookie)
{
    struct tcp_link *link = (struct tcp_link *)base;
    (void)handle;
    if (header_size > TRANSPORT_HEADER_MAX || (data == NULL && size > 0) || size > UINT32_MAX)
        return STRAIT_ERR_INVALID;
    if (link->core.state != LINK_CONNECTED)
        return STRAIT_ERR_IO;
    struct message *message = malloc(sizeof(*message));
    if (message == NULL)
        return STRAIT_ERR_NO_MEMORY;
    event_begin(&message->event, &link->core, EVENT_SENT, cookie);
    message->head_size = record_write(message->head, header, header_size, size);
    message->data = data;
    message->size = size;
    message->next = NULL;
    *link->out_tail = message;
    link->out_tail = &message->next;
    return STRAIT_OK;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

static void received(struct tcp_link *link, size_t bytes)
{
    link->left -= bytes;
    if (link->into != NULL)
        link->into += bytes;
    if (link->left > 0 || link->receipt == NULL)
        return;
    event_due(link->receipt, STRAIT_OK);
    link->receipt = NULL;
}

/* Earlier chunks are called back first. The receipt is allocated before the owner is asked, so that an accepted chunk
 * gets its callback; the owner may close the link in either. */
static void begin_chunk(struct tcp_link *link, const uint8_t *header, uint32_t header_size, uint64_t size)
{
    struct transport *transport = link->core.base.transport;
    core_deliver(link->core.core);
    if (link->core.state != LINK_CONNECTED)
        return;
    struct event *receipt = malloc(sizeof(*receipt));
    if (receipt == NULL) {
        fail(link, "out of memory");
        return;
    }
    const struct landing landing =
        transport->events.arriving(transport->owner, &link->core.base, header, header_size, (size_t)size);
    const bool open = link->core.state == LINK_CONNECTED;
    link->into = landing.address;
    link->left = open ? (size_t)size : 0;
    if (landing.address == NULL) {
        free(receipt);
        return;
    }
    event_begin(receipt, &link->core, EVENT_ARRIVED, landing.cookie);
    if (open && size > 0)
        link->receipt = receipt;
    else
        event_due(receipt, open ? STRAIT_OK : STRAIT_ERR_IO);
}

/* Bytes taken; 0: more have to come, or the link has ended. */
static uint32_t take_head(struct tcp_link *link, const uint8_t *at, uint32_t size)
{
    if (size < RECORD_HEAD)
        return 0;
    uint32_t header_size;
    uint64_t bytes;
    if (!record_read(at, &header_size, &bytes)) {
        fail(link, "the peer sent a malformed record");
        return 0;
    }
    if (size < RECORD_HEAD + header_size)
        return 0;
    begin_chunk(link, at + RECORD_HEAD, header_size, bytes);
    return RECORD_HEAD + header_size;
}

static uint32_t take_bytes(struct tcp_link *link, const uint8_t *at, uint32_t size)
{
    const uint32_t taken = link->left < size ? (uint32_t)link->left : size;
    if (link->into != NULL)
        memcpy(link->into, at, taken);
    received(link, taken);
    return taken;
}

static void parse(struct tcp_link *link)
{
    uint32_t at = 0, taken = 1;
    for (; taken > 0 && link->core.state == LINK_CONNECTED && at < link->in_size; at += taken) {
        const uint32_t size = link->in_size - at;
        taken = link->left > 0 ? take_bytes(link, link->in + at, size) : take_head(link, link->in + at, size);
    }
    link->in_size = link->core.state == LINK_CONNECTED ? link->in_size - at : 0;
    memmove(link->in, link->in + at, link->in_size);
}

/* What belongs to the chunk goes straight into its landing, and what follows it into the input. */
static ssize_t read_some(struct tcp_link *link, size_t *room)
{
    struct tcp *tcp = tcp_of(link);
    const size_t most = link->into != NULL ? TURN_BYTES : sizeof(tcp->refused);
    struct iovec parts[2] = {{link->into != NULL ? link->into : tcp->refused, link->left},
                             {link->in + link->in_size, INPUT_BYTES - link->in_size}};
    if (link->left > most) {
        parts[0].iov_len = most;
        parts[1].iov_len = 0;
    }
    *room = parts[0].iov_len + parts[1].iov_len;
    const ssize_t size = readv(link->fd, parts, 2);
    if (size <= 0)
        return size;
    const size_t bytes = (size_t)size < parts[0].iov_len ? (size_t)size : parts[0].iov_len;
    link->in_size += (uint32_t)((size_t)size - bytes);
    if (bytes > 0)
        received(link, bytes);
    parse(link);
    return size;
}

/* Less than there was room for: the socket is empty. */
static void receive(struct tcp_link *link)
{
    size_t room = 0;
    ssize_t size = 0;
    for (size_t bytes = 0; link->core.state == LINK_CONNECTED && bytes < TURN_BYTES && (size_t)size == room;
         bytes += (size_t)size) {
        size = read_some(link, &room);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (size <= 0) {
            fail(link, "the peer's end of the connection is gone");
            return;
        }
    }
}

static void serve(struct tcp_link *link, uint32_t events)
{
    if (link->core.state == LINK_CONNECTING && link->side == LINK_DIALLED && !link->hello_sent)
        finish_dial(link);
    else if (link->core.state == LINK_CONNECTING && link->side == LINK_DIALLED)
        read_accept(link);
    if (link->core.state == LINK_CONNECTED && (events & EPOLLOUT) != 0 && link->blocked) {
        link->blocked = false;
        if (!watch(tcp_of(link), link->fd, link, EPOLLIN))
            fail(link, "the connection cannot be watched");
    }
    if (link->core.state == LINK_CONNECTED && (events & ~(uint32_t)EPOLLOUT) != 0)
        receive(link);
}

/* ---- Links ------------------------------------------------------------------------------------------------------- */

static enum strait_status tcp_link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                        struct link **out)
{
    struct tcp *tcp = (struct tcp *)transport;
    (void)fd;
    struct tcp_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if ((side == LINK_ACCEPTED && tcp->listener < 0 && !begin_to_listen(tcp)) ||
        getrandom(link->secret, SECRET_BYTES, 0) != SECRET_BYTES) {
        free(link);
        return STRAIT_ERR_IO;
    }
    link->side = side;
    link->fd = -1;
    link->out_tail = &link->out_head;
    core_link_add(&tcp->core, &link->core, link_owner);
    *out = &link->core.base;
    return STRAIT_OK;
}

/* 0 4 "TCP1" | 4 2 IP version, 4 or 6 | 6 2 port | 8 16 secret | 24 16 IP address, zero-padded | 40 4 IPv6 scope | 44 4
 * zero. All little-endian, except for the IP address. */
static size_t tcp_link_address(struct link *base, void *dst, size_t capacity)
{
    const struct tcp_link *link = (struct tcp_link *)base;
    const struct address *address = &tcp_of(link)->address;
    uint8_t *bytes = dst;
    if (capacity < TCP_ADDRESS_BYTES)
        return TCP_ADDRESS_BYTES;
    memset(bytes, 0, TCP_ADDRESS_BYTES);
    memcpy(bytes, address_magic, sizeof(address_magic));
    store_le16(bytes + 4, address->family);
    store_le16(bytes + 6, address->port);
    memcpy(bytes + 8, link->secret, SECRET_BYTES);
    memcpy(bytes + 24, address->bytes, sizeof(address->bytes));
    store_le32(bytes + 40, address->scope);
    return TCP_ADDRESS_BYTES;
}

static enum strait_status dial(struct tcp_link *link, const struct sockaddr_storage *at, socklen_t size)
{
    link->fd = socket(at->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (link->fd >= 0 && (connect(link->fd, (const struct sockaddr *)at, size) == 0 || errno == EINPROGRESS) &&
        watch(tcp_of(link), link->fd, link, EPOLLOUT))
        return STRAIT_OK;
    drop(tcp_of(link), &link->fd);
    return STRAIT_ERR_IO;
}

static enum strait_status tcp_link_connect(struct link *base, const void *address, size_t size)
{
    struct tcp_link *link = (struct tcp_link *)base;
    const uint8_t *bytes = address;
    struct sockaddr_storage at;
    if (link->core.state != LINK_OPEN || bytes == NULL || size != TCP_ADDRESS_BYTES)
        return STRAIT_ERR_INVALID;
    struct address packed = {
        .family = load_le16(bytes + 4), .port = load_le16(bytes + 6), .scope = load_le32(bytes + 40)};
    memcpy(packed.bytes, bytes + 24, sizeof(packed.bytes));
    const socklen_t at_size = address_unpack(&at, &packed);
    if (memcmp(bytes, address_magic, sizeof(address_magic)) != 0 || at_size == 0 || load_le32(bytes + 44) != 0)
        return STRAIT_ERR_CORRUPT;
    memcpy(link->peer_secret, bytes + 8, SECRET_BYTES);
    link->core.state = LINK_CONNECTING;
    if (link->side == LINK_DIALLED)
        return dial(link, &at, at_size);
    if (link->fd >= 0)
        accept_link(link);
    return STRAIT_OK;
}

static void tcp_link_close(struct link *base)
{
    struct tcp_link *link = (struct tcp_link *)base;
    if (core_link_close(&link->core))
        shut(link);
}

/* ---- The transport ----------------------------------------------------------------------------------------------- */

static bool set_option(void *listen, const struct option *option)
{
    bool good;
    return option_listen(option, listen, &good) && good;
}

static enum strait_status tcp_check(const char *options)
{
    struct address listen = LISTEN_DEFAULT;
    return options_read(options, set_option, &listen);
}

static void tcp_destroy(struct transport *transport)
{
    struct tcp *tcp = (struct tcp *)transport;
    unlisten_if_idle(tcp);
    drop(tcp, &tcp->timer);
    if (tcp->epoll >= 0)
        close(tcp->epoll);
    free(tcp);
}

/* The set goes first: taking a descriptor out of it would take it from the parent. */
static void tcp_after_fork(struct transport *transport)
{
    struct tcp *tcp = (struct tcp *)transport;
    close(tcp->epoll);
    tcp->epoll = -1;
    drop(tcp, &tcp->timer);
    drop(tcp, &tcp->listener);
    for (unsigned i = 0; i < PENDING_MAX; i++)
        drop(tcp, &tcp->pending[i].fd);
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next)
        drop(tcp, &((struct tcp_link *)at)->fd);
}

static enum strait_status tcp_create(const struct transport_arena *arena, const struct transport_events *events,
                                     void *owner, const char *options, struct transport **transport)
{
    struct address listen = LISTEN_DEFAULT;
    if (arena->memory != TRANSPORT_HOST || options_read(options, set_option, &listen) != STRAIT_OK)
        return STRAIT_ERR_INVALID;
    struct tcp *tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL)
        return STRAIT_ERR_NO_MEMORY;
    core_init(&tcp->core, &transport_tcp, events, owner);
    tcp->listen = listen;
    for (unsigned i = 0; i < PENDING_MAX; i++)
        tcp->pending[i].fd = -1;
    tcp->listener = -1;
    tcp->epoll = epoll_create1(EPOLL_CLOEXEC);
    tcp->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (tcp->epoll >= 0 && tcp->timer >= 0 && watch(tcp, tcp->timer, &tcp->timer, EPOLLIN) && begin_to_listen(tcp)) {
        unlisten_if_idle(tcp); /* that it can was to be seen */
        *transport = &tcp->core.base;
        return STRAIT_OK;
    }
    tcp_destroy(&tcp->core.base);
    return STRAIT_ERR_IO;
}

static int tcp_fd(const struct transport *transport)
{
    return ((const struct tcp *)transport)->epoll;
}

/* Only core_reap frees links, so the pointers from epoll stay valid throughout the loop. */
static bool tcp_progress(struct transport *transport)
{
    struct tcp *tcp = (struct tcp *)transport;
    struct epoll_event ready[READY_MAX];
    bool any = core_deliver(&tcp->core);
    const int count = epoll_wait(tcp->epoll, ready, READY_MAX, 0);
    for (int i = 0; i < count; i++) {
        void *what = ready[i].data.ptr;
        if (what == &tcp->listener)
            accept_some(tcp);
        else if (what == &tcp->timer)
            on_tick(tcp);
        else if (what >= (void *)tcp->pending && what < (void *)(tcp->pending + PENDING_MAX))
            read_pending(tcp, what);
        else
            serve(what, ready[i].events);
    }
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next)
        if (may_write((struct tcp_link *)at)) {
            flush((struct tcp_link *)at);
            any = true;
        }
    any |= core_deliver(&tcp->core);
    any |= core_reap(&tcp->core);
    return any || count > 0;
}

static enum strait_status tcp_arm(struct transport *transport)
{
    const struct tcp *tcp = (struct tcp *)transport;
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next)
        if (may_write((struct tcp_link *)at))
            return STRAIT_ERR_AGAIN;
    return core_is_due(&tcp->core) ? STRAIT_ERR_AGAIN : STRAIT_OK;
}

const struct transport_ops transport_tcp = {
    .name = "tcp",
    .send_memory = TRANSPORT_HOST,
    .receive_memory = TRANSPORT_HOST,
    .direct = false,
    .check = tcp_check,
    .create = tcp_create,
    .destroy = tcp_destroy,
    .after_fork = tcp_after_fork,
    .fd = tcp_fd,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .open = tcp_link_open,
    .address = tcp_link_address,
    .connect = tcp_link_connect,
    .close = tcp_link_close,
    .send = tcp_link_send,
};
