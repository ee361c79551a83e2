/* The codebook that a bench codes with. */
#ifndef STRAIT_BENCH_TABLES_H
#define STRAIT_BENCH_TABLES_H

#include <stdbool.h>

#include <strait/codec.h>

#include "tools/tensors.h"

#define TABLE_BYTES 256u /* of a table where it is embedded: FORMAT.md, section 7 */

/* Opens safetensors files, which hold at least one BF16 value then: false, which stderr has been told, otherwise. The
 * caller must tensors_close() it. */
bool tables_open(struct tensors *tensors, const char *const *paths, unsigned count);

/* The set of that name, or one calibrated on files, or, where neither is given, on the tensors themselves, as `strait
 * calibrate` makes it: a table for each class and a fallback made of all. NULL when it failed, which stderr has been
 * told. The caller owns the codebook. Reorders the spans. */
struct strait_codebook *tables_choose(struct tensors *tensors, const char *codebook, const char *const *calibs,
                                      unsigned calib_count, unsigned threads);

/* Exponents that rank below the last tier's first rank in every table. Returns how many there are. */
unsigned tables_common_escapes(const struct strait_codebook *codebook, uint8_t exponents[256]);

/* Ranks from which a value escapes. */
#define TOP16_ESCAPE_RANK  16u
#define TIERED_ESCAPE_RANK 21u

#endif
