#include "daemon/base/listen.h"

#include "daemon/base/inherited.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PORT_TRIES 16 /* a port that is free at one address may be taken at another */

void listen_close(struct listen_sockets *sockets)
{
    for (uint32_t i = 0; i < sockets->bound.count; i++)
        close(sockets->fds[i]);
    sockets->bound.count = 0;
}

/* Returns the socket, or -1 and errno. */
static int listen_one(const struct sockaddr_storage *address, int backlog)
{
    const int on = 1;
    const int inherited = inherited_take_tcp(address);
    if (inherited >= 0)
        return inherited;
    const int fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if ((address->ss_family != AF_INET6 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) == 0) &&
        bind(fd, (const struct sockaddr *)address, address_size(address)) == 0 && listen(fd, backlog) == 0)
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void take(struct listen_sockets *sockets, const struct address_found *found, int fd)
{
    struct address_found *bound = &sockets->bound.found[sockets->bound.count];
    socklen_t size = sizeof(bound->address);
    *bound = *found;
    (void)getsockname(fd, (struct sockaddr *)&bound->address, &size);
    sockets->fds[sockets->bound.count++] = fd;
}

static bool has_item(const struct address_list *list, uint32_t item)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->found[i].item == item)
            return true;
    return false;
}

static bool may_be_missing(const struct address_found *found, int error)
{
    return found->optional && (error == EADDRNOTAVAIL || error == EAFNOSUPPORT || error == ENODEV);
}

/* Binds all. Returns 0; else an errno, and `why`. EAGAIN: the port that was free at one address is not at another. */
static int bind_all(const struct address_list *list, int backlog, struct listen_sockets *sockets, char *why,
                    size_t why_size)
{
    char text[ADDRESS_TEXT_MAX];
    unsigned drawn = 0;
    why[0] = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        struct address_found found = list->found[i];
        const bool any = address_port(&found.address) == 0;
        if (any)
            address_set_port(&found.address, drawn);
        const int fd = listen_one(&found.address, backlog);
        const int error = fd < 0 ? errno : 0;
        if (error == 0) {
            take(sockets, &found, fd);
            if (any)
                drawn = address_port(&sockets->bound.found[sockets->bound.count - 1].address);
            continue;
        }
        const size_t used = may_be_missing(&found, error) ? strlen(why) : 0;
        snprintf(why + used, why_size - used, "%s%s: %s", used > 0 ? "; " : "", address_text(&found.address, text),
                 strerror(error));
        if (error == EADDRINUSE && any && drawn != 0)
            return EAGAIN;
        const bool last = i + 1 == list->count || list->found[i + 1].item != found.item;
        if (!may_be_missing(&found, error) || (last && !has_item(&sockets->bound, found.item)))
            return error;
    }
    return 0;
}

enum strait_status listen_tcp(const char *list, int backlog, struct listen_sockets *sockets, char *why, size_t why_size)
{
    struct address_list wanted;
    sockets->bound.count = 0;
    enum strait_status status = address_resolve(list, &wanted, why, why_size);
    if (status != STRAIT_OK)
        return status;
    int error = EAGAIN;
    for (int i = 0; i < PORT_TRIES && error == EAGAIN; i++) {
        listen_close(sockets);
        error = bind_all(&wanted, backlog, sockets, why, why_size);
    }
    if (error == 0)
        return STRAIT_OK;
    listen_close(sockets);
    errno = error;
    return STRAIT_ERR_IO;
}
