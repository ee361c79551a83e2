/* Fragments of chunks, as tcp.h has them on the wire, for tests that play the other end. */
#ifndef STRAIT_TESTS_FRAGMENT_H
#define STRAIT_TESTS_FRAGMENT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "internal/bytes.h"
#include "transport/transport.h"

enum { FRAGMENT_HEAD = 32, FRAGMENT_MAX = FRAGMENT_HEAD + TRANSPORT_HEADER_MAX };

struct fragment {
    uint64_t number;
    uint32_t header_size, chunk_size, offset, size, zero;
};

/* Writes head and header; the bytes follow. Returns their size. */
static inline size_t fragment_write(uint8_t *dst, const struct fragment *fragment, const void *header)
{
    memcpy(dst, "FRAG", 4);
    store_le32(dst + 4, fragment->header_size);
    store_le32(dst + 8, fragment->chunk_size);
    store_le32(dst + 12, fragment->offset);
    store_le32(dst + 16, fragment->size);
    store_le32(dst + 20, fragment->zero);
    store_le64(dst + 24, fragment->number);
    if (fragment->header_size <= TRANSPORT_HEADER_MAX)
        memcpy(dst + FRAGMENT_HEAD, header, fragment->header_size);
    return FRAGMENT_HEAD + fragment->header_size;
}

/* The same for a whole chunk. */
static inline size_t chunk_write(uint8_t *dst, uint64_t number, const void *header, size_t header_size, size_t size)
{
    const struct fragment fragment = {
        .number = number, .header_size = (uint32_t)header_size, .chunk_size = (uint32_t)size, .size = (uint32_t)size};
    return fragment_write(dst, &fragment, header);
}

#endif
