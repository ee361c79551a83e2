// Workers: a block of tiers. Two scans over the block find where a lane's items lie in tiers 2 and 3.
#ifndef STRAIT_KERNELS_CUDA_DECODE_TIERED_CUH
#define STRAIT_KERNELS_CUDA_DECODE_TIERED_CUH

#include "kernels/cuda/decode_work.cuh"

namespace strait
{

// The items of a tier, of which each warp has counted its own.
DEVICE uint32_t count_all(const uint32_t *counts)
{
    static_assert(WORKER_WARPS == 8, "");
    const uint4 a = reinterpret_cast<const uint4 *>(counts)[0], b = reinterpret_cast<const uint4 *>(counts)[1];
    return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

// A lane's 32 items of tier 1; zeroes past the block's last value.
template <bool WHOLE> DEVICE void load_tier1(const uint8_t *input, uint32_t n, uint32_t thread, uint32_t tier1[2])
{
    const uint32_t at = n + 8 * thread, values = 32 * thread < n ? n - 32 * thread : 0;
    if (WHOLE || at % 8 == 0) {
        const uint2 x = *reinterpret_cast<const uint2 *>(input + at);
        tier1[0] = x.x, tier1[1] = x.y;
    } else {
        tier1[0] = load_word(input, at), tier1[1] = load_word(input, at + 4);
    }
    if (WHOLE)
        return;
    tier1[0] &= low_bits(2 * values);
    tier1[1] &= values > 16 ? low_bits(2 * (values - 16)) : 0;
}

// How many items of 4 bits from number `from` up to `to` are 15. Threads that count together take each `step`-th word,
// beginning with the `turn`-th.
DEVICE uint32_t count_fifteens(const uint32_t *words, uint32_t from, uint32_t to, uint32_t turn, uint32_t step)
{
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t k = from / 8 + turn; k <= to / 8; k += step) {
        uint32_t found = fifteens(words[k]);
        if (k == from / 8)
            found &= ALL_LANES << (4 * (from % 8));
        if (k == to / 8)
            found &= (1u << (4 * (to % 8))) - 1;
        count += popcount(found);
    }
    return count;
}

// Puts the exponents of a lane's values that went on to tier 3 where its values are.
struct tier3_lane {
    uint32_t wanted; // bit i: value i
    uint32_t count;
    uint32_t first;     // number of its first item in the stream
    uint32_t at3, last; // byte where tier 3 begins; the stage's last byte

    // All lanes. Returns how many values are in tier 4, with WARP_BAD when one should not be. `counts` are those of all
    // warps.
    DEVICE uint32_t put(const uint8_t *input, const uint32_t *table, const uint32_t *counts, uint8_t *exponents) const
    {
        const uint8_t *third = reinterpret_cast<const uint8_t *>(table + 4);
        const uint32_t item = 2 * at3 + first, shift = item % 8 * 4;
        const uint32_t *p = reinterpret_cast<const uint32_t *>(input) + item / 8;
        uint32_t left = reverse_bits(wanted), low = shift_right(p[0], p[1], shift), high = 0;
        uint32_t escapes = fifteens(lowest_items(low, min(count, 8)));
        if (__any_sync(ALL_LANES, count > 8)) {
            high = shift_right(p[1], p[2], shift);
            if (count > 8)
                escapes |= count > 16 ? 1 : fifteens(lowest_items(high, count - 8));
        }
        if (__any_sync(ALL_LANES, escapes != 0))
            return put_escapes(input, table, counts, exponents);
#pragma unroll 1
        while (left != 0) {
            const uint32_t i = leading_zeroes(left);
            left ^= 0x80000000u >> i;
            exponents[i] = third[low & 15];
            low = shift_right(low, high, 4);
            high >>= 4;
        }
        return 0;
    }

    // The same when a lane of the warp has values in tier 4, or more than 16 items. The place of a lane's first value
    // in tier 4 is the number of items before the lane's first that are 15.
    DEVICE uint32_t put_escapes(const uint8_t *input, const uint32_t *table, const uint32_t *counts,
                                uint8_t *exponents) const
    {
        const uint8_t *third = reinterpret_cast<const uint8_t *>(table + 4);
        const uint32_t *words = reinterpret_cast<const uint32_t *>(input);
        const uint32_t at4 = at3 + (count_all(counts) + 1) / 2, from = 2 * at3;
        uint32_t at = from + first, left = wanted, bad = 0;
        const uint32_t of_warp = __shfl_sync(ALL_LANES, at, 0), escapes = count_fifteens(words, at, at + count, 0, 1);
        const uint32_t before =
            __reduce_add_sync(ALL_LANES, count_fifteens(words, from, of_warp, threadIdx.x % 32, 32));
        uint32_t rank = before + warp_scan(escapes) - escapes, items = words[at / 8] >> (4 * (at % 8));
#pragma unroll 1
        while (left != 0) {
            const uint32_t i = lowest_bit(left), item = items & 15;
            left &= left - 1;
            at++;
            items = at % 8 == 0 ? words[at / 8] : items >> 4;
            uint32_t exponent = third[item];
            if (item == 15) {
                exponent = input[min(at4 + rank++, last)];
                if (in_tiers(table, exponent))
                    bad = WARP_BAD;
            }
            exponents[i] = static_cast<uint8_t>(exponent);
        }
        return escapes | bad;
    }
};

// The ranking of a block. Other kinds (base_ranking) are made by one warp while it waits for the others, and see the
// exponents of each vector of 8 values, in all lanes.
struct table_ranking {
    const uint32_t *table;

