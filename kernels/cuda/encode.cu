// Encode kernel, one launch for many chunks: the warps of the pipeline in encode_team.cuh. Workers do code_block of the
// modes.
#include "kernels/cuda/mode_fp8_encode.cuh"
#include "kernels/cuda/mode_parts_encode.cuh"
#include "kernels/cuda/mode_tiered.cuh"
#include "kernels/cuda/mode_top16.cuh"
#include "kernels/cuda/mode_typed_encode.cuh"

namespace strait
{

// ---- Scan warp -----------------------------------------------------------------------------------------------------

// Turns sizes into offsets: an ordered scan whose state stays in local scratch. It takes as many consecutive blocks at
// once as have published their sizes, so that it keeps ahead of all teams together.
constexpr uint32_t SCAN_EACH = SCAN_WIDTH / 32; // sizes per lane

template <class LAUNCH> DEVICE void scan_offsets(const LAUNCH &launch, uint64_t tag)
{
    const uint32_t lane = threadIdx.x % 32, slots = launch.head.slots;
    const uint64_t *sizes = launch.head.planes[PLANE_SIZES];
    uint64_t *offsets = launch.head.planes[PLANE_OFFSETS];
    uint32_t base = 0, start = 0; // first block of the step, a multiple of SCAN_EACH; units of the blocks before it
    while (base < slots) {
        uint64_t size[SCAN_EACH];
        uint32_t before[SCAN_EACH], known = 0, sum = 0;
#pragma unroll
        for (uint32_t j = 0; j < SCAN_EACH; j += 2)
            load_relaxed_pair(sizes + base + lane * SCAN_EACH + j, size + j);
        // The lane's own sizes, up to the first that has not been published. There are none past the last block.
        bool open = true;
#pragma unroll
        for (uint32_t j = 0; j < SCAN_EACH; j++) {
            open = open && (size[j] & ~TAG_MASK) == tag && base + lane * SCAN_EACH + j < slots;
            before[j] = sum;
            sum += open ? size_units(static_cast<uint32_t>(size[j])) : 0;
            known += open;
        }
        // Stores the offsets of the lanes up to the first one that lacks a size.
        const uint32_t complete = __ballot_sync(ALL_LANES, known == SCAN_EACH);
        const uint32_t first = complete == ALL_LANES ? 32 : lowest_bit(~complete);
        const uint32_t scan = warp_scan(sum), mine = start + scan - sum;
        if (lane <= first) {
#pragma unroll
            for (uint32_t j = 0; j < SCAN_EACH; j++)
                if (j < known)
                    store_relaxed(offsets + base + lane * SCAN_EACH + j, tag | ((mine + before[j]) & TAG_MASK));
        }
        const uint32_t partly = first < 32 ? __shfl_sync(ALL_LANES, known, first) : 0;
        if (base + first * SCAN_EACH + partly >= slots)
            break;
        start += first > 0 ? __shfl_sync(ALL_LANES, scan, first - 1) : 0;
        base += first * SCAN_EACH;
    }
}

// ---- Closing a chunk -----------------------------------------------------------------------------------------------

// Fetch warps write the metadata of a chunk in parts, a ticket for each. The last part writes the header and, once all
// blocks have arrived, the result.

// Chunk that is being closed, and the offset of its first block.
struct chunk_close {
    uint64_t tag;
    uint32_t first_offset;
};

// Offset of a block in its chunk, in units; waits for the scan warp.
template <class LAUNCH>
DEVICE uint32_t find_offset(const LAUNCH &launch, const encode_item &item, const chunk_close &end, uint32_t slot)
{
    return item.metadata_units + ((wait_offset(launch, end.tag, slot) - end.first_offset) & TAG_MASK);
}

// TYPED: blocks may have typed modes, whose forms also say how statistics count them.
template <bool TYPED, class LAUNCH> DEVICE uint32_t mode_of(const LAUNCH &launch, uint32_t size)
{
    return TYPED ? form_mode(size_form(size), launch.head.mode) : size_form(size);
}

// Makes the entry of a page, and its statistics.
template <bool TYPED, class LAUNCH>
DEVICE void make_entry(const LAUNCH &launch, const encode_item &item, const chunk_close &end, uint32_t page,
                       uint32_t w[4], page_stats &stats)
{
    const region r = get_region(launch, item.first_region + page / item.id_count);
    const uint32_t slot = item.first_slot + first_block_of(launch, item, page), blocks = blocks_of(r.page_bytes);
    block_result result = load_block_result(launch, slot);
    const uint32_t start = find_offset(launch, item, end, slot);
    uint64_t sum = sum_seed(r.page_bytes, page, r.table);
    uint32_t mode = 0;
    stats.table = r.table;
#pragma unroll 1
    for (uint32_t b = 0; b < blocks && !stats.failed; b++) {
        const uint32_t size = wait_block_result(launch, end.tag, slot + b, result);
        mode = b == 0 ? mode_of<TYPED>(launch, size) : mode;
        stats.failed = size_form(size) == BAD_PAGE;
        sum += result.sum;
        if (!stats.failed)
            stats.add(TYPED ? form_stats_mode(size_form(size)) : size_form(size), block_bytes(r.page_bytes, b) / 2,
                      size_escapes(size));
        if (b + 1 < blocks)
            result = load_block_result(launch, slot + b + 1);
    }
    w[0] = start << 4 | mode;
    w[1] = r.table;
    w[2] = static_cast<uint32_t>(sum);
    w[3] = static_cast<uint32_t>(sum >> 32);
}

// A word of the metadata past the entries: a page's length, a block's row, or padding.
template <bool TYPED, class LAUNCH>
DEVICE uint32_t make_metadata_word(const LAUNCH &launch, const encode_item &item, const chunk_close &end,
                                   uint64_t offset)
{
    const uint64_t rows = rows_offset(item.page_count, item.has_lengths);
    if (offset < rows) {
        uint32_t page = static_cast<uint32_t>(offset - rows_offset(item.page_count, false)) / 4;
        return get_region(launch, item.first_region + page / item.id_count).page_bytes;
    }
    const uint64_t number = (offset - rows) / 4;
    if (number >= static_cast<uint64_t>(item.page_count) * item.rows_per_page)
        return 0;
    const uint32_t page = static_cast<uint32_t>(number / item.rows_per_page);
    const uint32_t b = static_cast<uint32_t>(number % item.rows_per_page) + 1;
    if (b >= blocks_of(get_region(launch, item.first_region + page / item.id_count).page_bytes))
        return 0;
    const uint32_t slot = item.first_slot + first_block_of(launch, item, page) + b;
    block_result result = load_block_result(launch, slot);
    return find_offset(launch, item, end, slot) << 4 |
           mode_of<TYPED>(launch, wait_block_result(launch, end.tag, slot, result));
}

// All lanes: writes the header, its three vectors by a lane each. Returns the bytes of the chunk.
template <class LAUNCH>
DEVICE uint32_t write_header(const LAUNCH &launch, const encode_item &item, const chunk_close &end, uint64_t sum,
                             uint32_t lane)
{
    const uint32_t last = item.first_slot + item.block_count - 1;
    const uint32_t *id = reinterpret_cast<const uint32_t *>(launch.head.codebook_id);
    block_result result = load_block_result(launch, last);
    const uint32_t start = find_offset(launch, item, end, last);
    const uint32_t bytes = (start + size_units(wait_block_result(launch, end.tag, last, result))) * UNIT;
    uint32_t w[4] = {'S' | 'T' << 8 | 'R' << 16 | static_cast<uint32_t>('C') << 24,
                     FORMAT_VERSION | static_cast<uint32_t>(launch.head.element) << 8 |
                         (item.has_lengths ? 1u << 16 : 0),
                     item.page_count, item.page_bytes};
    if (lane == 1)
        w[0] = bytes, w[1] = 0, w[2] = id[0], w[3] = id[1];
    else if (lane == 2)
        w[0] = id[2], w[1] = id[3], w[2] = w[3] = 0; // its own sum counts as zero
    sum += warp_sum(lane < 3 ? sum_of_vector(w, lane) : 0) +
           sum_seed(static_cast<uint64_t>(item.metadata_units) * UNIT, 0xffffffffu, 65535);
    if (lane == 2)
        w[2] = static_cast<uint32_t>(sum), w[3] = static_cast<uint32_t>(sum >> 32);
    if (lane < 3)
        reinterpret_cast<uint4 *>(item.dst)[lane] = make_uint4(w[0], w[1], w[2], w[3]);
    return bytes;
}

// All lanes, after all parts of the metadata: does as much as possible before the blocks of the chunk have arrived,
// then writes the result.
template <class LAUNCH>
DEVICE void finish_chunk(const LAUNCH &launch, uint32_t item_index, const chunk_close &end, uint32_t lane)
{
    const encode_item &item = get_item<encode_item>(launch, item_index);
    progress &chunk = launch.head.items[item_index];
    strait_result result = {};
    uint64_t values = 0;
    const uint64_t sum = load_relaxed(&chunk.sum);
    result.failed_pages = load_relaxed(&chunk.failed_pages);
    if (result.failed_pages != 0) {
        result.status = STRAIT_ERR_PAGE_ID;
    } else {
        values = lane < STRAIT_BLOCK_MODES ? load_relaxed(&chunk.values[lane]) : 0;
        result.bytes = write_header(launch, item, end, sum, lane);
    }
    wait_for_blocks(chunk, item.block_count, lane);
    write_result(item.result, result, values, lane);
    if (lane == 0 && item.flag != nullptr && result.status == STRAIT_OK)
        store_release_system(item.flag, item.flag_value);
    clear_progress(chunk, lane);
}

template <class LAUNCH> DEVICE chunk_close start_close(const LAUNCH &launch, uint32_t item_index, uint64_t tag)
{
    return {tag, wait_offset(launch, tag, get_item<encode_item>(launch, item_index).first_slot)};
}

// All lanes: writes one part of the metadata from the results of blocks, which may still be in flight. True for the
// last part.
template <bool TYPED, class LAUNCH>
DEVICE bool close_part(const LAUNCH &launch, uint32_t item_index, uint32_t part, const chunk_close &end, uint32_t lane)
{
    const encode_item &item = get_item<encode_item>(launch, item_index);
    progress &chunk = launch.head.items[item_index];
    uint64_t sum = 0;
    page_stats all = {};
#pragma unroll 1
    for (uint32_t i = 0; i < item.close_part_size; i += 32) {
        const uint32_t unit = part * item.close_part_size + i + lane;
        const bool is_entry = unit >= ENTRY_UNITS_BEFORE && unit - ENTRY_UNITS_BEFORE < item.page_count;
        page_stats stats = {};
        if (unit >= ENTRY_UNITS_BEFORE && unit < item.metadata_units) {
            uint32_t w[4];
            if (is_entry) {
                const uint32_t page = unit - ENTRY_UNITS_BEFORE;
                make_entry<TYPED>(launch, item, end, page, w, stats);
                if (page < item.page_status_count)
                    item.page_status[page] = stats.failed ? STRAIT_ERR_PAGE_ID : STRAIT_OK;
            } else {
                for (uint32_t j = 0; j < 4; j++)
                    w[j] = make_metadata_word<TYPED>(launch, item, end, 16ull * unit + 4 * j);
            }
            sum += sum_of_vector(w, unit);
            reinterpret_cast<uint4 *>(item.dst)[unit] = make_uint4(w[0], w[1], w[2], w[3]);
        }
        __syncwarp();
        if (launch.head.class_stats != nullptr) { // whether the chunk is lost is known when all its blocks are counted
            wait_for_blocks(chunk, item.block_count, lane);
            if (load_relaxed(&chunk.failed_checks) == 0)
                count_classes(launch, stats, is_entry, lane);
        }
        all.merge(stats);
    }
    add_page_stats(chunk, all, lane);
    sum = warp_sum(sum);
    if (lane == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&chunk.sum), static_cast<unsigned long long>(sum));
    return is_last_part(chunk, item.close_parts, lane);
}

