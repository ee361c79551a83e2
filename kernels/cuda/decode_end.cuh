// The last warp of a decoding team: the part of check 14 of FORMAT.md section 6 that the workers have not done, which
// makes sure that a block is encoded in the only valid way. Then it notes the block's sum and status.
#ifndef STRAIT_KERNELS_CUDA_DECODE_END_CUH
#define STRAIT_KERNELS_CUDA_DECODE_END_CUH

#include "kernels/cuda/decode_begin.cuh"

namespace strait
{

// Whether the unused bits after the last of `count` items are zero.
template <uint32_t WIDTH> DEVICE bool is_padded(const uint8_t *input, uint32_t at, uint32_t count)
{
    const uint32_t used = count * WIDTH % 8;
    return used == 0 || input[at + count * WIDTH / 8] >> used == 0;
}

// All lanes: whether all items equal the first. Mostly, one of the first few differs.
template <uint32_t WIDTH> DEVICE bool all_same(const uint8_t *input, uint32_t at, uint32_t count, uint32_t lane)
{
    const uint32_t first = get_item_of<WIDTH>(input, at, 0);
    for (uint32_t i = 0; i < count; i += 32) {
        const bool differs = i + lane < count && get_item_of<WIDTH>(input, at, i + lane) != first;
        if (__any_sync(ALL_LANES, differs))
            return false;
    }
    return true;
}

// The streams of a block: where they begin and how many items they have.
struct streams {
    uint32_t n, at2, at3, at4; // where tiers 2 to 4 begin; without tiers, at2 is the end of the codes
    uint32_t count2, count3, count4;
    uint32_t used; // bytes, with the tail
    bool good;
};

// All lanes. The counts of items are those of the workers.
DEVICE streams measure_tiers(const decode_shared &shared, uint32_t stage, const decode_block &block, uint32_t lane)
{
    streams s = {};
    s.n = block.bytes / 2;
    s.count2 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.counts2[stage][lane] : 0);
    s.count3 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.counts3[stage][lane] : 0);
    s.count4 = __reduce_add_sync(ALL_LANES, lane < WORKER_WARPS ? shared.escapes[stage][lane] & ~WARP_BAD : 0);
    s.at2 = s.n + (s.n + 3) / 4;
    s.at3 = s.at2 + (s.count2 + 3) / 4;
    s.at4 = s.at3 + (s.count3 + 1) / 2;
    s.used = s.at4 + s.count4 + block.bytes % 2;
    return s;
}

// Check 14 of a tiered block: padding bits are zero, and it should not have been a const block.
DEVICE bool tiers_hold(const streams &s, const uint8_t *input, uint32_t lane)
{
    if (!is_padded<2>(input, s.n, s.n) || !is_padded<2>(input, s.at2, s.count2) ||
        !is_padded<4>(input, s.at3, s.count3))
        return false;
    if (!all_same<8>(input, 0, s.n, lane) || !all_same<2>(input, s.n, s.n, lane))
        return true;
    if (s.count2 == 0)
        return false; // all values are one value, of tier 1
    if (!all_same<2>(input, s.at2, s.n, lane))
        return true;
    if (s.count3 == 0)
        return false;
    if (!all_same<4>(input, s.at3, s.n, lane))
        return true;
    return s.count4 != 0 && !all_same<8>(input, s.at4, s.n, lane);
}

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

DEVICE bool codes_hold(const streams &s, const uint8_t *input, uint32_t lane)
{
    if (!is_padded<4>(input, s.n, s.n))
        return false;
    if (!all_same<8>(input, 0, s.n, lane) || !all_same<4>(input, s.n, s.n, lane))
        return true;
    if (s.count4 == 0)
        return false;
    return s.count4 < s.n || !all_same<8>(input, s.at4, s.n, lane);
}

// All lanes: measures the block and finds whether an encoder would have written it.
DEVICE streams judge_block(const decode_shared &shared, uint32_t stage, const decode_block &block, const uint8_t *input,
                           uint32_t lane)
{
    const uint32_t size = block.units * UNIT;
    streams s = {};
    if (block.mode() == STRAIT_BLOCK_TIERED)
        s = measure_tiers(shared, stage, block, lane);
    else if (block.mode() >= STRAIT_BLOCK_TOP16)
        s = measure_top16(block, input);
    else
        s.used = block.mode() == STRAIT_BLOCK_RAW ? block.bytes : 2 + block.bytes % 2;
    const bool bad = lane < WORKER_WARPS && (shared.escapes[stage][lane] & WARP_BAD) != 0;
    s.good = !__any_sync(ALL_LANES, bad) && units_of(s.used) == block.units; // so the streams lie inside
    if (!s.good)
        return s;
    const bool padding = s.used + lane < size && input[s.used + lane] != 0;
    s.good = !__any_sync(ALL_LANES, padding);
    if (s.good && block.mode() >= STRAIT_BLOCK_TOP16)
        s.good = block.mode() == STRAIT_BLOCK_TIERED ? tiers_hold(s, input, lane) : codes_hold(s, input, lane);
    return s;
}

// All lanes: whether the team's next block is on its way, and will thus be done whatever other teams do. If not,
// another team may be waiting for the blocks before it. Lanes may see different states of the barrier; the vote makes
// them agree.
DEVICE bool is_underway(decode_shared &shared, uint32_t turn)
{
    const uint32_t stage = turn % DECODE_STAGES, parity = turn / DECODE_STAGES & 1;
    const bool found =
        barrier_test(&shared.done[stage], parity) ||
        (barrier_test(&shared.begun[stage], parity) && (shared.blocks[turn % LOOKED_UP].what & BLOCK_PASSED) != 0);
    return __any_sync(ALL_LANES, found);
}

// For blocks of the later modes (decode_typed_end.cuh): the word to note for the team's `turn`-th block.
template <uint32_t TEAMS> __device__ __noinline__ uint32_t judge_typed(uint32_t turn);

template <uint32_t TEAMS, class LAUNCH>
DEVICE void end_blocks(const LAUNCH &launch, const decode_team &team, uint32_t number)
{
    const uint32_t lane = threadIdx.x % 32;
    decode_shared &shared = team.shared();
    const uint64_t tag = launch_tag(launch);
    done_list done = {0, 0};
    if (lane == 0)
        prefetch_first(launch, number);
    __syncwarp();
    for (uint32_t turn = 0;; turn++) {
        const uint32_t stage = turn % DECODE_STAGES;
        if (done.is_full() || (done.count > 0 && !is_underway(shared, turn)))
            done.tell(launch, lane);
        barrier_wait(&shared.done[stage], turn / DECODE_STAGES & 1);
        const decode_block &block = shared.blocks[turn % LOOKED_UP];
        if ((block.what & BLOCK_STOP) != 0)
            break;
        uint32_t word;
        if (block.mode() >= STRAIT_BLOCK_BASE) {
            word = judge_typed<TEAMS>(turn);
        } else {
            const streams s = judge_block(shared, stage, block, team.lines(stage) + block.before, lane);
            word = s.good ? make_word(0, block.mode(), s.count4) : make_word(-STRAIT_ERR_CORRUPT, 0, 0);
        }
        const uint64_t sum = warp_sum(lane < WORKER_WARPS ? shared.sums[stage][lane] : 0);
        const uint32_t slot = block.slot;
        done.add(block.item, lane);
        warp_arrive(&shared.empty[stage], lane);
        if (lane == 0)
            note_block(launch, tag, slot, word, sum);
        __syncwarp();
    }
    done.tell(launch, lane);
}

} // namespace strait
#endif
