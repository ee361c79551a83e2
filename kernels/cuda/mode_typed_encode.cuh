// Encoding blocks of the typed modes (6 to 8), FORMAT.md section 3.2.
#ifndef STRAIT_KERNELS_CUDA_MODE_TYPED_ENCODE_CUH
#define STRAIT_KERNELS_CUDA_MODE_TYPED_ENCODE_CUH

#include "kernels/cuda/mode_tiered.cuh"
#include "kernels/cuda/typed.cuh"

namespace strait
{

// ---- Streams, from tiers 1 and 2 of the high halves on -------------------------------------------------------------

// Offsets of streams in a team's room. Those of a full block, and of an even one of BF16, are made IN_PLACE, where
// they are stored from; those of other blocks lie as in a full one, and are packed afterwards.
template <coder_id CODER> struct typed_room {
    static constexpr typed_type TYPE = CODER == CODER_FP32 ? TYPE_FP32 : CODER == CODER_FP16 ? TYPE_FP16 : TYPE_BF16;
    typedef typed_values<TYPE> values;
    static constexpr uint32_t ONES =
        values::HIGH_HALVES / 4; // FP16: one low bit of each value, after the stream of two bits of each
    static constexpr uint32_t SM = low_bits_size<TYPE>(values::HIGH_HALVES);
    static constexpr uint32_t RANKS = IMAGE_TIERS_BYTES; // rank by exponent, behind the ranking that replaces the table
    uint32_t high_halves;                                // of the even block, or of a full one

    DEVICE uint32_t codes() const
    {
        return SM + high_halves;
    }
    DEVICE uint32_t tiers() const
    {
        return codes() + high_halves / 4;
    }
    DEVICE uint32_t list() const
    {
        return codes() + high_halves / 2;
    }
};
static_assert(IMAGE_TIERS_BYTES + 256 <= LUT_BYTES, "room for ranks");

// A lane of workers and its block once the base is known: consecutive high halves.
struct typed_lane {
    uint32_t bytes, base;
    bool by_base, has_low_bits; // the ranking is that of the base; some low bits are nonzero
    bool new_base;              // put_ranking has just written the ranking
    bool warp_same;             // the warp's first values equal the block's first one
    uint32_t left;              // high halves of the lane
    uint32_t tier1[2], tier2[2];

