// Encoding blocks of mode 11, FORMAT.md section 3.4.
#ifndef STRAIT_KERNELS_CUDA_MODE_PARTS_ENCODE_CUH
#define STRAIT_KERNELS_CUDA_MODE_PARTS_ENCODE_CUH

#include "kernels/cuda/mode_typed_encode.cuh"
#include "kernels/cuda/parts.cuh"

namespace strait
{

// Workers make two passes over a block. In the first they find the bases of parts, which are a warp's own, the tiers of
// all values and the bits that are in use; in the second, when they know what all of them have found, they store fields
// and tiers. So they wait for each other once, and once more where values may have patches.

template <coder_id CODER> struct parts_kind {
    static constexpr typed_type TYPE = CODER == CODER_PARTS_FP32   ? TYPE_FP32
                                       : CODER == CODER_PARTS_FP16 ? TYPE_FP16
                                                                   : TYPE_BF16;
    typedef typed_values<TYPE> values;
    static constexpr uint32_t FULL = values::HIGH_HALVES; // values of a full block
};

// Findings of workers beside those in encode_shared: by parity of the block, and by warp. Behind the exponents.
struct parts_shared {
    uint32_t counts[2][WORKER_WARPS], escapes[2][WORKER_WARPS]; // of tiers by the table; those by bases are elsewhere
    uint32_t in_use[2][WORKER_WARPS];                           // bits_in_use
    uint8_t bases[2][BLOCK_VALUES / PART_VALUES];
};
static_assert(sizeof(parts_shared) == PARTS_SHARED_BYTES, "room for it");

template <coder_id CODER> DEVICE parts_shared &shared_of_parts(const encode_team<CODER> &team)
{
    return *reinterpret_cast<parts_shared *>(team.high_halves() + parts_kind<CODER>::FULL);
}

// ---- First pass ----------------------------------------------------------------------------------------------------

// Tier 3 of a lane's values by the table of the page, or by the base of their part.
struct symbol_source {
    const uint8_t *exponents, *table; // of the lane's values; by exponent, or nullptr
    uint32_t base;                    // 0 with a table

    DEVICE uint32_t item_of(uint32_t exponent) const
    {
        return table != nullptr ? table[exponent] : symbol_tier3(part_symbol(exponent, base));
    }
    DEVICE uint32_t item(uint32_t i) const
    {
        return item_of(exponents[i]);
    }
    DEVICE uint32_t escape(uint32_t i) const
    {
        return part_symbol(exponents[i], base);
    }
    DEVICE uint32_t eight_items(uint32_t eight) const
    {
        const uint2 x = reinterpret_cast<const uint2 *>(exponents)[eight];
        uint32_t items = 0;
#pragma unroll
        for (int k = 3; k >= 0; k--)
            items = items * 16 + item_of(x.y >> (8 * k) & 255);
#pragma unroll
        for (int k = 3; k >= 0; k--)
            items = items * 16 + item_of(x.x >> (8 * k) & 255);
        return items;
    }
};

// Tiers of a lane's consecutive values.
struct lane_tiers {
    uint32_t tier1[2], tier2[2];
    tier3_items<symbol_source> items3;

    DEVICE uint32_t count2() const
    {
        return popcount(threes(tier1[0])) + popcount(threes(tier1[1]));
    }
    // Items of tier 2, and of tier 3 in the upper half.
    DEVICE uint32_t counts() const
    {
        return count2() | items3.count << 16;
    }

