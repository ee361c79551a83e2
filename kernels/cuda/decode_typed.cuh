// Workers: blocks of the later modes, FORMAT.md section 3.2. What they do is not inlined into the kernel: blocks of
// other modes shall have all registers as before.
#ifndef STRAIT_KERNELS_CUDA_DECODE_TYPED_CUH
#define STRAIT_KERNELS_CUDA_DECODE_TYPED_CUH

#include "kernels/cuda/decode_end.cuh"
#include "kernels/cuda/decode_tiered.cuh"
#include "kernels/cuda/decode_top16.cuh"
#include "kernels/cuda/typed.cuh"

namespace strait
{

// What workers found, each warp in its part of a block, for the last warp.
constexpr uint32_t ORDER_RESTS = 256;                               // in orders: a rest is not zero
constexpr uint32_t FIRST_DIFFERS = 1u << 16, FIRST_NONE = 1u << 17; // in firsts: not all words are the first; none

// What a block's end and its size say.
struct typed_layout {
    const uint8_t *input;
    uint32_t size; // with its end
    uint32_t m, tail, rests;
    uint32_t coder, base;
    bool good;

    DEVICE bool tiers() const
    {
        return coder <= TYPED_BASE_TIERS;
    }
    DEVICE uint32_t at_codes() const // or tier 1
    {
        return rests + m;
    }
    DEVICE uint32_t after_codes() const
    {
        return at_codes() + (tiers() ? (m + 3) / 4 : (m + 1) / 2);
    }
    // Whether streams that end there leave room for what follows them.
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
    at.rests = rest_bytes_of(block.mode(), fp32, at.m);
    at.coder = input[at.size - 2];
    at.base = input[at.size - 1];
    at.good = at.coder < TYPED_CODERS && at.has_room(at.after_codes());
    if (at.coder == TYPED_TABLE_TIERS)
        at.good = at.good && at.base == 0 && block.mode() != STRAIT_BLOCK_BASE && (block.what & BLOCK_CODEBOOK) != 0;
    return at;
}

// The bytes of the tail, from the lowest on.
DEVICE uint32_t load_tail(const typed_layout &at, uint32_t from)
{
    uint32_t tail = 0;
    for (uint32_t i = 0; i < at.tail; i++)
        tail |= static_cast<uint32_t>(at.input[min(from + i, at.size - 1)]) << (8 * i);
    return tail;
}

// ---- Halves ---------------------------------------------------------------------------------------------------------

// A worker's part of a block. What it leaves in shared memory for the halves of its warp is read by that warp alone.
template <typed_type TYPE, bool WHOLE> struct typed_worker {
    typedef typed_values<TYPE> values;
    static constexpr uint32_t EACH = values::EACH;
    const decode_team &team;
    const typed_layout &at;
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
        tier1[0] = load_word(at.input, from) & low_bits(2 * min(left, 16));
        tier1[1] = 0;
        if (EACH == 32 && left > 16)
            tier1[1] = load_word(at.input, from + 4) & low_bits(2 * min(left - 16, 16));
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

    // All lanes: the warp's count to those of all warps. Returns the items of the warps before it; *all gets those of
    // all.
    DEVICE uint32_t count_items(uint32_t *counts, uint32_t count, uint32_t *all) const
    {
        const uint32_t of_warp = __reduce_add_sync(ALL_LANES, count);
        if (lane == 0)
            counts[warp] = of_warp;
        named_sync(team.among(), WORKERS);
        const uint32_t found = lane < WORKER_WARPS ? counts[lane] : 0;
        *all = __reduce_add_sync(ALL_LANES, found);
        return __reduce_add_sync(ALL_LANES, lane < warp ? found : 0);
    }

    // All workers. Returns what the warp leaves for the last warp.
    DEVICE uint32_t read_tiers()
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
            return WARP_BAD; // all workers see the same
        const uint32_t three[3] = {words[bit / 32], words[bit / 32 + 1], words[bit / 32 + 2]};
        spread_pair(three, bit % 32, on2, tier2);
        tier3.wanted = even_bits(threes(tier2[0]), threes(tier2[1]));
        tier3.count = popcount(tier3.wanted);
        put_items(tier1, tier2);
        const uint32_t scan3 = warp_scan(tier3.count) - tier3.count;
        tier3.first = count_items(shared.counts3[stage], tier3.count, &all3) + scan3;
        const uint32_t at4 = tier3.at3 + (all3 + 1) / 2;
        if (!at.has_room(at4))
            return WARP_BAD;
        const uint32_t found = tier3.put(at.input, table, shared.counts3[stage], team.exponents() + EACH * thread());
        const bool bad = __any_sync(ALL_LANES, (found & WARP_BAD) != 0);
        const uint32_t escapes = __reduce_add_sync(ALL_LANES, found & ~WARP_BAD);
        if (!WHOLE && at.tail != 0) { // it follows tier 4
            uint32_t all4;
            count_items(shared.escapes[stage], found & ~WARP_BAD, &all4);
            tail = load_tail(at, at4 + all4);
            named_sync(team.among(), WORKERS); // they will be written again
        }
        return escapes | (bad ? WARP_BAD : 0);
    }

