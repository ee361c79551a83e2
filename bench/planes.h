/* BF16 values as two planes of bytes, on which general compressors do best. */
#ifndef STRAIT_BENCH_PLANES_H
#define STRAIT_BENCH_PLANES_H

#include <stddef.h>
#include <stdint.h>

/* `count` values to sign+mantissa and exponents, one byte each, and back. */
void planes_split(uint8_t *sign_mantissa, uint8_t *exponents, const void *values, size_t count);
void planes_join(void *values, const uint8_t *sign_mantissa, const uint8_t *exponents, size_t count);

#endif
