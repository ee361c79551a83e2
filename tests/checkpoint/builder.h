/* Checkpoints for tests, written by their format and not by the library's saving: pages of any size, chunks that end
 * anywhere, shared pages, replicas, roundings. Does not need Check. */
#ifndef STRAIT_TESTS_CHECKPOINT_BUILDER_H
#define STRAIT_TESTS_CHECKPOINT_BUILDER_H

#include "checkpoint/format.h"
#include "tests/support.h"

enum { BUILT_TENSORS_MAX = 32, BUILT_SHARDS_MAX = 512, BUILT_FILES_MAX = 16 };

struct built_tensor {
    char name[64];
    const struct checkpoint_dtype *dtype;
    uint64_t shape[STRAIT_CHECKPOINT_DIMS_MAX];
    uint32_t dims;
    uint64_t values;
    uint8_t *bytes; /* of all values */
};

struct built_shard {
    uint32_t tensor;
    uint32_t file;
    uint64_t at[STRAIT_CHECKPOINT_DIMS_MAX], size[STRAIT_CHECKPOINT_DIMS_MAX];
    uint32_t rounded_from; /* 1 + place among the shards; 0: none */
};

/* Starts as zeroes; ended by built_fini. */
struct built {
    struct built_tensor tensors[BUILT_TENSORS_MAX];
    struct built_shard shards[BUILT_SHARDS_MAX];
    uint32_t tensor_count, shard_count, file_count;
    uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES];
    uint64_t committed_ns;
    uint32_t page_bytes;  /* of shards that have more; 0: another one for each shard */
    uint32_t chunk_pages; /* at most; 0: chunks end by chance */
};

/* Adds a tensor with random values, or one that is the rounding of another (`of`, UINT32_MAX: none). */
uint32_t built_tensor_add(struct built *built, struct rng *rng, const char *name, const char *dtype,
                          const uint64_t *shape, uint32_t dims, uint32_t of);
/* Adds shards that cover a tensor: its box cut at random into about `pieces`, each in any file; `replicas`: one in so
 * many boxes is in a second file too, 1: all, 0: none. */
void built_split(struct built *built, struct rng *rng, uint32_t tensor, uint32_t pieces, uint32_t replicas);
/* Adds the roundings of all shards of tensor `of` as those of `tensor`. */
void built_round(struct built *built, uint32_t tensor, uint32_t of);
/* Writes the folder, which is made, with its index. */
void built_write(const struct built *built, struct rng *rng, const char *folder);
void built_fini(struct built *built);

/* A checkpoint of many types, shapes and cuts. */
void built_random(struct built *built, struct rng *rng, uint32_t files, uint32_t replicas);

#define SCRATCH_BYTES 256

/* A folder of its own for a test, in $STRAIT_TEST_FOLDER, else in memory where the system has that; and its removal
 * with all that is in it. */
void scratch_make(char folder[SCRATCH_BYTES]);
void scratch_remove(const char *folder);
/* A whole file in malloc()ed memory. */
uint8_t *file_read(const char *folder, const char *name, size_t *size);
void file_write(const char *folder, const char *name, const void *bytes, size_t size);

/* The BF16 value nearest to one of F32, as FORMAT.md has it. */
uint16_t reference_round(uint32_t value);

#endif
