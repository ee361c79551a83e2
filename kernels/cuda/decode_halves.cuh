// Workers: blocks of the later modes, FORMAT.md section 3.2, up to their halves: where their streams lie, and their
// contents.
#ifndef STRAIT_KERNELS_CUDA_DECODE_HALVES_CUH
#define STRAIT_KERNELS_CUDA_DECODE_HALVES_CUH

#include "kernels/cuda/decode_end.cuh"
#include "kernels/cuda/decode_tiered.cuh"
#include "kernels/cuda/decode_top16.cuh"
#include "kernels/cuda/typed.cuh"

namespace strait
{

// What each warp of workers found in its part of a block, for the last warp.
constexpr uint32_t ORDER_RESTS = 256;                               // in `orders`: a rest is not zero
constexpr uint32_t FIRST_DIFFERS = 1u << 16, FIRST_NONE = 1u << 17; // in firsts: words differ; there are none

// What the block's end and size say.
struct typed_layout {
    const uint8_t *input;
    uint32_t size; // including its end
    uint32_t m, tail, rests;
    uint32_t coder, base;
    bool good;

    DEVICE bool tiers() const
    {
        return coder <= TYPED_BASE_TIERS;
    }
    DEVICE uint32_t at_codes() const // or to tier 1
    {
        return rests + m;
    }
    DEVICE uint32_t after_codes() const
    {
        return at_codes() + (tiers() ? (m + 3) / 4 : (m + 1) / 2);
    }
    // Whether streams that end at byte `end` leave room for what follows them.
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

// The bytes of the tail, lowest first.
DEVICE uint32_t load_tail(const typed_layout &at, uint32_t from)
{
    uint32_t tail = 0;
    for (uint32_t i = 0; i < at.tail; i++)
        tail |= static_cast<uint32_t>(at.input[min(from + i, at.size - 1)]) << (8 * i);
    return tail;
}

// A worker's part of a block. Whatever it leaves in shared memory for the halves of its warp is read by that warp only.
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

    // All lanes: adds the warp's count to those of all warps. Returns the items of the warps before it; *all becomes
    // those of all warps.
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

    // All workers. Returns what the warp reports to the last warp.
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
            return WARP_BAD; // all workers see this
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
        if (!WHOLE && at.tail != 0) { // the tail follows tier 4
            uint32_t all4;
            count_items(shared.escapes[stage], found & ~WARP_BAD, &all4);
            tail = load_tail(at, at4 + all4);
            named_sync(team.among(), WORKERS); // the counts will be overwritten
        }
        return escapes | (bad ? WARP_BAD : 0);
    }

    // All workers; the same for codes.
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

    // A word of a stream, which is known to be aligned only in whole blocks.
    DEVICE uint32_t load_stream(uint32_t from) const
    {
        return WHOLE ? *reinterpret_cast<const uint32_t *>(at.input + from) : load_word(at.input, from);
    }

    // Exponents of eight halves from codes of four bits.
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

} // namespace strait
#endif
