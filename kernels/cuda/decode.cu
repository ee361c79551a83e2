// Decode kernel, one launch for many chunks: the warps of the pipeline in decode_team.cuh.
#include "kernels/cuda/decode_check.cuh"
#include "kernels/cuda/mode_tiered.cuh"
#include "kernels/cuda/mode_top16.cuh"
#include "kernels/cuda/mode_fp8_decode.cuh"
#include "kernels/cuda/mode_parts_decode.cuh"
#include "kernels/cuda/mode_typed_decode.cuh"

namespace strait
{

// ---- Closing a chunk -----------------------------------------------------------------------------------------------

// Fetch warps give pages their status once all blocks are finished, in parts; the last part writes the result. Checking
// pages earlier does not pay: what is loaded while blocks are being written takes several times as long.

// Status of a page, from the results of its blocks and from its sum. If it is OK, `stats` gets the page's statistics.
template <class LAUNCH>
DEVICE int32_t check_page(const LAUNCH &launch, const decode_item &item, const chunk_header &header, uint32_t page,
                          uint64_t tag, page_stats &stats, uint32_t *page_bytes)
{
    const region r = get_region(launch, item.first_region + page / item.id_count);
    const uint32_t slot = item.first_slot + first_block_of(launch, item, page), blocks = blocks_of(r.page_bytes);
    const uint32_t index = item.select == nullptr ? page : item.select[page];
    const bool exists = index < header.page_count;
    uint32_t entry[4] = {};
    if (exists) {
        const uint4 x = *reinterpret_cast<const uint4 *>(header.metadata + entry_at(index));
        entry[1] = x.y, entry[2] = x.z, entry[3] = x.w;
    }
    // Pages of two blocks are the most frequent: both results are asked for before the first is looked at.
    block_result results[2];
#pragma unroll
    for (uint32_t b = 0; b < 2; b++)
        results[b] = load_block_result(launch, slot + (b < blocks ? b : 0));
    uint64_t sum = 0;
    uint32_t status = 0;
#pragma unroll 1
    for (uint32_t b = 0; b < blocks; b++) {
        block_result result = b == 0 ? results[0] : b == 1 ? results[1] : load_block_result(launch, slot + b);
        const uint32_t word = wait_block_result(launch, tag, slot + b, result);
        sum += result.sum;
        status = status == 0 ? word >> 17 : status;
        stats.add(word >> 14 & 7, block_bytes(r.page_bytes, b) / 2, word & 16383);
    }
    *page_bytes = r.page_bytes;
    if (status != 0)
        return -static_cast<int32_t>(status);
    if (!exists)
        return STRAIT_ERR_INVALID;
    stats.table = entry[1] & 0xffff;
    sum += sum_seed(r.page_bytes, index, stats.table);
    const bool same = entry[2] == static_cast<uint32_t>(sum) && entry[3] == static_cast<uint32_t>(sum >> 32);
    return same ? STRAIT_OK : STRAIT_ERR_INTEGRITY;
}

// What closing a chunk, or a part of it, adds up.
struct chunk_totals {
    uint64_t values; // in lane m, of mode m
    uint64_t bytes;
    uint32_t first_failure, failed_pages;
};

// All lanes: writes the result of a chunk that has no parts left.
template <class LAUNCH>
DEVICE void finish_chunk(const LAUNCH &launch, uint32_t item_index, int32_t chunk_status, const chunk_totals &totals,
                         uint32_t lane)
{
    strait_result result = {};
    result.chunk_status = chunk_status;
    result.failed_pages = totals.failed_pages;
    result.bytes = totals.bytes;
    if (chunk_status != STRAIT_OK)
        result.status = chunk_status;
    else if (totals.first_failure != 0)
        result.status = -static_cast<int32_t>(~totals.first_failure & 255);
    write_result(get_item<decode_item>(launch, item_index).result, result, totals.values, lane);
    clear_progress(launch.head.items[item_index], lane);
}

// All lanes: adds a part to those before it. True for the last one, which gets all of them.
DEVICE bool merge_totals(progress &chunk, uint32_t parts, chunk_totals &totals, uint32_t lane)
{
    if (parts == 1)
        return true;
    if (lane < STRAIT_BLOCK_MODES)
        add_u64(&chunk.values[lane], totals.values);
    if (lane == 0) {
        add_u64(&chunk.bytes, totals.bytes);
        if (totals.failed_pages != 0)
            atomicAdd(&chunk.failed_pages, totals.failed_pages);
        if (totals.first_failure != 0)
            atomicMax(&chunk.first_failure, totals.first_failure);
    }
    if (!is_last_part(chunk, parts, lane))
        return false;
    totals = {lane < STRAIT_BLOCK_MODES ? load_relaxed(&chunk.values[lane]) : 0, load_relaxed(&chunk.bytes),
              load_relaxed(&chunk.first_failure), load_relaxed(&chunk.failed_pages)};
    return true;
}

// All lanes: the pages of one part of a chunk.
template <class LAUNCH>
DEVICE chunk_totals check_pages(const LAUNCH &launch, const chunk_header &header, const decode_item &item,
                                uint32_t part, int32_t chunk_status, uint64_t tag, uint32_t lane)
{
    page_stats all = {};
    uint64_t bytes = 0;
    uint32_t first_failure = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < item.close_part_size; i += 32) {
        const uint32_t page = part * item.close_part_size + i + lane;
        page_stats stats = {};
        if (page < item.page_count) {
            uint32_t page_bytes = 0;
            int32_t status = chunk_status;
            if (chunk_status == STRAIT_OK)
                status = check_page(launch, item, header, page, tag, stats, &page_bytes);
            if (page < item.page_status_count)
                item.page_status[page] = status;
            if (status != STRAIT_OK) {
                first_failure = max(first_failure, ~(page << 8 | static_cast<uint32_t>(-status)));
                stats = {};
                stats.failed = 1;
            }
            bytes += stats.failed ? 0 : page_bytes;
        }
        count_classes(launch, stats, page < item.page_count, lane);
        all.merge(stats);
    }
    chunk_totals totals = {0, warp_sum(bytes), __reduce_max_sync(ALL_LANES, first_failure),
                           __reduce_add_sync(ALL_LANES, all.failed)};
#pragma unroll
    for (uint32_t m = 0; m < STRAIT_BLOCK_MODES; m++) {
        const uint64_t values = warp_sum(all.values[m]);
        totals.values = lane == m ? values : totals.values;
    }
    return totals;
}

