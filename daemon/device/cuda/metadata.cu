// Private copies of the metadata of chunks in the device's arena, which a peer may still be able to change: taken on the
// device, before the decoder that runs next believes anything of them.
#include "daemon/device/cuda/cuda.h"

namespace
{

constexpr unsigned THREADS = 128;

// One thread block copies one chunk's. What it checked of the beginning is what it copies.
__global__ void __launch_bounds__(THREADS) fetch_all(const fetch *fetches)
{
    const fetch f = fetches[blockIdx.x];
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

} // namespace

cudaError_t fetches_launch(const struct fetch *fetches, uint32_t count, cudaStream_t stream)
{
    void *arguments[] = {&fetches};
    return cudaLaunchKernel(reinterpret_cast<const void *>(fetch_all), dim3(count), dim3(THREADS), arguments, 0,
                            stream);
}
