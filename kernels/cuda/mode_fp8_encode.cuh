// Encoding FP8 blocks (mode 10), FORMAT.md section 3.3.
#ifndef STRAIT_KERNELS_CUDA_MODE_FP8_ENCODE_CUH
#define STRAIT_KERNELS_CUDA_MODE_FP8_ENCODE_CUH

#include "kernels/cuda/encode_team.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/mode_tiered.cuh"

namespace strait
{

// Offsets of streams in a team's room. Those of a full block, and of a short even one, are made IN_PLACE, where they
// are stored from; those of other blocks lie as in a full one, and are packed afterwards.
struct fp8_room {
    bool e5m2;
    uint32_t values; // of the block, or of a full one

    DEVICE uint32_t signs() const
    {
        return values / 4;
    }
    DEVICE uint32_t tier1() const
    {
        return fp8_rests_size(e5m2, values);
    }
    DEVICE uint32_t tier2() const
    {
        return tier1() + values / 4;
    }
};

// Where the table would be: samples of the last two blocks, by warp, and codes of exponents, by warp.
constexpr uint32_t FP8_SAMPLE_BYTES = WORKER_WARPS * 32 * 2, FP8_CODES_AT = 2 * FP8_SAMPLE_BYTES;
static_assert(FP8_CODES_AT + WORKER_WARPS * 32 <= LUT_BYTES, "room for codes");

typedef encode_team<CODER_FP8> fp8_team;

// Values of a lane, EACH consecutive ones, and their items.
template <uint32_t EACH> struct fp8_lane {
    static constexpr uint32_t WORDS = EACH / 16;
    uint32_t tier1[WORDS], tier2[WORDS], tier3[WORDS];
    uint32_t on2[WORDS], on3[WORDS], on4[WORDS]; // which values have an item in the next tier
    uint32_t count2, count3, count4;
    uint32_t last_low, last_upper; // of up to eight exponents without a rank: four bits each; one bit each

    // Adds the codes of eight values, a byte each. `eight` is a constant once loops are unrolled.
    DEVICE void add(uint32_t eight, uint32_t a, uint32_t b)
    {
        const uint32_t word = eight / 2, shift = eight % 2 * 16;
        tier1[word] |= (pack_four_twos(a) | pack_four_twos(b) << 8) << shift;
        tier2[word] |= (pack_four_twos(a >> 2) | pack_four_twos(b >> 2) << 8) << shift;
        tier3[word] |= (pack_four_twos(a >> 4) | pack_four_twos(b >> 4) << 8) << shift;
    }

    // Zeroes the items past the last of `left` values, and counts.
    template <bool IN_PLACE> DEVICE void count(uint32_t left)
    {
        count2 = count3 = count4 = 0;
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++) {
            if (!IN_PLACE) {
                const uint32_t mask = left > 16 * i ? low_mask(2 * (left - 16 * i)) : 0;
                tier1[i] &= mask, tier2[i] &= mask, tier3[i] &= mask;
            }
            on2[i] = threes(tier1[i]), on3[i] = threes(tier2[i]), on4[i] = threes(tier3[i]);
            count2 += popcount(on2[i]), count3 += popcount(on3[i]), count4 += popcount(on4[i]);
        }
    }

    // Calls put(k, exponent) for the values without a rank.
    template <class PUT> DEVICE void each_last(const uint8_t *values, bool e5m2, PUT put) const
    {
        uint32_t k = 0;
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++) {
#pragma unroll 1
            for (uint32_t left = on4[i]; left != 0; left &= left - 1)
                put(k++, fp8_exponents(e5m2, values[16 * i + lowest_bit(left) / 2]));
        }
    }

    DEVICE void collect_last(const uint8_t *values, bool e5m2)
    {
        last_low = last_upper = 0;
        if (count4 == 0 || count4 > 8)
            return;
        each_last(values, e5m2, [&](uint32_t k, uint32_t exponent) {
            last_low |= (exponent & 15) << (4 * k);
            last_upper |= exponent >> 4 << k;
        });
    }
};

// Adds bits to a zeroed stream.
DEVICE void or_bits(uint8_t *stream, uint32_t bit, uint32_t low, uint32_t high)
{
    uint32_t *p = reinterpret_cast<uint32_t *>(stream) + bit / 32;
    const uint32_t shift = bit % 32,
                   words[3] = {low << shift, shift_left(low, high, shift), shift_left(high, 0, shift)};
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (words[i] != 0)
            atomicOr(p + i, words[i]);
}

