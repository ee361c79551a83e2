#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "internal/ring.h"
#include "transport/core.h"
#include "transport/shm.h"
#include "transport/shm_hello.h"

/* Shared by the shm*.c files: what a link of shared memory (shm.h) is made of. */

#define INPUT_BYTES 8192u

/* Pairs of rings of a link that has them: records, and the owner's bytes. */
enum { RINGS_RECORDS, RINGS_OWNER, RINGS };
static const uint32_t ring_sizes[RINGS] = {16u * 1024, 64u * 1024};

/* The last bytes of a link whose side ended it in order. Without them the peer's process is dying or dead. */
extern const uint8_t shm_farewell[RECORD_HEAD];

struct shm {
    struct core core;
    struct transport_arena arena;
    int epoll;
};

/* Bytes on their way to the socket: a record, the hello, or the farewell. */
struct message {
    struct event event;
    struct message *next;
    uint32_t size;
    bool hello;
    bool record;
    uint8_t bytes[RECORD_MAX + RECORD_HEAD]; /* the farewell may have to follow the rest of a record */
};

struct shm_link {
    struct core_link core;
    int fd;
    int process;   /* pidfd of the peer's process; -1: it is this one, or unknown */
    bool sees_end; /* the peer's process is known; it may be this one */
    enum link_side side;
    uint32_t watched;          /* epoll events; 0: not watched */
    bool shared;               /* the hello was sent, and our arena with it */
    bool received_hello;       /* the peer's hello has come */
    bool finishing;            /* closing: only the farewell is left to send */
    bool dying;                /* the input ended without a farewell: `process` is watched instead of the socket */
    bool ended;                /* the peer stores no more */
    uint8_t last[RECORD_HEAD]; /* latest input, once nothing of it is processed any more */
    struct message *out_head, **out_tail;
    uint32_t out_written;      /* of the first message */
    int in_fds[SHM_HELLO_FDS]; /* those that came with the hello; -1: none */
    struct ring_file rings;    /* base NULL: none, records go over the socket */
    int rings_fd;              /* accepted: until the hello is sent */
    struct ring in_ring, out_ring;
    uint32_t in_size;
    uint8_t in[INPUT_BYTES];
    void *map;
    size_t map_size;
};

/* Do records go by rings? Then the socket has only bytes that wake a side that sleeps, and the farewell. */
static inline bool shm_has_rings(const struct shm_link *link)
{
    return link->rings.base != NULL && link->received_hello;
}

static inline struct shm *shm_of(const struct shm_link *link)
{
    return (struct shm *)link->core.core;
}

/* ---- shm_send.c: what waits for the socket ----------------------------------------------------------------------- */

/* Watches the socket, or the process of a dying peer, for other epoll events; 0: for none. */
bool shm_watch(struct shm_link *link, uint32_t events);
/* Breaks the link. A broken link is not watched until link_close: its end of file would wake us all the time. */
void shm_fail(struct shm_link *link, const char *why);
/* Drops what waits, and makes its callbacks due. */
void shm_out_fail(struct shm_link *link);
/* Writes what the socket takes. */
void shm_flush(struct shm_link *link);
/* Wakes the peer if it sleeps: something was put into a ring, or taken out of one. */
void shm_wake(struct shm_link *link);
bool shm_send_hello(struct shm_link *link); /* false: out of memory */
/* Drops all messages except one that has been written in part, and appends the farewell. */
void shm_send_farewell(struct shm_link *link);
enum strait_status shm_link_send(struct link *base, const void *header, size_t header_size, const void *data,
                                 size_t size, void *handle, uint64_t cookie);

/* ---- shm_receive.c: what comes from it, and its end -------------------------------------------------------------- */

/* Called with the epoll events of what is watched. */
void shm_serve(struct shm_link *link, uint32_t events);
/* Takes the records that are in the ring. */
void shm_take_ring(struct shm_link *link);

/* Sending: messages wait in a list until the socket takes them. */

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

