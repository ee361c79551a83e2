/* Plan of a load: which shard gives which part of a box, and which pages of which chunks have its values. */
#ifndef STRAIT_CHECKPOINT_LOAD_PLAN_H
#define STRAIT_CHECKPOINT_LOAD_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/arena.h"
#include "checkpoint/reader.h"
#include "checkpoint/walk.h"

#define PLAN_TRIES_MAX 16u /* replicas of a part that are tried, each after another one's damage */

/* Shards that have failed to give a part. */
struct tried {
    const struct tried *before;
    uint32_t shard; /* place in the index */
    uint32_t fault; /* the owner's */
};

/* A part of a box that is to be loaded. */
struct request {
    const uint64_t *at, *size; /* of the tensor */
    const struct tried *tried;
    uint32_t box; /* the owner's number */
    uint32_t tries;
};

/* What a shard gives of a request. */
struct piece {
    const uint64_t *at, *size; /* of the tensor */
    uint32_t request;
    uint32_t shard; /* place in the index */
};

/* Pages first..last of a chunk, counted in the chunk, that have values of a piece. */
struct need {
    uint32_t file;
    uint32_t chunk;
    enum strait_checkpoint_memory memory;
    uint32_t piece;
    uint32_t first, last;
};

/* Starts as zeroes but for reader and seed; ended by load_plan_fini. */
struct load_plan {
    struct strait_checkpoint_reader *reader;
    struct arena arena; /* of boxes and of tried */
    struct piece *pieces;
    struct need *needs;
    size_t piece_count, piece_room, need_count, need_room;
    uint64_t *file_bytes; /* that are to be read of each file, so far */
    uint64_t seed;        /* processes with different ones prefer different replicas */
};

enum strait_status load_plan_init(struct load_plan *plan, struct strait_checkpoint_reader *reader, uint64_t seed);
void load_plan_fini(struct load_plan *plan);

/* Adds the pieces of a request for values of a tensor. ERR_CORRUPT: no shard is left for some of its values;
 * ERR_UNSUPPORTED: shards overlap in too many ways; ERR_NO_MEMORY. Pieces of a request that fails are not added. */
enum strait_status load_plan_request(struct load_plan *plan, uint32_t tensor, const struct request *requests,
                                     uint32_t number);

/* The stored shard that has a piece's values, the values in its order first..end-1 of its page `page`, and where in the
 * page they begin. `page` is counted in the shard. */
void load_plan_page(const struct checkpoint_shard *source, uint64_t page, uint64_t *first, uint64_t *end);

/* The box of a shard, or of a piece. */
static inline struct checkpoint_box load_plan_shard_box(const struct checkpoint_shard *shard)
{
    return (struct checkpoint_box){.offsets = shard->offsets, .sizes = shard->sizes, .dims = shard->dims};
}

/* Adds the needs of a piece, whose file is known. */
enum strait_status load_plan_needs(struct load_plan *plan, uint32_t piece, const struct box_memory *memory,
                                   enum strait_checkpoint_memory kind);

/* Sorts the needs by file, chunk, memory and page. */
void load_plan_sort(struct load_plan *plan);

#endif
