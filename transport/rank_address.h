/* TCP addresses and sockets of ranks. */
#ifndef STRAIT_TRANSPORT_RANK_ADDRESS_H
#define STRAIT_TRANSPORT_RANK_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "internal/address.h"
#include "internal/clock.h"

/* The address on which NCCL would listen, as text: NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY select the interface;
 * otherwise loopback and docker's come last. False: there is none. */
enum { ADDRESS_TEXT = 80 };
bool address_choose(char text[ADDRESS_TEXT]);
/* Listens on that address. A non-blocking socket; -1: none could be had. */
int address_listen(struct address *address);
/* Returns a connected non-blocking socket; -1: no connection within so many milliseconds. */
int address_connect(const struct address *address, int milliseconds);
/* How long a connection may take. A network that drops packets answers never. */
enum { ADDRESS_CONNECT_MS = 4000 };
/* Writes "HOST port PORT". */
void address_write(const struct address *address, char text[ADDRESS_TEXT]);

/* Whether an interface is in a list in the format of NCCL_SOCKET_IFNAME: prefixes of names between commas; whole names
 * after a `=`; after a `^`, the interfaces to exclude. */
bool address_listed(const char *list, const char *name);

/* Milliseconds of the monotonic clock, for time limits. */
static inline int64_t now_ms(void)
{
    return (int64_t)(clock_ns() / 1000000);
}

#endif
