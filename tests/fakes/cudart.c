/* What programs for real GPUs call of the CUDA runtime, by the fake GPUs: so they can be tried before there are any. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fakes/gpu.h"

/* clang-format off */
#define CUDA(name) cudaError_t CUDARTAPI name
/* clang-format on */

CUDA(cudaGetDeviceCount)(int *count)
{
    *count = FAKE_GPUS_SHOWN;
    return cudaSuccess;
}

CUDA(cudaSetDevice)(int device)
{
    fake_device_set(device);
    return cudaSuccess;
}

CUDA(cudaDeviceSynchronize)(void)
{
    fake_device_wait(fake_device());
    return cudaSuccess;
}

CUDA(cudaMalloc)(void **memory, size_t size)
{
    *memory = malloc(size);
    demand(*memory != NULL);
    return cudaSuccess;
}

/* There is no end to it, which nobody is told. */
CUDA(cudaMemGetInfo)(size_t *left, size_t *all)
{
    *left = *all = 0;
    return cudaSuccess;
}

CUDA(cudaGetLastError)(void)
{
    return cudaSuccess;
}

CUDA(cudaFree)(void *memory)
{
    fake_device_wait(fake_device());
    free(memory);
    return cudaSuccess;
}

CUDA(cudaMemcpy)(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(dst, src, size);
    return cudaSuccess;
}

struct copy {
    void *dst;
    const void *src;
    size_t size;
};

static void run_copy(coll_stream stream, void *argument)
{
    const struct copy *copy = argument;
    (void)stream;
    memcpy(copy->dst, copy->src, copy->size);
}

CUDA(cudaMemcpyAsync)(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    const struct copy copy = {dst, src, size};
    (void)kind;
    fake_queue(stream, run_copy, NULL, &copy, sizeof(copy));
    return cudaSuccess;
}

struct host_work {
    cudaHostFn_t run;
    void *argument;
};

static void run_host(coll_stream stream, void *argument)
{
    const struct host_work *work = argument;
    (void)stream;
    work->run(work->argument);
}

CUDA(cudaLaunchHostFunc)(cudaStream_t stream, cudaHostFn_t run, void *argument)
{
    const struct host_work work = {run, argument};
    fake_queue(stream, run_host, NULL, &work, sizeof(work));
    return cudaSuccess;
}

CUDA(cudaEventCreateWithFlags)(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = fake_event_make();
    return cudaSuccess;
}

CUDA(cudaEventRecord)(cudaEvent_t event, cudaStream_t stream)
{
    fake_event_record(event, stream);
    return cudaSuccess;
}

CUDA(cudaStreamWaitEvent)(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    fake_event_follow(stream, event);
    return cudaSuccess;
}

CUDA(cudaEventDestroy)(cudaEvent_t event)
{
    fake_event_end(event);
    return cudaSuccess;
}

CUDA(cudaMemset)(void *dst, int value, size_t size)
{
    memset(dst, value, size);
    return cudaSuccess;
}

CUDA(cudaStreamCreateWithFlags)(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = fake_stream_make();
    return cudaSuccess;
}

CUDA(cudaStreamDestroy)(cudaStream_t stream)
{
    fake_stream_end(stream);
    return cudaSuccess;
}

CUDA(cudaStreamSynchronize)(cudaStream_t stream)
{
    fake_stream_wait(stream);
    return cudaSuccess;
}

CUDA(cudaStreamBeginCapture)(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    fake_capture_begin(stream);
    return cudaSuccess;
}

CUDA(cudaStreamEndCapture)(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = (cudaGraph_t)(void *)fake_capture_end(stream);
    return cudaSuccess;
}

/* Both are one here, which ends with what was made of the graph. */
CUDA(cudaGraphInstantiateWithFlags)(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *made = (cudaGraphExec_t)(void *)graph;
    return cudaSuccess;
}

CUDA(cudaGraphLaunch)(cudaGraphExec_t graph, cudaStream_t stream)
{
    fake_graph_launch((struct fake_graph *)(void *)graph, stream);
    return cudaSuccess;
}

CUDA(cudaGraphExecDestroy)(cudaGraphExec_t graph)
{
    fake_graph_end((struct fake_graph *)(void *)graph);
    return cudaSuccess;
}

CUDA(cudaGraphDestroy)(cudaGraph_t graph)
{
    (void)graph;
    return cudaSuccess;
}

const char *CUDARTAPI cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "an error of the fake GPUs";
}
