// Workers of a team that codes blocks as tiers: FORMAT.md section 3, mode 4.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_TIERED_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_TIERED_CUH

#include "kernels/cuda/bits.cuh"
#include "kernels/cuda/encode.cuh"

namespace strait
{

// The exponents of a lane's consecutive values, up to 32, that went on to tier 3.
struct tier3_items {
    const uint16_t *values; // the lane's values
    const uint8_t *table;   // by sign and exponent
    uint32_t wanted;        // bit i: value i
    uint32_t count, escapes;
    uint32_t low, high; // the items, unless the warp is crowded
    uint32_t kept;      // likewise, the exponents in tier 4
    bool crowded;       // some lane of the warp has more than 16 items, or more than 4 in tier 4

    DEVICE uint32_t item(uint32_t i) const
    {
        return table[values[i] >> 7];
    }

    // Takes the last of those that are left.
    DEVICE uint32_t take(uint32_t &left) const
    {
        const uint32_t i = highest_bit(left);
        left ^= 1u << i;
        return item(i);
    }

    // The items of eight values of a crowded warp, each in its place, with zeroes elsewhere.
    DEVICE uint32_t look_at(uint32_t eight) const
    {
        const uint4 x = reinterpret_cast<const uint4 *>(values)[eight];
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
        uint32_t items = 0;
#pragma unroll
        for (int k = 3; k >= 0; k--) {
            items = items * 16 + table[w[k] >> 23];
            items = items * 16 + table[w[k] >> 7 & 511];
        }
        return items & spread_bits(wanted >> (8 * eight) & 255) * 15;
    }

    // All lanes. In a crowded warp the items are only counted: its block may well become raw in the end.
    DEVICE void collect()
    {
        low = high = kept = escapes = 0;
        count = popcount(wanted);
        crowded = __any_sync(ALL_LANES, count > 16);
        uint32_t left = crowded ? 0 : wanted, uncounted = wanted ^ left;
        if (popcount(left) % 2 != 0)
            low = take(left);
#pragma unroll 1
        while (left != 0) { // from the last to the first, two at a time: taking one would wait for memory just as long
            const uint32_t later = take(left), earlier = take(left);
            high = shift_left(low, high, 8);
            low = low * 256 + later * 16 + earlier;
        }
        uint32_t a = fifteens(low), b = fifteens(high);
        if ((a | b) != 0)
            escapes = popcount(a) + popcount(b);
#pragma unroll 1
        for (uint32_t eight = 0; uncounted != 0; eight++, uncounted >>= 8)
            escapes += popcount(fifteens(look_at(eight)));
    }

    // All lanes, after collect(), when some lane has values in tier 4. After this only a crowded warp reads its values
    // again.
    DEVICE void keep()
    {
        crowded = crowded || __any_sync(ALL_LANES, escapes > 4);
        uint32_t left = wanted, items = low, later = high;
#pragma unroll 1
        for (uint32_t missing = crowded ? 0 : escapes; missing != 0; left &= left - 1) {
            if ((items & 15) == 15) {
                kept = kept >> 8 | static_cast<uint32_t>(values[lowest_bit(left)]) >> 7 << 24;
                missing--;
            }
            items = shift_right(items, later, 4);
            later >>= 4;
        }
        kept = shift_right(kept, 0, 32 - 8 * escapes);
    }

    // Puts items into the stream from item number `at`, exponents into tier 4 from byte `at4`. The stream must have
    // been zero.
    DEVICE void put(uint8_t *rest, uint32_t at, uint32_t at4) const
    {
        if (crowded) {
            put_crowded(rest, at, at4);
            return;
        }
        uint32_t shift = at % 8 * 4, *p = reinterpret_cast<uint32_t *>(rest) + at / 8;
        uint32_t next = shift_left(low, high, shift), last = shift_left(high, 0, shift);
        atomicOr(p, low << shift);
        if (next != 0)
            atomicOr(p + 1, next);
        if (last != 0)
            atomicOr(p + 2, last);
#pragma unroll 1
        for (uint32_t k = 0; k < escapes; k++)
            rest[at4 + k] = static_cast<uint8_t>(kept >> (8 * k));
    }

