// Records that came: which there are, and the rows of local experts that they have.
#ifndef STRAIT_EP_CUDA_LISTS_CUH
#define STRAIT_EP_CUDA_LISTS_CUH

#include "ep/cuda/block.cuh"

namespace strait
{

constexpr uint32_t COUNTER_WORDS = 9216; // of shared memory: at least 2 * STRAIT_EP_EXPERTS_MAX

// Lists of all sources one after another: record number i of all is place i - base[s] of source s, the last one with
// base[s] <= i that has records. In shared memory.
struct record_lists {
    uint32_t count[STRAIT_EP_RANKS_MAX];
    uint32_t base[STRAIT_EP_RANKS_MAX + 1];
};

struct record_place {
    uint32_t rank, j;
};

// For all threads, in a loop of a block: the place of a thread among those that want one, in the order of threads,
// behind `base`, which becomes that of the next step. counts: of two steps in turn, as the other is still read.
DEVICE uint32_t take_place(bool wants, uint32_t (&counts)[2][WARPS], uint32_t step, uint32_t &base)
{
    const uint32_t ballot = __ballot_sync(ALL_LANES, wants), warp = warp_of_thread();
    uint32_t *const of_warps = counts[step % 2];
    if (lane_of_thread() == 0)
        of_warps[warp] = count_bits(ballot);
    __syncthreads();
    uint32_t place = base + count_bits(ballot & ((1u << lane_of_thread()) - 1));
    for (uint32_t w = 0; w < WARPS; w++) {
        place += w < warp ? of_warps[w] : 0;
        base += of_warps[w];
    }
    return place;
}

// For all threads, after a barrier: bases from counts.
DEVICE void add_bases(record_lists &lists, uint32_t ranks)
{
    for (uint32_t rank = threadIdx.x; rank <= ranks; rank += THREADS) {
        uint32_t sum = 0;
        for (uint32_t s = 0; s < rank; s++)
            sum += lists.count[s];
        lists.base[rank] = sum;
    }
    __syncthreads();
}

// For all threads: lists that an earlier phase has left in the handle, of ranks that take part.
DEVICE void load_lists(const ep_group_view &group, const ep_handle_view &handle, const call_state &call,
                       record_lists &lists)
{
    for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS)
        lists.count[rank] = takes_part(call, rank) ? handle.recv_count[rank] : 0;
    __syncthreads();
    add_bases(lists, group.rank_count);
}

// For all threads: leaves only records of the rank itself, of the others, or none.
DEVICE void select_lists(const ep_group_view &group, record_lists &lists, bool own, bool others)
{
    if (own && others)
        return;
    for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS)
        lists.count[rank] = (rank == group.rank ? own : others) ? lists.count[rank] : 0;
    __syncthreads();
    add_bases(lists, group.rank_count);
}

// ---- Parts ----------------------------------------------------------------------------------------------------------

// For all lanes of a warp: the first place of a list whose token is `token` or later. Tokens of what peers have sent
// may be in any order: some place up to the end then.
template <class TOKEN> DEVICE uint32_t find_place(uint32_t count, uint32_t token, const TOKEN &token_at)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t step = (high - low + LANES - 1) / LANES, at = low + (lane_of_thread() + 1) * step - 1;
        const uint32_t below = count_bits(__ballot_sync(ALL_LANES, at < high && token_at(at) < token));
        const uint32_t first = low + below * step; // the place before is below, that of the next lane is not
        low = first < high ? first : high;
        high = first + step - 1 < high ? first + step - 1 : high;
    }
    return low;
}

// Places at which parts, at most PARTS from part `first` on, begin in the lists of ranks. In shared memory.
template <uint32_t PARTS> struct part_edges {
    uint32_t first;
    uint32_t at[STRAIT_EP_RANKS_MAX][PARTS + 1];
};

