// The last warp of an encoding team: sends blocks to their places and reports them.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_END_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_END_CUH

#include "kernels/cuda/encode_begin.cuh"

namespace strait
{

// The pieces that a block leaves as: put(offset in the block, address, bytes). Streams of a multiple of 64 values end
// at multiples of 16 bytes and leave from where they are.
template <coder CODER, class PUT>
DEVICE void put_pieces(const encode_team<CODER> &team, const encode_job &job, uint32_t parity, PUT put)
{
    if (job.from_stage) {
        put(0, team.input(), size_units(job.size) * UNIT);
        return;
    }
    if (is_later(CODER)) {
        put(0, team.fixed(parity) + job.values, size_units(job.size) * UNIT);
        return;
    }
    const uint32_t n = job.values, codes = CODER == CODER_TIERED ? n / 4 : n / 2;
    const uint32_t rest = size_units(job.size) * UNIT - n - codes;
    if (n == BLOCK_VALUES) { // they are one piece
        put(0, team.fixed(parity), size_units(job.size) * UNIT);
        return;
    }
    put(0, team.fixed(parity), n);
    put(n, team.fixed(parity) + SM_BYTES, codes);
    if (rest > 0)
        put(n + codes, team.rest(parity), rest);
}

// All lanes: copies whole units, so that each store of the warp covers four whole lines, except for the first and the
// last store. A bulk copy that begins in the middle of a line would cross a link as two parts of each line.
DEVICE void store_lines(uint8_t *dst, const uint8_t *src, uint32_t bytes, uint32_t lane)
{
    uint4 *to = reinterpret_cast<uint4 *>(dst);
    const uint4 *from = reinterpret_cast<const uint4 *>(src);
    const int32_t units = static_cast<int32_t>(bytes / UNIT);
    int32_t i = static_cast<int32_t>(lane) - static_cast<int32_t>(reinterpret_cast<uintptr_t>(dst) / UNIT % 32);
    if (i >= 0 && i < units)
        to[i] = from[i];
    i += 32;
#pragma unroll 1
    for (; i + 96 < units; i += 128) {
        const uint4 a = from[i], b = from[i + 32], c = from[i + 64], d = from[i + 96];
        to[i] = a, to[i + 32] = b, to[i + 64] = c, to[i + 96] = d;
    }
#pragma unroll 1
    for (; i < units; i += 32)
        to[i] = from[i];
}

// All lanes: sends a block to its place. Returns when it has left shared memory; over a link, when all lanes have
// copied their parts.
template <coder CODER>
DEVICE void store_block(const encode_team<CODER> &team, const encode_job &job, uint32_t parity, uint8_t *dst, bool far,
                        uint32_t lane)
{
    if (far) {
        put_pieces(team, job, parity,
                   [&](uint32_t at, const uint8_t *from, uint32_t bytes) { store_lines(dst + at, from, bytes, lane); });
    } else if (lane == 0) {
        put_pieces(team, job, parity,
                   [&](uint32_t at, const uint8_t *from, uint32_t bytes) { bulk_store(dst + at, from, bytes); });
        bulk_commit();
        bulk_wait_read();
    }
    __syncwarp();
    if (job.from_stage && lane < WARP_ARRIVALS)
        barrier_arrive(&team.shared().empty, WORKER_WARPS);
}

// All lanes. They may see different states of the barrier; the vote makes them agree.
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
    const bool far = launch.head.far != 0;
    uint32_t known_first = 0xffffffffu, first_start = 0;
    done_list done = {0, 0};
    if (lane == 0)
        prefetch_first(launch, number);
    __syncwarp();
    auto tell = [&] {
        if (!far && lane == 0) {
            bulk_wait();
            fence_bulk_global();
        }
        done.tell(launch, lane);
    };
    for (uint32_t turn = 0;; turn++) {
        const uint32_t parity = turn & 1;
        // A block that is on its way will be done whatever other teams do. If there is none, another team may be
        // waiting for what this one has done. Over a link there is time to report each block, and whoever waits for a
        // chunk to arrive learns of it sooner.
        if (done.is_full() || (done.count > 0 && (far || !is_underway(shared, turn))))
            tell();
        barrier_wait(&shared.ready[parity], turn / 2 & 1);
        const encode_job job = shared.jobs[parity];
        if (job.stop)
            break;
        const uint64_t sum = warp_sum(lane < WORKER_WARPS ? shared.sums[parity][lane] : 0);
        uint32_t start = 0;
        if (lane == 0) {
            note_block(launch, tag, job.slot, job.size, sum);
            if (job.first_slot != known_first)
                first_start = wait_start(launch, tag, known_first = job.first_slot);
            start = (wait_start(launch, tag, job.slot) - first_start) & TAG_MASK;
        }
        if (far)
            start = __shfl_sync(ALL_LANES, start, 0);
        store_block(team, job, parity, job.dst + static_cast<uint64_t>(start) * UNIT, far, lane);
        warp_arrive(&shared.unused[parity], lane);
        done.add(job.item, lane);
    }
    tell();
}

} // namespace strait
#endif