// All lanes: one part of closing a chunk. The last one writes the result; `at_end` is called before that.
template <class LAUNCH, class END>
DEVICE void close_part(const LAUNCH &launch, const chunk_header &header, uint32_t item_index, uint32_t part,
                       uint64_t tag, uint32_t lane, END at_end)
{
    const decode_item &item = get_item<decode_item>(launch, item_index);
    progress &chunk = launch.head.items[item_index];
    const int32_t chunk_status = -static_cast<int32_t>(wait_verdict(launch, header, item_index, tag, lane));
    wait_for_blocks(chunk, item.block_count, lane);
    chunk_totals totals = check_pages(launch, header, item, part, chunk_status, tag, lane);
    if (!merge_totals(chunk, item.close_parts, totals, lane))
        return;
    at_end();
    finish_chunk(launch, item_index, chunk_status, totals, lane);
}

// ---- Fetch warp ----------------------------------------------------------------------------------------------------

// Units of the chunk before this one in the same line of global memory.
DEVICE uint32_t units_before(const uint8_t *chunk, uint32_t unit)
{
    const uint32_t in_line = (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(chunk) / UNIT) + unit) % (LINE / UNIT);
    return in_line < unit ? in_line : unit;
}

// Describes block k of the item except for its bytes; returns the status that this gives its page. The offset of the
// block is read from the metadata and checked once more: whatever the metadata holds by now, nothing outside the chunk
// is read. Loads come before their uses, so that they run in parallel.
template <class LAUNCH>
DEVICE int32_t describe_block(const LAUNCH &launch, uint32_t item_index, const chunk_header &header, uint32_t k,
                              decode_block &block, uint32_t *first_unit)
{
    const decode_item &item = get_item<decode_item>(launch, item_index);
    const block_position at = find_block(launch, item, k);
    block.item = item_index;
    block.slot = item.first_slot + k;
    if (header.status != STRAIT_OK)
        return header.status; // the block is never used
    const region r = get_region(launch, item.first_region + at.region);
    const uint32_t i = at.page - at.region * item.id_count, id = item.ids == nullptr ? i : item.ids[i];
    const uint32_t index = item.select == nullptr ? at.page : item.select[at.page];
    if (index >= header.page_count)
        return STRAIT_ERR_INVALID;
    const bool has_block = at.block <= header.rows_per_page; // otherwise the length differs
    const uint32_t b = has_block ? at.block : 0, length = length_of(header, index), row = row_of(header, index, b);
    const uint32_t end =
        block_end(header, index, blocks_of(r.page_bytes) <= header.rows_per_page + 1 ? blocks_of(r.page_bytes) : 1, b);
    const uint32_t mode = row & 15;
    block.table = word_at(header.metadata, entry_at(index) + 4) & 0xffff;
    block.bytes = block_bytes(r.page_bytes, at.block);
    block.first_step = at.block * (BLOCK_VECTORS / 4);
    block.region = item.first_region + at.region;
    block.offset = at.block * BLOCK_SIZE;
    block.page = r.base + id * r.page_stride;
    const bool direct = (r.shape & SHAPE_WIDTH) == 4 && (r.shape & SHAPE_WHOLE) != 0 && block.bytes % 16 == 0;
    block.what =
        mode | header.what | (direct ? BLOCK_DIRECT : 0) | (direct && block.bytes == BLOCK_SIZE ? BLOCK_WHOLE : 0);
    block.units = end - (row >> 4);
    block.before = units_before(item.src, row >> 4) * UNIT;
    *first_unit = row >> 4;
    if (id >= r.page_count)
        return STRAIT_ERR_PAGE_ID;
    if (length != r.page_bytes)
        return STRAIT_ERR_INVALID;
    if (row >> 4 < header.metadata_units || end <= row >> 4 || end > header.units ||
        !extent_fits(mode, header.element, block.bytes, block.units))
        return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

// Publishes the status of a block whose page cannot be decoded.
template <class LAUNCH>
DEVICE void store_block_failure(const LAUNCH &launch, const decode_block &block, uint64_t tag, int32_t status)
{
    store_block_result(launch, tag, block.slot, make_result_word(-status, 0, 0), 0);
    count_release(&launch.head.items[block.item].blocks_done, 1);
}

// One lane: prefetches a line of the metadata and of the page ids to the L2. All teams together do this for the first
// tickets, while they draw them.
template <class LAUNCH> DEVICE void prefetch_first(const LAUNCH &launch, uint32_t ticket)
{
    segment_cursor at;
    cursor_init(launch, at);
    if (ticket >= launch.head.tickets)
        return;
    cursor_seek(launch, at, ticket);
    if (at.type != WORK_BLOCKS)
        return;
    const decode_item &item = get_item<decode_item>(launch, at.item);
    const uint64_t offset = static_cast<uint64_t>(ticket - at.first) * LINE;
    const uint64_t most = STRAIT_CHUNK_HEADER_BYTES + 20ull * item.page_count + 4ull * item.block_count;
    if (item.metadata == nullptr && offset < most && offset < item.src_size)
        prefetch_line(item.src + offset);
    if (item.ids != nullptr && offset < 4ull * item.id_count)
        prefetch_line(reinterpret_cast<const uint8_t *>(item.ids) + offset);
}

// What is fetched of a block: whole lines, and its table.
struct block_source {
    const uint8_t *lines;
    uint32_t bytes; // of the lines
    bool has_table;
};

template <class LAUNCH>
DEVICE block_source find_source(const LAUNCH &launch, const decode_block &block, uint32_t first_unit)
{
    const decode_item &item = get_item<decode_item>(launch, block.item);
    const bool has_table = block.mode() >= STRAIT_BLOCK_TOP16 && block.table < launch.head.table_count;
    const uint64_t from = static_cast<uint64_t>(first_unit) * UNIT - block.before, left = item.src_size - from;
    const uint32_t lines = (block.before + block.units * UNIT + LINE - 1) / LINE * LINE;
    const uint32_t bytes = lines <= left ? lines : static_cast<uint32_t>(left);
    return {item.src + from, bytes, has_table};
}

template <class LAUNCH> DEVICE const uint8_t *table_source(const LAUNCH &launch, const decode_block &block)
{
    return launch.head.tables + static_cast<uint64_t>(block.table) * sizeof(table_image) + offsetof(table_image, first);
}

// One lane: fetches the block's bytes, and its table. The stage is full once they are there, and the block has been
// released to the workers as well.
template <class LAUNCH>
DEVICE void fetch_block(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                        uint32_t first_unit)
{
    decode_shared &shared = team.shared();
    const block_source source = find_source(launch, block, first_unit);
    barrier_expect_only(&shared.full[stage], source.bytes + (source.has_table ? IMAGE_DECODE_BYTES : 0));
    bulk_load_once(team.lines(stage), source.lines, source.bytes, &shared.full[stage]);
    if (source.has_table)
        bulk_load(team.memory + stage * DECODE_STAGE_BYTES, table_source(launch, block), IMAGE_DECODE_BYTES,
                  &shared.full[stage]);
}

// All lanes: fetches a block before 9.0. The lane that `has_block` knows its first unit.
template <class LAUNCH>
DEVICE void fetch_by_lanes(const LAUNCH &launch, const decode_team &team, uint32_t iteration, bool has_block,
                           uint32_t first_unit, uint32_t lane)
{
    const uint32_t stage = iteration % DECODE_STAGES, from = lowest_bit(__ballot_sync(ALL_LANES, has_block));
    decode_shared &shared = team.shared();
    first_unit = __shfl_sync(ALL_LANES, first_unit, from);
    const decode_block &block = shared.blocks[iteration % LOOKUP_SLOTS];
    const block_source source = find_source(launch, block, first_unit);
    lane_loads(team.lines(stage), source.lines, source.bytes, lane);
    if (source.has_table)
        lane_loads(team.memory + stage * DECODE_STAGE_BYTES, table_source(launch, block), IMAGE_DECODE_BYTES, lane);
    arrive_loaded(&shared.full[stage]);
}

// State of the fetch warp between tickets.
struct decode_fetch_state {
    uint64_t tag;
    uint32_t iteration;         // blocks fetched so far
    uint32_t item;              // the item of shared.header
    uint32_t verdict;           // of that item: -status, or NO_VERDICT as long as it is not known
    bool has_drawn;             // the next tickets are drawn
    uint32_t draw_count, drawn; // size of the next draw; in lane 0, its first ticket

    template <class LAUNCH> DEVICE void draw(const LAUNCH &launch, uint32_t lane)
    {
        drawn = draw_tickets(launch, draw_count, lane);
        has_drawn = true;
    }
};

DEVICE void wait_stage(decode_shared &shared, uint32_t iteration)
{
    if (iteration >= DECODE_STAGES)
        barrier_wait(&shared.empty[iteration % DECODE_STAGES], (iteration / DECODE_STAGES - 1) & 1);
}

// All lanes: the workers may have the block that has been fetched, if its chunk has passed its check. For the first
// block of a chunk the verdict may have to be waited for, while the block arrives.
template <class LAUNCH>
DEVICE void release_block(const LAUNCH &launch, decode_shared &shared, decode_fetch_state &at, uint32_t lane)
{
    const uint32_t stage = at.iteration % DECODE_STAGES;
    if (at.verdict == NO_VERDICT)
        at.verdict = wait_verdict(launch, shared.header, at.item, at.tag, lane);
    if (lane == 0) {
        if (at.verdict != STRAIT_OK)
            shared.blocks[at.iteration % LOOKUP_SLOTS].what |= BLOCK_REFUSED;
        barrier_arrive(&shared.full[stage]);
        barrier_arrive(&shared.issued[stage]);
    }
}

// All lanes: looks up `count` blocks of the item from number k on, one per lane, because a lookup is a long chain of
// memory latencies. Then fetches them one after another. Before waiting for room for the last of its tickets, draws the
// next ones.
template <class LAUNCH>
DEVICE void fetch_run(const LAUNCH &launch, const decode_team &team, decode_fetch_state &at, uint32_t k, uint32_t count,
                      bool last_run, uint32_t lane)
{
    decode_shared &shared = team.shared();
    decode_block block;
    uint32_t first_unit = 0;
    int32_t status = STRAIT_OK;
    if (lane < count)
        status = describe_block(launch, at.item, shared.header, k + lane, block, &first_unit);
    const bool good = lane < count && status == STRAIT_OK;
    const uint32_t all_good = __ballot_sync(ALL_LANES, good), rank = popcount(all_good & low_mask(lane));
    if (good)
        shared.blocks[(at.iteration + rank) % LOOKUP_SLOTS] = block;
    else if (lane < count)
        store_block_failure(launch, block, at.tag, status);
    const uint32_t fetched = popcount(all_good);
#pragma unroll 1
    for (uint32_t i = 0; i < fetched; i++, at.iteration++) {
        if (last_run && i + 1 == fetched)
            at.draw(launch, lane);
        wait_stage(shared, at.iteration);
        __syncwarp(); // a lane that reads the barrier two phases late would wait forever
        if constexpr (!HAS_BULK)
            fetch_by_lanes(launch, team, at.iteration, good && rank == i, first_unit, lane);
        else if (good && rank == i)
            fetch_block(launch, team, at.iteration % DECODE_STAGES, block, first_unit);
        __syncwarp();
        release_block(launch, shared, at, lane);
    }
}

// How many tickets to draw at once: fewer when few are left, so that all teams end at about the same time.
constexpr uint32_t DRAW_PARTS = 4;

DEVICE uint32_t choose_draw(uint32_t left, uint32_t teams)
{
    const uint32_t draw_count = left / (DRAW_PARTS * teams);
    return draw_count < 1 ? 1 : draw_count < LOOKUP_BLOCKS ? draw_count : LOOKUP_BLOCKS;
}

template <class LAUNCH> DEVICE uint32_t draw_first(const LAUNCH &launch, uint32_t teams, uint32_t lane)
{
    return draw_tickets(launch, choose_draw(launch.head.tickets, teams), lane);
}

// `drawn`: from draw_first.
template <class LAUNCH>
DEVICE void fetch_blocks(const LAUNCH &launch, const decode_team &team, uint32_t teams, uint32_t drawn)
{
    const uint32_t lane = threadIdx.x % 32, tickets = launch.head.tickets;
    decode_shared &shared = team.shared();
    decode_fetch_state state = {launch_tag(launch),          0,    0xffffffffu, NO_VERDICT, true,
                                choose_draw(tickets, teams), drawn};
    segment_cursor at;
    cursor_init(launch, at);
    if (is_short(launch, teams))
        launch_dependents();
    for (;;) {
        if (!state.has_drawn)
            state.draw(launch, lane);
        uint32_t ticket = show_ticket(state.drawn);
        if (ticket >= tickets)
            break;
        const uint32_t end = ticket + state.draw_count < tickets ? ticket + state.draw_count : tickets;
        state.draw_count = choose_draw(tickets - ticket, teams);
        state.has_drawn = false;
        while (ticket < end) {
            cursor_seek(launch, at, ticket);
            if (state.item != at.item) {
                state.item = at.item;
                state.verdict = NO_VERDICT;
                __syncwarp();
                if (lane == 0)
                    shared.header = read_header(get_item<decode_item>(launch, at.item));
                __syncwarp();
            }
            if (at.type == WORK_BLOCKS) {
                const uint32_t count = (end < at.end ? end : at.end) - ticket;
                fetch_run(launch, team, state, ticket - at.first, count, ticket + count == end, lane);
                ticket += count;
                continue;
            }
            if (at.type == WORK_CHECK) {
                check_part(launch, shared.header, at.item, ticket - at.first, state.tag, lane);
            } else {
                const uint32_t item = at.item;
                if (lane == 0)
                    shared.saved = at;
                close_part(launch, shared.header, item, ticket - at.first, state.tag, lane, [&] {
                    if (ticket >= launch.head.closes_from && ticket + 1 == end)
                        state.draw(launch, lane);
                });
                at = shared.saved;
            }
            ticket++;
        }
    }
    launch_dependents();
    wait_stage(shared, state.iteration);
    arrive_loaded(&shared.full[state.iteration % DECODE_STAGES]);
    if (lane == 0) {
        shared.blocks[state.iteration % LOOKUP_SLOTS].what = BLOCK_STOP;
        barrier_arrive(&shared.full[state.iteration % DECODE_STAGES]);
    }
    end_team(launch, lane, teams);
}

// ---- Finish warp ---------------------------------------------------------------------------------------------------

// Does the part of check 14 of FORMAT.md section 6 that the workers have not done, which makes sure that a block is
// encoded in the only valid way. Then publishes the sum and the status of the block.

// All lanes: measures the block and finds whether an encoder would have written it.
DEVICE streams check_streams(const decode_shared &shared, uint32_t stage, const decode_block &block,
                             const uint8_t *input, uint32_t lane)
{
    const uint32_t size = block.units * UNIT;
    streams s = {};
    if (block.mode() == STRAIT_BLOCK_TIERED)
        s = measure_tiers(shared, stage, block, lane);
    else if (block.mode() >= STRAIT_BLOCK_TOP16)
        s = measure_top16(block, input);
    else
        s.used = block.mode() == STRAIT_BLOCK_RAW ? block.bytes : 2 + block.bytes % 2;
    const bool bad = lane < WORKER_WARPS && (shared.escapes[stage][lane] & WARP_BAD) != 0;
    s.good = !__any_sync(ALL_LANES, bad) && units_of(s.used) == block.units; // so the streams lie inside
    if (!s.good)
        return s;
    const bool padding = s.used + lane < size && input[s.used + lane] != 0;
    s.good = !__any_sync(ALL_LANES, padding);
    if (s.good && block.mode() >= STRAIT_BLOCK_TOP16)
        s.good = block.mode() == STRAIT_BLOCK_TIERED ? tiers_valid(s, input, lane) : codes_valid(s, input, lane);
    return s;
}

// All lanes: whether the team's next block is certain to be finished whatever other teams do: it has been released. If
// not, another team may be waiting for the blocks before it. Lanes may see different states of the barrier; the vote
// makes them agree.
DEVICE bool is_next_issued(decode_shared &shared, uint32_t iteration)
{
    const uint32_t stage = iteration % DECODE_STAGES, parity = iteration / DECODE_STAGES & 1;
    return __any_sync(ALL_LANES, barrier_test(&shared.issued[stage], parity));
}

template <uint32_t TEAMS, class LAUNCH>
DEVICE void finish_blocks(const LAUNCH &launch, const decode_team &team, uint32_t number)
{
    const uint32_t lane = threadIdx.x % 32;
    decode_shared &shared = team.shared();
    const uint64_t tag = launch_tag(launch);
    done_list done = {0, 0};
    if (lane == 0)
        prefetch_first(launch, number);
    __syncwarp();
    for (uint32_t iteration = 0;; iteration++) {
        const uint32_t stage = iteration % DECODE_STAGES;
        if (done.is_full() || (done.count > 0 && !is_next_issued(shared, iteration)))
            done.flush(launch, lane);
        barrier_wait(&shared.done[stage], iteration / DECODE_STAGES & 1);
        const decode_block &block = shared.blocks[iteration % LOOKUP_SLOTS];
        if ((block.what & BLOCK_STOP) != 0)
            break;
        uint32_t word;
        if (block.mode() >= STRAIT_BLOCK_BASE) {
            word = check_typed_block<TEAMS>(iteration);
        } else {
            const streams s = check_streams(shared, stage, block, team.lines(stage) + block.before, lane);
            word = s.good ? make_result_word(0, block.mode(), s.count4) : make_result_word(-STRAIT_ERR_CORRUPT, 0, 0);
        }
        const uint64_t sum = warp_sum(lane < WORKER_WARPS ? shared.sums[stage][lane] : 0);
        const uint32_t slot = block.slot;
        done.add(block.item, lane);
        warp_arrive(&shared.empty[stage], lane);
        if (lane == 0)
            store_block_result(launch, tag, slot, word, sum);
        __syncwarp();
    }
    done.flush(launch, lane);
}

// ---- Workers, and the kernel ---------------------------------------------------------------------------------------

// Decodes a block of modes 0 to 4; the verdict of its chunk was OK. Returns the findings of the warp.
template <class LAUNCH>
DEVICE uint32_t decode_values(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                              block_writer &writer, uint32_t *tiered_iteration, uint32_t warp, uint32_t lane)
{
    const bool whole = (block.what & BLOCK_WHOLE) != 0;
    switch (block.mode()) {
    case STRAIT_BLOCK_TIERED: {
        const uint32_t iteration = (*tiered_iteration)++;
        const table_ranking ranking = {team.table(stage)};
        if (whole)
            return decode_tiered<true>(launch, team, stage, block, writer, ranking, iteration, warp, lane);
        return decode_tiered<false>(launch, team, stage, block, writer, ranking, iteration, warp, lane);
    }
    case STRAIT_BLOCK_RAW:
        decode_raw(launch, block, writer, team.lines(stage) + block.before, warp, lane);
        return 0;
    case STRAIT_BLOCK_CONST:
        decode_const(launch, block, writer, team.lines(stage) + block.before, warp, lane);
        return 0;
    default:
        if (whole)
            return decode_top16<true>(launch, team, stage, block, writer, warp, lane);
        return decode_top16<false>(launch, team, stage, block, writer, warp, lane);
    }
}

template <class LAUNCH> DEVICE const region &block_region(const LAUNCH &launch, const decode_block &block)
{
    if (launch.head.scratch_regions != nullptr)
        return launch.head.scratch_regions[block.region];
    return reinterpret_cast<const region *>(launch.bytes + launch.head.regions_at)[block.region];
}

// State of a warp of workers between blocks.
struct worker_state {
    decode_team team;
    uint32_t iteration, tiered_iteration, lane, warp;
    bool stop;
};

template <uint32_t TEAMS> DEVICE void reload_team(worker_state &state)
{
    const uint32_t number = read_thread(), thread = number % TEAM_THREADS;
    state.team = this_team<TEAMS>(number);
    state.lane = thread % 32, state.warp = thread / 32;
}

// Decodes blocks of typed modes: those of whole parts in tiers by the base, as long as they follow each other, or one
// block. The decoders are called, and values live across the call would be kept in memory for blocks of all modes; so
// the warp drops its state and derives it again.
template <uint32_t TEAMS> DEVICE void decode_typed_blocks(const region &of_block, worker_state &state)
{
    const bool full = is_plain_base<true>(state.team, state.iteration);
    if (full || is_plain_base<false>(state.team, state.iteration)) {
        const uint2 iterations = full ? decode_bases<TEAMS, true>(state.iteration, state.tiered_iteration)
                                      : decode_bases<TEAMS, false>(state.iteration, state.tiered_iteration);
        state.iteration = iterations.x, state.tiered_iteration = iterations.y;
        reload_team<TEAMS>(state);
        return;
    }
    if (state.lane == 0)
        state.team.shared().iterations[state.warp] = make_uint2(state.iteration, state.tiered_iteration);
    __syncwarp();
    const typed_found typed = decode_typed<TEAMS>(of_block, state.iteration);
    reload_team<TEAMS>(state);
    decode_shared &shared = state.team.shared();
    const uint2 iterations = shared.iterations[state.warp];
    state.iteration = iterations.x, state.tiered_iteration = iterations.y;
    publish_findings(shared, state.iteration % DECODE_STAGES, typed.sum, typed.found, state.warp, state.lane);
    state.iteration++;
}

// Decodes blocks up to the last, or up to one of a typed mode, which is returned. Makes no calls, so that state common
// to all blocks stays in registers.
template <class LAUNCH> DEVICE const decode_block *decode_until_typed(const LAUNCH &launch, worker_state &state)
{
    const decode_team team = state.team;
    const uint32_t lane = state.lane, warp = state.warp;
    decode_shared &shared = team.shared();
    for (;; state.iteration++) {
        const uint32_t stage = state.iteration % DECODE_STAGES;
        barrier_wait(&shared.full[stage], state.iteration / DECODE_STAGES & 1);
        const decode_block &block = shared.blocks[state.iteration % LOOKUP_SLOTS];
        block_writer writer = {shared.keys, {0, 0, 0}};
        uint32_t found = WARP_BAD;
        state.stop = (block.what & BLOCK_STOP) != 0;
        if ((block.what & (BLOCK_STOP | BLOCK_REFUSED)) == 0) {
            if (block.mode() >= STRAIT_BLOCK_BASE)
                return &block;
            found = decode_values(launch, team, stage, block, writer, &state.tiered_iteration, warp, lane);
        }
        publish_findings(shared, stage, sum_total(writer.sum), found, warp, lane);
        if (state.stop)
            return nullptr;
    }
}

template <uint32_t TEAMS, class LAUNCH> DEVICE void run_workers(const LAUNCH &launch, const decode_team &team)
{
    const uint32_t thread = threadIdx.x % TEAM_THREADS;
    worker_state state = {team, 0, 0, thread % 32, thread / 32, false};
    while (const decode_block *typed = decode_until_typed(launch, state))
        decode_typed_blocks<TEAMS>(block_region(launch, *typed), state);
}

DEVICE void init_team(const decode_team &team)
{
    decode_shared &shared = team.shared();
    for (uint32_t stage = 0; stage < DECODE_STAGES; stage++) {
        barrier_init(&shared.issued[stage], 1);
        barrier_init(&shared.full[stage], 1 + LOADING_LANES);
        barrier_init(&shared.empty[stage], WARP_ARRIVALS);
        barrier_init(&shared.done[stage], WORKER_WARPS * WARP_ARRIVALS);
    }
    barrier_init(&shared.counts2_ready, WORKER_WARPS * WARP_ARRIVALS);
    barrier_init(&shared.counts3_ready, WORKER_WARPS * WARP_ARRIVALS);
    fence_bulk();
}

template <bool FULL, class LAUNCH>
__global__ void __launch_bounds__(block_teams(DECODE_SHAPE, FULL) * TEAM_THREADS, resident_blocks(DECODE_SHAPE, FULL))
    decode_kernel(const __grid_constant__ LAUNCH launch)
{
    constexpr uint32_t TEAMS = block_teams(DECODE_SHAPE, FULL);
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t number = TEAMS == 1 ? 0 : threadIdx.x / TEAM_THREADS, warp = threadIdx.x % TEAM_THREADS / 32;
    const decode_team team = {memory + number * decode_team::BYTES, number};
    if (threadIdx.x % TEAM_THREADS == 0)
        init_team(team);
    if (warp == FINISH_WARP && threadIdx.x % 32 < 16)
        reinterpret_cast<uint32_t *>(team.shared().keys)[threadIdx.x % 32] = sum_keys[threadIdx.x % 32];
    wait_prior_launches();
    const uint32_t drawn = warp == FETCH_WARP ? draw_first(launch, gridDim.x * TEAMS, threadIdx.x % 32) : 0;
    __syncthreads();
    if (warp == FETCH_WARP)
        fetch_blocks(launch, team, gridDim.x * TEAMS, drawn);
    else if (warp == FINISH_WARP)
        finish_blocks<TEAMS>(launch, team, blockIdx.x * TEAMS + number);
    else
        run_workers<TEAMS>(launch, team);
}

__global__ void upload_kernel(const __grid_constant__ upload regions)
{
    for (uint32_t i = threadIdx.x; i < regions.count; i += blockDim.x)
        regions.dst[i] = regions.regions[i];
}

const void *decode_function(bool full, bool large)
{
    typedef small_launch s;
    typedef large_launch l;
    const void *const kernels[4] = {(const void *)decode_kernel<false, s>, (const void *)decode_kernel<false, l>,
                                    (const void *)decode_kernel<true, s>, (const void *)decode_kernel<true, l>};
    return kernels[2 * full + large];
}

team_shape decode_shape_of(uint32_t capability)
{
    return decode_shape(capability);
}

const void *upload_function()
{
    return (const void *)upload_kernel;
}

} // namespace strait
