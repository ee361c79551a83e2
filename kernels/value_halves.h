/* Values of FP16 and FP32 taken apart into halves, which look like BF16, and rests; and back. FORMAT.md, section 3. */
#ifndef STRAIT_KERNELS_VALUE_HALVES_H
#define STRAIT_KERNELS_VALUE_HALVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* FP32: the rest is the lower 16 bits. `rest` NULL: it is zero, and left out. */
void halves_take_fp32(uint8_t *halves, uint8_t *rest, const uint8_t *src, uint32_t count);
void halves_join_fp32(uint8_t *dst, const uint8_t *halves, const uint8_t *rest, uint32_t count);
/* Whether the lower 16 bits of all values are zero. */
bool halves_are_all_fp32(const uint8_t *src, uint32_t count);

/* FP16: the rest is the lower 3 bits, in streams of two and of one. Sets the unused bits of both to zero. */
void halves_take_fp16(uint8_t *halves, uint8_t *twos, uint8_t *ones, const uint8_t *src, uint32_t count);
/* False when an exponent is that of no FP16 value. */
bool halves_join_fp16(uint8_t *dst, const uint8_t *halves, const uint8_t *twos, const uint8_t *ones, uint32_t count);

#endif
