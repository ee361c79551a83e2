/*
 * strait/ep.h - expert parallelism: tokens to the ranks of their experts, and what the experts made of them back
 *
 * A group is a set of ranks, each with the same number of experts: expert e lives on rank e / (experts / rank_count).
 * A step of a layer of experts:
 *
 *     strait_ep_update(handle, &routing, stream);                  which token goes to which experts
 *     strait_ep_dispatch(handle, &in, &out, 0, stream);            rows of tokens to the ranks of their experts
 *     ... the experts compute, in place or into another tensor of the same layout ...
 *     strait_ep_combine(handle, &in, &out, 0, stream);             the rows back, summed for each token
 *
 * A token goes to a rank once, however many of its experts live there. Rows keep an order that does not depend on
 * timing: by source rank, then by token. So results are the same bits each time, on processors and on GPUs.
 *
 * Algorithms: LOW_LATENCY (LL) for few tokens: rows go to slots of their own, no rank waits for another before it
 * sends, and a call can be split in two. HIGH_THROUGHPUT (HT) for many: ranks learn in update what they will receive;
 * rows go straight into the receiver's tensor if that lies in memory of strait_ep_alloc.
 *
 * Layouts of what a rank receives, B = tokens_max, R = rank_count, L = experts / R, H = bytes of a row:
 *
 *   FLAT (HT)          [slots][H]      the rows in order, without gaps
 *   RANK_MAJOR (LL)    [R][B][H]       the rows of source rank s at [s][0..)
 *   EXPERT_MAJOR (LL)  [L][R * B][H]   the rows of local expert e at [e][0..); a token is there once for each of its
 *                                      experts
 *   EXPERT_MAJOR (HT)  [slots][H]      zones of the local experts one after another, each from a multiple of
 *                                      expert_alignment rows on; rows between zones are left alone
 *
 * Order of combine: the row of a rank is what the caller gives at the token's slot; with EXPERT_MAJOR (HT) it is the
 * sum of its experts' rows in the order of topk, in FP32, rounded once to the row's type. The token's row is the sum of
 * its ranks' rows in the order of ranks, in FP32, rounded once. With EXPERT_MAJOR (LL) it is the sum of all its
 * experts' rows, each times its weight, in the order of ranks and within a rank of topk, rounded once. A sum begins
 * with its first term, products and sums are rounded each by itself, to nearest even, and subnormal values are kept. A
 * result that is NaN is 0x7FFF, in FP32 0x7FFFFFFF. A token that goes nowhere gets zeroes.
 *
 * Order of calls: all ranks make the same calls on a group in the same order, and on one stream, or on streams that the
 * caller orders. All but group and handle creation, and the calls that say so, only enqueue work on GPUs and can be
 * captured in graphs; in host memory a call returns when it is done. Shapes and types are the same on all ranks but for
 * the number of tokens.
 *
 * Memory: tensors belong to the caller and must stay until the work is done. On GPUs they are device memory of the
 * group's device.
 *
 * Tensors of peers: memory that all ranks reach without this library (windows of NCCL, symmetric memory of PyTorch, an
 * arena of shared memory) can be what rows of HT FLAT go straight into and are read from, as memory of strait_ep_alloc
 * is. peers[s] is then where the tensor of rank s lies as this rank reaches it, a multiple of 16, [rank_count] of them,
 * read while the call is made; peers[rank] is the tensor itself. Either all ranks give them in a call, or none: those
 * that give none end with ERR_CORRUPT and the number of one that does. Each rank is believed when it says how many rows
 * its tensor has. ERR_INVALID: an address is NULL or odd, or the layout another. Where rows are compressed they are not
 * used.
 *
 * Hosts: ranks may be on several. Those of other hosts are reached by TCP, on the interface that NCCL would take; each
 * group has a thread for that. Tensors of peers are not used then, and those of other hosts may be NULL.
 *
 * Threads: calls on one group, its handles included, must not run at once, strait_ep_async_error excepted.
 *
 * Failures of other ranks: whoever waits for a rank longer than timeout_ns gives up; strait_ep_async_error then names
 * the rank. Without `mask` the group is of no more use: later calls return ERR_TIMEOUT, in host memory this one too,
 * work under way ends, and outputs are undefined. With it (LL), that rank is left out from then on: nothing is sent to
 * it or awaited from it, and combine sums the others.
 */
#ifndef STRAIT_EP_H
#define STRAIT_EP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/codec.h> /* enum strait_element, struct CUstream_st */
#include <strait/export.h>
#include <strait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STRAIT_EP_RANKS_MAX    64u
#define STRAIT_EP_TOPK_MAX     32u
#define STRAIT_EP_EXPERTS_MAX  4096u
#define STRAIT_EP_SCALE_VALUES 128u /* of a row that strait_ep_quantize gives a scale */

