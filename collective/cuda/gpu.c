#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "collective/cuda/kernels.h"
#include "collective/cuda/ranges.h"
#include "collective/cuda/reduce.h"
#include "collective/engine.h"

/* collective/engine/gpu.h on the CUDA runtime. */

static bool good(cudaError_t error)
{
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error == cudaSuccess;
}

/* While a stream is captured, its thread, or all threads, may not allocate unless they declare this relaxed mode. */
struct relaxed {
    enum cudaStreamCaptureMode before;
};

static struct relaxed relax(void)
{
    struct relaxed relaxed = {cudaStreamCaptureModeRelaxed};
    (void)cudaThreadExchangeStreamCaptureMode(&relaxed.before);
    return relaxed;
}

static void unrelax(struct relaxed relaxed)
{
    (void)cudaThreadExchangeStreamCaptureMode(&relaxed.before);
}

static const struct strait_codec *codec(void)
{
    return strait_codec_get("cuda");
}

static unsigned multiprocessors(void)
{
    int device, count = 0;
    return good(cudaGetDevice(&device)) && good(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device))
               ? (unsigned)count
               : 0;
}

static bool prepare(void)
{
    return good(control_prepare()) && good(exchange_prepare()) && good(coll_reduce_prepare());
}

/* Kernels that wait for those of other ranks are launched before kernels that the other ranks wait for in turn. */
static const char *trouble(void)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    return blocking != NULL && atoi(blocking) != 0 ? "CUDA_LAUNCH_BLOCKING lets each kernel end before the next" : NULL;
}

/* FNV-1a. */
static uint64_t host(void)
{
    const char *host_id = getenv("NCCL_HOSTID");
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (host_id == NULL || *host_id == '\0')
        return 0;
    for (; *host_id != '\0'; host_id++)
        hash = (hash ^ (uint8_t)*host_id) * UINT64_C(0x100000001b3);
    return hash;
}

/* While any thread captures in the mode that is the default, others may neither free memory nor ask whether an event is
 * over, unless they declare the relaxed mode: it would end the capture, and be refused. So a communicator could not be
 * joined or destroyed meanwhile. */
static _Thread_local struct {
    unsigned depth;
    struct relaxed mode;
} entered;

static bool enter(int device, int *before)
{
    if (!good(cudaGetDevice(before)) || (*before != device && !good(cudaSetDevice(device))))
        return false;
    if (entered.depth++ == 0)
        entered.mode = relax();
    return true;
}

static void leave(int before)
{
    if (--entered.depth == 0)
        unrelax(entered.mode);
    (void)cudaSetDevice(before);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static bool clear(void *memory, size_t size)
{
    cudaStream_t stream;
    if (!good(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)))
        return false;
    bool cleared = good(cudaMemsetAsync(memory, 0, size, stream)) && good(cudaStreamSynchronize(stream));
    (void)cudaStreamDestroy(stream);
    return cleared;
}

static void *allocate(size_t size, bool zero)
{
    const struct relaxed relaxed = relax();
    void *memory = NULL;
    if (!good(cudaMalloc(&memory, size)))
        memory = NULL;
    if (memory != NULL && zero && !clear(memory, size)) {
        (void)cudaFree(memory);
        memory = NULL;
    }
    unrelax(relaxed);
    return memory;
}

static void release(void *memory)
{
    (void)good(cudaFree(memory));
}

static void *allocate_pinned(size_t size)
{
    const struct relaxed relaxed = relax();
    void *memory = NULL;
    if (!good(cudaHostAlloc(&memory, size, cudaHostAllocMapped | cudaHostAllocPortable)))
        memory = NULL;
    unrelax(relaxed);
    for (size_t i = 0; memory != NULL && i < size; i++)
        ((uint8_t *)memory)[i] = 0;
    return memory;
}

static void release_pinned(void *memory)
{
    (void)good(cudaFreeHost(memory));
}

static void *register_host(void *memory, size_t size)
{
    void *reached = NULL;
    if (!good(cudaHostRegister(memory, size, cudaHostRegisterMapped | cudaHostRegisterPortable)))
        return NULL;
    if (good(cudaHostGetDevicePointer(&reached, memory, 0)))
        return reached;
    (void)good(cudaHostUnregister(memory));
    return NULL;
}

static void unregister_host(void *memory)
{
    (void)good(cudaHostUnregister(memory));
}

/* ---- Order ------------------------------------------------------------------------------------------------------- */

static coll_stream stream_make(void)
{
    const struct relaxed relaxed = relax();
    int least, most;
    cudaStream_t stream = NULL;
    const bool made = good(cudaDeviceGetStreamPriorityRange(&least, &most)) &&
                      good(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most));
    unrelax(relaxed);
    return made ? stream : NULL;
}

static void stream_end(coll_stream stream)
{
    (void)good(cudaStreamDestroy(stream));
}

