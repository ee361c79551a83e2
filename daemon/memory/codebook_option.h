/* The codebook set that the daemon was told to use. */
#ifndef STRAIT_DAEMON_MEMORY_CODEBOOK_OPTION_H
#define STRAIT_DAEMON_MEMORY_CODEBOOK_OPTION_H

#include <stddef.h>

#include <strait/codec.h>

/* Reads the set in the file `path`; "" is none: OK and NULL. Blocks: for the start only. On OK the caller owns
 * *codebook. ERR_IO (it cannot be read), ERR_INVALID (no regular file, or too long to be a set), ERR_NO_MEMORY, and
 * what strait_codebook_parse says; `why` says more. */
enum strait_status codebook_load(const char *path, struct strait_codebook **codebook, char *why, size_t why_size);

#endif
