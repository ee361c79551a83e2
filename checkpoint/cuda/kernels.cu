#include "checkpoint/cuda/cuda.h"

namespace
{

constexpr unsigned THREADS = 256;

__device__ uint32_t load_bytes(const uint8_t *p, unsigned bytes)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= static_cast<uint32_t>(p[i]) << (8 * i);
    return value;
}

// The BF16 value nearest to one of F32, the even one of two; of NaN: the upper half with its quiet bit set.
__device__ uint16_t round_value(uint32_t value)
{
    if ((value & 0x7fffffff) > 0x7f800000)
        return static_cast<uint16_t>(value >> 16 | 0x40);
    return static_cast<uint16_t>((value + 0x7fff + (value >> 16 & 1)) >> 16);
}

template <bool ALIGNED>
__global__ void compare(const uint8_t *fp32, const uint8_t *bf16, uint64_t count, uint32_t *different)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * THREADS;
    uint32_t wrong = 0;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += step) {
        const uint32_t value = ALIGNED ? reinterpret_cast<const uint32_t *>(fp32)[i] : load_bytes(fp32 + 4 * i, 4);
        const uint32_t rounded = ALIGNED ? reinterpret_cast<const uint16_t *>(bf16)[i] : load_bytes(bf16 + 2 * i, 2);
        wrong += round_value(value) != rounded;
    }
    if (__syncthreads_or(wrong != 0) && threadIdx.x == 0)
        *reinterpret_cast<volatile uint32_t *>(different) = 1;
}

struct where {
    walk w;
    uint64_t first, end;
    const uint8_t *page;
    bool rounded;
};

// The place of a value; NULL when the walk does not have it.
__device__ uint8_t *place_of(const walk &w, uint64_t value)
{
    if (value < w.first)
        return nullptr;
    uint64_t rest = value - w.first;
    uint8_t *place = w.base;
    for (uint32_t d = 0; d < w.dims; d++) {
        const uint64_t index = rest / w.src[d];
        if (index >= w.size[d])
            return nullptr;
        rest -= index * w.src[d];
        place += index * w.dst[d];
    }
    return place;
}

__global__ void place_values(const __grid_constant__ where p)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * THREADS, count = p.end - p.first;
    const unsigned bytes = p.w.value_bytes;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += step) {
        uint8_t *to = place_of(p.w, p.first + i);
        if (to == nullptr)
            continue;
        if (p.rounded) {
            const uint16_t value = round_value(load_bytes(p.page + 4 * i, 4));
            to[0] = static_cast<uint8_t>(value);
            to[1] = static_cast<uint8_t>(value >> 8);
            continue;
        }
        for (unsigned b = 0; b < bytes; b++)
            to[b] = p.page[i * bytes + b];
    }
}

} // namespace

cudaError_t kernel_compare(const void *fp32, const void *bf16, uint64_t count, uint32_t *different, uint32_t blocks,
                           cudaStream_t stream)
{
    const uint8_t *values = static_cast<const uint8_t *>(fp32), *roundings = static_cast<const uint8_t *>(bf16);
    if (reinterpret_cast<uintptr_t>(values) % 4 == 0 && reinterpret_cast<uintptr_t>(roundings) % 2 == 0)
        compare<true><<<blocks, THREADS, 0, stream>>>(values, roundings, count, different);
    else
        compare<false><<<blocks, THREADS, 0, stream>>>(values, roundings, count, different);
    return cudaGetLastError();
}

cudaError_t kernel_place(const struct walk *walk, uint64_t first, uint64_t end, const uint8_t *page, bool rounded,
                         cudaStream_t stream)
{
    const where p = {*walk, first, end, page, rounded};
    const uint64_t wanted = (end - first + THREADS - 1) / THREADS;
    const unsigned blocks = wanted < 64 ? static_cast<unsigned>(wanted) : 64;
    place_values<<<blocks, THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}
