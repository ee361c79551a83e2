// Tiered blocks (FORMAT.md section 3, mode 4): workers of encoding and of decoding teams, and checks.
#ifndef STRAIT_KERNELS_CUDA_MODE_TIERED_CUH
#define STRAIT_KERNELS_CUDA_MODE_TIERED_CUH

#include "kernels/cuda/decode_team.cuh"
#include "kernels/cuda/encode_team.cuh"

namespace strait
{

// ---- Encoding ------------------------------------------------------------------------------------------------------

// Values of a lane and their items in tier 3, by a table.
struct table_source {
    const uint16_t *values; // the lane's values
    const uint8_t *table;   // by sign and exponent

    DEVICE uint32_t item(uint32_t i) const
    {
        return table[values[i] >> 7];
    }
    // What value i has in tier 4, in the lowest byte.
    DEVICE uint32_t escape(uint32_t i) const
    {
        return static_cast<uint32_t>(values[i]) >> 7;
    }
    // Items of eight values.
    DEVICE uint32_t eight_items(uint32_t eight) const
    {
        const uint4 x = reinterpret_cast<const uint4 *>(values)[eight];
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
        uint32_t items = 0;
#pragma unroll
        for (int k = 3; k >= 0; k--) {
            items = items * 16 + table[w[k] >> 23];
            items = items * 16 + table[w[k] >> 7 & 511];
        }
        return items;
    }
};

// Tier-3 items of a lane, which has up to 32 consecutive values.
template <class SOURCE> struct tier3_items {
    SOURCE source;
    uint32_t wanted; // bit i: value i
    uint32_t count, escapes;
    uint32_t low, high;    // the items, unless dense_escapes
    uint32_t escape_bytes; // the exponents in tier 4, unless dense_escapes
    bool dense_escapes;    // some lane of the warp has more than 16 items, or more than 4 in tier 4

    // Removes the last value from `left` and returns its item.
    DEVICE uint32_t pop(uint32_t &left) const
    {
        const uint32_t i = highest_bit(left);
        left ^= 1u << i;
        return source.item(i);
    }

    // Items of eight values, each at the position of its value, with zeroes elsewhere. For warps with dense escapes.
    DEVICE uint32_t load8(uint32_t eight) const
    {
        return source.eight_items(eight) & spread_bits(wanted >> (8 * eight) & 255) * 15;
    }

    // All lanes. With dense escapes the items are only counted: the block may well become raw in the end.
    DEVICE void collect()
    {
        low = high = escape_bytes = escapes = 0;
        count = popcount(wanted);
        dense_escapes = __any_sync(ALL_LANES, count > 16);
        uint32_t left = dense_escapes ? 0 : wanted, uncounted = wanted ^ left;
        if (popcount(left) % 2 != 0)
            low = pop(left);
#pragma unroll 1
        while (left != 0) { // from the last to the first, two at a time: taking one would wait for memory just as long
            const uint32_t later = pop(left), earlier = pop(left);
            high = shift_left(low, high, 8);
            low = low * 256 + later * 16 + earlier;
        }
        uint32_t a = fifteens(low), b = fifteens(high);
        if ((a | b) != 0)
            escapes = popcount(a) + popcount(b);
#pragma unroll 1
        for (uint32_t eight = 0; uncounted != 0; eight++, uncounted >>= 8)
            escapes += popcount(fifteens(load8(eight)));
    }

    // All lanes, after collect(), when some lane has values in tier 4. Afterwards only a warp with dense escapes reads
    // its values again.
    DEVICE void collect_escapes()
    {
        dense_escapes = dense_escapes || __any_sync(ALL_LANES, escapes > 4);
        uint32_t left = wanted, items = low, later = high;
#pragma unroll 1
        for (uint32_t missing = dense_escapes ? 0 : escapes; missing != 0; left &= left - 1) {
            if ((items & 15) == 15) {
                escape_bytes = escape_bytes >> 8 | source.escape(lowest_bit(left)) << 24;
                missing--;
            }
            items = shift_right(items, later, 4);
            later >>= 4;
        }
        escape_bytes = shift_right(escape_bytes, 0, 32 - 8 * escapes);
    }

    // Stores items from item number `at` of the stream, exponents from byte `at4` of tier 4. The stream must have been
    // zero.
    DEVICE void store(uint8_t *rest, uint32_t at, uint32_t at4) const
    {
        if (dense_escapes) {
            store_dense(rest, at, at4);
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
            rest[at4 + k] = static_cast<uint8_t>(escape_bytes >> (8 * k));
    }

    DEVICE void store_dense(uint8_t *rest, uint32_t at, uint32_t at4) const
    {
        uint32_t *words = reinterpret_cast<uint32_t *>(rest), left = wanted;
#pragma unroll 1
        for (uint32_t eight = 0; left != 0; eight++, left >>= 8) {
            const uint32_t items = load8(eight), shift = at % 8 * 4;
            uint32_t compacted = 0, left4 = fifteens(items);
#pragma unroll
            for (int i = 7; i >= 0; i--)
                compacted = (left >> i & 1) != 0 ? compacted << 4 | (items >> (4 * i) & 15) : compacted;
            const uint32_t next = shift_left(compacted, 0, shift);
            if (compacted != 0)
                atomicOr(words + at / 8, compacted << shift);
            if (next != 0)
                atomicOr(words + at / 8 + 1, next);
            at += popcount(left & 255);
#pragma unroll 1
            for (; left4 != 0; left4 &= left4 - 1)
                rest[at4++] = static_cast<uint8_t>(source.escape(8 * eight + lowest_bit(left4) / 4));
        }
    }
};

// Zeroes the items of tiers 1 and 2 past the last of a lane's `left` values.
DEVICE void cut_tiers(uint32_t tier1[2], uint32_t tier2[2], uint32_t left)
{
    const uint32_t masks[2] = {low_mask(2 * left), left > 16 ? low_mask(2 * (left - 16)) : 0};
#pragma unroll
    for (int i = 0; i < 2; i++)
        tier1[i] &= masks[i], tier2[i] &= masks[i];
}

// Offsets of the streams of the whole block, from the counts of all warps.
struct tier_offsets {
    uint32_t before2, before3, before4; // items of the warps before this one
    uint32_t at3, at4, end;             // bytes from the end of tier 1
    uint32_t escapes;
    bool any_escapes, maybe_const;
};

constexpr uint32_t COUNT_ESCAPES = 1u << 31, COUNT_SAME = 1u << 30;

// `of_warps`, `escapes_of_warps`: what each warp has.
DEVICE tier_offsets find_tier_offsets(const uint32_t *of_warps, const uint32_t *escapes_of_warps, uint32_t warp,
                                      uint32_t lane)
{
    tier_offsets at;
    uint32_t counts = lane < WORKER_WARPS ? of_warps[lane] : COUNT_SAME;
    at.any_escapes = __any_sync(ALL_LANES, (counts & COUNT_ESCAPES) != 0);
    at.maybe_const = __all_sync(ALL_LANES, (counts & COUNT_SAME) != 0);
    counts &= ~(COUNT_ESCAPES | COUNT_SAME);
    uint32_t before = __reduce_add_sync(ALL_LANES, lane < warp ? counts : 0);
    uint32_t all = __reduce_add_sync(ALL_LANES, counts);
    at.escapes = at.before4 = 0;
    if (at.any_escapes) {
        uint32_t escapes = lane < WORKER_WARPS ? escapes_of_warps[lane] : 0;
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

// Stores a lane's items of tiers 2 and 3 and its exponents of tier 4. `scan`: items of tier 2, and of tier 3 in the
// upper half, of the warp's lanes before this one; `scan4`: exponents of tier 4 up to this lane.
template <class SOURCE>
DEVICE void store_tiers(uint8_t *variable, uint64_t items2, const tier3_items<SOURCE> &items3, const tier_offsets &at,
                        uint32_t scan, uint32_t scan4)
{
    const uint32_t item = at.before2 + (scan & 0xffff), shift = item % 16 * 2;
    uint32_t *p = reinterpret_cast<uint32_t *>(variable) + item / 16;
    const uint32_t low = static_cast<uint32_t>(items2), high = static_cast<uint32_t>(items2 >> 32);
    const uint32_t last = shift_left(high, 0, shift);
    atomicOr(p, low << shift);
    atomicOr(p + 1, shift_left(low, high, shift));
    if (last != 0)
        atomicOr(p + 2, last);
    if (items3.count != 0)
        items3.store(variable, 2 * at.at3 + at.before3 + (scan >> 16), at.at4 + at.before4 + scan4 - items3.escapes);
}

template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER_TIERED> &team, uint32_t iteration, uint32_t warp,
                       uint32_t lane)
{
    uint32_t keys[4];
    const uint32_t thread = warp * 32 + lane, parity = iteration & 1;
    encode_shared &shared = team.shared();
    load_keys(shared, lane, keys);
    const encode_block &block = shared.block; // valid until the warp arrives at `empty`
    const table_address table = shared_address(team.table());
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
    uint8_t *fixed = team.fixed(parity);
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : block.bytes, first_step = block.first_step, n = bytes / 2;
    uint8_t *variable = team.variable(parity);
    uint32_t *own =
        reinterpret_cast<uint32_t *>(variable + warp * (TIERED_VARIABLE / WORKER_WARPS)); // scratch at first
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
            uint32_t values = sum_edge(w, bytes, first_step, vector, keys, sum), mask = low_mask(2 * values);
            split_values(w, sm);
            sm[0] &= low_mask(8 * values);
            sm[1] &= values > 4 ? low_mask(8 * (values - 4)) : 0;
            z[g] = tier_codes(w, table) & (mask & 0xffff) * 0x10001u;
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
    if (lane < TIERED_VARIABLE / WORKER_WARPS / 16 - 32)
        reinterpret_cast<uint4 *>(own)[32 + lane] = make_uint4(0, 0, 0, 0);
    uint32_t tier1[2], tier2[2];
    part_tiers(z, tier1, tier2);
    reinterpret_cast<uint2 *>(fixed + SM_BYTES)[thread] = make_uint2(tier1[0], tier1[1]);
    const uint32_t on2[2] = {threes(tier1[0]), threes(tier1[1])};
    const uint32_t count2 = popcount(on2[0]) + popcount(on2[1]);
    tier3_items<table_source> items3;
    items3.source = {reinterpret_cast<const uint16_t *>(input) + warp * 1024 + lane * 32, team.table() + 1024};
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
    warp_arrive(&shared.counts_ready, lane);
    if (escapes)
        items3.collect_escapes();
    barrier_wait(&shared.counts_ready, parity);
    const tier_offsets at = find_tier_offsets(shared.counts[parity], shared.escapes[parity], warp, lane);
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
    const bool release_late = items3.dense_escapes || pack;
    const bool from_stage = WHOLE ? mode == STRAIT_BLOCK_CONST : !streams || pack;
    if (thread == 0)
        submit_block(launch, team, parity, make_size(units, mode, streams ? at.escapes : 0), n, from_stage,
                     mode == STRAIT_BLOCK_CONST, bytes);
    if (streams && !release_late)
        warp_arrive(&shared.empty, lane);
    if (WHOLE && mode == STRAIT_BLOCK_RAW) {
        copy_raw(team, parity, BLOCK_SIZE, warp, lane);
        warp_arrive(&shared.empty, lane);
    }
    // The next block is being loaded from here on; all work that could wait has been deferred to here.
    const uint64_t total = warp_sum(lane_total);
    if (lane == 0)
        shared.sums[parity][warp] = total;
    if (streams) {
        const uint64_t items2 = compact_pair(tier2, on2);
        const uint32_t scan = warp_scan(both) - both;
        store_tiers(variable, items2, items3, at, scan, scan4);
        if (release_late && !pack)
            warp_arrive(&shared.empty, lane);
    }
    if (pack) {
        named_sync(team.barrier_id(), WORKERS);
        pack_streams(team, parity, bytes, codes, at.end, thread);
    }
    fence_bulk();
    warp_arrive(&shared.job_ready[parity], lane);
}

// ---- Decoding: two scans over the block give the offsets of a lane's items in tiers 2 and 3 ------------------------

// Whether an exponent is in the first three tiers, by the table in shared memory: a load from global memory would hold
// up the block.
DEVICE bool in_tiers(const uint32_t *table, uint32_t exponent)
{
    const uint32_t other = ~exponent & 255; // fills the bytes that hold no exponents
    return holds_byte(table[0], exponent) || holds_byte((table[1] & 0xffff) | other * 0x01010000u, exponent) ||
           holds_byte(table[4], exponent) || holds_byte(table[5], exponent) || holds_byte(table[6], exponent) ||
           holds_byte((table[7] & 0xffffff) | other << 24, exponent);
}

// Sum of the counts of all warps.
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
    tier1[0] &= low_mask(2 * values);
    tier1[1] &= values > 16 ? low_mask(2 * (values - 16)) : 0;
}

// How many 4-bit items from number `from` up to `to` are 15. Threads that count together take each `step`-th word,
// beginning with word `start`.
DEVICE uint32_t count_fifteens(const uint32_t *words, uint32_t from, uint32_t to, uint32_t start, uint32_t step)
{
    uint32_t count = 0;
#pragma unroll 1
    for (uint32_t k = from / 8 + start; k <= to / 8; k += step) {
        uint32_t found = fifteens(words[k]);
        if (k == from / 8)
            found &= ALL_LANES << (4 * (from % 8));
        if (k == to / 8)
            found &= (1u << (4 * (to % 8))) - 1;
        count += popcount(found);
    }
    return count;
}

// What a lane stores for a value in tier 3 or 4: its exponent as it is found.
struct found_exponents {
    DEVICE uint32_t operator()(uint32_t exponent) const
    {
        return exponent;
    }
};

// Decodes tier 3 of a lane: stores exponents at the positions of their values.
struct tier3_lane {
    uint32_t wanted; // bit i: value i
    uint32_t count;
    uint32_t first;     // number of its first item in the stream
    uint32_t at3, last; // byte where tier 3 begins; the stage's last byte

    // All lanes. Returns how many values are in tier 4, with WARP_BAD when one should not be. `counts` are the counts
    // of all warps; make(x) is the exponent of what tier 3 or 4 has.
    template <class MAKE>
    DEVICE uint32_t put(const uint8_t *input, const uint32_t *table, const uint32_t *counts, uint8_t *exponents,
                        MAKE make) const
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
            return put_escapes(input, table, counts, exponents, make);
#pragma unroll 1
        while (left != 0) {
            const uint32_t i = leading_zeroes(left);
            left ^= 0x80000000u >> i;
            exponents[i] = static_cast<uint8_t>(make(third[low & 15]));
            low = shift_right(low, high, 4);
            high >>= 4;
        }
        return 0;
    }

    // Variant of put for a warp that has values in tier 4, or more than 16 items in a lane. The position in tier 4 of a
    // lane's first value is the number of items before the lane's first that are 15.
    template <class MAKE>
    DEVICE uint32_t put_escapes(const uint8_t *input, const uint32_t *table, const uint32_t *counts, uint8_t *exponents,
                                MAKE make) const
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
            exponents[i] = static_cast<uint8_t>(make(exponent));
        }
        return escapes | bad;
    }
};

