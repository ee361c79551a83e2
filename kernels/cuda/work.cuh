// Work queue of a launch (tickets, segments, block results), page addressing, loads of blocks to shared memory, and
// chunk results: code that both kernels share.
#ifndef STRAIT_KERNELS_CUDA_WORK_CUH
#define STRAIT_KERNELS_CUDA_WORK_CUH

#include "kernels/cuda/launch.cuh"

namespace strait
{

template <class LAUNCH> DEVICE const segment &get_segment(const LAUNCH &launch, uint32_t index)
{
    return reinterpret_cast<const segment *>(launch.bytes + launch.head.segments_at)[index];
}

template <class ITEM, class LAUNCH> DEVICE const ITEM &get_item(const LAUNCH &launch, uint32_t index)
{
    return reinterpret_cast<const ITEM *>(launch.bytes + launch.head.items_at)[index];
}

template <class LAUNCH> DEVICE region get_region(const LAUNCH &launch, uint32_t index)
{
    if (launch.head.scratch_regions != nullptr)
        return launch.head.scratch_regions[index];
    return reinterpret_cast<const region *>(launch.bytes + launch.head.regions_at)[index];
}

// The tag of this launch's words in scratch.
template <class LAUNCH> DEVICE uint64_t launch_tag(const LAUNCH &launch)
{
    return (load_relaxed(&launch.head.scratch->launch) + 1) << TAG_SHIFT;
}

// Publishes the result of a block: its word (a size or a result word), tagged, and its sum.
template <class LAUNCH>
DEVICE void store_block_result(const LAUNCH &launch, uint64_t tag, uint32_t slot, uint32_t word, uint64_t sum)
{
    store_relaxed_both(launch.head.planes[PLANE_RESULTS] + 2ull * slot, tag | word, sum);
}

// Result of a block, valid once its word carries the tag of the launch.
struct block_result {
    uint64_t word, sum;
};

template <class LAUNCH> DEVICE block_result load_block_result(const LAUNCH &launch, uint32_t slot)
{
    uint64_t v[2];
    load_relaxed_both(launch.head.planes[PLANE_RESULTS] + 2ull * slot, v);
    return {v[0], v[1]};
}

// Waits for the result of a block, whose data may still be in flight. `result`: the outcome of the last load.
template <class LAUNCH>
DEVICE uint32_t wait_block_result(const LAUNCH &launch, uint64_t tag, uint32_t slot, block_result &result)
{
    while ((result.word & ~TAG_MASK) != tag) {
        __nanosleep(20);
        result = load_block_result(launch, slot);
    }
    return static_cast<uint32_t>(result.word & TAG_MASK);
}

// Lane 0 draws consecutive tickets; show_ticket waits for the first and gives it to all lanes.
template <class LAUNCH> DEVICE uint32_t draw_tickets(const LAUNCH &launch, uint32_t count, uint32_t lane)
{
    return lane == 0 ? count_relaxed(&launch.head.scratch->tickets, count) : 0;
}

DEVICE uint32_t show_ticket(uint32_t drawn)
{
    return __shfl_sync(ALL_LANES, drawn, 0);
}

// Position in the list of segments. The tickets of a team only increase.
struct segment_cursor {
    uint32_t index, first, end, item, type;
};

template <class LAUNCH> DEVICE void cursor_init(const LAUNCH &launch, segment_cursor &at)
{
    at = {0, 0, 0, 0, 0};
    at.index = 0xffffffffu;
    at.end = get_segment(launch, 0).first_ticket;
}

// The list ends with a sentinel that begins past all tickets.
template <class LAUNCH> DEVICE void cursor_seek(const LAUNCH &launch, segment_cursor &at, uint32_t ticket)
{
    while (ticket >= at.end) {
        at.index++;
        const segment &now = get_segment(launch, at.index);
        at.first = now.first_ticket;
        at.item = now.work >> 2;
        at.type = now.work & 3;
        at.end = get_segment(launch, at.index + 1).first_ticket;
    }
}

// Position of a block: page of the list, block of the page, region of the item.
struct block_position {
    uint32_t page, block, region;
};

// The last region whose first block has a number of at most k.
template <class LAUNCH, class ITEM> DEVICE uint32_t find_region(const LAUNCH &launch, const ITEM &item, uint32_t k)
{
    uint32_t low = 0, high = item.region_count - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        bool before =
            static_cast<uint64_t>(get_region(launch, item.first_region + middle).blocks_before) * item.id_count <= k;
        low = before ? middle : low;
        high = before ? high : middle - 1;
    }
    return low;
}

// Block k of the item.
template <class LAUNCH, class ITEM> DEVICE block_position find_block(const LAUNCH &launch, const ITEM &item, uint32_t k)
{
    block_position at;
    uint32_t per_page = item.blocks_per_page;
    if (per_page != 0) {
        at.page = k / per_page;
        at.block = k - at.page * per_page;
        at.region = at.page / item.id_count;
        return at;
    }
    at.region = find_region(launch, item, k);
    region r = get_region(launch, item.first_region + at.region);
    per_page = blocks_of(r.page_bytes);
    k -= r.blocks_before * item.id_count;
    at.page = k / per_page;
    at.block = k - at.page * per_page;
    at.page += at.region * item.id_count;
    return at;
}

