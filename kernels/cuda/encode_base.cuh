// Workers of a team that codes BF16 blocks by their bases: FORMAT.md section 3.2, mode 6. A lane keeps what determines
// the codes of its values in registers until the base is known.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_BASE_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_BASE_CUH

#include "kernels/cuda/encode_streams.cuh"

namespace strait
{

// All workers: codes the team's `turn`-th block. A WHOLE block has all its values.
template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER_BF16> &team, uint32_t turn, uint32_t warp,
                       uint32_t lane)
{
    uint32_t keys[4], inverted[4][4];
    typedef typed_room<CODER_BF16> room;
    const uint32_t thread = warp * 32 + lane, parity = turn & 1;
    encode_shared &shared = team.shared();
    load_keys(shared, lane, keys);
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : shared.block.bytes, n = bytes / 2;
    const uint32_t first_step = shared.block.first_step, step = first_step + warp * 32 + lane / 4;
    const uint32_t even_step = step * SUM_STEP_EVEN, odd_step = step * SUM_STEP_ODD;
    uint8_t *streams = team.fixed(parity);
    partial_sum sum = {0, 0, 0};
    uint32_t parts = 0;
    bool same = true;
#pragma unroll
    for (uint32_t g = 0; g < 4; g++) { // 256 values of the warp at a time, which are a part
        const uint32_t vector = worker_vector(warp, lane, g);
        const uint4 x = input[vector];
        uint32_t w[4] = {x.x, x.y, x.z, x.w}, sm[2], of_part = NO_INVERTED;
        if (WHOLE || vector < n / 8) {
            if (g == 0)
                same = (w[0] & 0xffff) == *reinterpret_cast<const uint16_t *>(input);
            sum_vector(sum, w, keys, even_step + g * 8 * SUM_STEP_EVEN, odd_step + g * 8 * SUM_STEP_ODD);
        } else {
            keep_bytes(w, 2 * take_edge(w, bytes, first_step, vector, keys, sum));
        }
        split_values(w, sm);
        reinterpret_cast<uint2 *>(streams + room::SM)[vector] = make_uint2(sm[0], sm[1]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            inverted[g][j] = inverted_exponents(w[j]);
            of_part = least_inverted(of_part, inverted[g][j]);
        }
        parts = count_part(parts, __reduce_min_sync(ALL_LANES, least_of_halves(of_part)));
    }
    if (lane == 0)
        shared.told[warp] = order_of_inverted(parts);
    warp_arrive(&shared.told_all, lane);
    const uint64_t total = warp_sum(sum_total(sum));
    if (lane == 0)
        shared.sums[parity][warp] = total;
    typed_halves block = {bytes, 0, true, false, false, false};
    block.warp_same = __all_sync(ALL_LANES, same);
    barrier_wait(&shared.told_all, parity);
    block.base = base_of(__reduce_min_sync(ALL_LANES, lane < WORKER_WARPS ? shared.told[lane] : NO_BASE));
    block.new_base = put_ranking(team, block.base, thread);

    const uint32_t to_add = base_to_add(block.base);
    uint32_t *own = reinterpret_cast<uint32_t *>(streams + room::TIERS + warp * (TIERED_REST / WORKER_WARPS));
#pragma unroll
    for (uint32_t g = 0; g < 4; g++)
        own[g * 32 + lane] = base_codes(inverted[g], to_add);
    __syncwarp();
    const uint4 z = reinterpret_cast<const uint4 *>(own)[lane]; // from every 32nd vector to 4 consecutive
    __syncwarp();
    reinterpret_cast<uint4 *>(own)[lane] = make_uint4(0, 0, 0, 0);
    if (lane < TIERED_REST / WORKER_WARPS / 16 - 32)
        reinterpret_cast<uint4 *>(own)[32 + lane] = make_uint4(0, 0, 0, 0);
    part_base_codes(z.x, z.y, block.tier1[0], block.tier2[0]);
    part_base_codes(z.z, z.w, block.tier1[1], block.tier2[1]);
    block.left = WHOLE ? 32 : min(n - min(n, 32 * thread), 32u);
    if (!WHOLE)
        block.cut();
    code_halves<WHOLE>(launch, team, block, parity, warp, lane);
}

} // namespace strait
#endif