void shm_wake(struct shm_link *link)
{
    if (ring_must_wake(ring_file_sleeps(&link->rings, true)) && link->core.state == LINK_CONNECTED)
        (void)!send(link->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* no room: the peer has enough to wake up for */
}

/* A record is put in whole. */
static bool has_room(struct shm_link *link, uint32_t size)
{
    if (ring_room(&link->out_ring) >= size)
        return true;
    ring_wait(&link->out_ring, true);
    return ring_room(&link->out_ring) >= size;
}

static ptrdiff_t put_record(struct shm_link *link, const struct message *message)
{
    if (!has_room(link, message->size)) {
        errno = link->out_ring.broken ? EPROTO : EAGAIN;
        return -1;
    }
    ring_wait(&link->out_ring, false);
    ring_put(&link->out_ring, message->bytes, message->size);
    shm_wake(link);
    return message->size;
}

static void rings_fd_close(struct shm_link *link)
{
    if (link->rings_fd >= 0)
        close(link->rings_fd);
    link->rings_fd = -1;
}

/* Writes from the first message. Returns the bytes written, or -1. */
static ptrdiff_t write_some(struct shm_link *link)
{
    const struct message *message = link->out_head;
    const uint8_t *from = message->bytes + link->out_written;
    size_t left = message->size - link->out_written;
    if (message->record && shm_has_rings(link))
        return put_record(link, message);
    if (!message->hello || link->out_written > 0)
        return send(link->fd, from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
    const int fds[SHM_HELLO_FDS] = {shm_of(link)->arena.fd, link->rings_fd};
    ptrdiff_t sent = shm_hello_send(link->fd, from, left, fds);
    link->shared |= sent > 0;
    if (sent > 0)
        rings_fd_close(link);
    return sent;
}

/* Does the first message wait for the socket? A poll does not tell when a ring has room. */
static bool waits_for_socket(const struct shm_link *link)
{
    return link->out_head != NULL && !(link->out_head->record && shm_has_rings(link));
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
    if (!shm_watch(link, in | (waits_for_socket(link) ? EPOLLOUT : 0)))
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
    message->size = record_write(message->bytes, header, header_size, size);
    message->record = true;
    out_push(link, message);
    if (link->out_head == message)
        shm_flush(link);
    return STRAIT_OK;
}

/* Receiving, and telling the end of the peer from the end of its socket. */

#define READS_MAX 8 /* per link and progress, so that a link that floods us does not starve the others */

/* ---- Rings ----------------------------------------------------------------------------------------------------- */

/* Maps the rings, which the accepted side has made. */
static const char *shm_rings_open(struct shm_link *link, int fd)
{
    link->rings = (struct ring_file){.side = link->side == LINK_DIALLED, .pairs = RINGS, .sizes = ring_sizes};
    if (!ring_file_map(&link->rings, fd))
        return "the peer's rings cannot be mapped";
    link->in_ring = ring_file_ring(&link->rings, RINGS_RECORDS, false);
    link->out_ring = ring_file_ring(&link->rings, RINGS_RECORDS, true);
    return NULL;
}

/* Without them records go over the socket. */
static void rings_make(struct shm_link *link)
{
    const struct ring_file file = {.pairs = RINGS, .sizes = ring_sizes};
    link->rings_fd = ring_file_make(&file);
    if (link->rings_fd >= 0 && shm_rings_open(link, link->rings_fd) != NULL)
        rings_fd_close(link);
}

/* ---- Receiving ------------------------------------------------------------------------------------------------- */

static void in_fds_close(struct shm_link *link)
{
    for (uint32_t i = 0; i < SHM_HELLO_FDS; i++) {
        if (link->in_fds[i] >= 0)
            close(link->in_fds[i]);
        link->in_fds[i] = -1;
    }
}

/* Returns the bytes taken from the input; 0: more are needed, or the link broke. */
static uint32_t take_hello(struct shm_link *link)
{
    if (link->in_size < SHM_HELLO_BYTES)
        return 0;
    int fd = link->in_fds[0];
    link->in_fds[0] = -1;
    const char *why = shm_hello_map(link->in, fd, &link->map, &link->map_size);
    if (why == NULL && link->side == LINK_DIALLED && link->in_fds[1] >= 0)
        why = shm_rings_open(link, link->in_fds[1]);
    in_fds_close(link);
    if (why == NULL && link->side == LINK_DIALLED && !shm_send_hello(link))
        why = "out of memory";
    if (why != NULL) {
        shm_fail(link, why);
        return 0;
    }
    link->received_hello = true;
    if (link->rings.base != NULL)
        link->in_size = SHM_HELLO_BYTES; /* what followed has woken this side */
    core_link_connected(&link->core);
    shm_flush(link);
    return SHM_HELLO_BYTES;
}

/* The bytes are already in the arena, so the two callbacks follow each other at once. */
static void deliver_chunk(struct shm_link *link, const uint8_t *header, uint32_t header_size, uint64_t size)
{
    struct transport *transport = link->core.base.transport;
    const struct transport_events *events = &transport->events;
    core_deliver(link->core.core); /* `connected` may still be due */
    if (link->core.state != LINK_CONNECTED)
        return;
    struct landing landing = events->arriving(transport->owner, &link->core.base, header, header_size, (size_t)size);
    if (landing.address != NULL)
        events->arrived(transport->owner, &link->core.base, landing.cookie, STRAIT_OK);
}

static uint32_t take_record(struct shm_link *link, const uint8_t *at, uint32_t left)
{
    if (left < RECORD_HEAD)
        return 0;
    if (memcmp(at, shm_farewell, sizeof(shm_farewell)) == 0)
        return RECORD_HEAD; /* the end of file is next */
    uint32_t header_size;
    uint64_t size;
    if (!record_read(at, &header_size, &size)) {
        shm_fail(link, "the peer sent a malformed record");
        return 0;
    }
    if (left < RECORD_HEAD + header_size)
        return 0;
    deliver_chunk(link, at + RECORD_HEAD, header_size, size);
    return RECORD_HEAD + header_size;
}

/* A callback may close or break the link, which ends the loop: such a link takes no more input. */
static void parse(struct shm_link *link)
{
    uint32_t at = 0, taken;
    do {
        taken = 0;
        if (link->core.state == LINK_CONNECTING && !link->received_hello)
            taken = take_hello(link);
        else if (link->core.state == LINK_CONNECTED)
            taken = take_record(link, link->in + at, link->in_size - at);
        at += taken;
    } while (taken > 0);
    link->in_size -= at;
    memmove(link->in, link->in + at, link->in_size);
    if (link->core.state >= LINK_BROKEN)
        link->in_size = 0;
}

/* ---- The end of the peer's side --------------------------------------------------------------------------------

 * A process that is killed closes its files one after another: the socket may end while a GPU is still storing on the
 * process's behalf. The pidfd becomes readable when all of that has ended. */

static void wait_for_process(struct shm_link *link)
{
    shm_out_fail(link); /* nobody reads it */
    shm_watch(link, 0);
    link->dying = true;
    if (link->core.state == LINK_CLOSING && !shm_watch(link, EPOLLIN))
        link->dying = false; /* stays in quarantine until our process ends */
}

/* ECONNRESET means that the peer closed with bytes unread. Any other error proves nothing about the peer, so its slots
 * stay in quarantine. */
static void at_end(struct shm_link *link, bool closed)
{
    bool orderly = memcmp(link->last, shm_farewell, sizeof(shm_farewell)) == 0;
    shm_fail(link, closed ? "the peer closed the link" : "the socket cannot be read");
    if (closed && !orderly && link->process >= 0)
        wait_for_process(link);
    else
        link->ended = closed;
}

static void keep_last(struct shm_link *link, const uint8_t *bytes, size_t size)
{
    size_t fresh = size < sizeof(link->last) ? size : sizeof(link->last), old = sizeof(link->last) - fresh;
    memmove(link->last, link->last + fresh, old);
    memcpy(link->last + old, bytes + size - fresh, fresh);
}

/* False: nothing more to read for now. */
static bool read_some(struct shm_link *link)
{
    uint8_t *to = link->in + link->in_size;
    size_t room = INPUT_BYTES - link->in_size;
    ptrdiff_t got = link->core.state == LINK_CONNECTING ? shm_hello_receive(link->fd, to, room, link->in_fds)
                                                        : recv(link->fd, to, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        const bool closed = got == 0 || errno == ECONNRESET;
        shm_take_ring(link); /* what was put in before the end */
        at_end(link, closed);
        return false;
    }
    keep_last(link, to, (size_t)got);
    if (!shm_has_rings(link)) {
        link->in_size += (uint32_t)got;
        parse(link);
    }
    return link->watched != 0 && (size_t)got == room; /* less was all that there is */
}

/* No more than there was at the beginning: a peer that goes on putting records in does not hold up the others. */
void shm_take_ring(struct shm_link *link)
{
    if (!shm_has_rings(link))
        return;
    uint32_t left = ring_used(&link->in_ring);
    while (left > 0 && link->core.state == LINK_CONNECTED) {
        const uint32_t room = INPUT_BYTES - link->in_size;
        const uint32_t taken = (uint32_t)ring_take(&link->in_ring, link->in + link->in_size, left < room ? left : room);
        if (taken == 0)
            break;
        left -= taken;
        link->in_size += taken;
        if (ring_is_waited_for(&link->in_ring))
            shm_wake(link);
        parse(link);
    }
    if (link->in_ring.broken)
        shm_fail(link, "the peer's ring is malformed");
}

void shm_serve(struct shm_link *link, uint32_t events)
{
    if (link->dying) {
        link->ended = true;
        shm_watch(link, 0);
        return;
    }
    if (events & EPOLLOUT)
        shm_flush(link);
    for (int i = 0; i < READS_MAX && link->watched != 0; i++)
        if (!read_some(link))
            break;
}

#define READY_MAX 32

/* ---- Links ----------------------------------------------------------------------------------------------------- */

/* The pidfd of the process at the other end; -1: it is this process, or cannot be determined. */
static int peer_process(int fd, bool *known)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    *known = false;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0)
        return -1; /* in another pid namespace */
    *known = true;
    if (peer.pid == getpid())
        return -1;
    int process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    *known = process >= 0;
    return process;
}

