// Decoding blocks of the typed modes 6 to 8, FORMAT.md section 3.2; FP8 is in mode_fp8_decode.cuh.
#ifndef STRAIT_KERNELS_CUDA_MODE_TYPED_DECODE_CUH
#define STRAIT_KERNELS_CUDA_MODE_TYPED_DECODE_CUH

#include "kernels/cuda/mode_tiered.cuh"
#include "kernels/cuda/mode_top16.cuh"
#include "kernels/cuda/typed.cuh"

namespace strait
{

// ---- Layout of streams, and their contents up to high halves -------------------------------------------------------

// Findings of a warp of workers, for the finish warp.
constexpr uint32_t ORDER_LOW_BITS = 256;                            // in `orders`: some low bits are not zero
constexpr uint32_t FIRST_DIFFERS = 1u << 16, FIRST_NONE = 1u << 17; // in firsts: words differ; there are none

// Layout of a block, from its end and size.
struct typed_layout {
    const uint8_t *input;
    uint32_t size; // including its end
    uint32_t m, tail, low_bits;
    uint32_t coder, base;
    bool good;

    DEVICE bool tiers() const
    {
        return coder <= TYPED_BASE_TIERS;
    }
    DEVICE uint32_t at_codes() const // or to tier 1
    {
        return low_bits + m;
    }
    DEVICE uint32_t after_codes() const
    {
        return at_codes() + (tiers() ? (m + 3) / 4 : (m + 1) / 2);
    }
    // Whether streams that end at byte `end` leave room for the tail and the end of the block.
    DEVICE bool has_room(uint32_t end) const
    {
        return end + tail + TYPED_END_BYTES <= size;
    }
};

DEVICE typed_layout lay_out(const decode_block &block, const uint8_t *input)
{
    typed_layout at;
    const bool fp32 = (block.what & BLOCK_FP32) != 0;
    at.input = input;
    at.size = block.units * UNIT;
    at.m = block.bytes / (fp32 ? 4 : 2);
    at.tail = block.bytes % (fp32 ? 4 : 2);
    at.low_bits = low_bits_size_of(block.mode(), fp32, at.m);
    at.coder = input[at.size - 2];
    at.base = input[at.size - 1];
    at.good = at.coder < TYPED_CODERS && at.has_room(at.after_codes());
    if (at.coder == TYPED_TABLE_TIERS)
        at.good = at.good && at.base == 0 && block.mode() != STRAIT_BLOCK_BASE && (block.what & BLOCK_CODEBOOK) != 0;
    return at;
}

// The bytes of the tail, lowest first.
template <class LAYOUT> DEVICE uint32_t load_tail(const LAYOUT &at, uint32_t from)
{
    uint32_t tail = 0;
    for (uint32_t i = 0; i < at.tail; i++)
        tail |= static_cast<uint32_t>(at.input[min(from + i, at.size - 1)]) << (8 * i);
    return tail;
}

// A worker's part of a block. What it stores in shared memory for the high halves of its warp is read by that warp
// only.
template <typed_type TYPE, bool WHOLE, class LAYOUT = typed_layout> struct typed_worker {
    typedef typed_values<TYPE> values;
    static constexpr uint32_t EACH = values::EACH;
    const decode_team &team;
    const LAYOUT &at;
    const uint32_t *table;
    uint32_t stage, warp, lane;
    uint32_t tail;

    DEVICE uint32_t thread() const
    {
        return warp * 32 + lane;
    }

    DEVICE void load_tier1(uint32_t tier1[2]) const
    {
        const uint32_t from = at.at_codes() + EACH / 4 * thread(), first = EACH * thread();
        const uint32_t left = WHOLE ? EACH : at.m - min(at.m, first);
        tier1[0] = load_word(at.input, from) & low_mask(2 * min(left, 16));
        tier1[1] = 0;
        if (EACH == 32 && left > 16)
            tier1[1] = load_word(at.input, from + 4) & low_mask(2 * min(left - 16, 16));
    }

    DEVICE void clear_exponents() const
    {
        uint4 *own = reinterpret_cast<uint4 *>(team.exponents() + 32 * EACH * warp);
#pragma unroll
        for (uint32_t i = 0; i < EACH / 16; i++)
            own[32 * i + lane] = make_uint4(0, 0, 0, 0);
    }

    DEVICE void put_items(const uint32_t tier1[2], const uint32_t tier2[2]) const
    {
        uint32_t z[4];
        merge_tiers(tier1, tier2, z);
        if (EACH == 32)
            reinterpret_cast<uint4 *>(team.items())[thread()] = make_uint4(z[0], z[1], z[2], z[3]);
        else
            reinterpret_cast<uint2 *>(team.items())[thread()] = make_uint2(z[0], z[1]);
    }

    // All lanes: adds the warp's count to those of all warps. Returns the items of the warps before it; *all becomes
    // those of all warps.
    DEVICE uint32_t count_items(uint32_t *counts, uint32_t count, uint32_t *all) const
    {
        const uint32_t of_warp = __reduce_add_sync(ALL_LANES, count);
        if (lane == 0)
            counts[warp] = of_warp;
        named_sync(team.barrier_id(), WORKERS);
        const uint32_t found = lane < WORKER_WARPS ? counts[lane] : 0;
        *all = __reduce_add_sync(ALL_LANES, found);
        return __reduce_add_sync(ALL_LANES, lane < warp ? found : 0);
    }

    // All workers: reads a block of tiers. Returns the findings of the warp. `make`: as for tier3_lane.
    template <class MAKE> DEVICE uint32_t read_tiers(MAKE make)
    {
        decode_shared &shared = team.shared();
        const uint32_t *words = reinterpret_cast<const uint32_t *>(at.input);
        uint32_t tier1[2], tier2[2], all2, all3;
        clear_exponents();
        load_tier1(tier1);
        const uint32_t on2[2] = {threes(tier1[0]), threes(tier1[1])}, count2 = popcount(on2[0]) + popcount(on2[1]);
        const uint32_t scan2 = warp_scan(count2) - count2;
        const uint32_t before2 = count_items(shared.counts2[stage], count2, &all2);
        const uint32_t at2 = at.after_codes(), bit = 8 * at2 + 2 * (before2 + scan2);
        tier3_lane tier3;
        tier3.at3 = at2 + (all2 + 3) / 4;
        tier3.last = at.size - 1;
        if (!at.has_room(tier3.at3))
            return WARP_BAD; // all workers see this
        const uint32_t three[3] = {words[bit / 32], words[bit / 32 + 1], words[bit / 32 + 2]};
        expand_pair(three, bit % 32, on2, tier2);
        tier3.wanted = even_bits(threes(tier2[0]), threes(tier2[1]));
        tier3.count = popcount(tier3.wanted);
        put_items(tier1, tier2);
        const uint32_t scan3 = warp_scan(tier3.count) - tier3.count;
        tier3.first = count_items(shared.counts3[stage], tier3.count, &all3) + scan3;
        const uint32_t at4 = tier3.at3 + (all3 + 1) / 2;
        if (!at.has_room(at4))
            return WARP_BAD;
        const uint32_t found =
            tier3.put(at.input, table, shared.counts3[stage], team.exponents() + EACH * thread(), make);
        const bool bad = __any_sync(ALL_LANES, (found & WARP_BAD) != 0);
        const uint32_t escapes = __reduce_add_sync(ALL_LANES, found & ~WARP_BAD);
        if (!WHOLE && at.tail != 0) { // the tail follows tier 4
            uint32_t all4;
            count_items(shared.escapes[stage], found & ~WARP_BAD, &all4);
            tail = load_tail(at, at4 + all4);
            named_sync(team.barrier_id(), WORKERS); // the counts will be overwritten
        }
        return escapes | (bad ? WARP_BAD : 0);
    }

    // All workers: reads a block of codes. Returns the findings of the warp.
    DEVICE uint32_t read_codes()
    {
        uint32_t from = at.after_codes();
        bool good = true;
        if (at.coder == TYPED_BASE_LISTED) {
            const uint32_t count = list_count(at.input, from);
            if (count == 0 || count > at.m || !at.has_room(from + 2 + 3 * count))
                return WARP_BAD;
            good = scatter_list<32 * EACH>(team, table, at.input, at.m, at.at_codes(), from, count, warp, lane);
            from += 2 + 3 * count;
        }
        tail = load_tail(at, from);
        return __all_sync(ALL_LANES, good) ? 0 : WARP_BAD;
    }

    // Adds the tail of the block to the vector that it is in.
    DEVICE void add_tail(uint32_t vector, uint32_t w[4]) const
    {
        const uint32_t from = at.m * values::BYTES;
        if (at.tail == 0 || vector != from / 16)
            return;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            w[j] |= from % 16 / 4 == j ? tail << (from % 4 * 8) : 0;
    }

    // Word of a stream, which is certain to be aligned only in whole blocks.
    DEVICE uint32_t load_stream(uint32_t from) const
    {
        return WHOLE ? *reinterpret_cast<const uint32_t *>(at.input + from) : load_word(at.input, from);
    }

    // Exponents of eight high halves from codes of four bits.
    DEVICE void load_codes(uint32_t eight, uint32_t exponents[2]) const
    {
        const uint32_t ranks[4] = {table[8], table[9], table[10], table[11]};
        top16_exponents(load_stream(at.at_codes() + 4 * eight), ranks, exponents);
        if (at.coder == TYPED_BASE_LISTED)
            use_listed(exponents, team.exponents() + 8 * eight,
                       reinterpret_cast<uint8_t *>(team.items())[list_byte<32 * EACH>(eight)]);
    }

    // `first`: exponents of the first ranks.
    DEVICE void load_eight(uint32_t eight, const uint32_t first[2], uint32_t h[4]) const
    {
        const uint32_t from = at.low_bits + 8 * eight, sm[2] = {load_stream(from), load_stream(from + 4)};
        uint32_t exponents[2];
        if (at.tiers()) {
            const uint2 e = reinterpret_cast<const uint2 *>(team.exponents())[eight];
            const uint32_t rest[2] = {e.x, e.y};
            rank_exponents(team.items()[eight], rest, first, exponents);
        } else {
            load_codes(eight, exponents);
        }
        join_values(sm, exponents, h);
    }

    DEVICE void load_four(uint32_t four, const uint32_t first[2], uint32_t h[2]) const
    {
        const uint32_t sm = load_stream(at.low_bits + 4 * four);
        if (at.tiers()) {
            const uint32_t rest = reinterpret_cast<const uint32_t *>(team.exponents())[four];
            join_four(sm, four_exponents(team.items()[four / 2], four % 2 != 0, rest, first), h);
        } else {
            uint32_t exponents[2];
            load_codes(four / 2, exponents);
            join_four(sm, four % 2 != 0 ? exponents[1] : exponents[0], h);
        }
    }
};

// ---- Values --------------------------------------------------------------------------------------------------------

// This code is not inlined into the kernel, so that it takes no registers from blocks of other modes.

// Makes the values of a block, and collects findings for the finish warp.
template <typed_type TYPE, bool WHOLE> struct typed_maker {
    typedef typed_values<TYPE> values;
    const typed_worker<TYPE, WHOLE> &high_halves;
    const decode_block &block;
    uint32_t first[2];          // exponents of the first ranks
    uint32_t greatest, parts;   // greatest exponent of a part, as u16x2; least of these over parts
    uint32_t low_bits, invalid; // nonzero: some low bits are nonzero; some high half is that of no value
    uint32_t word, differs;     // the warp's first 16-bit word, twice; nonzero: some word differs

    DEVICE void make(uint32_t vector, uint32_t count, uint32_t w[4])
    {
        const typed_layout &at = high_halves.at;
        if (TYPE == TYPE_FP32) {
            uint32_t h[2];
            high_halves.load_four(vector, first, h);
            const uint2 r = at.low_bits != 0 ? reinterpret_cast<const uint2 *>(at.input)[vector] : make_uint2(0, 0);
            w[0] = permute(r.x, h[0], 0x5410), w[1] = permute(r.x, h[0], 0x7632);
            w[2] = permute(r.y, h[1], 0x5410), w[3] = permute(r.y, h[1], 0x7632);
        } else {
            high_halves.load_eight(vector, first, w);
        }
        if (!WHOLE)
            truncate_vector(w, count * values::BYTES);
#pragma unroll
        for (int j = 0; j < 4; j += values::STEPS) {
            const uint32_t pair = TYPE == TYPE_FP32 ? permute(w[j], w[(j + 1) % 4], 0x7632) : w[j];
            greatest = greatest_u16x2(greatest, pair);
        }
        if (TYPE == TYPE_FP32)
            low_bits |= (w[0] | w[1] | w[2] | w[3]) & 0xffff;
        if (TYPE == TYPE_FP16)
            make_fp16(vector, count, w);
    }

    DEVICE void make_fp16(uint32_t vector, uint32_t count, uint32_t w[4])
    {
        const uint8_t *twos = high_halves.at.input, *ones = twos + (high_halves.at.m + 3) / 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t high_half = w[j];
            w[j] = fp16_values(high_half);
            invalid |= fp16_high_halves(w[j]) ^ high_half;
        }
        join_low_bits(w, reinterpret_cast<const uint16_t *>(twos)[vector], ones[vector]);
        if (!WHOLE)
            truncate_vector(w, count * values::BYTES);
    }

