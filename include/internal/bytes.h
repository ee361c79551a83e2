/* Little-endian loads and stores from unaligned memory. */
#ifndef STRAIT_INTERNAL_BYTES_H
#define STRAIT_INTERNAL_BYTES_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian processors only: pages are coded as they lie in memory"
#endif

static inline uint16_t load_le16(const void *src)
{
    uint16_t x;
    memcpy(&x, src, sizeof(x));
    return x;
}

static inline uint32_t load_le32(const void *src)
{
    uint32_t x;
    memcpy(&x, src, sizeof(x));
    return x;
}

static inline uint64_t load_le64(const void *src)
{
    uint64_t x;
    memcpy(&x, src, sizeof(x));
    return x;
}

static inline void store_le16(void *dst, uint16_t x)
{
    memcpy(dst, &x, sizeof(x));
}

static inline void store_le32(void *dst, uint32_t x)
{
    memcpy(dst, &x, sizeof(x));
}

static inline void store_le64(void *dst, uint64_t x)
{
    memcpy(dst, &x, sizeof(x));
}

#endif