static enum strait_status shm_link_open(struct transport *base, int fd, enum link_side side, void *link_owner,
                                        struct link **out)
{
    struct shm *shm = (struct shm *)base;
    struct shm_link *link = calloc(1, sizeof(*link));
    if (link == NULL) {
        close(fd);
        return STRAIT_ERR_NO_MEMORY;
    }
    link->fd = fd;
    link->process = peer_process(fd, &link->sees_end);
    link->side = side;
    link->in_fds[0] = link->in_fds[1] = link->rings_fd = -1;
    link->out_tail = &link->out_head;
    core_link_add(&shm->core, &link->core, link_owner);
    *out = &link->core.base;
    return STRAIT_OK;
}

/* The hello carries everything that the peer needs. */
static size_t shm_link_address(struct link *base, void *dst, size_t capacity)
{
    (void)base, (void)dst, (void)capacity;
    return 0;
}

static enum strait_status shm_link_connect(struct link *base, const void *address, size_t size)
{
    struct shm_link *link = (struct shm_link *)base;
    if (link->core.state != LINK_OPEN || (size != 0 && (size != 1 || *(const char *)address != SHM_TAKES_RINGS)))
        return STRAIT_ERR_INVALID;
    if (!shm_watch(link, EPOLLIN))
        return STRAIT_ERR_IO;
    if (link->side == LINK_ACCEPTED && size != 0)
        rings_make(link);
    if (link->side == LINK_ACCEPTED && !shm_send_hello(link)) {
        shm_watch(link, 0);
        return STRAIT_ERR_NO_MEMORY;
    }
    link->core.state = LINK_CONNECTING;
    shm_flush(link);
    return STRAIT_OK;
}

