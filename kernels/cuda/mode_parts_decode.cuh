// Decoding blocks of mode 11, FORMAT.md section 3.4.
#ifndef STRAIT_KERNELS_CUDA_MODE_PARTS_DECODE_CUH
#define STRAIT_KERNELS_CUDA_MODE_PARTS_DECODE_CUH

#include "kernels/cuda/mode_typed_decode.cuh"
#include "kernels/cuda/parts.cuh"

namespace strait
{

// Layout of a block up to tier 2; what follows depends on counts.
struct parts_layout {
    const uint8_t *input;
    uint32_t size; // including its end
    uint32_t m, tail, coder, end;
    field_form form;
    piece_offsets pieces;
    bool good;

    DEVICE uint32_t at_codes() const // to tier 1
    {
        return pieces.tier1;
    }
    DEVICE uint32_t after_codes() const
    {
        return pieces.tier1 + (m + 3) / 4;
    }
    // Whether streams that end at byte `to` leave room for the tail and the end of the block.
    DEVICE bool has_room(uint32_t to) const
    {
        return to + tail + patch_bytes(form.patches) + end <= size;
    }
    // The position and the lowest bits of patch i.
    DEVICE uint32_t patch_word(uint32_t i, uint32_t word) const
    {
        const uint8_t *at = input + size - end - patch_bytes(form.patches) + PATCH_BYTES * i + 2 * word;
        return at[0] | at[1] << 8;
    }
    // The base of a part; by the table, 0.
    DEVICE uint32_t base(uint32_t part) const
    {
        return coder == PARTS_BY_BASES ? input[size - end + part] : 0;
    }
};

DEVICE typed_type type_of(const decode_block &block)
{
    return (block.what & BLOCK_FP32) != 0 ? TYPE_FP32 : (block.what & BLOCK_FP16) != 0 ? TYPE_FP16 : TYPE_BF16;
}

DEVICE parts_layout lay_out_parts(const decode_block &block, const uint8_t *input)
{
    parts_layout at;
    const typed_type type = type_of(block);
    const uint32_t bytes = type == TYPE_FP32 ? 4 : 2;
    const uint32_t mantissa = type == TYPE_FP32   ? mantissa_bits<TYPE_FP32>()
                              : type == TYPE_FP16 ? mantissa_bits<TYPE_FP16>()
                                                  : mantissa_bits<TYPE_BF16>();
    at.input = input;
    at.size = block.units * UNIT;
    at.m = block.bytes / bytes;
    at.tail = block.bytes % bytes;
    at.coder = input[at.size - 1];
    at.end = parts_end(at.coder, at.m);
    const uint32_t byte = input[at.size - 2], zeroes = byte % 32, signs = byte / 32 % 4;
    const bool patched = byte >= 128;
    const uint8_t *number = input + at.size - at.end - 2;
    const uint32_t patches = patched && at.end + 2 <= at.size ? number[0] | number[1] << 8 : 0;
    at.form = make_field_form(mantissa, min(zeroes, mantissa), signs, patches);
    at.pieces = find_pieces(at.form.bits, at.m);
    at.good = at.coder < PARTS_CODERS && zeroes <= mantissa && signs < SIGN_FORMS && at.has_room(at.after_codes()) &&
              (!patched || (type == TYPE_FP16 && patches != 0 && patches <= PATCHES_MAX));
    if (at.coder == PARTS_BY_TABLE)
        at.good = at.good && (block.what & BLOCK_CODEBOOK) != 0;
    return at;
}

// ---- Workers -------------------------------------------------------------------------------------------------------

// Makes the values of a block, for put_typed.
template <typed_type TYPE, bool WHOLE> struct parts_maker {
    typedef typed_values<TYPE> values;
    const typed_worker<TYPE, WHOLE, parts_layout> &symbols;
    uint32_t invalid; // nonzero: some exponent is that of no FP16 value

    DEVICE uint32_t load_half(uint32_t from) const
    {
        const uint8_t *input = symbols.at.input;
        return WHOLE ? *reinterpret_cast<const uint16_t *>(input + from) : load_word(input, from) & 0xffff;
    }

    DEVICE void load_fields(uint32_t vector, fields &cut) const
    {
        const uint8_t *input = symbols.at.input;
        const piece_offsets &at = symbols.at.pieces;
        const uint32_t bits = symbols.at.form.bits;
        constexpr bool FP32 = TYPE == TYPE_FP32;
        cut = {};
        if (FP32 && (bits & 16) != 0) {
            cut.middle[0] = symbols.load_stream(8 * vector);
            cut.middle[1] = symbols.load_stream(8 * vector + 4);
        }
        if ((bits & 8) != 0) {
            cut.top[0] = symbols.load_stream(at.at8 + values::VECTOR * vector);
            if (!FP32)
                cut.top[1] = symbols.load_stream(at.at8 + values::VECTOR * vector + 4);
        }
        if ((bits & 7) == 0)
            return;
        if ((bits & 4) != 0)
            unpack_pieces4(bits, FP32 ? load_half(at.at4 + 2 * vector) : symbols.load_stream(at.at4 + 4 * vector),
                           cut.low);
        if ((bits & 2) != 0)
            unpack_pieces2(bits, FP32 ? input[at.at2 + vector] : load_half(at.at2 + 2 * vector), cut.low);
        if ((bits & 1) != 0)
            unpack_pieces1(FP32 ? input[at.at1 + vector / 2] >> (vector % 2 * 4) : input[at.at1 + vector], cut.low);
    }

    // Adds the bits of the patches of a vector of FP16 values.
    DEVICE void patch(uint32_t vector, uint32_t w[4]) const
    {
        const uint32_t patches = symbols.at.form.patches;
        uint32_t next = 0, end = patches;
        while (next < end) { // the first one that is not of a vector before
            const uint32_t middle = (next + end) / 2;
            if (symbols.at.patch_word(middle, 0) / 8 < vector)
                next = middle + 1;
            else
                end = middle;
        }
        for (; next < patches && symbols.at.patch_word(next, 0) / 8 == vector; next++) {
            const uint32_t position = symbols.at.patch_word(next, 0) % 8, lowest = symbols.at.patch_word(next, 1);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                w[i] |= i == position / 2 ? lowest << (position % 2 * 16) : 0;
        }
    }

    DEVICE void make(uint32_t vector, uint32_t count, uint32_t w[4])
    {
        uint32_t first[2], exponents[2] = {0, 0};
        first_exponents(symbols.table, symbols.at.base(vector * values::VECTOR / PART_VALUES), first);
        const uint8_t *rest = symbols.team.exponents();
        const uint32_t *items = symbols.team.items();
        if (TYPE == TYPE_FP32) {
            exponents[0] = four_exponents(items[vector / 2], vector % 2 != 0,
                                          reinterpret_cast<const uint32_t *>(rest)[vector], first);
        } else {
            const uint2 e = reinterpret_cast<const uint2 *>(rest)[vector];
            const uint32_t other[2] = {e.x, e.y};
            rank_exponents(items[vector], other, first, exponents);
        }
        if (!WHOLE) {
            exponents[0] &= low_mask(8 * count);
            exponents[1] &= count > 4 ? low_mask(8 * (count - 4)) : 0;
        }
        fields cut;
        load_fields(vector, cut);
        invalid |= paste_fields<TYPE>(symbols.at.form, cut, exponents, w);
        if (TYPE == TYPE_FP16 && symbols.at.form.patches != 0)
            patch(vector, w);
        if (!WHOLE)
            truncate_vector(w, count * values::BYTES);
    }

    // Only other modes have more that depends on values.
    DEVICE void compare(uint32_t, uint32_t, const uint32_t[4]) const
    {
    }
    DEVICE void end_part() const
    {
    }
    DEVICE uint32_t publish(decode_shared &) const
    {
        return __any_sync(ALL_LANES, invalid != 0) ? WARP_BAD : 0;
    }
};

// All workers: the table of the block, or the ranking of symbols in the form that decoders use. Afterwards all workers
// are done with the block before.
DEVICE const uint32_t *find_ranking(const decode_team &team, uint32_t stage, const parts_layout &at, uint32_t thread)
{
    uint32_t *image = team.shared().base_images[stage];
    if (thread < IMAGE_DECODE_BYTES / 4)
        image[thread] = symbol_image_word(thread);
    named_sync(team.barrier_id(), WORKERS);
    return at.coder == PARTS_BY_BASES ? image : team.table(stage);
}

template <typed_type TYPE, bool WHOLE>
DEVICE typed_found decode_parts_of(const one_region &launch, const decode_team &team, uint32_t stage,
                                   const decode_block &block, const parts_layout &at)
{
    const uint32_t thread = threadIdx.x % TEAM_THREADS, lane = thread % 32, warp = thread / 32;
    typed_worker<TYPE, WHOLE, parts_layout> worker = {team, at, find_ranking(team, stage, at, thread), stage, warp,
                                                      lane, 0};
    partial_sum sum = {0, 0, 0};
    const uint32_t base = at.base(typed_values<TYPE>::EACH * thread / PART_VALUES);
    uint32_t found = worker.read_tiers([base](uint32_t symbol) { return part_exponent(symbol, base); });
    __syncwarp();
    if ((found & WARP_BAD) == 0) {
        parts_maker<TYPE, WHOLE> maker = {worker, 0};
        found |= put_typed(launch, worker, block, sum, maker);
    }
    if (TYPE == TYPE_FP32)
        named_sync(team.barrier_id(), WORKERS); // an exponent of the next block may lie where another warp's lies now
    __syncwarp();
    return {sum_total(sum), found};
}

// All workers: decodes block number `iteration` of the team.
template <uint32_t TEAMS> __device__ __noinline__ typed_found decode_parts(const region &of_block, uint32_t iteration)
{
    const one_region launch = {of_block};
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = iteration % DECODE_STAGES;
    const decode_block &block = team.shared().blocks[iteration % LOOKUP_SLOTS];
    const parts_layout at = lay_out_parts(block, team.lines(stage) + block.before);
    const bool whole = (block.what & BLOCK_WHOLE) != 0;
    if (!at.good)
        return {0, WARP_BAD};
    switch (type_of(block)) {
    case TYPE_BF16:
        return whole ? decode_parts_of<TYPE_BF16, true>(launch, team, stage, block, at)
                     : decode_parts_of<TYPE_BF16, false>(launch, team, stage, block, at);
    case TYPE_FP16:
        return whole ? decode_parts_of<TYPE_FP16, true>(launch, team, stage, block, at)
                     : decode_parts_of<TYPE_FP16, false>(launch, team, stage, block, at);
    default:
        return whole ? decode_parts_of<TYPE_FP32, true>(launch, team, stage, block, at)
                     : decode_parts_of<TYPE_FP32, false>(launch, team, stage, block, at);
    }
}

// ---- Finish warp ---------------------------------------------------------------------------------------------------

// Whether the unused bits of the streams' last bytes are zero.
DEVICE bool padding_valid(const streams &s, const parts_layout &at)
{
    const uint32_t bits = at.form.bits;
    return ((bits & 4) == 0 || is_padded<4>(at.input, at.pieces.at4, at.m)) &&
           ((bits & 2) == 0 || is_padded<2>(at.input, at.pieces.at2, at.m)) &&
           ((bits & 1) == 0 || is_padded<1>(at.input, at.pieces.at1, at.m)) &&
           is_padded<2>(at.input, at.at_codes(), at.m) && is_padded<2>(at.input, s.at2, s.count2) &&
           is_padded<4>(at.input, s.at3, s.count3);
}

// All lanes: whether patches are of values of the block, in increasing order, and have bits that fields lack.
DEVICE bool patches_valid(const parts_layout &at, uint32_t lane)
{
    bool bad = false;
    for (uint32_t i = lane; i < at.form.patches; i += 32) {
        const uint32_t position = at.patch_word(i, 0), lowest = at.patch_word(i, 1);
        bad |= position >= at.m || (i > 0 && at.patch_word(i - 1, 0) >= position) || lowest == 0 ||
               lowest >> at.form.zeroes != 0;
    }
    return !__any_sync(ALL_LANES, bad);
}

// All lanes of the finish warp: result word of block number `iteration` of the team.
template <uint32_t TEAMS> __device__ __noinline__ uint32_t check_parts_block(uint32_t iteration)
{
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = iteration % DECODE_STAGES, lane = threadIdx.x % 32;
    const decode_shared &shared = team.shared();
    const decode_block &block = shared.blocks[iteration % LOOKUP_SLOTS];
    const parts_layout at = lay_out_parts(block, team.lines(stage) + block.before);
    const uint32_t corrupt = make_result_word(-STRAIT_ERR_CORRUPT, 0, 0);
    if (__any_sync(ALL_LANES, lane < WORKER_WARPS && (shared.escapes[stage][lane] & WARP_BAD) != 0))
        return corrupt;
    const streams s = measure_counted(shared, stage, at, lane);
    const uint32_t end = at.end + patch_bytes(at.form.patches);
    if (units_of(s.used + end) != block.units)
        return corrupt;
    const bool padding = s.used + lane < at.size - end && at.input[s.used + lane] != 0;
    const bool has_base = at.coder == PARTS_BY_BASES && lane < parts_of(at.m);
    const uint32_t base = has_base ? at.base(lane) : 1;
    if (__any_sync(ALL_LANES, padding || base == 0 || base == 255) || !padding_valid(s, at) || !patches_valid(at, lane))
        return corrupt;
    return make_result_word(0, STRAIT_BLOCK_TIERED, s.count4);
}

} // namespace strait
#endif
