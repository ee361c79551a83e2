// The last warp of an encoding team: blocks leave, as bulk copies of whole lines, and are counted.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_END_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_END_CUH

#include "kernels/cuda/encode_begin.cuh"

namespace strait
{

// Streams of values that are a multiple of 64 end at multiples of 16 bytes: they leave from where they are.
template <coder CODER>
DEVICE void store_streams(const encode_team<CODER> &team, const encode_job &job, uint32_t parity, uint8_t *dst)
{
    if (is_later(CODER)) {
        bulk_store(dst, team.fixed(parity) + job.values, size_units(job.size) * UNIT);
        return;
    }
    const uint32_t n = job.values, codes = CODER == CODER_TIERED ? n / 4 : n / 2;
    const uint32_t rest = size_units(job.size) * UNIT - n - codes;
    if (n == BLOCK_VALUES) { // they are one piece
        bulk_store(dst, team.fixed(parity), size_units(job.size) * UNIT);
        return;
    }
    bulk_store(dst, team.fixed(parity), n);
    bulk_store(dst + n, team.fixed(parity) + SM_BYTES, codes);
    if (rest > 0)
        bulk_store(dst + n + codes, team.rest(parity), rest);
}

// One lane: a block to its place. Returns when it has left shared memory.
template <coder CODER>
DEVICE void store_block(const encode_team<CODER> &team, const encode_job &job, uint32_t parity, uint8_t *dst)
{
    if (job.from_stage)
        bulk_store(dst, team.input(), size_units(job.size) * UNIT);
    else
        store_streams(team, job, parity, dst);
    bulk_commit();
    bulk_wait_read();
    if (job.from_stage)
        barrier_arrive(&team.shared().empty, WORKER_WARPS * WARP_ARRIVALS);
}

// All lanes, of which each may look at another moment: they go on as one.
DEVICE bool is_underway(encode_shared &shared, uint32_t turn)
{
    return __any_sync(ALL_LANES, barrier_test(&shared.begun[turn % ENCODE_AHEAD], turn / ENCODE_AHEAD & 1));
}

template <coder CODER, class LAUNCH>
DEVICE void end_blocks(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t number)
{
    const uint32_t lane = threadIdx.x % 32;
    encode_shared &shared = team.shared();
    const uint64_t tag = shared.tag;
    uint32_t known_first = 0xffffffffu, first_start = 0;
    done_list done = {0, 0};
    if (lane == 0)
        prefetch_first(launch, number);
    __syncwarp();
    auto tell = [&] {
        if (lane == 0) {
            bulk_wait();
            fence_bulk_global();
        }
        done.tell(launch, lane);
    };
    for (uint32_t turn = 0;; turn++) {
        const uint32_t parity = turn & 1;
        // A block that is on its way will be done whatever others do. If there is none, somebody may be waiting.
        if (done.is_full() || (done.count > 0 && !is_underway(shared, turn)))
            tell();
        barrier_wait(&shared.ready[parity], turn / 2 & 1);
        const encode_job job = shared.jobs[parity];
        if (job.stop)
            break;
        const uint64_t sum = warp_sum(lane < WORKER_WARPS ? shared.sums[parity][lane] : 0);
        if (lane == 0) {
            note_block(launch, tag, job.slot, job.size, sum);
            if (job.first_slot != known_first)
                first_start = wait_start(launch, tag, known_first = job.first_slot);
            const uint32_t start = (wait_start(launch, tag, job.slot) - first_start) & TAG_MASK;
            store_block(team, job, parity, job.dst + static_cast<uint64_t>(start) * UNIT);
        }
        warp_arrive(&shared.unused[parity], lane);
        done.add(job.item, lane);
    }
    tell();
}

} // namespace strait
#endif
