// Workers: a block of tiers. Two scans over the block find where a lane's items lie in tiers 2 and 3.
#ifndef STRAIT_KERNELS_CUDA_DECODE_TIERED_CUH
#define STRAIT_KERNELS_CUDA_DECODE_TIERED_CUH

#include "kernels/cuda/decode_work.cuh"

namespace strait
{

struct block_count {
    uint32_t before, all; // items of warps before this one, of all
};

// What the warps have counted, once all have arrived.
DEVICE block_count wait_counts(uint64_t *barrier, uint32_t parity, const uint32_t *counts, uint32_t warp, uint32_t lane)
{
    barrier_wait(barrier, parity);
    const uint32_t count = lane < WORKER_WARPS ? counts[lane] : 0;
    return {__reduce_add_sync(ALL_LANES, lane < warp ? count : 0), __reduce_add_sync(ALL_LANES, count)};
}

// A lane's 32 items of tier 1; zeroes past the block's last value.
DEVICE void load_tier1(const uint8_t *input, uint32_t n, uint32_t thread, uint32_t tier1[2])
{
    const uint32_t at = n + 8 * thread, values = 32 * thread < n ? n - 32 * thread : 0;
    if (at % 8 == 0) {
        const uint2 x = *reinterpret_cast<const uint2 *>(input + at);
        tier1[0] = x.x, tier1[1] = x.y;
    } else {
        tier1[0] = load_word(input, at), tier1[1] = load_word(input, at + 4);
    }
    tier1[0] &= low_bits(2 * values);
    tier1[1] &= values > 16 ? low_bits(2 * (values - 16)) : 0;
}

// Exponents of a lane's values that went on to tier 3, put where its values are.
struct tier3_lane {
    uint32_t wanted; // bit i: value i
    uint32_t count;
    uint32_t first;          // item of the stream
    uint32_t at3, at4, last; // of tiers 3 and 4; the stage's last byte

    // How many items of tier 3 before the lane's first are 15: the place of its first in tier 4.
    DEVICE uint32_t find_tier4(const uint32_t *words) const
    {
        const uint32_t from = 2 * at3, to = 2 * at3 + first;
        uint32_t rank = 0;
        for (uint32_t k = from / 8; k <= to / 8; k++) {
            uint32_t found = fifteens(words[k]);
            if (k == from / 8)
                found &= ALL_LANES << (4 * (from % 8));
            if (k == to / 8)
                found &= (1u << (4 * (to % 8))) - 1;
            rank += popcount(found);
        }
        return rank;
    }

    // Returns how many are in tier 4, and WARP_BAD when one should not be.
    DEVICE uint32_t put(const uint8_t *input, const uint32_t *table, uint8_t *exponents) const
    {
        const uint8_t *third = reinterpret_cast<const uint8_t *>(table + 4);
        const uint32_t *words = reinterpret_cast<const uint32_t *>(input);
        const uint32_t item = 2 * at3 + first, shift = item % 8 * 4, *p = words + item / 8;
        uint32_t low = shift_right(p[0], p[1], shift), high = shift_right(p[1], p[2], shift);
        const uint32_t escapes =
            (fifteens(low) & low_bits(4 * count)) | (fifteens(high) & (count > 8 ? low_bits(4 * (count - 8)) : 0));
        if (count <= 16 && escapes == 0) {
            uint32_t left = __brev(wanted);
#pragma unroll 1
            while (left != 0) {
                const uint32_t i = __clz(left);
                left ^= 0x80000000u >> i;
                exponents[i] = third[low & 15];
                low = shift_right(low, high, 4);
                high >>= 4;
            }
            return 0;
        }
        return put_escapes(input, table, exponents);
    }

