/* Wire format of NCCL links: the address of a link, and messages, which are chunks of the carrier. All numbers are
 * little-endian. */
#ifndef STRAIT_TRANSPORT_NCCL_WIRE_H
#define STRAIT_TRANSPORT_NCCL_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <strait/status.h>

#include "transport/nccl_calls.h"
#include "transport/transport.h"

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* 0 4 "NCC1" | 4 4 version of NCCL | 8 16 process | 24 16 GPU | 40 2 bytes of the carrier's address | 42 6 zero | 48 n
 * the carrier's address | 48+n 8 FNV-1a over all bytes before. */
#define NCCL_ADDRESS_FIXED   56u /* without the carrier's address */
#define NCCL_ADDRESS_CARRIER (LINK_ADDRESS_MAX - NCCL_ADDRESS_FIXED)

struct nccl_address {
    uint32_t library;                   /* version of NCCL */
    uint8_t process[NCCL_PLACE_BYTES];  /* a random id of each process */
    uint8_t identity[NCCL_PLACE_BYTES]; /* of its GPU */
    const uint8_t *carrier;             /* when read, points into the blob */
    size_t carrier_size;                /* at most NCCL_ADDRESS_CARRIER */
};

/* Writes NCCL_ADDRESS_FIXED + carrier_size bytes. */
void nccl_address_write(uint8_t *dst, const struct nccl_address *address);
/* ERR_INVALID: the size does not fit the address. ERR_CORRUPT: the bytes are not an address. */
enum strait_status nccl_address_read(const void *src, size_t size, struct nccl_address *address);

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* 0 4 type | 4 4 zero | 8 8 id | 16 8 value. This is the carrier's header; the payload, if any, is its chunk. */
#define NCCL_MESSAGE_BYTES   24u
#define NCCL_MESSAGE_PAYLOAD 128u /* at most */
#define NCCL_VERSION         1u   /* of this protocol */

enum nccl_message_type {
    NCCL_HELLO = 1, /* value: NCCL_VERSION; payload: the id of the communicator by which the peer receives */
    NCCL_READY,     /* both communicators are connected */
    NCCL_CHUNK,     /* a chunk: its id, from 1; its size as value; the owner's header as payload */
    NCCL_GO,        /* the chunk `id` may be sent: it is number `value`, from 0, of its direction */
    NCCL_REFUSED,   /* the chunk `id` may not be sent */
};

struct nccl_message {
    uint32_t type;
    uint64_t id, value;
};

void nccl_message_write(uint8_t dst[NCCL_MESSAGE_BYTES], const struct nccl_message *message);
/* ERR_CORRUPT: not a message, or not one that has a payload of this size. */
enum strait_status nccl_message_read(const void *src, size_t size, size_t payload, struct nccl_message *message);

#endif