static void unmap(struct shm_link *link)
{
    if (link->map != NULL)
        munmap(link->map, link->map_size);
    link->map = NULL;
}

/* The order is essential: by the time the peer sees our end of file, nothing in this process maps its arena. */
static void shm_link_close(struct link *base)
{
    struct shm_link *link = (struct shm_link *)base;
    if (!core_link_close(&link->core))
        return;
    unmap(link);
    if (!link->shared)
        link->ended = true; /* the peer never got our arena */
    if (link->dying) {
        shm_out_fail(link);
        shm_watch(link, EPOLLIN);
        return;
    }
    shm_send_farewell(link);
    shm_flush(link);
}

/* As if the peer's side had ended: anything it still stores goes into a file that nobody reads. */
static void shm_link_abandon(struct link *base)
{
    struct shm_link *link = (struct shm_link *)base;
    if (link->core.state != LINK_CLOSING)
        return;
    link->ended = true;
    shm_out_fail(link);
    shm_watch(link, 0);
}

static bool shm_quiet(struct core_link *link)
{
    const struct shm_link *shm = (struct shm_link *)link;
    return shm->ended && shm->out_head == NULL; /* the peer must get the farewell */
}

static bool shm_sees_end(const struct link *link)
{
    return ((const struct shm_link *)link)->sees_end;
}

static void shm_release(struct core_link *base)
{
    struct shm_link *link = (struct shm_link *)base;
    unmap(link);
    shm_watch(link, 0);
    close(link->fd);
    if (link->process >= 0)
        close(link->process);
    in_fds_close(link);
    rings_fd_close(link);
    ring_file_unmap(&link->rings);
    free(link);
}

static void *shm_link_map(struct link *base, size_t offset, size_t size)
{
    struct shm_link *link = (struct shm_link *)base;
    if (link->core.state != LINK_CONNECTED || offset > link->map_size || size > link->map_size - offset)
        return NULL;
    return (uint8_t *)link->map + offset;
}

/* ---- Rings of the owner ---------------------------------------------------------------------------------------- */

