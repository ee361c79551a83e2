/* Reference of quantization: E4M3 with a scale, computed by the text of strait/ep.h in double precision and a table of
 * all E4M3 values, without the library's code. */
#ifndef STRAIT_TESTS_EP_QUANTIZED_H
#define STRAIT_TESTS_EP_QUANTIZED_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/ep.h>

enum { QUANTIZED_VALUES = STRAIT_EP_SCALE_VALUES };

/* BF16 values that have a scale in common, as E4M3; returns the scale. */
float ref_quantize(const uint16_t values[QUANTIZED_VALUES], bool powers, uint8_t quantized[QUANTIZED_VALUES]);

#endif