DEVICE void or_items(uint8_t *stream, uint32_t item, uint64_t items)
{
    or_bits(stream, 2 * item, static_cast<uint32_t>(items), static_cast<uint32_t>(items >> 32));
}

// A tier of a lane: its items, each at the position of its value; those of values that are `on` become consecutive.
template <uint32_t WORDS>
DEVICE void store_tier(uint8_t *stream, uint32_t first, const uint32_t (&items)[WORDS], const uint32_t (&on)[WORDS])
{
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i += 2) {
        or_items(stream, first, compact_pair(items + i, on + i));
        first += popcount(on[i]) + popcount(on[i + 1]);
    }
}

// A lane's words of a stream of which each lane has as many.
template <uint32_t WORDS> DEVICE void store_words(uint8_t *stream, uint32_t thread, const uint32_t (&w)[WORDS])
{
    if (WORDS == 1)
        reinterpret_cast<uint32_t *>(stream)[thread] = w[0];
    else if (WORDS == 2)
        reinterpret_cast<uint2 *>(stream)[thread] = make_uint2(w[0], w[WORDS / 2]);
#pragma unroll
    for (uint32_t i = 0; i + 4 <= WORDS; i += 4)
        reinterpret_cast<uint4 *>(stream)[WORDS / 4 * thread + i / 4] = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
}

// Where the streams of a block lie, in bytes from the end of tier 1, and the items before the lane's.
struct fp8_offsets {
    uint32_t before2, before3, before4;
    uint32_t at3, at4, at5, end;
    uint32_t last; // values without a rank
    bool maybe_const;
};

// All lanes. `scan`, `scan4`: items of the warp's lanes before this one, of tiers 2 and 3, of tier 4.
DEVICE fp8_offsets find_fp8_offsets(const encode_shared &shared, uint32_t parity, bool e5m2, uint32_t scan,
                                    uint32_t scan4, uint32_t warp, uint32_t lane)
{
    fp8_offsets at;
    const bool is_warp = lane < WORKER_WARPS;
    uint32_t counts = is_warp ? shared.counts[parity][lane] : COUNT_SAME;
    const uint32_t last = is_warp ? shared.escapes[parity][lane] : 0;
    at.maybe_const = __all_sync(ALL_LANES, (counts & COUNT_SAME) != 0);
    counts &= ~COUNT_SAME;
    const uint32_t before = __reduce_add_sync(ALL_LANES, lane < warp ? counts : 0) + scan;
    const uint32_t all = __reduce_add_sync(ALL_LANES, counts);
    at.before2 = before & 0xffff, at.before3 = before >> 16;
    at.before4 = __reduce_add_sync(ALL_LANES, lane < warp ? last : 0) + scan4;
    at.last = __reduce_add_sync(ALL_LANES, last);
    at.at3 = ((all & 0xffff) + 3) / 4;
    at.at4 = at.at3 + ((all >> 16) + 3) / 4;
    at.at5 = at.at4 + (at.last + 1) / 2;
    at.end = at.at4 + fp8_last_size(e5m2, at.last);
    return at;
}

// A lane's values, loaded by vectors, of which lanes begin with different ones, in different banks; summed.
template <bool IN_PLACE, uint32_t EACH>
DEVICE void load_fp8(const fp8_team &team, uint32_t bytes, partial_sum &sum, uint32_t w[EACH / 4], uint32_t thread)
{
    constexpr uint32_t VECTORS = EACH / 16;
    const encode_shared &shared = team.shared();
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
    const uint32_t first_step = shared.block.first_step, step = first_step + VECTORS * thread / 4;
    const uint32_t rotation = thread / (8 / VECTORS) % VECTORS;
#pragma unroll
    for (uint32_t k = 0; k < VECTORS; k++) {
        const uint32_t vector = VECTORS * thread + (k ^ rotation);
        const uint4 x = input[vector], key = shared.keys[vector % 4];
        const uint32_t keys[4] = {key.x, key.y, key.z, key.w};
        uint32_t v[4] = {x.x, x.y, x.z, x.w};
        if (IN_PLACE || vector < bytes / 16)
            sum_vector(sum, v, keys, step * SUM_STEP_EVEN, step * SUM_STEP_ODD);
        else
            sum_edge(v, bytes, first_step, vector, keys, sum);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            w[4 * k + i] = v[i];
    }
    // Back in order: exchanges vectors by each bit of the rotation.
#pragma unroll
    for (uint32_t bit = 1; bit < VECTORS; bit *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < EACH / 4; i++) {
            if ((i / 4 & bit) == 0) {
                const uint32_t a = w[i], b = w[i + 4 * bit];
                w[i] = (rotation & bit) != 0 ? b : a, w[i + 4 * bit] = (rotation & bit) != 0 ? a : b;
            }
        }
    }
}