struct strait_ep_group;
struct strait_ep_handle;

enum strait_ep_algorithm { STRAIT_EP_LOW_LATENCY = 0, STRAIT_EP_HIGH_THROUGHPUT = 1 };

enum strait_ep_layout { STRAIT_EP_EXPERT_MAJOR = 1, STRAIT_EP_RANK_MAJOR = 2, STRAIT_EP_FLAT = 3 };

enum strait_ep_memory {
    STRAIT_EP_HOST = 0, /* ranks are processes or threads; calls compute on the calling thread */
    STRAIT_EP_CUDA = 1, /* of the device that is current when the group is made */
};

/* Whether rows are compressed on their way. AUTO: where it was measured to be faster, which is between GPUs of one host
 * that do not reach each other's memory, in groups of at least 16 MiB a call (tokens_max * row_bytes_max): HT FLAT with
 * BF16 rows, and with at least 32 multiprocessors also with FP8 E4M3 rows. Such a group has memory for rows of both
 * kinds (docs/expert-parallel.md). */
enum strait_ep_coding { STRAIT_EP_AUTO = 0, STRAIT_EP_RAW = 1, STRAIT_EP_CODED = 2 };

/* What happens to tokens beyond receive_max (HT). TRAP: an error that strait_ep_async_error tells, the group is of no
 * more use. DROP: the last of them, in their order, are left out, as if their tokens were not routed there. */
enum strait_ep_overflow { STRAIT_EP_TRAP = 0, STRAIT_EP_DROP = 1 };

/* Gathers `bytes` of each rank, at most 4096, in the order of ranks, on all of them. 0: done. Called while a group is
 * made, by the thread that makes it. */
typedef int (*strait_ep_all_gather)(void *context, const void *send, void *receive, size_t bytes);

/* Equal on all ranks but for rank, all_gather and context. Unused fields are zero. */
struct strait_ep_config {
    size_t size; /* sizeof(struct strait_ep_config) */
    strait_ep_all_gather all_gather;
    void *context;
    uint32_t rank, rank_count; /* at most STRAIT_EP_RANKS_MAX */
    enum strait_ep_algorithm algorithm;
    enum strait_ep_memory memory;
    uint32_t experts;         /* of all ranks; a multiple of rank_count, at most STRAIT_EP_EXPERTS_MAX */
    uint32_t tokens_max;      /* that a rank dispatches in one call */
    uint32_t receive_max;     /* HT: tokens that a rank has room for, rows of FLAT; 0: for all that can come */
    uint32_t row_bytes_max;   /* of a token's row; a multiple of 16, at most 64 KiB */
    uint32_t scale_bytes_max; /* of a token's scales, a multiple of 4; 0: there are none */
    uint32_t topk_max;        /* at most STRAIT_EP_TOPK_MAX */
    uint32_t sm_budget;       /* multiprocessors for each kernel; 0: 16 */
    enum strait_ep_overflow overflow;
    enum strait_ep_coding coding;
    bool mask;           /* LL: ranks that time out are left out */
    uint64_t timeout_ns; /* 0: 10 s */
    uint64_t heap_bytes; /* of memory for strait_ep_alloc; 0: none */
};

/* Makes a group; all ranks call it. ERR_INVALID (a limit, or configurations that differ: text says which field),
 * ERR_UNSUPPORTED (memory CUDA without the plugin), ERR_NO_MEMORY, ERR_DEVICE, ERR_IO (all_gather failed, or a host
 * refuses the connection), ERR_TIMEOUT (a host is not reached within 10 s). All ranks fail if one does. On success the
 * caller owns *group. */
STRAIT_API enum strait_status strait_ep_group_create(const struct strait_ep_config *config,
                                                     struct strait_ep_group **group, char *text, size_t text_size);
/* Frees a group whose handles are gone, after its work is done; NULL is allowed. Other ranks may go first. With ranks
 * of other hosts it waits up to 10 s until they have what this rank has sent: one that ends without this call may take
 * along what they wait for. */
STRAIT_API void strait_ep_group_destroy(struct strait_ep_group *group);

/* Memory of the group's heap, which peers write to and read from without a copy in between; 256-byte aligned. NULL: no
 * room. Local: ranks need not ask for the same. Freed with the group, or by strait_ep_free, after its work is done. */
STRAIT_API void *strait_ep_alloc(struct strait_ep_group *group, size_t bytes);
STRAIT_API void strait_ep_free(struct strait_ep_group *group, void *memory);

