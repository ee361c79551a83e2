/* The pipeline of `strait decode`: chunks are read forward, decoded and checked side by side, and written in order. */
#ifndef STRAIT_TOOLS_DECODE_FILE_H
#define STRAIT_TOOLS_DECODE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "tools/source.h"
#include "tools/totals.h"
#include "tools/util.h"

/* All borrowed. */
struct decode_task {
    struct source *source;
    const struct strait_codec *codec;
    unsigned threads;
    struct output *output; /* NULL: check only; the run then continues after bad pages and reports all of them */
    struct progress *progress;
};

struct decode_outcome {
    uint64_t original_bytes;
    uint64_t file_bytes;
    uint32_t table_count;
    uint8_t hash[16]; /* XXH3-128 of the original */
    struct totals totals;
};

/* Decodes the whole file. False when anything is wrong, with the error on stderr; the output is then correct as far as
 * it goes, but incomplete. */
bool decode_file(const struct decode_task *task, struct decode_outcome *outcome);

#endif
