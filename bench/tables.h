/* The codebook that a bench codes with. */
#ifndef STRAIT_BENCH_TABLES_H
#define STRAIT_BENCH_TABLES_H

#include <stdbool.h>

#include <strait/codec.h>

#include "tools/calibrate.h"

#define TABLE_BYTES 256u /* size of a table embedded in a file: FORMAT.md, section 7 */

/* Opens safetensors files. False, with the error on stderr, when it failed or they hold no BF16 value. The caller must
 * tensors_close() it. */
bool tables_open(struct tensors *tensors, const char *const *paths, unsigned count);

/* The set of that name, or one calibrated on `calibs`, or, if neither is given, on the tensors themselves, as `strait
 * calibrate` does it: a table for each class, and a fallback made from all of them. NULL when it failed, with the error
 * on stderr. The caller owns the codebook. Reorders the spans. */
struct strait_codebook *tables_choose(struct tensors *tensors, const char *codebook, const char *const *calibs,
                                      unsigned calib_count, unsigned threads);

/* Exponents whose rank is in the last tier in every table. Returns their number. */
unsigned tables_common_escapes(const struct strait_codebook *codebook, uint8_t exponents[256]);

/* Ranks from which a value escapes. */
#define TOP16_ESCAPE_RANK  16u
#define TIERED_ESCAPE_RANK 21u

#endif
