// Coded rows: kernels before and after the codec's launches. A list names the rows of a chunk, whose number only the
// device knows; what it lacks at its end is EP_NO_ROW, for which the encoder takes zeroes and the decoder nothing.
#include "ep/cuda/block.cuh"
#include "ep/cuda/lists.cuh"
#include "ep/cuda/rows.cuh"

namespace strait
{
namespace
{

struct list_shared {
    call_state call;
    uint32_t counts[STRAIT_EP_RANKS_MAX]; // records of each rank's list; 0: none, or not coded
    part_edges<EP_PARTS_MAX> edges;       // HT
    uint32_t of_warps[2][WARPS];
};

DEVICE bool reads_chunks(const ep_list_args &args)
{
    return args.kind == EP_LIST_RECEIVE || args.kind == EP_LIST_REDUCE;
}

// Records of the rank's list, in an order that both sides know.
DEVICE uint32_t count_records(const ep_list_args &args, uint32_t rank, const call_state &call)
{
    const ep_group_view &group = args.group;
    if (rank == group.rank || !takes_part(call, rank))
        return 0;
    if (args.kind == EP_LIST_SEND || args.kind == EP_LIST_REDUCE)
        return args.handle.send_count[rank];
    if (args.kind != EP_LIST_RECEIVE)
        return args.handle.recv_count[rank];
    if (!group.low_latency)
        return static_cast<uint32_t>(args.handle.totals[1]) <= args.row_count ? args.handle.recv_count[rank] : 0;
    const uint32_t came = load_fresh(ep_counts_of(&group, group.rank, call.epoch, rank) + group.rank);
    return came <= group.tokens_max ? came : 0;
}

// The row of place j of a list, where each record has one.
DEVICE uint32_t row_at(const ep_list_args &args, uint32_t rank, uint32_t j)
{
    const uint32_t place = rank * args.group.tokens_max + j;
    if (args.kind == EP_LIST_SEND)
        return args.handle.send_token[place];
    if (args.kind == EP_LIST_STAGE || (args.kind == EP_LIST_RECEIVE && !args.group.low_latency))
        return args.handle.recv_base[rank] + j;
    return place;
}

// The row of a record's expert k, or EP_NO_ROW: not that rank's. LL combine, EXPERT_MAJOR.
DEVICE uint32_t expert_row_at(const ep_list_args &args, uint32_t rank, uint32_t j, uint32_t k)
{
    const uint32_t topk = args.handle.topk;
    const uint64_t record = static_cast<uint64_t>(rank) * args.group.tokens_max + j;
    if (args.kind == EP_LIST_SEND_BACK)
        return static_cast<uint32_t>(args.handle.expert_row[record * topk + k]); // -1 is EP_NO_ROW
    const uint32_t place = args.handle.send_token[record] * topk + k;
    const int32_t expert = args.handle.own_topk[place];
    return expert >= 0 && ep_rank_of(&args.group, expert) == rank ? place : EP_NO_ROW;
}

// For all threads of a block: the rows of a rank's experts, by j, then k.
DEVICE void list_experts(const ep_list_args &args, uint32_t rank, list_shared &at)
{
    const ep_coding &coding = args.group.coding;
    const uint32_t topk = args.handle.topk, all = at.counts[rank] * topk;
    uint32_t *const rows = coding.rows + static_cast<uint64_t>(rank) * args.group.at.chunk_rows;
    uint32_t base = 0;
    for (uint32_t from = 0, step = 0; from < all; from += THREADS, step++) {
        const uint32_t x = from + threadIdx.x;
        const uint32_t row = x < all ? expert_row_at(args, rank, x / topk, x % topk) : EP_NO_ROW;
        const uint32_t place = take_place(row != EP_NO_ROW, at.of_warps, step, base);
        if (row != EP_NO_ROW && place < coding.pages)
            rows[place] = row;
    }
    const uint32_t count = base < coding.pages ? base : coding.pages;
    for (uint32_t i = count + threadIdx.x; i < coding.pages; i += THREADS)
        rows[i] = EP_NO_ROW;
    if (threadIdx.x == 0)
        coding.counts[rank] = count;
    __syncthreads();
}

// Places of a chunk in the rank's list.
DEVICE part_places places_of_chunk(const ep_list_args &args, const list_shared &at, uint32_t rank, uint32_t part)
{
    if (args.group.low_latency || at.counts[rank] == 0)
        return {0, at.counts[rank]};
    return places_of(args.group, at.edges, rank, part);
}

// By all threads of the launch.
DEVICE void list_records(const ep_list_args &args, const list_shared &at)
{
    const ep_coding &coding = args.group.coding;
    const uint32_t chunks = ep_arena_chunks(&args.group.at), parts = args.end - args.first;
    const uint32_t each = parts * coding.pages, thread = blockIdx.x * THREADS + threadIdx.x;
    for (uint32_t x = thread; x < args.group.rank_count * each; x += gridDim.x * THREADS) {
        const uint32_t rank = x / each, part = args.first + x % each / coding.pages, i = x % coding.pages;
        const part_places places = places_of_chunk(args, at, rank, part);
        coding.rows[(static_cast<uint64_t>(rank) * chunks + part) * args.group.at.chunk_rows + i] =
            i < places.count ? row_at(args, rank, places.first + i) : EP_NO_ROW;
    }
    for (uint32_t x = thread; x < args.group.rank_count * parts; x += gridDim.x * THREADS) {
        const uint32_t rank = x / parts, part = args.first + x % parts;
        coding.counts[rank * chunks + part] = places_of_chunk(args, at, rank, part).count;
    }
}

// Copies vectors, shared out among all threads of the launch.
DEVICE void copy_vectors(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    const uint64_t vectors = bytes / VECTOR, step = gridDim.x * THREADS;
    for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < vectors; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (uint32_t u = 0; u < 4; u++)
            if (i + u * step < vectors)
                v[u] = load_vector(from + (i + u * step) * VECTOR);
#pragma unroll
        for (uint32_t u = 0; u < 4; u++)
            if (i + u * step < vectors)
                store_vector(to + (i + u * step) * VECTOR, v[u]);
    }
}

// LL: the chunk of a rank, as long as its header says. HT: its metadata.
DEVICE void fetch_chunk(const ep_list_args &args, uint32_t rank, const call_state &call)
{
    const ep_group_view &group = args.group;
    const bool received = args.kind == EP_LIST_RECEIVE || group.low_latency;
    const uint8_t *from = received ? ep_chunk_of(&group, group.rank, call.epoch, rank, args.first)
                                   : ep_chunk_of(&group, rank, call.epoch, group.rank, args.first);
    if (!group.low_latency) {
        const uint64_t chunk = static_cast<uint64_t>(rank) * ep_arena_chunks(&group.at) + args.first;
        copy_vectors(group.coding.metadata + chunk * group.coding.metadata_bytes, from, group.coding.metadata_bytes);
        return;
    }
    const uint64_t said = load_fresh(reinterpret_cast<const uint32_t *>(from) + 4); // bytes of the chunk
    copy_vectors(group.coding.chunks + rank * group.at.chunk_bytes, from,
                 said < group.at.chunk_bytes ? said : group.at.chunk_bytes);
}

__global__ void __launch_bounds__(THREADS, 1) list_kernel(const __grid_constant__ ep_list_args args)
{
    extern __shared__ uint4 memory[];
    list_shared &at = *reinterpret_cast<list_shared *>(memory);
    const ep_group_view &group = args.group;
    open_call(group, args.handle, false, at.call);
    bool goes_on = at.call.failed == 0;
    if (goes_on && reads_chunks(args))
        goes_on = group.low_latency ? wait_ranks(group, EP_FLAG_DATA, at.call) : wait_part(group, args.first, at.call);
    for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS)
        at.counts[rank] = goes_on ? count_records(args, rank, at.call) : 0;
    __syncthreads();
    if (!group.low_latency)
        find_edges(group, args.handle, args.kind == EP_LIST_SEND || args.kind == EP_LIST_REDUCE, args.first, args.end,
                   at.edges);
    if (args.by_expert) {
        for (uint32_t rank = blockIdx.x; rank < group.rank_count; rank += gridDim.x)
            list_experts(args, rank, at);
    } else {
        list_records(args, at);
    }
    for (uint32_t rank = 0; rank < group.rank_count && reads_chunks(args); rank++)
        if (places_of_chunk(args, at, rank, args.first).count > 0)
            fetch_chunk(args, rank, at.call);
    leave(group);
}

