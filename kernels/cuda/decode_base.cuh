// Workers: full blocks of mode 6 that are tiers by the ranking of the base, FORMAT.md section 3.2: nearly all blocks
// that are coded by bases. They are decoded like tiered blocks, except that the ranking is made from the base and the
// base is checked.
#ifndef STRAIT_KERNELS_CUDA_DECODE_BASE_CUH
#define STRAIT_KERNELS_CUDA_DECODE_BASE_CUH

#include "kernels/cuda/decode_tiered.cuh"
#include "kernels/cuda/decode_typed.cuh"

namespace strait
{

// All workers: whether the team's `turn`-th block, which has arrived, is such a block.
DEVICE bool is_plain_base(const decode_team &team, uint32_t turn)
{
    constexpr uint32_t ASKED = BLOCK_MODE | BLOCK_STOP | BLOCK_WHOLE;
    constexpr uint32_t LEAST = (BLOCK_VALUES + BLOCK_VALUES / 4 + TYPED_END_BYTES + UNIT - 1) / UNIT;
    const decode_block &block = team.shared().blocks[turn % LOOKED_UP];
    if ((block.what & ASKED) != (STRAIT_BLOCK_BASE | BLOCK_WHOLE) || block.units < LEAST)
        return false;
    const uint8_t *input = team.lines(turn % DECODE_STAGES) + block.before;
    return input[block.units * UNIT - TYPED_END_BYTES] == TYPED_BASE_TIERS;
}

// The ranking of the block's base, and the base that the warp's parts imply.
struct base_ranking {
    uint32_t *table; // to be filled
    uint32_t base, parts;

    // No warp reads it before the warps have counted once more.
    DEVICE void make(uint32_t warp, uint32_t lane) const
    {
        if (warp == 0)
            reinterpret_cast<uint8_t *>(table)[lane] = static_cast<uint8_t>(base_image_byte(lane, base));
    }
    DEVICE void see(const uint32_t exponents[2])
    {
        const uint32_t greatest = greatest_of_halves(greatest_exponents(0, exponents));
        parts = least_part(parts, __reduce_max_sync(ALL_LANES, greatest));
    }
};

// Stands in for a launch: whole blocks need no region.
struct no_launch {
};

DEVICE region get_region(const no_launch &, uint32_t)
{
    return {};
}

// All workers: decodes the team's `turn`-th block, which is such a block, and the following ones as long as they are
// such blocks too and their chunks are known to have passed the check. Returns the next turns of all blocks and of
// tiers.
template <uint32_t TEAMS> __device__ __noinline__ uint2 work_bases(uint32_t turn, uint32_t tiered_turn)
{
    const decode_team team = this_team<TEAMS>();
    const uint32_t thread = threadIdx.x % TEAM_THREADS, lane = thread % 32, warp = thread / 32;
    decode_shared &shared = team.shared();
    for (;;) {
        const uint32_t stage = turn % DECODE_STAGES;
        const decode_block &block = shared.blocks[turn % LOOKED_UP];
        const uint32_t base = team.lines(stage)[block.before + block.units * UNIT - 1];
        base_ranking ranking = {shared.base_images[stage], base, NO_PART};
        block_writer writer = {shared.keys, {0, 0, 0}};
        const uint32_t found =
            work_tiered<true>(no_launch(), team, stage, block, writer, ranking, tiered_turn, warp, lane);
        if (lane == 0)
            shared.orders[stage][warp] = order_of_parts(ranking.parts);
        leave_block(shared, stage, sum_total(writer.sum), found, warp, lane);
        turn++, tiered_turn++;
        barrier_wait(&shared.full[turn % DECODE_STAGES], turn / DECODE_STAGES & 1);
        if ((shared.blocks[turn % LOOKED_UP].what & BLOCK_PASSED) == 0 || !is_plain_base(team, turn))
            return make_uint2(turn, tiered_turn);
    }
}

} // namespace strait
#endif
