// Phases that move rows as they are: send and receive of a dispatch, and the way back of LL.
#include "ep/cuda/block.cuh"
#include "ep/cuda/lists.cuh"
#include "ep/cuda/rows.cuh"

namespace strait
{
namespace
{

DEVICE uint32_t warp_of_launch()
{
    return blockIdx.x * WARPS + warp_of_thread();
}

// ---- Dispatch: to the ranks of experts ------------------------------------------------------------------------------

struct send_shared {
    call_state call;
    uint32_t count[STRAIT_EP_RANKS_MAX]; // places of the own list of each rank
    uint8_t *rows[STRAIT_EP_RANKS_MAX];  // place 0 of it there; null: nothing goes there
    uint32_t room[STRAIT_EP_RANKS_MAX];  // places there
    uint8_t *places[WARPS][STRAIT_EP_TOPK_MAX];
};

// The slot of place 0 of the own list at a rank.
DEVICE uint64_t first_slot(const ep_send_args &args, uint32_t rank)
{
    return args.group.low_latency ? static_cast<uint64_t>(args.group.rank) * args.group.tokens_max
                                  : args.handle.send_base[rank];
}

// Whether rows for the rank itself go to the rows of its experts at once.
DEVICE bool own_by_expert(const ep_send_args &args)
{
    return args.own != nullptr && args.handle.layout == STRAIT_EP_EXPERT_MAJOR;
}

DEVICE void find_room(const ep_send_args &args, uint32_t rank, send_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t count = at.count[rank];
    at.rows[rank] = nullptr;
    at.room[rank] = 0;
    if (!takes_part(at.call, rank) || count == 0 || is_coded(group, rank))
        return;
    if (rank == group.rank && (args.keep_own || own_by_expert(args)))
        return;
    const uint64_t first = first_slot(args, rank);
    uint64_t rows = group.at.row_slots;
    uint8_t *to = rank == group.rank ? own_row(group, at.call.epoch, args.row_bytes, 0)
                                     : ep_rows_of(&group, rank, at.call.epoch, args.row_bytes, 0);
    if (rank == group.rank && args.own != nullptr) {
        to = args.own;
        rows = args.own_rows;
    } else if (!group.low_latency && !group.coded) {
        const ep_announce *at_rank = ep_announce_of(&group, group.rank, rank);
        const ep_announce said = {load_fresh(&at_rank->offset), load_fresh(&at_rank->rows)};
        if (said.offset != 0 || rank != group.rank)
            to = ep_announced(&group, rank, said, args.row_bytes, &args.peers, &rows);
    }
    if (to == nullptr) {
        atomicOr(&at.call.ranks, 1ull << rank);
        return;
    }
    const uint64_t room = rows > first ? rows - first : 0;
    at.rows[rank] = to + first * args.row_bytes;
    at.room[rank] = room < count ? static_cast<uint32_t>(room) : count;
}

// Words that all threads of the launch share out, one run of them after another: a thread that has one of the first run
// has one of the second only when every other thread has, too. Each takes a few loads that wait for each other.
struct word_shares {
    uint32_t taken; // words of runs before, modulo the number of threads

