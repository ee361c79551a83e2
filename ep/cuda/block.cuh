// What the blocks of a phase do together: they take the call's epoch, wait for other ranks, tell of failures, and the
// last of them to end signals.
//
// Order of memory. A rank's stores of rows, by any thread, precede its flag: each thread's stores come before the
// block's __syncthreads, then thread 0 runs a system-wide fence and counts the block in the ticket; the last block's
// thread 0 has seen all counts, runs a fence again, and after another __syncthreads a thread stores the flag with
// st.release.sys. Causality in PTX's memory model is transitive over barriers, fences with atomic operations and
// releases, so whoever sees the flag by ld.acquire.sys sees the rows. At the reader, one thread acquires, and the
// others of its block read after __syncthreads. They read with coherent loads, never with ld.global.nc. What is read
// and overwritten in the next call needs the same: reads of a block come before its __syncthreads, hence before the
// flag that lets others write.
//
// Residency. Blocks wait for other ranks, never for each other but for block 0 (one_waits), and a launch has at
// most one block on each multiprocessor, so all of them are resident: blocks that wait keep none of their own rank's
// from running. Launches on the stream of a call and on the side stream have half of the budget each.
#ifndef STRAIT_EP_CUDA_BLOCK_CUH
#define STRAIT_EP_CUDA_BLOCK_CUH

#include "ep/cuda/phases.h"
#include "ep/cuda/ptx.cuh"
#include "ep/kernels.h"

namespace strait
{

constexpr uint32_t LANES = 32, WARPS = THREADS / LANES;

// Words of ep_state.tickets, zero between phases: of phases on the call's stream, then of phases on the side stream.
enum ticket { TICKET_BLOCKS, TICKET_DECIDED, TICKETS };

// A block's view of its call, in shared memory. What it says is the same for all threads after a barrier.
struct call_state {
    uint64_t epoch, active;
    unsigned long long ranks; // that something is wrong with
    int32_t failed;
    uint32_t is_last;
};

DEVICE uint32_t *ticket_of(const ep_group_view &group, ticket which)
{
    return &group.state->tickets[group.coding.side * TICKETS + which];
}

DEVICE uint32_t lane_of_thread()
{
    return threadIdx.x % LANES;
}

DEVICE uint32_t warp_of_thread()
{
    return threadIdx.x / LANES;
}

DEVICE bool takes_part(const call_state &call, uint32_t rank)
{
    return (call.active >> rank & 1) != 0;
}

// A row of the rank itself, at a slot of the rows area.
DEVICE uint8_t *own_row(const ep_group_view &group, uint64_t epoch, uint32_t row_bytes, uint64_t slot)
{
    if (group.coding.own == nullptr)
        return ep_rows_of(&group, group.rank, epoch, row_bytes, slot);
    return group.coding.own + epoch % group.at.row_buffers * group.at.rows_stride + slot * row_bytes;
}

// Whether rows of the rank are coded.
DEVICE bool is_coded(const ep_group_view &group, uint32_t rank)
{
    return group.coded && rank != group.rank;
}

DEVICE void fail(const ep_group_view &group, int32_t status, uint32_t rank)
{
    if (atomicCAS(&group.state->failed, 0, status) == 0)
        store_release_system(group.report, ep_report_pack(status, rank));
}

// For all threads. The blocks of a launch all see the same epoch: the last one to end writes the next.
DEVICE void open_call(const ep_group_view &group, const ep_handle_view &handle, bool begin, call_state &call)
{
    if (threadIdx.x == 0) {
        call.epoch = begin ? group.state->epoch + 1 : handle.state->epoch;
        call.active = load_fresh(&group.state->active);
        call.ranks = 0;
        call.failed = load_fresh(&group.state->failed);
    }
    __syncthreads();
}

// ---- Waits ----------------------------------------------------------------------------------------------------------

// False: the time is over. True also when the group has failed meanwhile. came: says it of the flag's value.
template <class CAME> DEVICE bool poll(const ep_group_view &group, const uint64_t *flag, const CAME &came)
{
    if (came(load_acquire_system(flag)))
        return true;
    const uint64_t begin = now_ns();
    for (;;) {
        for (uint32_t look = 0; look < 32; look++) {
            if (came(load_acquire_system(flag)))
                return true;
            pause_wait(group.coding.own != nullptr);
        }
        if (load_fresh(&group.state->failed) != 0)
            return true;
        if (now_ns() - begin >= group.timeout_ns)
            return came(load_acquire_system(flag));
    }
}

// Thread 0: ranks have not come.
DEVICE void give_up(const ep_group_view &group, unsigned long long ranks)
{
    if (!group.masked) {
        fail(group, STRAIT_ERR_TIMEOUT, lowest_bit(ranks));
        return;
    }
    unsigned long long *active = reinterpret_cast<unsigned long long *>(&group.state->active);
    const unsigned long long gone = atomicAnd(active, ~ranks) & ranks;
    if (gone != 0 && load_fresh(group.report) == 0) // one block waits, and the host only stores zero
        store_release_system(group.report, ep_report_pack(STRAIT_ERR_TIMEOUT, lowest_bit(gone)));
}

// Polls the flags of all ranks, one by a thread.
template <class CAME>
DEVICE void poll_ranks(const ep_group_view &group, ep_flag kind, call_state &call, const CAME &came)
{
    for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS)
        if (takes_part(call, rank) &&
            !poll(group, ep_flag_of(&group, group.rank, kind, rank), [&](uint64_t value) { return came(rank, value); }))
            atomicOr(&call.ranks, 1ull << rank);
    __syncthreads();
    if (threadIdx.x == 0 && call.ranks != 0) {
        give_up(group, call.ranks);
        call.ranks = 0;
    }
}

