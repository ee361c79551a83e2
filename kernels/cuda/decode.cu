// The decoder's kernel, one launch for many chunks: see decode.cuh.
#include "kernels/cuda/decode_base.cuh"
#include "kernels/cuda/decode_begin.cuh"
#include "kernels/cuda/decode_end.cuh"
#include "kernels/cuda/decode_tiered.cuh"
#include "kernels/cuda/decode_top16.cuh"
#include "kernels/cuda/decode_typed_end.cuh"
#include "kernels/cuda/kernels.cuh"

namespace strait
{

// Decodes a block of any of the first modes; the chunk's verdict was OK. Returns what the warp reports to the last
// warp.
template <class LAUNCH>
DEVICE uint32_t work_block(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                           block_writer &writer, uint32_t *tiered_turn, uint32_t warp, uint32_t lane)
{
    const bool whole = (block.what & BLOCK_WHOLE) != 0;
    switch (block.mode()) {
    case STRAIT_BLOCK_TIERED: {
        const uint32_t turn = (*tiered_turn)++;
        const table_ranking ranking = {team.table(stage)};
        if (whole)
            return work_tiered<true>(launch, team, stage, block, writer, ranking, turn, warp, lane);
        return work_tiered<false>(launch, team, stage, block, writer, ranking, turn, warp, lane);
    }
    case STRAIT_BLOCK_RAW:
        work_raw(launch, block, writer, team.lines(stage) + block.before, warp, lane);
        return 0;
    case STRAIT_BLOCK_CONST:
        work_const(launch, block, writer, team.lines(stage) + block.before, warp, lane);
        return 0;
    default:
        if (whole)
            return work_top16<true>(launch, team, stage, block, writer, warp, lane);
        return work_top16<false>(launch, team, stage, block, writer, warp, lane);
    }
}

// All workers: whether the chunk has passed its check. One warp asks for all: when a launch begins, thousands of warps
// polling one word would hold up those that are to write it.
template <class LAUNCH>
DEVICE bool may_decode(const LAUNCH &launch, const decode_team &team, const decode_block &block, uint32_t warp)
{
    if ((block.what & BLOCK_PASSED) != 0)
        return true;
    const bool refused = warp == 0 && wait_verdict(launch.head.items[block.item], launch_tag(launch)) != STRAIT_OK;
    return named_all(team.among(), WORKERS, !refused);
}

template <class LAUNCH> DEVICE const region &find_region_of(const LAUNCH &launch, const decode_block &block)
{
    if (launch.head.far_regions != nullptr)
        return launch.head.far_regions[block.region];
    return reinterpret_cast<const region *>(launch.bytes + launch.head.regions_at)[block.region];
}

// What a warp of workers remembers from one block to the next.
struct worker_state {
    decode_team team;
    uint32_t turn, tiered_turn, lane, warp;
    bool stop;
};

template <uint32_t TEAMS> DEVICE void remember_team(worker_state &known)
{
    const uint32_t number = read_thread(), thread = number % TEAM_THREADS;
    known.team = this_team<TEAMS>(number);
    known.lane = thread % 32, known.warp = thread / 32;
}

// Decodes blocks of the later modes: full ones in tiers by the base as long as they follow each other, otherwise one
// block. This code is called, and what is live across the call would be kept in memory for all other blocks too; so the
// warp forgets its state and finds it again.
template <uint32_t TEAMS> DEVICE void work_later(const region &of_block, worker_state &known)
{
    if (is_plain_base(known.team, known.turn)) {
        const uint2 turns = work_bases<TEAMS>(known.turn, known.tiered_turn);
        known.turn = turns.x, known.tiered_turn = turns.y;
        remember_team<TEAMS>(known);
        return;
    }
    if (known.lane == 0)
        known.team.shared().turns[known.warp] = make_uint2(known.turn, known.tiered_turn);
    __syncwarp();
    const typed_found typed = work_typed<TEAMS>(of_block, known.turn);
    remember_team<TEAMS>(known);
    decode_shared &shared = known.team.shared();
    const uint2 turns = shared.turns[known.warp];
    known.turn = turns.x, known.tiered_turn = turns.y;
    leave_block(shared, known.turn % DECODE_STAGES, typed.sum, typed.found, known.warp, known.lane);
    known.turn++;
}

// Decodes blocks up to the last, or up to one of a later mode, which is returned. Makes no calls, so that state common
// to all blocks stays in registers.
template <class LAUNCH> DEVICE const decode_block *work_until_later(const LAUNCH &launch, worker_state &known)
{
    const decode_team team = known.team;
    const uint32_t lane = known.lane, warp = known.warp;
    decode_shared &shared = team.shared();
    for (;; known.turn++) {
        const uint32_t stage = known.turn % DECODE_STAGES;
        barrier_wait(&shared.full[stage], known.turn / DECODE_STAGES & 1);
        const decode_block &block = shared.blocks[known.turn % LOOKED_UP];
        block_writer writer = {shared.keys, {0, 0, 0}};
        uint32_t found = WARP_BAD;
        known.stop = (block.what & BLOCK_STOP) != 0;
        if (!known.stop && may_decode(launch, team, block, warp)) {
            if (block.mode() >= STRAIT_BLOCK_BASE)
                return &block;
            found = work_block(launch, team, stage, block, writer, &known.tiered_turn, warp, lane);
        }
        leave_block(shared, stage, sum_total(writer.sum), found, warp, lane);
        if (known.stop)
            return nullptr;
    }
}

template <uint32_t TEAMS, class LAUNCH> DEVICE void work_blocks(const LAUNCH &launch, const decode_team &team)
{
    const uint32_t thread = threadIdx.x % TEAM_THREADS;
    worker_state known = {team, 0, 0, thread % 32, thread / 32, false};
    while (const decode_block *later = work_until_later(launch, known))
        work_later<TEAMS>(find_region_of(launch, *later), known);
}

DEVICE void init_team(const decode_team &team)
{
    decode_shared &shared = team.shared();
    for (uint32_t stage = 0; stage < DECODE_STAGES; stage++) {
        barrier_init(&shared.begun[stage], 1);
        barrier_init(&shared.full[stage], 1);
        barrier_init(&shared.empty[stage], WARP_ARRIVALS);
        barrier_init(&shared.done[stage], WORKER_WARPS * WARP_ARRIVALS);
    }
    barrier_init(&shared.counted2, WORKER_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.counted3, WORKER_WARPS * WARP_ARRIVALS);
    fence_bulk();
}

template <uint32_t TEAMS, class LAUNCH>
__global__ void __launch_bounds__(TEAMS *TEAM_THREADS, TEAMS == 1 ? DECODE_RESIDENT : 1)
    decode_kernel(const __grid_constant__ LAUNCH launch)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t number = TEAMS == 1 ? 0 : threadIdx.x / TEAM_THREADS, warp = threadIdx.x % TEAM_THREADS / 32;
    const decode_team team = {memory + number * decode_team::BYTES, number};
    if (threadIdx.x % TEAM_THREADS == 0)
        init_team(team);
    if (warp == LAST_WARP && threadIdx.x % 32 < 16)
        reinterpret_cast<uint32_t *>(team.shared().keys)[threadIdx.x % 32] = sum_keys[threadIdx.x % 32];
    wait_for_launches_before();
    const uint32_t drawn = warp == FIRST_WARP ? draw_first(launch, gridDim.x * TEAMS, threadIdx.x % 32) : 0;
    __syncthreads();
    if (warp == FIRST_WARP)
        begin_blocks(launch, team, gridDim.x * TEAMS, drawn);
    else if (warp == LAST_WARP)
        end_blocks<TEAMS>(launch, team, blockIdx.x * TEAMS + number);
    else
        work_blocks<TEAMS>(launch, team);
}

__global__ void upload_kernel(const __grid_constant__ upload regions)
{
    for (uint32_t i = threadIdx.x; i < regions.count; i += blockDim.x)
        regions.dst[i] = regions.regions[i];
}

const void *decode_function(bool full, bool large)
{
    const void *const kernels[4] = {
        (const void *)decode_kernel<1, small_launch>, (const void *)decode_kernel<1, large_launch>,
        (const void *)decode_kernel<FULL_TEAMS, small_launch>, (const void *)decode_kernel<FULL_TEAMS, large_launch>};
    return kernels[2 * full + large];
}

uint32_t decode_team_bytes()
{
    return decode_team::BYTES;
}

const void *upload_function()
{
    return (const void *)upload_kernel;
}

} // namespace strait