    // All lanes: compares all words with the first. For BF16 values the finish warp finds this from the streams.
    DEVICE void compare(uint32_t g, uint32_t vector, const uint32_t w[4])
    {
        if (TYPE == TYPE_BF16)
            return;
        if (g == 0)
            word = (__shfl_sync(ALL_LANES, w[0], 0) & 0xffff) * 0x10001u;
        uint32_t x[4] = {w[0] ^ word, w[1] ^ word, w[2] ^ word, w[3] ^ word};
        if (!WHOLE) {
            const uint32_t bytes = block.bytes & ~1u;
            truncate_vector(x, 16 * vector < bytes ? bytes - 16 * vector : 0);
        }
        differs |= x[0] | x[1] | x[2] | x[3];
    }

    // All lanes: ends a part of 256 values.
    DEVICE void end_part()
    {
        parts = least_part(parts, __reduce_max_sync(ALL_LANES, greatest_of_u16x2(greatest)));
        greatest = 0;
    }

    // All lanes: publishes findings in shared memory for the finish warp. Returns the others.
    DEVICE uint32_t publish(decode_shared &shared) const
    {
        const uint32_t stage = high_halves.stage, warp = high_halves.warp;
        const bool any_low_bits = __any_sync(ALL_LANES, low_bits != 0), differ = __any_sync(ALL_LANES, differs != 0);
        if (high_halves.lane == 0) {
            shared.orders[stage][warp] = order_of_parts(parts) | (any_low_bits ? ORDER_LOW_BITS : 0);
            shared.firsts[stage][warp] =
                1024 * warp < block.bytes / 2 ? (word & 0xffff) | (differ ? FIRST_DIFFERS : 0) : FIRST_NONE;
        }
        return __any_sync(ALL_LANES, invalid != 0) ? WARP_BAD : 0;
    }
};

