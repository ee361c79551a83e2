// Workers: a block with 4 bits per exponent, with or without a list of escapes.
#ifndef STRAIT_KERNELS_CUDA_DECODE_TOP16_CUH
#define STRAIT_KERNELS_CUDA_DECODE_TOP16_CUH

#include "kernels/cuda/decode_work.cuh"

namespace strait
{

// A bit for each value says whether it is listed. The bits of a warp's OWN values lie in the warp's part of the room
// that tiers use: warps do not wait for each other between blocks, so one may be at a list while another still reads
// its tiers of the block before. This is the byte for the values from 8 * eight on.
template <uint32_t OWN> DEVICE uint32_t list_byte(uint32_t eight)
{
    return eight / (OWN / 8) * (OWN / 2) + eight % (OWN / 8);
}

// Spreads the list at byte `at` of the block: exponents to where their values are, and a bit for each value. Every warp
// reads the whole list and takes its own part, so that none waits for another. False when no encoder would have written
// the list. The codes begin at byte `codes`.
template <uint32_t OWN>
DEVICE bool spread_list(const decode_team &team, const uint32_t *table, const uint8_t *input, uint32_t n,
                        uint32_t codes, uint32_t at, uint32_t count, uint32_t warp, uint32_t lane)
{
    const uint32_t positions = at + 2, exponents = positions + 2 * count;
    uint32_t *listed = team.items() + warp * (OWN / 8);
    bool good = true;
    if (lane < OWN / 32)
        listed[lane] = 0;
    __syncwarp();
#pragma unroll 1
    for (uint32_t k = lane; k < count; k += 32) {
        const uint32_t position = list_count(input, positions + 2 * k), exponent = input[exponents + k];
        const bool rises = k == 0 || list_count(input, positions + 2 * k - 2) < position;
        if (position >= n || !rises)
            good = false;
        else if (position / OWN != warp)
            continue;
        else if (in_top16(table, exponent) || get_item_of<4>(input, codes, position) != 0)
            good = false;
        else {
            team.exponents()[position] = static_cast<uint8_t>(exponent);
            atomicOr(listed + position % OWN / 32, 1u << position % 32);
        }
    }
    __syncwarp();
    return good;
}

// Replaces the exponents of a vector that its byte of the list marks.
DEVICE void use_listed(uint32_t exponents[2], const uint8_t *listed, uint32_t mask)
{
#pragma unroll 1
    while (mask != 0) {
        const uint32_t j = lowest_bit(mask), shift = j % 4 * 8, exponent = listed[j];
        mask &= mask - 1;
        if (j < 4)
            exponents[0] = (exponents[0] & ~(255u << shift)) | exponent << shift;
        else
            exponents[1] = (exponents[1] & ~(255u << shift)) | exponent << shift;
    }
}

template <bool WHOLE, class LAUNCH>
DEVICE uint32_t work_top16(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                           block_writer &writer, uint32_t warp, uint32_t lane)
{
    constexpr uint32_t OWN = BLOCK_VALUES / WORKER_WARPS;
    const uint8_t *input = team.lines(stage) + block.before;
    const uint32_t n = WHOLE ? BLOCK_VALUES : block.bytes / 2, size = block.units * UNIT;
    const uint32_t tail_bytes = WHOLE ? 0 : block.bytes % 2;
    const bool listed = block.mode() == STRAIT_BLOCK_TOP16_ESCAPES;
    uint32_t at = n + (n + 1) / 2, count = 0;
    bool bad = false;
    if (listed) {
        count = list_count(input, at);
        if (count == 0 || count > n || at + 2 + 3 * count + tail_bytes > size) {
            bad = true;
            count = 0;
        }
        bad = !spread_list<OWN>(team, team.table(stage), input, n, n, at, count, warp, lane) || bad;
        at += 2 + 3 * count;
    }
    const uint32_t tail = tail_bytes != 0 ? input[at] : 0;
    const uint8_t *mask = reinterpret_cast<const uint8_t *>(team.items());
    const uint4 x = reinterpret_cast<const uint4 *>(team.table(stage))[2];
    const uint32_t table[4] = {x.x, x.y, x.z, x.w};
    put_block<WHOLE>(launch, block, writer, tail, warp, lane, [&](uint32_t vector, uint32_t w[4]) {
        const uint2 s = reinterpret_cast<const uint2 *>(input)[vector];
        const uint32_t sm[2] = {s.x, s.y};
        uint32_t exponents[2];
        top16_exponents(load_word(input, n + 4 * vector), table, exponents);
        if (listed)
            use_listed(exponents, team.exponents() + 8 * vector, mask[list_byte<OWN>(vector)]);
        join_values(sm, exponents, w);
    });
    if (!listed)
        return 0;
    __syncwarp(); // before the next block's list
    return __any_sync(ALL_LANES, bad) ? WARP_BAD : 0;
}

} // namespace strait
#endif