struct strait_ep_handle_config {
    size_t size; /* sizeof(struct strait_ep_handle_config) */
    enum strait_ep_layout layout;
    uint32_t topk;             /* experts of a token, 1 to topk_max */
    uint32_t expert_alignment; /* HT EXPERT_MAJOR: rows; 0: 1 */
};

/* Makes a handle: the routing of one step, kept for its dispatches and combines, forward and backward. Local; not while
 * a stream is captured. ERR_INVALID, ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_ep_handle_create(struct strait_ep_group *group,
                                                      const struct strait_ep_handle_config *config,
                                                      struct strait_ep_handle **handle);
STRAIT_API void strait_ep_handle_destroy(struct strait_ep_handle *handle);

/* Outputs that are NULL are not wanted. */
struct strait_ep_routing {
    size_t size; /* sizeof(struct strait_ep_routing) */
    /* [tokens][topk] numbers of experts, int32 or int64; -1, any that is not an expert, and one that the token has
     * already: none. */
    const void *topk;
    uint32_t tokens;     /* at most tokens_max; may be 0 */
    uint32_t topk_bytes; /* of a number: 4 or 8 */
    /* HT only: what this rank will receive. */
    int32_t *expert_counts;  /* [L] rows of each local expert, without alignment */
    int32_t *expert_offsets; /* [L] EXPERT_MAJOR: the first row of each zone */
    int32_t *rank_counts;    /* [R] rows from each rank */
    int32_t *total;          /* [1] rows: FLAT, of all ranks; EXPERT_MAJOR, to the end of the last zone, aligned */
};

/* Takes the routing of a step. HT: ranks exchange it. */
STRAIT_API enum strait_status strait_ep_update(struct strait_ep_handle *handle, const struct strait_ep_routing *routing,
                                               struct CUstream_st *stream);

/* A tensor of rows, as the layouts say. */
struct strait_ep_tensor {
    void *data;               /* a multiple of 16 */
    uint32_t row_bytes;       /* a multiple of 16 for tokens, of 4 for scales */
    enum strait_element type; /* of the values; BYTES: any, which cannot be combined */
};

/* Rows to quantize, each a multiple of 128 values. */
struct strait_ep_quantization {
    size_t size;                       /* sizeof(struct strait_ep_quantization) */
    struct strait_ep_tensor rows;      /* [count] of BF16 */
    struct strait_ep_tensor quantized; /* [count] of FP8_E4M3, for dispatch_in.tokens; not where the rows are */
    float *scales;                     /* [count][values / 128], for dispatch_in.scales */
    uint32_t count;                    /* any; of 0 rows tensors may be NULL */
    bool powers_of_two;                /* scales are */
};

/* Quantizes rows for a dispatch of FP8: each 128 values have a scale, with which E4M3 values are to be multiplied. It
 * is their largest magnitude / 448, of magnitudes below 1e-4 as if it were that; with powers_of_two the next one that
 * is not below. Values are rounded to nearest even. NaN is 0x7F, and does not count for the scale; an infinite value
 * makes the scale infinite, is itself NaN, and the others are 0. Local: no other rank has to call it. ERR_INVALID
 * (types, sizes, alignment: rows and quantized multiples of 16 bytes, scales of 4), ERR_DEVICE. */
STRAIT_API enum strait_status strait_ep_quantize(struct strait_ep_group *group,
                                                 const struct strait_ep_quantization *quantization,
                                                 struct CUstream_st *stream);

struct strait_ep_dispatch_in {
    size_t size;                    /* sizeof(struct strait_ep_dispatch_in) */
    struct strait_ep_tensor tokens; /* [tokens] rows */
    const float *weights;           /* [tokens][topk] or NULL */
    struct strait_ep_tensor scales; /* [tokens] rows, or data NULL */
};

/* Outputs that are NULL are not wanted. They do not overlap with inputs, those of a combine neither. Rows of other
 * tensors have the places of the tokens' rows. */
struct strait_ep_dispatch_out {
    size_t size;                    /* sizeof(struct strait_ep_dispatch_out) */
    struct strait_ep_tensor tokens; /* required; of the input's type and row_bytes */
    float *weights; /* FLAT, RANK_MAJOR: [..][topk], 0 where the expert is another rank's; EXPERT_MAJOR: [..] */
    struct strait_ep_tensor scales; /* as the input's */
    void *topk;             /* FLAT, RANK_MAJOR: [..][topk] local numbers of experts, -1 where it is another rank's;
                             * int32, with WIDE_IDS int64 */
    int32_t *expert_counts; /* LL EXPERT_MAJOR: [L] */
    int32_t *rank_counts;   /* LL: [R] */
    uint32_t rows;      /* HT: rows that the tensors have; fewer than `total` is an error, with DROP too. LL: ignored */
    void *const *peers; /* HT FLAT: see "Tensors of peers", or NULL */
};

