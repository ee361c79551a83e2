// Decoding FP8 blocks (mode 10), FORMAT.md section 3.3.
#ifndef STRAIT_KERNELS_CUDA_MODE_FP8_DECODE_CUH
#define STRAIT_KERNELS_CUDA_MODE_FP8_DECODE_CUH

#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/mode_typed_decode.cuh"

namespace strait
{

// Layout of a block up to tier 2; what follows depends on counts.
struct fp8_layout {
    const uint8_t *input;
    uint32_t size; // including the ranking
    uint32_t m, at1, at2;
    bool e5m2;

    DEVICE const uint8_t *ranking() const
    {
        return input + size - FP8_RANKS;
    }
    // Whether streams that end at byte `end` leave room for the ranking.
    DEVICE bool has_room(uint32_t end) const
    {
        return end + FP8_RANKS <= size;
    }
};

DEVICE fp8_layout lay_out_fp8(const decode_block &block, const uint8_t *input)
{
    fp8_layout at;
    at.input = input;
    at.size = block.units * UNIT;
    at.m = block.bytes;
    at.e5m2 = (block.what & BLOCK_E5M2) != 0;
    at.at1 = fp8_rests_size(at.e5m2, at.m);
    at.at2 = at.at1 + (at.m + 3) / 4;
    return at;
}

// ---- Workers -------------------------------------------------------------------------------------------------------

// A lane's part of a block: EACH consecutive values. An ALIGNED block goes straight to its page, and is a full one or a
// short one, which lanes share by half groups.
template <bool ALIGNED, uint32_t EACH> struct fp8_worker {
    static constexpr uint32_t WORDS = EACH / 16;
    static constexpr bool FULL = ALIGNED && EACH == FP8_EACH;
    const decode_team &team;
    const fp8_layout &at;
    uint32_t stage, warp, lane;
    uint32_t tier1[WORDS], tier2[WORDS], tier3[WORDS]; // items at the positions of the values
    uint32_t at4, at5, first4; // where tier 4 and its upper bits begin; number of the lane's next item there

    DEVICE uint32_t thread() const
    {
        return warp * 32 + lane;
    }
    DEVICE uint32_t left() const
    {
        return FULL ? EACH : min(at.m - min(at.m, EACH * thread()), EACH);
    }

    // Word at a byte of the block; streams of an even block whose size is fixed are aligned.
    DEVICE uint32_t load(uint32_t from) const
    {
        return ALIGNED ? *reinterpret_cast<const uint32_t *>(at.input + from) : load_word(at.input, from);
    }

    // All workers: adds the lane's count to those of the lanes before it. Returns the items before the lane's; *all
    // becomes those of all warps.
    DEVICE uint32_t count_before(uint32_t *counts, uint32_t count, uint32_t *all) const
    {
        const uint32_t scan = warp_scan(count);
        if (lane == 31)
            counts[warp] = scan;
        named_sync(team.barrier_id(), WORKERS);
        const uint32_t of_warp = lane < WORKER_WARPS ? counts[lane] : 0;
        *all = __reduce_add_sync(ALL_LANES, of_warp);
        return __reduce_add_sync(ALL_LANES, lane < warp ? of_warp : 0) + scan - count;
    }

    // Reads a tier of the values that are `on`, whose items begin with number `first` of the stream at byte `from`.
    // Returns how many are 3.
    DEVICE uint32_t read_tier(uint32_t from, uint32_t first, const uint32_t on[WORDS], uint32_t items[WORDS]) const
    {
        const uint32_t *words = reinterpret_cast<const uint32_t *>(at.input);
        uint32_t bit = 8 * from + 2 * first, count = 0;
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i += 2) {
            const uint32_t *p = words + bit / 32, three[3] = {p[0], p[1], p[2]};
            expand_pair(three, bit % 32, on + i, items + i);
            bit += 2 * (popcount(on[i]) + popcount(on[i + 1]));
            count += popcount(threes(items[i])) + popcount(threes(items[i + 1]));
        }
        return count;
    }