    // All lanes: finds items of tier 3, and publishes how many items and escapes the warp has. `left`: values that the
    // lane has.
    DEVICE void count(const symbol_source &source, uint32_t left, uint32_t flags, uint32_t *counts_of_warp,
                      uint32_t *escapes_of_warp, uint32_t lane)
    {
        cut_tiers(tier1, tier2, left);
        items3.source = source;
        items3.wanted = even_bits(threes(tier2[0]), threes(tier2[1]));
        items3.collect();
        const uint32_t all = __reduce_add_sync(ALL_LANES, counts());
        const uint32_t escapes = __reduce_add_sync(ALL_LANES, items3.escapes);
        if (lane == 0) {
            *counts_of_warp = all | (escapes != 0 ? COUNT_ESCAPES : 0) | flags;
            *escapes_of_warp = escapes;
        }
    }
};

// Reads a worker's vectors of a block. Codes of a vector's values go through shared memory, to the lanes that have
// consecutive values: a word by bases, and one by the table; halves of words for FP32.
template <coder_id CODER, bool CODED> struct parts_reader {
    typedef parts_kind<CODER> kind;
    static constexpr uint32_t CODES_BYTES = 32 * kind::values::EACH / 2; // of a warp, by one coder
    static constexpr uint32_t PAIRS = kind::TYPE == TYPE_FP32 ? 2 : 4;   // of values in a vector

    uint8_t *exponents, *codes; // of the team; of the warp
    table_address table;
    two_least least;
    uint32_t inverted[4];   // of a part
    uint32_t set, clear;    // bits that are set in some value, in some value not
    uint32_t normal;        // FP16: bits of mantissas that are set in some value that is not subnormal
    uint32_t bases, lane;   // of the warp's parts, a byte each
    uint32_t halves[PAIRS]; // of the vector

    template <class CODE> DEVICE CODE *codes_by(uint32_t coder) const
    {
        return reinterpret_cast<CODE *>(codes + (coder == PARTS_BY_TABLE ? CODES_BYTES : 0));
    }

    // Takes a vector of values; `exist` has all bits of those that exist.
    DEVICE void read(const uint32_t w[4], const uint32_t exist[4], uint32_t g, uint32_t vector)
    {
#pragma unroll
        for (int j = 0; j < 4; j++)
            set |= w[j], clear |= ~w[j] & exist[j];
        if (kind::TYPE == TYPE_FP16)
            normal |= normal_mantissas(w[0]) | normal_mantissas(w[1]) | normal_mantissas(w[2]) | normal_mantissas(w[3]);
        if (kind::TYPE == TYPE_FP32) {
            halves[0] = permute(w[0], w[1], 0x7632), halves[1] = permute(w[2], w[3], 0x7632);
        } else {
#pragma unroll
            for (uint32_t j = 0; j < PAIRS; j++)
                halves[j] = kind::TYPE == TYPE_FP16 ? fp16_high_halves(w[j]) : w[j];
        }
        uint32_t of_four[PAIRS / 2];
#pragma unroll
        for (uint32_t j = 0; j < PAIRS / 2; j++)
            of_four[j] = permute(halves[2 * j] << 1, halves[2 * j + 1] << 1, 0x7531);
        if constexpr (PAIRS == 2)
            reinterpret_cast<uint32_t *>(exponents)[vector] = of_four[0];
        else
            reinterpret_cast<uint2 *>(exponents)[vector] = make_uint2(of_four[0], of_four[1]);
#pragma unroll
        for (uint32_t j = 0; j < PAIRS; j++) {
            const uint32_t at = PAIRS == 2 ? g % 2 + 2 * j : j;
            inverted[at] = inverted_exponents(halves[j]);
            least.add(inverted[at]);
        }
        if (CODED)
            put_table_codes(g);
        if ((g + 1) % kind::values::STEPS == 0)
            end_part(g);
    }

    DEVICE void put_table_codes(uint32_t g) const
    {
        const uint32_t z = PAIRS == 2 ? four_tier_codes(halves, table) : tier_codes(halves, table);
        if (PAIRS == 2)
            codes_by<uint16_t>(PARTS_BY_TABLE)[32 * g + lane] = static_cast<uint16_t>((z & 255) | (z >> 8 & 0xff00));
        else
            codes_by<uint32_t>(PARTS_BY_TABLE)[32 * g + lane] = z;
    }

    // All lanes: the base of a part, and codes by it.
    DEVICE void end_part(uint32_t g)
    {
        least.join();
        const uint32_t first = __reduce_min_sync(ALL_LANES, least.first << 5 | lane);
        const uint32_t second = __reduce_min_sync(ALL_LANES, (first & 31) == lane ? least.second : least.first);
        const uint32_t base = part_base(second), z = base_codes(inverted, base_to_add(base));
        bases |= base << (8 * (g / kind::values::STEPS));
        least = {NO_INVERTED, NO_INVERTED};
        if (PAIRS == 2) {
            codes_by<uint16_t>(PARTS_BY_BASES)[32 * (g - 1) + lane] = static_cast<uint16_t>(z);
            codes_by<uint16_t>(PARTS_BY_BASES)[32 * g + lane] = static_cast<uint16_t>(z >> 16);
        } else {
            codes_by<uint32_t>(PARTS_BY_BASES)[32 * g + lane] = z;
        }
    }

    // Tiers 1 and 2 of the lane's consecutive values, when all lanes have put their codes.
    DEVICE void take_codes(uint32_t coder, lane_tiers &tiers) const
    {
        if (PAIRS == 2) {
            const uint2 z = codes_by<uint2>(coder)[lane];
            const uint32_t a = permute(z.x, z.y, 0x6420), b = permute(z.x, z.y, 0x7531);
            const bool by_table = coder == PARTS_BY_TABLE;
            tiers.tier1[0] = by_table ? a : select_bits(0x0f0f0f0fu, a, b << 4);
            tiers.tier2[0] = by_table ? b : select_bits(0x0f0f0f0fu, a >> 4, b);
            tiers.tier1[1] = tiers.tier2[1] = 0;
        } else {
            const uint4 x = codes_by<uint4>(coder)[lane];
            const uint32_t z[4] = {x.x, x.y, x.z, x.w};
            if (coder == PARTS_BY_TABLE) {
                part_tiers(z, tiers.tier1, tiers.tier2);
            } else {
                part_base_codes(z[0], z[1], tiers.tier1[0], tiers.tier2[0]);
                part_base_codes(z[2], z[3], tiers.tier1[1], tiers.tier2[1]);
            }
        }
    }
};

// The first pass over the values. Returns whether the warp's first ones equal the block's first one.
template <bool WHOLE, coder_id CODER, bool CODED>
DEVICE bool read_block(const encode_team<CODER> &team, parts_reader<CODER, CODED> &reader, partial_sum &sum,
                       uint32_t warp, uint32_t lane)
{
    typedef typename parts_kind<CODER>::values values;
    const encode_block &block = team.shared().block;
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : block.bytes, first_step = block.first_step;
    const uint32_t step = first_step + warp * 32 + lane / 4;
    const uint32_t even_step = step * SUM_STEP_EVEN, odd_step = step * SUM_STEP_ODD;
    uint32_t keys[4];
    bool same = true;
    load_keys(team.shared(), lane, keys);
#pragma unroll
    for (uint32_t g = 0; g < 4; g++) {
        const uint32_t vector = worker_vector(warp, lane, g);
        const uint4 x = input[vector];
        uint32_t w[4] = {x.x, x.y, x.z, x.w}, exist[4] = {ALL_LANES, ALL_LANES, ALL_LANES, ALL_LANES};
        if (WHOLE || vector < bytes / 16) {
            if (g == 0)
                same = (w[0] & 0xffff) == *reinterpret_cast<const uint16_t *>(input);
            sum_vector(sum, w, keys, even_step + g * 8 * SUM_STEP_EVEN, odd_step + g * 8 * SUM_STEP_ODD);
        } else {
            const uint32_t m = bytes / values::BYTES, before = vector * values::VECTOR;
            const uint32_t left = before < m ? (m - before) * values::BYTES : 0;
            sum_edge(w, bytes, first_step, vector, keys, sum);
            truncate_vector(w, left);
            truncate_vector(exist, left);
        }
        reader.read(w, exist, g, vector);
    }
    return __all_sync(ALL_LANES, same);
}

// ---- Second pass ---------------------------------------------------------------------------------------------------

// Stores the fields of a vector of values.
template <coder_id CODER>
DEVICE void put_fields(uint8_t *streams, const field_form &form, const piece_offsets &at, const uint32_t w[4],
                       uint32_t vector, uint32_t lane)
{
    constexpr typed_type TYPE = parts_kind<CODER>::TYPE;
    const uint32_t bits = form.bits;
    fields cut;
    cut_fields<TYPE>(form, w, cut);
    if constexpr (TYPE == TYPE_FP32) {
        if ((bits & 16) != 0)
            reinterpret_cast<uint2 *>(streams)[vector] = make_uint2(cut.middle[0], cut.middle[1]);
        if ((bits & 8) != 0)
            reinterpret_cast<uint32_t *>(streams + at.at8)[vector] = cut.top[0];
        cut.low[1] = 0;
        if ((bits & 4) != 0)
            reinterpret_cast<uint16_t *>(streams + at.at4)[vector] = static_cast<uint16_t>(pack_pieces4(bits, cut.low));
        if ((bits & 2) != 0)
            streams[at.at2 + vector] = static_cast<uint8_t>(pack_pieces2(bits, cut.low));
        if ((bits & 1) != 0) { // the items of two lanes make a byte
            const uint32_t items = pack_pieces1(cut.low), next = __shfl_sync(ALL_LANES, items, lane ^ 1);
            if (lane % 2 == 0)
                streams[at.at1 + vector / 2] = static_cast<uint8_t>(items | next << 4);
        }
    } else {
        if ((bits & 8) != 0)
            reinterpret_cast<uint2 *>(streams + at.at8)[vector] = make_uint2(cut.top[0], cut.top[1]);
        if ((bits & 4) != 0)
            reinterpret_cast<uint32_t *>(streams + at.at4)[vector] = pack_pieces4(bits, cut.low);
        if ((bits & 2) != 0)
            reinterpret_cast<uint16_t *>(streams + at.at2)[vector] = static_cast<uint16_t>(pack_pieces2(bits, cut.low));
        if ((bits & 1) != 0)
            streams[at.at1 + vector] = static_cast<uint8_t>(pack_pieces1(cut.low));
    }
}

template <bool WHOLE, coder_id CODER>
DEVICE void put_all_fields(const encode_team<CODER> &team, uint8_t *streams, const field_form &form,
                           const piece_offsets &at, uint32_t bytes, uint32_t warp, uint32_t lane)
{
    typedef typename parts_kind<CODER>::values values;
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
#pragma unroll
    for (uint32_t g = 0; g < 4; g++) {
        const uint32_t vector = worker_vector(warp, lane, g);
        const uint4 x = input[vector];
        uint32_t w[4] = {x.x, x.y, x.z, x.w};
        if (!WHOLE) {
            const uint32_t m = bytes / values::BYTES, before = vector * values::VECTOR;
            truncate_vector(w, before < m ? (m - before) * values::BYTES : 0);
        }
        put_fields<CODER>(streams, form, at, w, vector, lane);
    }
}

// The lane's values with patches: a bit each; the number of the first one's patch.
struct lane_patches {
    uint32_t values, first;
};

// All workers: takes the form with patches where these take less than it saves.
template <coder_id CODER>
DEVICE lane_patches find_patches(const encode_team<CODER> &team, field_form &form, uint32_t in_use, uint32_t m,
                                 uint32_t warp, uint32_t lane)
{
    const uint32_t zeroes = zero_bits<TYPE_FP16>(in_use >> NORMAL_SHIFT), mask = low_mask(zeroes);
    if (zeroes == form.zeroes)
        return {0, 0};
    const uint32_t from = (warp * 32 + lane) * 32, left = min(m - min(m, from), 32u);
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input()) + from / 8;
    lane_patches patches = {0, 0};
#pragma unroll
    for (uint32_t v = 0; v < 4; v++) {
        const uint4 x = input[v];
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            patches.values |= ((w[j] & mask) != 0 ? 1u : 0) << (8 * v + 2 * j) | ((w[j] >> 16 & mask) != 0 ? 2u : 0)
                                                                                     << (8 * v + 2 * j);
    }
    patches.values &= low_mask(left);
    uint32_t *of_warps = team.shared().warp_values;
    const uint32_t own = popcount(patches.values), scan = warp_scan(own);
    if (lane == 31)
        of_warps[warp] = scan;
    named_sync(team.barrier_id(), WORKERS);
    const uint32_t others = lane < WORKER_WARPS ? of_warps[lane] : 0, all = __reduce_add_sync(ALL_LANES, others);
    patches.first = __reduce_add_sync(ALL_LANES, lane < warp ? others : 0) + scan - own;
    if (all > PATCHES_MAX || 8 * patch_bytes(all) >= (zeroes - form.zeroes) * m)
        return {0, 0};
    form = make_field_form(mantissa_bits<TYPE_FP16>(), zeroes, form.signs, all);
    return patches;
}