// The first pass, for a lane with values: sums them, stores their rests, and keeps their exponents in registers.
// Returns whether its first two values equal those of the block.
template <bool IN_PLACE, uint32_t EACH>
DEVICE bool split_fp8(const fp8_team &team, const fp8_room &room, uint8_t *streams, uint32_t bytes, partial_sum &sum,
                      uint32_t exponents[EACH / 4], uint32_t thread)
{
    uint32_t w[EACH / 4];
    load_fp8<IN_PLACE, EACH>(team, bytes, sum, w, thread);
    if (room.e5m2) {
        uint32_t mantissas[EACH / 16], signs[EACH / 32];
#pragma unroll
        for (uint32_t i = 0; i < EACH / 16; i++) {
            uint32_t of_signs = 0;
            mantissas[i] = 0;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                mantissas[i] |= pack_four_twos(w[4 * i + j]) << (8 * j);
                of_signs |= pack_four_signs(w[4 * i + j]) << (4 * j);
            }
            signs[i / 2] = i % 2 == 0 ? of_signs : signs[i / 2] | of_signs << 16;
        }
        store_words(streams, thread, mantissas);
        store_words(streams + room.signs(), thread, signs);
    } else {
        uint32_t rests[EACH / 8];
#pragma unroll
        for (uint32_t i = 0; i < EACH / 8; i++)
            rests[i] = pack_eight_rests(w[2 * i], w[2 * i + 1]);
        store_words(streams, thread, rests);
    }
    const bool same = (w[0] & 0xffff) == *reinterpret_cast<const uint16_t *>(team.input());
#pragma unroll
    for (uint32_t i = 0; i < EACH / 4; i++)
        exponents[i] = fp8_exponents(room.e5m2, w[i]);
    return same || (!IN_PLACE && EACH * thread + 2 > bytes);
}

// All lanes: counts the warp's part of the sample. Lanes with half a group count half of its piece.
template <uint32_t EACH>
DEVICE void count_sample(const fp8_team &team, const fp8_room &room, uint32_t bytes, uint32_t parity, uint32_t warp,
                         uint32_t lane)
{
    constexpr uint32_t LANES = FP8_EACH / EACH, BYTES = 8 / LANES; // of a group; of its piece, of a lane
    const uint32_t thread = warp * 32 + lane, group = thread / LANES;
    const uint32_t from = FP8_EACH * group + 8 * sample_piece(group) + BYTES * (thread % LANES);
    uint32_t piece[BYTES / 4], count = 0;
    if (32 * EACH * warp < bytes) {
#pragma unroll
        for (uint32_t i = 0; i < BYTES / 4; i++)
            piece[i] = fp8_exponents(room.e5m2, reinterpret_cast<const uint32_t *>(team.input() + from)[i]);
        count = count_exponents<BYTES>(room.e5m2, piece, from < bytes ? bytes - from : 0, lane);
    }
    reinterpret_cast<uint16_t *>(team.table() + parity * FP8_SAMPLE_BYTES)[32 * warp + lane] =
        static_cast<uint16_t>(count);
}