    DEVICE uint32_t put_escapes(const uint8_t *input, const uint32_t *table, uint8_t *exponents) const
    {
        const uint8_t *third = reinterpret_cast<const uint8_t *>(table + 4);
        uint32_t rank = find_tier4(reinterpret_cast<const uint32_t *>(input)), left = wanted, bad = 0, escapes = 0;
        for (uint32_t k = first; left != 0; k++) {
            const uint32_t i = lowest_bit(left), item = get_item_of<4>(input, at3, k);
            left &= left - 1;
            uint32_t exponent = third[item];
            if (item == 15) {
                exponent = input[min(at4 + rank++, last)];
                escapes++;
                if (in_tiers(table, exponent))
                    bad = WARP_BAD;
            }
            exponents[i] = static_cast<uint8_t>(exponent);
        }
        return escapes | bad;
    }
};

// All workers; `turn` counts the tiered blocks of the team. Returns what the warp leaves for the last warp.
template <bool WHOLE, class LAUNCH>
DEVICE uint32_t work_tiered(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                            block_writer &writer, uint32_t turn, uint32_t warp, uint32_t lane)
{
    decode_shared &shared = team.shared();
    const uint8_t *input = team.input(stage);
    const uint32_t *words = reinterpret_cast<const uint32_t *>(input);
    const uint32_t n = WHOLE ? BLOCK_VALUES : block.bytes / 2, thread = warp * 32 + lane, parity = turn & 1;
    uint32_t tier1[2], tier2[2], z[4];
    load_tier1(input, n, thread, tier1);
    const uint32_t on2[2] = {threes(tier1[0]), threes(tier1[1])}, count2 = popcount(on2[0]) + popcount(on2[1]);
    const uint32_t warp2 = __reduce_add_sync(ALL_LANES, count2);
    if (lane == 0)
        shared.counts2[stage][warp] = warp2;
    warp_arrive(&shared.counted2, lane);
    const uint32_t scan2 = warp_scan(count2, lane) - count2;
    const block_count all2 = wait_counts(&shared.counted2, parity, shared.counts2[stage], warp, lane);
    const uint32_t at2 = n + (n + 3) / 4, bit = 8 * at2 + 2 * (all2.before + scan2);
    {
        const uint32_t *p = words + bit / 32, three[3] = {p[0], p[1], p[2]};
        spread_pair(three, bit % 32, on2, tier2);
    }
    tier3_lane tier3;
    tier3.wanted = even_bits(threes(tier2[0]), threes(tier2[1]));
    tier3.count = popcount(tier3.wanted);
    const uint32_t warp3 = __reduce_add_sync(ALL_LANES, tier3.count);
    if (lane == 0)
        shared.counts3[stage][warp] = warp3;
    warp_arrive(&shared.counted3, lane);
    const uint32_t scan3 = warp_scan(tier3.count, lane) - tier3.count;
    merge_tiers(tier1, tier2, z);
    uint32_t *items = team.items();
    reinterpret_cast<uint4 *>(items)[thread] = make_uint4(z[0], z[1], z[2], z[3]);
    const block_count all3 = wait_counts(&shared.counted3, parity, shared.counts3[stage], warp, lane);
    tier3.first = all3.before + scan3;
    tier3.at3 = at2 + (all2.all + 3) / 4;
    tier3.at4 = tier3.at3 + (all3.all + 1) / 2;
    tier3.last = BLOCK_SIZE + DECODE_SLACK - 1;
    const uint32_t found = tier3.put(input, team.table(stage), team.exponents() + 32 * thread);
    uint32_t escapes = 0; // of the warp
    if (__any_sync(ALL_LANES, found != 0)) {
        const bool bad = __any_sync(ALL_LANES, (found & WARP_BAD) != 0);
        escapes = __reduce_add_sync(ALL_LANES, found & ~WARP_BAD) | (bad ? WARP_BAD : 0);
    }
    uint32_t tail = 0;
    if (!WHOLE && block.bytes % 2 != 0) { // it follows tier 4
        if (lane == 0)
            shared.escapes[stage][warp] = escapes & ~WARP_BAD;
        named_sync(team.among(), WORKERS);
        const uint32_t all4 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.escapes[stage][lane] : 0);
        tail = input[min(tier3.at4 + all4, tier3.last)];
        named_sync(team.among(), WORKERS);
    }
    const uint32_t first[2] = {team.table(stage)[0], team.table(stage)[1]};
    __syncwarp();
    const uint8_t *exponents = team.exponents();
    put_block<WHOLE>(launch, block, writer, tail, warp, lane, [&](uint32_t vector, uint32_t w[4]) {
        const uint2 s = reinterpret_cast<const uint2 *>(input)[vector];
        const uint2 e = reinterpret_cast<const uint2 *>(exponents)[vector];
        const uint32_t sm[2] = {s.x, s.y}, rest[2] = {e.x, e.y};
        join_tiers(items[vector], sm, rest, first, w);
    });
    __syncwarp();
    return escapes;
}

} // namespace strait
#endif