    // All workers.
    DEVICE uint32_t read_codes()
    {
        uint32_t from = at.after_codes();
        bool good = true;
        if (at.coder == TYPED_BASE_LISTED) {
            const uint32_t count = list_count(at.input, from);
            if (count == 0 || count > at.m || !at.has_room(from + 2 + 3 * count))
                return WARP_BAD;
            good = spread_list<32 * EACH>(team, table, at.input, at.m, at.at_codes(), from, count, warp, lane);
            from += 2 + 3 * count;
        }
        tail = load_tail(at, from);
        return __all_sync(ALL_LANES, good) ? 0 : WARP_BAD;
    }

    // Of halves: words of a stream, where they are aligned or may not be.
    DEVICE uint32_t load_stream(uint32_t from) const
    {
        return WHOLE ? *reinterpret_cast<const uint32_t *>(at.input + from) : load_word(at.input, from);
    }

    // Exponents of eight halves, by codes of four bits.
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
        const uint32_t from = at.rests + 8 * eight, sm[2] = {load_stream(from), load_stream(from + 4)};
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
        const uint32_t sm = load_stream(at.rests + 4 * four);
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

// ---- Values ---------------------------------------------------------------------------------------------------------

// Values of a block in the making, and what they show.
template <typed_type TYPE, bool WHOLE> struct typed_maker {
    typedef typed_values<TYPE> values;
    const typed_worker<TYPE, WHOLE> &halves;
    const decode_block &block;
    uint32_t first[2];        // exponents of the first ranks
    uint32_t greatest, least; // of a part, in halves; as the encoder's
    uint32_t rests, misfits;  // nonzero: one is not zero; a half is of no value
    uint32_t word, differs;   // the warp's first word of 16 bits, twice; nonzero: another differs

    DEVICE void make(uint32_t vector, uint32_t count, uint32_t w[4])
    {
        const typed_layout &at = halves.at;
        if (TYPE == TYPE_FP32) {
            uint32_t h[2];
            halves.load_four(vector, first, h);
            const uint2 r = at.rests != 0 ? reinterpret_cast<const uint2 *>(at.input)[vector] : make_uint2(0, 0);
            w[0] = permute(r.x, h[0], 0x5410), w[1] = permute(r.x, h[0], 0x7632);
            w[2] = permute(r.y, h[1], 0x5410), w[3] = permute(r.y, h[1], 0x7632);
        } else {
            halves.load_eight(vector, first, w);
        }
        if (!WHOLE)
            keep_bytes(w, count * values::BYTES);
#pragma unroll
        for (int j = 0; j < 4; j += values::STEPS) {
            const uint32_t pair = TYPE == TYPE_FP32 ? permute(w[j], w[(j + 1) % 4], 0x7632) : w[j];
            greatest = greatest_halves(greatest, pair);
        }
        if (TYPE == TYPE_FP32)
            rests |= (w[0] | w[1] | w[2] | w[3]) & 0xffff;
        if (TYPE == TYPE_FP16)
            make_fp16(vector, count, w);
    }

    DEVICE void make_fp16(uint32_t vector, uint32_t count, uint32_t w[4])
    {
        const uint8_t *twos = halves.at.input, *ones = twos + (halves.at.m + 3) / 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t half = w[j];
            w[j] = fp16_values(half);
            misfits |= fp16_halves(w[j]) ^ half;
        }
        join_rests(w, reinterpret_cast<const uint16_t *>(twos)[vector], ones[vector]);
        if (!WHOLE)
            keep_bytes(w, count * values::BYTES);
    }