// Whether block 0 alone waits and the others for it: where ranks may be left out, all blocks have to agree on which;
// and flags in host memory are read over a link, which rows need.
DEVICE bool one_waits(const ep_group_view &group)
{
    return group.masked || group.coding.own != nullptr;
}

// For all threads of all blocks, once in a launch: until came(rank, value) is true of the flags. False: the group has
// failed.
template <class CAME>
DEVICE bool wait_until(const ep_group_view &group, ep_flag kind, call_state &call, const CAME &came)
{
    uint32_t *decided = ticket_of(group, TICKET_DECIDED);
    const bool by_one = one_waits(group);
    if (!by_one || blockIdx.x == 0)
        poll_ranks(group, kind, call, came);
    else
        __syncthreads(); // all have read what thread 0 overwrites
    if (threadIdx.x == 0) {
        if (by_one && blockIdx.x == 0)
            store_release_device(decided, 1);
        while (by_one && load_acquire_device(decided) == 0)
            pause_wait(false);
        call.active = load_fresh(&group.state->active);
        call.failed = load_fresh(&group.state->failed);
    }
    __syncthreads();
    return call.failed == 0;
}

DEVICE bool wait_ranks(const ep_group_view &group, ep_flag kind, call_state &call)
{
    return wait_until(group, kind, call, [&](uint32_t, uint64_t value) { return value >= call.epoch; });
}

// With parts: waits for one of all ranks.
DEVICE bool wait_part(const ep_group_view &group, uint32_t part, call_state &call)
{
    return wait_until(group, EP_FLAG_PROGRESS, call,
                      [&](uint32_t, uint64_t value) { return value >= ep_progress(call.epoch, part + 1); });
}

// Whether rows themselves go by parts, a launch for each; coded ones do by launches of the codec.
DEVICE bool rows_by_parts(const ep_group_view &group)
{
    return group.at.parts > 0 && !group.coded;
}

// Own tokens of a launch: with parts those of its part, else all.
struct token_range {
    uint32_t first, end;
};

DEVICE token_range tokens_of_launch(const ep_group_view &group, uint32_t part, uint32_t tokens)
{
    if (!rows_by_parts(group))
        return {0, tokens};
    const uint32_t first = part * group.at.part_tokens, end = first + group.at.part_tokens;
    return {first < tokens ? first : tokens, end < tokens ? end : tokens};
}

// For all threads: fails with the first of call.ranks, if there are any. Returns whether the block goes on.
DEVICE bool check_ranks(const ep_group_view &group, int32_t status, call_state &call)
{
    __syncthreads();
    if (threadIdx.x == 0 && call.ranks != 0) {
        fail(group, status, lowest_bit(call.ranks));
        call.failed = status;
        call.ranks = 0;
    }
    __syncthreads();
    return call.failed == 0;
}

// A row of any rank at a slot, as it has come here: decoded, if it is coded.
DEVICE uint8_t *row_of(const ep_group_view &group, uint64_t epoch, uint32_t row_bytes, uint32_t rank, uint64_t slot)
{
    if (rank == group.rank)
        return own_row(group, epoch, row_bytes, slot);
    return group.coded ? group.coding.decoded + slot * row_bytes
                       : ep_rows_of(&group, group.rank, epoch, row_bytes, slot);
}

// What the decoder says of the rows of a chunk. Numbers of rows that are not there fail, and come last.
DEVICE int32_t decoded_status(const ep_coding &coding, uint32_t chunk)
{
    const uint32_t count = coding.counts[chunk];
    const strait_result &result = coding.results[chunk];
    if (count == 0 || (result.chunk_status == STRAIT_OK && result.failed_pages == coding.pages - count))
        return STRAIT_OK;
    return result.status == STRAIT_ERR_INTEGRITY ? STRAIT_ERR_INTEGRITY : STRAIT_ERR_CORRUPT;
}