enum strait_ep_flags {
    /* LL: strait_ep_complete receives. A call begins while such a one is open only if that is of another handle and the
     * group's last; else ERR_INVALID. So at most two are open. */
    STRAIT_EP_SEND_ONLY = 1,
    STRAIT_EP_GLOBAL_IDS = 2, /* numbers of experts in `topk` are global */
    STRAIT_EP_WIDE_IDS = 4,   /* numbers of experts in `topk` are int64, at a multiple of 8 */
};

/* Sends rows to the ranks of their experts. May be called again after one update: the backward pass of combine. */
STRAIT_API enum strait_status strait_ep_dispatch(struct strait_ep_handle *handle,
                                                 const struct strait_ep_dispatch_in *in,
                                                 const struct strait_ep_dispatch_out *out, uint32_t flags,
                                                 struct CUstream_st *stream);

struct strait_ep_combine_in {
    size_t size;                    /* sizeof(struct strait_ep_combine_in) */
    struct strait_ep_tensor tokens; /* in the layout of the dispatch; BF16, FP16 or FP32 */
    const float *weights; /* HT, or NULL: gradients of the weights in the layout of dispatch_out.weights, sent back */
    void *const *peers;   /* HT FLAT: see "Tensors of peers", or NULL */
    uint32_t rows;        /* with peers: rows that the tensor has */
};

struct strait_ep_combine_out {
    size_t size;                    /* sizeof(struct strait_ep_combine_out) */
    struct strait_ep_tensor tokens; /* [tokens] rows of the input's type */
    float *weights; /* [tokens][topk]: gradients (HT, with in.weights), else NULL. LL EXPERT_MAJOR reads it: the
                     * weights that experts' rows are multiplied with; NULL: those of the dispatch, 1 without */
};

/* Sends rows back and sums them, see "Order of combine". May be called several times after one dispatch: the backward
 * pass of dispatch. */
STRAIT_API enum strait_status strait_ep_combine(struct strait_ep_handle *handle, const struct strait_ep_combine_in *in,
                                                const struct strait_ep_combine_out *out, uint32_t flags,
                                                struct CUstream_st *stream);

/* Receives what the handle's last call with SEND_ONLY began. */
STRAIT_API enum strait_status strait_ep_complete(struct strait_ep_handle *handle, struct CUstream_st *stream);

/* What has failed: OK, ERR_TIMEOUT (*rank: the first that was waited for in vain), ERR_NO_SPACE (rows beyond
 * receive_max with TRAP, or beyond dispatch_out.rows), ERR_CORRUPT and ERR_INTEGRITY (a compressed row), ERR_DEVICE.
 * Any thread may ask at any time; nothing waits. rank may be NULL. */
STRAIT_API enum strait_status strait_ep_async_error(struct strait_ep_group *group, uint32_t *rank);
/* Forgets timeouts of a group with `mask`: strait_ep_async_error is OK until the next. The mask stays. */
STRAIT_API void strait_ep_error_clear(struct strait_ep_group *group);

/* Which ranks take part, [rank_count] of 1 or 0, of a group with `mask`. Both wait for the stream. */
STRAIT_API enum strait_status strait_ep_mask_get(struct strait_ep_group *group, int32_t *ranks,
                                                 struct CUstream_st *stream);
STRAIT_API enum strait_status strait_ep_mask_set(struct strait_ep_group *group, const int32_t *ranks,
                                                 struct CUstream_st *stream);

struct strait_ep_info {
    size_t size;        /* sizeof(struct strait_ep_info) */
    const char *medium; /* what rows cross: "shared memory", "peer access", "host memory"; between hosts "shared memory
                         * and TCP", "host memory and TCP" */
    bool coded;         /* whether they are compressed; AUTO: whether calls may be */
    uint64_t arena_bytes; /* of this rank's memory that peers reach, the heap included */
    uint64_t sent_bytes;  /* of rows to other ranks so far, as they cross; host memory groups, else 0 */
    uint64_t raw_bytes;   /* of the same rows before */
    uint64_t coded_calls; /* dispatches and combines so far whose rows are compressed; each replay of a graph is none */
};
STRAIT_API void strait_ep_info(const struct strait_ep_group *group, struct strait_ep_info *info);

#ifdef __cplusplus
}
#endif
#endif
