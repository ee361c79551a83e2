/* Greatest common divisor. */
#ifndef STRAIT_INTERNAL_DIVISOR_H
#define STRAIT_INTERNAL_DIVISOR_H

#include <stdint.h>

static inline uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
