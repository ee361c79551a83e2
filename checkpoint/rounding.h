#ifndef STRAIT_CHECKPOINT_ROUNDING_H
#define STRAIT_CHECKPOINT_ROUNDING_H

#include <stdbool.h>
#include <stdint.h>

/* The BF16 value, as bits, nearest to one of F32, the even one of two; of NaN: the upper half with its quiet bit set.
 */
static inline uint16_t rounding_of(uint32_t bits)
{
    const uint32_t nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40;

    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : nearest);
}

/* Whether each BF16 value is the rounding of the F32 value. Any alignment. */
bool rounding_equal(const void *fp32, const void *bf16, uint64_t count);

#endif
