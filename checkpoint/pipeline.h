/* Chunks on their way into a file: threads encode them, any number at once; then each gets its place in the file, in
 * the order in which they came, and a writer writes it. So the file depends on what came in, and not on the threads. */
#ifndef STRAIT_CHECKPOINT_PIPELINE_H
#define STRAIT_CHECKPOINT_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/encoder.h"
#include "checkpoint/format.h"

struct pipeline;

struct pipeline_options {
    int fd;
    const char *path;      /* of the file, for texts; borrowed */
    uint32_t threads;      /* that encode */
    uint64_t buffer_bytes; /* of chunks that are encoded and written; at least one for each thread is had */
    struct encoder_options encoder;
};

/* A comparison that a thread makes: sets *equal to false when not all values are the others' roundings. */
struct comparison {
    const struct encoder *encoder;
    const uint8_t *fp32, *bf16;
    uint64_t count;
    bool *equal;
};

struct pipeline_figures {
    double encode_seconds, write_seconds;
};

enum strait_status pipeline_start(struct pipeline **pipeline, const struct pipeline_options *options, char *text,
                                  size_t text_size);

/* Both wait while enough is under way. The pipeline frees contents->pieces, at once or later. Return the first error
 * that anything in the pipeline met. Contents that are put have numbers from 0 on: their chunks' places in the footer.
 */
enum strait_status pipeline_put(struct pipeline *pipeline, const struct encoder *encoder,
                                const struct contents *contents);
enum strait_status pipeline_compare(struct pipeline *pipeline, const struct comparison *comparison);

/* Waits until all comparisons are made. */
enum strait_status pipeline_settle(struct pipeline *pipeline);

/* Waits until all chunks are written, and ends the threads. chunks: malloc()ed, the caller's; end: where the last one
 * ends, a multiple of CHECKPOINT_ALIGNMENT. */
enum strait_status pipeline_finish(struct pipeline *pipeline, struct checkpoint_chunk **chunks, uint32_t *count,
                                   uint64_t *end, struct pipeline_figures *figures);

/* The text of the first error. */
const char *pipeline_text(const struct pipeline *pipeline);
/* Ends it, whatever is under way; NULL is allowed. */
void pipeline_free(struct pipeline *pipeline);

#endif