// For all threads: the edges of parts [first, end). own: of lists of own tokens; else of those that have come, by the
// handle's numbers.
template <uint32_t PARTS>
DEVICE void find_edges(const ep_group_view &group, const ep_handle_view &handle, bool own, uint32_t first, uint32_t end,
                       part_edges<PARTS> &edges)
{
    const uint32_t each = end - first + 1, stride = own ? 1 : handle.topk + 1;
    for (uint32_t x = warp_of_thread(); x < group.rank_count * each; x += WARPS) {
        const uint32_t rank = x / each, token = (first + x % each) * group.at.part_tokens;
        const uint64_t list = static_cast<uint64_t>(rank) * group.tokens_max;
        const uint32_t *const tokens =
            own ? handle.send_token + list
                : reinterpret_cast<const uint32_t *>(handle.numbers) + list * stride + handle.topk;
        const uint32_t place = find_place((own ? handle.send_count : handle.recv_count)[rank], token,
                                          [&](uint32_t j) { return tokens[static_cast<uint64_t>(j) * stride]; });
        if (lane_of_thread() == 0)
            edges.at[rank][x % each] = place;
    }
    if (threadIdx.x == 0)
        edges.first = first;
    __syncthreads();
}

// Places of a part in the list of a rank, of which there are at most part_tokens.
struct part_places {
    uint32_t first, count;
};

template <uint32_t PARTS>
DEVICE part_places places_of(const ep_group_view &group, const part_edges<PARTS> &edges, uint32_t rank, uint32_t part)
{
    const uint32_t first = edges.at[rank][part - edges.first], end = edges.at[rank][part - edges.first + 1];
    const uint32_t count = end > first ? end - first : 0;
    return {first, count < group.at.part_tokens ? count : group.at.part_tokens};
}

// For all threads: lists that have come become those of a part alone.
DEVICE void load_part(const ep_group_view &group, const ep_handle_view &handle, uint32_t part, record_lists &lists,
                      part_edges<1> &edges)
{
    __syncthreads();
    find_edges(group, handle, false, part, part + 1, edges);
    for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS)
        lists.count[rank] = places_of(group, edges, rank, part).count;
    __syncthreads();
    add_bases(lists, group.rank_count);
}

