/* What the ranks of `strait bench collective` send: a pattern for each type, which every rank repeats from a place of
 * its own on, so that all know what the others send. */
#ifndef STRAIT_BENCH_COLLECTIVE_VALUES_H
#define STRAIT_BENCH_COLLECTIVE_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/collective_options.h"

struct collective_values {
    uint8_t *bytes;  /* the pattern twice, so that it can be read from every place on; NULL: not wanted */
    uint64_t period; /* bytes of it once, a multiple of 16 */
};

extern const unsigned collective_type_bytes[COLLECTIVE_TYPES];

/* Of tensors: those of the kind and type, back to back; `bytes` stays NULL when the files have none. FP32_BF16 is made
 * of BF16, and so is FP16 where the files have none: the nearest, without infinities. False, which stderr has been
 * told: a file cannot be read, has too few values, or no memory. The caller must collective_values_fini() it either
 * way. */
bool collective_values_init(struct collective_values *values, enum collective_data data, enum collective_type type,
                            const struct sources *sources);
void collective_values_fini(struct collective_values *values); /* safe on zeroes */

/* Where in the pattern what a rank sends begins: the buffers that take turns differ. */
uint64_t collective_values_start(const struct collective_values *values, unsigned rank, unsigned slot);

/* Adds up element `index` of what all ranks send from this slot, in the documented order: in FP32, from rank 0 on,
 * rounded once; then writes it to dst. */
void collective_values_sum(const struct collective_values *values, enum collective_type type, unsigned ranks,
                           unsigned slot, uint64_t index, uint8_t *dst);

/* Nearest, ties to even. */
uint16_t collective_fp16_of(float value);
float collective_fp16_value(uint16_t bits);
uint16_t collective_bf16_of(float value);

#endif