// ---- Fetch warp ----------------------------------------------------------------------------------------------------

constexpr uint32_t NO_TABLE = 0xffffffffu;

template <coder_id CODER> DEVICE uint32_t table_bytes()
{
    return CODER == CODER_TOP16 ? IMAGE_TOP16_BYTES : IMAGE_TIERS_BYTES;
}

template <coder_id CODER> DEVICE const uint8_t *table_source(const uint8_t *tables, uint32_t table)
{
    return tables + static_cast<uint64_t>(table) * sizeof(table_image) +
           (CODER == CODER_TOP16 ? offsetof(table_image, top16) : offsetof(table_image, tiers));
}

// A block of a page that does not exist takes no room; its chunk is lost.
template <class LAUNCH> DEVICE void skip_block(const LAUNCH &launch, uint32_t item, uint32_t slot, uint64_t tag)
{
    progress &chunk = launch.head.items[item];
    store_relaxed(launch.head.planes[PLANE_SIZES] + slot, tag | make_size(0, BAD_PAGE, 0));
    store_block_result(launch, tag, slot, make_size(0, BAD_PAGE, 0), 0);
    atomicOr(&chunk.failed_checks, 1u);
    count_release(&chunk.blocks_done, 1);
}

// Block of a ticket, located before there is room for it.
struct located_block {
    uint32_t item, k;
    block_position at;
    uint8_t *page; // nullptr: the page does not exist
};