// Ranking of a block by its table. Another ranking (base_ranking) is made by one warp while it waits for the others,
// and observes the exponents of each vector of 8 values, in all lanes.
struct table_ranking {
    const uint32_t *table;

    DEVICE void make(uint32_t, uint32_t) const
    {
    }
    DEVICE void observe(const uint32_t[2]) const
    {
    }
};

// All workers; `iteration` counts the tiered blocks of the team. Returns the findings of the warp.
template <bool WHOLE, class LAUNCH, class RANKING>
DEVICE uint32_t decode_tiered(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                              block_writer &writer, RANKING &ranking, uint32_t iteration, uint32_t warp, uint32_t lane)
{
    decode_shared &shared = team.shared();
    const uint8_t *input = team.lines(stage) + block.before;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(input);
    const uint32_t n = WHOLE ? BLOCK_VALUES : block.bytes / 2, thread = warp * 32 + lane, parity = iteration & 1;
    uint32_t tier1[2], tier2[2], z[4];
    uint4 *rest = reinterpret_cast<uint4 *>(team.exponents() + 1024 * warp); // zeroes, except for values in tier 3
    rest[lane] = rest[32 + lane] = make_uint4(0, 0, 0, 0);
    load_tier1<WHOLE>(input, n, thread, tier1);
    const uint32_t on2[2] = {threes(tier1[0]), threes(tier1[1])}, count2 = popcount(on2[0]) + popcount(on2[1]);
    const uint32_t warp2 = __reduce_add_sync(ALL_LANES, count2);
    if (lane == 0)
        shared.counts2[stage][warp] = warp2;
    warp_arrive(&shared.counts2_ready, lane);
    ranking.make(warp, lane);
    const uint32_t scan2 = warp_scan(count2) - count2;
    barrier_wait(&shared.counts2_ready, parity);
    const uint32_t of_warp2 = lane < WORKER_WARPS ? shared.counts2[stage][lane] : 0;
    const uint32_t before2 = __reduce_add_sync(ALL_LANES, lane < warp ? of_warp2 : 0);
    const uint32_t all2 = __reduce_add_sync(ALL_LANES, of_warp2);
    const uint32_t at2 = n + (n + 3) / 4, bit = 8 * at2 + 2 * (before2 + scan2);
    {
        const uint32_t *p = words + bit / 32, three[3] = {p[0], p[1], p[2]};
        expand_pair(three, bit % 32, on2, tier2);
    }
    tier3_lane tier3;
    tier3.wanted = even_bits(threes(tier2[0]), threes(tier2[1]));
    tier3.count = popcount(tier3.wanted);
    const uint32_t warp3 = __reduce_add_sync(ALL_LANES, tier3.count);
    if (lane == 0)
        shared.counts3[stage][warp] = warp3;
    warp_arrive(&shared.counts3_ready, lane);
    const uint32_t scan3 = warp_scan(tier3.count) - tier3.count;
    merge_tiers(tier1, tier2, z);
    uint32_t *items = team.items();
    reinterpret_cast<uint4 *>(items)[thread] = make_uint4(z[0], z[1], z[2], z[3]);
    barrier_wait(&shared.counts3_ready, parity);
    const uint32_t *counts3 = shared.counts3[stage];
    tier3.first = __reduce_add_sync(ALL_LANES, lane < warp ? counts3[lane] : 0) + scan3;
    tier3.at3 = at2 + (all2 + 3) / 4;
    tier3.last = BLOCK_SIZE + DECODE_SLACK - 1;
    const uint32_t found = tier3.put(input, ranking.table, counts3, team.exponents() + 32 * thread, found_exponents());
    uint32_t escapes = 0; // by the warp
    if (__any_sync(ALL_LANES, found != 0)) {
        const bool bad = __any_sync(ALL_LANES, (found & WARP_BAD) != 0);
        escapes = __reduce_add_sync(ALL_LANES, found & ~WARP_BAD) | (bad ? WARP_BAD : 0);
    }
    uint32_t tail = 0;
    if (!WHOLE && block.bytes % 2 != 0) { // the tail follows tier 4
        if (lane == 0)
            shared.escapes[stage][warp] = escapes & ~WARP_BAD;
        named_sync(team.barrier_id(), WORKERS);
        const uint32_t all4 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.escapes[stage][lane] : 0);
        tail = input[min(tier3.at3 + (count_all(counts3) + 1) / 2 + all4, tier3.last)];
        named_sync(team.barrier_id(), WORKERS);
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
        ranking.observe(all);
        join_values(sm, all, w);
    });
    __syncwarp();
    return escapes;
}

