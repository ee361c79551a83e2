#ifndef STRAIT_DAEMON_MEMORY_JOB_H
#define STRAIT_DAEMON_MEMORY_JOB_H

#include <stddef.h>
#include <strait/codec.h>

#include "daemon/base/seal.h"
#include "daemon/memory/codebooks.h"
#include "daemon/memory/pool.h"

/* Copies data that this process will not read again. */

/* memcpy with stores that bypass the caches, where the processor has them: pays for pages that together exceed the
 * caches, though each of them is small. */
void stream_copy(void *dst, const void *src, size_t size);

/* Makes the stores above visible to other threads before anything that follows. Call it once after the last copy. */
void stream_flush(void);

/* Work on pages that is too long for the loop: encode, decode, copy, and anything else that may block. It runs on
 * libuv's worker threads; small pieces run at once, on the caller's thread. Pages in GPU memory are coded by that GPU:
 * the jobs started in one turn of the loop are submitted to it together. `done` is called on the loop's thread, exactly
 * once, never from inside the call that starts the job (for small jobs by jobs_report, or in the next turn of the
 * loop). */

struct uv_loop_s;
struct jobs;

struct job_result {
    enum strait_reason reason; /* NONE, CODEC, INTEGRITY, NO_MEMORY, LOCAL; encode: NONE, LOCAL, GEOMETRY (no room) */
    bool forged;               /* decode: INTEGRITY, because the chunk is not what the peer has encrypted */
    bool absent;               /* decode with a flag: the chunk did not come in time; no page was touched */
    uint64_t chunk_bytes;      /* decode with a flag: the chunk's, if it was decoded */
    uint64_t bytes;            /* encode: of the chunk, with its tag; decode: of the pages */
    uint64_t raw_bytes;        /* bytes of the pages of the piece */
    uint64_t values[STRAIT_BLOCK_MODES];
    uint64_t coded_values, escapes; /* by tables; escapes: 0 with a codebook of more than 4096 tables */
    /* Encode by mode tiered: what exponents took, and what the tables expect of them; 0 where these expect nothing. */
    uint64_t exponent_bits, expected_bits;
    uint64_t nanoseconds; /* of the work itself */
    uint64_t queued;      /* time spent waiting before the work began */
};

typedef void job_done(void *owner, uint64_t cookie, const struct job_result *result);

/* Pieces of at most `small_bytes` raw bytes run in place. Takes a reference of its own to the codebooks. */
enum strait_status jobs_create(struct uv_loop_s *loop, struct codebooks *codebooks, uint64_t small_bytes,
                               struct jobs **jobs);
/* Jobs that are started from now on use these: pages are encoded by the set in force, and chunks decoded by the one
 * that they name. The tables of pools must be chosen anew (pool_choose_tables) in the same turn. */
void jobs_set_codebooks(struct jobs *jobs, struct codebooks *codebooks);
/* Lets pools have memory of these devices; borrowed until jobs_destroy. Chunks for their pages are in pinned memory. */
void jobs_use_devices(struct jobs *jobs, struct devices *devices);
/* All jobs must be done. Ends asynchronously when handles must close on the loop first. */
void jobs_destroy(struct jobs *jobs);
uint32_t jobs_running(const struct jobs *jobs);
/* Reports the small jobs that have ended. False: there were none. */
bool jobs_report(struct jobs *jobs);

/* Where a chunk is, or is to be written. */
struct job_chunk {
    void *bytes;
    uint64_t size;
    bool on_gpu;      /* in memory of a GPU, like the pages; device.h says which memory that may be */
    bool on_peer_gpu; /* encode, on_gpu: in another GPU's memory than the pages */
    bool alone;       /* all of its request: waking a worker for it would be all that comes of one */
    uint64_t *flag;   /* or NULL: of the chunk, as in struct device_task. Decode: `size` is then the slot's */
    uint64_t flag_value;
    const struct seal *seal; /* in host memory: how it is encrypted, copied by the call; NULL: it is not. When encoding,
                                SEAL_TAG_BYTES behind `size` are written too; when decoding, they are part of it */
};

/* Encodes the pages of `piece` in `pool` to one chunk of at most chunk->size; the call copies `ids`. Encodes raw when
 * the mode needs a codebook and none is loaded; a chunk that uses no table names no codebook. On error there is no job
 * and no callback: ERR_NO_MEMORY, and (here and below) ERR_INVALID: the piece or an id is not one of the pool's, or the
 * page sizes of a copy differ. */
enum strait_status job_encode(struct jobs *jobs, const struct pool *pool, const struct piece *piece,
                              const uint32_t *ids, enum strait_mode mode, const struct job_chunk *chunk, job_done *done,
                              void *owner, uint64_t cookie);

/* Checks the chunk and puts its pages in place. Others may be able to write the chunk meanwhile, so its metadata is
 * copied first. It must have exactly the pages of the piece, in their order and sizes, and their element type;
 * otherwise CODEC. */
enum strait_status job_decode(struct jobs *jobs, const struct pool *pool, const struct piece *piece,
                              const uint32_t *ids, const struct job_chunk *chunk, job_done *done, void *owner,
                              uint64_t cookie);

/* Copies page to page between two pools whose pages have equal sizes (they may be the same pool), respecting the rows
 * of each. Large copies use stores that bypass the caches. */
enum strait_status job_copy(struct jobs *jobs, const struct pool *src, const uint32_t *src_ids, const struct pool *dst,
                            const uint32_t *dst_ids, const struct piece *piece, job_done *done, void *owner,
                            uint64_t cookie);

/* Runs any function on a worker: `work` there, then `done` on the loop. */
enum strait_status job_call(struct jobs *jobs, void (*work)(void *arg), void (*done)(void *arg), void *arg);

#endif