    // Zeroes the codes past the last high half of the block.
    DEVICE void cut()
    {
        cut_tiers(tier1, tier2, left);
    }
};

// All workers, when all have arrived at the block: replaces the table by the ranking of the base, unless it is there
// already. wait_ranking waits until all workers have written before any lookup.
template <coder_id CODER> DEVICE bool put_ranking(const encode_team<CODER> &team, uint32_t base, uint32_t thread)
{
    if (team.shared().base == base)
        return false;
    const uint32_t rank = base_rank(thread, base);
    uint8_t *tier3 = team.table() + 1024;
    tier3[thread] = tier3[256 + thread] = static_cast<uint8_t>(tier3_of_rank(rank));
    team.table()[typed_room<CODER>::RANKS + thread] = static_cast<uint8_t>(rank);
    return true;
}

template <coder_id CODER> DEVICE void wait_ranking(const encode_team<CODER> &team, uint32_t base, uint32_t thread)
{
    named_sync(team.barrier_id(), WORKERS);
    if (thread == 0)
        team.shared().base = base;
}

// Codes of four bits for the high halves of a lane.
template <coder_id CODER> struct four_bits {
    static constexpr uint32_t EACH = typed_room<CODER>::values::EACH;
    const uint16_t *values; // of the lane
    const uint8_t *ranks;
    uint32_t left, escapes; // of the lane: high halves; escapes, a bit for each
    uint32_t before, count; // escapes in the block: before the lane's; all

    DEVICE uint32_t rank(uint32_t i) const
    {
        return ranks[values[i] >> 7 & 255];
    }

    // All workers: counts the escapes before the lane's and in the block.
    DEVICE void count_escapes(const encode_team<CODER> &team, uint32_t warp, uint32_t lane)
    {
        escapes = 0;
#pragma unroll 4
        for (uint32_t i = 0; i < EACH; i++)
            escapes |= rank(i) < TOP16_RANKS ? 0 : 1u << i;
        escapes &= low_mask(left);
        const uint32_t mine = popcount(escapes), scan = warp_scan(mine);
        uint32_t *warp_values = team.shared().warp_values;
        if (lane == 31)
            warp_values[warp] = scan;
        named_sync(team.barrier_id(), WORKERS);
        const uint32_t of_warp = lane < WORKER_WARPS ? warp_values[lane] : 0;
        before = __reduce_add_sync(ALL_LANES, lane < warp ? of_warp : 0) + scan - mine;
        count = __reduce_add_sync(ALL_LANES, of_warp);
    }

    DEVICE uint32_t list_bytes() const
    {
        return count == 0 ? 0 : 2 + 3 * count;
    }

    DEVICE void put(uint8_t *streams, const typed_room<CODER> &room, uint32_t thread) const
    {
        uint32_t *codes = reinterpret_cast<uint32_t *>(streams + room.codes()) + thread * (EACH / 8);
#pragma unroll 1
        for (uint32_t v = 0; v < EACH / 8 && left > 0; v++) {
            uint32_t word = 0;
#pragma unroll
            for (uint32_t j = 0; j < 8; j++) {
                const uint32_t r = rank(8 * v + j);
                word |= r < TOP16_RANKS && 8 * v + j < left ? r << (4 * j) : 0;
            }
            codes[v] = word;
        }
        if (count == 0)
            return;
        uint8_t *list = streams + room.list();
        uint16_t *positions = reinterpret_cast<uint16_t *>(list + 2);
        uint8_t *exponents = list + 2 + 2 * count;
        if (thread == 0)
            *reinterpret_cast<uint16_t *>(list) = static_cast<uint16_t>(count);
        uint32_t remaining = escapes;
#pragma unroll 1
        for (uint32_t k = before; remaining != 0; k++) {
            const uint32_t i = lowest_bit(remaining);
            remaining &= remaining - 1;
            positions[k] = static_cast<uint16_t>(thread * EACH + i);
            exponents[k] = static_cast<uint8_t>(values[i] >> 7);
        }
    }
};

// The coded form of a block.
struct typed_block {
    uint32_t m, tail;                   // number of values; bytes left over
    uint32_t low_bits, codes, variable; // bytes of the low bits; of tier 1 or the codes; of the streams after these
    uint32_t coder, base;

