#include "transport/rank_address.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal/socket_address.h"

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

bool address_choose(char text[ADDRESS_TEXT])
{
    struct sockaddr_storage at;
    return choose(&at) &&
           getnameinfo((struct sockaddr *)&at, size_of(&at), text, ADDRESS_TEXT, NULL, 0, NI_NUMERICHOST) == 0;
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
        *address = address_pack(&at);
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
    const socklen_t size = address_unpack(&at, address);
    if (size == 0)
        return -1;
    const int made = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0)
        return -1;
    if (connect(made, (struct sockaddr *)&at, size) == 0 ||
        (errno == EINPROGRESS && await_connected(made, milliseconds)))
        return made;
    close(made);
    return -1;
}

void address_write(const struct address *address, char text[ADDRESS_TEXT])
{
    struct sockaddr_storage at;
    char host[ADDRESS_TEXT - 16] = "an unknown address";
    const socklen_t size = address_unpack(&at, address);
    if (size > 0)
        (void)getnameinfo((struct sockaddr *)&at, size, host, sizeof(host), NULL, 0, NI_NUMERICHOST);
    snprintf(text, ADDRESS_TEXT, "%s port %u", host, address->port);
}
