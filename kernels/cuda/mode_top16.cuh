// Blocks with 4 bits per exponent (FORMAT.md section 3, modes 2 and 3), with or without a list of escapes: workers of
// encoding and of decoding teams, and checks. The encoder also leaves blocks raw.
#ifndef STRAIT_KERNELS_CUDA_MODE_TOP16_CUH
#define STRAIT_KERNELS_CUDA_MODE_TOP16_CUH

#include "kernels/cuda/decode_team.cuh"
#include "kernels/cuda/encode_team.cuh"

namespace strait
{

// ---- Encoding ------------------------------------------------------------------------------------------------------

// Codes of a vector some of whose values escape: bit j of the result stands for value j; escaping values have code 0.
DEVICE uint32_t escaping_codes(const uint32_t w[4], table_address table, uint32_t values, uint32_t &codes)
{
    static_assert(IMAGE_ESCAPE == 1u << 31, "a bit above those of all ranks");
    uint32_t escapes = 0;
    codes = 0;
#pragma unroll
    for (int k = 3; k >= 0; k--) {
        const uint32_t a = look_up(table, w[k] >> 21), b = look_up(table, w[k] >> 5);
        escapes = escapes * 4 + (a >> 31) * 2 + (b >> 31);
        codes = codes * 256 + (a & 15) * 16 + (b & 15);
    }
    codes &= low_mask(4 * values);
    return escapes & low_mask(values);
}

// Exponents of the escapes in a lane's vectors, at most 4, the first in the lowest byte. `escapes` has 8 bits for each
// of the vectors.
DEVICE uint32_t collect_escape_bytes(const uint16_t *values, uint32_t escapes, uint32_t warp, uint32_t lane)
{
    uint32_t escape_bytes = 0;
#pragma unroll 1
    for (uint32_t left = escapes; left != 0; left &= left - 1) {
        const uint32_t i = lowest_bit(left), exponent = values[8 * worker_vector(warp, lane, i / 8) + i % 8] >> 7;
        escape_bytes = escape_bytes >> 8 | exponent << 24;
    }
    return shift_right(escape_bytes, 0, 32 - 8 * popcount(escapes));
}

// Writes the warp's part of the list after the codes, from entry `at` of `count` on. DENSE_ESCAPES: some lane has more
// than 4 escapes.
template <bool DENSE_ESCAPES>
DEVICE void list_escapes(uint8_t *list, const uint16_t *values, uint32_t escapes, uint32_t escape_bytes, uint32_t count,
                         uint32_t at, uint32_t warp, uint32_t lane)
{
    uint16_t *positions = reinterpret_cast<uint16_t *>(list + 2);
    uint8_t *exponents = list + 2 + 2 * count;
#pragma unroll 1
    for (uint32_t g = 0; g < 4; g++) {
        uint32_t left = escapes >> (8 * g) & 255;
        if (!__any_sync(ALL_LANES, left != 0))
            continue;
        uint32_t mine = popcount(left), scan = warp_scan(mine), k = at + scan - mine;
        while (left != 0) {
            uint32_t position = 8 * worker_vector(warp, lane, g) + lowest_bit(left);
            left &= left - 1;
            positions[k] = static_cast<uint16_t>(position);
            exponents[k] = static_cast<uint8_t>(DENSE_ESCAPES ? values[position] >> 7 : escape_bytes);
            escape_bytes >>= 8;
            k++;
        }
        at += __shfl_sync(ALL_LANES, scan, 31);
    }
}

template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER_TOP16> &team, uint32_t iteration, uint32_t warp,
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
    const bool coded = launch.head.coded;
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : block.bytes, first_step = block.first_step, n = bytes / 2;
    uint8_t *list = team.variable(parity);
    uint32_t escapes = 0;
    partial_sum sum = {0, 0, 0};
    const uint32_t step = first_step + warp * 32 + lane / 4;
    const uint32_t even_step = step * SUM_STEP_EVEN, odd_step = step * SUM_STEP_ODD;
    bool same = true;
#pragma unroll
    for (uint32_t g = 0; g < 4; g++) {
        const uint32_t vector = worker_vector(warp, lane, g);
        const uint4 x = input[vector];
        uint32_t w[4] = {x.x, x.y, x.z, x.w}, sm[2], bad = 0, values = 8;
        if (WHOLE || vector < n / 8) {
            if (g == 0)
                same = (w[0] & 0xffff) == *reinterpret_cast<const uint16_t *>(input);
            sum_vector(sum, w, keys, even_step + g * 8 * SUM_STEP_EVEN, odd_step + g * 8 * SUM_STEP_ODD);
        } else {
            values = sum_edge(w, bytes, first_step, vector, keys, sum);
            bad = IMAGE_ESCAPE; // takes the slow path
        }
        split_values(w, sm);
        uint32_t codes = top16_codes(w, table, bad);
        if (coded && (bad & IMAGE_ESCAPE) != 0)
            escapes |= escaping_codes(w, table, values, codes) << (8 * g);
        reinterpret_cast<uint2 *>(fixed)[vector] = make_uint2(sm[0], sm[1]);
        reinterpret_cast<uint32_t *>(fixed + SM_BYTES)[vector] = codes;
    }
    const uint64_t lane_total = sum_total(sum);
    const uint32_t of_warp = __reduce_add_sync(ALL_LANES, popcount(escapes));
    const bool warp_same = __all_sync(ALL_LANES, same);
    if (lane == 0)
        shared.counts[parity][warp] = of_warp | (warp_same ? 1u << 30 : 0);
    warp_arrive(&shared.counts_ready, lane);
    const uint16_t *values = reinterpret_cast<const uint16_t *>(input);
    const bool dense_escapes = of_warp > 4 && __any_sync(ALL_LANES, popcount(escapes) > 4);
    const uint32_t escape_bytes =
        of_warp != 0 && !dense_escapes ? collect_escape_bytes(values, escapes, warp, lane) : 0;
    barrier_wait(&shared.counts_ready, parity);
    uint32_t counts = lane < WORKER_WARPS ? shared.counts[parity][lane] : 1u << 30;
    const bool maybe_const = __all_sync(ALL_LANES, (counts & 1u << 30) != 0);
    counts &= ~(1u << 30);
    const uint32_t before = __reduce_add_sync(ALL_LANES, lane < warp ? counts : 0);
    const uint32_t count = __reduce_add_sync(ALL_LANES, counts);
    const uint32_t code_bytes = (n + 1) / 2, list_bytes = count == 0 ? 0 : 2 + 3 * count;
    const uint32_t raw_units = units_of(bytes);
    uint32_t units = units_of(n + code_bytes + list_bytes + bytes % 2);
    uint32_t mode = count == 0 ? STRAIT_BLOCK_TOP16 : STRAIT_BLOCK_TOP16_ESCAPES;
    if (units >= raw_units || !coded) {
        units = raw_units;
        mode = STRAIT_BLOCK_RAW;
    }
    if (maybe_const && raw_units > 1 && launch.head.mode != STRAIT_MODE_RAW && is_const(team, n, warp, lane)) {
        units = 1;
        mode = STRAIT_BLOCK_CONST;
    }
    const bool streams = mode >= STRAIT_BLOCK_TOP16, pack = streams && (n % 64 != 0 || bytes % 2 != 0);
    const bool release_late = dense_escapes || pack;
    const bool from_stage = WHOLE ? mode == STRAIT_BLOCK_CONST : !streams || pack;
    if (thread == 0)
        submit_block(launch, team, parity, make_size(units, mode, streams ? count : 0), n, from_stage,
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
    if (streams && count != 0) {
        if (thread == 0)
            *reinterpret_cast<uint16_t *>(list) = static_cast<uint16_t>(count);
        if (thread < (16 - list_bytes % 16) % 16)
            list[list_bytes + thread] = 0;
        if (dense_escapes)
            list_escapes<true>(list, values, escapes, escape_bytes, count, before, warp, lane);
        else if (of_warp != 0)
            list_escapes<false>(list, values, escapes, escape_bytes, count, before, warp, lane);
        if (release_late && !pack)
            warp_arrive(&shared.empty, lane);
    }
    if (pack) {
        named_sync(team.barrier_id(), WORKERS);
        pack_streams(team, parity, bytes, code_bytes, list_bytes, thread);
    }
    fence_bulk();
    warp_arrive(&shared.job_ready[parity], lane);
}

// ---- Decoding ------------------------------------------------------------------------------------------------------

// Whether an exponent is in the top 16, by the table in shared memory: a load from global memory would hold up the
// block.
DEVICE bool in_top16(const uint32_t *table, uint32_t exponent)
{
    return holds_byte(table[8], exponent) || holds_byte(table[9], exponent) || holds_byte(table[10], exponent) ||
           holds_byte(table[11], exponent);
}

// Byte of the bit mask of listed values for the values from 8 * eight on. The bits of a warp's OWN values lie in the
// part of the room that this warp uses for tiers: warps do not wait for each other between blocks, so one may be at a
// list while another still reads its tiers of the block before.
template <uint32_t OWN> DEVICE uint32_t list_byte(uint32_t eight)
{
    return eight / (OWN / 8) * (OWN / 2) + eight % (OWN / 8);
}

// Scatters the list at byte `at` of the block: exponents to the positions of their values, and a bit for each value.
// Every warp reads the whole list and takes its own part, so that none waits for another. False when no encoder would
// have written the list. The codes begin at byte `codes`.
template <uint32_t OWN>
DEVICE bool scatter_list(const decode_team &team, const uint32_t *table, const uint8_t *input, uint32_t n,
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
DEVICE uint32_t decode_top16(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
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
        bad = !scatter_list<OWN>(team, team.table(stage), input, n, n, at, count, warp, lane) || bad;
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

// ---- Checks --------------------------------------------------------------------------------------------------------

DEVICE streams measure_top16(const decode_block &block, const uint8_t *input)
{
    streams s = {};
    const bool listed = block.mode() == STRAIT_BLOCK_TOP16_ESCAPES;
    s.n = block.bytes / 2;
    s.at2 = s.n + (s.n + 1) / 2;
    s.count4 = listed ? list_count(input, s.at2) : 0;
    s.at4 = s.at2 + 2 + 2 * s.count4; // exponents of the list
    s.used = s.at2 + (listed ? 2 + 3 * s.count4 : 0) + block.bytes % 2;
    return s;
}

DEVICE bool codes_valid(const streams &s, const uint8_t *input, uint32_t lane)
{
    if (!is_padded<4>(input, s.n, s.n))
        return false;
    if (!all_same<8>(input, 0, s.n, lane) || !all_same<4>(input, s.n, s.n, lane))
        return true;
    if (s.count4 == 0)
        return false;
    return s.count4 < s.n || !all_same<8>(input, s.at4, s.n, lane);
}

} // namespace strait
#endif
