// The encoder's kernel, one launch for many chunks: see encode.cuh. The file that includes this has defined a
// code_block for its teams.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_KERNEL_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_KERNEL_CUH

#include "kernels/cuda/encode_begin.cuh"
#include "kernels/cuda/encode_end.cuh"
#include "kernels/cuda/kernels.cuh"

namespace strait
{

// The parts of a launch that workers need.
struct work_launch {
    struct {
        uint64_t *planes[1]; // PLANE_SIZES
        uint8_t mode, coded;
    } head;
};
static_assert(PLANE_SIZES == 0, "it is the first");

// The team of this thread.
template <coder CODER, uint32_t TEAMS> DEVICE encode_team<CODER> this_team()
{
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t number = TEAMS == 1 ? 0 : threadIdx.x / TEAM_THREADS;
    return {memory + number * encode_team<CODER>::BYTES, number};
}

// All workers. This is a call, so that how workers are compiled does not depend on what other warps do.
template <coder CODER, uint32_t TEAMS> __device__ __noinline__ void work(const work_launch launch)
{
    const encode_team<CODER> team = this_team<CODER, TEAMS>();
    const uint32_t thread = threadIdx.x % TEAM_THREADS, lane = thread % 32, warp = thread / 32;
    encode_shared &shared = team.shared();
    for (uint32_t turn = 0;; turn++) {
        barrier_wait(&shared.full, turn & 1);
        wait_unused(shared, turn);
        if (shared.block.stop) {
            if (thread == 0)
                shared.jobs[turn & 1].stop = 1;
            warp_arrive(&shared.ready[turn & 1], lane);
            break;
        }
        if (shared.block.bytes == BLOCK_SIZE)
            code_block<true>(launch, team, turn, warp, lane);
        else
            code_block<false>(launch, team, turn, warp, lane);
    }
}

template <coder CODER, class LAUNCH> DEVICE void init_team(const LAUNCH &launch, const encode_team<CODER> &team)
{
    encode_shared &shared = team.shared();
    barrier_init(&shared.full, WARP_ARRIVALS);
    barrier_init(&shared.empty, WORKER_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.counted, WORKER_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.told_all, WORKER_WARPS * WARP_ARRIVALS);
    for (uint32_t parity = 0; parity < 2; parity++) {
        barrier_init(&shared.ready[parity], WORKER_WARPS * WARP_ARRIVALS);
        barrier_init(&shared.unused[parity], WARP_ARRIVALS);
    }
    for (uint32_t i = 0; i < ENCODE_AHEAD; i++)
        barrier_init(&shared.begun[i], 1);
    shared.base = NO_TABLE;
    fence_bulk();
    wait_for_launches_before();
    shared.tag = launch_tag(launch);
}

template <coder CODER, uint32_t TEAMS, class LAUNCH>
__global__ void __launch_bounds__(TEAMS *TEAM_THREADS, TEAMS > 1 ? 1 : encode_resident<CODER>())
    encode_kernel(const __grid_constant__ LAUNCH launch)
{
    const encode_team<CODER> team = this_team<CODER, TEAMS>();
    const uint32_t number = team.number, warp = threadIdx.x % TEAM_THREADS / 32;
    if (threadIdx.x == number * TEAM_THREADS)
        init_team(launch, team);
    else
        wait_for_launches_before();
    if (warp == LAST_WARP && threadIdx.x % 32 < 16)
        reinterpret_cast<uint32_t *>(team.shared().keys)[threadIdx.x % 32] = sum_keys[threadIdx.x % 32];
    const uint32_t drawn = warp == FIRST_WARP ? draw_tickets(launch, 1, threadIdx.x % 32) : 0;
    __syncthreads();
    if (warp == FIRST_WARP)
        begin_blocks(launch, team, gridDim.x * TEAMS, drawn);
    else if (warp == LAST_WARP)
        end_blocks(launch, team, blockIdx.x * TEAMS + number);
    else
        work<CODER, TEAMS>({{{launch.head.planes[PLANE_SIZES]}, launch.head.mode, launch.head.coded}});
}

// Chooses the kernel by its teams and its parameters.
template <coder CODER> const void *choose_encode_kernel(bool full, bool large)
{
    typedef small_launch s;
    typedef large_launch l;
    const void *const kernels[4] = {(const void *)encode_kernel<CODER, 1, s>, (const void *)encode_kernel<CODER, 1, l>,
                                    (const void *)encode_kernel<CODER, FULL_TEAMS, s>,
                                    (const void *)encode_kernel<CODER, FULL_TEAMS, l>};
    return kernels[2 * full + large];
}

} // namespace strait
#endif
