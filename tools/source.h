/* An input of any kind: a regular file, which any thread may read at any offset, or a pipe (or a file that reports no
 * size), which is read forward once. */
#ifndef STRAIT_TOOLS_SOURCE_H
#define STRAIT_TOOLS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/buffer.h"

#define SOURCE_SIZE_UNKNOWN UINT64_MAX

struct source {
    const char *name; /* for messages: the path, or "stdin" */
    int fd;
    unsigned mode; /* permissions of a file; for anything else, those of a world-readable file */
    bool seekable;
    uint64_t base;      /* where the input begins in a seekable file: stdin may be positioned in its middle */
    uint64_t size;      /* of the input; SOURCE_SIZE_UNKNOWN for a pipe */
    uint64_t position;  /* of source_read */
    struct buffer head; /* the first bytes: what was peeked at */
    size_t head_size;
};

/* Opens a path, borrowed for the source's life; "-" is stdin. Prints to stderr when it fails. */
bool source_open(struct source *source, const char *path);
void source_close(struct source *source);

/* Whether writing to `output` ("-": stdout) leaves the input intact, as it is not the same file. If not, prints to
 * stderr. */
bool source_survives(const struct source *source, const char *output);

/* Copies the rest of a pipe to an unnamed file in $TMPDIR, so that it can be read twice. Only before source_read. */
bool source_spool(struct source *source);

/* Reads the first `size` bytes of the input, or all of a shorter one, into source->head. Only before source_read. */
bool source_peek(struct source *source, uint64_t size);

/* Reads on from the position. *got is less than size only at the end of the input. */
bool source_read(struct source *source, void *dst, size_t size, size_t *got);

/* Reads at an offset of a seekable source, any thread. Fewer bytes than asked for are an error. */
bool source_read_at(const struct source *source, uint64_t offset, void *dst, size_t size);

/* Call it when everything was read: it is an error if a seekable source has grown since it was opened. */
bool source_check_end(const struct source *source);

#endif
