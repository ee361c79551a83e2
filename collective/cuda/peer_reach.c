/* Access to other ranks' memory: by CUDA IPC, or directly within a process. */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "collective/cuda/peer.h"

static bool good(cudaError_t error)
{
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error == cudaSuccess;
}

/* FNV-1a of the host's boot id; 0: not known. */
static uint64_t host_id(void)
{
    char text[64];
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t size = file >= 0 ? read(file, text, sizeof(text)) : 0;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (file >= 0)
        (void)close(file);
    for (ssize_t i = 0; i < size; i++)
        hash = (hash ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
    return size > 0 ? hash : 0;
}

/* Process numbers are not enough: containers have their own. */
static uint64_t process_id(void)
{
    static uint64_t drawn;
    uint64_t none = 0, mine = 0;
    if (getrandom(&mine, sizeof(mine), 0) == sizeof(mine))
        (void)__atomic_compare_exchange_n(&drawn, &none, mine | 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&drawn, __ATOMIC_ACQUIRE) ^ (uint64_t)getpid() << 32; /* a forked child is another one */
}

static bool prepare(void)
{
    return good(peer_kernels_prepare());
}

static bool share(void *memory, struct peer_handle *handle)
{
    cudaIpcMemHandle_t told;
    int device;
    _Static_assert(sizeof(told) == PEER_HANDLE_BYTES, "a handle of CUDA");
    *handle = (struct peer_handle){.host = host_id(), .process = process_id(), .address = (uint64_t)(uintptr_t)memory};
    if (handle->host == 0 || !good(cudaGetDevice(&device)) || !good(cudaIpcGetMemHandle(&told, memory)))
        return false;
    handle->device = device;
    memcpy(handle->bytes, &told, sizeof(told));
    return true;
}

static bool is_here(const struct peer_handle *handle)
{
    return handle->process == process_id();
}

/* Refused between ranks of a process that share a GPU, which CUDA calls no peer of itself: kernels of one that wait for
 * the other's would share its queues. */
static void *open_here(const struct peer_handle *handle, const char **why)
{
    int device, can = 0;
    if (!good(cudaGetDevice(&device)) || !good(cudaDeviceCanAccessPeer(&can, device, handle->device)) || can == 0) {
        *why = "its GPU's memory cannot be reached from this one's";
        return NULL;
    }
    const cudaError_t error = cudaDeviceEnablePeerAccess(handle->device, 0);
    if (!good(error) && error != cudaErrorPeerAccessAlreadyEnabled) {
        *why = "access to its GPU's memory could not be enabled";
        return NULL;
    }
    return (void *)(uintptr_t)handle->address;
}

static void *open_there(const struct peer_handle *handle, const char **why)
{
    cudaIpcMemHandle_t told;
    void *memory = NULL;
    memcpy(&told, handle->bytes, sizeof(told));
    if (good(cudaIpcOpenMemHandle(&memory, told, cudaIpcMemLazyEnablePeerAccess)))
        return memory;
    *why = "its memory could not be opened by CUDA IPC";
    return NULL;
}

static void *open_memory(const struct peer_handle *handle, const char **why)
{
    return is_here(handle) ? open_here(handle, why) : open_there(handle, why);
}

/* Access between a process's GPUs stays enabled: others may use it. */
static void close_memory(const struct peer_handle *handle, void *memory)
{
    if (!is_here(handle))
        (void)good(cudaIpcCloseMemHandle(memory));
}

/* Its priority is still above that of the program's streams, if the GPU has enough levels. */
static coll_stream stream_make_below(void)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int least, most;
    cudaStream_t stream = NULL;
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* as in gpu.c */
    const bool made =
        good(cudaDeviceGetStreamPriorityRange(&least, &most)) &&
        good(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, most < least ? most + 1 : most));
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return made ? stream : NULL;
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static bool move(void *dst, const void *src, size_t size, coll_stream stream)
{
    return good(cudaMemcpyAsync(dst, src, size, cudaMemcpyDefault, stream));
}

static bool claim(const struct peer_claim *what, coll_stream stream)
{
    return good(peer_claim_launch(what, stream));
}

static bool post(const struct peer_post *what, coll_stream stream)
{
    return good(peer_post_launch(what, stream));
}

static bool turn(const struct peer_receive_step *what, coll_stream stream)
{
    return good(peer_turn_launch(what, stream));
}

const struct gpu_peer_ops cuda_gpu_peer = {.prepare = prepare,
                                           .stream_make_below = stream_make_below,
                                           .share = share,
                                           .open = open_memory,
                                           .close = close_memory,
                                           .move = move,
                                           .claim = claim,
                                           .post = post,
                                           .turn = turn};
