// Workers of a team that codes blocks of the later modes: FORMAT.md section 3.2. They make two passes over a block. In
// the first they take values apart, and what they tell each other then gives the base; in the second they code halves.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_TYPED_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_TYPED_CUH

#include "kernels/cuda/encode_streams.cuh"

namespace strait
{

// Takes a worker's values of a block: sums them and splits them into halves and rests.
template <coder CODER> struct value_taker {
    typedef typed_room<CODER> room;
    uint8_t *streams, *halves;
    uint32_t inverted, parts; // the least inverted exponents of a part; of all parts
    uint32_t rests;           // FP32: nonzero when some rest is

    DEVICE void put_sign_mantissa(const uint32_t w[4], uint32_t vector)
    {
        uint32_t sm[2];
        split_values(w, sm);
        reinterpret_cast<uint2 *>(streams + room::SM)[vector] = make_uint2(sm[0], sm[1]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            inverted = least_inverted(inverted, inverted_exponents(w[j]));
    }

    DEVICE void take_fp16(const uint32_t w[4], uint32_t vector)
    {
        uint32_t h[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[j] = fp16_halves(w[j]);
        reinterpret_cast<uint4 *>(halves)[vector] = make_uint4(h[0], h[1], h[2], h[3]);
        reinterpret_cast<uint16_t *>(streams)[vector] = static_cast<uint16_t>(take_twos(w));
        streams[room::ONES + vector] = static_cast<uint8_t>(take_ones(w));
        put_sign_mantissa(h, vector);
    }

    DEVICE void take_fp32(const uint32_t w[4], uint32_t vector)
    {
        const uint32_t h[4] = {permute(w[0], w[1], 0x7632), permute(w[2], w[3], 0x7632), 0, 0};
        uint32_t sm[2];
        split_values(h, sm);
        reinterpret_cast<uint2 *>(halves)[vector] = make_uint2(h[0], h[1]);
        reinterpret_cast<uint2 *>(streams)[vector] =
            make_uint2(permute(w[0], w[1], 0x5410), permute(w[2], w[3], 0x5410));
        reinterpret_cast<uint32_t *>(streams + room::SM)[vector] = sm[0];
        rests |= (w[0] | w[1] | w[2] | w[3]) & 0xffff;
#pragma unroll
        for (int j = 0; j < 2; j++)
            inverted = least_inverted(inverted, inverted_exponents(h[j]));
    }

    DEVICE void take(const uint32_t w[4], uint32_t vector)
    {
        if (room::TYPE == TYPE_FP32)
            take_fp32(w, vector);
        else if (room::TYPE == TYPE_FP16)
            take_fp16(w, vector);
        else
            put_sign_mantissa(w, vector);
    }

    DEVICE void end_part()
    {
        parts = count_part(parts, __reduce_min_sync(ALL_LANES, least_of_halves(inverted)));
        inverted = NO_INVERTED;
    }
};

// The first pass. Returns whether the warp's first values equal the block's first one.
template <bool WHOLE, coder CODER>
DEVICE bool take_block(const encode_team<CODER> &team, value_taker<CODER> &taker, const uint32_t keys[4],
                       partial_sum &sum, uint32_t warp, uint32_t lane)
{
    typedef typename typed_room<CODER>::values values;
    const encode_block &block = team.shared().block;
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : block.bytes, first_step = block.first_step;
    const uint32_t step = first_step + warp * 32 + lane / 4;
    const uint32_t even_step = step * SUM_STEP_EVEN, odd_step = step * SUM_STEP_ODD;
    bool same = true;
#pragma unroll
    for (uint32_t g = 0; g < 4; g++) {
        const uint32_t vector = worker_vector(warp, lane, g);
        const uint4 x = input[vector];
        uint32_t w[4] = {x.x, x.y, x.z, x.w};
        if (WHOLE || vector < bytes / 16) {
            if (g == 0)
                same = (w[0] & 0xffff) == *reinterpret_cast<const uint16_t *>(input);
            sum_vector(sum, w, keys, even_step + g * 8 * SUM_STEP_EVEN, odd_step + g * 8 * SUM_STEP_ODD);
        } else {
            const uint32_t m = bytes / values::BYTES, before = vector * values::VECTOR;
            take_edge(w, bytes, first_step, vector, keys, sum);
            keep_bytes(w, before < m ? (m - before) * values::BYTES : 0);
        }
        taker.take(w, vector);
        if ((g + 1) % values::STEPS == 0)
            taker.end_part();
    }
    return __all_sync(ALL_LANES, same);
}

// Tiers 1 and 2 of the lane's halves, which are consecutive.
template <coder CODER> DEVICE void code_lane(const encode_team<CODER> &team, typed_halves &block, uint32_t thread)
{
    constexpr uint32_t VECTORS = typed_room<CODER>::values::EACH / 8;
    const uint4 *halves = reinterpret_cast<const uint4 *>(team.halves()) + thread * VECTORS;
    const table_address table = shared_address(team.table());
    const uint32_t turn = VECTORS == 4 ? thread / 2 % 4 : 0; // lanes begin at different vectors, in different banks
    const uint32_t to_add = base_to_add(block.base);
    uint32_t z[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t k = 0; k < VECTORS; k++) {
        const uint4 x = halves[k ^ turn];
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
        if (block.by_base) {
            uint32_t inverted[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                inverted[j] = inverted_exponents(w[j]);
            z[k] = base_codes(inverted, to_add);
        } else {
            z[k] = tier_codes(w, table);
        }
    }
    if (VECTORS == 4) {
        const bool odd = (turn & 1) != 0, upper = (turn & 2) != 0;
        const uint32_t a = odd ? z[1] : z[0], b = odd ? z[0] : z[1], c = odd ? z[3] : z[2], d = odd ? z[2] : z[3];
        z[0] = upper ? c : a, z[1] = upper ? d : b, z[2] = upper ? a : c, z[3] = upper ? b : d;
    }
    if (block.by_base) {
        part_base_codes(z[0], z[1], block.tier1[0], block.tier2[0]);
        part_base_codes(z[2], z[3], block.tier1[1], block.tier2[1]);
    } else {
        part_tiers(z, block.tier1, block.tier2);
    }
    block.cut();
}

// All workers: codes the team's `turn`-th block. A WHOLE block has all its values.
template <bool WHOLE, coder CODER, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t turn, uint32_t warp,
                       uint32_t lane)
{
    uint32_t keys[4];
    typedef typed_room<CODER> room;
    typedef typename room::values values;
    const uint32_t thread = warp * 32 + lane, parity = turn & 1;
    encode_shared &shared = team.shared();
    load_keys(shared, lane, keys);
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : shared.block.bytes, m = bytes / values::BYTES;
    const uint32_t first = thread * values::EACH;
    const bool by_base = launch.head.mode == STRAIT_MODE_BASE;
    uint8_t *streams = team.fixed(parity), *rest = streams + room::TIERS;

    partial_sum sum = {0, 0, 0};
    value_taker<CODER> taker = {streams, team.halves(), NO_INVERTED, 0, 0};
    const bool warp_same = take_block<WHOLE>(team, taker, keys, sum, warp, lane);
    const bool warp_rests = __any_sync(ALL_LANES, taker.rests != 0);
    if (lane == 0)
        shared.told[warp] = order_of_inverted(taker.parts) | (warp_rests ? 256 : 0);
    warp_arrive(&shared.told_all, lane);
    const uint64_t total = warp_sum(sum_total(sum));
    if (lane == 0)
        shared.sums[parity][warp] = total;
#pragma unroll 1
    for (uint32_t i = thread; i < (encode_team<CODER>::STREAMS - room::TIERS) / 16; i += WORKERS)
        reinterpret_cast<uint4 *>(rest)[i] = make_uint4(0, 0, 0, 0);
    barrier_wait(&shared.told_all, parity);
    const uint32_t told = lane < WORKER_WARPS ? shared.told[lane] : NO_BASE;
    typed_halves block = {bytes, 0, by_base, true, false, warp_same};
    if (room::TYPE != TYPE_FP16)
        block.rests = __any_sync(ALL_LANES, (told & 256) != 0);
    if (by_base) {
        block.base = base_of(__reduce_min_sync(ALL_LANES, told & 255));
        block.new_base = put_ranking(team, block.base, thread);
    }
    block.left = WHOLE ? values::EACH : min(m - min(m, first), values::EACH);
    code_lane(team, block, thread);
    code_halves<WHOLE>(launch, team, block, parity, warp, lane);
}

} // namespace strait
#endif
