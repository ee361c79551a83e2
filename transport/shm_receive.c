/* What a link receives, and how the end of the peer is told from the end of its socket. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "internal/bytes.h"
#include "transport/shm_hello.h"
#include "transport/shm_internal.h"

#define READS_MAX 8 /* per link and progress, so that a link that floods us does not starve the others */

/* ---- Receiving ------------------------------------------------------------------------------------------------- */

/* Returns the bytes taken from the input; 0: more are needed, or the link broke. */
static uint32_t take_hello(struct shm_link *link)
{
    if (link->in_size < SHM_HELLO_BYTES)
        return 0;
    int fd = link->in_arena;
    link->in_arena = -1;
    const char *why = shm_hello_map(link->in, fd, &link->map, &link->map_size);
    if (why == NULL && link->side == LINK_DIALLED && !shm_send_hello(link))
        why = "out of memory";
    if (why != NULL) {
        shm_fail(link, why);
        return 0;
    }
    link->greeted = true;
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
    uint32_t header_size = load_le32(at + 4);
    uint64_t size = load_le64(at + 8);
    if (memcmp(at, shm_record_magic, sizeof(shm_record_magic)) != 0 || header_size > TRANSPORT_HEADER_MAX ||
        size > UINT32_MAX) {
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
        if (link->core.state == LINK_CONNECTING && !link->greeted)
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
    ptrdiff_t got = link->core.state == LINK_CONNECTING ? shm_hello_receive(link->fd, to, room, &link->in_arena)
                                                        : recv(link->fd, to, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        at_end(link, got == 0 || errno == ECONNRESET);
        return false;
    }
    keep_last(link, to, (size_t)got);
    link->in_size += (uint32_t)got;
    parse(link);
    return link->watched != 0;
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