// Stores the lane's patches, and thread 0 their number behind them. The place has no alignment.
template <coder_id CODER>
DEVICE void put_patches(const encode_team<CODER> &team, uint8_t *place, const field_form &form,
                        const lane_patches &patches, uint32_t thread)
{
    const uint16_t *values = reinterpret_cast<const uint16_t *>(team.input());
    uint8_t *at = place + PATCH_BYTES * patches.first;
    for (uint32_t left = patches.values; left != 0; left &= left - 1, at += PATCH_BYTES) {
        const uint32_t position = thread * 32 + lowest_bit(left), lowest = values[position] & low_mask(form.zeroes);
        at[0] = static_cast<uint8_t>(position), at[1] = static_cast<uint8_t>(position >> 8);
        at[2] = static_cast<uint8_t>(lowest), at[3] = static_cast<uint8_t>(lowest >> 8);
    }
    if (thread == 0) {
        uint8_t *number = place + PATCH_BYTES * form.patches;
        number[0] = static_cast<uint8_t>(form.patches), number[1] = static_cast<uint8_t>(form.patches >> 8);
    }
}

// The coded form of a block.
struct parts_block {
    uint32_t m, tail;         // number of values; bytes left over
    uint32_t fixed, variable; // bytes of pieces and tier 1; of later tiers
    uint32_t patches;         // bytes of patches
    uint32_t coder;

