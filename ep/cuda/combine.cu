// Phases of sums: stage and reduce; and announce and settle, which have nothing but flags.
#include "ep/cuda/block.cuh"
#include "ep/cuda/lists.cuh"
#include "ep/cuda/rows.cuh"

namespace strait
{
namespace
{

// ---- HT: what peers read --------------------------------------------------------------------------------------------

struct stage_shared {
    call_state call;
    record_lists lists;
    part_edges<1> edges;
    term_list terms[WARPS];
};

// Terms of a record: the caller's row, or those of its experts in the order of topk.
DEVICE uint32_t list_rows(const ep_stage_args &args, uint64_t record, uint32_t slot, term_list &terms)
{
    const uint32_t topk = args.handle.topk, lane = lane_of_thread();
    int64_t row = lane == 0 ? static_cast<int64_t>(slot) : -1;
    if (args.handle.layout == STRAIT_EP_EXPERT_MAJOR)
        row = lane < topk ? args.handle.expert_row[record * topk + lane] : -1;
    const uint32_t ballot = __ballot_sync(ALL_LANES, row >= 0);
    if (row >= 0)
        terms.rows[count_bits(ballot & ((1u << lane) - 1))] = args.rows + static_cast<uint64_t>(row) * args.row_bytes;
    __syncwarp();
    return count_bits(ballot);
}

template <strait_element TYPE, bool SUMMED> DEVICE void stage_rows(const ep_stage_args &args, stage_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t warps = gridDim.x * WARPS, records = at.lists.base[group.rank_count];
    const row_parts cut = cut_rows(args.row_bytes, SUMMED ? SUM_STEPS<false> : COPY_STEPS, records, warps);
    term_list &terms = at.terms[warp_of_thread()];
    for (uint32_t task = blockIdx.x * WARPS + warp_of_thread(); task < records * cut.parts; task += warps) {
        record_place place = find_record(at.lists, group.rank_count, task / cut.parts);
        place.j += rows_by_parts(group) ? at.edges.at[place.rank][0] : 0;
        const uint64_t record = record_of(group, place);
        const uint32_t slot = args.handle.recv_base[place.rank] + place.j;
        uint8_t *const to = place.rank == group.rank || group.coded
                                ? own_row(group, at.call.epoch, args.row_bytes, slot)
                                : ep_rows_of(&group, group.rank, at.call.epoch, args.row_bytes, slot);
        const uint32_t count = list_rows(args, record, slot, terms);
        if (SUMMED)
            sum_part<TYPE, false, false>(cut, task % cut.parts, terms, count, to);
        else
            copy_part(cut, task % cut.parts, terms.rows[0], &to, 1);
        __syncwarp();
    }
}

DEVICE void stage_weights(const ep_stage_args &args, stage_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t topk = args.handle.topk, words = at.lists.base[group.rank_count] * topk;
    float *to = ep_weights_of(&group, group.rank, at.call.epoch, topk, 0);
    for (uint32_t x = blockIdx.x * THREADS + threadIdx.x; x < words; x += gridDim.x * THREADS) {
        if (args.handle.layout != STRAIT_EP_EXPERT_MAJOR) {
            to[x] = args.weights[x];
            continue;
        }
        const uint64_t record = record_of(group, find_record(at.lists, group.rank_count, x / topk));
        const int32_t row = args.handle.expert_row[record * topk + x % topk];
        to[x] = row >= 0 ? args.weights[row] : 0.0f;
    }
}

template <strait_element TYPE, bool SUMMED>
__global__ void __launch_bounds__(THREADS, 1) stage_kernel(const __grid_constant__ ep_stage_args args)
{
    extern __shared__ uint4 memory[];
    stage_shared &at = *reinterpret_cast<stage_shared *>(memory);
    const ep_group_view &group = args.group;
    const uint32_t parts = group.at.parts;
    open_call(group, args.handle, parts == 0, at.call); // with parts begin_kernel has begun the call
    if (at.call.failed == 0 && (args.rows != nullptr || args.weights != nullptr)) {
        load_lists(group, args.handle, at.call, at.lists);
        if (args.weights != nullptr && (args.part == 0 || args.rows == nullptr))
            stage_weights(args, at);
        if (args.rows != nullptr && rows_by_parts(group))
            load_part(group, args.handle, args.part, at.lists, at.edges);
        if (!SUMMED) // coded: rows of other ranks are encoded where they are
            select_lists(group, at.lists, !args.keep_own, !group.coded);
        if (args.rows != nullptr)
            stage_rows<TYPE, SUMMED>(args, at);
    }
    if (!is_last_block(group, at.call))
        return;
    if (parts == 0)
        keep_epoch(group, args.handle, at.call);
    if (group.coded && args.rows != nullptr) // what hands over the chunks does the rest
        return;
    store_announcement(group, args.announce, at.call); // the same thread stores the flags
    if (parts > 0)
        tell_progress(group, args.part, at.call);
    if (parts == 0 || args.part + 1 == parts)
        signal_ranks(group, EP_FLAG_READY, at.call);
}

// ---- Sums of own tokens ---------------------------------------------------------------------------------------------

struct reduce_shared {
    call_state call;
    const uint8_t *rows[STRAIT_EP_RANKS_MAX]; // of place 0 of the list of each rank; null: nothing comes from there
    term_list terms[WARPS];
};

DEVICE void find_source(const ep_reduce_args &args, uint32_t rank, reduce_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t count = args.handle.send_count[rank];
    at.rows[rank] = nullptr;
    if (count == 0 || !takes_part(at.call, rank))
        return;
    const uint64_t base = group.low_latency || is_coded(group, rank) ? static_cast<uint64_t>(rank) * group.tokens_max
                                                                     : args.handle.send_base[rank];
    const ep_announce *at_rank = ep_announce_of(&group, group.rank, rank);
    const ep_announce said = {load_fresh(&at_rank->offset), load_fresh(&at_rank->rows)};
    uint64_t room = base + count;
    const uint8_t *rows;
    if (rank == group.rank && args.own != nullptr)
        rows = args.own;
    else if (group.low_latency || group.coded || (rank == group.rank && said.offset == 0))
        rows = row_of(group, at.call.epoch, args.row_bytes, rank, 0);
    else
        rows = ep_announced(&group, rank, said, args.row_bytes, &args.peers, &room);
    if (rows == nullptr || base + count > room)
        atomicOr(&at.call.ranks, 1ull << rank);
    else
        at.rows[rank] = rows + base * args.row_bytes;
}

// What a lane knows of a token: the places in two ranks' lists, or the number of an expert.
struct token_lane {
    int32_t low, high;
};

template <bool BY_EXPERT> DEVICE token_lane load_token(const ep_reduce_args &args, uint32_t token)
{
    const uint32_t lane = lane_of_thread(), ranks = args.group.rank_count, topk = args.handle.topk;
    const uint64_t first = static_cast<uint64_t>(token) * (BY_EXPERT ? topk : ranks);
    const int32_t *from = BY_EXPERT ? args.handle.own_topk : args.handle.send_index;
    const uint32_t words = token >= args.tokens ? 0 : BY_EXPERT ? topk : ranks;
    return {lane < words ? from[first + lane] : -1, lane + LANES < words ? from[first + lane + LANES] : -1};
}

// Ranks ascending, one row of each.
DEVICE uint32_t list_ranks(const ep_reduce_args &args, uint32_t from, int32_t index, uint32_t count, reduce_shared &at)
{
    const uint32_t rank = from + lane_of_thread();
    const bool comes = rank < args.group.rank_count && index >= 0 && at.rows[rank] != nullptr;
    const uint32_t ballot = __ballot_sync(ALL_LANES, comes);
    if (comes)
        at.terms[warp_of_thread()].rows[count + count_bits(ballot & ((1u << lane_of_thread()) - 1))] =
            at.rows[rank] + static_cast<uint64_t>(index) * args.row_bytes;
    return count + count_bits(ballot);
}

// LL EXPERT_MAJOR: the row of a token's expert `lane` on the rank itself, which the caller has. Null: there is none.
DEVICE const uint8_t *own_expert_row(const ep_reduce_args &args, uint32_t token)
{
    const ep_group_view &group = args.group;
    const int32_t j = args.handle.send_index[static_cast<uint64_t>(token) * group.rank_count + group.rank];
    const uint64_t record = static_cast<uint64_t>(group.rank) * group.tokens_max + static_cast<uint32_t>(j);
    const int32_t row = args.handle.expert_row[record * args.handle.topk + lane_of_thread()];
    return row >= 0 ? args.own + static_cast<uint64_t>(row) * args.row_bytes : nullptr;
}

// Ranks ascending, and experts of a rank in the order of topk: a lane's place is the number of those before it.
DEVICE uint32_t list_experts(const ep_reduce_args &args, uint32_t token, int32_t number, reduce_shared &at)
{
    const uint32_t topk = args.handle.topk, lane = lane_of_thread();
    uint32_t rank = number >= 0 ? ep_rank_of(&args.group, number) : STRAIT_EP_RANKS_MAX;
    const uint64_t slot = static_cast<uint64_t>(token) * topk + lane;
    const uint8_t *row = nullptr;
    if (rank < STRAIT_EP_RANKS_MAX && at.rows[rank] != nullptr)
        row = rank == args.group.rank && args.own != nullptr
                  ? own_expert_row(args, token)
                  : row_of(args.group, at.call.epoch, args.row_bytes, rank, slot);
    rank = row != nullptr ? rank : STRAIT_EP_RANKS_MAX;
    uint32_t before = 0;
    for (uint32_t k = 0; k < topk; k++) {
        const uint32_t its = __shfl_sync(ALL_LANES, rank, k);
        before += its < rank || (its == rank && k < lane);
    }
    term_list &terms = at.terms[warp_of_thread()];
    if (rank < STRAIT_EP_RANKS_MAX) {
        terms.rows[before] = row;
        terms.weights[before] = args.weights != nullptr ? args.weights[slot] : 1.0f;
    }
    return count_bits(__ballot_sync(ALL_LANES, rank < STRAIT_EP_RANKS_MAX));
}

// Rows of own tokens. What a warp's next task needs to know is under way while it sums.
template <strait_element TYPE, bool BY_EXPERT, bool FEW>
DEVICE void reduce_rows(const ep_reduce_args &args, reduce_shared &at)
{
    const uint32_t warps = gridDim.x * WARPS;
    const token_range own = tokens_of_launch(args.group, args.part, args.tokens);
    const row_parts cut = cut_rows(args.row_bytes, SUM_STEPS<FEW>, own.end - own.first, warps);
    const uint32_t tasks = own.end * cut.parts;
    uint32_t task = own.first * cut.parts + blockIdx.x * WARPS + warp_of_thread();
    token_lane is = load_token<BY_EXPERT>(args, task / cut.parts);
    for (; task < tasks; task += warps) {
        const uint32_t token = task / cut.parts;
        uint32_t count = BY_EXPERT ? list_experts(args, token, is.low, at) : list_ranks(args, 0, is.low, 0, at);
        if (!BY_EXPERT && args.group.rank_count > LANES)
            count = list_ranks(args, LANES, is.high, count, at);
        is = load_token<BY_EXPERT>(args, (task + warps) / cut.parts);
        __syncwarp();
        sum_part<TYPE, BY_EXPERT, FEW>(cut, task % cut.parts, at.terms[warp_of_thread()], count,
                                       args.rows + static_cast<uint64_t>(token) * args.row_bytes);
        __syncwarp();
    }
}

// Gradients of weights, each from the rank of its expert.
DEVICE void fetch_weights(const ep_reduce_args &args, const call_state &call)
{
    const ep_group_view &group = args.group;
    const uint32_t topk = args.handle.topk;
    const token_range own = tokens_of_launch(group, args.part, args.tokens);
    const uint32_t first = own.first * topk + blockIdx.x * THREADS + threadIdx.x;
    for (uint32_t x = first; x < own.end * topk; x += gridDim.x * THREADS) {
        const int32_t number = args.handle.own_topk[x];
        const uint32_t rank = number >= 0 ? ep_rank_of(&group, number) : 0;
        const int32_t j =
            number >= 0 ? args.handle.send_index[static_cast<uint64_t>(x / topk) * group.rank_count + rank] : -1;
        const uint64_t slot = j >= 0 ? args.handle.send_base[rank] + static_cast<uint64_t>(j) : 0;
        args.weights_out[x] =
            j >= 0 ? load_fresh(ep_weights_of(&group, rank, call.epoch, topk, slot) + x % topk) : 0.0f;
    }
}

template <strait_element TYPE, bool BY_EXPERT, bool FEW>
__global__ void __launch_bounds__(THREADS, 1) reduce_kernel(const __grid_constant__ ep_reduce_args args)
{
    extern __shared__ uint4 memory[];
    reduce_shared &at = *reinterpret_cast<reduce_shared *>(memory);
    const ep_group_view &group = args.group;
    const bool by_parts = rows_by_parts(group), last = !by_parts || args.part + 1 == group.at.parts;
    open_call(group, args.handle, false, at.call);
    if (at.call.failed == 0 &&
        (by_parts ? wait_part(group, args.part, at.call)
                  : wait_ranks(group, group.low_latency ? EP_FLAG_DATA : EP_FLAG_READY, at.call))) {
        for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS)
            find_source(args, rank, at);
        if (check_ranks(group, STRAIT_ERR_CORRUPT, at.call) && check_decoded(group, at.call)) {
            if (args.weights_out != nullptr)
                fetch_weights(args, at.call);
            reduce_rows<TYPE, BY_EXPERT, FEW>(args, at);
        }
    }
    if (group.low_latency || !last)
        leave(group);
    else if (is_last_block(group, at.call))
        signal_ranks(group, EP_FLAG_DONE, at.call);
}

// ---- Flags alone ----------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(THREADS, 1) announce_kernel(const __grid_constant__ ep_announce_args args)
{
    extern __shared__ uint4 memory[];
    call_state &call = *reinterpret_cast<call_state *>(memory);
    open_call(args.group, args.handle, true, call);
    keep_epoch(args.group, args.handle, call);
    announce_ranks(args.group, args.announce, call);
}

// Begins a call whose first phase runs on the side stream.
__global__ void __launch_bounds__(THREADS, 1) begin_kernel(const __grid_constant__ ep_settle_args args)
{
    extern __shared__ uint4 memory[];
    call_state &call = *reinterpret_cast<call_state *>(memory);
    open_call(args.group, args.handle, true, call);
    keep_epoch(args.group, args.handle, call);
}

__global__ void __launch_bounds__(THREADS, 1) settle_kernel(const __grid_constant__ ep_settle_args args)
{
    extern __shared__ uint4 memory[];
    call_state &call = *reinterpret_cast<call_state *>(memory);
    open_call(args.group, args.handle, false, call);
    if (call.failed == 0)
        wait_ranks(args.group, EP_FLAG_DONE, call);
    leave(args.group);
}

// ---- Kernels by type ------------------------------------------------------------------------------------------------

const strait_element types[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32};
constexpr size_t TYPES = sizeof(types) / sizeof(*types);

struct kernels_of_type {
    const void *stage_sums, *reduce_two, *reduce_ranks, *reduce_experts;
};

template <strait_element TYPE> kernels_of_type kernels_of()
{
    return {reinterpret_cast<const void *>(stage_kernel<TYPE, true>),
            reinterpret_cast<const void *>(reduce_kernel<TYPE, false, true>),
            reinterpret_cast<const void *>(reduce_kernel<TYPE, false, false>),
            reinterpret_cast<const void *>(reduce_kernel<TYPE, true, false>)};
}

// Rows that are only copied have no type.
const void *const stage_copies = reinterpret_cast<const void *>(stage_kernel<STRAIT_ELEMENT_BF16, false>);

kernels_of_type kernels_for(strait_element type)
{
    if (type == STRAIT_ELEMENT_FP32)
        return kernels_of<STRAIT_ELEMENT_FP32>();
    return type == STRAIT_ELEMENT_FP16 ? kernels_of<STRAIT_ELEMENT_FP16>() : kernels_of<STRAIT_ELEMENT_BF16>();
}

} // namespace
} // namespace strait

