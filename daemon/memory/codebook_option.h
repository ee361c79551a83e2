/* The codebook set that the daemon was told to use. */
#ifndef STRAIT_DAEMON_MEMORY_CODEBOOK_OPTION_H
#define STRAIT_DAEMON_MEMORY_CODEBOOK_OPTION_H

#include <stddef.h>

#include <strait/codec.h>

/* Reads the codebook set in the file `path`; an empty path gives OK and NULL. Blocks: for use at start-up only. On OK
 * the caller owns *codebook. ERR_IO (cannot be read), ERR_INVALID (not a regular file, or too long to be a set),
 * ERR_NO_MEMORY, and the errors of strait_codebook_parse; `why` says more. */
enum strait_status codebook_load(const char *path, struct strait_codebook **codebook, char *why, size_t why_size);

#endif
