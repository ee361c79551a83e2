/* Addresses of sockets, and the settings of TCP connections. */
#ifndef STRAIT_INTERNAL_SOCKET_ADDRESS_H
#define STRAIT_INTERNAL_SOCKET_ADDRESS_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "internal/address.h"

static inline struct address address_pack(const struct sockaddr_storage *at)
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

/* Size of the socket address; 0: it is none. */
static inline socklen_t address_unpack(struct sockaddr_storage *at, const struct address *address)
{
    struct sockaddr_in *four = (void *)at;
    struct sockaddr_in6 *six = (void *)at;
    memset(at, 0, sizeof(*at));
    if (address->family == 4) {
        four->sin_family = AF_INET;
        four->sin_port = htons(address->port);
        memcpy(&four->sin_addr, address->bytes, sizeof(four->sin_addr));
        return sizeof(*four);
    }
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(address->port);
    six->sin6_scope_id = address->scope;
    memcpy(&six->sin6_addr, address->bytes, sizeof(six->sin6_addr));
    return address->family == 6 ? sizeof(*six) : 0;
}

/* For a connection, made or accepted: what is written is sent immediately, and a host that disappears silently is
 * noticed within half a minute. */
static inline void address_tune(int connected)
{
    const int on = 1, idle = 10, every = 5, times = 4, unheard = 30000;
    (void)setsockopt(connected, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(connected, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(connected, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    (void)setsockopt(connected, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
    (void)setsockopt(connected, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
    (void)setsockopt(connected, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard, sizeof(unheard));
}

#endif