    DEVICE uint32_t units() const
    {
        return units_of(fixed + variable + tail + patches + parts_end(coder, m));
    }
    DEVICE uint32_t at_patches() const
    {
        return units() * UNIT - parts_end(coder, m) - patches;
    }
};

// Byte i of the end of a block.
DEVICE uint8_t end_byte(const parts_block &block, const field_form &form, const uint8_t *bases, uint32_t i)
{
    const uint32_t at_form = parts_end(block.coder, block.m) - PARTS_END_BYTES;
    return static_cast<uint8_t>(i < at_form ? bases[i] : i == at_form ? form.byte() : block.coder);
}

// All workers: packs the streams of a short block one after another, and the end of the block, in the stage.
template <coder_id CODER>
DEVICE void pack_parts(const encode_team<CODER> &team, const uint8_t *streams, const parts_block &block,
                       const field_form &form, const lane_patches &patches, const uint8_t *bases, uint32_t bytes,
                       uint32_t thread)
{
    constexpr uint32_t FULL = parts_kind<CODER>::FULL;
    const uint32_t bits = form.bits, m = block.m;
    const piece_offsets from = find_pieces(bits, FULL);
    uint8_t *at = team.input(), *end = at + block.at_patches();
    const uint8_t tail = thread < block.tail ? at[bytes - block.tail + thread] : 0;
    named_sync(team.barrier_id(), WORKERS);
    if (form.patches != 0) { // values lie where the block goes, and nobody needs exponents any more
        put_patches(team, team.high_halves(), form, patches, thread);
        named_sync(team.barrier_id(), WORKERS);
    }
    at = copy_stream(at, streams, piece_bytes(bits, 16, m), thread);
    at = copy_stream(at, streams + from.at4, piece_bytes(bits, 4, m), thread);
    at = copy_stream(at, streams + from.at2, piece_bytes(bits, 2, m), thread);
    at = copy_stream(at, streams + from.at1, piece_bytes(bits, 1, m), thread);
    at = copy_stream(at, streams + from.at8, piece_bytes(bits, 8, m), thread);
    at = copy_stream(at, streams + from.tier1, (m + 3) / 4, thread);
    at = copy_stream(at, streams + from.tier1 + FULL / 4, block.variable, thread);
    if (thread < block.tail)
        at[thread] = tail;
    at += block.tail;
    if (at + thread < end) // less than a unit
        at[thread] = 0;
    end = copy_stream(end, team.high_halves(), block.patches, thread);
    if (thread < parts_end(block.coder, m))
        end[thread] = end_byte(block, form, bases, thread);
}