// Replacement for a launch where only the region of one block is needed.
struct one_region {
    const region &of_block;
};

DEVICE region get_region(const one_region &launch, uint32_t)
{
    return launch.of_block;
}

// Stores a worker's vectors, whose values `maker` makes. Returns the findings of the warp.
template <typed_type TYPE, bool WHOLE, class LAYOUT, class MAKER>
DEVICE uint32_t put_typed(const one_region &launch, const typed_worker<TYPE, WHOLE, LAYOUT> &high_halves,
                          const decode_block &block, partial_sum &sum, MAKER &maker)
{
    typedef typed_values<TYPE> values;
    constexpr uint32_t TOGETHER = WHOLE ? PUT_TOGETHER : 1;
    decode_shared &shared = high_halves.team.shared();
    const uint4 k = shared.keys[high_halves.lane % 4];
    const uint32_t keys[4] = {k.x, k.y, k.z, k.w}, first = high_halves.warp * 128 + high_halves.lane;
    const uint32_t step = block.first_step + first / 4, m = high_halves.at.m;
    const bool direct = WHOLE || (block.what & BLOCK_DIRECT) != 0;
    const uint32_t last = high_halves.at.tail == 0 ? 0 : high_halves.tail >> (8 * (high_halves.at.tail - 1));
    uint4 *dst = reinterpret_cast<uint4 *>(block.page + block.offset);
#pragma unroll 1
    for (uint32_t g = 0; g < 4; g += TOGETHER) {
        uint32_t w[TOGETHER][4];
#pragma unroll
        for (uint32_t i = 0; i < TOGETHER; i++) {
            const uint32_t vector = first + 32 * (g + i), before = vector * values::VECTOR;
            maker.make(vector, WHOLE ? values::VECTOR : m - min(m, before), w[i]);
            if (!WHOLE)
                high_halves.add_tail(vector, w[i]);
            maker.compare(g + i, vector, w[i]);
            if ((g + i + 1) % values::STEPS == 0)
                maker.end_part();
        }
#pragma unroll
        for (uint32_t i = 0; i < TOGETHER; i++) {
            const uint32_t vector = first + 32 * (g + i);
            if (!direct) {
                put_any(launch, block, sum, keys, vector, w[i], last);
            } else if (WHOLE || vector < block.bytes / 16) {
                const uint32_t at_step = step + 8 * (g + i);
                sum_vector(sum, w[i], keys, at_step * SUM_STEP_EVEN, at_step * SUM_STEP_ODD);
                store_streaming(dst + vector, w[i]);
            }
        }
    }
    return maker.publish(shared);
}