template <class LAUNCH> DEVICE located_block locate_block(const LAUNCH &launch, uint32_t item_index, uint32_t k)
{
    const encode_item &item = get_item<encode_item>(launch, item_index);
    located_block found = {item_index, k, find_block(launch, item, k), nullptr};
    const region r = get_region(launch, item.first_region + found.at.region);
    const uint32_t index = found.at.page - found.at.region * item.id_count;
    const uint32_t id = item.ids == nullptr ? index : item.ids[index];
    found.page = id < r.page_count ? r.base + id * r.page_stride : launch.head.absent;
    return found;
}

// One lane: prefetches the block of a ticket to the L2. Which team will draw it is open, but all teams together do this
// for all of the first tickets, while they draw them.
template <class LAUNCH> DEVICE void prefetch_first(const LAUNCH &launch, uint32_t ticket)
{
    segment_cursor at;
    cursor_init(launch, at);
    if (ticket < at.end || ticket >= launch.head.tickets)
        return;
    cursor_seek(launch, at, ticket);
    if (at.type != WORK_BLOCKS)
        return;
    const located_block found = locate_block(launch, at.item, ticket - at.first);
    const region r = get_region(launch, get_item<encode_item>(launch, at.item).first_region + found.at.region);
    const uint32_t bytes = block_bytes(r.page_bytes, found.at.block);
    if (found.page != nullptr && (r.shape & SHAPE_WHOLE) != 0 && can_bulk(r, bytes))
        bulk_prefetch(found.page + found.at.block * BLOCK_SIZE, bytes);
}

