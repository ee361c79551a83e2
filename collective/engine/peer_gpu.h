/* What the wire `peer` keeps in the memory of GPUs, and needs of them. Ranks of one host reach each other's memory: a
 * message is encoded piece by piece in the sender's memory, pushed into slots of the receiver's arena, and decoded
 * there.
 *
 *   arena of a rank: flags | by sending rank: slots: head, chunk of the values behind whole pages, chunk of whole pages
 *
 * From each rank to each other one there is one sequence of pieces, whose counters only grow: the sender writes into
 * the receiver's flags how many pieces are ready, the receiver into the sender's how many of its slots it has freed.
 * Kernels advance the counters, so a graph can be launched any number of times.
 *
 * A piece may also be encoded directly into the receiver's slot.
 *
 * A rank that gives up says so in the flags of the others before it does anything else. What it has queued goes on, and
 * may overwrite what others still read. So a receiver copies the metadata of chunks aside before it trusts it, as
 * strait_decode requires; and after decoding a piece it looks at these flags and at the piece's number: the result is a
 * failure, never wrong values. After a rank has given up itself, what it reads may not have arrived, so it does not
 * decode it. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_GPU_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h>

#include "collective/nccl_types.h"

enum {
    PEER_RANKS_MAX = 16,
    PEER_HEAD_BYTES = 256,
    PEER_TRACE_MAX = 1024, /* marks */
    PEER_MAGIC = 0x53505231,
};

/* At the beginning of an arena, initially zero. The other ranks write here, each in its own entry; this rank reads. */
struct peer_flags {
    uint64_t ready[PEER_RANKS_MAX];  /* pieces that have come from that rank */
    uint64_t freed[PEER_RANKS_MAX];  /* pieces from here that it has read */
    uint64_t broken[PEER_RANKS_MAX]; /* not 0: it has given up */
};

/* Used by this rank's kernels alone, initially zero. Indexed by the other rank. */
struct peer_counters {
    uint64_t claimed[PEER_RANKS_MAX]; /* slots over there that pieces may be pushed into */
    uint64_t posted[PEER_RANKS_MAX];  /* pieces that are over there */
    uint64_t awaited[PEER_RANKS_MAX]; /* pieces that have come */
    uint64_t taken[PEER_RANKS_MAX];   /* of these, pieces that are decoded */
    uint32_t broken;
    uint32_t blocks; /* of a running kernel that have ended */
};

/* Begins every slot. The encoder writes the results; the rest is written when the whole piece is there. */
struct peer_head {
    uint32_t magic, reserved;
    uint64_t number; /* of the piece, from 1 */
    uint8_t padding[PEER_HEAD_BYTES - 16 - 2 * sizeof(struct strait_result)];
    struct strait_result main, tail; /* tail: only if the piece has one */
};

/* For tuning: when each stage of a piece ended. */
enum peer_point { PEER_CLAIMED, PEER_ENCODED, PEER_CROSSED, PEER_POSTED, PEER_ARRIVED, PEER_DECODED, PEER_POINTS };
struct peer_mark {
    uint64_t ns;
    uint32_t point, number; /* number: of the piece */
};

/* In pinned memory. */
struct peer_mail {
    uint32_t abort;  /* set by the host: kernels give up */
    uint32_t failed; /* set by kernels: an enum strait_status, negative as they are */
    uint32_t marks;  /* how many there are */
    uint32_t reserved;
    struct peer_mark mark[PEER_TRACE_MAX];
};

/* In the GPU's memory: what all kernels of a member share. */
struct peer_world {
    uint32_t rank, ranks;
    struct peer_flags *flags[PEER_RANKS_MAX]; /* by rank, including this one's */
    struct peer_counters *counters;
    struct peer_mail *host_status;
    uint32_t trace, reserved; /* not 0: marks are wanted */
};

/* ---- Kernels --------------------------------------------------------------------------------------------------------
 *
 * Whatever waits is one warp; others of its block sleep at a barrier. It ends when what it waits for has come; when the
 * member is aborted, another rank has given up or, if patience_ns is not 0, so long has passed: then this rank gives up
 * too, which is a failure. */

/* Waits for a slot of each receiver: until at most `lag` of its earlier pieces are still unread. */
struct peer_claim {
    const struct peer_world *world;
    uint64_t patience_ns;
    uint32_t count, ahead; /* ahead: for encoding */
    uint8_t receiver[PEER_RANKS_MAX], lag[PEER_RANKS_MAX];
};

/* Pushes what is missing of each piece, up to its encoded size, with so many thread blocks. Then posts the piece. */
struct peer_push {
    const uint8_t *slot;                      /* here; NULL: the whole piece is there */
    uint8_t *there;                           /* the receiver's */
    uint64_t from;                            /* bytes that are there already; a multiple of 16 */
    uint64_t main_at, main_bound, tail_bound; /* in the slot; tail_bound 0: no tail */
    uint32_t receiver, reserved;
};
struct peer_post {
    const struct peer_world *world;
    uint32_t count, blocks;
    struct peer_push push[PEER_RANKS_MAX];
};

/* Metadata of a chunk that has come, and where it is copied to. Zeros go there instead if this rank has given up, or if
 * the chunk begins differently, since its metadata could then be longer. */
struct peer_aside {
    const uint8_t *from;
    uint8_t *to;
    uint32_t begins[4];
    uint32_t vectors, reserved; /* of 16 bytes */
};

/* Checks that pieces were decoded well, and frees their slots. Then waits for the next piece of each of `source`, and
 * copies its metadata aside. */
struct peer_taken {
    const struct peer_head *head;
    const struct strait_result *results; /* of decoding: main, tail; NULL: the piece was not encoded */
    uint32_t source, has_tail;
};
struct peer_receive_step {
    const struct peer_world *world;
    uint64_t patience_ns;
    uint32_t takes, waits, asides, reserved;
    struct peer_taken taken[PEER_RANKS_MAX];
    uint8_t source[PEER_RANKS_MAX];
    struct peer_aside aside[2 * PEER_RANKS_MAX];
};

/* ---- Operations on GPUs ------------------------------------------------------------------------------------------ */

enum { PEER_HANDLE_BYTES = 64 };

/* How another rank finds memory. */
struct peer_handle {
    uint64_t host;    /* the same for all of one host, different on others */
    uint64_t process; /* the same within one process */
    uint64_t address;
    int32_t device; /* as numbered in its process */
    uint32_t reserved;
    uint8_t bytes[PEER_HANDLE_BYTES];
};

typedef struct CUevent_st *gpu_event;

struct gpu_peer_ops {
    bool (*prepare)(void); /* loads what is launched, on the current device */
    /* A stream with lower priority than those of stream_make: while all multiprocessors are busy, kernels that wait to
     * start on the latter go first. */
    coll_stream (*stream_make_below)(void);
    /* For memory from `allocate`, on the current device. False: it cannot be shared. */
    bool (*share)(void *memory, struct peer_handle *handle);
    /* Another rank's memory, for the current device; NULL: it cannot be reached, and *why, static, says why. */
    void *(*open)(const struct peer_handle *handle, const char **why);
    void (*close)(const struct peer_handle *handle, void *memory);
    /* Between the memory of GPUs, of this rank or another. */
    bool (*move)(void *dst, const void *src, size_t size, coll_stream stream);
    bool (*claim)(const struct peer_claim *claim, coll_stream stream);
    bool (*post)(const struct peer_post *post, coll_stream stream);
    bool (*turn)(const struct peer_receive_step *turn, coll_stream stream);
};

#endif
