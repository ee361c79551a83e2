// The first warp of a decoding team: draws tickets and fetches coded blocks to shared memory.
#ifndef STRAIT_KERNELS_CUDA_DECODE_BEGIN_CUH
#define STRAIT_KERNELS_CUDA_DECODE_BEGIN_CUH

#include "kernels/cuda/decode_check.cuh"
#include "kernels/cuda/decode_close.cuh"

namespace strait
{

// Units of the chunk before this one in the same line of global memory.
DEVICE uint32_t units_before(const uint8_t *chunk, uint32_t unit)
{
    const uint32_t in_line = (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(chunk) / UNIT) + unit) % (LINE / UNIT);
    return in_line < unit ? in_line : unit;
}

// Finds everything about block k of the item except its bytes; returns the status that this gives its page. The block's
// place is read from the metadata and checked once more: whatever the metadata holds by now, nothing outside the chunk
// is read. Loads come before what depends on them, so that they run in parallel.
template <class LAUNCH>
DEVICE int32_t describe_block(const LAUNCH &launch, uint32_t item_index, const chunk_header &header, uint32_t k,
                              decode_block &block, uint32_t *first_unit)
{
    const decode_item &item = get_item<decode_item>(launch, item_index);
    const place at = find_block(launch, item, k);
    block.item = item_index;
    block.slot = item.first_slot + k;
    if (header.status != STRAIT_OK)
        return header.status; // nobody will use it
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

// Notes the status of a block whose page cannot be decoded.
template <class LAUNCH>
DEVICE void note_failure(const LAUNCH &launch, const decode_block &block, uint64_t tag, int32_t status)
{
    note_block(launch, tag, block.slot, make_word(-status, 0, 0), 0);
    count_release(&launch.head.items[block.item].blocks_done, 1);
}

// One lane: prefetches a line of the metadata and of the page ids to the L2. All teams together do this for what the
// first tickets need, while they draw them.
template <class LAUNCH> DEVICE void prefetch_first(const LAUNCH &launch, uint32_t ticket)
{
    walk at;
    walk_begin(launch, at);
    if (ticket >= launch.head.tickets)
        return;
    walk_to(launch, at, ticket);
    if (at.kind != KIND_BLOCKS)
        return;
    const decode_item &item = get_item<decode_item>(launch, at.item);
    const uint64_t offset = static_cast<uint64_t>(ticket - at.first) * LINE;
    const uint64_t most = STRAIT_CHUNK_HEADER_BYTES + 20ull * item.page_count + 4ull * item.block_count;
    if (item.metadata == nullptr && offset < most && offset < item.src_size)
        prefetch_line(item.src + offset);
    if (item.ids != nullptr && offset < 4ull * item.id_count)
        prefetch_line(reinterpret_cast<const uint8_t *>(item.ids) + offset);
}

// One lane: fetches the block's bytes, and its table.
template <class LAUNCH>
DEVICE void fetch_block(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                        uint32_t first_unit)
{
    const decode_item &item = get_item<decode_item>(launch, block.item);
    decode_shared &shared = team.shared();
    const bool has_table = block.mode() >= STRAIT_BLOCK_TOP16 && block.table < launch.head.table_count;
    const uint64_t from = static_cast<uint64_t>(first_unit) * UNIT - block.before, left = item.src_size - from;
    const uint32_t lines = (block.before + block.units * UNIT + LINE - 1) / LINE * LINE;
    const uint32_t bytes = lines <= left ? lines : static_cast<uint32_t>(left);
    barrier_expect(&shared.full[stage], bytes + (has_table ? IMAGE_DECODE_BYTES : 0));
    bulk_load_once(team.lines(stage), item.src + from, bytes, &shared.full[stage]);
    if (has_table)
        bulk_load(team.memory + stage * DECODE_STAGE_BYTES,
                  launch.head.tables + static_cast<uint64_t>(block.table) * sizeof(table_image) +
                      offsetof(table_image, first),
                  IMAGE_DECODE_BYTES, &shared.full[stage]);
}

// What the first warp remembers from one ticket to the next.
struct beginner {
    uint64_t tag;
    uint32_t turn;         // number of blocks fetched
    uint32_t item;         // the item of shared.header
    bool passed;           // its verdict is known to be OK
    bool has_drawn;        // the next tickets are drawn
    uint32_t share, drawn; // how many; in lane 0, the first of them

    template <class LAUNCH> DEVICE void draw(const LAUNCH &launch, uint32_t lane)
    {
        drawn = draw_tickets(launch, share, lane);
        has_drawn = true;
    }
};

DEVICE void wait_stage(decode_shared &shared, uint32_t turn)
{
    if (turn >= DECODE_STAGES)
        barrier_wait(&shared.empty[turn % DECODE_STAGES], (turn / DECODE_STAGES - 1) & 1);
}

// All lanes: looks up `count` blocks of the item from number k on, one per lane, because a lookup is a long chain of
// memory latencies. Then fetches them one after another. Before waiting for room for the last of its tickets, draws the
// next ones.
template <class LAUNCH>
DEVICE void begin_run(const LAUNCH &launch, const decode_team &team, beginner &at, uint32_t k, uint32_t count,
                      bool last_run, uint32_t lane)
{
    decode_shared &shared = team.shared();
    decode_block block;
    uint32_t first_unit = 0;
    int32_t status = STRAIT_OK;
    at.passed = at.passed || load_relaxed(&launch.head.items[at.item].verdict) == (at.tag | VERDICT_READY);
    if (lane < count)
        status = describe_block(launch, at.item, shared.header, k + lane, block, &first_unit);
    const bool good = lane < count && status == STRAIT_OK;
    const uint32_t all_good = __ballot_sync(ALL_LANES, good), rank = popcount(all_good & low_bits(lane));
    if (good) {
        block.what |= at.passed ? BLOCK_PASSED : 0;
        shared.blocks[(at.turn + rank) % LOOKED_UP] = block;
    } else if (lane < count) {
        note_failure(launch, block, at.tag, status);
    }
    const uint32_t fetched = popcount(all_good);
#pragma unroll 1
    for (uint32_t i = 0; i < fetched; i++, at.turn++) {
        if (last_run && i + 1 == fetched)
            at.draw(launch, lane);
        wait_stage(shared, at.turn);
        __syncwarp(); // a lane that reads the barrier only after the block has come and gone would wait forever
        if (good && rank == i) {
            fetch_block(launch, team, at.turn % DECODE_STAGES, block, first_unit);
            barrier_arrive(&shared.begun[at.turn % DECODE_STAGES]);
        }
        __syncwarp();
    }
}

// How many tickets to draw at once: fewer when few are left, so that all teams end at about the same time.
constexpr uint32_t SHARE_PARTS = 4;

DEVICE uint32_t choose_share(uint32_t left, uint32_t teams)
{
    const uint32_t share = left / (SHARE_PARTS * teams);
    return share < 1 ? 1 : share < LOOK_UP ? share : LOOK_UP;
}

template <class LAUNCH> DEVICE uint32_t draw_first(const LAUNCH &launch, uint32_t teams, uint32_t lane)
{
    return draw_tickets(launch, choose_share(launch.head.tickets, teams), lane);
}

// `drawn`: from draw_first.
template <class LAUNCH>
DEVICE void begin_blocks(const LAUNCH &launch, const decode_team &team, uint32_t teams, uint32_t drawn)
{
    const uint32_t lane = threadIdx.x % 32, tickets = launch.head.tickets;
    decode_shared &shared = team.shared();
    beginner known = {launch_tag(launch), 0, 0xffffffffu, false, true, choose_share(tickets, teams), drawn};
    walk at;
    walk_begin(launch, at);
    if (is_short(launch, teams))
        let_next_launch_begin();
    for (;;) {
        if (!known.has_drawn)
            known.draw(launch, lane);
        uint32_t ticket = show_ticket(known.drawn);
        if (ticket >= tickets)
            break;
        const uint32_t end = ticket + known.share < tickets ? ticket + known.share : tickets;
        known.share = choose_share(tickets - ticket, teams);
        known.has_drawn = false;
        while (ticket < end) {
            walk_to(launch, at, ticket);
            if (known.item != at.item) {
                known.item = at.item;
                known.passed = false;
                __syncwarp();
                if (lane == 0)
                    shared.header = read_header(get_item<decode_item>(launch, at.item));
                __syncwarp();
            }
            if (at.kind == KIND_BLOCKS) {
                const uint32_t count = (end < at.end ? end : at.end) - ticket;
                begin_run(launch, team, known, ticket - at.first, count, ticket + count == end, lane);
                ticket += count;
                continue;
            }
            if (at.kind == KIND_CHECK) {
                check_part(launch, shared.header, at.item, ticket - at.first, known.tag, lane);
            } else {
                const uint32_t item = at.item;
                if (lane == 0)
                    shared.kept = at;
                if (close_part(launch, shared.header, item, ticket - at.first, known.tag, lane)) {
                    if (ticket >= launch.head.ends_from && ticket + 1 == end)
                        known.draw(launch, lane);
                    finish_chunk(launch, item, known.tag, lane);
                }
                at = shared.kept;
            }
            ticket++;
        }
    }
    let_next_launch_begin();
    wait_stage(shared, known.turn);
    if (lane == 0) {
        shared.blocks[known.turn % LOOKED_UP].what = BLOCK_STOP;
        barrier_arrive(&shared.full[known.turn % DECODE_STAGES]);
    }
    end_team(launch, lane, teams);
}

} // namespace strait
#endif