    DEVICE void add_tail(uint32_t vector, uint32_t w[4]) const
    {
        const uint32_t from = halves.at.m * values::BYTES;
        if (halves.at.tail == 0 || vector != from / 16)
            return;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            w[j] |= from % 16 / 4 == j ? halves.tail << (from % 4 * 8) : 0;
    }

    // All lanes: whether words are all the same. Of BF16 values the last warp sees it by the streams.
    DEVICE void compare(uint32_t g, uint32_t vector, const uint32_t w[4])
    {
        if (TYPE == TYPE_BF16)
            return;
        if (g == 0)
            word = (__shfl_sync(ALL_LANES, w[0], 0) & 0xffff) * 0x10001u;
        uint32_t x[4] = {w[0] ^ word, w[1] ^ word, w[2] ^ word, w[3] ^ word};
        if (!WHOLE) {
            const uint32_t bytes = block.bytes & ~1u;
            keep_bytes(x, 16 * vector < bytes ? bytes - 16 * vector : 0);
        }
        differs |= x[0] | x[1] | x[2] | x[3];
    }

    // All lanes.
    DEVICE void end_part()
    {
        least = min(least, base_order(__reduce_max_sync(ALL_LANES, greatest_of_halves(greatest))));
        greatest = 0;
    }

    // All lanes: for the last warp. Returns what else the warp has for it.
    DEVICE uint32_t tell(decode_shared &shared) const
    {
        const uint32_t stage = halves.stage, warp = halves.warp;
        const bool any_rests = __any_sync(ALL_LANES, rests != 0), differ = __any_sync(ALL_LANES, differs != 0);
        if (halves.lane == 0) {
            shared.orders[stage][warp] = least | (any_rests ? ORDER_RESTS : 0);
            shared.firsts[stage][warp] =
                1024 * warp < block.bytes / 2 ? (word & 0xffff) | (differ ? FIRST_DIFFERS : 0) : FIRST_NONE;
        }
        return __any_sync(ALL_LANES, misfits != 0) ? WARP_BAD : 0;
    }
};

// In place of a launch, for who wants the region of one block only.
struct one_region {
    const region &of_block;
};

DEVICE region get_region(const one_region &launch, uint32_t)
{
    return launch.of_block;
}

