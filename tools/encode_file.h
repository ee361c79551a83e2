/* The pipeline of `strait encode`: chunks of a plan are read, encoded side by side and written in order. */
#ifndef STRAIT_TOOLS_ENCODE_FILE_H
#define STRAIT_TOOLS_ENCODE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "tools/plan.h"
#include "tools/source.h"
#include "tools/totals.h"
#include "tools/util.h"

/* All borrowed. */
struct encode_task {
    struct source *source;
    const struct plan *plan;
    const struct strait_codebook *codebook; /* NULL when no value will be coded with tables */
    const struct strait_codec *codec;
    enum strait_mode mode;
    uint64_t page_bytes;  /* see struct cutter */
    uint64_t chunk_bytes; /* small enough that strait_encode_bound stays below 4 GiB */
    unsigned threads;
    struct output *output;
    struct progress *progress;
};

struct encode_outcome {
    uint64_t original_bytes;
    uint64_t file_bytes;
    uint8_t hash[16]; /* XXH3-128 of the original */
    struct totals totals;
};

/* Writes the whole file. Its bytes depend only on source, plan, codebook, mode and sizes, not on threads or codec.
 * False when it failed, with the error on stderr. */
bool encode_file(const struct encode_task *task, struct encode_outcome *outcome);

#endif