static bool shm_link_rings(struct link *base, struct ring *in, struct ring *out)
{
    struct shm_link *link = (struct shm_link *)base;
    if (!shm_has_rings(link) || link->core.state != LINK_CONNECTED)
        return false;
    *in = ring_file_ring(&link->rings, RINGS_OWNER, false);
    *out = ring_file_ring(&link->rings, RINGS_OWNER, true);
    return true;
}

static void shm_link_wake(struct link *base)
{
    struct shm_link *link = (struct shm_link *)base;
    if (shm_has_rings(link))
        shm_wake(link);
}

/* Is there something to do for a link that a poll of its socket does not tell? */
static bool has_work(struct shm_link *link)
{
    if (!shm_has_rings(link) || link->core.state != LINK_CONNECTED)
        return false;
    return ring_used(&link->in_ring) > 0 || link->in_ring.broken ||
           (link->out_head != NULL && link->out_head->record &&
            (ring_room(&link->out_ring) >= link->out_head->size || link->out_ring.broken));
}

static bool shm_sleep(struct transport *transport, bool sleeps)
{
    bool any = false;
    for (struct core_link *at = ((struct shm *)transport)->core.links; at != NULL; at = at->next) {
        struct shm_link *link = (struct shm_link *)at;
        if (!shm_has_rings(link))
            continue;
        ring_sleep(ring_file_sleeps(&link->rings, false), sleeps);
        any |= sleeps && has_work(link);
    }
    return any;
}

static bool shm_look(struct transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    bool any = false;
    for (struct core_link *at = shm->core.links; at != NULL; at = at->next) {
        struct shm_link *link = (struct shm_link *)at;
        if (!has_work(link))
            continue;
        any = true;
        shm_take_ring(link);
        if (link->core.state == LINK_CONNECTED)
            shm_flush(link);
    }
    if (any)
        core_deliver(&shm->core);
    return any;
}

/* ---- The transport --------------------------------------------------------------------------------------------- */

static enum strait_status shm_create(const struct transport_arena *arena, const struct transport_events *events,
                                     void *owner, const char *options, struct transport **transport)
{
    if (arena->fd < 0 || arena->size == 0 || arena->memory != TRANSPORT_HOST ||
        options_read(options, NULL, NULL) != STRAIT_OK)
        return STRAIT_ERR_INVALID;
    struct shm *shm = calloc(1, sizeof(*shm));
    if (shm == NULL)
        return STRAIT_ERR_NO_MEMORY;
    shm->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (shm->epoll < 0) {
        free(shm);
        return STRAIT_ERR_IO;
    }
    core_init(&shm->core, &transport_shm, events, owner);
    shm->core.quiet = shm_quiet;
    shm->core.release = shm_release;
    shm->arena = *arena;
    *transport = &shm->core.base;
    return STRAIT_OK;
}

static void shm_destroy(struct transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    close(shm->epoll);
    free(shm);
}

static int shm_fd(const struct transport *transport)
{
    return ((const struct shm *)transport)->epoll;
}

/* Only core_reap frees links, so the pointers from epoll stay valid throughout the loop. */
static bool shm_progress(struct transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    struct epoll_event ready[READY_MAX];
    bool any = core_deliver(&shm->core);
    int count = epoll_wait(shm->epoll, ready, READY_MAX, 0);
    for (int i = 0; i < count; i++)
        shm_serve(ready[i].data.ptr, ready[i].events);
    any |= core_deliver(&shm->core);
    any |= core_reap(&shm->core);
    return any || count > 0;
}

static enum strait_status shm_arm(struct transport *transport)
{
    return core_is_due(&((struct shm *)transport)->core) ? STRAIT_ERR_AGAIN : STRAIT_OK;
}

const struct transport_ops transport_shm = {
    .name = "shm",
    .send_memory = TRANSPORT_HOST,
    .receive_memory = TRANSPORT_HOST,
    .direct = true,
    .by_readiness = true,
    .create = shm_create,
    .destroy = shm_destroy,
    .fd = shm_fd,
    .progress = shm_progress,
    .arm = shm_arm,
    .open = shm_link_open,
    .address = shm_link_address,
    .connect = shm_link_connect,
    .close = shm_link_close,
    .abandon = shm_link_abandon,
    .sees_end = shm_sees_end,
    .map = shm_link_map,
    .rings = shm_link_rings,
    .wake = shm_link_wake,
    .look = shm_look,
    .sleep = shm_sleep,
    .send = shm_link_send,
};
