/* A group's place on its device, what the table of the plugin has of memory, and coded rows. kernels.h says what each
 * function of the table does. */
#ifndef STRAIT_EP_CUDA_BACKEND_H
#define STRAIT_EP_CUDA_BACKEND_H

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "ep/kernels.h"

struct ep_cuda_coder;

/* What open makes. */
struct ep_cuda {
    int device;
    uint32_t multiprocessors;
    cudaStream_t stream; /* of copies and of clearing memory; no phase runs on it unless the caller names none */
    uint64_t opened;     /* bit r: the arena of rank r is mapped by IPC */
    bool far;            /* arenas are host memory */
    void *own;           /* of ep_coding, or NULL */
    struct ep_cuda_coder *coder; /* of a coded group, else NULL */
    /* The side stream, and events of the fork and of the ends of parts. NULL: there are none. */
    cudaStream_t side;
    cudaEvent_t forked, parts[EP_PARTS_MAX];
    uint32_t rank;             /* of the group */
    struct ep_cuda *next_side; /* of the groups of this process that have one */
};

/* While a thread is on the device of a group: the device it was on, and its mode of capturing. A thread that captures
 * may otherwise neither allocate nor free, nor might any other while it does. */
struct ep_cuda_entered {
    int before;
    bool moved;
    enum cudaStreamCaptureMode mode;
};

/* Clears the runtime's last error, which the caller has seen. */
bool ep_cuda_good(cudaError_t error);
/* False: the device cannot be made current. */
bool ep_cuda_enter(const struct ep_cuda *cuda, struct ep_cuda_entered *entered);
void ep_cuda_leave(const struct ep_cuda_entered *entered);

enum strait_status ep_cuda_arena_create(void *context, uint64_t bytes, uint8_t ticket[EP_TICKET_BYTES], void **base,
                                        const char **medium);
enum strait_status ep_cuda_arena_map(void *context, uint32_t rank, const uint8_t ticket[EP_TICKET_BYTES],
                                     uint64_t bytes, void **base);
void ep_cuda_arena_unmap(void *context, uint32_t rank, void *base);
void ep_cuda_arena_destroy(void *context, void *base);
enum strait_status ep_cuda_host_attach(void *context, void *memory, uint64_t bytes, void **device);
void ep_cuda_host_detach(void *context, void *memory);
void *ep_cuda_alloc(void *context, uint64_t bytes);
void ep_cuda_free(void *context, void *memory);
void *ep_cuda_alloc_pinned(void *context, uint64_t bytes, void **device);
void ep_cuda_free_pinned(void *context, void *memory);
enum strait_status ep_cuda_write(void *context, void *memory, const void *host, uint64_t bytes,
                                 struct CUstream_st *stream);
enum strait_status ep_cuda_read(void *context, void *host, const void *memory, uint64_t bytes,
                                struct CUstream_st *stream);

/* ---- side_stream.c: phases that run beside the stream of their call, by parts. False: CUDA failed -----------------
 */

/* ERR_NO_MEMORY, ERR_DEVICE. */
enum strait_status ep_cuda_side_open(struct ep_cuda *cuda);
void ep_cuda_side_close(struct ep_cuda *cuda);
/* Makes a view that of a phase on the side stream, which has half of the multiprocessors. */
void ep_cuda_side_view(struct ep_group_view *group);
/* The side stream goes on where the stream is. */
bool ep_cuda_side_fork(const struct ep_cuda *cuda, cudaStream_t stream);
/* Records on the side stream that a part has been launched. Without parts nothing. */
bool ep_cuda_record_part(const struct ep_cuda *cuda, uint32_t part);
/* The stream waits until the side stream is done with the part. Without parts nothing. */
bool ep_cuda_wait_part(const struct ep_cuda *cuda, uint32_t part, cudaStream_t stream);
/* Half of a view's multiprocessors, as what runs on the side stream and what runs beside it have. */
static inline uint32_t ep_cuda_half_budget(const struct ep_group_view *group)
{
    return (group->sm_budget + 1) / 2;
}

/* The multiprocessors of what the call's stream launches for a part: half of those of the view `whole`, or all, where
 * nothing is left to the side stream. Ranks that are threads with one GPU stay at half: with all of them the first call
 * of a group was seen to wait in vain for a launch of another rank, in one start of three. */
void ep_cuda_share_budget(const struct ep_cuda *cuda, const struct ep_group_view *whole, uint32_t part,
                          struct ep_group_view *group);

/* ---- coder.c: the phases that move rows, as kernels with launches of the codec between them ---------------------- */

/* Gets the codec, and memory for a group. ERR_UNSUPPORTED: no codec for this GPU, see args->text. ERR_NO_MEMORY. */
enum strait_status ep_cuda_coder_open(struct ep_cuda *cuda, const struct ep_open_args *args);
void ep_cuda_coder_close(struct ep_cuda *cuda);

/* Phases of a coded group: enqueue, on the current device. False: a launch failed. */
bool ep_cuda_coded_send(const struct ep_cuda *cuda, const struct ep_send_args *args, cudaStream_t stream);
bool ep_cuda_coded_receive(const struct ep_cuda *cuda, const struct ep_receive_args *args, cudaStream_t stream);
bool ep_cuda_coded_stage(const struct ep_cuda *cuda, const struct ep_stage_args *args, cudaStream_t stream);
bool ep_cuda_coded_send_back(const struct ep_cuda *cuda, const struct ep_send_back_args *args, cudaStream_t stream);
bool ep_cuda_coded_reduce(const struct ep_cuda *cuda, const struct ep_reduce_args *args, cudaStream_t stream);

/* ---- run.c: the phases that move rows or tell of them, of all groups, on the current device. False: a launch failed
 */

bool ep_cuda_run_announce(const struct ep_cuda *cuda, const struct ep_announce_args *args, cudaStream_t stream);
bool ep_cuda_run_send(const struct ep_cuda *cuda, const struct ep_send_args *args, cudaStream_t stream);
bool ep_cuda_run_receive(const struct ep_cuda *cuda, const struct ep_receive_args *args, cudaStream_t stream);
bool ep_cuda_run_stage(const struct ep_cuda *cuda, const struct ep_stage_args *args, cudaStream_t stream);
bool ep_cuda_run_send_back(const struct ep_cuda *cuda, const struct ep_send_back_args *args, cudaStream_t stream);
bool ep_cuda_run_reduce(const struct ep_cuda *cuda, const struct ep_reduce_args *args, cudaStream_t stream);

#endif
