// Phases that make lists: route and plan.
#include "ep/cuda/block.cuh"
#include "ep/cuda/lists.cuh"

namespace strait
{
namespace
{

// ---- Own tokens -----------------------------------------------------------------------------------------------------

struct route_shared {
    uint32_t counts[2][WARPS]; // of two steps in turn
};

// -1: not an expert.
DEVICE int32_t number_at(const ep_route_args &args, uint64_t at)
{
    const int64_t number = args.topk_bytes == 8 ? static_cast<const int64_t *>(args.topk)[at]
                                                : static_cast<const int32_t *>(args.topk)[at];
    return number < 0 || number >= static_cast<int64_t>(args.group.experts) ? -1 : static_cast<int32_t>(number);
}

// Whether an expert of the token lives on the rank. All numbers are loaded, as none of the loads waits for another
// then.
DEVICE bool goes_to(const ep_route_args &args, uint32_t token, uint32_t rank)
{
    const uint32_t topk = args.handle.topk;
    bool goes = false;
#pragma unroll 8
    for (uint32_t k = 0; k < topk; k++) {
        const int32_t number = number_at(args, static_cast<uint64_t>(token) * topk + k);
        goes |= number >= 0 && ep_rank_of(&args.group, number) == rank;
    }
    return goes;
}

// Number x of all tokens' numbers; -1 where its token has it before.
DEVICE void keep_number(const ep_route_args &args, uint32_t x)
{
    const uint32_t first = x - x % args.handle.topk;
    const int32_t number = number_at(args, x);
    bool before = false;
#pragma unroll 8
    for (uint32_t i = first; i < x; i++)
        before |= number_at(args, i) == number;
    args.handle.own_topk[x] = before ? -1 : number;
}

// Makes the list of one rank, THREADS tokens in a step. Without `stores` it only counts.
DEVICE void list_tokens(const ep_route_args &args, uint32_t rank, bool stores, route_shared &at)
{
    const uint32_t ranks = args.group.rank_count;
    uint32_t base = 0;
    for (uint32_t from = 0, step = 0; from < args.tokens; from += THREADS, step++) {
        const uint32_t token = from + threadIdx.x;
        const bool goes = token < args.tokens && goes_to(args, token, rank);
        const uint32_t place = take_place(goes, at.counts, step, base);
        if (token < args.tokens && stores)
            args.handle.send_index[static_cast<uint64_t>(token) * ranks + rank] =
                goes ? static_cast<int32_t>(place) : -1;
        if (goes && stores)
            args.handle.send_token[static_cast<uint64_t>(rank) * args.group.tokens_max + place] = token;
    }
    if (threadIdx.x == 0 && stores)
        args.handle.send_count[rank] = base;
    __syncthreads(); // counts are used again
}

// Lists of ranks, then numbers, THREADS at a time, are what blocks share out. Whether the group has failed is looked at
// together with the numbers, not before, and only keeps stores from being made: nothing of a failed group is used.
__global__ void __launch_bounds__(THREADS, 1) route_kernel(const __grid_constant__ ep_route_args args)
{
    extern __shared__ uint4 memory[];
    route_shared &at = *reinterpret_cast<route_shared *>(memory);
    const uint32_t ranks = args.group.rank_count, numbers = args.tokens * args.handle.topk;
    const bool stores = load_fresh(&args.group.state->failed) == 0;
    for (uint32_t item = blockIdx.x; item < ranks; item += gridDim.x)
        list_tokens(args, item, stores, at);
    const uint32_t first = (blockIdx.x + gridDim.x - ranks % gridDim.x) % gridDim.x; // after the last of the lists
    for (uint32_t x = first * THREADS + threadIdx.x; x < numbers && stores; x += gridDim.x * THREADS)
        keep_number(args, x);
}

// ---- HT: what all ranks send to all ---------------------------------------------------------------------------------

struct plan_shared {
    call_state call;
    record_lists lists;
    unsigned long long full;                 // ranks with more rows than they take
    uint32_t sent[STRAIT_EP_RANKS_MAX];      // rows of this rank that each takes
    uint32_t sent_base[STRAIT_EP_RANKS_MAX]; // after which of others
    uint32_t partial[THREADS];
    uint32_t counters[COUNTER_WORDS];
};

// The row of scratch that a block has for its counts of experts, and that of the zones.
DEVICE uint32_t *scratch_of(const ep_plan_args &args, uint32_t block)
{
    return static_cast<uint32_t *>(args.handle.scratch) + static_cast<uint64_t>(block) * args.group.local_experts;
}

// What the receiver `to` takes of each rank: a thread for each. The own counts are those of the handle.
DEVICE void take_column(const ep_plan_args &args, uint32_t to, plan_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t ranks = group.rank_count, me = group.rank;
    uint32_t left = group.receive_max, base = 0;
    for (uint32_t from = 0; from < ranks; from++) {
        const uint32_t *counts = from == me ? args.handle.send_count : ep_counts_of(&group, me, at.call.epoch, from);
        uint32_t count = load_fresh(counts + to);
        if (count > group.tokens_max) {
            atomicOr(&at.call.ranks, 1ull << from);
            count = 0;
        }
        if (count > left && !group.drop)
            atomicOr(&at.full, 1ull << to);
        count = count < left ? count : left;
        left -= count;
        if (to == me)
            at.lists.count[from] = count;
        if (from == me) {
            at.sent[to] = count;
            at.sent_base[to] = base;
        }
        base += count;
    }
}

// For all threads. Each block takes the whole matrix of counts. False: the group has failed.
DEVICE bool take_matrix(const ep_plan_args &args, plan_shared &at)
{
    const ep_group_view &group = args.group;
    if (threadIdx.x == 0)
        at.full = 0;
    __syncthreads();
    for (uint32_t to = threadIdx.x; to < group.rank_count; to += THREADS)
        take_column(args, to, at);
    if (!check_ranks(group, STRAIT_ERR_CORRUPT, at.call))
        return false;
    if (threadIdx.x == 0)
        at.call.ranks = at.full;
    if (!check_ranks(group, STRAIT_ERR_NO_SPACE, at.call))
        return false;
    add_bases(at.lists, group.rank_count);
    return true;
}

// By the last block, since all of them read the handle's counts: what the handle needs of the matrix.
DEVICE void keep_counts(const ep_plan_args &args, const plan_shared &at)
{
    const ep_handle_view &handle = args.handle;
    for (uint32_t rank = threadIdx.x; rank < args.group.rank_count; rank += THREADS) {
        handle.send_count[rank] = at.sent[rank];
        handle.send_base[rank] = at.sent_base[rank];
        handle.recv_count[rank] = at.lists.count[rank];
        handle.recv_base[rank] = at.lists.base[rank];
        if (args.rank_counts != nullptr)
            args.rank_counts[rank] = static_cast<int32_t>(at.lists.count[rank]);
    }
}

// Takes places that are cut off out of the tokens' indices.
DEVICE void cut_lists(const ep_plan_args &args, const plan_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t ranks = group.rank_count;
    for (uint32_t to = 0; to < ranks; to++) {
        const uint32_t listed = args.handle.send_count[to];
        const uint32_t first = at.sent[to] + blockIdx.x * THREADS + threadIdx.x;
        for (uint32_t j = first; j < listed; j += gridDim.x * THREADS) {
            const uint32_t token = args.handle.send_token[static_cast<uint64_t>(to) * group.tokens_max + j];
            args.handle.send_index[static_cast<uint64_t>(token) * ranks + to] = -1;
        }
    }
}

// For all threads of the last block: the rows of each expert, from all blocks' counts.
DEVICE void add_counts(const ep_plan_args &args, plan_shared &at)
{
    const uint32_t experts = args.group.local_experts;
    for (uint32_t expert = threadIdx.x; expert < experts; expert += THREADS) {
        uint32_t rows = 0;
        for (uint32_t block = 0; block < gridDim.x; block++)
            rows += load_fresh(scratch_of(args, block) + expert);
        at.counters[expert] = rows;
        args.handle.totals[2 + expert] = static_cast<int32_t>(rows);
        if (args.expert_counts != nullptr)
            args.expert_counts[expert] = static_cast<int32_t>(rows);
    }
    __syncthreads();
}

DEVICE uint32_t zone_rows(const ep_plan_args &args, uint32_t rows)
{
    const uint32_t alignment = args.handle.expert_alignment;
    return (rows + alignment - 1) / alignment * alignment;
}

// For all threads of the last block: the zones of experts one after another, from counters. Each thread has a stretch
// of experts. Returns the end of the last zone, to all.
DEVICE uint32_t place_zones(const ep_plan_args &args, plan_shared &at)
{
    const uint32_t experts = args.group.local_experts, each = (experts + THREADS - 1) / THREADS;
    const uint32_t first = threadIdx.x * each, end = first + each < experts ? first + each : experts;
    uint32_t sum = 0;
    for (uint32_t expert = first; expert < end; expert++)
        sum += zone_rows(args, at.counters[expert]);
    at.partial[threadIdx.x] = sum;
    __syncthreads();
    for (uint32_t step = 1; step < THREADS; step *= 2) {
        const uint32_t before = threadIdx.x >= step ? at.partial[threadIdx.x - step] : 0;
        __syncthreads();
        at.partial[threadIdx.x] += before;
        __syncthreads();
    }
    uint32_t next = at.partial[threadIdx.x] - sum;
    for (uint32_t expert = first; expert < end; expert++) {
        scratch_of(args, gridDim.x)[expert] = next;
        if (args.expert_offsets != nullptr)
            args.expert_offsets[expert] = static_cast<int32_t>(next);
        next += zone_rows(args, at.counters[expert]);
    }
    return at.partial[THREADS - 1];
}

// Everything but the rows of records in zones, which need the zones.
__global__ void __launch_bounds__(THREADS, 1) plan_kernel(const __grid_constant__ ep_plan_args args)
{
    extern __shared__ uint4 memory[];
    plan_shared &at = *reinterpret_cast<plan_shared *>(memory);
    const ep_group_view &group = args.group;
    const uint32_t experts = group.local_experts;
    open_call(group, args.handle, false, at.call);
    if (at.call.failed == 0 && wait_ranks(group, EP_FLAG_ROUTE, at.call) && take_matrix(args, at)) {
        for (uint32_t expert = threadIdx.x; expert < experts; expert += THREADS)
            at.counters[expert] = 0;
        cut_lists(args, at);
        __syncthreads();
        const record_range range = range_of_block(at.lists.base[group.rank_count]);
        take_numbers(group, args.handle, at.lists, range, at.call, at.counters);
        check_ranks(group, STRAIT_ERR_CORRUPT, at.call);
        for (uint32_t expert = threadIdx.x; expert < experts; expert += THREADS)
            scratch_of(args, blockIdx.x)[expert] = at.counters[expert];
    }
    if (!is_last_block(group, at.call) || at.call.failed != 0)
        return;
    keep_counts(args, at);
    add_counts(args, at);
    const uint32_t records = at.lists.base[group.rank_count];
    const uint32_t rows = args.handle.layout == STRAIT_EP_EXPERT_MAJOR ? place_zones(args, at) : records;
    if (threadIdx.x == 0) {
        args.handle.totals[0] = static_cast<int32_t>(records);
        args.handle.totals[1] = static_cast<int32_t>(rows);
        if (args.total != nullptr)
            *args.total = static_cast<int32_t>(rows);
    }
}

struct zones_shared {
    call_state call;
    record_lists lists;
    uint32_t counters[COUNTER_WORDS];
};

// The rows of records. There are as many blocks as plan_kernel had, and each has the same records.
__global__ void __launch_bounds__(THREADS, 1) zones_kernel(const __grid_constant__ ep_plan_args args)
{
    extern __shared__ uint4 memory[];
    zones_shared &at = *reinterpret_cast<zones_shared *>(memory);
    const ep_group_view &group = args.group;
    open_call(group, args.handle, false, at.call);
    if (at.call.failed != 0)
        return;
    load_lists(group, args.handle, at.call, at.lists);
    for (uint32_t expert = threadIdx.x; expert < group.local_experts; expert += THREADS) {
        uint32_t next = scratch_of(args, gridDim.x)[expert];
        for (uint32_t block = 0; block < blockIdx.x; block++)
            next += scratch_of(args, block)[expert];
        at.counters[expert] = next;
    }
    __syncthreads();
    const record_range range = range_of_block(at.lists.base[group.rank_count]);
    place_records(group, args.handle, at.lists, range, at.counters, 0, at.call);
    check_ranks(group, STRAIT_ERR_CORRUPT, at.call);
}

} // namespace
} // namespace strait

