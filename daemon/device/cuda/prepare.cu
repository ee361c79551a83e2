// What a batch begins with, in one launch: page ids and metadata that the host has staged come to the device's memory,
// and metadata that lies in the device's arena is copied within it. A kernel of our own, as the copy engine would take
// longer to start than all the rest takes.
#include "daemon/device/cuda/cuda.h"

namespace
{

constexpr unsigned THREADS = 256, COPIERS = 16;

__device__ void copy_staged(const prepare &p)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(p.from);
    uint4 *to = reinterpret_cast<uint4 *>(p.to);
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < p.vectors; i += COPIERS * THREADS)
        to[i] = from[i];
}

__device__ uint64_t nanoseconds()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

__device__ uint64_t load_acquire_system(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

// Waits for the encoder, on another device, to say that the chunk is whole. The time is bounded, as other work of this
// device, and perhaps of other processes, waits behind.
__device__ bool wait_for_flag(const fetch &f)
{
    const uint64_t began = nanoseconds();
    while (load_acquire_system(f.flag) != f.flag_value) {
        if (nanoseconds() - began > DEVICE_FLAG_NS)
            return false;
        __nanosleep(100);
    }
    return true;
}

// A private copy of the metadata of a chunk, which a peer may still be able to change: taken before the decoder
// believes anything of it. What was checked of the beginning is what is copied.
__device__ void fetch_metadata(const fetch &f, fetched *told)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(f.from);
    uint4 *to = reinterpret_cast<uint4 *>(f.to);
    __shared__ bool good;
    if (threadIdx.x == 0) {
        const bool came = f.flag == nullptr || wait_for_flag(f);
        const uint4 first = came ? __ldcv(from) : make_uint4(0, 0, 0, 0);
        good = first.x == f.begins[0] && first.y == f.begins[1] && first.z == f.begins[2] && first.w == f.begins[3];
        to[0] = good ? first : make_uint4(0, 0, 0, 0);
        told->came = came;
    }
    __syncthreads();
    for (uint32_t i = 1 + threadIdx.x; i < f.vectors; i += THREADS)
        to[i] = good ? __ldcv(from + i) : make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (f.flag != nullptr && threadIdx.x < sizeof(told->header) / sizeof(uint4))
        reinterpret_cast<uint4 *>(told->header)[threadIdx.x] = to[threadIdx.x];
}

__global__ void __launch_bounds__(THREADS) prepare_all(const __grid_constant__ prepare p)
{
    if (blockIdx.x < COPIERS)
        copy_staged(p);
    else
        fetch_metadata(p.fetches[blockIdx.x - COPIERS], p.fetched + (blockIdx.x - COPIERS));
}

} // namespace

cudaError_t prepare_launch(const struct prepare *prepare, cudaStream_t stream)
{
    void *arguments[] = {const_cast<struct prepare *>(prepare)};
    return cudaLaunchKernel(reinterpret_cast<const void *>(prepare_all), dim3(COPIERS + prepare->fetch_count),
                            dim3(THREADS), arguments, 0, stream);
}