// All workers: the table of the block, or the ranking of its base in the form that decoders use. Afterwards all workers
// are done with the block before.
DEVICE const uint32_t *find_table(const decode_team &team, uint32_t stage, const typed_layout &at, uint32_t thread)
{
    uint32_t *image = team.shared().base_images[stage];
    const bool by_base = at.coder != TYPED_TABLE_TIERS;
    if (by_base && thread < IMAGE_DECODE_BYTES)
        reinterpret_cast<uint8_t *>(image)[thread] = static_cast<uint8_t>(base_image_byte(thread, at.base));
    named_sync(team.barrier_id(), WORKERS);
    return by_base ? image : team.table(stage);
}

struct typed_found {
    uint64_t sum;   // over the lane's vectors
    uint32_t found; // findings of the warp
};

template <typed_type TYPE, bool WHOLE>
DEVICE typed_found decode_type(const one_region &launch, const decode_team &team, uint32_t stage,
                               const decode_block &block, const typed_layout &at)
{
    const uint32_t thread = threadIdx.x % TEAM_THREADS, lane = thread % 32, warp = thread / 32;
    typed_worker<TYPE, WHOLE> worker = {team, at, find_table(team, stage, at, thread), stage, warp, lane, 0};
    partial_sum sum = {0, 0, 0};
    uint32_t found = at.tiers() ? worker.read_tiers(found_exponents()) : worker.read_codes();
    __syncwarp();
    if ((found & WARP_BAD) == 0) {
        typed_maker<TYPE, WHOLE> maker = {worker, block, {worker.table[0], worker.table[1]}, 0, NO_PART, 0, 0, 0, 0};
        found |= put_typed(launch, worker, block, sum, maker);
    }
    if (TYPE == TYPE_FP32)
        named_sync(team.barrier_id(), WORKERS); // a high half of the next block may lie where another warp's lies now
    __syncwarp();
    return {sum_total(sum), found};
}