// ---- Chunks to their ranks ------------------------------------------------------------------------------------------

// LL: copies the chunks to the places of the epoch. Then flags, and the announcement.
__global__ void __launch_bounds__(THREADS, 1) hand_over_kernel(const __grid_constant__ ep_hand_over_args args)
{
    extern __shared__ uint4 memory[];
    call_state &call = *reinterpret_cast<call_state *>(memory);
    const ep_group_view &group = args.group;
    const ep_coding &coding = group.coding;
    open_call(group, args.handle, false, call);
    for (uint32_t rank = 0; rank < group.rank_count && group.low_latency && call.failed == 0; rank++)
        if (takes_part(call, rank) && coding.counts[rank] > 0 && coding.results[rank].status == STRAIT_OK)
            copy_vectors(ep_chunk_of(&group, rank, call.epoch, group.rank, 0),
                         coding.chunks + rank * group.at.chunk_bytes, coding.results[rank].bytes);
    if (!is_last_block(group, call))
        return;
    if (!group.low_latency)
        tell_progress(group, args.part, call);
    if (args.part + 1 < ep_arena_chunks(&group.at))
        return;
    if (args.signal == EP_FLAG_READY)
        announce_ranks(group, {0, 0}, call);
    else
        signal_ranks(group, args.signal, call);
}

} // namespace
} // namespace strait

cudaError_t ep_cuda_list(const struct ep_list_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    return strait::launch<ep_list_args, strait::list_shared>(reinterpret_cast<const void *>(strait::list_kernel), *args,
                                                             strait::blocks_of(args->group, multiprocessors), stream);
}

cudaError_t ep_cuda_hand_over(const struct ep_hand_over_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    return strait::launch<ep_hand_over_args, strait::call_state>(
        reinterpret_cast<const void *>(strait::hand_over_kernel), *args,
        args->group.low_latency ? strait::blocks_of(args->group, multiprocessors) : 1, stream);
}

cudaError_t ep_cuda_load_code(void)
{
    const void *const kernels[] = {reinterpret_cast<const void *>(strait::list_kernel),
                                   reinterpret_cast<const void *>(strait::hand_over_kernel)};
    return strait::load(kernels);
}