// All lanes, when all warps have counted: the ranking, and in codes[] those of all exponents.
DEVICE void find_codes(const fp8_team &team, const fp8_room &room, uint32_t parity, uint32_t warp, uint32_t lane,
                       uint32_t ranking[FP8_RANKS], uint32_t codes[8])
{
    const uint16_t *sample = reinterpret_cast<const uint16_t *>(team.table() + parity * FP8_SAMPLE_BYTES);
    uint8_t *own = team.table() + FP8_CODES_AT + 32 * warp;
    uint32_t count = 0;
#pragma unroll
    for (uint32_t i = 0; i < WORKER_WARPS; i++)
        count += sample[32 * i + lane];
    own[lane] = static_cast<uint8_t>(fp8_code(rank_exponents(count, room.e5m2, lane, ranking)));
    __syncwarp();
    const uint4 low = reinterpret_cast<const uint4 *>(own)[0], high = reinterpret_cast<const uint4 *>(own)[1];
    codes[0] = low.x, codes[1] = low.y, codes[2] = low.z, codes[3] = low.w;
    codes[4] = high.x, codes[5] = high.y, codes[6] = high.z, codes[7] = high.w;
    __syncwarp();
}

// All workers: packs the streams of a block one after another, and the ranking, in the stage, which nobody reads any
// more.
DEVICE void pack_fp8(const fp8_team &team, const fp8_room &room, const uint8_t *streams, uint32_t m, uint32_t variable,
                     uint32_t units, const uint32_t ranking[FP8_RANKS], uint32_t thread)
{
    uint8_t *at = team.input(), *end = at + units * UNIT - FP8_RANKS;
    named_sync(team.barrier_id(), WORKERS);
    if (room.e5m2) {
        at = copy_stream(at, streams, (m + 3) / 4, thread);
        at = copy_stream(at, streams + room.signs(), (m + 7) / 8, thread);
    } else {
        at = copy_stream(at, streams, (m + 1) / 2, thread);
    }
    at = copy_stream(at, streams + room.tier1(), (m + 3) / 4, thread);
    at = copy_stream(at, streams + room.tier2(), variable, thread);
    if (at + thread < end) // less than a unit
        at[thread] = 0;
    if (thread == 0)
        for (uint32_t r = 0; r < FP8_RANKS; r++)
            end[r] = static_cast<uint8_t>(ranking[r]);
}

// Stores tiers 2 to 4 of a lane to their zeroed streams.
template <uint32_t EACH>
DEVICE void store_fp8_tiers(uint8_t *variable, const fp8_lane<EACH> &block, const fp8_offsets &at,
                            const uint8_t *values, bool e5m2)
{
    store_tier(variable, at.before2, block.tier2, block.on2);
    store_tier(variable, 4 * at.at3 + at.before3, block.tier3, block.on3);
    if (block.count4 == 0)
        return;
    if (block.count4 <= 8) {
        or_bits(variable, 8 * at.at4 + 4 * at.before4, block.last_low, 0);
        if (e5m2)
            or_bits(variable, 8 * at.at5 + at.before4, block.last_upper, 0);
        return;
    }
    block.each_last(values, e5m2, [&](uint32_t k, uint32_t exponent) {
        or_bits(variable, 8 * at.at4 + 4 * (at.before4 + k), exponent & 15, 0);
        if (e5m2)
            or_bits(variable, 8 * at.at5 + at.before4 + k, exponent >> 4, 0);
    });
}