DEVICE record_place find_record(const record_lists &lists, uint32_t ranks, uint32_t i)
{
    uint32_t low = 0, high = ranks; // base[low] <= i < base[high]
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (lists.base[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return {low, i - lists.base[low]};
}

DEVICE uint64_t record_of(const ep_group_view &group, const record_place &place)
{
    return static_cast<uint64_t>(place.rank) * group.tokens_max + place.j;
}

// Records of a block: [first, end).
struct record_range {
    uint32_t first, end;
};

DEVICE record_range range_of_block(uint32_t records)
{
    return {static_cast<uint32_t>(static_cast<uint64_t>(records) * blockIdx.x / gridDim.x),
            static_cast<uint32_t>(static_cast<uint64_t>(records) * (blockIdx.x + 1) / gridDim.x)};
}

// The local number of an expert; -1: another rank's.
DEVICE int32_t local_number(const ep_group_view &group, int32_t number)
{
    const int32_t local = number - static_cast<int32_t>(group.rank * group.local_experts);
    return number >= 0 && local >= 0 && local < static_cast<int32_t>(group.local_experts) ? local : -1;
}

// Takes the numbers of the block's records into the handle. counters: [L] in shared memory, to which the rows of each
// expert are added; or null. Ranks whose numbers cannot be go to call.ranks.
DEVICE void take_numbers(const ep_group_view &group, const ep_handle_view &handle, const record_lists &lists,
                         const record_range &range, call_state &call, uint32_t *counters)
{
    const uint32_t each = handle.topk + 1, words = (range.end - range.first) * each;
    for (uint32_t i = threadIdx.x; i < words; i += THREADS) {
        const record_place place = find_record(lists, group.rank_count, range.first + i / each);
        const uint64_t record = record_of(group, place);
        const uint32_t k = i % each;
        const int32_t came = load_fresh(ep_numbers_of(&group, group.rank, call.epoch, handle.topk, record) + k);
        const int32_t local = local_number(group, came);
        handle.numbers[record * each + k] = k < handle.topk ? local : came;
        if (k == handle.topk && static_cast<uint32_t>(came) >= group.tokens_max)
            atomicOr(&call.ranks, 1ull << place.rank);
        if (k < handle.topk && local >= 0 && counters != nullptr)
            atomicAdd(&counters[local], 1u);
    }
}

// Counts the rows of each expert in records before the block's own, from the numbers as they came.
DEVICE void count_before(const ep_group_view &group, const ep_handle_view &handle, const record_lists &lists,
                         uint32_t end, const call_state &call, uint32_t *counters)
{
    for (uint32_t i = threadIdx.x; i < end * handle.topk; i += THREADS) {
        const uint64_t record = record_of(group, find_record(lists, group.rank_count, i / handle.topk));
        const int32_t *came = ep_numbers_of(&group, group.rank, call.epoch, handle.topk, record);
        const int32_t local = local_number(group, load_fresh(came + i % handle.topk));
        if (local >= 0)
            atomicAdd(&counters[local], 1u);
    }
}

// Gives the block's records their rows, in the order of records, and in a record of topk. counters: COUNTER_WORDS in
// shared memory, which begin with [L] next rows of the experts; these are what comes next when all is done. Each warp
// has a stretch of the range and counters of its own: first it counts its rows, then each of its experts' counters
// becomes the row that its stretch begins with, then it gives rows away, those of one expert within 32 numbers in the
// order of lanes. Ranks whose rows would lie beyond the zone of an expert, which ends at (expert + 1) * zone, or, where
// `zone` is 0, beyond all zones, go to call.ranks: peers can change what they have written.
DEVICE void place_records(const ep_group_view &group, const ep_handle_view &handle, const record_lists &lists,
                          const record_range &range, uint32_t *counters, uint32_t zone, call_state &call)
{
    const uint32_t experts = group.local_experts, topk = handle.topk, lane = lane_of_thread(), warp = warp_of_thread();
    const uint32_t fit = (COUNTER_WORDS - experts) / experts, warps = fit < WARPS ? fit : WARPS;
    const uint64_t numbers = static_cast<uint64_t>(range.end - range.first) * topk;
    const uint32_t first = static_cast<uint32_t>(numbers * warp / warps);
    const uint32_t end = warp < warps ? static_cast<uint32_t>(numbers * (warp + 1) / warps) : first;
    const uint32_t all = static_cast<uint32_t>(handle.totals[1]); // HT
    uint32_t *const own = counters + experts + warp * experts;    // of warps below `warps`

    for (uint32_t i = threadIdx.x; i < warps * experts; i += THREADS)
        counters[experts + i] = 0;
    __syncthreads();
    for (uint32_t i = first + lane; i < end; i += LANES) {
        const uint64_t record = record_of(group, find_record(lists, group.rank_count, range.first + i / topk));
        const int32_t number = handle.numbers[record * (topk + 1) + i % topk];
        if (number >= 0)
            atomicAdd(&own[number], 1u);
    }
    __syncthreads();
    for (uint32_t expert = threadIdx.x; expert < experts; expert += THREADS) {
        uint32_t next = counters[expert];
        for (uint32_t w = 0; w < warps; w++) {
            uint32_t &counter = counters[experts + w * experts + expert];
            const uint32_t rows = counter;
            counter = next;
            next += rows;
        }
        counters[expert] = next;
    }
    __syncthreads();
    for (uint32_t from = first; from < end; from += LANES) {
        const uint32_t i = from + lane < end ? from + lane : end - 1;
        const record_place place = find_record(lists, group.rank_count, range.first + i / topk);
        const uint64_t record = record_of(group, place);
        const int32_t number = from + lane < end ? handle.numbers[record * (topk + 1) + i % topk] : -1;
        const uint32_t same = __match_any_sync(ALL_LANES, static_cast<uint32_t>(number));
        const uint32_t before = count_bits(same & ((1u << lane) - 1));
        const uint32_t row = number >= 0 ? own[number] + before : 0;
        __syncwarp();
        if (number >= 0 && before == 0)
            own[number] += count_bits(same);
        __syncwarp();
        if (from + lane >= end)
            continue;
        const uint32_t room = zone != 0 ? (static_cast<uint32_t>(number) + 1) * zone : all;
        if (number >= 0 && row >= room) {
            atomicOr(&call.ranks, 1ull << place.rank);
            continue;
        }
        handle.expert_row[record * topk + i % topk] = number >= 0 ? static_cast<int32_t>(row) : -1;
    }
}

} // namespace strait
#endif