    DEVICE uint32_t used() const
    {
        return low_bits + m + codes + variable + tail;
    }
    DEVICE uint32_t units() const
    {
        return units_of(used() + TYPED_END_BYTES);
    }
    DEVICE uint32_t stats_mode() const
    {
        return coder == TYPED_BASE_CODES    ? STRAIT_BLOCK_TOP16
               : coder == TYPED_BASE_LISTED ? STRAIT_BLOCK_TOP16_ESCAPES
                                            : STRAIT_BLOCK_TIERED;
    }
};

// All workers: packs the streams of a block one after another, and the end of the block, in the stage.
template <coder_id CODER>
DEVICE void pack_typed(const encode_team<CODER> &team, const typed_room<CODER> &room, const uint8_t *streams,
                       const typed_block &block, uint32_t bytes, uint32_t thread)
{
    uint8_t *stage = team.input(), *at = stage, *end = stage + block.units() * UNIT - TYPED_END_BYTES;
    const uint8_t tail = thread < block.tail ? stage[bytes - block.tail + thread] : 0;
    const bool tiers = block.coder <= TYPED_BASE_TIERS;
    named_sync(team.barrier_id(), WORKERS);
    if (room.TYPE == TYPE_FP16) {
        at = copy_stream(at, streams, (block.m + 3) / 4, thread);
        at = copy_stream(at, streams + room.ONES, (block.m + 7) / 8, thread);
    } else {
        at = copy_stream(at, streams, block.low_bits, thread);
    }
    at = copy_stream(at, streams + room.SM, block.m, thread);
    at = copy_stream(at, streams + room.codes(), block.codes, thread);
    at = copy_stream(at, streams + (tiers ? room.tiers() : room.list()), block.variable, thread);
    if (thread < block.tail)
        at[thread] = tail;
    at += block.tail;
    if (at + thread < end) // less than a unit
        at[thread] = 0;
    if (thread == 0) {
        end[0] = static_cast<uint8_t>(block.coder);
        end[1] = static_cast<uint8_t>(block.base);
    }
}

// All workers: encodes the high halves of block number `iteration` of the team and completes the block, whose streams
// lie IN_PLACE or are packed.
template <bool IN_PLACE, coder_id CODER, class LAUNCH>
DEVICE void code_high_halves(const LAUNCH &launch, const encode_team<CODER> &team, const typed_room<CODER> &room,
                             const typed_lane &high_halves, uint32_t parity, uint32_t warp, uint32_t lane)
{
    typedef typename typed_room<CODER>::values values;
    encode_shared &shared = team.shared();
    const uint32_t thread = warp * 32 + lane, first = thread * values::EACH, base = high_halves.base;
    const uint32_t bytes = high_halves.bytes, m = bytes / values::BYTES;
    const uint32_t *tier1 = high_halves.tier1, *tier2 = high_halves.tier2;
    const bool has_low_bits = high_halves.has_low_bits;
    uint8_t *streams = team.fixed(parity), *variable = streams + room.tiers();
    if (values::EACH == 32 && high_halves.left > 0)
        reinterpret_cast<uint2 *>(streams + room.codes())[thread] = make_uint2(tier1[0], tier1[1]);
    else if (values::EACH != 32)
        reinterpret_cast<uint32_t *>(streams + room.codes())[thread] = tier1[0];
    const uint32_t on2[2] = {threes(tier1[0]), threes(tier1[1])};
    const uint64_t items2 = compact_pair(tier2, on2);
    const uint32_t count2 = popcount(on2[0]) + popcount(on2[1]);
    tier3_items<table_source> items3;
    items3.source = {reinterpret_cast<const uint16_t *>(team.high_halves()) + first, team.table() + 1024};
    items3.wanted = even_bits(threes(tier2[0]), threes(tier2[1]));
    if (high_halves.new_base)
        wait_ranking(team, base, thread);
    items3.collect();
    const uint32_t both = count2 | items3.count << 16, of_warp = __reduce_add_sync(ALL_LANES, both);
    const bool escapes = __any_sync(ALL_LANES, items3.escapes != 0);
    const uint32_t scan4 = escapes ? warp_scan(items3.escapes) : 0;
    if (lane == 31)
        shared.escapes[parity][warp] = scan4;
    __syncwarp();
    if (lane == 0)
        shared.counts[parity][warp] =
            of_warp | (escapes ? COUNT_ESCAPES : 0) | (high_halves.warp_same ? COUNT_SAME : 0);
    warp_arrive(&shared.counts_ready, lane);
    const uint32_t scan = warp_scan(both) - both;
    if (escapes)
        items3.collect_escapes();
    barrier_wait(&shared.counts_ready, parity);

    const tier_offsets at = find_tier_offsets(shared.counts[parity], shared.escapes[parity], warp, lane);
    const uint32_t coder_of_tiers = high_halves.by_base ? TYPED_BASE_TIERS : TYPED_TABLE_TIERS;
    typed_block coded = {m,
                         bytes % values::BYTES,
                         has_low_bits ? low_bits_size<typed_room<CODER>::TYPE>(m) : 0,
                         (m + 3) / 4,
                         at.end,
                         coder_of_tiers,
                         base};
    four_bits<CODER> codes = {items3.source.values, team.table() + room.RANKS, high_halves.left, 0, 0, 0};
    uint32_t escaped = at.escapes;
    typed_block other = coded;
    other.codes = (m + 1) / 2, other.variable = 0;
    if (high_halves.by_base && coded.units() > other.units()) {
        codes.count_escapes(team, warp, lane);
        other.variable = codes.list_bytes();
        if (coded.units() > other.units()) {
            coded = other;
            coded.coder = codes.count == 0 ? TYPED_BASE_CODES : TYPED_BASE_LISTED;
            escaped = codes.count;
        }
    }
    const bool tiers = coded.coder <= TYPED_BASE_TIERS;
    const uint32_t raw_units = units_of(bytes);
    uint32_t units = coded.units();
    uint32_t form = make_form(room.TYPE == TYPE_BF16 ? STRAIT_BLOCK_BASE
                              : has_low_bits         ? STRAIT_BLOCK_SPLIT
                                                     : STRAIT_BLOCK_FP32Z,
                              coded.stats_mode());
    if (units >= raw_units) {
        units = raw_units;
        form = STRAIT_BLOCK_RAW;
    }
    if (at.maybe_const && raw_units > 1 && is_const(team, bytes / 2, warp, lane)) {
        units = 1;
        form = STRAIT_BLOCK_CONST;
    }
    const bool is_coded = form >= TYPED_FORMS;
    const bool from_stage = !IN_PLACE || form == STRAIT_BLOCK_CONST;
    const uint32_t begin = !is_coded || has_low_bits || room.TYPE == TYPE_BF16 ? 0 : room.SM;
    const bool release_late = !tiers || items3.dense_escapes;
    if (thread == 0)
        submit_block(launch, team, parity, make_size(units, form, is_coded ? escaped : 0), begin, from_stage,
                     form == STRAIT_BLOCK_CONST, bytes);
    if (IN_PLACE && is_coded && !release_late)
        warp_arrive(&shared.empty, lane);
    if (IN_PLACE && form == STRAIT_BLOCK_RAW) {
        copy_raw(team, parity, bytes, warp, lane);
        warp_arrive(&shared.empty, lane);
    }
    if (is_coded && tiers) {
        store_tiers(variable, items2, items3, at, scan, scan4);
    } else if (is_coded) {
        codes.put(streams, room, thread);
    }
    if (IN_PLACE && is_coded && thread == 0) { // the bytes after the streams are zero
        uint32_t *end = reinterpret_cast<uint32_t *>(streams + begin + units * UNIT) - 1;
        atomicOr(end, (coded.coder | base << 8) << 16);
    }
    if (IN_PLACE && is_coded && release_late)
        warp_arrive(&shared.empty, lane);
    if (!IN_PLACE && is_coded)
        pack_typed(team, room, streams, coded, bytes, thread);
    fence_bulk();
    warp_arrive(&shared.job_ready[parity], lane);
}

// ---- BF16 values by their bases, mode 6 ----------------------------------------------------------------------------

// The bytes after the streams are zero, as warps zero all of a block that shrinks from tier 1 on.
static_assert(BLOCK_VALUES + BLOCK_VALUES / 4 + TIERED_VARIABLE >= BLOCK_SIZE, "in blocks of any number of values");

// A lane holds the inverted exponents of its values in registers until the base is known.
template <bool WHOLE, bool IN_PLACE, class LAUNCH>
DEVICE void code_bf16_block(const LAUNCH &launch, const encode_team<CODER_BF16> &team, uint32_t iteration,
                            uint32_t warp, uint32_t lane)
{
    uint32_t keys[4], inverted[4][4];
    const uint32_t thread = warp * 32 + lane, parity = iteration & 1;
    encode_shared &shared = team.shared();
    load_keys(shared, lane, keys);
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : shared.block.bytes, n = bytes / 2;
    const uint32_t first_step = shared.block.first_step, step = first_step + warp * 32 + lane / 4;
    const uint32_t even_step = step * SUM_STEP_EVEN, odd_step = step * SUM_STEP_ODD;
    const typed_room<CODER_BF16> room = {IN_PLACE ? n : BLOCK_VALUES};
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
            truncate_vector(w, IN_PLACE ? 0 : 2 * sum_edge(w, bytes, first_step, vector, keys, sum));
        }
        split_values(w, sm);
        if (WHOLE || !IN_PLACE || vector < n / 8)
            reinterpret_cast<uint2 *>(streams + room.SM)[vector] = make_uint2(sm[0], sm[1]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            inverted[g][j] = inverted_exponents(w[j]);
            of_part = least_inverted(of_part, inverted[g][j]);
        }
        parts = count_part(parts, __reduce_min_sync(ALL_LANES, least_of_u16x2(of_part)));
    }
    if (lane == 0)
        shared.warp_values[warp] = order_of_inverted(parts);
    warp_arrive(&shared.base_ready, lane);
    const uint64_t total = warp_sum(sum_total(sum));
    if (lane == 0)
        shared.sums[parity][warp] = total;
    typed_lane block = {bytes, 0, true, false, false, false};
    block.warp_same = __all_sync(ALL_LANES, same);
    barrier_wait(&shared.base_ready, parity);
    block.base =
        base_from_order(__reduce_min_sync(ALL_LANES, lane < WORKER_WARPS ? shared.warp_values[lane] : NO_BASE));
    block.new_base = put_ranking(team, block.base, thread);

    const uint32_t to_add = base_to_add(block.base);
    uint32_t *own = reinterpret_cast<uint32_t *>(streams + room.tiers() + warp * (TIERED_VARIABLE / WORKER_WARPS));