cudaError_t ep_cuda_announce(const struct ep_announce_args *args, uint32_t, cudaStream_t stream)
{
    return strait::launch<ep_announce_args, strait::call_state>(reinterpret_cast<const void *>(strait::announce_kernel),
                                                                *args, 1, stream);
}

cudaError_t ep_cuda_begin(const struct ep_settle_args *args, uint32_t, cudaStream_t stream)
{
    return strait::launch<ep_settle_args, strait::call_state>(reinterpret_cast<const void *>(strait::begin_kernel),
                                                              *args, 1, stream);
}

cudaError_t ep_cuda_settle(const struct ep_settle_args *args, uint32_t, cudaStream_t stream)
{
    return strait::launch<ep_settle_args, strait::call_state>(reinterpret_cast<const void *>(strait::settle_kernel),
                                                              *args, 1, stream);
}

cudaError_t ep_cuda_stage(const struct ep_stage_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    const bool by_expert = args->handle.layout == STRAIT_EP_EXPERT_MAJOR;
    const bool moves = args->rows != nullptr || args->weights != nullptr;
    return strait::launch<ep_stage_args, strait::stage_shared>(
        by_expert ? strait::kernels_for(args->type).stage_sums : strait::stage_copies, *args,
        moves ? strait::blocks_of(args->group, multiprocessors) : 1, stream);
}

