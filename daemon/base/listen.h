/* TCP sockets that listen at a list of addresses. */
#ifndef STRAIT_DAEMON_BASE_LISTEN_H
#define STRAIT_DAEMON_BASE_LISTEN_H

#include "daemon/base/address.h"

struct listen_sockets {
    struct address_list bound; /* with the ports that they have */
    int fds[ADDRESS_FOUND_MAX];
};

/* Listens at every address that the list stands for; where the port is 0, all at the same free one. Sockets of IPv6
 * take no IPv4 connections, whatever the system's default is. An address that is one of several of an interface, or of
 * both wildcards, may be missing; `why` then names it, else it is "". On OK the caller closes the descriptors.
 * ERR_INVALID: the list; ERR_IO: an address that cannot be bound; ERR_NO_MEMORY; `why` names it. */
enum strait_status listen_tcp(const char *list, int backlog, struct listen_sockets *sockets, char *why,
                              size_t why_size);
void listen_close(struct listen_sockets *sockets);

#endif
