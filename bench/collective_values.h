/* What the ranks of `strait bench collective` send: a pattern for each type, which every rank repeats, starting at its
 * own place in it, so that all ranks know what the others send. */
#ifndef STRAIT_BENCH_COLLECTIVE_VALUES_H
#define STRAIT_BENCH_COLLECTIVE_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/collective_options.h"

struct collective_values {
    uint8_t *bytes;  /* the pattern twice, so that a period can be read from any place; NULL: not wanted */
    uint64_t period; /* bytes of the pattern, a multiple of 16 */
};

extern const unsigned collective_type_bytes[COLLECTIVE_TYPES];

/* Takes the tensors of the kind and type, back to back; `bytes` stays NULL when the files have none. FP32_BF16 is made
 * from BF16, and so is FP16 where the files have none: the nearest values, without infinities. False: a file cannot be
 * read or has too few values, or no memory; the error is on stderr. The caller must call collective_values_fini()
 * either way. */
bool collective_values_init(struct collective_values *values, enum collective_data data, enum collective_type type,
                            const struct sources *sources);
void collective_values_fini(struct collective_values *values); /* safe on zeroes */

/* Where in the pattern a rank's data begins, which differs between the buffers that are used in turn. */
uint64_t collective_values_start(const struct collective_values *values, unsigned rank, unsigned slot);

/* Adds up element `index` of what all ranks send from this slot, in the documented order (in FP32, from rank 0 upward,
 * rounded once), and writes it to dst. */
void collective_values_sum(const struct collective_values *values, enum collective_type type, unsigned ranks,
                           unsigned slot, uint64_t index, uint8_t *dst);

/* Rounds to nearest, ties to even. */
uint16_t collective_fp16_of(float value);
float collective_fp16_value(uint16_t bits);
uint16_t collective_bf16_of(float value);

#endif