// FP8, in mode_fp8_decode.cuh, and mode 11, in mode_parts_decode.cuh.
template <uint32_t TEAMS> __device__ __noinline__ typed_found decode_fp8(const region &of_block, uint32_t iteration);
template <uint32_t TEAMS> __device__ __noinline__ typed_found decode_parts(const region &of_block, uint32_t iteration);
template <uint32_t TEAMS> __device__ __noinline__ uint32_t check_fp8_block(uint32_t iteration);
template <uint32_t TEAMS> __device__ __noinline__ uint32_t check_parts_block(uint32_t iteration);

// Modes from FP8 on, by one branch of their own, which leaves decode_typed as it would be without them.
template <uint32_t TEAMS> DEVICE uint32_t mode_of(uint32_t iteration)
{
    return this_team<TEAMS>().shared().blocks[iteration % LOOKUP_SLOTS].mode();
}
template <uint32_t TEAMS> __device__ __noinline__ typed_found decode_later(const region &of_block, uint32_t iteration)
{
    return mode_of<TEAMS>(iteration) == STRAIT_BLOCK_FP8 ? decode_fp8<TEAMS>(of_block, iteration)
                                                         : decode_parts<TEAMS>(of_block, iteration);
}
template <uint32_t TEAMS> __device__ __noinline__ uint32_t check_later_block(uint32_t iteration)
{
    return mode_of<TEAMS>(iteration) == STRAIT_BLOCK_FP8 ? check_fp8_block<TEAMS>(iteration)
                                                         : check_parts_block<TEAMS>(iteration);
}

