/* Launches of the phases that kernels.h describes: what they do is said there. Each enqueues on the stream and returns;
 * `multiprocessors` are the device's. A launch has at most a block for each multiprocessor of the group's budget. */
#ifndef STRAIT_EP_CUDA_PHASES_H
#define STRAIT_EP_CUDA_PHASES_H

#include <cuda_runtime_api.h>

#include "ep/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t ep_cuda_route(const struct ep_route_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_announce(const struct ep_announce_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_send(const struct ep_send_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_plan(const struct ep_plan_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_receive(const struct ep_receive_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_stage(const struct ep_stage_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_send_back(const struct ep_send_back_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_reduce(const struct ep_reduce_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_settle(const struct ep_settle_args *args, uint32_t multiprocessors, cudaStream_t stream);
/* Begins the call of a combine by parts, whose stage does not. */
cudaError_t ep_cuda_begin(const struct ep_settle_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_quantize(const struct ep_quantize_args *args, uint32_t multiprocessors, cudaStream_t stream);

/* ---- Coded groups: besides the phases above, between which coder.c launches the codec -----------------------------
 */

/* Which rows the chunks of a phase have. Before encoding: */
enum ep_list {
    EP_LIST_SEND,      /* tokens, by the lists of update */
    EP_LIST_STAGE,     /* HT combine: rows that came, at their slots */
    EP_LIST_SEND_BACK, /* LL combine: rows that came, by experts those of each */
    /* Before decoding, after the wait of the phase, and with the chunks (LL), or their metadata (HT), copied: */
    EP_LIST_RECEIVE,
    EP_LIST_REDUCE,
};

/* Makes coding.rows and coding.counts of the chunks `first` to `end` of each list. HT, before decoding: of one, for
 * which it waits. A group that has failed has empty lists. */
struct ep_list_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    enum ep_list kind;
    uint32_t first, end;
    uint32_t row_count; /* HT, RECEIVE: of the outputs. More rows than that: none are listed */
    bool by_expert;     /* LL EXPERT_MAJOR, SEND_BACK and REDUCE: a record has a row for each expert */
};

/* After encoding the chunks `part` of all lists: LL copies chunks to their ranks; HT tells the progress. With the last
 * part: signals; READY with the announcement of the own room. */
struct ep_hand_over_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    enum ep_flag signal;
    uint32_t part;
};

cudaError_t ep_cuda_list(const struct ep_list_args *args, uint32_t multiprocessors, cudaStream_t stream);
cudaError_t ep_cuda_hand_over(const struct ep_hand_over_args *args, uint32_t multiprocessors, cudaStream_t stream);

/* ---- Groups of several hosts ------------------------------------------------------------------------------------- */

/* What a signal is about. */
enum ep_about {
    EP_ABOUT_NOTHING,
    EP_ABOUT_SENT,   /* what send has stored */
    EP_ABOUT_STAGED, /* what stage has stored in the own arena */
    EP_ABOUT_BACK,   /* what send_back has stored */
};

/* After the launch that signals `kind`, on the same stream: manifests for the ranks of other hosts, and signals. No
 * wait. A group that has failed says nothing. */
struct ep_manifest_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    enum ep_flag kind; /* PROGRESS: of the one part */
    enum ep_about about;
    struct ep_announce announce; /* STAGED, raw: where the own rows are */
    uint32_t row_bytes, scale_bytes;
    bool lists, weights, scales, rows; /* whether SENT or STAGED has them */
    bool announced;                    /* an announcement was stored */
};

cudaError_t ep_cuda_manifest(const struct ep_manifest_args *args, uint32_t multiprocessors, cudaStream_t stream);

/* Of ep_handle_view.scratch. */
uint64_t ep_cuda_scratch_bytes(const struct ep_group_view *group);

/* Loads the kernels. A kernel that is loaded by its first launch waits for all that runs on the device, which may be
 * waiting for that launch. */
cudaError_t ep_cuda_load_lists(void);
cudaError_t ep_cuda_load_move(void);
cudaError_t ep_cuda_load_combine(void);
cudaError_t ep_cuda_load_code(void);
cudaError_t ep_cuda_load_quantize(void);
cudaError_t ep_cuda_load_manifest(void);

#ifdef __cplusplus
}
#endif
#endif
