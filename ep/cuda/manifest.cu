// Manifests for ranks of other hosts: what a phase that has just signalled has stored for each of them (ep/kernels.h).
// Ranges come in the order of ep/host_*.c: lists, weights, scales, rows or the chunk, the announcement.
#include "ep/cuda/block.cuh"
#include "ep/cuda/lists.cuh"

namespace strait
{
namespace
{

struct manifest_shared {
    call_state call;
    uint32_t of_warps[2][WARPS];
};

// The manifest that is being made, and whose arenas it is about.
struct writer {
    const ep_group_view &group;
    ep_manifest &manifest;
    uint32_t rank;

    DEVICE void add(const void *memory, uint64_t bytes, uint32_t rows, uint32_t flags)
    {
        const uint8_t *base = group.arenas[(flags & EP_OF_SENDER) != 0 ? group.rank : rank];
        if (bytes == 0 || rows == 0)
            return;
        manifest.ranges[manifest.count++] = {static_cast<uint64_t>(static_cast<const uint8_t *>(memory) - base), bytes,
                                             rows, flags};
    }
};

// The flag of the call, as a number.
DEVICE uint64_t value_of(const ep_manifest_args &args, const call_state &call)
{
    return args.kind == EP_FLAG_PROGRESS ? ep_progress(call.epoch, 1) : call.epoch;
}

// Bytes of the rank's chunk, if there is one.
DEVICE uint64_t chunk_bytes(const ep_group_view &group, uint32_t rank)
{
    const strait_result &result = group.coding.results[rank]; // of the one part
    return group.coding.counts[rank] > 0 && result.status == STRAIT_OK ? result.bytes : 0;
}

// A dispatch, or the lists of an update: what own tokens have at the slots of the rank.
DEVICE void add_sent(const ep_manifest_args &args, const call_state &call, uint32_t rank, writer &to)
{
    const ep_group_view &group = args.group;
    const uint32_t topk = args.handle.topk;
    const uint64_t count = args.handle.send_count[rank], mine = static_cast<uint64_t>(group.rank) * group.tokens_max;
    const uint64_t first = group.low_latency ? mine : args.handle.send_base[rank];
    if (args.lists) {
        to.add(ep_counts_of(&group, rank, call.epoch, group.rank), group.rank_count * sizeof(uint32_t), 1, 0);
        to.add(ep_numbers_of(&group, rank, call.epoch, topk, mine), count * (topk + 1) * sizeof(int32_t), 1, 0);
    }
    if (args.weights)
        to.add(ep_weights_of(&group, rank, call.epoch, topk, first), count * topk * sizeof(float), 1, 0);
    if (args.scales)
        to.add(ep_scales_of(&group, rank, call.epoch, args.scale_bytes, first), count * args.scale_bytes, 1, 0);
    if (!args.rows)
        return;
    if (group.coded) {
        to.add(ep_chunk_of(&group, rank, call.epoch, group.rank, 0), chunk_bytes(group, rank), 1, 0);
        return;
    }
    uint64_t room = group.at.row_slots;
    const uint8_t *rows = ep_rows_of(&group, rank, call.epoch, args.row_bytes, 0);
    if (!group.low_latency) {
        const ep_announce *at_rank = ep_announce_of(&group, group.rank, rank);
        const ep_announce said = {load_fresh(&at_rank->offset), load_fresh(&at_rank->rows)};
        const ep_peers none = {};
        rows = ep_announced(&group, rank, said, args.row_bytes, &none, &room);
    }
    const uint64_t taken = rows == nullptr || first >= room ? 0 : count < room - first ? count : room - first;
    if (taken > 0)
        to.add(rows + first * args.row_bytes, taken * args.row_bytes, 1, 0);
}

// HT combine: what the rank reads in the own arena.
DEVICE void add_staged(const ep_manifest_args &args, const call_state &call, uint32_t rank, writer &to)
{
    const ep_group_view &group = args.group;
    const uint32_t topk = args.handle.topk;
    const uint64_t first = args.handle.recv_base[rank], count = args.handle.recv_count[rank];
    if (args.weights)
        to.add(ep_weights_of(&group, group.rank, call.epoch, topk, first), count * topk * sizeof(float), 1,
               EP_OF_SENDER);
    if (group.coded) {
        if (args.rows)
            to.add(ep_chunk_of(&group, group.rank, call.epoch, rank, 0), chunk_bytes(group, rank), 1, EP_OF_SENDER);
        return;
    }
    uint64_t room;
    const ep_peers none = {};
    const uint8_t *rows = ep_announced(&group, group.rank, args.announce, args.row_bytes, &none, &room);
    if (rows != nullptr && first + count <= room)
        to.add(rows + first * args.row_bytes, count * args.row_bytes, 1, EP_OF_SENDER);
}

// For all threads. The places of the rows that go back to the rank, by j, then k. Returns how many there are.
DEVICE uint32_t list_places(const ep_manifest_args &args, uint32_t rank, manifest_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t topk = args.handle.topk, all = args.handle.recv_count[rank] * topk;
    uint32_t *const places = ep_places_of(&group, at.call.epoch, rank);
    uint32_t base = 0;
    for (uint32_t from = 0, step = 0; from < all; from += THREADS, step++) {
        const uint32_t x = from + threadIdx.x;
        const uint64_t record = static_cast<uint64_t>(rank) * group.tokens_max + x / topk;
        const bool goes = x < all && args.handle.expert_row[record * topk + x % topk] >= 0;
        const uint32_t place = take_place(goes, at.of_warps, step, base);
        if (goes && place < group.place_count)
            places[place] = static_cast<uint32_t>(args.handle.numbers[record * (topk + 1) + topk]) * topk + x % topk;
    }
    return base < group.place_count ? base : group.place_count;
}

// LL combine: `listed` rows of EXPERT_MAJOR, or as many of RANK_MAJOR as came.
DEVICE void add_back(const ep_manifest_args &args, const call_state &call, uint32_t rank, uint32_t listed, writer &to)
{
    const ep_group_view &group = args.group;
    const uint64_t mine = static_cast<uint64_t>(group.rank) * group.tokens_max;
    if (group.coded)
        to.add(ep_chunk_of(&group, rank, call.epoch, group.rank, 0), chunk_bytes(group, rank), 1, 0);
    else if (args.handle.layout == STRAIT_EP_EXPERT_MAJOR)
        to.add(ep_rows_of(&group, rank, call.epoch, args.row_bytes, 0), args.row_bytes, listed, EP_LISTED);
    else
        to.add(ep_rows_of(&group, rank, call.epoch, args.row_bytes, mine),
               static_cast<uint64_t>(args.handle.recv_count[rank]) * args.row_bytes, 1, 0);
}

// For all threads of a block: tells the proxy of what was signalled to a rank.
DEVICE void tell_rank(const ep_manifest_args &args, uint32_t rank, manifest_shared &at)
{
    const ep_group_view &group = args.group;
    const bool lists = args.about == EP_ABOUT_BACK && !group.coded && args.handle.layout == STRAIT_EP_EXPERT_MAJOR;
    const uint32_t listed = lists ? list_places(args, rank, at) : 0;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    writer to = {group, *ep_manifest_of(&group, args.kind, at.call.epoch, rank), rank};
    to.manifest.count = 0;
    to.manifest.value = value_of(args, at.call);
    if (args.about == EP_ABOUT_SENT)
        add_sent(args, at.call, rank, to);
    else if (args.about == EP_ABOUT_STAGED)
        add_staged(args, at.call, rank, to);
    else if (args.about == EP_ABOUT_BACK)
        add_back(args, at.call, rank, listed, to);
    if (args.announced)
        to.add(ep_announce_of(&group, rank, group.rank), sizeof(ep_announce), 1, 0);
    fence_system();
    store_release_system(ep_signal_of(&group, args.kind, rank), value_of(args, at.call));
}

__global__ void __launch_bounds__(THREADS, 1) manifest_kernel(const __grid_constant__ ep_manifest_args args)
{
    extern __shared__ uint4 memory[];
    manifest_shared &at = *reinterpret_cast<manifest_shared *>(memory);
    const ep_group_view &group = args.group;
    open_call(group, args.handle, false, at.call);
    if (at.call.failed != 0)
        return;
    for (uint32_t rank = blockIdx.x; rank < group.rank_count; rank += gridDim.x)
        if (ep_is_remote(&group, rank) && takes_part(at.call, rank))
            tell_rank(args, rank, at);
}

} // namespace
} // namespace strait

cudaError_t ep_cuda_manifest(const struct ep_manifest_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    return strait::launch<ep_manifest_args, strait::manifest_shared>(
        reinterpret_cast<const void *>(strait::manifest_kernel), *args, strait::blocks_of(args->group, multiprocessors),
        stream);
}

cudaError_t ep_cuda_load_manifest(void)
{
    const void *const kernels[] = {reinterpret_cast<const void *>(strait::manifest_kernel)};
    return strait::load(kernels);
}
