// What the ends of encoded and of decoded chunks have in common: waiting for blocks, statistics, the result.
#ifndef STRAIT_KERNELS_CUDA_CLOSE_CUH
#define STRAIT_KERNELS_CUDA_CLOSE_CUH

#include "kernels/cuda/work.cuh"

namespace strait
{

DEVICE void wait_for_blocks(const progress &chunk, uint32_t count, uint32_t lane)
{
    if (lane == 0) {
        while (load_relaxed(&chunk.blocks_done) < count)
            __nanosleep(20);
        fence_acquire();
    }
    __syncwarp();
}

// What pages add to the statistics.
struct page_tally {
    uint32_t values[STRAIT_BLOCK_MODES];
    uint32_t escapes, table, failed;

    DEVICE void add(uint32_t mode, uint32_t count, uint32_t more_escapes)
    {
#pragma unroll
        for (uint32_t m = 0; m < STRAIT_BLOCK_MODES; m++)
            values[m] += m == mode ? count : 0;
        escapes += more_escapes;
    }

    DEVICE void merge(const page_tally &other)
    {
#pragma unroll
        for (uint32_t m = 0; m < STRAIT_BLOCK_MODES; m++)
            values[m] += other.values[m];
        failed += other.failed;
    }

    DEVICE uint32_t coded() const
    {
        return values[STRAIT_BLOCK_TOP16] + values[STRAIT_BLOCK_TOP16_ESCAPES] + values[STRAIT_BLOCK_TIERED];
    }
};

DEVICE void add_u64(uint64_t *p, uint64_t v)
{
    if (v != 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(p), static_cast<unsigned long long>(v));
}

// All lanes, with one page each where `present`: adds good pages to their classes. Neighbouring pages mostly share a
// class.
template <class LAUNCH>
DEVICE void count_classes(const LAUNCH &launch, const page_tally &tally, bool present, uint32_t lane)
{
    if (launch.head.class_stats == nullptr)
        return;
    present = present && !tally.failed && tally.table < launch.head.class_count;
    uint32_t left = __ballot_sync(ALL_LANES, present);
    while (left != 0) {
        const uint32_t leader = __ffs(left) - 1, table = __shfl_sync(ALL_LANES, tally.table, leader);
        const bool same = present && tally.table == table;
        const uint64_t values = warp_sum(same ? tally.coded() : 0), escapes = warp_sum(same ? tally.escapes : 0);
        if (lane == leader) {
            add_u64(&launch.head.class_stats[table].values, values);
            add_u64(&launch.head.class_stats[table].escapes, escapes);
        }
        left &= ~__ballot_sync(ALL_LANES, same);
    }
}

// All lanes: adds the tallies of all lanes to the chunk.
DEVICE void add_tally(progress &chunk, const page_tally &tally, uint32_t lane)
{
#pragma unroll
    for (uint32_t m = 0; m < STRAIT_BLOCK_MODES; m++) {
        const uint64_t values = warp_sum(tally.values[m]);
        if (lane == m)
            add_u64(&chunk.values[m], values);
    }
    const uint32_t failed = __reduce_add_sync(ALL_LANES, tally.failed);
    if (lane == 0 && failed != 0)
        atomicAdd(&chunk.failed_pages, failed);
    __syncwarp();
}

// All lanes: whether this part was the last of `parts` of the chunk; if so, what all parts have added up is visible.
DEVICE bool is_last_part(progress &chunk, uint32_t parts, uint32_t lane)
{
    __syncwarp();
    const uint32_t before = lane == 0 ? count_acq_rel(&chunk.closed) : 0;
    __syncwarp();
    return __shfl_sync(ALL_LANES, before, 0) == parts - 1;
}

// All lanes, once all blocks are counted: writes the record, lane m the values of mode m, then its status. Everything
// written for the chunk comes before that, so whoever sees the status sees all of it.
DEVICE void write_result(strait_result *dst, const strait_result &result, uint64_t values, uint32_t lane)
{
    if (lane < STRAIT_BLOCK_MODES)
        dst->values[lane] = values;
    if (lane == 0) {
        dst->bytes = result.bytes;
        dst->chunk_status = result.chunk_status;
        dst->failed_pages = result.failed_pages;
        dst->reserved = 0;
    }
    __syncwarp();
    if (lane == 0)
        store_release_system(&dst->status, result.status);
}

// All lanes: clears the chunk's state for the next launch, except for the verdict.
DEVICE void clear_progress(progress &chunk, uint32_t lane)
{
    if (lane < sizeof(progress) / 8 && lane != offsetof(progress, verdict) / 8)
        reinterpret_cast<uint64_t *>(&chunk)[lane] = 0;
    __syncwarp();
}

} // namespace strait
#endif