// All lanes: loads block number `iteration` of the team to the stage, and its table unless that is there already.
template <coder_id CODER, class LAUNCH>
DEVICE void fetch_block(const LAUNCH &launch, const encode_team<CODER> &team, const located_block &found,
                        uint32_t iteration, uint32_t lane, uint32_t *table)
{
    const encode_item &item = get_item<encode_item>(launch, found.item);
    encode_shared &shared = team.shared();
    const region r = get_region(launch, item.first_region + found.at.region);
    const uint32_t offset = found.at.block * BLOCK_SIZE, bytes = block_bytes(r.page_bytes, found.at.block);
    const bool bulk = can_bulk(r, bytes), new_table = launch.head.coded && *table != r.table;
    const uint32_t of_table = new_table ? table_bytes<CODER>() : 0;
    if (!bulk)
        plain_gather(r, found.page, offset, bytes, team.input(), lane);
    if constexpr (!HAS_BULK) {
        if (bulk)
            lane_gather(r, found.page, offset, bytes, team.input(), lane);
        if (new_table)
            lane_loads(team.table(), table_source<CODER>(launch.head.tables, r.table), of_table, lane);
        arrive_loaded(&shared.full);
    }
    __syncwarp();
    if (lane == 0) {
        shared.block = {0,
                        bytes,
                        found.at.block * (BLOCK_VECTORS / 4),
                        item.first_slot + found.k,
                        item.first_slot,
                        found.item,
                        item.dst + static_cast<uint64_t>(item.metadata_units) * UNIT};
        if constexpr (HAS_BULK)
            barrier_expect(&shared.full, of_table + (bulk ? bytes : 0));
        else
            barrier_arrive(&shared.full);
        barrier_arrive(&shared.issued[iteration % ENCODE_AHEAD]);
        if (HAS_BULK && new_table)
            bulk_load(team.table(), table_source<CODER>(launch.head.tables, r.table), of_table, &shared.full);
    } else if (lane < WARP_ARRIVALS) {
        barrier_arrive(&shared.full);
    }
    __syncwarp();
    if (HAS_BULK && bulk)
        bulk_gather(r, found.page, offset, bytes, team.input(), &shared.full, lane);
    *table = r.table;
}

