/* Arena of a rank: the memory that all ranks of a group reach, and what lies where in it. The layout follows from the
 * group's configuration alone, so it is the same on all ranks.
 *
 *   flags      [EP_FLAG_KINDS][R] u64     epochs, written by rank s at [kind][s]; they only grow. PROGRESS has more
 *   wake       struct ep_wake             of whoever waits for flags here; host backend only
 *   announce   [R] struct ep_announce     what rank s offers in this call, written by s (HT)
 *   counts     [buffers][R][R] u32        row s: how many tokens rank s sends to each rank, written by s
 *   numbers    [buffers][R * B][topk + 1] i32   of record s * B + j: the global numbers of its experts, -1 for none,
 *                                         and last the token's own number at rank s
 *   weights    [row_buffers][slots][topk] f32
 *   scales     [row_buffers][slots][scale bytes]
 *   rows       [row_buffers][row_slots][row bytes]   not with EP_ROWS_CODED on GPUs
 *   chunks     [row_buffers][R][parts][chunk_bytes]    coded rows, of or for rank s; parts of 0: one
 *   heap                                  of strait_ep_alloc
 *
 * B = tokens_max, R = rank_count. Areas have room for the group's largest topk, row and scales; within a buffer records
 * and slots lie at the distances that the call's own sizes give. A call uses buffer epoch % buffers, and of rows,
 * scales, weights and chunks epoch % row_buffers. */
#ifndef STRAIT_EP_ARENA_H
#define STRAIT_EP_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/ep.h>

#ifdef __CUDACC__
#define EP_BOTH __host__ __device__
#else
#define EP_BOTH
#endif

#define EP_BUFFERS_LL 4u /* ep.c says why these suffice */
#define EP_BUFFERS_HT 2u

enum ep_flag {
    EP_FLAG_ROUTE = 0, /* HT update: counts and numbers are there */
    EP_FLAG_READY = 1, /* HT: the rank's announcement is there; its memory may be written (dispatch), read (combine) */
    EP_FLAG_DATA = 2,  /* all that the rank sends in this call is there */
    EP_FLAG_DONE = 3,  /* HT combine: the rank has read all that it needs */
    EP_FLAG_PROGRESS = 4, /* with parts: of how many the rank's rows are there (ep_progress) */
    EP_FLAG_KINDS = 5,
};

#define EP_PARTS_MAX 8u

struct ep_announce {
    uint64_t offset; /* in the arena of the rank that announces: its tensor in the heap; 0: its rows area; EP_IN_PEERS:
                      * its tensor of peers */
    uint64_t rows;   /* of row_bytes each, that are there */
};

#define EP_IN_PEERS 1u

/* A rank that waits sleeps until the number changes. */
struct ep_wake {
    uint32_t number;
    uint32_t sleeps; /* 1: it does, or is about to */
};

struct ep_arena {
    uint64_t flags, wake, announce, counts, numbers, weights, scales, rows, chunks,
        heap;                                                                           /* offsets, multiples of 256 */
    uint64_t counts_stride, numbers_stride, weights_stride, scales_stride, rows_stride; /* from buffer to buffer */
    uint64_t chunk_bytes; /* of one chunk, a multiple of 256; 0: not coded */
    uint64_t heap_bytes;
    uint64_t bytes; /* of the arena, a multiple of 4096 */
    uint32_t buffers, row_buffers;
    uint32_t slots;       /* for rows that arrive in a dispatch: LL R * B, HT receive_max or R * B */
    uint32_t row_slots;   /* for rows: slots, LL at least B * topk_max, which a combine needs */
    uint32_t chunk_rows;  /* that a chunk has at most */
    uint32_t parts;       /* that tokens are cut in, see "Parts" in ep/kernels.h; 0: they are not */
    uint32_t part_tokens; /* of a part, the last ones may have fewer */
};

/* Chunks of a coded list. */
static inline EP_BOTH uint32_t ep_arena_chunks(const struct ep_arena *arena)
{
    return arena->parts > 0 ? arena->parts : 1;
}

/* What an arena has room for: rows as they are, chunks, or either, as each call chooses. */
enum ep_rows { EP_ROWS_RAW, EP_ROWS_CODED, EP_ROWS_BOTH };

/* Computes the layout for a configuration whose fields have been checked. parts: at most EP_PARTS_MAX, HT only; else 0.
 * ERR_INVALID: a chunk would have 4 GiB or more. */
enum strait_status ep_arena_plan(const struct strait_ep_config *config, enum ep_rows rows, uint32_t parts,
                                 struct ep_arena *arena);

#endif