// The number, in the item, of a page's block 0.
template <class LAUNCH, class ITEM>
DEVICE uint32_t first_block_of(const LAUNCH &launch, const ITEM &item, uint32_t page)
{
    if (item.blocks_per_page != 0)
        return page * item.blocks_per_page;
    uint32_t index = page / item.id_count;
    region r = get_region(launch, item.first_region + index);
    return r.blocks_before * item.id_count + (page - index * item.id_count) * blocks_of(r.page_bytes);
}

// Blocks that a team has finished but not yet counted for their chunks; lane i holds the chunk of the i-th. Data of a
// block must have arrived before it is counted, and while all teams write, that fence takes many times as long as a
// block. It is paid once for many blocks.
struct done_list {
    static constexpr uint32_t MOST = 16;
    uint32_t count, item;

    DEVICE bool is_full() const
    {
        return count == MOST;
    }

    DEVICE void add(uint32_t of, uint32_t lane)
    {
        item = lane == count ? of : item;
        count++;
    }

    template <class LAUNCH> DEVICE void flush(const LAUNCH &launch, uint32_t lane)
    {
        __syncwarp();
        if (lane < count)
            count_release(&launch.head.items[item].blocks_done, 1);
        count = 0;
    }
};

// Up to this many tickets a team, a launch triggers its dependent launch at once; in a longer launch that costs more
// than it gains.
constexpr uint32_t FEW_TICKETS = 16; // per team

template <class LAUNCH> DEVICE bool is_short(const LAUNCH &launch, uint32_t teams)
{
    return launch.head.tickets <= FEW_TICKETS * teams;
}

// The last team to exit resets the scratch for the next launch. For all lanes of its fetch warp.
template <class LAUNCH> DEVICE void end_team(const LAUNCH &launch, uint32_t lane, uint32_t teams)
{
    control *scratch = launch.head.scratch;
    __syncwarp();
    if (lane == 0 && atomicAdd(&scratch->teams, 1u) == teams - 1) {
        scratch->tickets = 0;
        scratch->teams = 0;
        scratch->launch++;
    }
}

// ---- Pages ----------------------------------------------------------------------------------------------------------

// Where the piece of that number begins in its page.
DEVICE uint64_t piece_offset(const region &r, uint32_t number)
{
    if (r.columns == 1)
        return number * r.row_stride;
    const uint32_t columns = r.columns, row = number / columns;
    return row * r.row_stride + static_cast<uint64_t>(number - row * columns) * r.column_stride;
}

// Address of byte `offset` of a page, and how many bytes from there on are contiguous, at most `left`.
DEVICE uint8_t *page_piece(const region &r, uint8_t *page, uint32_t offset, uint32_t left, uint32_t *piece)
{
    if (r.shape & SHAPE_WHOLE) {
        *piece = left;
        return page + offset;
    }
    const uint32_t number = offset / r.piece_bytes, inside = offset - number * r.piece_bytes,
                   rest = r.piece_bytes - inside;
    *piece = rest < left ? rest : left;
    return page + piece_offset(r, number) + inside;
}

// ---- Blocks of pages to shared memory: one bulk copy, one per piece, or by the lanes of a warp
// -----------------------

// Whether bulk copies can bring `bytes` bytes from `offset` of a page.
DEVICE bool can_bulk(const region &r, uint32_t bytes)
{
    bool whole = r.shape & SHAPE_WHOLE;
    return (r.shape & SHAPE_WIDTH) == 4 && bytes % 16 == 0 && (whole || r.piece_bytes % 16 == 0);
}

// All lanes: the copies that can_bulk allows. Their bytes have already been announced to the barrier.
DEVICE void bulk_gather(const region &r, uint8_t *page, uint32_t offset, uint32_t bytes, uint8_t *dst,
                        uint64_t *barrier, uint32_t lane)
{
    if (r.shape & SHAPE_WHOLE) {
        if (lane == 0)
            bulk_load(dst, page + offset, bytes, barrier);
        return;
    }
    const uint32_t first = offset / r.piece_bytes, last = (offset + bytes - 1) / r.piece_bytes;
    for (uint32_t number = first + lane; number <= last; number += 32) {
        uint32_t begin = number * r.piece_bytes, end = begin + r.piece_bytes;
        uint32_t from = begin < offset ? offset : begin, to = end > offset + bytes ? offset + bytes : end;
        bulk_load(dst + (from - offset), page + piece_offset(r, number) + (from - begin), to - from, barrier);
    }
}

// All lanes: what bulk_gather does, before 9.0. arrive_loaded must follow, and all lanes have the same bytes.
DEVICE void lane_gather(const region &r, uint8_t *page, uint32_t offset, uint32_t bytes, uint8_t *dst, uint32_t lane)
{
    uint32_t piece;
#pragma unroll 1
    for (uint32_t at = 16 * lane; at < bytes; at += 16 * 32)
        lane_load(dst + at, page_piece(r, page, offset + at, 16, &piece));
}

