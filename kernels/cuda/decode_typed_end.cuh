// The last warp: what it looks at in blocks of the later modes.
#ifndef STRAIT_KERNELS_CUDA_DECODE_TYPED_END_CUH
#define STRAIT_KERNELS_CUDA_DECODE_TYPED_END_CUH

#include "kernels/cuda/decode_typed.cuh"

namespace strait
{

// Bytes of streams and tail, and entries of the last stream.
struct typed_size {
    uint32_t used, escapes;
};

// All lanes: sizes of the coder's streams, and that the unused bits of their last bytes are zero.
DEVICE bool streams_hold(const decode_shared &shared, uint32_t stage, const typed_layout &at, uint32_t lane,
                         typed_size &size)
{
    const uint32_t at2 = at.after_codes();
    if (!at.tiers()) {
        size.escapes = at.coder == TYPED_BASE_LISTED ? list_count(at.input, at2) : 0;
        size.used = at2 + (at.coder == TYPED_BASE_LISTED ? 2 + 3 * size.escapes : 0) + at.tail;
        return is_padded<4>(at.input, at.at_codes(), at.m);
    }
    const bool is_warp = lane < WORKER_WARPS;
    const uint32_t count2 = __reduce_add_sync(ALL_LANES, is_warp ? shared.counts2[stage][lane] : 0);
    const uint32_t count3 = __reduce_add_sync(ALL_LANES, is_warp ? shared.counts3[stage][lane] : 0);
    const uint32_t at3 = at2 + (count2 + 3) / 4;
    size.escapes = __reduce_add_sync(ALL_LANES, is_warp ? shared.escapes[stage][lane] & ~WARP_BAD : 0);
    size.used = at3 + (count3 + 1) / 2 + size.escapes + at.tail;
    return is_padded<2>(at.input, at.at_codes(), at.m) && is_padded<2>(at.input, at2, count2) &&
           is_padded<4>(at.input, at3, count3);
}

// All lanes: that the values have the base, rests that must be there, and not one word throughout.
DEVICE bool values_hold(const decode_shared &shared, uint32_t stage, const decode_block &block, const typed_layout &at,
                        uint32_t lane)
{
    const uint32_t order = lane < WORKER_WARPS ? shared.orders[stage][lane] : NO_BASE;
    const uint32_t first = lane < WORKER_WARPS ? shared.firsts[stage][lane] : FIRST_NONE;
    const uint32_t base = base_of(__reduce_min_sync(ALL_LANES, order & 255));
    const bool rests = __any_sync(ALL_LANES, (order & ORDER_RESTS) != 0);
    const uint32_t word = __shfl_sync(ALL_LANES, first, 0);
    if (__all_sync(ALL_LANES, first == FIRST_NONE || first == word) && (word & FIRST_DIFFERS) == 0)
        return false; // it would be const
    if (at.coder != TYPED_TABLE_TIERS && base != at.base)
        return false;
    if (block.mode() != STRAIT_BLOCK_SPLIT)
        return true;
    if ((block.what & BLOCK_FP32) != 0)
        return rests; // or it would be fp32z
    return is_padded<2>(at.input, 0, at.m) && is_padded<1>(at.input, (at.m + 3) / 4, at.m);
}

// All lanes of the last warp: the word of the team's `turn`-th block.
template <uint32_t TEAMS> __device__ uint32_t judge_typed(uint32_t turn)
{
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = turn % DECODE_STAGES, lane = threadIdx.x % 32;
    const decode_shared &shared = team.shared();
    const decode_block &block = shared.blocks[turn % LOOKED_UP];
    const typed_layout at = lay_out(block, team.lines(stage) + block.before);
    const uint32_t corrupt = make_word(-STRAIT_ERR_CORRUPT, 0, 0), end = at.size - TYPED_END_BYTES;
    typed_size size;
    if (__any_sync(ALL_LANES, lane < WORKER_WARPS && (shared.escapes[stage][lane] & WARP_BAD) != 0))
        return corrupt;
    if (!streams_hold(shared, stage, at, lane, size) || units_of(size.used + TYPED_END_BYTES) != block.units)
        return corrupt;
    const bool padding = size.used + lane < end && at.input[size.used + lane] != 0;
    if (__any_sync(ALL_LANES, padding) || !values_hold(shared, stage, block, at, lane))
        return corrupt;
    const uint32_t counted = at.tiers()                     ? STRAIT_BLOCK_TIERED
                             : at.coder == TYPED_BASE_CODES ? STRAIT_BLOCK_TOP16
                                                            : STRAIT_BLOCK_TOP16_ESCAPES;
    return make_word(0, counted, size.escapes);
}

} // namespace strait
#endif