// All workers: decodes block number `iteration` of the team.
template <uint32_t TEAMS> __device__ __noinline__ typed_found decode_typed(const region &of_block, uint32_t iteration)
{
    if (this_team<TEAMS>().shared().blocks[iteration % LOOKUP_SLOTS].mode() >= STRAIT_BLOCK_FP8)
        return decode_later<TEAMS>(of_block, iteration);
    const one_region launch = {of_block};
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = iteration % DECODE_STAGES;
    const decode_block &block = team.shared().blocks[iteration % LOOKUP_SLOTS];
    const typed_layout at = lay_out(block, team.lines(stage) + block.before);
    const bool whole = (block.what & BLOCK_WHOLE) != 0;
    if (!at.good)
        return {0, WARP_BAD};
    if (block.mode() == STRAIT_BLOCK_BASE)
        return whole ? decode_type<TYPE_BF16, true>(launch, team, stage, block, at)
                     : decode_type<TYPE_BF16, false>(launch, team, stage, block, at);
    if ((block.what & BLOCK_FP32) == 0)
        return whole ? decode_type<TYPE_FP16, true>(launch, team, stage, block, at)
                     : decode_type<TYPE_FP16, false>(launch, team, stage, block, at);
    return whole ? decode_type<TYPE_FP32, true>(launch, team, stage, block, at)
                 : decode_type<TYPE_FP32, false>(launch, team, stage, block, at);
}

// ---- Blocks of mode 6 in tiers, of whole parts ---------------------------------------------------------------------

// Nearly all blocks that are coded by bases are tiers by the ranking of the base. They are decoded like tiered blocks,
// except that the ranking is made from the base and the base is checked: full ones, and those that go straight to their
// pages and end with a part, as most models' rows do.

// All workers: whether block number `iteration` of the team, which has arrived, is such a block; a WHOLE one, or not.
template <bool WHOLE> DEVICE bool is_plain_base(const decode_team &team, uint32_t iteration)
{
    constexpr uint32_t ASKED = BLOCK_MODE | BLOCK_STOP | BLOCK_DIRECT | BLOCK_WHOLE;
    constexpr uint32_t IS = STRAIT_BLOCK_BASE | BLOCK_DIRECT | (WHOLE ? BLOCK_WHOLE : 0);
    const decode_block &block = team.shared().blocks[iteration % LOOKUP_SLOTS];
    const uint32_t n = WHOLE ? BLOCK_VALUES : block.bytes / 2;
    if ((block.what & ASKED) != IS || (!WHOLE && block.bytes % (2 * PART_VALUES) != 0) ||
        block.units < units_of(n + n / 4 + TYPED_END_BYTES))
        return false;
    const uint8_t *input = team.lines(iteration % DECODE_STAGES) + block.before;
    return input[block.units * UNIT - TYPED_END_BYTES] == TYPED_BASE_TIERS;
}

// The ranking of the block's base, and the base that the warp's parts imply.
struct base_ranking {
    uint32_t *table; // to be filled
    uint32_t base, parts;

