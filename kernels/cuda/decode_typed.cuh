// Workers: blocks of the later modes, FORMAT.md section 3.2. This code is not inlined into the kernel, so that it takes
// no registers from blocks of other modes.
#ifndef STRAIT_KERNELS_CUDA_DECODE_TYPED_CUH
#define STRAIT_KERNELS_CUDA_DECODE_TYPED_CUH

#include "kernels/cuda/decode_halves.cuh"

namespace strait
{

// Makes the values of a block, and gathers what the last warp has to check.
template <typed_type TYPE, bool WHOLE> struct typed_maker {
    typedef typed_values<TYPE> values;
    const typed_worker<TYPE, WHOLE> &halves;
    const decode_block &block;
    uint32_t first[2];        // exponents of the first ranks
    uint32_t greatest, parts; // greatest exponent of a part, in half words; least of these over parts
    uint32_t rests, misfits;  // nonzero: some rest is nonzero; some half is that of no value
    uint32_t word, differs;   // the warp's first 16-bit word, twice; nonzero: some word differs

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

    // All lanes: compares all words with the first. For BF16 values the last warp finds this from the streams.
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

    // All lanes: ends a part of 256 values.
    DEVICE void end_part()
    {
        parts = least_part(parts, __reduce_max_sync(ALL_LANES, greatest_of_halves(greatest)));
        greatest = 0;
    }

    // All lanes: stores the warp's findings for the last warp. Returns what it reports besides.
    DEVICE uint32_t tell(decode_shared &shared) const
    {
        const uint32_t stage = halves.stage, warp = halves.warp;
        const bool any_rests = __any_sync(ALL_LANES, rests != 0), differ = __any_sync(ALL_LANES, differs != 0);
        if (halves.lane == 0) {
            shared.orders[stage][warp] = order_of_parts(parts) | (any_rests ? ORDER_RESTS : 0);
            shared.firsts[stage][warp] =
                1024 * warp < block.bytes / 2 ? (word & 0xffff) | (differ ? FIRST_DIFFERS : 0) : FIRST_NONE;
        }
        return __any_sync(ALL_LANES, misfits != 0) ? WARP_BAD : 0;
    }
};

// Stands in for a launch where only the region of one block is needed.
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
    typed_maker<TYPE, WHOLE> maker = {halves, block, {halves.table[0], halves.table[1]}, 0, NO_PART, 0, 0, 0, 0};
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

// All workers: the table of the block, or the ranking of its base in the form that decoders use. Afterwards all workers
// are done with the block before.
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
    uint64_t sum;   // over the lane's vectors
    uint32_t found; // what the warp reports to the last warp
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
        named_sync(team.among(), WORKERS); // in the next block, a warp's halves may lie where another's lie now
    __syncwarp();
    return {sum_total(sum), found};
}

// Finds the team of this thread again, so that the compiler knows that all of it is in shared memory.
template <uint32_t TEAMS> DEVICE decode_team this_team(uint32_t thread = threadIdx.x)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t number = TEAMS == 1 ? 0 : thread / TEAM_THREADS;
    return {memory + number * decode_team::BYTES, number};
}

// All workers: decodes the team's `turn`-th block.
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