cudaError_t ep_cuda_route(const struct ep_route_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    const uint32_t most = strait::blocks_of(args->group, multiprocessors);
    const uint32_t items =
        args->group.rank_count + (args->tokens * args->handle.topk + strait::THREADS - 1) / strait::THREADS;
    return strait::launch<ep_route_args, strait::route_shared>(reinterpret_cast<const void *>(strait::route_kernel),
                                                               *args, items < most ? items : most, stream);
}

cudaError_t ep_cuda_plan(const struct ep_plan_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    const uint32_t blocks = strait::blocks_of(args->group, multiprocessors);
    const cudaError_t error = strait::launch<ep_plan_args, strait::plan_shared>(
        reinterpret_cast<const void *>(strait::plan_kernel), *args, blocks, stream);
    if (error != cudaSuccess || args->handle.layout != STRAIT_EP_EXPERT_MAJOR)
        return error;
    return strait::launch<ep_plan_args, strait::zones_shared>(reinterpret_cast<const void *>(strait::zones_kernel),
                                                              *args, blocks, stream);
}

uint64_t ep_cuda_scratch_bytes(const struct ep_group_view *group)
{
    return (static_cast<uint64_t>(group->sm_budget) + 1) * group->local_experts * sizeof(uint32_t);
}

cudaError_t ep_cuda_load_lists(void)
{
    const void *const kernels[] = {reinterpret_cast<const void *>(strait::route_kernel),
                                   reinterpret_cast<const void *>(strait::plan_kernel),
                                   reinterpret_cast<const void *>(strait::zones_kernel)};
    return strait::load(kernels);
}
