// What can be done to a GPU from within the daemon's process, which has one context on it: the daemon's own.
#include "tests/chaos/plugin.h"

#include <cstdio>

#include <cuda_runtime_api.h>

namespace
{

__global__ void trap()
{
    __trap();
}

// Leaves no room for another thread on its multiprocessor.
__global__ void __launch_bounds__(1024) idle(uint64_t ns)
{
    uint64_t began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - began < ns);
}

void tell(const char *what, int32_t device, cudaError_t error)
{
    fprintf(stderr, "chaos: GPU %d: %s: %s\n", device, what, cudaGetErrorString(error));
    (void)cudaGetLastError();
}

} // namespace

void plugin_break(void *, int32_t device)
{
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) {
        trap<<<1, 1>>>();
        error = cudaDeviceSynchronize();
    }
    tell("broken", device, error);
}

void plugin_stall(void *, int32_t device, uint32_t ms)
{
    int processors = 0;
    cudaStream_t stream = nullptr;
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) {
        idle<<<2 * processors, 1024, 0, stream>>>(ms * UINT64_C(1000000));
        error = cudaGetLastError();
    }
    if (error != cudaSuccess)
        tell("not stalled", device, error);
}
