/* Calibrates on the input itself: a first pass over its BF16 values makes a codebook. */
#ifndef STRAIT_TOOLS_TALLY_H
#define STRAIT_TOOLS_TALLY_H

#include <stdint.h>

#include <strait/codec.h>

#include "tools/plan.h"
#include "tools/source.h"
#include "tools/util.h"

/* Reads the source, which must be seekable, and numbers the plan's tables (plan_number_tables). The plan must have BF16
 * segments. The caller owns the codebook; its tables have no classes. NULL when it failed, with the error on stderr. */
struct strait_codebook *tally_codebook(const struct source *source, struct plan *plan, uint64_t chunk_bytes,
                                       unsigned threads, struct progress *progress);

#endif