#pragma unroll
    for (uint32_t g = 0; g < 4; g++)
        own[g * 32 + lane] = base_codes(inverted[g], to_add);
    __syncwarp();
    const uint4 z = reinterpret_cast<const uint4 *>(own)[lane]; // from every 32nd vector to 4 consecutive
    __syncwarp();
    reinterpret_cast<uint4 *>(own)[lane] = make_uint4(0, 0, 0, 0);
    if (lane < TIERED_VARIABLE / WORKER_WARPS / 16 - 32)
        reinterpret_cast<uint4 *>(own)[32 + lane] = make_uint4(0, 0, 0, 0);
    part_base_codes(z.x, z.y, block.tier1[0], block.tier2[0]);
    part_base_codes(z.z, z.w, block.tier1[1], block.tier2[1]);
    block.left = WHOLE ? 32 : min(n - min(n, 32 * thread), 32u);
    if (!WHOLE)
        block.cut();
    code_high_halves<IN_PLACE>(launch, team, room, block, parity, warp, lane);
}

template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER_BF16> &team, uint32_t iteration, uint32_t warp,
                       uint32_t lane)
{
    if (WHOLE)
        code_bf16_block<true, true>(launch, team, iteration, warp, lane);
    else if (team.shared().block.bytes % EVEN_BYTES == 0)
        code_bf16_block<false, true>(launch, team, iteration, warp, lane);
    else
        code_bf16_block<false, false>(launch, team, iteration, warp, lane);
}