template <typed_type TYPE, bool WHOLE>
DEVICE uint32_t put_typed(const one_region &launch, const typed_worker<TYPE, WHOLE> &halves, const decode_block &block,
                          partial_sum &sum)
{
    typedef typed_values<TYPE> values;
    constexpr uint32_t TOGETHER = WHOLE ? PUT_TOGETHER : 1;
    decode_shared &shared = halves.team.shared();
    const uint4 k = shared.keys[halves.lane % 4];
    const uint32_t keys[4] = {k.x, k.y, k.z, k.w}, first = halves.warp * 128 + halves.lane;
    const uint32_t step = block.first_step + first / 4, m = halves.at.m;
    const bool direct = WHOLE || (block.what & BLOCK_DIRECT) != 0;
    const uint32_t last = halves.at.tail == 0 ? 0 : halves.tail >> (8 * (halves.at.tail - 1));
    uint4 *dst = reinterpret_cast<uint4 *>(block.page + block.offset);
    typed_maker<TYPE, WHOLE> maker = {halves, block, {halves.table[0], halves.table[1]}, 0, NO_BASE, 0, 0, 0, 0};
#pragma unroll 1
    for (uint32_t g = 0; g < 4; g += TOGETHER) {
        uint32_t w[TOGETHER][4];
#pragma unroll
        for (uint32_t i = 0; i < TOGETHER; i++) {
            const uint32_t vector = first + 32 * (g + i), before = vector * values::VECTOR;
            maker.make(vector, WHOLE ? values::VECTOR : m - min(m, before), w[i]);
            if (!WHOLE)
                maker.add_tail(vector, w[i]);
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
    return maker.tell(shared);
}

// All workers: the table of the block, or the ranking of its base as decoders want it. They are through with the block
// before it then.
DEVICE const uint32_t *find_table(const decode_team &team, uint32_t stage, const typed_layout &at, uint32_t thread)
{
    uint32_t *image = team.shared().base_images[stage];
    const bool by_base = at.coder != TYPED_TABLE_TIERS;
    if (by_base && thread < IMAGE_DECODE_BYTES)
        reinterpret_cast<uint8_t *>(image)[thread] = static_cast<uint8_t>(base_image_byte(thread, at.base));
    named_sync(team.among(), WORKERS);
    return by_base ? image : team.table(stage);
}

struct typed_found {
    uint64_t sum;   // of the lane's vectors
    uint32_t found; // what the warp leaves for the last warp
};

template <typed_type TYPE, bool WHOLE>
DEVICE typed_found work_type(const one_region &launch, const decode_team &team, uint32_t stage,
                             const decode_block &block, const typed_layout &at)
{
    const uint32_t thread = threadIdx.x % TEAM_THREADS, lane = thread % 32, warp = thread / 32;
    typed_worker<TYPE, WHOLE> worker = {team, at, find_table(team, stage, at, thread), stage, warp, lane, 0};
    partial_sum sum = {0, 0, 0};
    uint32_t found = at.tiers() ? worker.read_tiers() : worker.read_codes();
    __syncwarp();
    if ((found & WARP_BAD) == 0)
        found |= put_typed(launch, worker, block, sum);
    if (TYPE == TYPE_FP32)
        named_sync(team.among(), WORKERS); // other blocks' halves of a warp may lie where these of another lie
    __syncwarp();
    return {sum_total(sum), found};
}

// The team of this thread, found again: so the compiler knows that all of it is shared memory.
template <uint32_t TEAMS> DEVICE decode_team this_team(uint32_t thread = threadIdx.x)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t number = TEAMS == 1 ? 0 : thread / TEAM_THREADS;
    return {memory + number * decode_team::BYTES, number};
}

// All workers: the team's `turn`-th block.
template <uint32_t TEAMS> __device__ __noinline__ typed_found work_typed(const region &of_block, uint32_t turn)
{
    const one_region launch = {of_block};
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = turn % DECODE_STAGES;
    const decode_block &block = team.shared().blocks[turn % LOOKED_UP];
    const typed_layout at = lay_out(block, team.lines(stage) + block.before);
    const bool whole = (block.what & BLOCK_WHOLE) != 0;
    if (!at.good)
        return {0, WARP_BAD};
    if (block.mode() == STRAIT_BLOCK_BASE)
        return whole ? work_type<TYPE_BF16, true>(launch, team, stage, block, at)
                     : work_type<TYPE_BF16, false>(launch, team, stage, block, at);
    if ((block.what & BLOCK_FP32) == 0)
        return whole ? work_type<TYPE_FP16, true>(launch, team, stage, block, at)
                     : work_type<TYPE_FP16, false>(launch, team, stage, block, at);
    return whole ? work_type<TYPE_FP32, true>(launch, team, stage, block, at)
                 : work_type<TYPE_FP32, false>(launch, team, stage, block, at);
}

} // namespace strait
#endif
