// One warp of the launch turns sizes into places: an ordered scan whose state stays in local scratch. It takes as many
// consecutive blocks at once as have published their sizes, so that it keeps ahead of all teams together.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_PLACES_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_PLACES_CUH

#include "kernels/cuda/bits.cuh"
#include "kernels/cuda/encode.cuh"

namespace strait
{

constexpr uint32_t SCAN_EACH = SCAN_WIDTH / 32; // sizes per lane

template <class LAUNCH> DEVICE void place_blocks(const LAUNCH &launch, uint64_t tag)
{
    const uint32_t lane = threadIdx.x % 32, slots = launch.head.slots;
    const uint64_t *sizes = launch.head.planes[PLANE_SIZES];
    uint64_t *starts = launch.head.planes[PLANE_STARTS];
    uint32_t base = 0, start = 0; // first block to look at, a multiple of SCAN_EACH; units of the blocks before it
    while (base < slots) {
        uint64_t size[SCAN_EACH];
        uint32_t before[SCAN_EACH], known = 0, sum = 0;
#pragma unroll
        for (uint32_t j = 0; j < SCAN_EACH; j += 2)
            load_relaxed_pair(sizes + base + lane * SCAN_EACH + j, size + j);
        // The lane's own sizes, up to the first that has not been published. There are none past the last block.
        bool open = true;
#pragma unroll
        for (uint32_t j = 0; j < SCAN_EACH; j++) {
            open = open && (size[j] & ~TAG_MASK) == tag && base + lane * SCAN_EACH + j < slots;
            before[j] = sum;
            sum += open ? size_units(static_cast<uint32_t>(size[j])) : 0;
            known += open;
        }
        // Stores the places of the lanes up to the first one that does not know all of its sizes.
        const uint32_t complete = __ballot_sync(ALL_LANES, known == SCAN_EACH);
        const uint32_t first = complete == ALL_LANES ? 32 : lowest_bit(~complete);
        const uint32_t scan = warp_scan(sum), mine = start + scan - sum;
        if (lane <= first) {
#pragma unroll
            for (uint32_t j = 0; j < SCAN_EACH; j++)
                if (j < known)
                    store_relaxed(starts + base + lane * SCAN_EACH + j, tag | ((mine + before[j]) & TAG_MASK));
        }
        const uint32_t partly = first < 32 ? __shfl_sync(ALL_LANES, known, first) : 0;
        if (base + first * SCAN_EACH + partly >= slots)
            break;
        start += first > 0 ? __shfl_sync(ALL_LANES, scan, first - 1) : 0;
        base += first * SCAN_EACH;
    }
}

} // namespace strait
#endif
