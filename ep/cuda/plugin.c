/* The plugin: what libstrait-ep opens for memory of GPUs. */
#include <stdio.h>
#include <stdlib.h>

#include "ep/cuda/backend.h"
#include "ep/cuda/phases.h"

__attribute__((visibility("default"))) ep_plugin_get strait_ep_plugin;

static enum strait_status tell(const struct ep_open_args *args, enum strait_status status, const char *what,
                               const char *why)
{
    if (args->text_size > 0)
        snprintf(args->text, args->text_size, "%s: %s", what, why);
    return status;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* Kernels are loaded here, see phases.h. */
static cudaError_t prepare(struct ep_cuda *cuda)
{
    int count = 0;
    cudaError_t error = cudaGetDevice(&cuda->device);

    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, cuda->device);
    cuda->multiprocessors = (uint32_t)count;
    if (error == cudaSuccess)
        error = ep_cuda_load_lists();
    if (error == cudaSuccess)
        error = ep_cuda_load_move();
    if (error == cudaSuccess)
        error = ep_cuda_load_combine();
    if (error == cudaSuccess)
        error = ep_cuda_load_code();
    if (error == cudaSuccess)
        error = ep_cuda_load_quantize();
    if (error == cudaSuccess)
        error = ep_cuda_load_manifest();
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    return error;
}

static void cuda_close(void *context)
{
    struct ep_cuda *cuda = context;
    struct ep_cuda_entered entered;

    if (ep_cuda_enter(cuda, &entered)) {
        (void)ep_cuda_good(cudaDeviceSynchronize());
        ep_cuda_coder_close(cuda);
        ep_cuda_free(cuda, cuda->own);
        (void)ep_cuda_good(cudaStreamDestroy(cuda->stream));
        ep_cuda_leave(&entered);
    }
    ep_cuda_side_close(cuda); /* also where the device is lost: others look at what has a side stream */
    free(cuda);
}

/* What rows need besides the arenas. */
static enum strait_status open_rows(struct ep_cuda *cuda, const struct ep_open_args *args)
{
    cuda->far = args->far;
    cuda->rank = args->config->rank;
    if (!args->far && !args->coded)
        return STRAIT_OK;
    cuda->own = args->coding->own = ep_cuda_alloc(cuda, args->at.row_buffers * args->at.rows_stride);
    if (cuda->own == NULL)
        return STRAIT_ERR_NO_MEMORY;
    const enum strait_status status = args->at.parts > 0 ? ep_cuda_side_open(cuda) : STRAIT_OK;
    return status == STRAIT_OK && args->coded ? ep_cuda_coder_open(cuda, args) : status;
}

static enum strait_status cuda_open(const struct ep_open_args *args, void **context)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");

    if (blocking != NULL && atoi(blocking) != 0) /* kernels wait for those that other ranks launch later */
        return tell(args, STRAIT_ERR_UNSUPPORTED, "CUDA_LAUNCH_BLOCKING", "lets each kernel end before the next");
    struct ep_cuda *cuda = calloc(1, sizeof(*cuda));
    if (cuda == NULL)
        return STRAIT_ERR_NO_MEMORY;
    const cudaError_t error = prepare(cuda);
    if (!ep_cuda_good(error)) {
        free(cuda);
        return tell(args, error == cudaErrorMemoryAllocation ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_DEVICE,
                    "the GPU cannot be used", cudaGetErrorString(error));
    }
    const enum strait_status status = open_rows(cuda, args);
    if (status != STRAIT_OK) {
        cuda_close(cuda);
        return status;
    }
    *context = cuda;
    return STRAIT_OK;
}

static uint64_t cuda_scratch_bytes(const struct ep_group_view *group, enum strait_ep_layout layout, uint32_t topk)
{
    (void)layout;
    (void)topk;
    return ep_cuda_scratch_bytes(group);
}

/* ---- Phases ------------------------------------------------------------------------------------------------------ */

/* A phase on the device of the group. */
#define PHASE_OF(name, launched)                                                              \
    static enum strait_status cuda_##name(void *context, const struct ep_##name##_args *args, \
                                          struct CUstream_st *stream)                         \
    {                                                                                         \
        const struct ep_cuda *cuda = context;                                                 \
        struct ep_cuda_entered entered;                                                       \
        if (!ep_cuda_enter(cuda, &entered))                                                   \
            return STRAIT_ERR_DEVICE;                                                         \
        const bool good = launched;                                                           \
        ep_cuda_leave(&entered);                                                              \
        return good ? STRAIT_OK : STRAIT_ERR_DEVICE;                                          \
    }
#define LAUNCH(name)        ep_cuda_good(ep_cuda_##name(args, cuda->multiprocessors, stream))
#define PHASE(name)         PHASE_OF(name, LAUNCH(name))
#define PHASE_OF_ROWS(name) PHASE_OF(name, ep_cuda_run_##name(cuda, args, stream))

PHASE(route)
PHASE_OF_ROWS(announce)
PHASE_OF_ROWS(send)
PHASE(plan)
PHASE_OF_ROWS(receive)
PHASE_OF_ROWS(stage)
PHASE_OF_ROWS(send_back)
PHASE_OF_ROWS(reduce)
PHASE(settle)
PHASE(quantize)

const struct ep_ops *strait_ep_plugin(void)
{
    static const struct ep_ops ops = {.version = EP_OPS_VERSION,
                                      .open = cuda_open,
                                      .close = cuda_close,
                                      .arena_create = ep_cuda_arena_create,
                                      .arena_map = ep_cuda_arena_map,
                                      .arena_unmap = ep_cuda_arena_unmap,
                                      .arena_destroy = ep_cuda_arena_destroy,
                                      .host_attach = ep_cuda_host_attach,
                                      .host_detach = ep_cuda_host_detach,
                                      .alloc = ep_cuda_alloc,
                                      .free = ep_cuda_free,
                                      .alloc_pinned = ep_cuda_alloc_pinned,
                                      .free_pinned = ep_cuda_free_pinned,
                                      .write = ep_cuda_write,
                                      .read = ep_cuda_read,
                                      .scratch_bytes = cuda_scratch_bytes,
                                      .route = cuda_route,
                                      .announce = cuda_announce,
                                      .send = cuda_send,
                                      .plan = cuda_plan,
                                      .receive = cuda_receive,
                                      .stage = cuda_stage,
                                      .send_back = cuda_send_back,
                                      .reduce = cuda_reduce,
                                      .settle = cuda_settle,
                                      .quantize = cuda_quantize};
    int devices = 0;

    return ep_cuda_good(cudaGetDeviceCount(&devices)) && devices > 0 ? &ops : NULL;
}
