/* What a checkpoint holds, as `strait checkpoint inspect` tells and draws it: bytes of each tensor, and of each kind of
 * tensors by the modes of their blocks. */
#ifndef STRAIT_TOOLS_CHECKPOINT_SURVEY_H
#define STRAIT_TOOLS_CHECKPOINT_SURVEY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <strait/checkpoint.h>
#include <strait/codec.h>

/* Bytes of shards, replicas counted. */
struct survey_bytes {
    uint64_t raw;
    uint64_t stored; /* headers not counted */
};

/* Kinds of what is in pages: their blocks' mode, the highest of those that a page has, or a rounding, of which nothing
 * is stored. */
#define SURVEY_ROUNDED STRAIT_BLOCK_MODES_ALL
#define SURVEY_MODES   (STRAIT_BLOCK_MODES_ALL + 1)

/* Tensors of one part of a training state and of one type. */
struct survey_kind {
    const char *name; /* "weights", "first moments", ...: static */
    const char *dtype;
    uint64_t tensors;
    struct survey_bytes all;
    struct survey_bytes modes[SURVEY_MODES];
};

struct survey_tensor {
    struct survey_bytes all;
    uint32_t kind;
    bool unreadable; /* a file with shards of it cannot be read: stored bytes are too few */
};

struct checkpoint_survey {
    struct survey_tensor *tensors;
    struct survey_kind *kinds; /* in the order of their names */
    uint32_t kind_count;
    uint32_t unreadable_files;
};

/* False: out of memory. checkpoint_survey_fini may follow in any case. */
bool checkpoint_survey_make(struct checkpoint_survey *survey, struct strait_checkpoint_reader *reader);
void checkpoint_survey_fini(struct checkpoint_survey *survey);

/* "parts", "rounded", ...: of SURVEY_MODES. */
const char *survey_mode_name(unsigned mode);

/* Draws kinds as bars, raw and stored, these by modes. */
void checkpoint_picture(const struct checkpoint_survey *survey, const char *title, FILE *stream);

#endif