cudaError_t ep_cuda_reduce(const struct ep_reduce_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    const strait::kernels_of_type kernels = strait::kernels_for(args->type);
    const bool by_expert = args->group.low_latency && args->handle.layout == STRAIT_EP_EXPERT_MAJOR;
    const void *by_rank = args->group.rank_count <= 2 ? kernels.reduce_two : kernels.reduce_ranks;
    return strait::launch<ep_reduce_args, strait::reduce_shared>(
        by_expert ? kernels.reduce_experts : by_rank, *args, strait::blocks_of(args->group, multiprocessors), stream);
}

cudaError_t ep_cuda_load_combine(void)
{
    const void *const flags[] = {reinterpret_cast<const void *>(strait::announce_kernel),
                                 reinterpret_cast<const void *>(strait::begin_kernel),
                                 reinterpret_cast<const void *>(strait::settle_kernel), strait::stage_copies};
    cudaError_t error = strait::load(flags);
    for (size_t i = 0; i < strait::TYPES && error == cudaSuccess; i++) {
        const strait::kernels_of_type of = strait::kernels_for(strait::types[i]);
        const void *const kernels[] = {of.stage_sums, of.reduce_two, of.reduce_ranks, of.reduce_experts};
        error = strait::load(kernels);
    }
    return error;
}