    DEVICE uint32_t load_tier1()
    {
        uint32_t count = 0;
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++) {
            const uint32_t values = left(), mask = values > 16 * i ? low_mask(2 * (values - 16 * i)) : 0;
            tier1[i] = mask == 0 ? 0 : load(at.at1 + 4 * WORDS * thread() + 4 * i) & mask;
            count += popcount(threes(tier1[i]));
        }
        return count;
    }

    // All workers: reads tiers 1 to 3, and finds where tier 4 begins and the lane's items in it. False when the streams
    // do not lie inside the block.
    DEVICE bool read_tiers()
    {
        decode_shared &shared = team.shared();
        uint32_t on[WORDS], all2, all3, all4;
        const uint32_t first2 = count_before(shared.counts2[stage], load_tier1(), &all2);
        const uint32_t at3 = at.at2 + (all2 + 3) / 4;
        if (!at.has_room(at3))
            return false; // all workers see this
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++)
            on[i] = threes(tier1[i]);
        const uint32_t first3 = count_before(shared.counts3[stage], read_tier(at.at2, first2, on, tier2), &all3);
        at4 = at3 + (all3 + 3) / 4;
        if (!at.has_room(at4))
            return false;
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++)
            on[i] = threes(tier2[i]);
        first4 = count_before(shared.orders[stage], read_tier(at3, first3, on, tier3), &all4);
        at5 = at4 + (all4 + 1) / 2;
        return at.has_room(at4 + fp8_last_size(at.e5m2, all4));
    }

    // A whole group's values are made in two halves of 32, so that they fit in registers. A lane with half a group has
    // one half, number 0.

    // Exponents of the half that the first two words of all tiers stand for, but for those without a rank.
    DEVICE void make_exponents(uint32_t e[8]) const
    {
        static_assert(FP8_RANKS == 9, "the last nine bytes of the block's last unit");
        const uint4 end = reinterpret_cast<const uint4 *>(at.input + at.size)[-1];
        const uint32_t ranking[4] = {shift_right(end.y, end.z, 24), shift_right(end.z, end.w, 24), end.w >> 24, 0};
        fp8_exponents_of(tier1[0], tier2[0], tier3[0], ranking, e);
        fp8_exponents_of(tier1[1], tier2[1], tier3[1], ranking, e + 4);
    }

    // Puts the exponents without a rank in their places in the half. Returns WARP_BAD when one has a rank.
    DEVICE uint32_t put_last(uint32_t e[8])
    {
        uint32_t bad = 0;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
#pragma unroll 1
            for (uint32_t remaining = threes(tier3[i]); remaining != 0; remaining &= remaining - 1, first4++) {
                const uint32_t place = lowest_bit(remaining) / 2;
                uint32_t exponent = at.input[at4 + first4 / 2] >> (first4 % 2 * 4) & 15;
                if (at.e5m2)
                    exponent |= (at.input[at5 + first4 / 8] >> (first4 % 8) & 1) << 4;
                for (uint32_t r = 0; r < FP8_RANKS; r++)
                    bad |= at.ranking()[r] == exponent ? WARP_BAD : 0;
#pragma unroll
                for (uint32_t j = 0; j < 4; j++)
                    e[4 * i + j] |= place / 4 == j ? exponent << (8 * (place % 4)) : 0;
            }
        }
        return bad;
    }

    // The piece of the lane's group that is in the sample.
    DEVICE uint32_t piece() const
    {
        return sample_piece(thread() / (FP8_EACH / EACH));
    }

    // Takes what a half of the lane's group has of the piece.
    DEVICE void take_sample(const uint32_t e[8], uint32_t half_of_group, uint32_t sample[2]) const
    {
        const uint32_t piece = this->piece();
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            sample[0] = piece == 4 * half_of_group + i ? e[2 * i] : sample[0];
            sample[1] = piece == 4 * half_of_group + i ? e[2 * i + 1] : sample[1];
        }
    }

    // All lanes: counts the warp's part of the sample, for the finish warp.
    DEVICE void count_sample(const uint32_t sample[2]) const
    {
        const uint32_t exist = left(), from = 8 * piece();
        uint32_t count;
        if (EACH == FP8_EACH) {
            count = count_exponents<8>(at.e5m2, sample, exist - min(exist, from), lane);
        } else { // of an even block: the lane that has the piece gives half of it to the other one
            const uint32_t other = __shfl_sync(ALL_LANES, sample[1], lane ^ 1);
            const uint32_t mine[1] = {piece() / 4 == lane % 2 ? sample[0] : other};
            count = count_exponents<4>(at.e5m2, mine, exist, lane);
        }
        team.shared().samples[stage][warp][lane] = static_cast<uint16_t>(count);
    }

    // Makes values of exponents.
    DEVICE void join(uint32_t half, uint32_t e[8]) const
    {
        const uint32_t first = EACH * thread() + 32 * half, values = left();
        if (at.e5m2) {
            const uint32_t signs = load((at.m + 3) / 4 + first / 8);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t mantissas = load(first / 4 + 4 * i);
#pragma unroll
                for (uint32_t j = 0; j < 4; j++)
                    e[4 * i + j] = (e[4 * i + j] & 0x1f1f1f1fu) << 2 |
                                   unpack_e5m2(mantissas >> (8 * j), signs >> (16 * i + 4 * j));
            }
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t w[2];
                unpack_eight_rests(load(first / 2 + 4 * i), w);
                e[2 * i] = (e[2 * i] & 0x0f0f0f0fu) << 3 | w[0];
                e[2 * i + 1] = (e[2 * i + 1] & 0x0f0f0f0fu) << 3 | w[1];
            }
        }
        if (ALIGNED)
            return;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            truncate_vector(e + 4 * i, values > 32 * half + 16 * i ? values - 32 * half - 16 * i : 0);
    }

    // All lanes: lanes of a pair exchange a vector, so that they have neighbours afterwards: the first vectors of both
    // are those of the lower lane, the second those of the upper lane.
    DEVICE void exchange(uint32_t w[8]) const
    {
        const bool upper = (lane & 1) != 0;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t other = __shfl_sync(ALL_LANES, upper ? w[i] : w[4 + i], lane ^ 1);
            w[i] = upper ? other : w[i];
            w[4 + i] = upper ? w[4 + i] : other;
        }
    }

    // All lanes: stores a half and adds it to the sum. Returns nonzero when it differs from `word`, twice the warp's
    // first.
    DEVICE uint32_t put(const one_region &launch, const decode_block &block, uint32_t half, const uint32_t w[8],
                        uint32_t word, partial_sum &sum) const
    {
        const bool direct = ALIGNED || (block.what & BLOCK_DIRECT) != 0;
        uint4 key = team.shared().keys[2 * half + lane % 2];
        uint32_t differs = 0;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t vector = WORDS * (32 * warp + lane / 2 * 2 + k) + 2 * half + lane % 2;
            const uint32_t step = block.first_step + vector / 4;
            if (WORDS == 2 && k == 1)
                key = team.shared().keys[2 + lane % 2];
            const uint32_t keys[4] = {key.x, key.y, key.z, key.w};
            uint32_t v[4] = {w[4 * k], w[4 * k + 1], w[4 * k + 2], w[4 * k + 3]};
            uint32_t x[4] = {v[0] ^ word, v[1] ^ word, v[2] ^ word, v[3] ^ word};
            if (!ALIGNED)
                truncate_vector(x, 16 * vector < (block.bytes & ~1u) ? (block.bytes & ~1u) - 16 * vector : 0);
            differs |= FULL || 16 * vector < block.bytes ? x[0] | x[1] | x[2] | x[3] : 0;
            if (!direct) {
                const uint32_t last = block.bytes - 1;
                const uint32_t tail = last / 16 == vector ? pair_of(v, last % 16) & 255 : 0;
                put_any(launch, block, sum, keys, vector, v, tail);
            } else if (FULL || vector < block.bytes / 16) {
                sum_vector(sum, v, keys, step * SUM_STEP_EVEN, step * SUM_STEP_ODD);
                store_streaming(reinterpret_cast<uint4 *>(block.page + block.offset) + vector, v);
            }
        }
        return differs;
    }

    // The other half is next.
    DEVICE void next_half()
    {
#pragma unroll
        for (uint32_t i = 0; i + 2 < WORDS; i++)
            tier1[i] = tier1[i + 2], tier2[i] = tier2[i + 2], tier3[i] = tier3[i + 2];
    }
};

