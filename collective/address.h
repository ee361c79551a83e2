/* Where another rank's process is reached by TCP. */
#ifndef STRAIT_COLLECTIVE_ADDRESS_H
#define STRAIT_COLLECTIVE_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

/* As ranks tell it to each other. All zero: nowhere. */
struct address {
    uint16_t family; /* 4 or 6 */
    uint16_t port;
    uint32_t scope; /* of a link's own address */
    uint8_t bytes[16];
};

/* Listens on the interface that NCCL would take: NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY say which; else loopback and
 * docker's come last. A non-blocking socket; -1: none could be had. */
int address_listen(struct address *address);
/* A non-blocking socket that is connected; -1: not within so many milliseconds. */
int address_connect(const struct address *address, int milliseconds);

/* Whether an interface is one of a list as NCCL_SOCKET_IFNAME has it: beginnings of names between commas, whole names
 * after a `=`; after a `^`, those that are not meant. */
bool address_listed(const char *list, const char *name);

#endif
