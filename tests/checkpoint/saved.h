/* Shared by the tests of checkpoints: folders to save in, tensors to save, and a reader that follows FORMAT.md in the
 * plainest way, with the codec and without the library's own reader. */
#ifndef STRAIT_TESTS_CHECKPOINT_SAVED_H
#define STRAIT_TESTS_CHECKPOINT_SAVED_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/checkpoint.h>

#include "checkpoint/format.h"

/* A folder of the test's own, empty, in STRAIT_TEST_FOLDER or the working folder's file system. */
void scratch_make(char path[256], const char *name);
/* Removes a folder and all in it; one that is not there is none to remove. */
void scratch_remove(const char *path);

/* A tensor to save: one rank's shard. */
struct piece_of {
    const char *name, *dtype;
    uint32_t dims;
    uint64_t shape[17], offsets[17], sizes[17]; /* one more than there may be */
    const void *data;
    const char *rounded_from;
};

enum strait_status add_piece(struct strait_checkpoint_save *save, const struct piece_of *piece);

/* Options of rank `rank` of `count`, with an id made of `seed`. */
struct strait_checkpoint_save_options save_options(uint32_t rank, uint32_t count, uint32_t seed);
struct strait_checkpoint_commit_options commit_options(uint32_t count, uint32_t seed);

/* Values like those of a training state: bytes of F32, BF16 or others. */
void fill_values(uint32_t seed, const char *dtype, void *data, uint64_t bytes);

/* All of one rank's file, checked: header, footer, chunks. */
struct saved_file {
    struct checkpoint_footer footer;
    uint8_t *bytes;
    uint64_t size;
};

/* Fails the test if the file is not as FORMAT.md says. */
void saved_open(struct saved_file *file, const char *folder, uint32_t rank);
void saved_close(struct saved_file *file);
/* The shard's bytes, malloc()ed; requires that they decode. A shard that is the rounding of another is rounded. */
uint8_t *saved_shard(const struct saved_file *file, uint32_t shard);
uint32_t saved_find(const struct saved_file *file, const char *name);

/* Saves one rank's tensors and commits them; requires success. */
void save_all(const char *path, const struct piece_of *pieces, uint32_t count, uint32_t seed, uint32_t flags);
/* Requires that a checkpoint of one rank holds these tensors. */
void require_holds(const char *path, const struct piece_of *pieces, uint32_t count);

#endif