// ---- FP16 and FP32 values ------------------------------------------------------------------------------------------

// Workers make two passes over a block. In the first they split values, and what they publish then gives the base; in
// the second they code high halves.

// Splits a worker's values of a block into high halves and low bits.
template <coder_id CODER> struct value_splitter {
    typedef typed_room<CODER> room;
    uint8_t *streams, *high_halves;
    uint32_t inverted, parts; // the least inverted exponents of a part; of all parts
    uint32_t low_bits;        // FP32: nonzero when some low bits are

    DEVICE void put_sign_mantissa(const uint32_t w[4], uint32_t vector)
    {
        uint32_t sm[2];
        split_values(w, sm);
        reinterpret_cast<uint2 *>(streams + room::SM)[vector] = make_uint2(sm[0], sm[1]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            inverted = least_inverted(inverted, inverted_exponents(w[j]));
    }

    DEVICE void split_fp16(const uint32_t w[4], uint32_t vector)
    {
        uint32_t h[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            h[j] = fp16_high_halves(w[j]);
        reinterpret_cast<uint4 *>(high_halves)[vector] = make_uint4(h[0], h[1], h[2], h[3]);
        reinterpret_cast<uint16_t *>(streams)[vector] = static_cast<uint16_t>(pack_low_twos(w));
        streams[room::ONES + vector] = static_cast<uint8_t>(pack_low_ones(w));
        put_sign_mantissa(h, vector);
    }

    DEVICE void split_fp32(const uint32_t w[4], uint32_t vector)
    {
        const uint32_t h[4] = {permute(w[0], w[1], 0x7632), permute(w[2], w[3], 0x7632), 0, 0};
        uint32_t sm[2];
        split_values(h, sm);
        reinterpret_cast<uint2 *>(high_halves)[vector] = make_uint2(h[0], h[1]);
        reinterpret_cast<uint2 *>(streams)[vector] =
            make_uint2(permute(w[0], w[1], 0x5410), permute(w[2], w[3], 0x5410));
        reinterpret_cast<uint32_t *>(streams + room::SM)[vector] = sm[0];
        low_bits |= (w[0] | w[1] | w[2] | w[3]) & 0xffff;
#pragma unroll
        for (int j = 0; j < 2; j++)
            inverted = least_inverted(inverted, inverted_exponents(h[j]));
    }

    DEVICE void split(const uint32_t w[4], uint32_t vector)
    {
        if (room::TYPE == TYPE_FP32)
            split_fp32(w, vector);
        else if (room::TYPE == TYPE_FP16)
            split_fp16(w, vector);
        else
            put_sign_mantissa(w, vector);
    }

    DEVICE void end_part()
    {
        parts = count_part(parts, __reduce_min_sync(ALL_LANES, least_of_u16x2(inverted)));
        inverted = NO_INVERTED;
    }
};

// The first pass. Returns whether the warp's first values equal the block's first one.
template <bool WHOLE, coder_id CODER>
DEVICE bool split_block(const encode_team<CODER> &team, value_splitter<CODER> &splitter, const uint32_t keys[4],
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
            sum_edge(w, bytes, first_step, vector, keys, sum);
            truncate_vector(w, before < m ? (m - before) * values::BYTES : 0);
        }
        splitter.split(w, vector);
        if ((g + 1) % values::STEPS == 0)
            splitter.end_part();
    }
    return __all_sync(ALL_LANES, same);
}