template <bool ALIGNED, uint32_t EACH>
DEVICE typed_found decode_fp8_block(const one_region &launch, const decode_team &team, uint32_t stage,
                                    const decode_block &block, const fp8_layout &at)
{
    const uint32_t thread = threadIdx.x % TEAM_THREADS, lane = thread % 32, warp = thread / 32;
    decode_shared &shared = team.shared();
    fp8_worker<ALIGNED, EACH> worker = {team, at, stage, warp, lane};
    partial_sum sum = {0, 0, 0};
    uint32_t sample[2] = {0, 0}, bad = 0, differs = 0, word = 0;
    if (!worker.read_tiers())
        return {0, WARP_BAD};
    const bool has_values = worker.FULL || 32 * EACH * warp < block.bytes; // the warp
#pragma unroll 1
    for (uint32_t half = 0; half < EACH / 32 && has_values; half++) {
        uint32_t w[8];
        worker.make_exponents(w);
        bad |= worker.put_last(w);
        worker.take_sample(w, EACH == FP8_EACH ? half : lane % 2, sample);
        worker.join(half, w);
        if (half == 0)
            word = (__shfl_sync(ALL_LANES, w[0], 0) & 0xffff) * 0x10001u;
        worker.exchange(w);
        differs |= worker.put(launch, block, half, w, word, sum);
        worker.next_half();
    }
    worker.count_sample(sample);
    const bool differ = __any_sync(ALL_LANES, differs != 0);
    if (lane == 0)
        shared.firsts[stage][warp] =
            32 * EACH * warp < block.bytes ? (word & 0xffff) | (differ ? FIRST_DIFFERS : 0) : FIRST_NONE;
    return {sum_total(sum), __any_sync(ALL_LANES, bad != 0) ? WARP_BAD : 0};
}

