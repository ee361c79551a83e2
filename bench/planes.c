#include "bench/planes.h"

#include "internal/bytes.h"

/* Plain loops, which compilers vectorize; next to a general compressor their time is negligible. */

void planes_split(uint8_t *restrict sign_mantissa, uint8_t *restrict exponents, const void *restrict values,
                  size_t count)
{
    const uint8_t *src = values;
    for (size_t i = 0; i < count; i++) {
        uint16_t value = load_le16(src + 2 * i);
        sign_mantissa[i] = (uint8_t)((value >> 8 & 0x80) | (value & 0x7F));
        exponents[i] = (uint8_t)(value >> 7);
    }
}

void planes_join(void *restrict values, const uint8_t *restrict sign_mantissa, const uint8_t *restrict exponents,
                 size_t count)
{
    uint8_t *dst = values;
    for (size_t i = 0; i < count; i++)
        store_le16(dst + 2 * i,
                   (uint16_t)((sign_mantissa[i] & 0x80) << 8 | exponents[i] << 7 | (sign_mantissa[i] & 0x7F)));
}
