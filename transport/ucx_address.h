/* What a UCX link tells its peer: where the listener is, and which link is meant. */
#ifndef STRAIT_TRANSPORT_UCX_ADDRESS_H
#define STRAIT_TRANSPORT_UCX_ADDRESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <strait/status.h>

#define UCX_ADDRESS_BYTES 48u

/* 0 4 "UCX1" | 4 2 IP version, 4 or 6 | 6 2 port | 8 8 token | 16 16 IP address, zero-padded | 32 4 IPv6 scope | 36 4
 * zero | 40 8 FNV-1a over all bytes before. All little-endian, except for the IP address. */
struct ucx_address {
    struct sockaddr_storage at;
    socklen_t at_size;
    uint64_t token;
};

void ucx_address_write(uint8_t dst[UCX_ADDRESS_BYTES], const struct ucx_address *address);
/* ERR_INVALID: not the size of an address. ERR_CORRUPT: the bytes are not an address. */
enum strait_status ucx_address_read(const void *src, size_t size, struct ucx_address *address);

#endif
