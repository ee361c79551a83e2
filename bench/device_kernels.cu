#include "bench/device_kernels.h"

#include <cuda_runtime.h>

// Two vectors a thread, past the caches.
static __global__ void __launch_bounds__(256) copy_kernel(uint4 *dst, const uint4 *src, size_t vectors)
{
    const size_t i = static_cast<size_t>(blockIdx.x) * 512 + threadIdx.x, j = i + 256;
    uint4 x, y;
    if (i < vectors)
        x = __ldcs(src + i);
    if (j < vectors)
        y = __ldcs(src + j);
    if (i < vectors)
        __stcs(dst + i, x);
    if (j < vectors)
        __stcs(dst + j, y);
}

static __global__ void difference_kernel(const uint4 *a, const uint4 *b, size_t vectors, unsigned long long *count)
{
    unsigned long long found = 0;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors;
         i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        const uint4 x = a[i], y = b[i];
        found += x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
    }
    if (found != 0)
        atomicAdd(count, found);
}

int device_copy(void *dst, const void *src, size_t bytes, struct CUstream_st *stream)
{
    copy_kernel<<<static_cast<unsigned>((bytes / 16 + 511) / 512), 256, 0, stream>>>(
        static_cast<uint4 *>(dst), static_cast<const uint4 *>(src), bytes / 16);
    return cudaGetLastError();
}

int device_count_differences(const void *a, const void *b, size_t bytes, unsigned long long *count,
                             struct CUstream_st *stream)
{
    difference_kernel<<<1024, 256, 0, stream>>>(static_cast<const uint4 *>(a), static_cast<const uint4 *>(b),
                                                bytes / 16, count);
    return cudaGetLastError();
}
