// The first warp of an encoding team: draws tickets and fetches blocks to shared memory.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_BEGIN_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_BEGIN_CUH

#include "kernels/cuda/encode_close.cuh"
#include "kernels/cuda/encode_places.cuh"
#include "kernels/cuda/gather.cuh"

namespace strait
{

constexpr uint32_t NO_TABLE = 0xffffffffu;

template <coder CODER> DEVICE uint32_t table_bytes()
{
    return CODER == CODER_TOP16 ? IMAGE_TOP16_BYTES : IMAGE_TIERS_BYTES;
}

template <coder CODER> DEVICE const uint8_t *table_source(const uint8_t *tables, uint32_t table)
{
    return tables + static_cast<uint64_t>(table) * sizeof(table_image) +
           (CODER == CODER_TOP16 ? offsetof(table_image, top16) : offsetof(table_image, tiers));
}

// A block of a page that does not exist takes no room; its chunk is lost.
template <class LAUNCH> DEVICE void skip_block(const LAUNCH &launch, uint32_t item, uint32_t slot, uint64_t tag)
{
    progress &chunk = launch.head.items[item];
    store_relaxed(launch.head.planes[PLANE_SIZES] + slot, tag | make_size(0, BAD_PAGE, 0));
    note_block(launch, tag, slot, make_size(0, BAD_PAGE, 0), 0);
    atomicOr(&chunk.failed_checks, 1u);
    count_release(&chunk.blocks_done, 1);
}

// What is known of a block before there is room for it.
struct found_block {
    uint32_t item, k;
    place at;
    uint8_t *page; // nullptr: the page does not exist
};

template <class LAUNCH> DEVICE found_block look_up_block(const LAUNCH &launch, uint32_t item_index, uint32_t k)
{
    const encode_item &item = get_item<encode_item>(launch, item_index);
    found_block found = {item_index, k, find_block(launch, item, k), nullptr};
    const region r = get_region(launch, item.first_region + found.at.region);
    const uint32_t index = found.at.page - found.at.region * item.id_count;
    const uint32_t id = item.ids == nullptr ? index : item.ids[index];
    if (id < r.page_count)
        found.page = r.base + id * r.page_stride;
    return found;
}

// One lane: prefetches the ticket's block to the L2. Nobody knows yet which team will draw it, but all teams together
// do this for all of the first tickets, while they draw them.
template <class LAUNCH> DEVICE void prefetch_first(const LAUNCH &launch, uint32_t ticket)
{
    walk at;
    walk_begin(launch, at);
    if (ticket < at.end || ticket >= launch.head.tickets)
        return;
    walk_to(launch, at, ticket);
    if (at.kind != KIND_BLOCKS)
        return;
    const found_block found = look_up_block(launch, at.item, ticket - at.first);
    const region r = get_region(launch, get_item<encode_item>(launch, at.item).first_region + found.at.region);
    const uint32_t bytes = block_bytes(r.page_bytes, found.at.block);
    if (found.page != nullptr && (r.shape & SHAPE_WHOLE) != 0 && can_bulk(r, bytes))
        bulk_prefetch(found.page + found.at.block * BLOCK_SIZE, bytes);
}

// All lanes: fetches the team's `turn`-th block to the stage, and its table unless that is there already.
template <coder CODER, class LAUNCH>
DEVICE void fetch_block(const LAUNCH &launch, const encode_team<CODER> &team, const found_block &found, uint32_t turn,
                        uint32_t lane, uint32_t *table)
{
    const encode_item &item = get_item<encode_item>(launch, found.item);
    encode_shared &shared = team.shared();
    const region r = get_region(launch, item.first_region + found.at.region);
    const uint32_t offset = found.at.block * BLOCK_SIZE, bytes = block_bytes(r.page_bytes, found.at.block);
    const bool bulk = can_bulk(r, bytes), new_table = launch.head.coded && *table != r.table;
    const uint32_t of_table = new_table ? table_bytes<CODER>() : 0;
    if (!bulk)
        plain_gather(r, found.page, offset, bytes, team.input(), lane);
    __syncwarp();
    if (lane == 0) {
        shared.block = {0,
                        bytes,
                        found.at.block * (BLOCK_VECTORS / 4),
                        item.first_slot + found.k,
                        item.first_slot,
                        found.item,
                        item.dst + static_cast<uint64_t>(item.metadata_units) * UNIT};
        barrier_expect(&shared.full, of_table + (bulk ? bytes : 0));
        barrier_arrive(&shared.begun[turn % ENCODE_AHEAD]);
        if (new_table)
            bulk_load(team.table(), table_source<CODER>(launch.head.tables, r.table), of_table, &shared.full);
    } else if (lane < WARP_ARRIVALS) {
        barrier_arrive(&shared.full);
    }
    __syncwarp();
    if (bulk)
        bulk_gather(r, found.page, offset, bytes, team.input(), &shared.full, lane);
    *table = r.table;
}

// Handles a ticket for the end of a chunk. Returns the next ticket. Meanwhile the warp's state is kept in shared
// memory: there are not enough registers for both.
template <bool LATER, class LAUNCH>
DEVICE uint32_t end_chunk(const LAUNCH &launch, encode_shared &shared, begin_state &known, uint32_t ticket,
                          uint32_t lane)
{
    const uint32_t item = known.at.item, part = ticket - known.at.first;
    if (lane == 0)
        shared.kept = known;
    __syncwarp();
    const closing end = begin_closing(launch, item, shared.tag);
    const bool last = close_part<LATER>(launch, item, part, end, lane);
    uint32_t drawn = 0;
    const bool early = last && ticket >= launch.head.ends_from; // nobody waits for what is drawn after these
    if (early)
        drawn = draw_tickets(launch, 1, lane);
    if (last)
        finish_chunk(launch, item, end, lane);
    if (!early)
        drawn = draw_tickets(launch, 1, lane);
    known = shared.kept;
    return show_ticket(drawn);
}

// A ticket that has been drawn keeps all later blocks waiting for their places. So the next one is drawn only when the
// block before it has arrived: its lookup then overlaps with the coding of that block. Over a link, blocks leave far
// more slowly than they are coded, so there the draw also waits for the buffers that the block will be written to.
template <class LAUNCH>
DEVICE uint32_t next_ticket(const LAUNCH &launch, encode_shared &shared, uint32_t turn, uint32_t lane)
{
    if (turn > 0)
        barrier_wait(&shared.full, (turn - 1) & 1);
    if (launch.head.far)
        wait_unused(shared, turn);
    return show_ticket(draw_tickets(launch, 1, lane));
}

// `drawn`: the first ticket, in lane 0.
template <coder CODER, class LAUNCH>
DEVICE void begin_blocks(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t teams, uint32_t drawn)
{
    const uint32_t lane = threadIdx.x % 32;
    encode_shared &shared = team.shared();
    const uint64_t tag = shared.tag;
    uint32_t ticket = show_ticket(drawn);
    begin_state known = {{}, NO_TABLE, 0};
    walk_begin(launch, known.at);
    if (is_short(launch, teams))
        let_next_launch_begin();
    while (ticket != 0 && ticket < launch.head.tickets) {
        walk_to(launch, known.at, ticket);
        if (known.at.kind == KIND_CLOSE) {
            ticket = end_chunk<is_later(CODER)>(launch, shared, known, ticket, lane);
            continue;
        }
        const found_block found = look_up_block(launch, known.at.item, ticket - known.at.first);
        if (found.page != nullptr) {
            if (known.turn > 0)
                barrier_wait(&shared.empty, (known.turn - 1) & 1);
            fetch_block(launch, team, found, known.turn, lane, &known.table);
            known.turn++;
        } else if (lane == 0) {
            skip_block(launch, known.at.item, get_item<encode_item>(launch, known.at.item).first_slot + found.k, tag);
        }
        __syncwarp();
        ticket = next_ticket(launch, shared, known.turn, lane);
    }
    const uint32_t turn = known.turn;
    let_next_launch_begin();
    if (turn > 0)
        barrier_wait(&shared.empty, (turn - 1) & 1);
    if (lane == 0)
        shared.block.stop = 1;
    warp_arrive(&shared.full, lane);
    if (ticket == 0)
        place_blocks(launch, tag);
    end_team(launch, lane, teams);
}

} // namespace strait
#endif