// For all threads: whether all rows were decoded. False: the group has failed.
DEVICE bool check_decoded(const ep_group_view &group, call_state &call)
{
    const uint32_t chunks = ep_arena_chunks(&group.at);
    for (uint32_t turn = 0; turn < 2 && group.coded; turn++) {
        const int32_t status = turn == 0 ? STRAIT_ERR_INTEGRITY : STRAIT_ERR_CORRUPT;
        for (uint32_t x = threadIdx.x; x < group.rank_count * chunks; x += THREADS)
            if (is_coded(group, x / chunks) && decoded_status(group.coding, x) == status)
                atomicOr(&call.ranks, 1ull << x / chunks);
        if (!check_ranks(group, status, call))
            return false;
    }
    return true;
}

// ---- The end --------------------------------------------------------------------------------------------------------

DEVICE void clear_tickets(const ep_group_view &group)
{
    *ticket_of(group, TICKET_BLOCKS) = 0;
    *ticket_of(group, TICKET_DECIDED) = 0;
}

// For all threads. Whether the block is the last of the launch: it then sees what all of them have stored.
DEVICE bool is_last_block(const ep_group_view &group, call_state &call)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        fence_system();
        call.is_last = atomicAdd(ticket_of(group, TICKET_BLOCKS), 1u) == gridDim.x - 1;
        if (call.is_last != 0) {
            fence_system();
            clear_tickets(group);
            call.failed = load_fresh(&group.state->failed);
        }
    }
    __syncthreads();
    return call.is_last != 0;
}

// For all threads, at the end of a launch that signals nothing: the last block clears the tickets.
DEVICE void leave(const ep_group_view &group)
{
    if (!one_waits(group))
        return;
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(ticket_of(group, TICKET_BLOCKS), 1u) == gridDim.x - 1)
        clear_tickets(group);
}

// By the last block: what a phase with `begin` leaves behind.
DEVICE void keep_epoch(const ep_group_view &group, const ep_handle_view &handle, const call_state &call)
{
    if (threadIdx.x == 0)
        group.state->epoch = handle.state->epoch = call.epoch;
}

// By the last block: flags to all ranks, unless the group has failed.
DEVICE void signal_ranks(const ep_group_view &group, ep_flag kind, const call_state &call)
{
    for (uint32_t rank = threadIdx.x; rank < group.rank_count && call.failed == 0; rank += THREADS)
        if (takes_part(call, rank))
            store_release_system(ep_flag_of(&group, rank, kind, group.rank), call.epoch);
}

// By the last block: that the rows of a part, and of those before it, are there.
DEVICE void tell_progress(const ep_group_view &group, uint32_t part, const call_state &call)
{
    for (uint32_t rank = threadIdx.x; rank < group.rank_count && call.failed == 0; rank += THREADS)
        store_release_system(ep_flag_of(&group, rank, EP_FLAG_PROGRESS, group.rank), ep_progress(call.epoch, part + 1));
}

// By threads of a block: the announcement to all ranks.
DEVICE void store_announcement(const ep_group_view &group, const ep_announce &announce, const call_state &call)
{
    for (uint32_t rank = threadIdx.x; rank < group.rank_count && call.failed == 0; rank += THREADS)
        *ep_announce_of(&group, rank, group.rank) = announce;
}

// By the last block: the announcement, and READY, to all ranks.
DEVICE void announce_ranks(const ep_group_view &group, const ep_announce &announce, const call_state &call)
{
    store_announcement(group, announce, call); // the same thread stores the flag
    signal_ranks(group, EP_FLAG_READY, call);
}

// ---- Launches -------------------------------------------------------------------------------------------------------

// A block fills a multiprocessor, and there are never more of them than multiprocessors.
inline uint32_t blocks_of(const ep_group_view &group, uint32_t multiprocessors)
{
    return group.sm_budget < multiprocessors ? group.sm_budget : multiprocessors;
}

template <class ARGS, class SHARED>
cudaError_t launch(const void *kernel, const ARGS &args, uint32_t blocks, cudaStream_t stream)
{
    static_assert(sizeof(SHARED) <= 48 * 1024, "what a launch may have without asking");
    ARGS copy = args;
    void *arguments[] = {&copy};
    return cudaLaunchKernel(kernel, dim3(blocks), dim3(THREADS), arguments, sizeof(SHARED), stream);
}

template <size_t COUNT> cudaError_t load(const void *const (&kernels)[COUNT])
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < COUNT && error == cudaSuccess; i++)
        error = cudaFuncGetAttributes(&attributes, kernels[i]);
    return error;
}

} // namespace strait
#endif
