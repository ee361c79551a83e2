// Rows of BF16 to E4M3 with a scale for each STRAIT_EP_SCALE_VALUES values, which kernels.h describes. A lane has
// vectors of 8 values; 16 lanes have the values of a scale, and find their largest together. Nothing else is shared, so
// rows are one long list of vectors.
#include <cuda_fp8.h>

#include <cstring>

#include "ep/cuda/block.cuh"

namespace strait
{
namespace
{

constexpr uint32_t VALUES = sizeof(uint4) / 2;                // of a vector
constexpr uint32_t SHARERS = STRAIT_EP_SCALE_VALUES / VALUES; // lanes that have a scale in common
constexpr uint32_t VECTORS_AT_ONCE = 4;                       // that a lane loads before it stores any

// The larger of two BF16 magnitudes, a NaN passed over.
DEVICE uint32_t larger(uint32_t amax, uint32_t half)
{
    const uint32_t magnitude = half & 0x7fff;
    return magnitude > amax && magnitude <= 0x7f80 ? magnitude : amax;
}

// The largest magnitude of the lanes that share a scale.
DEVICE float amax_of(const uint4 &v)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    uint32_t amax = 0;
#pragma unroll
    for (int w = 0; w < 4; w++)
        amax = larger(larger(amax, words[w]), words[w] >> 16);
#pragma unroll
    for (uint32_t distance = SHARERS / 2; distance > 0; distance /= 2)
        amax = larger(amax, __shfl_sync(ALL_LANES, amax, lane_of_thread() ^ distance));
    float found[2];
    widen<STRAIT_ELEMENT_BF16>(amax, found);
    return found[0] > EP_AMAX_MIN ? found[0] : EP_AMAX_MIN;
}

// The least power of two that is not below x, which is normal or infinite.
DEVICE float power_above(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7fffff) & 0x7f800000;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

// Two values of BF16, times the factor. A product that is NaN is 0x7fffffff on GPUs, and becomes 0x7f.
DEVICE uint32_t two_of(uint32_t word, float factor)
{
    float x[2];
    widen<STRAIT_ELEMENT_BF16>(word, x);
    return __nv_cvt_float2_to_fp8x2(make_float2(multiply(factor, x[0]), multiply(factor, x[1])), __NV_SATFINITE,
                                    __NV_E4M3);
}

// For all lanes of a warp: `there` says whether the lane has a vector.
DEVICE void quantize_vector(const ep_quantize_args &args, const uint4 &v, uint64_t place, bool there)
{
    const float amax = amax_of(v), exact = multiply(amax, 1.0f / EP_E4M3_MAX);
    const float scale = args.powers ? power_above(exact) : exact;
    const float factor = args.powers ? 1.0f / scale : EP_E4M3_MAX / amax;
    if (!there)
        return;
    if (lane_of_thread() % SHARERS == 0)
        args.scales[place / SHARERS] = scale;
    *reinterpret_cast<uint2 *>(args.quantized + place * VALUES) =
        make_uint2(two_of(v.x, factor) | two_of(v.y, factor) << 16, two_of(v.z, factor) | two_of(v.w, factor) << 16);
}

__global__ void __launch_bounds__(THREADS, 1) quantize_kernel(const __grid_constant__ ep_quantize_args args)
{
    const uint64_t vectors = static_cast<uint64_t>(args.row_count) * (args.values / VALUES);
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * THREADS;
    const uint64_t warp = static_cast<uint64_t>(blockIdx.x) * WARPS + warp_of_thread();
    for (uint64_t first = warp * LANES; first < vectors; first += VECTORS_AT_ONCE * step) {
        const uint64_t place = first + lane_of_thread();
        uint4 v[VECTORS_AT_ONCE];
#pragma unroll
        for (uint32_t u = 0; u < VECTORS_AT_ONCE; u++)
            v[u] = place + u * step < vectors ? load_vector(args.rows + (place + u * step) * sizeof(uint4))
                                              : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t u = 0; u < VECTORS_AT_ONCE; u++)
            if (first + u * step < vectors) // the same for all lanes
                quantize_vector(args, v[u], place + u * step, place + u * step < vectors);
    }
}

} // namespace
} // namespace strait

cudaError_t ep_cuda_quantize(const struct ep_quantize_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    const uint64_t vectors = static_cast<uint64_t>(args->row_count) * (args->values / strait::VALUES);
    const uint64_t most = args->sm_budget < multiprocessors ? args->sm_budget : multiprocessors;
    const uint64_t needed = (vectors + strait::THREADS - 1) / strait::THREADS;
    if (vectors == 0)
        return cudaSuccess;
    return strait::launch<ep_quantize_args, uint4>(reinterpret_cast<const void *>(strait::quantize_kernel), *args,
                                                   static_cast<uint32_t>(needed < most ? needed : most), stream);
}

cudaError_t ep_cuda_load_quantize(void)
{
    const void *const kernels[] = {reinterpret_cast<const void *>(strait::quantize_kernel)};
    return strait::load(kernels);
}