// All lanes: loads bytes that follow each other, as lane_gather does.
DEVICE void lane_loads(void *dst, const void *src, uint32_t bytes, uint32_t lane)
{
#pragma unroll 1
    for (uint32_t at = 16 * lane; at < bytes; at += 16 * 32)
        lane_load(static_cast<uint8_t *>(dst) + at, static_cast<const uint8_t *>(src) + at);
}

// All lanes: copies elements of a type to which addresses and rows are aligned.
template <class T>
DEVICE void copy_elements(const region &r, uint8_t *page, uint32_t offset, uint32_t bytes, uint8_t *dst, uint32_t lane)
{
    const uint32_t count = bytes / sizeof(T);
    uint32_t piece;
#pragma unroll 4
    for (uint32_t i = lane; i < count; i += 32)
        *reinterpret_cast<T *>(dst + i * sizeof(T)) =
            *reinterpret_cast<const T *>(page_piece(r, page, offset + i * sizeof(T), sizeof(T), &piece));
#pragma unroll 1
    for (uint32_t i = count * sizeof(T) + lane; i < bytes; i += 32)
        dst[i] = *page_piece(r, page, offset + i, 1, &piece);
}

// All lanes: gathers any block and pads it with zeroes to a multiple of 16 bytes.
DEVICE void plain_gather(const region &r, uint8_t *page, uint32_t offset, uint32_t bytes, uint8_t *dst, uint32_t lane)
{
    const uint32_t width = r.shape & SHAPE_WIDTH;
    if (width == 0)
        copy_elements<uint8_t>(r, page, offset, bytes, dst, lane);
    else if (width < 3)
        copy_elements<uint16_t>(r, page, offset, bytes, dst, lane);
    else
        copy_elements<uint64_t>(r, page, offset, bytes, dst, lane);
    if (bytes % 16 != 0 && lane < 16 - bytes % 16)
        dst[bytes + lane] = 0;
    fence_bulk(); // the stage may be the source of a bulk store
}

// ---- Chunk results: waiting for blocks, statistics, the record -----------------------------------------------------

DEVICE void wait_for_blocks(const progress &chunk, uint32_t count, uint32_t lane)
{
    if (lane == 0) {
        while (load_relaxed(&chunk.blocks_done) < count)
            __nanosleep(20);
        fence_acquire();
    }
    __syncwarp();
}

// Statistics of pages: values by mode, escapes, table, failures.
struct page_stats {
    uint32_t values[STRAIT_BLOCK_MODES];
    uint32_t escapes, table, failed;

    DEVICE void add(uint32_t mode, uint32_t count, uint32_t more_escapes)
    {
#pragma unroll
        for (uint32_t m = 0; m < STRAIT_BLOCK_MODES; m++)
            values[m] += m == mode ? count : 0;
        escapes += more_escapes;
    }

    DEVICE void merge(const page_stats &other)
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
DEVICE void count_classes(const LAUNCH &launch, const page_stats &stats, bool present, uint32_t lane)
{
    if (launch.head.class_stats == nullptr)
        return;
    present = present && !stats.failed && stats.table < launch.head.class_count;
    uint32_t left = __ballot_sync(ALL_LANES, present);
    while (left != 0) {
        const uint32_t leader = __ffs(left) - 1, table = __shfl_sync(ALL_LANES, stats.table, leader);
        const bool same = present && stats.table == table;
        const uint64_t values = warp_sum(same ? stats.coded() : 0), escapes = warp_sum(same ? stats.escapes : 0);
        if (lane == leader) {
            add_u64(&launch.head.class_stats[table].values, values);
            add_u64(&launch.head.class_stats[table].escapes, escapes);
        }
        left &= ~__ballot_sync(ALL_LANES, same);
    }
}

// All lanes: adds the statistics of all lanes to the chunk.
DEVICE void add_page_stats(progress &chunk, const page_stats &stats, uint32_t lane)
{
#pragma unroll
    for (uint32_t m = 0; m < STRAIT_BLOCK_MODES; m++) {
        const uint64_t values = warp_sum(stats.values[m]);
        if (lane == m)
            add_u64(&chunk.values[m], values);
    }
    const uint32_t failed = __reduce_add_sync(ALL_LANES, stats.failed);
    if (lane == 0 && failed != 0)
        atomicAdd(&chunk.failed_pages, failed);
    __syncwarp();
}

// All lanes: whether this part was the last of `parts` of the chunk; if so, the sums of all parts are visible.
DEVICE bool is_last_part(progress &chunk, uint32_t parts, uint32_t lane)
{
    __syncwarp();
    const uint32_t before = lane == 0 ? count_acq_rel(&chunk.closed) : 0;
    __syncwarp();
    return __shfl_sync(ALL_LANES, before, 0) == parts - 1;
}

// All lanes, once all blocks are counted: writes the record, lane m the values of mode m, then its status. All data of
// the chunk is written before the status, so a reader of the status sees all of it.
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