    DEVICE void put_crowded(uint8_t *rest, uint32_t at, uint32_t at4) const
    {
        uint32_t *words = reinterpret_cast<uint32_t *>(rest), left = wanted;
#pragma unroll 1
        for (uint32_t eight = 0; left != 0; eight++, left >>= 8) {
            const uint32_t items = look_at(eight), shift = at % 8 * 4;
            uint32_t squeezed = 0, left4 = fifteens(items);
#pragma unroll
            for (int i = 7; i >= 0; i--)
                squeezed = (left >> i & 1) != 0 ? squeezed << 4 | (items >> (4 * i) & 15) : squeezed;
            const uint32_t next = shift_left(squeezed, 0, shift);
            if (squeezed != 0)
                atomicOr(words + at / 8, squeezed << shift);
            if (next != 0)
                atomicOr(words + at / 8 + 1, next);
            at += popcount(left & 255);
#pragma unroll 1
            for (; left4 != 0; left4 &= left4 - 1)
                rest[at4++] = static_cast<uint8_t>(values[8 * eight + lowest_bit(left4) / 4] >> 7);
        }
    }
};

// Where the streams of the whole block lie, found from the counts of all warps.
struct tier_places {
    uint32_t before2, before3, before4; // items of the warps before this one
    uint32_t at3, at4, end;             // bytes from the end of tier 1
    uint32_t escapes;
    bool any_escapes, maybe_const;
};

constexpr uint32_t COUNT_ESCAPES = 1u << 31, COUNT_SAME = 1u << 30;

DEVICE tier_places place_tiers(const encode_shared &shared, uint32_t parity, uint32_t warp, uint32_t lane)
{
    tier_places at;
    uint32_t counts = lane < WORKER_WARPS ? shared.counts[parity][lane] : COUNT_SAME;
    at.any_escapes = __any_sync(ALL_LANES, (counts & COUNT_ESCAPES) != 0);
    at.maybe_const = __all_sync(ALL_LANES, (counts & COUNT_SAME) != 0);
    counts &= ~(COUNT_ESCAPES | COUNT_SAME);
    uint32_t before = __reduce_add_sync(ALL_LANES, lane < warp ? counts : 0);
    uint32_t all = __reduce_add_sync(ALL_LANES, counts);
    at.escapes = at.before4 = 0;
    if (at.any_escapes) {
        uint32_t escapes = lane < WORKER_WARPS ? shared.escapes[parity][lane] : 0;
        uint32_t both = __reduce_add_sync(ALL_LANES, escapes << 16 | (lane < warp ? escapes : 0));
        at.escapes = both >> 16;
        at.before4 = both & 0xffff;
    }
    at.before2 = before & 0xffff;
    at.before3 = before >> 16;
    at.at3 = ((all & 0xffff) + 3) / 4;
    at.at4 = at.at3 + ((all >> 16) + 1) / 2;
    at.end = at.at4 + at.escapes;
    return at;
}

// All workers: codes the team's `turn`-th block. A WHOLE block has all its values.
template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER_TIERED> &team, uint32_t turn, uint32_t warp,
                       uint32_t lane)
{
    uint32_t keys[4];
    const uint32_t thread = warp * 32 + lane, parity = turn & 1;
    encode_shared &shared = team.shared();
    load_keys(shared, lane, keys);
    const encode_block &block = shared.block; // valid until the warp says that the stage may be filled
    const table_address table = shared_address(team.table());
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
    uint8_t *fixed = team.fixed(parity);
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : block.bytes, first_step = block.first_step, n = bytes / 2;
    uint8_t *rest = team.rest(parity);
    uint32_t *own = reinterpret_cast<uint32_t *>(rest + warp * (TIERED_REST / WORKER_WARPS)); // scratch at first
    uint32_t z[4];
    partial_sum sum = {0, 0, 0};
    const uint32_t step = first_step + warp * 32 + lane / 4;
    const uint32_t even_step = step * SUM_STEP_EVEN, odd_step = step * SUM_STEP_ODD;
    bool same = true;
#pragma unroll
    for (uint32_t g = 0; g < 4; g++) {
        const uint32_t vector = worker_vector(warp, lane, g);
        const uint4 x = input[vector];
        uint32_t w[4] = {x.x, x.y, x.z, x.w}, sm[2];
        if (WHOLE || vector < n / 8) {
            if (g == 0)
                same = (w[0] & 0xffff) == *reinterpret_cast<const uint16_t *>(input);
            split_values(w, sm);
            sum_vector(sum, w, keys, even_step + g * 8 * SUM_STEP_EVEN, odd_step + g * 8 * SUM_STEP_ODD);
            z[g] = tier_codes(w, table);
        } else {
            uint32_t values = take_edge(w, bytes, first_step, vector, keys, sum), kept = low_bits(2 * values);
            split_values(w, sm);
            sm[0] &= low_bits(8 * values);
            sm[1] &= values > 4 ? low_bits(8 * (values - 4)) : 0;
            z[g] = tier_codes(w, table) & (kept & 0xffff) * 0x10001u;
        }
        own[g * 32 + lane] = z[g];
        reinterpret_cast<uint2 *>(fixed)[vector] = make_uint2(sm[0], sm[1]);
    }
    const uint64_t lane_total = sum_total(sum);
    __syncwarp();
    const uint4 lane_z = reinterpret_cast<const uint4 *>(own)[lane]; // from every 32nd vector to 4 consecutive
    z[0] = lane_z.x, z[1] = lane_z.y, z[2] = lane_z.z, z[3] = lane_z.w;
    __syncwarp();
    reinterpret_cast<uint4 *>(own)[lane] = make_uint4(0, 0, 0, 0);
    if (lane < TIERED_REST / WORKER_WARPS / 16 - 32)
        reinterpret_cast<uint4 *>(own)[32 + lane] = make_uint4(0, 0, 0, 0);
    uint32_t tier1[2], tier2[2];
    part_tiers(z, tier1, tier2);
    reinterpret_cast<uint2 *>(fixed + SM_BYTES)[thread] = make_uint2(tier1[0], tier1[1]);
    const uint32_t on2[2] = {threes(tier1[0]), threes(tier1[1])};
    const uint32_t count2 = popcount(on2[0]) + popcount(on2[1]);
    tier3_items items3;
    items3.values = reinterpret_cast<const uint16_t *>(input) + warp * 1024 + lane * 32;
    items3.table = team.table() + 1024;
    items3.wanted = even_bits(threes(tier2[0]), threes(tier2[1]));
    items3.collect();
    // Counts of the warp, then of the block.
    const uint32_t both = count2 | items3.count << 16, of_warp = __reduce_add_sync(ALL_LANES, both);
    const bool escapes = __any_sync(ALL_LANES, items3.escapes != 0), warp_same = __all_sync(ALL_LANES, same);
    const uint32_t scan4 = escapes ? warp_scan(items3.escapes) : 0;
    if (lane == 31)
        shared.escapes[parity][warp] = scan4;
    __syncwarp();
    if (lane == 0)
        shared.counts[parity][warp] = of_warp | (escapes ? COUNT_ESCAPES : 0) | (warp_same ? COUNT_SAME : 0);
    warp_arrive(&shared.counted, lane);
    if (escapes)
        items3.keep();
    barrier_wait(&shared.counted, parity);
    const tier_places at = place_tiers(shared, parity, warp, lane);
    const uint32_t codes = (n + 3) / 4, used = n + codes + at.end + bytes % 2;
    const uint32_t raw_units = units_of(bytes);
    uint32_t units = units_of(used), mode = STRAIT_BLOCK_TIERED;
    if (units >= raw_units) {
        units = raw_units;
        mode = STRAIT_BLOCK_RAW;
    }
    if (at.maybe_const && raw_units > 1 && is_const(team, n, warp, lane)) {
        units = 1;
        mode = STRAIT_BLOCK_CONST;
    }
    const bool streams = mode == STRAIT_BLOCK_TIERED, pack = streams && (n % 64 != 0 || bytes % 2 != 0);
    const bool late = items3.crowded || pack;
    const bool from_stage = WHOLE ? mode == STRAIT_BLOCK_CONST : !streams || pack;
    if (thread == 0) {
        const uint32_t size = make_size(units, mode, streams ? at.escapes : 0);
        publish_size(launch, shared.tag, block.slot, size);
        encode_job &job = shared.jobs[parity];
        job = {0, size, n, from_stage, block.slot, block.first_slot, block.item, block.dst};
        if (mode == STRAIT_BLOCK_CONST)
            make_const(team, bytes);
    }
    if (streams && !late)
        warp_arrive(&shared.empty, lane);
    if (WHOLE && mode == STRAIT_BLOCK_RAW) {
        copy_raw(team, parity, warp, lane);
        warp_arrive(&shared.empty, lane);
    }
    // From here on the next block is on its way; whatever could wait has been put off until now.
    const uint64_t total = warp_sum(lane_total);
    if (lane == 0)
        shared.sums[parity][warp] = total;
    if (streams) {
        const uint64_t items2 = squeeze_pair(tier2, on2);
        const uint32_t scan = warp_scan(both) - both;
        const uint32_t item = at.before2 + (scan & 0xffff), shift = item % 16 * 2;
        uint32_t *p = reinterpret_cast<uint32_t *>(rest) + item / 16;
        const uint32_t low = static_cast<uint32_t>(items2), high = static_cast<uint32_t>(items2 >> 32);
        const uint32_t last = shift_left(high, 0, shift);
        atomicOr(p, low << shift);
        atomicOr(p + 1, shift_left(low, high, shift));
        if (last != 0)
            atomicOr(p + 2, last);
        if (items3.count != 0)
            items3.put(rest, 2 * at.at3 + at.before3 + (scan >> 16), at.at4 + at.before4 + scan4 - items3.escapes);
        if (late && !pack)
            warp_arrive(&shared.empty, lane);
    }
    if (pack) {
        named_sync(team.among(), WORKERS);
        pack_streams(team, parity, bytes, codes, at.end, thread);
    }
    fence_bulk();
    warp_arrive(&shared.ready[parity], lane);
}

} // namespace strait
#endif
