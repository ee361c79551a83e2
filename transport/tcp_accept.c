#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "internal/socket_address.h"
#include "transport/tcp_internal.h"

/* Those who connect, to the transport's own listener or to its owner's, until they have proved which link they belong
 * to. */

#define BACKLOG 512
#define WAIT_NS 10000000000 /* for a preamble */
#define TICK_NS 1000000000

static void tick(struct tcp *tcp, bool on)
{
    const struct timespec second = {.tv_sec = on ? TICK_NS / 1000000000 : 0};
    if (tcp->ticking != on)
        timerfd_settime(tcp->timer, 0, &(struct itimerspec){.it_interval = second, .it_value = second}, NULL);
    tcp->ticking = on;
}

/* ---- The listener ------------------------------------------------------------------------------------------------ */

bool tcp_listen(struct tcp *tcp)
{
    struct sockaddr_storage at;
    const int on = 1;
    if (tcp->options.adopts || tcp->listener >= 0)
        return true;
    socklen_t size = address_unpack(&at, &tcp->options.listen);
    tcp->listener = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (tcp->listener >= 0 && setsockopt(tcp->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(tcp->listener, (struct sockaddr *)&at, size) == 0 && listen(tcp->listener, BACKLOG) == 0 &&
        getsockname(tcp->listener, (struct sockaddr *)&at, &size) == 0 &&
        tcp_watch(tcp, tcp->listener, &tcp->listener, EPOLLIN)) {
        tcp->address = address_pack(&at);
        return true;
    }
    tcp_drop(tcp, &tcp->listener);
    return false;
}

static bool awaits(const struct tcp_link *link)
{
    if (link->side != LINK_ACCEPTED || link->core.state > LINK_CONNECTING)
        return false;
    for (unsigned i = 0; i < link->count; i++)
        if (link->connections[i].fd < 0)
            return true;
    return false;
}

void tcp_unlisten_if_idle(struct tcp *tcp)
{
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next)
        if (awaits((struct tcp_link *)at))
            return;
    tcp_drop(tcp, &tcp->listener);
    for (unsigned i = 0; i < PENDING_MAX; i++)
        tcp_drop(tcp, &tcp->pending[i].fd);
    tcp->resting = false;
    tick(tcp, false);
}

/* ---- Proof ------------------------------------------------------------------------------------------------------- */

/* The connection that it is; NULL: a stranger. */
static struct connection *proved(const struct tcp *tcp, const struct pending *pending)
{
    struct connection *found = NULL;
    for (struct core_link *at = tcp->core.links; at != NULL; at = at->next) {
        struct tcp_link *link = (struct tcp_link *)at;
        if (link->id != load_le64(pending->preamble + 8) || !awaits(link))
            continue;
        for (unsigned i = 0; i < link->count; i++)
            if (tcp_preamble_is(pending->preamble, tcp_connect_magic, &link->connections[i]) &&
                link->connections[i].state == CONNECTION_NONE)
                found = &link->connections[i];
    }
    return found;
}

void tcp_read_pending(struct tcp *tcp, struct pending *pending)
{
    const int complete = pending->fd < 0 ? 0 : tcp_preamble_read(pending->fd, pending->preamble, &pending->got);
    if (complete == 0)
        return;
    struct connection *conn = complete == 1 ? proved(tcp, pending) : NULL;
    if (conn == NULL) {
        tcp_drop(tcp, &pending->fd);
        return;
    }
    epoll_ctl(tcp->epoll, EPOLL_CTL_DEL, pending->fd, NULL);
    conn->fd = pending->fd;
    conn->state = CONNECTION_PROVED;
    pending->fd = -1;
    if (conn->link->core.state == LINK_CONNECTING)
        tcp_answer(conn);
    tcp->links_changed = true;
}

/* ---- Accepting --------------------------------------------------------------------------------------------------- */

/* A place that is free, or that of the oldest. */
static struct pending *place(struct tcp *tcp)
{
    struct pending *oldest = &tcp->pending[0];
    for (unsigned i = 0; i < PENDING_MAX; i++) {
        struct pending *pending = &tcp->pending[i];
        if (pending->fd < 0)
            return pending;
        if (pending->until < oldest->until)
            oldest = pending;
    }
    tcp_drop(tcp, &oldest->fd);
    return oldest;
}

static struct pending *pending_add(struct tcp *tcp, int fd)
{
    struct pending *pending = place(tcp);
    *pending = (struct pending){.fd = fd, .until = nanoseconds() + WAIT_NS};
    tick(tcp, true);
    if (!tcp_watch(tcp, fd, pending, EPOLLIN))
        tcp_drop(tcp, &pending->fd);
    return pending;
}

void tcp_accept(struct tcp *tcp)
{
    for (unsigned i = 0; i < PENDING_MAX && tcp->listener >= 0; i++) {
        const int fd = accept4(tcp->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            tcp->resting = tcp_watch(tcp, tcp->listener, &tcp->listener, 0); /* it would wake us all the time */
        tick(tcp, tcp->ticking || tcp->resting);
        if (fd < 0)
            return;
        (void)pending_add(tcp, fd);
    }
}

bool tcp_is_preamble(const void *first)
{
    return memcmp(first, tcp_connect_magic, TCP_FIRST_BYTES) == 0;
}

/* The preamble is there as a rule, so that a peer never needs a place among those that wait. */
void tcp_adopt(struct transport *transport, int fd)
{
    struct tcp *tcp = (struct tcp *)transport;
    tcp_read_pending(tcp, pending_add(tcp, fd));
    tcp->links_changed = true;
}

void tcp_tick(struct tcp *tcp)
{
    uint64_t times;
    bool any = false;
    (void)!read(tcp->timer, &times, sizeof(times));
    tcp->resting = tcp->resting && !tcp_watch(tcp, tcp->listener, &tcp->listener, EPOLLIN);
    for (unsigned i = 0; i < PENDING_MAX; i++) {
        if (tcp->pending[i].until <= nanoseconds())
            tcp_drop(tcp, &tcp->pending[i].fd);
        any |= tcp->pending[i].fd >= 0;
    }
    tick(tcp, any || tcp->resting);
}