static bool stream_wait(coll_stream stream)
{
    return good(cudaStreamSynchronize(stream));
}

static uint64_t stream_capture(coll_stream stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
#if CUDART_VERSION >= 13000
    cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL);
#else
    cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &id);
#endif
    return good(error) && status == cudaStreamCaptureStatusActive ? id + 1 : 0;
}

static gpu_event event_make(bool timed)
{
    const struct relaxed relaxed = relax();
    cudaEvent_t event = NULL;
    bool made = good(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
    unrelax(relaxed);
    return made ? event : NULL;
}

static void event_end(gpu_event event)
{
    (void)good(cudaEventDestroy(event));
}

static bool event_record(gpu_event event, coll_stream stream)
{
    return good(cudaEventRecord(event, stream));
}

static bool event_follow(coll_stream stream, gpu_event event)
{
    return good(cudaStreamWaitEvent(stream, event, 0));
}

static bool event_record_outside(gpu_event event, coll_stream stream)
{
    return good(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
}

static bool event_follow_outside(coll_stream stream, gpu_event event)
{
    return good(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal));
}

static bool event_over(gpu_event event)
{
    cudaError_t error = cudaEventQuery(event);
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error != cudaErrorNotReady;
}

static double event_seconds(gpu_event from, gpu_event to)
{
    float milliseconds;
    return good(cudaEventElapsedTime(&milliseconds, from, to)) ? (double)milliseconds / 1e3 : -1;
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static bool zero(void *memory, size_t size, coll_stream stream)
{
    return good(cudaMemsetAsync(memory, 0, size, stream));
}

static bool copy(void *dst, const void *src, size_t size, coll_stream stream)
{
    return good(cudaMemcpyAsync(dst, src, size, cudaMemcpyDefault, stream));
}

static bool copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t size, size_t rows,
                      coll_stream stream)
{
    enum { PITCH_MAX = INT32_MAX }; /* of all GPUs so far; a message of 2 GiB is longer */
    if (dst_stride <= PITCH_MAX && src_stride <= PITCH_MAX)
        return good(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, size, rows, cudaMemcpyDefault, stream));
    bool copied = true;
    for (size_t row = 0; row < rows && copied; row++)
        copied = copy((uint8_t *)dst + row * dst_stride, (const uint8_t *)src + row * src_stride, size, stream);
    return copied;
}

static bool write_headers(const struct gpu_write_headers *what, coll_stream stream)
{
    return good(control_write_headers(what, stream));
}

static bool check(const struct gpu_check *what, coll_stream stream)
{
    return good(control_check(what, stream));
}

static bool exchange(const struct gpu_exchange *what, coll_stream stream)
{
    return good(exchange_launch(what, stream));
}

static bool has_shm(void)
{
    return true;
}

static bool shm(const struct gpu_shm *what, coll_stream stream)
{
    return good(shm_launch(what, stream));
}

static bool verify(const struct gpu_verify *what, coll_stream stream)
{
    return good(control_verify(what, stream));
}

static bool reduce(const struct coll_reduce *what, unsigned sm_budget, coll_stream stream)
{
    return good(coll_reduce_launch(what, sm_budget, stream));
}

static const struct gpu_ops *cuda_gpu(void)
{
    static const struct gpu_ops ops = {.trouble = trouble,
                                       .host = host,
                                       .codec = codec,
                                       .multiprocessors = multiprocessors,
                                       .prepare = prepare,
                                       .enter = enter,
                                       .leave = leave,
                                       .allocate = allocate,
                                       .release = release,
                                       .allocate_pinned = allocate_pinned,
                                       .release_pinned = release_pinned,
                                       .register_host = register_host,
                                       .unregister_host = unregister_host,
                                       .stream_make = stream_make,
                                       .stream_end = stream_end,
                                       .stream_wait = stream_wait,
                                       .stream_capture = stream_capture,
                                       .event_make = event_make,
                                       .event_end = event_end,
                                       .event_record = event_record,
                                       .event_follow = event_follow,
                                       .event_record_outside = event_record_outside,
                                       .event_follow_outside = event_follow_outside,
                                       .event_over = event_over,
                                       .event_seconds = event_seconds,
                                       .zero = zero,
                                       .copy = copy,
                                       .copy_rows = copy_rows,
                                       .write_headers = write_headers,
                                       .check = check,
                                       .exchange = exchange,
                                       .has_shm = has_shm,
                                       .shm = shm,
                                       .verify = verify,
                                       .reduce = reduce};
    return &ops;
}

/* Entry point that libstrait-coll looks up in its plugin. */

__attribute__((visibility("default"))) coll_engine_get strait_coll_engine;
const struct coll_engine_ops *strait_coll_engine(char *why, size_t why_size)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0)
        return ranges_around(engine_ops(cuda_gpu()));
    snprintf(why, why_size, "no GPU can be used: %s",
             error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
    return NULL;
}
