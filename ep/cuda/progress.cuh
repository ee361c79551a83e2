// Progress of lists that come by parts ("Parts" in ep/kernels.h): told by the ranks that store rows, and watched by the
// first warp of each block while the others take what has come.
#ifndef STRAIT_EP_CUDA_PROGRESS_CUH
#define STRAIT_EP_CUDA_PROGRESS_CUH

#include "ep/cuda/block.cuh"

namespace strait
{

// Whether rows themselves come by parts; chunks do, too, but there launches of the codec wait for them.
DEVICE bool rows_by_parts(const ep_group_view &group)
{
    return group.at.parts > 0 && !group.coded;
}

// Warps of a block that move rows.
DEVICE uint32_t workers_of(const ep_group_view &group)
{
    return rows_by_parts(group) ? WARPS - 1 : WARPS;
}

// By threads of the last block: stores to each rank how many places of its list have rows, at most `end`. counts: of
// the lists.
DEVICE void tell_progress(const ep_group_view &group, const uint32_t *counts, uint32_t end, const call_state &call)
{
    for (uint32_t rank = threadIdx.x; rank < group.rank_count && call.failed == 0; rank += THREADS)
        store_release_system(ep_flag_of(&group, rank, EP_FLAG_PROGRESS, group.rank),
                             ep_progress(call.epoch, counts[rank] < end ? counts[rank] : end));
}

// For all threads, when the block has stored its share of a part: whether it is the last one to do so.
DEVICE bool is_last_of_part(const ep_group_view &group, uint32_t part, call_state &call)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *const ticket = &group.state->tickets[TICKET_PARTS + part];
        fence_system();
        call.is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        if (call.is_last != 0) {
            fence_system();
            *ticket = 0;
        }
    }
    __syncthreads();
    return call.is_last != 0;
}

// ---- Watching -------------------------------------------------------------------------------------------------------

// What has come of each rank's list, as ep_progress_came counts. In shared memory.
struct progress_watch {
    uint32_t came[STRAIT_EP_RANKS_MAX];
    uint32_t over; // the group has failed
};

// Looks at the flags of ranks of which less has come than they want. Returns those, as bits of the lanes of two halves.
template <class WANTED>
DEVICE uint32_t look_at_ranks(const ep_group_view &group, const call_state &call, progress_watch &watch,
                              const WANTED &wanted)
{
    uint32_t missing = 0;
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t rank = lane_of_thread() + half * LANES;
        if (rank >= group.rank_count || watch.came[rank] >= wanted(rank))
            continue;
        const uint64_t said = load_acquire_system(ep_flag_of(&group, group.rank, EP_FLAG_PROGRESS, rank));
        const uint32_t came = ep_progress_came(said, call.epoch);
        if (came != watch.came[rank])
            store_release_block(&watch.came[rank], came);
        missing |= static_cast<uint32_t>(came < wanted(rank)) << half;
    }
    return missing;
}

// For all lanes of the first warp: until as much has come from each rank as is wanted, or the group has failed.
template <class WANTED>
DEVICE void watch_until(const ep_group_view &group, const call_state &call, progress_watch &watch, const WANTED &wanted)
{
    const uint64_t begin = now_ns();
    for (;;) {
        const uint32_t missing = look_at_ranks(group, call, watch, wanted);
        const uint32_t low = __ballot_sync(ALL_LANES, (missing & 1) != 0);
        const uint32_t high = __ballot_sync(ALL_LANES, (missing & 2) != 0);
        if (low == 0 && high == 0)
            return;
        uint32_t stop = 0;
        if (lane_of_thread() == 0) {
            stop = load_fresh(&group.state->failed) != 0 ? 1 : 0;
            if (stop == 0 && now_ns() - begin >= group.timeout_ns) {
                fail(group, STRAIT_ERR_TIMEOUT, low != 0 ? lowest_bit(low) : LANES + lowest_bit(high));
                stop = 1;
            }
            if (stop != 0)
                store_release_block(&watch.over, 1);
        }
        if (__shfl_sync(ALL_LANES, stop, 0) != 0)
            return;
        pause_wait(true);
    }
}

// For all threads: until something has come from each rank. False: the group has failed.
DEVICE bool begin_watch(const ep_group_view &group, call_state &call, progress_watch &watch)
{
    for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS)
        watch.came[rank] = 0;
    if (threadIdx.x == 0)
        watch.over = 0;
    __syncthreads();
    if (warp_of_thread() == 0)
        watch_until(group, call, watch, [](uint32_t) { return 1u; });
    __syncthreads();
    if (threadIdx.x == 0)
        call.failed = load_fresh(&group.state->failed);
    __syncthreads();
    return call.failed == 0;
}

// For the first warp: until the lists, of these lengths, have come.
DEVICE void watch_lists(const ep_group_view &group, const call_state &call, progress_watch &watch,
                        const uint32_t *counts)
{
    watch_until(group, call, watch, [&](uint32_t rank) { return counts[rank] + 1; });
}

// Waits for the row at a place of a rank's list. False: the group has failed.
DEVICE bool wait_place(const progress_watch &watch, uint32_t rank, uint32_t j)
{
    while (load_acquire_block(&watch.came[rank]) < j + 2) {
        if (load_acquire_block(&watch.over) != 0)
            return false;
        pause_wait(true);
    }
    return true;
}

} // namespace strait
#endif