// ---- Checks --------------------------------------------------------------------------------------------------------

// All lanes. The counts of items are those of the workers.
DEVICE streams measure_tiers(const decode_shared &shared, uint32_t stage, const decode_block &block, uint32_t lane)
{
    streams s = {};
    s.n = block.bytes / 2;
    s.count2 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.counts2[stage][lane] : 0);
    s.count3 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.counts3[stage][lane] : 0);
    s.count4 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.escapes[stage][lane] & ~WARP_BAD : 0);
    s.at2 = s.n + (s.n + 3) / 4;
    s.at3 = s.at2 + (s.count2 + 3) / 4;
    s.at4 = s.at3 + (s.count3 + 1) / 2;
    s.used = s.at4 + s.count4 + block.bytes % 2;
    return s;
}

// Check 14 of a tiered block: padding bits are zero, and it should not have been a const block.
DEVICE bool tiers_valid(const streams &s, const uint8_t *input, uint32_t lane)
{
    if (!is_padded<2>(input, s.n, s.n) || !is_padded<2>(input, s.at2, s.count2) ||
        !is_padded<4>(input, s.at3, s.count3))
        return false;
    if (!all_same<8>(input, 0, s.n, lane) || !all_same<2>(input, s.n, s.n, lane))
        return true;
    if (s.count2 == 0)
        return false; // all values are one value, of tier 1
    if (!all_same<2>(input, s.at2, s.n, lane))
        return true;
    if (s.count3 == 0)
        return false;
    if (!all_same<4>(input, s.at3, s.n, lane))
        return true;
    return s.count4 != 0 && !all_same<8>(input, s.at4, s.n, lane);
}

} // namespace strait
#endif