// Handles a ticket that closes a chunk. Returns the next ticket. The state of the warp is saved in shared memory
// meanwhile: there are not enough registers for both.
template <bool TYPED, class LAUNCH>
DEVICE uint32_t close_chunk_part(const LAUNCH &launch, encode_shared &shared, encode_fetch_state &state,
                                 uint32_t ticket, uint32_t lane)
{
    const uint32_t item = state.at.item, part = ticket - state.at.first;
    if (lane == 0)
        shared.saved = state;
    __syncwarp();
    const chunk_close end = start_close(launch, item, shared.tag);
    const bool last = close_part<TYPED>(launch, item, part, end, lane);
    uint32_t drawn = 0;
    const bool draw_early = last && ticket >= launch.head.closes_from; // no block depends on later tickets
    if (draw_early)
        drawn = draw_tickets(launch, 1, lane);
    if (last)
        finish_chunk(launch, item, end, lane);
    if (!draw_early)
        drawn = draw_tickets(launch, 1, lane);
    state = shared.saved;
    return show_ticket(drawn);
}

// A drawn ticket holds up the offsets of all later blocks. So the next one is drawn only when the block before it has
// arrived: its lookup then overlaps with the coding of that block. Over a link, blocks are stored far more slowly than
// they are coded, so there the draw also waits for the streams that the block will be written to.
template <uint32_t BUFFERS, class LAUNCH>
DEVICE uint32_t next_ticket(const LAUNCH &launch, encode_shared &shared, uint32_t iteration, uint32_t lane)
{
    if (iteration > 0)
        barrier_wait(&shared.full, (iteration - 1) & 1);
    if (launch.head.over_link)
        wait_streams_free<BUFFERS>(shared, iteration);
    return show_ticket(draw_tickets(launch, 1, lane));
}

// `drawn`: the first ticket, in lane 0.
template <coder_id CODER, class LAUNCH>
DEVICE void fetch_blocks(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t teams, uint32_t drawn)
{
    const uint32_t lane = threadIdx.x % 32;
    encode_shared &shared = team.shared();
    const uint64_t tag = shared.tag;
    uint32_t ticket = show_ticket(drawn);
    encode_fetch_state state = {{}, NO_TABLE, 0};
    cursor_init(launch, state.at);
    if (is_short(launch, teams))
        launch_dependents();
    while (ticket != 0 && ticket < launch.head.tickets) {
        cursor_seek(launch, state.at, ticket);
        if (state.at.type == WORK_CLOSE) {
            ticket = close_chunk_part<is_typed(CODER)>(launch, shared, state, ticket, lane);
            continue;
        }
        const located_block found = locate_block(launch, state.at.item, ticket - state.at.first);
        if (found.page != nullptr) {
            if (state.iteration > 0)
                barrier_wait(&shared.empty, (state.iteration - 1) & 1);
            fetch_block(launch, team, found, state.iteration, lane, &state.table);
            state.iteration++;
        } else if (lane == 0) {
            skip_block(launch, state.at.item, get_item<encode_item>(launch, state.at.item).first_slot + found.k, tag);
        }
        __syncwarp();
        ticket = next_ticket<encode_team<CODER>::BUFFERS>(launch, shared, state.iteration, lane);
    }
    const uint32_t iteration = state.iteration;
    launch_dependents();
    if (iteration > 0)
        barrier_wait(&shared.empty, (iteration - 1) & 1);
    if (lane == 0)
        shared.block.stop = 1;
    arrive_loaded(&shared.full);
    warp_arrive(&shared.full, lane);
    if (ticket == 0)
        scan_offsets(launch, tag);
    end_team(launch, lane, teams);
}

