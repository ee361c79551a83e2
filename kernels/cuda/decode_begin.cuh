// The first warp of a decoding team: tickets, and coded blocks to shared memory.
#ifndef STRAIT_KERNELS_CUDA_DECODE_BEGIN_CUH
#define STRAIT_KERNELS_CUDA_DECODE_BEGIN_CUH

#include "kernels/cuda/decode_check.cuh"
#include "kernels/cuda/decode_close.cuh"

namespace strait
{

// Everything about block k of the item but its bytes, and the status that its page has for its sake. Where it is in the
// chunk is read from the metadata once more, and checked once more: whatever lies there by now, nothing outside the
// chunk is read. Loads come before what depends on them, so that they run side by side.
template <class LAUNCH>
DEVICE int32_t describe_block(const LAUNCH &launch, uint32_t item_index, const chunk_header &header, uint32_t k,
                              decode_block &block, uint32_t *first_unit)
{
    const decode_item &item = get_item<decode_item>(launch, item_index);
    const place at = find_block(launch, item, k);
    block.stop = 0;
    block.item = item_index;
    block.slot = item.first_slot + k;
    block.mode = 0;
    if (header.status != STRAIT_OK)
        return header.status; // nobody will look at it
    const region r = get_region(launch, item.first_region + at.region);
    const uint32_t i = at.page - at.region * item.id_count, id = item.ids == nullptr ? i : item.ids[i];
    const uint32_t index = item.select == nullptr ? at.page : item.select[at.page];
    if (index >= header.page_count)
        return STRAIT_ERR_INVALID;
    const bool has_block = at.block <= header.rows_per_page; // else the length differs
    const uint32_t b = has_block ? at.block : 0, length = length_of(header, index), row = row_of(header, index, b);
    const uint32_t end =
        block_end(header, index, blocks_of(r.page_bytes) <= header.rows_per_page + 1 ? blocks_of(r.page_bytes) : 1, b);
    block.table = word_at(header.metadata, entry_at(index) + 4) & 0xffff;
    block.bytes = block_bytes(r.page_bytes, at.block);
    block.first_step = at.block * (BLOCK_VECTORS / 4);
    block.region = item.first_region + at.region;
    block.offset = at.block * BLOCK_SIZE;
    block.direct = (r.shape & SHAPE_WIDTH) == 4 && (r.shape & SHAPE_WHOLE) != 0 && block.bytes % 16 == 0;
    block.page = r.base + id * r.page_stride;
    block.mode = row & 15;
    block.units = end - (row >> 4);
    *first_unit = row >> 4;
    if (id >= r.page_count)
        return STRAIT_ERR_PAGE_ID;
    if (length != r.page_bytes)
        return STRAIT_ERR_INVALID;
    if (row >> 4 < header.metadata_units || end <= row >> 4 || end > header.units ||
        !extent_fits(block.mode, block.bytes, block.units))
        return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

// A block of a page that cannot be decoded.
template <class LAUNCH> DEVICE void note_failure(const LAUNCH &launch, const decode_block &block, int32_t status)
{
    launch.head.planes[PLANE_SUMS][block.slot] = 0;
    launch.head.planes[PLANE_WORDS][block.slot] = make_word(-status, 0, 0);
    count_release(&launch.head.items[block.item].blocks_done, 1);
}

// One lane: the block's bytes, and its table's.
template <class LAUNCH>
DEVICE void fetch_block(const LAUNCH &launch, const decode_team &team, uint32_t stage, const decode_block &block,
                        uint32_t first_unit)
{
    const decode_item &item = get_item<decode_item>(launch, block.item);
    decode_shared &shared = team.shared();
    const bool has_table = block.mode >= STRAIT_BLOCK_TOP16 && block.table < launch.head.table_count;
    shared.blocks[stage] = block;
    barrier_expect(&shared.full[stage], block.units * UNIT + (has_table ? IMAGE_DECODE_BYTES : 0));
    bulk_load(team.input(stage), item.src + static_cast<uint64_t>(first_unit) * UNIT, block.units * UNIT,
              &shared.full[stage]);
    if (has_table)
        bulk_load(team.memory + stage * DECODE_STAGE_BYTES,
                  launch.head.tables + static_cast<uint64_t>(block.table) * sizeof(table_image) +
                      offsetof(table_image, first),
                  IMAGE_DECODE_BYTES, &shared.full[stage]);
}

template <class LAUNCH> DEVICE void begin_blocks(const LAUNCH &launch, const decode_team &team, uint32_t teams)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t tag = launch_tag(launch);
    decode_shared &shared = team.shared();
    uint32_t turn = 0, known_item = 0xffffffffu;
    walk at;
    walk_begin(launch, at);
    auto wait_stage = [&] {
        if (turn >= DECODE_STAGES)
            barrier_wait(&shared.empty[turn % DECODE_STAGES], (turn / DECODE_STAGES - 1) & 1);
    };
    bool passed = false; // the chunk, as far as is known here
    for (uint32_t drawn = draw_ticket(launch, lane);;) {
        const uint32_t ticket = show_ticket(drawn);
        if (ticket >= launch.head.tickets)
            break;
        drawn = draw_ticket(launch, lane); // on its way until the next turn
        walk_to(launch, at, ticket);
        if (known_item != at.item) {
            known_item = at.item;
            passed = false;
            __syncwarp();
            if (lane == 0)
                shared.header = read_header(get_item<decode_item>(launch, at.item));
            __syncwarp();
        }
        if (at.kind == KIND_CHECK) {
            check_part(launch, shared.header, at.item, ticket - at.first, tag, lane);
            continue;
        }
        if (at.kind == KIND_CLOSE) {
            close_part(launch, shared.header, at.item, ticket - at.first, tag, lane);
            continue;
        }
        uint32_t first_unit = 0;
        int32_t status = STRAIT_OK;
        if (lane == 0) {
            passed = passed || load_relaxed(&launch.head.items[at.item].verdict) == (tag | VERDICT_READY);
            status = describe_block(launch, at.item, shared.header, ticket - at.first, shared.next, &first_unit);
            shared.next.passed = passed;
            if (status != STRAIT_OK)
                note_failure(launch, shared.next, status);
        }
        if (__shfl_sync(ALL_LANES, status, 0) != STRAIT_OK)
            continue;
        wait_stage();
        if (lane == 0)
            fetch_block(launch, team, turn % DECODE_STAGES, shared.next, first_unit);
        __syncwarp();
        turn++;
    }
    wait_stage();
    if (lane == 0) {
        shared.blocks[turn % DECODE_STAGES].stop = 1;
        barrier_arrive(&shared.full[turn % DECODE_STAGES]);
    }
    end_team(launch, lane, teams);
}

} // namespace strait
#endif