    // No warp reads it before the warps have counted once more.
    DEVICE void make(uint32_t warp, uint32_t lane) const
    {
        if (warp == 0)
            reinterpret_cast<uint8_t *>(table)[lane] = static_cast<uint8_t>(base_image_byte(lane, base));
    }
    DEVICE void observe(const uint32_t exponents[2])
    {
        const uint32_t greatest = greatest_of_u16x2(greatest_exponents(0, exponents));
        parts = least_part(parts, __reduce_max_sync(ALL_LANES, greatest));
    }
};

// Replacement for a launch: blocks that go straight to their pages need no region.
struct no_launch {
};

DEVICE region get_region(const no_launch &, uint32_t)
{
    return {};
}

// All workers: decodes block number `iteration` of the team, which is such a block, and the following ones as long as
// they are such blocks too and their chunks have passed the check. Returns the next iterations of all blocks and of
// tiers.
template <uint32_t TEAMS, bool WHOLE>
__device__ __noinline__ uint2 decode_bases(uint32_t iteration, uint32_t tiered_iteration)
{
    const decode_team team = this_team<TEAMS>();
    const uint32_t thread = threadIdx.x % TEAM_THREADS, lane = thread % 32, warp = thread / 32;
    decode_shared &shared = team.shared();
    for (;;) {
        const uint32_t stage = iteration % DECODE_STAGES;
        const decode_block &block = shared.blocks[iteration % LOOKUP_SLOTS];
        const uint32_t base = team.lines(stage)[block.before + block.units * UNIT - 1];
        base_ranking ranking = {shared.base_images[stage], base, NO_PART};
        block_writer writer = {shared.keys, {0, 0, 0}};
        const uint32_t found =
            decode_tiered<WHOLE>(no_launch(), team, stage, block, writer, ranking, tiered_iteration, warp, lane);
        if (lane == 0)
            shared.orders[stage][warp] = order_of_parts(ranking.parts);
        publish_findings(shared, stage, sum_total(writer.sum), found, warp, lane);
        iteration++, tiered_iteration++;
        barrier_wait(&shared.full[iteration % DECODE_STAGES], iteration / DECODE_STAGES & 1);
        if ((shared.blocks[iteration % LOOKUP_SLOTS].what & BLOCK_REFUSED) != 0 ||
            !is_plain_base<WHOLE>(team, iteration))
            return make_uint2(iteration, tiered_iteration);
    }
}

// ---- Finish warp ---------------------------------------------------------------------------------------------------

// All lanes: where the streams of tiers lie, from the counts of the workers.
template <class LAYOUT>
DEVICE streams measure_counted(const decode_shared &shared, uint32_t stage, const LAYOUT &at, uint32_t lane)
{
    streams s = {};
    const bool is_warp = lane < WORKER_WARPS;
    s.n = at.m;
    s.at2 = at.after_codes();
    s.count2 = __reduce_add_sync(ALL_LANES, is_warp ? shared.counts2[stage][lane] : 0);
    s.count3 = __reduce_add_sync(ALL_LANES, is_warp ? shared.counts3[stage][lane] : 0);
    s.count4 = __reduce_add_sync(ALL_LANES, is_warp ? shared.escapes[stage][lane] & ~WARP_BAD : 0);
    s.at3 = s.at2 + (s.count2 + 3) / 4;
    s.at4 = s.at3 + (s.count3 + 1) / 2;
    s.used = s.at4 + s.count4 + at.tail;
    return s;
}

// All lanes: where the coder's streams lie.
DEVICE streams measure_typed(const decode_shared &shared, uint32_t stage, const typed_layout &at, uint32_t lane)
{
    if (at.tiers())
        return measure_counted(shared, stage, at, lane);
    const bool listed = at.coder == TYPED_BASE_LISTED;
    streams s = {};
    s.n = at.m;
    s.at2 = at.after_codes();
    s.count4 = listed ? list_count(at.input, s.at2) : 0;
    s.at4 = s.at2 + 2 + 2 * s.count4;
    s.used = s.at2 + (listed ? 2 + 3 * s.count4 : 0) + at.tail;
    return s;
}