// ---- Finish warp ---------------------------------------------------------------------------------------------------

// Splits the store of a block: put(offset in the block, address, bytes). Streams of a multiple of 64 values end at
// multiples of 16 bytes and are stored from where they are.
template <coder_id CODER, class PUT>
DEVICE void put_pieces(const encode_team<CODER> &team, const encode_job &job, uint32_t parity, PUT put)
{
    if (job.from_stage) {
        put(0, team.input(), size_units(job.size) * UNIT);
        return;
    }
    if (is_typed(CODER)) {
        put(0, team.fixed(parity) + job.streams_offset, size_units(job.size) * UNIT);
        return;
    }
    const uint32_t n = job.value_count, codes = CODER == CODER_TIERED ? n / 4 : n / 2;
    const uint32_t rest = size_units(job.size) * UNIT - n - codes;
    if (n == BLOCK_VALUES) { // they are one piece
        put(0, team.fixed(parity), size_units(job.size) * UNIT);
        return;
    }
    put(0, team.fixed(parity), n);
    put(n, team.fixed(parity) + SM_BYTES, codes);
    if (rest > 0)
        put(n + codes, team.variable(parity), rest);
}

// All lanes: copies whole units, so that each store of the warp covers four whole lines, except for the first and the
// last store. A bulk copy that begins in the middle of a line would cross a link as two parts of each line.
DEVICE void store_lines(uint8_t *dst, const uint8_t *src, uint32_t bytes, uint32_t lane)
{
    uint4 *to = reinterpret_cast<uint4 *>(dst);
    const uint4 *from = reinterpret_cast<const uint4 *>(src);
    const int32_t units = static_cast<int32_t>(bytes / UNIT);
    int32_t i = static_cast<int32_t>(lane) - static_cast<int32_t>(reinterpret_cast<uintptr_t>(dst) / UNIT % 32);
    if (i >= 0 && i < units)
        to[i] = from[i];
    i += 32;
#pragma unroll 1
    for (; i + 96 < units; i += 128) {
        const uint4 a = from[i], b = from[i + 32], c = from[i + 64], d = from[i + 96];
        to[i] = a, to[i + 32] = b, to[i + 64] = c, to[i + 96] = d;
    }
#pragma unroll 1
    for (; i < units; i += 32)
        to[i] = from[i];
}

// All lanes: stores a block at its offset. Returns when shared memory has been read; `by_lanes`, when all lanes have
// copied their parts.
template <coder_id CODER>
DEVICE void store_block(const encode_team<CODER> &team, const encode_job &job, uint32_t parity, uint8_t *dst,
                        bool by_lanes, uint32_t lane)
{
    if (by_lanes) {
        put_pieces(team, job, parity,
                   [&](uint32_t at, const uint8_t *from, uint32_t bytes) { store_lines(dst + at, from, bytes, lane); });
    } else if (lane == 0) {
        put_pieces(team, job, parity,
                   [&](uint32_t at, const uint8_t *from, uint32_t bytes) { bulk_store(dst + at, from, bytes); });
        bulk_commit();
        bulk_wait_read();
    }
    __syncwarp();
    if (job.from_stage && lane < WARP_ARRIVALS)
        barrier_arrive(&team.shared().empty, WORKER_WARPS);
}

