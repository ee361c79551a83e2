/* Argument parsing that encode, decode and inspect share. All functions print to stderr why they fail. */
#ifndef STRAIT_TOOLS_OPTIONS_H
#define STRAIT_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#define OPTION_THREADS_MAX 1024u

/* -T N: 0 stands for all processors. */
bool option_threads(const char *text, unsigned *threads);
/* A size such as 32K, within min..max; `option` is named in the error. */
bool option_size(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *size);
/* One of `count` names: its index. */
bool option_name(const char *option, const char *text, const char *const *names, unsigned count, unsigned *index);
/* --codec NAME; text NULL: the best one. */
bool option_codec(const char *text, const struct strait_codec **codec);

/* Reads a codebook set. The caller owns it. */
bool codebook_load(const char *path, struct strait_codebook **codebook);

/* Whether a command may write to `path`: unless forced, not over a file, and no binary data to a terminal. */
bool output_allowed(const char *path, bool force);

#endif
