// The last warp: what it checks in blocks of the later modes.
#ifndef STRAIT_KERNELS_CUDA_DECODE_TYPED_END_CUH
#define STRAIT_KERNELS_CUDA_DECODE_TYPED_END_CUH

#include "kernels/cuda/decode_typed.cuh"

namespace strait
{

// All lanes: where the coder's streams lie, from the counts of the workers.
DEVICE streams measure_typed(const decode_shared &shared, uint32_t stage, const typed_layout &at, uint32_t lane)
{
    streams s = {};
    s.n = at.m;
    s.at2 = at.after_codes();
    if (!at.tiers()) {
        const bool listed = at.coder == TYPED_BASE_LISTED;
        s.count4 = listed ? list_count(at.input, s.at2) : 0;
        s.at4 = s.at2 + 2 + 2 * s.count4;
        s.used = s.at2 + (listed ? 2 + 3 * s.count4 : 0) + at.tail;
        return s;
    }
    const bool is_warp = lane < WORKER_WARPS;
    s.count2 = __reduce_add_sync(ALL_LANES, is_warp ? shared.counts2[stage][lane] : 0);
    s.count3 = __reduce_add_sync(ALL_LANES, is_warp ? shared.counts3[stage][lane] : 0);
    s.count4 = __reduce_add_sync(ALL_LANES, is_warp ? shared.escapes[stage][lane] & ~WARP_BAD : 0);
    s.at3 = s.at2 + (s.count2 + 3) / 4;
    s.at4 = s.at3 + (s.count3 + 1) / 2;
    s.used = s.at4 + s.count4 + at.tail;
    return s;
}

// Whether the unused bits of the streams' last bytes are zero.
DEVICE bool streams_hold(const streams &s, const typed_layout &at)
{
    if (!at.tiers())
        return is_padded<4>(at.input, at.at_codes(), at.m);
    return is_padded<2>(at.input, at.at_codes(), at.m) && is_padded<2>(at.input, s.at2, s.count2) &&
           is_padded<4>(at.input, s.at3, s.count3);
}

// All lanes: whether the values have the base, have rests where there must be some, and are not all the same word.
DEVICE bool values_hold(const decode_shared &shared, uint32_t stage, const decode_block &block, const typed_layout &at,
                        uint32_t lane)
{
    const uint32_t order = lane < WORKER_WARPS ? shared.orders[stage][lane] : NO_BASE;
    const uint32_t first = lane < WORKER_WARPS ? shared.firsts[stage][lane] : FIRST_NONE;
    const bool rests = __any_sync(ALL_LANES, (order & ORDER_RESTS) != 0);
    const uint32_t word = __shfl_sync(ALL_LANES, first, 0);
    if (__all_sync(ALL_LANES, first == FIRST_NONE || first == word) && (word & FIRST_DIFFERS) == 0)
        return false; // the mode would be const
    if (block.mode() != STRAIT_BLOCK_SPLIT)
        return true;
    if ((block.what & BLOCK_FP32) != 0)
        return rests; // otherwise the mode would be fp32z
    return is_padded<2>(at.input, 0, at.m) && is_padded<1>(at.input, (at.m + 3) / 4, at.m);
}

// All lanes: everything that the workers have not checked. BF16 blocks have the streams of tiered and top16 blocks.
DEVICE bool typed_holds(const decode_shared &shared, uint32_t stage, const decode_block &block, const typed_layout &at,
                        const streams &s, uint32_t lane)
{
    const uint32_t end = at.size - TYPED_END_BYTES;
    if (units_of(s.used + TYPED_END_BYTES) != block.units)
        return false;
    if (__any_sync(ALL_LANES, s.used + lane < end && at.input[s.used + lane] != 0))
        return false;
    const uint32_t order = lane < WORKER_WARPS ? shared.orders[stage][lane] & 255 : NO_BASE;
    const uint32_t base = base_of(__reduce_min_sync(ALL_LANES, order));
    if (at.coder != TYPED_TABLE_TIERS && base != at.base)
        return false;
    if (block.mode() == STRAIT_BLOCK_BASE)
        return at.tiers() ? tiers_hold(s, at.input, lane) : codes_hold(s, at.input, lane);
    return streams_hold(s, at) && values_hold(shared, stage, block, at, lane);
}

// All lanes of the last warp: the word to note for the team's `turn`-th block.
template <uint32_t TEAMS> __device__ uint32_t judge_typed(uint32_t turn)
{
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = turn % DECODE_STAGES, lane = threadIdx.x % 32;
    const decode_shared &shared = team.shared();
    const decode_block &block = shared.blocks[turn % LOOKED_UP];
    const typed_layout at = lay_out(block, team.lines(stage) + block.before);
    const uint32_t corrupt = make_word(-STRAIT_ERR_CORRUPT, 0, 0);
    if (__any_sync(ALL_LANES, lane < WORKER_WARPS && (shared.escapes[stage][lane] & WARP_BAD) != 0))
        return corrupt;
    const streams s = measure_typed(shared, stage, at, lane);
    if (!typed_holds(shared, stage, block, at, s, lane))
        return corrupt;
    const uint32_t counted = at.tiers()                     ? STRAIT_BLOCK_TIERED
                             : at.coder == TYPED_BASE_CODES ? STRAIT_BLOCK_TOP16
                                                            : STRAIT_BLOCK_TOP16_ESCAPES;
    return make_word(0, counted, s.count4);
}

} // namespace strait
#endif