// All lanes: whether the loads of the next block have been issued. Lanes may see different states of the barrier; the
// vote makes them agree.
DEVICE bool is_next_issued(encode_shared &shared, uint32_t iteration)
{
    return __any_sync(ALL_LANES, barrier_test(&shared.issued[iteration % ENCODE_AHEAD], iteration / ENCODE_AHEAD & 1));
}

template <coder_id CODER, class LAUNCH>
DEVICE void finish_blocks(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t number)
{
    const uint32_t lane = threadIdx.x % 32;
    encode_shared &shared = team.shared();
    const uint64_t tag = shared.tag;
    const bool over_link = launch.head.over_link != 0, by_lanes = over_link || !HAS_BULK;
    uint32_t cached_first_slot = 0xffffffffu, first_offset = 0;
    done_list done = {0, 0};
    if (lane == 0)
        prefetch_first(launch, number);
    __syncwarp();
    auto flush = [&] {
        if (!by_lanes && lane == 0) {
            bulk_wait();
            fence_bulk_global();
        }
        done.flush(launch, lane);
    };
    for (uint32_t iteration = 0;; iteration++) {
        const uint32_t parity = iteration & 1;
        // A block whose loads are issued will be finished whatever other teams do. If there is none, another team may
        // be waiting for the blocks that this one has finished. Over a link there is time to count each block, and a
        // reader of the chunk learns of it sooner.
        if (done.is_full() || (done.count > 0 && (over_link || !is_next_issued(shared, iteration))))
            flush();
        barrier_wait(&shared.job_ready[parity], iteration / 2 & 1);
        const encode_job job = shared.jobs[parity];
        if (job.stop)
            break;
        const uint64_t sum = warp_sum(lane < WORKER_WARPS ? shared.sums[parity][lane] : 0);
        uint32_t start = 0;
        if (lane == 0) {
            store_block_result(launch, tag, job.slot, job.size, sum);
            if (job.first_slot != cached_first_slot)
                first_offset = wait_offset(launch, tag, cached_first_slot = job.first_slot);
            start = (wait_offset(launch, tag, job.slot) - first_offset) & TAG_MASK;
        }
        if (by_lanes)
            start = __shfl_sync(ALL_LANES, start, 0);
        store_block(team, job, parity, job.dst + static_cast<uint64_t>(start) * UNIT, by_lanes, lane);
        warp_arrive(&shared.streams_free[parity], lane);
        done.add(job.item, lane);
    }
    flush();
}

// ---- Kernel --------------------------------------------------------------------------------------------------------

// Parameters that workers need.
struct worker_launch {
    struct {
        uint64_t *planes[1]; // PLANE_SIZES
        uint8_t mode, coded, element;
    } head;
};
static_assert(PLANE_SIZES == 0, "it is the first");

// The team of this thread.
template <coder_id CODER, uint32_t TEAMS> DEVICE encode_team<CODER> this_team()
{
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t number = TEAMS == 1 ? 0 : threadIdx.x / TEAM_THREADS;
    return {memory + number * encode_team<CODER>::BYTES, number};
}

// Loop of the workers. It is not inlined, so that the code of other warps does not change how it is compiled.
template <coder_id CODER, uint32_t TEAMS> __device__ __noinline__ void work(const worker_launch launch)
{
    const encode_team<CODER> team = this_team<CODER, TEAMS>();
    const uint32_t thread = threadIdx.x % TEAM_THREADS, lane = thread % 32, warp = thread / 32;
    encode_shared &shared = team.shared();
    for (uint32_t iteration = 0;; iteration++) {
        barrier_wait(&shared.full, iteration & 1);
        wait_streams_free<encode_team<CODER>::BUFFERS>(shared, iteration);
        if (shared.block.stop) {
            if (thread == 0)
                shared.jobs[iteration & 1].stop = 1;
            warp_arrive(&shared.job_ready[iteration & 1], lane);
            break;
        }
        if (shared.block.bytes == BLOCK_SIZE)
            code_block<true>(launch, team, iteration, warp, lane);
        else
            code_block<false>(launch, team, iteration, warp, lane);
    }
}