// Whether the unused bits of the streams' last bytes are zero.
DEVICE bool padding_valid(const streams &s, const typed_layout &at)
{
    if (!at.tiers())
        return is_padded<4>(at.input, at.at_codes(), at.m);
    return is_padded<2>(at.input, at.at_codes(), at.m) && is_padded<2>(at.input, s.at2, s.count2) &&
           is_padded<4>(at.input, s.at3, s.count3);
}

// All lanes: whether the values have the base, have nonzero low bits where there must be some, and are not all the same
// word.
DEVICE bool values_valid(const decode_shared &shared, uint32_t stage, const decode_block &block, const typed_layout &at,
                         uint32_t lane)
{
    const uint32_t order = lane < WORKER_WARPS ? shared.orders[stage][lane] : NO_BASE;
    const uint32_t first = lane < WORKER_WARPS ? shared.firsts[stage][lane] : FIRST_NONE;
    const bool has_low_bits = __any_sync(ALL_LANES, (order & ORDER_LOW_BITS) != 0);
    const uint32_t word = __shfl_sync(ALL_LANES, first, 0);
    if (__all_sync(ALL_LANES, first == FIRST_NONE || first == word) && (word & FIRST_DIFFERS) == 0)
        return false; // the mode would be const
    if (block.mode() != STRAIT_BLOCK_SPLIT)
        return true;
    if ((block.what & BLOCK_FP32) != 0)
        return has_low_bits; // otherwise the mode would be fp32z
    return is_padded<2>(at.input, 0, at.m) && is_padded<1>(at.input, (at.m + 3) / 4, at.m);
}

// All lanes: does all checks that workers have not done. BF16 blocks have the streams of tiered and top16 blocks.
DEVICE bool typed_valid(const decode_shared &shared, uint32_t stage, const decode_block &block, const typed_layout &at,
                        const streams &s, uint32_t lane)
{
    const uint32_t end = at.size - TYPED_END_BYTES;
    if (units_of(s.used + TYPED_END_BYTES) != block.units)
        return false;
    if (__any_sync(ALL_LANES, s.used + lane < end && at.input[s.used + lane] != 0))
        return false;
    const uint32_t order = lane < WORKER_WARPS ? shared.orders[stage][lane] & 255 : NO_BASE;
    const uint32_t base = base_from_order(__reduce_min_sync(ALL_LANES, order));
    if (at.coder != TYPED_TABLE_TIERS && base != at.base)
        return false;
    if (block.mode() == STRAIT_BLOCK_BASE)
        return at.tiers() ? tiers_valid(s, at.input, lane) : codes_valid(s, at.input, lane);
    return padding_valid(s, at) && values_valid(shared, stage, block, at, lane);
}

// All lanes of the finish warp: result word of block number `iteration` of the team.
template <uint32_t TEAMS> __device__ __noinline__ uint32_t check_typed_block(uint32_t iteration)
{
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = iteration % DECODE_STAGES, lane = threadIdx.x % 32;
    const decode_shared &shared = team.shared();
    const decode_block &block = shared.blocks[iteration % LOOKUP_SLOTS];
    if (block.mode() >= STRAIT_BLOCK_FP8)
        return check_later_block<TEAMS>(iteration);
    const typed_layout at = lay_out(block, team.lines(stage) + block.before);
    const uint32_t corrupt = make_result_word(-STRAIT_ERR_CORRUPT, 0, 0);
    if (__any_sync(ALL_LANES, lane < WORKER_WARPS && (shared.escapes[stage][lane] & WARP_BAD) != 0))
        return corrupt;
    const streams s = measure_typed(shared, stage, at, lane);
    if (!typed_valid(shared, stage, block, at, s, lane))
        return corrupt;
    const uint32_t stats_mode = at.tiers()                     ? STRAIT_BLOCK_TIERED
                                : at.coder == TYPED_BASE_CODES ? STRAIT_BLOCK_TOP16
                                                               : STRAIT_BLOCK_TOP16_ESCAPES;
    return make_result_word(0, stats_mode, s.count4);
}

} // namespace strait
#endif