    DEVICE void make(uint32_t, uint32_t) const
    {
    }
    DEVICE void see(const uint32_t[2]) const
    {
    }
};

// All workers; `turn` counts the tiered blocks of the team. Returns what the warp reports to the last warp.
template <bool WHOLE, class LAUNCH, class RANKING>
DEVICE uint32_t work_tiered(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                            block_writer &writer, RANKING &ranking, uint32_t turn, uint32_t warp, uint32_t lane)
{
    decode_shared &shared = team.shared();
    const uint8_t *input = team.lines(stage) + block.before;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(input);
    const uint32_t n = WHOLE ? BLOCK_VALUES : block.bytes / 2, thread = warp * 32 + lane, parity = turn & 1;
    uint32_t tier1[2], tier2[2], z[4];
    uint4 *rest = reinterpret_cast<uint4 *>(team.exponents() + 1024 * warp); // zeroes, except for values in tier 3
    rest[lane] = rest[32 + lane] = make_uint4(0, 0, 0, 0);
    load_tier1<WHOLE>(input, n, thread, tier1);
    const uint32_t on2[2] = {threes(tier1[0]), threes(tier1[1])}, count2 = popcount(on2[0]) + popcount(on2[1]);
    const uint32_t warp2 = __reduce_add_sync(ALL_LANES, count2);
    if (lane == 0)
        shared.counts2[stage][warp] = warp2;
    warp_arrive(&shared.counted2, lane);
    ranking.make(warp, lane);
    const uint32_t scan2 = warp_scan(count2) - count2;
    barrier_wait(&shared.counted2, parity);
    const uint32_t of_warp2 = lane < WORKER_WARPS ? shared.counts2[stage][lane] : 0;
    const uint32_t before2 = __reduce_add_sync(ALL_LANES, lane < warp ? of_warp2 : 0);
    const uint32_t all2 = __reduce_add_sync(ALL_LANES, of_warp2);
    const uint32_t at2 = n + (n + 3) / 4, bit = 8 * at2 + 2 * (before2 + scan2);
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
    const uint32_t scan3 = warp_scan(tier3.count) - tier3.count;
    merge_tiers(tier1, tier2, z);
    uint32_t *items = team.items();
    reinterpret_cast<uint4 *>(items)[thread] = make_uint4(z[0], z[1], z[2], z[3]);
    barrier_wait(&shared.counted3, parity);
    const uint32_t *counts3 = shared.counts3[stage];
    tier3.first = __reduce_add_sync(ALL_LANES, lane < warp ? counts3[lane] : 0) + scan3;
    tier3.at3 = at2 + (all2 + 3) / 4;
    tier3.last = BLOCK_SIZE + DECODE_SLACK - 1;
    const uint32_t found = tier3.put(input, ranking.table, counts3, team.exponents() + 32 * thread);
    uint32_t escapes = 0; // by the warp
    if (__any_sync(ALL_LANES, found != 0)) {
        const bool bad = __any_sync(ALL_LANES, (found & WARP_BAD) != 0);
        escapes = __reduce_add_sync(ALL_LANES, found & ~WARP_BAD) | (bad ? WARP_BAD : 0);
    }
    uint32_t tail = 0;
    if (!WHOLE && block.bytes % 2 != 0) { // the tail follows tier 4
        if (lane == 0)
            shared.escapes[stage][warp] = escapes & ~WARP_BAD;
        named_sync(team.among(), WORKERS);
        const uint32_t all4 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.escapes[stage][lane] : 0);
        tail = input[min(tier3.at3 + (count_all(counts3) + 1) / 2 + all4, tier3.last)];
        named_sync(team.among(), WORKERS);
    }
    const uint32_t first[2] = {ranking.table[0], ranking.table[1]};
    __syncwarp();
    const uint8_t *exponents = team.exponents();
    put_block<WHOLE>(launch, block, writer, tail, warp, lane, [&](uint32_t vector, uint32_t w[4]) {
        const uint2 s = reinterpret_cast<const uint2 *>(input)[vector];
        const uint2 e = reinterpret_cast<const uint2 *>(exponents)[vector];
        const uint32_t sm[2] = {s.x, s.y}, rest[2] = {e.x, e.y};
        uint32_t all[2];
        rank_exponents(items[vector], rest, first, all);
        ranking.see(all);
        join_values(sm, all, w);
    });
    __syncwarp();
    return escapes;
}

} // namespace strait
#endif