// All workers: decodes block number `iteration` of the team.
template <uint32_t TEAMS> __device__ __noinline__ typed_found decode_fp8(const region &of_block, uint32_t iteration)
{
    const one_region launch = {of_block};
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = iteration % DECODE_STAGES;
    const decode_block &block = team.shared().blocks[iteration % LOOKUP_SLOTS];
    const fp8_layout at = lay_out_fp8(block, team.lines(stage) + block.before);
    if ((block.what & BLOCK_WHOLE) != 0)
        return decode_fp8_block<true, FP8_EACH>(launch, team, stage, block, at);
    if ((block.what & BLOCK_DIRECT) != 0 && is_fp8_short(block.bytes))
        return decode_fp8_block<true, FP8_EACH / 2>(launch, team, stage, block, at);
    return decode_fp8_block<false, FP8_EACH>(launch, team, stage, block, at);
}

// ---- Finish warp ---------------------------------------------------------------------------------------------------

// All lanes: whether the ranking is that of the sample that workers have counted.
DEVICE bool ranking_valid(const decode_shared &shared, uint32_t stage, const fp8_layout &at, uint32_t lane)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < WORKER_WARPS; i++)
        count += shared.samples[stage][i][lane];
    uint32_t key = exponent_key(count, at.e5m2, lane);
#pragma unroll 1
    for (uint32_t r = 0; r < FP8_RANKS; r++) {
        const uint32_t greatest = __reduce_max_sync(ALL_LANES, key);
        if (exponent_of_key(greatest) != at.ranking()[r])
            return false;
        key = key == greatest ? 0 : key;
    }
    return true;
}

// All lanes: whether not all values are the same word.
DEVICE bool words_differ(const decode_shared &shared, uint32_t stage, uint32_t lane)
{
    const uint32_t first = lane < WORKER_WARPS ? shared.firsts[stage][lane] : FIRST_NONE;
    const uint32_t word = __shfl_sync(ALL_LANES, first, 0);
    return (word & FIRST_DIFFERS) != 0 || !__all_sync(ALL_LANES, first == FIRST_NONE || first == word);
}

// All lanes of the finish warp: result word of block number `iteration` of the team.
template <uint32_t TEAMS> __device__ __noinline__ uint32_t check_fp8_block(uint32_t iteration)
{
    const decode_team team = this_team<TEAMS>();
    const uint32_t stage = iteration % DECODE_STAGES, lane = threadIdx.x % 32;
    const decode_shared &shared = team.shared();
    const decode_block &block = shared.blocks[iteration % LOOKUP_SLOTS];
    const fp8_layout at = lay_out_fp8(block, team.lines(stage) + block.before);
    const uint32_t corrupt = make_result_word(-STRAIT_ERR_CORRUPT, 0, 0);
    const bool is_warp = lane < WORKER_WARPS;
    if (__any_sync(ALL_LANES, is_warp && (shared.escapes[stage][lane] & WARP_BAD) != 0))
        return corrupt;
    const uint32_t count2 = __reduce_add_sync(ALL_LANES, is_warp ? shared.counts2[stage][lane] : 0);
    const uint32_t count3 = __reduce_add_sync(ALL_LANES, is_warp ? shared.counts3[stage][lane] : 0);
    const uint32_t count4 = __reduce_add_sync(ALL_LANES, is_warp ? shared.orders[stage][lane] : 0);
    const uint32_t at3 = at.at2 + (count2 + 3) / 4, at4 = at3 + (count3 + 3) / 4, at5 = at4 + (count4 + 1) / 2;
    const uint32_t used = at4 + fp8_last_size(at.e5m2, count4), end = at.size - FP8_RANKS;
    if (units_of(used + FP8_RANKS) != block.units)
        return corrupt;
    const bool padding = used + lane < end && at.input[used + lane] != 0;
    const bool rests = at.e5m2 ? is_padded<2>(at.input, 0, at.m) && is_padded<1>(at.input, (at.m + 3) / 4, at.m)
                               : is_padded<4>(at.input, 0, at.m);
    const bool tiers = is_padded<2>(at.input, at.at1, at.m) && is_padded<2>(at.input, at.at2, count2) &&
                       is_padded<2>(at.input, at3, count3) && is_padded<4>(at.input, at4, count4) &&
                       (!at.e5m2 || is_padded<1>(at.input, at5, count4));
    if (__any_sync(ALL_LANES, padding) || !rests || !tiers || !ranking_valid(shared, stage, at, lane) ||
        !words_differ(shared, stage, lane))
        return corrupt;
    return make_result_word(0, STRAIT_BLOCK_TIERED, (count4 + 1) / 2);
}

} // namespace strait
#endif