// ---- Blocks --------------------------------------------------------------------------------------------------------

// The lane's tiers by bases and, when there is a table, by it.
template <bool CODED> struct tiers_of_coders {
    lane_tiers by_bases, by_table;

    DEVICE lane_tiers &of(uint32_t coder)
    {
        return CODED && coder == PARTS_BY_TABLE ? by_table : by_bases;
    }
};

// The first pass, with what workers publish.
template <bool WHOLE, coder_id CODER, bool CODED>
DEVICE void find_tiers(const encode_team<CODER> &team, tiers_of_coders<CODED> &tiers, uint32_t parity, uint32_t warp,
                       uint32_t lane)
{
    typedef typename parts_kind<CODER>::values values;
    constexpr typed_type TYPE = parts_kind<CODER>::TYPE;
    encode_shared &shared = team.shared();
    parts_shared &found = shared_of_parts(team);
    // The warp's share of the room for streams takes the codes, and is zero afterwards.
    uint4 *own = reinterpret_cast<uint4 *>(team.fixed(parity) + warp * (BLOCK_SIZE / WORKER_WARPS));
    parts_reader<CODER, CODED> reader = {};
    partial_sum sum = {0, 0, 0};
    reader.exponents = team.high_halves(), reader.codes = reinterpret_cast<uint8_t *>(own);
    reader.table = shared_address(team.table());
    reader.least = {NO_INVERTED, NO_INVERTED};
    reader.lane = lane;
    const bool same = read_block<WHOLE>(team, reader, sum, warp, lane);
    __syncwarp();
    reader.take_codes(PARTS_BY_BASES, tiers.by_bases);
    if (CODED)
        reader.take_codes(PARTS_BY_TABLE, tiers.by_table);
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < BLOCK_SIZE / WORKER_WARPS / 16 / 32; i++)
        own[32 * i + lane] = make_uint4(0, 0, 0, 0);
    const uint32_t in_use = __reduce_or_sync(ALL_LANES, bits_in_use<TYPE>(reader.set, reader.clear, reader.normal));
    if (lane == 0) {
        found.in_use[parity][warp] = in_use;
        if (TYPE == TYPE_FP32)
            reinterpret_cast<uint16_t *>(found.bases[parity])[warp] = static_cast<uint16_t>(reader.bases);
        else
            reinterpret_cast<uint32_t *>(found.bases[parity])[warp] = reader.bases;
    }
    const uint32_t first = (warp * 32 + lane) * values::EACH, m = shared.block.bytes / values::BYTES;
    const uint32_t left = WHOLE ? values::EACH : min(m - min(m, first), values::EACH), flags = same ? COUNT_SAME : 0;
    const uint32_t base = reader.bases >> (8 * (lane / (PART_VALUES / values::EACH))) & 255;
    const uint8_t *exponents = reader.exponents + first;
    tiers.by_bases.count({exponents, nullptr, base}, left, flags, &shared.counts[parity][warp],
                         &shared.escapes[parity][warp], lane);
    if (CODED)
        tiers.by_table.count({exponents, team.table() + 1024, 0}, left, flags, &found.counts[parity][warp],
                             &found.escapes[parity][warp], lane);
    warp_arrive(&shared.counts_ready, lane);
    const uint64_t total = warp_sum(sum_total(sum));
    if (lane == 0)
        shared.sums[parity][warp] = total;
}

