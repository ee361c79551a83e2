/* IP address with a port, in a form that can be sent; socket_address.h converts it. */
#ifndef STRAIT_INTERNAL_ADDRESS_H
#define STRAIT_INTERNAL_ADDRESS_H

#include <stdint.h>

/* All zero: none. */
struct address {
    uint16_t family; /* 4 or 6 */
    uint16_t port;
    uint32_t scope; /* of a link-local address */
    uint8_t bytes[16];
};

#endif
