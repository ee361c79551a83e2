/* Work on pages that is too long for the loop: encode, decode, copy, and anything else that may block. It runs on
 * libuv's worker threads; small pieces run at once, on the caller's thread. Pages in memory of a GPU are coded by it:
 * what is started in one turn of the loop goes to it together. `done` is called on the loop's thread,
 * exactly once, never from inside the call that starts the job (small ones too: in the next turn of the loop). */
#ifndef STRAIT_DAEMON_MEMORY_JOB_H
#define STRAIT_DAEMON_MEMORY_JOB_H

#include <strait/codec.h>

#include "daemon/memory/pool.h"

struct uv_loop_s;
struct jobs;

struct job_result {
    enum strait_reason reason; /* NONE, CODEC, INTEGRITY, NO_MEMORY, LOCAL; encode: NONE, LOCAL, GEOMETRY (no room) */
    uint64_t bytes;            /* encode: of the chunk; decode: of the pages */
    uint64_t raw_bytes;        /* of the pages of the piece */
    uint64_t values[STRAIT_BLOCK_MODES];
    uint64_t coded_values, escapes; /* escapes: 0 with a codebook of more than 4096 tables */
    uint64_t nanoseconds;           /* of the work itself */
    uint64_t queued;                /* and before it began */
};

typedef void job_done(void *owner, uint64_t cookie, const struct job_result *result);

/* Pieces of at most `small_bytes` raw bytes run in place. `codebook` (may be NULL) is borrowed for the life of *jobs.
 */
enum strait_status jobs_create(struct uv_loop_s *loop, const struct strait_codebook *codebook, uint64_t small_bytes,
                               struct jobs **jobs);
/* Pools may have memory of these; borrowed for the life of *jobs. What is coded for their pages is in pinned memory. */
void jobs_use_devices(struct jobs *jobs, struct devices *devices);
/* All jobs are done. Ends asynchronously when handles must close on the loop first. */
void jobs_destroy(struct jobs *jobs);
uint32_t jobs_running(const struct jobs *jobs);

/* Where a chunk is, or is to be. */
struct job_chunk {
    void *bytes;
    uint64_t size;
    bool far;  /* in memory of a GPU, as the pages are: device.h tells which memory that may be */
    bool away; /* encode, far: of another GPU than the pages' */
};

/* The pages of `piece`, in `pool`, their ids copied by the call; encoded to one chunk of at most chunk->size. With a
 * mode that needs a codebook and none loaded: raw; a raw chunk names no codebook. No job and no callback with
 * ERR_NO_MEMORY and (here and below) ERR_INVALID: the piece or an id is none of the pool's, or the sizes of a copy's
 * pages differ. */
enum strait_status job_encode(struct jobs *jobs, struct pool *pool, const struct piece *piece, const uint32_t *ids,
                              enum strait_mode mode, const struct job_chunk *chunk, job_done *done, void *owner,
                              uint64_t cookie);

/* Checks the chunk, which others may be able to write meanwhile (metadata is copied first), and
 * puts its pages in place. It must have exactly the pages of the piece, in their order and sizes, and their element
 * type: else CODEC. */
enum strait_status job_decode(struct jobs *jobs, struct pool *pool, const struct piece *piece, const uint32_t *ids,
                              const struct job_chunk *chunk, job_done *done, void *owner, uint64_t cookie);

/* Page to page, between two pools of equal geometry (they may be the same). Rows are respected. Uses stores that pass
 * the caches by for what is large. */
enum strait_status job_copy(struct jobs *jobs, struct pool *src, const uint32_t *src_ids, struct pool *dst,
                            const uint32_t *dst_ids, const struct piece *piece, job_done *done, void *owner,
                            uint64_t cookie);

/* Any function on a worker: `work` there, then `done` on the loop. */
enum strait_status job_call(struct jobs *jobs, void (*work)(void *arg), void (*done)(void *arg), void *arg);

#endif