// Tiers 1 and 2 of the lane's high halves, which are consecutive.
template <coder_id CODER> DEVICE void code_lane(const encode_team<CODER> &team, typed_lane &block, uint32_t thread)
{
    constexpr uint32_t VECTORS = typed_room<CODER>::values::EACH / 8;
    const uint4 *high_halves = reinterpret_cast<const uint4 *>(team.high_halves()) + thread * VECTORS;
    const table_address table = shared_address(team.table());
    const uint32_t rotation = VECTORS == 4 ? thread / 2 % 4 : 0; // lanes begin at different vectors, in different banks
    const uint32_t to_add = base_to_add(block.base);
    uint32_t z[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t k = 0; k < VECTORS; k++) {
        const uint4 x = high_halves[k ^ rotation];
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
        const bool odd = (rotation & 1) != 0, upper = (rotation & 2) != 0;
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

template <bool WHOLE, coder_id CODER, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t iteration, uint32_t warp,
                       uint32_t lane)
{
    uint32_t keys[4];
    typedef typename typed_room<CODER>::values values;
    constexpr typed_room<CODER> room = {values::HIGH_HALVES};
    const uint32_t thread = warp * 32 + lane, parity = iteration & 1;
    encode_shared &shared = team.shared();
    load_keys(shared, lane, keys);
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : shared.block.bytes, m = bytes / values::BYTES;
    const uint32_t first = thread * values::EACH;
    const bool by_base = launch.head.mode == STRAIT_MODE_BASE;
    uint8_t *streams = team.fixed(parity), *variable = streams + room.tiers();

    partial_sum sum = {0, 0, 0};
    value_splitter<CODER> splitter = {streams, team.high_halves(), NO_INVERTED, 0, 0};
    const bool warp_same = split_block<WHOLE>(team, splitter, keys, sum, warp, lane);
    const bool warp_low_bits = __any_sync(ALL_LANES, splitter.low_bits != 0);
    if (lane == 0)
        shared.warp_values[warp] = order_of_inverted(splitter.parts) | (warp_low_bits ? 256 : 0);
    warp_arrive(&shared.base_ready, lane);
    const uint64_t total = warp_sum(sum_total(sum));
    if (lane == 0)
        shared.sums[parity][warp] = total;
#pragma unroll 1
    for (uint32_t i = thread; i < (encode_team<CODER>::STREAMS - room.tiers()) / 16; i += WORKERS)
        reinterpret_cast<uint4 *>(variable)[i] = make_uint4(0, 0, 0, 0);
    barrier_wait(&shared.base_ready, parity);
    const uint32_t warp_values = lane < WORKER_WARPS ? shared.warp_values[lane] : NO_BASE;
    typed_lane block = {bytes, 0, by_base, true, false, warp_same};
    if (room.TYPE != TYPE_FP16)
        block.has_low_bits = __any_sync(ALL_LANES, (warp_values & 256) != 0);
    if (by_base) {
        block.base = base_from_order(__reduce_min_sync(ALL_LANES, warp_values & 255));
        block.new_base = put_ranking(team, block.base, thread);
    }
    block.left = WHOLE ? values::EACH : min(m - min(m, first), values::EACH);
    code_lane(team, block, thread);
    code_high_halves<WHOLE>(launch, team, room, block, parity, warp, lane);
}

} // namespace strait
#endif