// Lanes without values take part in what all lanes do together, and in nothing else.
template <bool IN_PLACE, uint32_t EACH, class LAUNCH>
DEVICE void code_fp8_block(const LAUNCH &launch, const fp8_team &team, uint32_t iteration, uint32_t warp, uint32_t lane)
{
    const uint32_t thread = warp * 32 + lane, parity = iteration & 1;
    encode_shared &shared = team.shared();
    const uint32_t bytes = IN_PLACE && EACH == FP8_EACH ? BLOCK_SIZE : shared.block.bytes;
    const fp8_room room = {launch.head.element == STRAIT_ELEMENT_FP8_E5M2, IN_PLACE ? bytes : BLOCK_SIZE};
    const bool has_values = EACH * thread < bytes;
    const uint8_t *values = team.input() + EACH * thread;
    uint8_t *streams = team.fixed(parity), *variable = streams + room.tier2();
    uint32_t exponents[EACH / 4] = {}, codes[8], ranking[FP8_RANKS];
    partial_sum sum = {0, 0, 0};
    const bool same = !has_values || split_fp8<IN_PLACE, EACH>(team, room, streams, bytes, sum, exponents, thread);
    count_sample<EACH>(team, room, bytes, parity, warp, lane);
    warp_arrive(&shared.base_ready, lane);
    const uint64_t total = warp_sum(sum_total(sum));
    if (lane == 0)
        shared.sums[parity][warp] = total;
    const uint32_t rest = (IN_PLACE ? bytes : fp8_team::STREAMS) - room.tier2();
#pragma unroll 1
    for (uint32_t i = thread; i < rest / 16; i += WORKERS)
        reinterpret_cast<uint4 *>(variable)[i] = make_uint4(0, 0, 0, 0);
    barrier_wait(&shared.base_ready, parity);
    find_codes(team, room, parity, warp, lane, ranking, codes);

    fp8_lane<EACH> block = {};
    if (has_values) {
#pragma unroll
        for (uint32_t i = 0; i < EACH / 8; i++) {
            uint32_t a = exponents[2 * i], b = exponents[2 * i + 1];
            fp8_codes(room.e5m2, codes, a, b);
            block.add(i, a, b);
        }
        block.template count<IN_PLACE>(bytes - EACH * thread);
        store_words(streams + room.tier1(), thread, block.tier1);
    }
    const uint32_t both = block.count2 | block.count3 << 16, of_warp = __reduce_add_sync(ALL_LANES, both);
    const uint32_t last = __reduce_add_sync(ALL_LANES, block.count4);
    const bool warp_same = __all_sync(ALL_LANES, same), dense = __any_sync(ALL_LANES, block.count4 > 8);
    if (lane == 0) {
        shared.counts[parity][warp] = of_warp | (warp_same ? COUNT_SAME : 0);
        shared.escapes[parity][warp] = last;
    }
    warp_arrive(&shared.counts_ready, lane);
    block.collect_last(values, room.e5m2);
    const uint32_t scan = warp_scan(both) - both, scan4 = last == 0 ? 0 : warp_scan(block.count4) - block.count4;
    barrier_wait(&shared.counts_ready, parity);

    const fp8_offsets at = find_fp8_offsets(shared, parity, room.e5m2, scan, scan4, warp, lane);
    const uint32_t raw_units = units_of(bytes);
    uint32_t units = units_of(fp8_rests_size(room.e5m2, bytes) + (bytes + 3) / 4 + at.end + FP8_RANKS);
    uint32_t form = FORM_LATER;
    if (units >= raw_units) {
        units = raw_units;
        form = STRAIT_BLOCK_RAW;
    }
    if (at.maybe_const && raw_units > 1 && is_const(team, bytes / 2, warp, lane)) {
        units = 1;
        form = STRAIT_BLOCK_CONST;
    }
    const bool coded = form == FORM_LATER;
    if (thread == 0)
        submit_block(launch, team, parity, make_size(units, form, coded ? (at.last + 1) / 2 : 0), 0,
                     !IN_PLACE || form == STRAIT_BLOCK_CONST, form == STRAIT_BLOCK_CONST, bytes);
    if (IN_PLACE && coded && !dense)
        warp_arrive(&shared.empty, lane);
    if (IN_PLACE && form == STRAIT_BLOCK_RAW) {
        copy_raw(team, parity, bytes, warp, lane);
        warp_arrive(&shared.empty, lane);
    }
    if (coded && has_values)
        store_fp8_tiers(variable, block, at, values, room.e5m2);
    if (IN_PLACE && coded && thread == 0) { // the bytes after the streams are zero
        uint8_t *end = streams + units * UNIT - 12;
        or_bits(end, 0, ranking[0] << 24, ranking[1] | ranking[2] << 8 | ranking[3] << 16 | ranking[4] << 24);
        or_bits(end, 64, ranking[5] | ranking[6] << 8 | ranking[7] << 16 | ranking[8] << 24, 0);
    }
    if (IN_PLACE && coded && dense)
        warp_arrive(&shared.empty, lane);
    if (!IN_PLACE && coded)
        pack_fp8(team, room, streams, bytes, at.end, units, ranking, thread);
    fence_bulk();
    warp_arrive(&shared.job_ready[parity], lane);
}

template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const fp8_team &team, uint32_t iteration, uint32_t warp, uint32_t lane)
{
    if (WHOLE)
        code_fp8_block<true, FP8_EACH>(launch, team, iteration, warp, lane);
    else if (is_fp8_short(team.shared().block.bytes))
        code_fp8_block<true, FP8_EACH / 2>(launch, team, iteration, warp, lane);
    else
        code_fp8_block<false, FP8_EACH>(launch, team, iteration, warp, lane);
}

} // namespace strait
#endif
