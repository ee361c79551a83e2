/* Calibrates on the input itself: a first pass over its values makes a codebook, where one is worth its bytes. */
#ifndef STRAIT_TOOLS_TALLY_H
#define STRAIT_TOOLS_TALLY_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/codec.h>

#include "tools/input.h"
#include "tools/pipeline.h"
#include "tools/util.h"

struct tally_task {
    const struct source *source; /* seekable */
    const struct strait_codec *codec;
    uint64_t page_bytes;
    unsigned threads;
    struct progress *progress;
};

/* Numbers the tables of the plan, which has values coded with tables, and makes them. A table is made where it saves
 * more than its CONTAINER_TABLE_BYTES: in mode auto against base, which is measured, and else against the table of all
 * values that get none of their own. Segments that mode auto codes without a table are set to base. The result depends
 * on the values, the plan and the size of pages alone. *codebook: its tables have no classes; the caller owns it; NULL:
 * no table is worth it. False when it failed, with the error on stderr. */
bool tally_codebook(const struct tally_task *task, struct plan *plan, struct strait_codebook **codebook);

#endif