template <bool WHOLE, bool CODED, coder_id CODER, class LAUNCH>
DEVICE void code_parts(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t iteration, uint32_t warp,
                       uint32_t lane)
{
    typedef parts_kind<CODER> kind;
    const uint32_t thread = warp * 32 + lane, parity = iteration & 1;
    encode_shared &shared = team.shared();
    parts_shared &found = shared_of_parts(team);
    const uint32_t bytes = WHOLE ? BLOCK_SIZE : shared.block.bytes, m = bytes / kind::values::BYTES;
    uint8_t *streams = team.fixed(parity);
    tiers_of_coders<CODED> tiers;
    find_tiers<WHOLE>(team, tiers, parity, warp, lane);
    barrier_wait(&shared.counts_ready, parity);

    const uint32_t in_use = __reduce_or_sync(ALL_LANES, lane < WORKER_WARPS ? found.in_use[parity][lane] : 0);
    field_form fields_are = find_field_form<kind::TYPE>(in_use);
    lane_patches patches = {0, 0};
    if constexpr (kind::TYPE == TYPE_FP16)
        patches = find_patches(team, fields_are, in_use, m, warp, lane);
    const piece_offsets pieces = find_pieces(fields_are.bits, kind::FULL);
    tier_offsets at = find_tier_offsets(shared.counts[parity], shared.escapes[parity], warp, lane);
    parts_block coded = {m,      bytes % kind::values::BYTES,     find_pieces(fields_are.bits, m).tier1 + (m + 3) / 4,
                         at.end, patch_bytes(fields_are.patches), PARTS_BY_BASES};
    if (CODED) {
        const tier_offsets other = find_tier_offsets(found.counts[parity], found.escapes[parity], warp, lane);
        parts_block by_table = coded;
        by_table.variable = other.end, by_table.coder = PARTS_BY_TABLE;
        if (by_table.units() <= coded.units()) {
            coded = by_table;
            at = other;
            tiers.by_bases = tiers.by_table;
        }
    }
    const uint32_t raw_units = units_of(bytes);
    uint32_t units = coded.units(), form = FORM_LATER;
    if (units >= raw_units) {
        units = raw_units;
        form = STRAIT_BLOCK_RAW;
    }
    if (at.maybe_const && raw_units > 1 && is_const(team, bytes / 2, warp, lane)) {
        units = 1;
        form = STRAIT_BLOCK_CONST;
    }
    const bool is_coded = form == FORM_LATER;
    if (thread == 0)
        submit_block(launch, team, parity, make_size(units, form, is_coded ? at.escapes : 0), 0,
                     !WHOLE || form == STRAIT_BLOCK_CONST, form == STRAIT_BLOCK_CONST, bytes);
    lane_tiers &of_lane = tiers.by_bases;
    const bool escapes = __any_sync(ALL_LANES, of_lane.items3.escapes != 0);
    // The next block may come with another table; exponents are the warp's own.
    const bool release_late = CODED && is_coded && (escapes || of_lane.items3.dense_escapes);
    if (is_coded) {
        put_all_fields<WHOLE>(team, streams, fields_are, pieces, bytes, warp, lane);
        if (WHOLE && fields_are.patches != 0)
            put_patches(team, streams + coded.at_patches(), fields_are, patches, thread);
    } else if (WHOLE && form == STRAIT_BLOCK_RAW)
        copy_raw(team, parity, BLOCK_SIZE, warp, lane);
    if (WHOLE && form != STRAIT_BLOCK_CONST && !release_late)
        warp_arrive(&shared.empty, lane);
    if (is_coded) {
        uint8_t *tier1 = streams + pieces.tier1;
        if (kind::TYPE == TYPE_FP32)
            reinterpret_cast<uint32_t *>(tier1)[thread] = of_lane.tier1[0];
        else
            reinterpret_cast<uint2 *>(tier1)[thread] = make_uint2(of_lane.tier1[0], of_lane.tier1[1]);
        const uint32_t on2[2] = {threes(of_lane.tier1[0]), threes(of_lane.tier1[1])}, counts = of_lane.counts();
        const uint32_t scan = warp_scan(counts) - counts, scan4 = escapes ? warp_scan(of_lane.items3.escapes) : 0;
        if (escapes)
            of_lane.items3.collect_escapes();
        store_tiers(tier1 + kind::FULL / 4, compact_pair(of_lane.tier2, on2), of_lane.items3, at, scan, scan4);
        if (WHOLE && thread < parts_end(coded.coder, m))
            streams[units * UNIT - parts_end(coded.coder, m) + thread] =
                end_byte(coded, fields_are, found.bases[parity], thread);
        if (WHOLE && release_late)
            warp_arrive(&shared.empty, lane);
        if (!WHOLE)
            pack_parts(team, streams, coded, fields_are, patches, found.bases[parity], bytes, thread);
    }
    fence_bulk();
    warp_arrive(&shared.job_ready[parity], lane);
}

template <bool WHOLE, class LAUNCH, coder_id CODER>
DEVICE void choose_parts(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t iteration, uint32_t warp,
                         uint32_t lane)
{
    if (launch.head.coded)
        code_parts<WHOLE, true>(launch, team, iteration, warp, lane);
    else
        code_parts<WHOLE, false>(launch, team, iteration, warp, lane);
}

template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER_PARTS_BF16> &team, uint32_t iteration,
                       uint32_t warp, uint32_t lane)
{
    choose_parts<WHOLE>(launch, team, iteration, warp, lane);
}

template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER_PARTS_FP16> &team, uint32_t iteration,
                       uint32_t warp, uint32_t lane)
{
    choose_parts<WHOLE>(launch, team, iteration, warp, lane);
}

template <bool WHOLE, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER_PARTS_FP32> &team, uint32_t iteration,
                       uint32_t warp, uint32_t lane)
{
    choose_parts<WHOLE>(launch, team, iteration, warp, lane);
}

} // namespace strait
#endif
