#include "checkpoint/rounding.h"

#include <string.h>

/* Values compared before the answer so far is looked at. */
#define STRIDE 4096u

/* Bits that differ in any of the values. */
static uint32_t differences(const uint32_t *fp32, const uint16_t *bf16, uint32_t count)
{
    uint32_t any = 0;

    for (uint32_t i = 0; i < count; i++)
        any |= (uint32_t)rounding_of(fp32[i]) ^ bf16[i];
    return any;
}

bool rounding_equal(const void *fp32, const void *bf16, uint64_t count)
{
    const uint8_t *from = fp32, *to = bf16;
    const bool aligned = (uintptr_t)from % 4 == 0 && (uintptr_t)to % 2 == 0;
    uint32_t wide[STRIDE];
    uint16_t narrow[STRIDE];

    while (count > 0) {
        const uint32_t part = count < STRIDE ? (uint32_t)count : STRIDE;
        if (!aligned) {
            memcpy(wide, from, part * sizeof(*wide));
            memcpy(narrow, to, part * sizeof(*narrow));
        }
        if (differences(aligned ? (const void *)from : wide, aligned ? (const void *)to : narrow, part) != 0)
            return false;
        from += part * sizeof(*wide);
        to += part * sizeof(*narrow);
        count -= part;
    }
    return true;
}
