// CUDA runtime functions that tests and the plugin call. Calls are done when they return, launches too.
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/emulated/state.h"

// Small, so that each team has many blocks.
constexpr int MULTIPROCESSORS = 3, BLOCKS_EACH = 2;
constexpr size_t ALIGNMENT = 16; // less than hardware's: lines of global memory begin anywhere in an allocation

// Shared memory of a multiprocessor, of which each thread block takes 1 KiB more than it asks for.
static size_t shared_most()
{
    const uint32_t is = emulated::capability();
    return (is == 86 || is == 89 || is >= 120 ? 100 : is < 90 ? 164 : 228) * 1024;
}
constexpr size_t SHARED_RESERVED = 1024;

struct mapping {
    void *begin;
    size_t size;
};
static std::map<void *, mapping> mappings;

// Ends, but for less than ALIGNMENT bytes, where the process may not read on.
static cudaError_t allocate(void **memory, size_t size)
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)),
                 used = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t mapped = (used + page - 1) / page * page + page;
    uint8_t *begin =
        static_cast<uint8_t *>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (begin == MAP_FAILED || mprotect(begin + mapped - page, page, PROT_NONE) != 0)
        return cudaErrorMemoryAllocation;
    *memory = begin + mapped - page - used;
    memset(*memory, 0xC7, size);
    mappings[*memory] = {begin, mapped};
    return cudaSuccess;
}

static cudaError_t release(void *memory)
{
    const auto found = mappings.find(memory);
    if (memory == nullptr)
        return cudaSuccess;
    if (found == mappings.end() || munmap(found->second.begin, found->second.size) != 0)
        return cudaErrorInvalidValue;
    mappings.erase(found);
    return cudaSuccess;
}

// When it was recorded.
struct CUevent_st {
    timespec at;
};

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = new CUevent_st();
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    *milliseconds = 1e3f * static_cast<float>(end->at.tv_sec - begin->at.tv_sec) +
                    1e-6f * static_cast<float>(end->at.tv_nsec - begin->at.tv_nsec);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t size)
{
    return allocate(memory, size);
}

cudaError_t cudaFree(void *memory)
{
    return release(memory);
}

cudaError_t cudaHostAlloc(void **memory, size_t size, unsigned)
{
    return allocate(memory, size);
}

cudaError_t cudaMallocManaged(void **memory, size_t size, unsigned)
{
    return allocate(memory, size);
}

cudaError_t cudaFreeHost(void *memory)
{
    return release(memory);
}

cudaError_t cudaMemset(void *memory, int value, size_t size)
{
    memset(memory, value, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, cudaMemcpyKind)
{
    memcpy(dst, src, size);
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **memory, size_t size, cudaStream_t)
{
    return allocate(memory, size);
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t)
{
    return release(memory);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, cudaMemcpyKind, cudaStream_t)
{
    memcpy(dst, src, size);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t)
{
    memset(memory, value, size);
    return cudaSuccess;
}

// Launches have ended when they return.
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

// Graphs there are none of.
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphDestroy(cudaGraph_t)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = nullptr;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t)
{
    return "an error";
}

// Memory of the host is the device's too, and no other process has any.
cudaError_t cudaHostRegister(void *, size_t, unsigned)
{
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *)
{
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *memory, unsigned)
{
    *device = memory;
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *)
{
    *handle = {};
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **, cudaIpcMemHandle_t, unsigned)
{
    return cudaErrorNotSupported;
}

cudaError_t cudaIpcCloseMemHandle(void *)
{
    return cudaErrorInvalidValue;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned)
{
    return cudaErrorInvalidDevice;
}

cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int)
{
    const int major = static_cast<int>(emulated::capability()) / 10;
    switch (what) {
    case cudaDevAttrMultiProcessorCount:
        *value = MULTIPROCESSORS;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = static_cast<int>(emulated::capability()) % 10;
        return cudaSuccess;
    case cudaDevAttrClusterLaunch:
        *value = major >= 9;
        return cudaSuccess;
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute what, int value)
{
    const bool fits = static_cast<size_t>(value) <= shared_most() - SHARED_RESERVED;
    return what != cudaFuncAttributeMaxDynamicSharedMemorySize || fits ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *)
{
    *attributes = {};
    attributes->ptxVersion = attributes->binaryVersion = static_cast<int>(emulated::capability());
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t shared_bytes)
{
    const size_t fit = shared_most() / (shared_bytes + SHARED_RESERVED);
    *blocks = fit < BLOCKS_EACH ? static_cast<int>(fit) : BLOCKS_EACH;
    return cudaSuccess;
}

// Before 9.0 a launch takes neither of the attributes that kernels here are launched with.
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    if (emulated::capability() < 90 && config->numAttrs > 0)
        return cudaErrorNotSupported;
    emulated::run_launch(function, arguments[0], config->gridDim.x, config->blockDim.x,
                         static_cast<uint32_t>(config->dynamicSmemBytes));
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 blocks, dim3 threads, void **arguments, size_t shared_bytes,
                             cudaStream_t)
{
    emulated::run_launch(function, arguments[0], blocks.x, threads.x, static_cast<uint32_t>(shared_bytes));
    return cudaSuccess;
}
}
