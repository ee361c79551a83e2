#ifndef STRAIT_CHECKPOINT_ROUNDING_H
#define STRAIT_CHECKPOINT_ROUNDING_H

#include <stdbool.h>
#include <stdint.h>

/* Whether each BF16 value is the rounding of the F32 value to nearest, ties to even; of NaN: the upper half with its
 * quiet bit set. Any alignment. */
bool rounding_equal(const void *fp32, const void *bf16, uint64_t count);

#endif
