// Kernels of the benches: copies, comparisons and sums.
#include "bench/device.h"

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

static __global__ void sum_kernel(const unsigned long long *words, size_t count, unsigned long long *sum)
{
    unsigned long long found = 0;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<size_t>(gridDim.x) * blockDim.x)
        found += words[i] * (i + 1);
    atomicAdd(sum, found);
}

// One thread for each unit: GPU_STAMP_STEP bytes.
static __global__ void stamp_kernel(uint16_t *memory, uint64_t first, uint64_t units)
{
    const uint64_t unit = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (unit >= units)
        return;
    uint16_t *values = memory + unit * (GPU_STAMP_STEP / sizeof(uint16_t));
    for (unsigned k = 0; k < 4; k++)
        values[k] = static_cast<uint16_t>((values[k] & ~0x7Fu) | ((first + unit) >> (7 * k) & 0x7Fu)); // gpu_stamped
}

// One block for each page of each region.
static __global__ void __launch_bounds__(256)
    wrong_pages_kernel(const uint8_t *memory, const uint8_t *reference, const int32_t *wanted, gpu_layout layout,
                       unsigned long long *count)
{
    const uint64_t region = static_cast<uint64_t>(blockIdx.y) * layout.pages * layout.page_bytes;
    const int32_t of = wanted[blockIdx.x];
    const uint4 wiped = {~0u, ~0u, ~0u, ~0u};
    const uint4 *page = reinterpret_cast<const uint4 *>(memory + region + blockIdx.x * uint64_t(layout.page_bytes));
    const uint4 *from =
        reinterpret_cast<const uint4 *>(reference + region + (of < 0 ? 0 : of) * uint64_t(layout.page_bytes));
    bool differs = false;
    for (uint32_t i = threadIdx.x; i < layout.page_bytes / 16; i += blockDim.x) {
        const uint4 x = page[i], y = of < 0 ? wiped : from[i];
        differs |= x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
    }
    if (__syncthreads_or(differs) && threadIdx.x == 0)
        atomicAdd(count, 1ull);
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

int device_sum(const void *values, size_t bytes, unsigned long long *sum, struct CUstream_st *stream)
{
    sum_kernel<<<1024, 256, 0, stream>>>(static_cast<const unsigned long long *>(values), bytes / 8, sum);
    return cudaGetLastError();
}

int device_stamp(void *memory, uint64_t first, uint64_t units, struct CUstream_st *stream)
{
    if (units == 0)
        return cudaSuccess;
    stamp_kernel<<<static_cast<unsigned>((units + 255) / 256), 256, 0, stream>>>(static_cast<uint16_t *>(memory), first,
                                                                                 units);
    return cudaGetLastError();
}

int device_count_wrong_pages(const void *memory, const void *reference, const int32_t *wanted,
                             const struct gpu_layout *layout, unsigned long long *count, struct CUstream_st *stream)
{
    wrong_pages_kernel<<<dim3(layout->pages, layout->regions), 256, 0, stream>>>(
        static_cast<const uint8_t *>(memory), static_cast<const uint8_t *>(reference), wanted, *layout, count);
    return cudaGetLastError();
}
