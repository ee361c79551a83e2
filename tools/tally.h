/* Calibration of one input on itself: a first pass over its BF16 values that ends in a codebook. */
#ifndef STRAIT_TOOLS_TALLY_H
#define STRAIT_TOOLS_TALLY_H

#include <stdint.h>

#include <strait/codec.h>

#include "tools/plan.h"
#include "tools/source.h"
#include "tools/util.h"

/* Reads the source, which must be seekable, and numbers the plan's tables (plan_number_tables). The plan has BF16
 * segments. NULL when it failed, which stderr has been told. The caller owns the codebook; its tables have no classes.
 */
struct strait_codebook *tally_codebook(const struct source *source, struct plan *plan, uint64_t chunk_bytes,
                                       unsigned threads, struct progress *progress);

#endif