template <coder_id CODER, class LAUNCH> DEVICE void init_team(const LAUNCH &launch, const encode_team<CODER> &team)
{
    encode_shared &shared = team.shared();
    barrier_init(&shared.full, WARP_ARRIVALS + LOADING_LANES);
    barrier_init(&shared.empty, WORKER_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.counts_ready, WORKER_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.base_ready, WORKER_WARPS * WARP_ARRIVALS);
    for (uint32_t parity = 0; parity < 2; parity++) {
        barrier_init(&shared.job_ready[parity], WORKER_WARPS * WARP_ARRIVALS);
        barrier_init(&shared.streams_free[parity], WARP_ARRIVALS);
    }
    for (uint32_t i = 0; i < ENCODE_AHEAD; i++)
        barrier_init(&shared.issued[i], 1);
    shared.base = NO_TABLE;
    fence_bulk();
    wait_prior_launches();
    shared.tag = launch_tag(launch);
}

template <coder_id CODER, bool FULL, class LAUNCH>
__global__ void __launch_bounds__(block_teams(encode_team<CODER>::SHAPE, FULL) * TEAM_THREADS,
                                  resident_blocks(encode_team<CODER>::SHAPE, FULL))
    encode_kernel(const __grid_constant__ LAUNCH launch)
{
    constexpr uint32_t TEAMS = block_teams(encode_team<CODER>::SHAPE, FULL);
    const encode_team<CODER> team = this_team<CODER, TEAMS>();
    const uint32_t number = team.number, warp = threadIdx.x % TEAM_THREADS / 32;
    if (threadIdx.x == number * TEAM_THREADS)
        init_team(launch, team);
    else
        wait_prior_launches();
    if (warp == FINISH_WARP && threadIdx.x % 32 < 16)
        reinterpret_cast<uint32_t *>(team.shared().keys)[threadIdx.x % 32] = sum_keys[threadIdx.x % 32];
    const uint32_t drawn = warp == FETCH_WARP ? draw_tickets(launch, 1, threadIdx.x % 32) : 0;
    __syncthreads();
    if (warp == FETCH_WARP)
        fetch_blocks(launch, team, gridDim.x * TEAMS, drawn);
    else if (warp == FINISH_WARP)
        finish_blocks(launch, team, blockIdx.x * TEAMS + number);
    else
        work<CODER, TEAMS>(
            {{{launch.head.planes[PLANE_SIZES]}, launch.head.mode, launch.head.coded, launch.head.element}});
}

// Chooses the kernel by its teams and its parameters.
template <coder_id CODER> const void *choose_encode_kernel(bool full, bool large)
{
    typedef small_launch s;
    typedef large_launch l;
    const void *const kernels[4] = {
        (const void *)encode_kernel<CODER, false, s>, (const void *)encode_kernel<CODER, false, l>,
        (const void *)encode_kernel<CODER, true, s>, (const void *)encode_kernel<CODER, true, l>};
    return kernels[2 * full + large];
}

const void *encode_function(coder_id coder, bool full, bool large)
{
    switch (coder) {
    case CODER_TOP16:
        return choose_encode_kernel<CODER_TOP16>(full, large);
    case CODER_TIERED:
        return choose_encode_kernel<CODER_TIERED>(full, large);
    case CODER_BF16:
        return choose_encode_kernel<CODER_BF16>(full, large);
    case CODER_FP16:
        return choose_encode_kernel<CODER_FP16>(full, large);
    case CODER_FP8:
        return choose_encode_kernel<CODER_FP8>(full, large);
    case CODER_PARTS_BF16:
        return choose_encode_kernel<CODER_PARTS_BF16>(full, large);
    case CODER_PARTS_FP16:
        return choose_encode_kernel<CODER_PARTS_FP16>(full, large);
    case CODER_PARTS_FP32:
        return choose_encode_kernel<CODER_PARTS_FP32>(full, large);
    default:
        return choose_encode_kernel<CODER_FP32>(full, large);
    }
}

team_shape encode_shape_of(coder_id coder, uint32_t capability)
{
    return encode_shape(coder, capability);
}

} // namespace strait