    // The first word of this thread; the others follow at steps of all threads.
    DEVICE uint32_t begin(uint32_t words)
    {
        const uint32_t threads = gridDim.x * THREADS, thread = blockIdx.x * THREADS + threadIdx.x;
        const uint32_t first = (thread + threads - taken) % threads;
        taken = (taken + words) % threads;
        return first;
    }
};

// Stores `each` words for each place of a list: put(place * each + i, get(token, i)).
template <class GET, class PUT>
DEVICE void send_words(const ep_send_args &args, uint32_t rank, uint32_t count, uint32_t each, word_shares &shares,
                       const GET &get, const PUT &put)
{
    const uint32_t words = count * each;
    for (uint32_t x = shares.begin(words); x < words; x += gridDim.x * THREADS) {
        const uint32_t token = args.handle.send_token[static_cast<uint64_t>(rank) * args.group.tokens_max + x / each];
        put(x, get(token, x % each));
    }
}

DEVICE void send_lists(const ep_send_args &args, uint32_t rank, const send_shared &at, word_shares &shares)
{
    const ep_group_view &group = args.group;
    const uint32_t topk = args.handle.topk;
    const int32_t *own = args.handle.own_topk;
    int32_t *numbers =
        ep_numbers_of(&group, rank, at.call.epoch, topk, static_cast<uint64_t>(group.rank) * group.tokens_max);
    send_words(
        args, rank, at.count[rank], topk + 1, shares,
        [&](uint32_t token, uint32_t i) {
            return i < topk ? own[static_cast<uint64_t>(token) * topk + i] : static_cast<int32_t>(token);
        },
        [&](uint32_t x, int32_t number) { numbers[x] = number; });
    uint32_t *counts = ep_counts_of(&group, rank, at.call.epoch, group.rank);
    for (uint32_t i = shares.begin(group.rank_count); i < group.rank_count; i += gridDim.x * THREADS)
        counts[i] = at.count[i];
}

DEVICE void send_weights(const ep_send_args &args, uint32_t rank, const send_shared &at, word_shares &shares)
{
    const uint32_t topk = args.handle.topk;
    float *weights = ep_weights_of(&args.group, rank, at.call.epoch, topk, first_slot(args, rank));
    send_words(
        args, rank, at.count[rank], topk, shares,
        [&](uint32_t token, uint32_t i) { return args.weights[static_cast<uint64_t>(token) * topk + i]; },
        [&](uint32_t x, float weight) { weights[x] = weight; });
}

// A warp for each place, since scales may be long.
DEVICE void send_scales(const ep_send_args &args, uint32_t rank, const send_shared &at)
{
    const uint32_t words = args.scale_bytes / 4, count = at.count[rank];
    uint32_t *to = reinterpret_cast<uint32_t *>(
        ep_scales_of(&args.group, rank, at.call.epoch, args.scale_bytes, first_slot(args, rank)));
    for (uint32_t j = warp_of_launch(); j < count; j += gridDim.x * WARPS) {
        const uint32_t token = args.handle.send_token[static_cast<uint64_t>(rank) * args.group.tokens_max + j];
        const uint32_t *from =
            reinterpret_cast<const uint32_t *>(args.scales + static_cast<uint64_t>(token) * args.scale_bytes);
        for (uint32_t i = lane_of_thread(); i < words; i += LANES)
            to[static_cast<uint64_t>(j) * words + i] = from[i];
    }
}

// Places of the ranks that a token goes to, from lanes' indices into the lists of 32 ranks, to the warp's list.
DEVICE uint32_t add_places(const ep_send_args &args, uint32_t from, int32_t index, uint32_t count, send_shared &at)
{
    const uint32_t rank = from + lane_of_thread();
    const bool goes = rank < args.group.rank_count && index >= 0 && at.rows[rank] != nullptr &&
                      static_cast<uint32_t>(index) < at.room[rank];
    const uint32_t ballot = __ballot_sync(ALL_LANES, goes);
    if (goes)
        at.places[warp_of_thread()][count + count_bits(ballot & ((1u << lane_of_thread()) - 1))] =
            at.rows[rank] + static_cast<uint64_t>(index) * args.row_bytes;
    return count + count_bits(ballot);
}

// The same of the rows of the rank's own experts, if the token has any; index: in the list of the rank itself.
// Numbers of experts are the handle's own, so that with other ranks' there are at most topk places, whatever a peer may
// have made of the record.
DEVICE uint32_t add_own_places(const ep_send_args &args, uint32_t token, int32_t index, uint32_t count, send_shared &at)
{
    if (index < 0)
        return count;
    const uint32_t topk = args.handle.topk, lane = lane_of_thread();
    const uint64_t record = static_cast<uint64_t>(args.group.rank) * args.group.tokens_max + index;
    const int32_t number = lane < topk ? args.handle.own_topk[static_cast<uint64_t>(token) * topk + lane] : -1;
    const bool is_own = number >= 0 && ep_rank_of(&args.group, number) == args.group.rank;
    const int32_t row = is_own ? args.handle.expert_row[record * topk + lane] : -1;
    const bool goes = row >= 0 && static_cast<uint32_t>(row) < args.own_rows;
    const uint32_t ballot = __ballot_sync(ALL_LANES, goes);
    if (goes)
        at.places[warp_of_thread()][count + count_bits(ballot & ((1u << lane) - 1))] =
            args.own + static_cast<uint64_t>(row) * args.row_bytes;
    return count + count_bits(ballot);
}

// The index of a token in the list of rank `from` + lane.
DEVICE int32_t load_index(const ep_send_args &args, uint32_t token, uint32_t from)
{
    const uint32_t rank = from + lane_of_thread();
    return token < args.tokens && rank < args.group.rank_count
               ? args.handle.send_index[static_cast<uint64_t>(token) * args.group.rank_count + rank]
               : -1;
}

// Reads each row once and stores it to all ranks that it goes to, with parts those of the launch's. Indices of a warp's
// next row are under way while it copies one.
DEVICE void send_rows(const ep_send_args &args, send_shared &at)
{
    const uint32_t warps = gridDim.x * WARPS, ranks = args.group.rank_count, me = args.group.rank;
    const bool by_expert = own_by_expert(args);
    const token_range own = tokens_of_launch(args.group, args.part, args.tokens);
    const row_parts cut = cut_rows(args.row_bytes, COPY_STEPS, own.end - own.first, warps);
    const uint32_t tasks = own.end * cut.parts;
    uint32_t task = own.first * cut.parts + warp_of_launch();
    int32_t low = load_index(args, task / cut.parts, 0), high = load_index(args, task / cut.parts, LANES);
    for (; task < tasks; task += warps) {
        const uint32_t token = task / cut.parts;
        uint32_t count = add_places(args, 0, low, 0, at);
        if (ranks > LANES)
            count = add_places(args, LANES, high, count, at);
        if (by_expert)
            count = add_own_places(args, token, __shfl_sync(ALL_LANES, me < LANES ? low : high, me % LANES), count, at);
        low = load_index(args, (task + warps) / cut.parts, 0);
        if (ranks > LANES)
            high = load_index(args, (task + warps) / cut.parts, LANES);
        __syncwarp();
        if (count > 0)
            copy_part(cut, task % cut.parts, args.rows + static_cast<uint64_t>(token) * args.row_bytes,
                      at.places[warp_of_thread()], count);
        __syncwarp();
    }
}

DEVICE void keep_weights(const ep_send_args &args, word_shares &shares)
{
    const uint32_t words = args.tokens * args.handle.topk;
    for (uint32_t x = shares.begin(words); x < words; x += gridDim.x * THREADS)
        args.handle.weights[x] = args.weights[x];
}

// For all threads. False: the group has failed.
DEVICE bool find_rooms(const ep_send_args &args, send_shared &at)
{
    const bool first = args.part == 0 || args.rows == nullptr;
    if (!args.group.low_latency && args.signal == EP_FLAG_DATA && first &&
        !wait_ranks(args.group, EP_FLAG_READY, at.call))
        return false;
    for (uint32_t rank = threadIdx.x; rank < args.group.rank_count; rank += THREADS) {
        at.count[rank] = args.handle.send_count[rank];
        if (args.rows != nullptr)
            find_room(args, rank, at);
    }
    return check_ranks(args.group, STRAIT_ERR_CORRUPT, at.call);
}

__global__ void __launch_bounds__(THREADS, 1) send_kernel(const __grid_constant__ ep_send_args args)
{
    extern __shared__ uint4 memory[];
    send_shared &at = *reinterpret_cast<send_shared *>(memory);
    const ep_group_view &group = args.group;
    open_call(group, args.handle, args.begin, at.call);
    if (at.call.failed == 0 && find_rooms(args, at)) {
        word_shares shares = {0};
        if (args.keep_weights)
            keep_weights(args, shares);
        for (uint32_t rank = 0; rank < group.rank_count && args.part == 0; rank++) {
            if (!takes_part(at.call, rank))
                continue;
            if (args.lists)
                send_lists(args, rank, at, shares);
            if (args.weights != nullptr)
                send_weights(args, rank, at, shares);
            if (args.scales != nullptr)
                send_scales(args, rank, at);
        }
        if (args.rows != nullptr && !(group.coded && args.keep_own)) // chunks are made later
            send_rows(args, at);
    }
    if (!is_last_block(group, at.call))
        return;
    if (args.begin)
        keep_epoch(group, args.handle, at.call);
    if (group.coded && args.rows != nullptr) // what hands over the chunks does the rest
        return;
    const bool by_parts = group.at.parts > 0 && args.signal == EP_FLAG_DATA;
    if (by_parts)
        tell_progress(group, args.part, at.call);
    if (!by_parts || args.part + 1 == group.at.parts)
        signal_ranks(group, args.signal, at.call);
}

// ---- Dispatch: from all ranks ---------------------------------------------------------------------------------------

// Records whose rows are to be given: places of each list from `first` on, at slots from `slot` on.
struct row_lists {
    record_lists lists;
    uint32_t first[STRAIT_EP_RANKS_MAX], slot[STRAIT_EP_RANKS_MAX];
};

struct receive_shared {
    call_state call;
    record_lists lists;
    row_lists rows;
    part_edges<1> edges;
    uint8_t *places[WARPS][STRAIT_EP_TOPK_MAX];
    uint32_t counters[COUNTER_WORDS];
};

// For all threads. LL: how many records have come from each rank. False: the group has failed.
DEVICE bool take_counts(const ep_receive_args &args, receive_shared &at)
{
    const ep_group_view &group = args.group;
    for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS) {
        const uint32_t *counts = ep_counts_of(&group, group.rank, at.call.epoch, rank);
        const uint32_t count = takes_part(at.call, rank) ? load_fresh(counts + group.rank) : 0;
        at.lists.count[rank] = count <= group.tokens_max ? count : 0;
        if (count > group.tokens_max)
            atomicOr(&at.call.ranks, 1ull << rank);
    }
    if (!check_ranks(group, STRAIT_ERR_CORRUPT, at.call))
        return false;
    add_bases(at.lists, group.rank_count);
    for (uint32_t rank = threadIdx.x; rank < group.rank_count && blockIdx.x == 0; rank += THREADS) {
        args.handle.recv_count[rank] = at.lists.count[rank];
        args.handle.recv_base[rank] = rank * group.tokens_max;
    }
    return true;
}

// For all threads. LL EXPERT_MAJOR: the rows of the block's records in the zones of their experts; a block counts what
// comes before them itself, so that blocks need not wait for each other. False: the group has failed.
DEVICE bool place_rows(const ep_receive_args &args, const record_range &range, receive_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t experts = group.local_experts, zone = group.rank_count * group.tokens_max;
    for (uint32_t expert = threadIdx.x; expert < experts; expert += THREADS)
        at.counters[expert] = expert * zone;
    __syncthreads();
    count_before(group, args.handle, at.lists, range.first, at.call, at.counters);
    __syncthreads();
    place_records(group, args.handle, at.lists, range, at.counters, zone, at.call);
    if (!check_ranks(group, STRAIT_ERR_CORRUPT, at.call))
        return false;
    int32_t *totals = args.handle.totals;
    if (blockIdx.x == gridDim.x - 1) { // nothing comes after its records
        for (uint32_t expert = threadIdx.x; expert < experts; expert += THREADS)
            totals[2 + expert] = static_cast<int32_t>(at.counters[expert] - expert * zone);
        if (threadIdx.x < 2)
            totals[threadIdx.x] = 0;
        for (uint32_t expert = threadIdx.x; expert < experts && args.expert_counts != nullptr; expert += THREADS)
            args.expert_counts[expert] = static_cast<int32_t>(at.counters[expert] - expert * zone);
    }
    return true;
}

// For all threads. Which records the block gives to the outputs, with their lists taken. False: the group has failed.
DEVICE bool take_records(const ep_receive_args &args, receive_shared &at, record_range &range)
{
    const ep_group_view &group = args.group;
    const bool low_latency = group.low_latency;
    if (!low_latency && static_cast<uint32_t>(args.handle.totals[1]) > args.row_count) {
        if (threadIdx.x == 0)
            fail(group, STRAIT_ERR_NO_SPACE, group.rank);
        return false;
    }
    if (low_latency && !take_counts(args, at))
        return false;
    if (!low_latency)
        load_lists(group, args.handle, at.call, at.lists);
    range = range_of_block(at.lists.base[group.rank_count]);
    for (uint32_t rank = threadIdx.x; rank < group.rank_count && blockIdx.x == 0; rank += THREADS)
        if (args.rank_counts != nullptr)
            args.rank_counts[rank] = static_cast<int32_t>(at.lists.count[rank]);
    if (!low_latency)
        return true;
    take_numbers(group, args.handle, at.lists, range, at.call, nullptr);
    if (!check_ranks(group, STRAIT_ERR_CORRUPT, at.call))
        return false;
    return args.handle.layout != STRAIT_EP_EXPERT_MAJOR || place_rows(args, range, at);
}

// A record that came: its slot, which is its row in outputs that are not by expert.
struct arrival {
    uint64_t record, slot;
    uint32_t rank;
};

DEVICE arrival arrival_of(const ep_receive_args &args, const record_lists &lists, uint32_t i)
{
    const record_place place = find_record(lists, args.group.rank_count, i);
    const uint64_t record = record_of(args.group, place);
    return {record, args.group.low_latency ? record : i, place.rank};
}

// Where the row of a record is. Null: nowhere.
DEVICE const uint8_t *came_row(const ep_receive_args &args, const arrival &is, uint64_t epoch)
{
    const uint32_t me = args.group.rank;
    if (is.rank != me || args.own == nullptr)
        return row_of(args.group, epoch, args.row_bytes, is.rank, is.slot);
    return is.record - static_cast<uint64_t>(me) * args.group.tokens_max < args.handle.send_count[me]
               ? args.own + static_cast<uint64_t>(args.handle.send_token[is.record]) * args.row_bytes
               : nullptr;
}

// A part of a record's row to its places in the output.
DEVICE void give_row(const ep_receive_args &args, const arrival &is, const row_parts &cut, uint32_t part,
                     receive_shared &at)
{
    const uint32_t topk = args.handle.topk, lane = lane_of_thread();
    uint8_t **const places = at.places[warp_of_thread()];
    const uint8_t *const from = came_row(args, is, at.call.epoch);
    int64_t row = lane == 0 && from != nullptr ? static_cast<int64_t>(is.slot) : -1;
    if (args.handle.layout == STRAIT_EP_EXPERT_MAJOR)
        row = lane < topk && from != nullptr ? args.handle.expert_row[is.record * topk + lane] : -1;
    const uint32_t ballot = __ballot_sync(ALL_LANES, row >= 0);
    if (row >= 0)
        places[count_bits(ballot & ((1u << lane) - 1))] = args.rows + static_cast<uint64_t>(row) * args.row_bytes;
    __syncwarp();
    if (ballot != 0)
        copy_part(cut, part, from, places, count_bits(ballot));
    __syncwarp();
}

// For all threads: which rows are to be given, with parts those of the launch's. Some are in the outputs already: the
// rank's own, and what was decoded to there.
DEVICE void find_rows(const ep_receive_args &args, receive_shared &at)
{
    const ep_group_view &group = args.group;
    const bool by_parts = rows_by_parts(group), by_expert = args.handle.layout == STRAIT_EP_EXPERT_MAJOR;
    if (by_parts)
        find_edges(group, args.handle, false, args.part, args.part + 1, at.edges);
    for (uint32_t rank = threadIdx.x; rank < group.rank_count; rank += THREADS) {
        const part_places places =
            by_parts ? places_of(group, at.edges, rank, args.part) : part_places{0, at.lists.count[rank]};
        const bool given = rank == group.rank ? args.own_given : group.coded && !by_expert;
        at.rows.lists.count[rank] = given ? 0 : places.count;
        at.rows.first[rank] = places.first;
        at.rows.slot[rank] = (group.low_latency ? rank * group.tokens_max : args.handle.recv_base[rank]) + places.first;
    }
    __syncthreads();
    add_bases(at.rows.lists, group.rank_count);
}

// By all warps of the launch; LL EXPERT_MAJOR by those of the block that knows the rows of a record.
DEVICE void give_rows(const ep_receive_args &args, const record_range &range, receive_shared &at)
{
    const bool in_block = args.group.low_latency && args.handle.layout == STRAIT_EP_EXPERT_MAJOR;
    const uint32_t begin = in_block ? range.first : 0;
    const uint32_t records = in_block ? range.end - begin : at.rows.lists.base[args.group.rank_count];
    const uint32_t warps = in_block ? WARPS : gridDim.x * WARPS;
    const row_parts cut = cut_rows(args.row_bytes, COPY_STEPS, records, warps);
    for (uint32_t task = in_block ? warp_of_thread() : warp_of_launch(); task < records * cut.parts; task += warps) {
        record_place place = find_record(at.rows.lists, args.group.rank_count, begin + task / cut.parts);
        const uint64_t slot = static_cast<uint64_t>(at.rows.slot[place.rank]) + place.j;
        place.j += at.rows.first[place.rank];
        give_row(args, {record_of(args.group, place), slot, place.rank}, cut, task % cut.parts, at);
    }
}

DEVICE void give_scale_row(const ep_receive_args &args, const uint32_t *from, uint64_t row)
{
    const uint32_t words = args.scale_bytes / 4;
    uint32_t *to = reinterpret_cast<uint32_t *>(args.scales) + row * words;
    for (uint32_t i = lane_of_thread(); i < words; i += LANES)
        to[i] = load_fresh(from + i);
}

DEVICE void give_scales(const ep_receive_args &args, const record_range &range, receive_shared &at)
{
    const uint32_t topk = args.handle.topk;
    for (uint32_t i = range.first + warp_of_thread(); i < range.end; i += WARPS) {
        const arrival is = arrival_of(args, at.lists, i);
        const uint32_t *from = reinterpret_cast<const uint32_t *>(
            ep_scales_of(&args.group, args.group.rank, at.call.epoch, args.scale_bytes, is.slot));
        if (args.handle.layout != STRAIT_EP_EXPERT_MAJOR) {
            give_scale_row(args, from, is.slot);
            continue;
        }
        for (uint32_t k = 0; k < topk; k++) {
            const int32_t row = args.handle.expert_row[is.record * topk + k];
            if (row >= 0)
                give_scale_row(args, from, static_cast<uint64_t>(row));
        }
    }
}

// Weights and numbers of experts.
DEVICE void give_words(const ep_receive_args &args, const record_range &range, receive_shared &at)
{
    const ep_group_view &group = args.group;
    const uint32_t topk = args.handle.topk;
    const bool by_expert = args.handle.layout == STRAIT_EP_EXPERT_MAJOR;
    const int32_t first = args.global_ids ? static_cast<int32_t>(group.rank * group.local_experts) : 0;
    for (uint32_t x = threadIdx.x; x < (range.end - range.first) * topk; x += THREADS) {
        const uint32_t k = x % topk;
        const arrival is = arrival_of(args, at.lists, range.first + x / topk);
        const int32_t number = args.handle.numbers[is.record * (topk + 1) + k];
        const int64_t place = by_expert ? static_cast<int64_t>(args.handle.expert_row[is.record * topk + k])
                                        : static_cast<int64_t>(is.slot * topk + k);
        if (place < 0)
            continue;
        if (args.weights != nullptr)
            args.weights[place] =
                number >= 0 ? load_fresh(ep_weights_of(&group, group.rank, at.call.epoch, topk, is.slot) + k) : 0.0f;
        if (args.topk != nullptr && !by_expert) {
            const int32_t shown = number >= 0 ? first + number : -1;
            if (args.wide_ids)
                static_cast<int64_t *>(args.topk)[place] = shown;
            else
                static_cast<int32_t *>(args.topk)[place] = shown;
        }
    }
}

// What there is besides rows.
DEVICE void give_others(const ep_receive_args &args, const record_range &range, receive_shared &at)
{
    if (args.scales != nullptr)
        give_scales(args, range, at);
    if (args.weights != nullptr || args.topk != nullptr)
        give_words(args, range, at);
}

__global__ void __launch_bounds__(THREADS, 1) receive_kernel(const __grid_constant__ ep_receive_args args)
{
    extern __shared__ uint4 memory[];
    receive_shared &at = *reinterpret_cast<receive_shared *>(memory);
    const ep_group_view &group = args.group;
    const bool by_parts = rows_by_parts(group);
    record_range range;
    open_call(group, args.handle, false, at.call);
    if (at.call.failed == 0 &&
        (by_parts ? wait_part(group, args.part, at.call) : wait_ranks(group, EP_FLAG_DATA, at.call)) &&
        take_records(args, at, range) && check_decoded(group, at.call)) {
        if (args.rows != nullptr) {
            find_rows(args, at);
            give_rows(args, range, at);
        }
        if (!by_parts || args.part + 1 == group.at.parts)
            give_others(args, range, at);
    }
    leave(group);
}

// ---- LL combine: rows back to the ranks of their tokens -------------------------------------------------------------

struct send_back_shared {
    call_state call;
    record_lists lists;
};

// A part of the row of a record, EXPERT_MAJOR of its expert k, if that is here.
DEVICE void send_row_back(const ep_send_back_args &args, const row_parts &cut, uint32_t part, const record_place &place,
                          uint32_t k, const call_state &call)
{
    const ep_group_view &group = args.group;
    const uint32_t topk = args.handle.topk;
    const uint64_t record = record_of(group, place);
    uint64_t row = record, slot = static_cast<uint64_t>(group.rank) * group.tokens_max + place.j;
    if (args.handle.layout == STRAIT_EP_EXPERT_MAJOR) {
        const int32_t expert_row = args.handle.expert_row[record * topk + k];
        slot = static_cast<uint64_t>(args.handle.numbers[record * (topk + 1) + topk]) * topk + k;
        if (expert_row < 0)
            return;
        row = static_cast<uint64_t>(expert_row);
    }
    uint8_t *const to = place.rank == group.rank ? own_row(group, call.epoch, args.row_bytes, slot)
                                                 : ep_rows_of(&group, place.rank, call.epoch, args.row_bytes, slot);
    copy_part(cut, part, args.rows + row * args.row_bytes, &to, 1);
}

__global__ void __launch_bounds__(THREADS, 1) send_back_kernel(const __grid_constant__ ep_send_back_args args)
{
    extern __shared__ uint4 memory[];
    send_back_shared &at = *reinterpret_cast<send_back_shared *>(memory);
    const ep_group_view &group = args.group;
    open_call(group, args.handle, true, at.call);
    if (at.call.failed == 0) {
        load_lists(group, args.handle, at.call, at.lists);
        select_lists(group, at.lists, !args.keep_own, !group.coded);
        const uint32_t each = args.handle.layout == STRAIT_EP_EXPERT_MAJOR ? args.handle.topk : 1;
        const uint32_t warps = gridDim.x * WARPS, rows = at.lists.base[group.rank_count] * each;
        const row_parts cut = cut_rows(args.row_bytes, COPY_STEPS, rows, warps);
        for (uint32_t task = warp_of_launch(); task < rows * cut.parts; task += warps) {
            const uint32_t row = task / cut.parts;
            send_row_back(args, cut, task % cut.parts, find_record(at.lists, group.rank_count, row / each), row % each,
                          at.call);
        }
    }
    if (!is_last_block(group, at.call))
        return;
    keep_epoch(group, args.handle, at.call);
    if (!group.coded)
        signal_ranks(group, EP_FLAG_DATA, at.call);
}

} // namespace
} // namespace strait

cudaError_t ep_cuda_send(const struct ep_send_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    return strait::launch<ep_send_args, strait::send_shared>(reinterpret_cast<const void *>(strait::send_kernel), *args,
                                                             strait::blocks_of(args->group, multiprocessors), stream);
}

cudaError_t ep_cuda_receive(const struct ep_receive_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    return strait::launch<ep_receive_args, strait::receive_shared>(
        reinterpret_cast<const void *>(strait::receive_kernel), *args, strait::blocks_of(args->group, multiprocessors),
        stream);
}

cudaError_t ep_cuda_send_back(const struct ep_send_back_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    return strait::launch<ep_send_back_args, strait::send_back_shared>(
        reinterpret_cast<const void *>(strait::send_back_kernel), *args,
        strait::blocks_of(args->group, multiprocessors), stream);
}

cudaError_t ep_cuda_load_move(void)
{
    const void *const kernels[] = {reinterpret_cast<const void *>(strait::send_kernel),
                                   reinterpret_cast<const void *>(strait::receive_kernel),
                                   reinterpret_cast<const void *>(strait::send_back_kernel)};
    return strait::load(kernels);
}
