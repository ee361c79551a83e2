#include "collective/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 512 };

/* ---- Interfaces -------------------------------------------------------------------------------------------------- */

bool address_listed(const char *list, const char *name)
{
    const bool others = *list == '^';
    list += others;
    const bool whole = *list == '=';
    list += whole;
    bool found = false;
    while (*list != '\0' && !found) {
        const size_t size = strcspn(list, ",");
        found = size > 0 && strncmp(list, name, size) == 0 && (!whole || name[size] == '\0');
        list += size + (list[size] == ',');
    }
    return found != others;
}

/* Higher is better; 0: must not be used. */
static int worth(const struct ifaddrs *interface)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME"), *family = getenv("NCCL_SOCKET_FAMILY");
    const struct sockaddr *at = interface->ifa_addr;
    if (at == NULL || (interface->ifa_flags & IFF_UP) == 0 || (at->sa_family != AF_INET && at->sa_family != AF_INET6))
        return 0;
    if (family != NULL && strcmp(family, at->sa_family == AF_INET ? "AF_INET6" : "AF_INET") == 0)
        return 0;
    if (list != NULL && *list != '\0')
        return address_listed(list, interface->ifa_name);
    if ((interface->ifa_flags & IFF_LOOPBACK) != 0)
        return 1;
    if (strncmp(interface->ifa_name, "docker", 6) == 0)
        return 2;
    return strncmp(interface->ifa_name, "ib", 2) == 0 ? 4 : 3;
}

static socklen_t size_of(const struct sockaddr_storage *at)
{
    return at->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* The first of those with the highest worth. */
static bool choose(struct sockaddr_storage *chosen)
{
    struct ifaddrs *all;
    int best = 0;
    memset(chosen, 0, sizeof(*chosen));
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (worth(one) <= best)
            continue;
        best = worth(one);
        memcpy(chosen, one->ifa_addr,
               one->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    }
    freeifaddrs(all);
    return best > 0;
}

/* ---- Addresses as ranks tell them -------------------------------------------------------------------------------- */

static struct address pack(const struct sockaddr_storage *at)
{
    struct address address = {.family = at->ss_family == AF_INET ? 4 : 6};
    const struct sockaddr_in *four = (const void *)at;
    const struct sockaddr_in6 *six = (const void *)at;
    if (address.family == 4) {
        address.port = ntohs(four->sin_port);
        memcpy(address.bytes, &four->sin_addr, sizeof(four->sin_addr));
    } else {
        address.port = ntohs(six->sin6_port);
        address.scope = six->sin6_scope_id;
        memcpy(address.bytes, &six->sin6_addr, sizeof(six->sin6_addr));
    }
    return address;
}

static bool unpack(struct sockaddr_storage *at, const struct address *address)
{
    memset(at, 0, sizeof(*at));
    struct sockaddr_in *four = (void *)at;
    struct sockaddr_in6 *six = (void *)at;
    if (address->family == 4) {
        four->sin_family = AF_INET;
        four->sin_port = htons(address->port);
        memcpy(&four->sin_addr, address->bytes, sizeof(four->sin_addr));
    } else {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(address->port);
        six->sin6_scope_id = address->scope;
        memcpy(&six->sin6_addr, address->bytes, sizeof(six->sin6_addr));
    }
    return address->family == 4 || address->family == 6;
}

/* ---- Sockets ----------------------------------------------------------------------------------------------------- */

int address_listen(struct address *address)
{
    struct sockaddr_storage at;
    *address = (struct address){0};
    if (!choose(&at))
        return -1;
    const int made = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t size = size_of(&at);
    if (made >= 0 && bind(made, (struct sockaddr *)&at, size) == 0 && listen(made, BACKLOG) == 0 &&
        getsockname(made, (struct sockaddr *)&at, &size) == 0) {
        *address = pack(&at);
        return made;
    }
    if (made >= 0)
        close(made);
    return -1;
}

static bool await_connected(int made, int milliseconds)
{
    struct pollfd ready = {.fd = made, .events = POLLOUT};
    int error = ETIMEDOUT;
    socklen_t size = sizeof(error);
    return poll(&ready, 1, milliseconds) == 1 && getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
           error == 0;
}

int address_connect(const struct address *address, int milliseconds)
{
    struct sockaddr_storage at;
    if (!unpack(&at, address))
        return -1;
    const int made = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0)
        return -1;
    if (connect(made, (struct sockaddr *)&at, size_of(&at)) == 0 ||
        (errno == EINPROGRESS && await_connected(made, milliseconds)))
        return made;
    close(made);
    return -1;
}

/* ---- Connected --------------------------------------------------------------------------------------------------- */

void address_tune(int connected)
{
    const int on = 1, idle = 10, every = 5, times = 4, unheard = 30000;
    (void)setsockopt(connected, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(connected, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(connected, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    (void)setsockopt(connected, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
    (void)setsockopt(connected, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
    (void)setsockopt(connected, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard, sizeof(unheard));
}
