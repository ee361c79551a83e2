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

// A private copy of the metadata of a chunk, which a peer may still be able to change: taken before the decoder
// believes anything of it. What was checked of the beginning is what is copied.
__device__ void fetch_metadata(const fetch &f)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(f.from);
    uint4 *to = reinterpret_cast<uint4 *>(f.to);
    __shared__ bool good;
    if (threadIdx.x == 0) {
        const uint4 first = from[0];
        good = first.x == f.begins[0] && first.y == f.begins[1] && first.z == f.begins[2] && first.w == f.begins[3];
        to[0] = good ? first : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (uint32_t i = 1 + threadIdx.x; i < f.vectors; i += THREADS)
        to[i] = good ? from[i] : make_uint4(0, 0, 0, 0);
}

__global__ void __launch_bounds__(THREADS) prepare_all(const __grid_constant__ prepare p)
{
    if (blockIdx.x < COPIERS)
        copy_staged(p);
    else
        fetch_metadata(p.fetches[blockIdx.x - COPIERS]);
}

} // namespace

cudaError_t prepare_launch(const struct prepare *prepare, cudaStream_t stream)
{
    void *arguments[] = {const_cast<struct prepare *>(prepare)};
    return cudaLaunchKernel(reinterpret_cast<const void *>(prepare_all), dim3(COPIERS + prepare->fetch_count),
                            dim3(THREADS), arguments, 0, stream);
}
