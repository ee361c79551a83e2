/* The header in front of every chunk on a link: it names the grant that the chunk is for. Little-endian.
 *
 *   offset size
 *        0    4  magic "StrC"
 *        4    4  slot of the receiver's arena
 *        8    8  token of the connection, drawn by the receiver
 *       16    8  leg
 *       24   16  epoch: incarnation, counter
 *       40    8  grant
 *       48    8  number of the chunk on this connection, where chunks are encrypted (daemon/base/seal.h); else 0 */
#ifndef STRAIT_DAEMON_CHUNK_HEADER_H
#define STRAIT_DAEMON_CHUNK_HEADER_H

#include <internal/bytes.h>

#include "proto/message.h"

#define CHUNK_HEADER_BYTES 56u
#define CHUNK_HEADER_MAGIC 0x43727453u

struct chunk_header {
    uint32_t slot;
    uint64_t token, leg, grant, number;
    struct epoch epoch;
};

static inline void chunk_header_write(uint8_t dst[CHUNK_HEADER_BYTES], const struct chunk_header *header)
{
    store_le32(dst, CHUNK_HEADER_MAGIC);
    store_le32(dst + 4, header->slot);
    store_le64(dst + 8, header->token);
    store_le64(dst + 16, header->leg);
    store_le64(dst + 24, header->epoch.incarnation);
    store_le64(dst + 32, header->epoch.counter);
    store_le64(dst + 40, header->grant);
    store_le64(dst + 48, header->number);
}

/* What the flag of a slot in a GPU's memory becomes when this grant's chunk is whole there. Never 0, and never the same
 * for two chunks of one arena: sinks number their legs. */
static inline uint64_t chunk_flag(uint64_t leg, uint64_t grant)
{
    return leg << 24 ^ grant;
}

/* False: `src` is not a chunk header. */
static inline bool chunk_header_read(struct chunk_header *header, const void *src, size_t size)
{
    const uint8_t *bytes = src;
    if (size != CHUNK_HEADER_BYTES || load_le32(bytes) != CHUNK_HEADER_MAGIC)
        return false;
    header->slot = load_le32(bytes + 4);
    header->token = load_le64(bytes + 8);
    header->leg = load_le64(bytes + 16);
    header->epoch.incarnation = load_le64(bytes + 24);
    header->epoch.counter = load_le64(bytes + 32);
    header->grant = load_le64(bytes + 40);
    header->number = load_le64(bytes + 48);
    return true;
}

#endif
