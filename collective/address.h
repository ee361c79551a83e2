/* TCP addresses and sockets of ranks. */
#ifndef STRAIT_COLLECTIVE_ADDRESS_H
#define STRAIT_COLLECTIVE_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Address in the form that ranks exchange. All zero: none. */
struct address {
    uint16_t family; /* 4 or 6 */
    uint16_t port;
    uint32_t scope; /* of a link-local address */
    uint8_t bytes[16];
};

/* Listens on the interface that NCCL would choose: NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY select it; otherwise
 * loopback and docker's interfaces come last. A non-blocking socket; -1: none could be had. */
int address_listen(struct address *address);
/* Returns a connected non-blocking socket; -1: no connection within so many milliseconds. */
int address_connect(const struct address *address, int milliseconds);

/* For a connection, made or accepted: frames are sent immediately, and a host that disappears silently is noticed
 * within half a minute. */
void address_tune(int connected);

/* Whether an interface is in a list in the format of NCCL_SOCKET_IFNAME: prefixes of names between commas; whole names
 * after a `=`; after a `^`, the interfaces to exclude. */
bool address_listed(const char *list, const char *name);

/* Milliseconds of the monotonic clock, for time limits. */
static inline int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
