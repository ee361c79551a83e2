/* rivals/nccl_ep: NCCL EP's interface by whichever library is named, measured and checked. What a rank's tensors lie
 * in, what it sends and expects, and how a step is called. */
#ifndef STRAIT_BENCH_RIVALS_NCCL_EP_H
#define STRAIT_BENCH_RIVALS_NCCL_EP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ep/nccl_ep/abi.h"

/* ---- Options ----------------------------------------------------------------------------------------------------- */

struct nepb_options {
    const char *library, *nccl;
    bool high_throughput, expert_major;
    bool fp8, round_scales;        /* LL: dispatches quantize; the experts return ones */
    bool host;                     /* memory of the host, time by its clock */
    bool threads, stream, windows; /* ranks are threads; no graph; rows are in windows of NCCL's */
    uint64_t ranks, gpus, tokens, hidden, experts, topk, sms;
    uint64_t runs, steps, warm_ms, seconds, seed;
};

static inline int nepb_layout(const struct nepb_options *options)
{
    return options->expert_major ? NEP_EXPERT_MAJOR : options->high_throughput ? NEP_FLAT : NEP_RANK_MAJOR;
}

/* ---- Libraries (nccl_ep.c) --------------------------------------------------------------------------------------- */

/* What is called of the library under test, and of NCCL for windows. */
struct nepb_library {
    __typeof__(&ncclEpGetVersion) GetVersion;
    __typeof__(&ncclEpCreateGroup) CreateGroup;
    __typeof__(&ncclEpGroupDestroy) GroupDestroy;
    __typeof__(&ncclEpInitHandle) InitHandle;
    __typeof__(&ncclEpHandleDestroy) HandleDestroy;
    __typeof__(&ncclEpUpdateHandle) UpdateHandle;
    __typeof__(&ncclEpDispatch) Dispatch;
    __typeof__(&ncclEpCombine) Combine;
    nep_result (*MemAlloc)(void **memory, size_t bytes);
    nep_result (*MemFree)(void *memory);
    nep_result (*CommWindowRegister)(nep_comm comm, void *memory, size_t bytes, nep_window *window, int flags);
    nep_result (*CommWindowDeregister)(nep_comm comm, nep_window window);
};

/* ---- Where a rank's memory is (nccl_ep_place.c) ------------------------------------------------------------------ */

struct nepb_event;
struct nepb_graph;

/* The functions that return bool or a pointer have printed why they failed. */
struct nepb_place {
    bool (*open)(unsigned gpu); /* for the calling thread; 0 devices: fails */
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
    bool (*write)(void *to, const void *from, size_t bytes);
    bool (*read)(void *to, const void *from, size_t bytes);
    bool (*fill)(void *to, size_t bytes); /* with 0xff */
    nep_stream (*stream)(void);
    bool (*finish)(nep_stream stream);
    struct nepb_event *(*event)(void);
    bool (*record)(struct nepb_event *event, nep_stream stream, bool captured);
    bool (*elapsed)(const struct nepb_event *from, const struct nepb_event *to, double *us);
    /* NULL functions: there are no graphs. */
    bool (*capture)(nep_stream stream);
    struct nepb_graph *(*captured)(nep_stream stream);
    bool (*launch)(struct nepb_graph *graph, nep_stream stream);
    bool (*drop)(struct nepb_graph *graph); /* NCCL waits for graphs with its calls before a communicator ends */
};

extern const struct nepb_place nepb_host, nepb_device;

/* ---- Routing, the same on all ranks, and a rank's step (nccl_ep_step.c) ------------------------------------------ */

struct nepb_routing {
    int64_t *topk;      /* [ranks][tokens][topk], distinct */
    float *weights;     /* the same */
    uint64_t most_rows; /* tokens of the rank that receives most, each once */
};

bool nepb_routing_init(struct nepb_routing *routing, const struct nepb_options *options);
void nepb_routing_fini(struct nepb_routing *routing);

struct nepb_tensor {
    struct nep_tensor tensor;
    size_t sizes[3], bytes;
    void *memory; /* NULL: a window's */
};

struct nepb_step {
    const struct nepb_options *options;
    const struct nepb_routing *routing;
    const struct nepb_library *library;
    const struct nepb_place *place;
    unsigned rank;
    nep_comm comm;
    nep_stream stream;
    nep_group group;
    nep_handle handle;
    struct nepb_tensor topk, weights, tokens, rows, row_weights, row_topk, counts, offsets, total, sums;
    struct nepb_tensor scales, made; /* fp8: beside the rows, and what the experts return */
    void *window_memory;
    nep_window window;
};

/* Makes the group, its handle and all tensors: of all ranks together. */
bool nepb_step_open(struct nepb_step *step);
void nepb_step_close(struct nepb_step *step);

/* The three calls. False: refused, with the result and its function on stderr. */
bool nepb_update(struct nepb_step *step);
bool nepb_dispatch(struct nepb_step *step);
bool nepb_combine(struct nepb_step *step);

/* Overwrites the outputs of a step. */
bool nepb_wipe(struct nepb_step *step);
/* How many rows that arrived, and sums, are not what they should be; what is missing counts, too. */
bool nepb_check(const struct nepb_step *step, uint64_t *wrong_rows, uint64_t *wrong_sums);

#endif
