// Drawing tickets and finding the work that they stand for.
#ifndef STRAIT_KERNELS_CUDA_WORK_CUH
#define STRAIT_KERNELS_CUDA_WORK_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

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
    if (launch.head.far_regions != nullptr)
        return launch.head.far_regions[index];
    return reinterpret_cast<const region *>(launch.bytes + launch.head.regions_at)[index];
}

// The tag of this launch's words in scratch.
template <class LAUNCH> DEVICE uint64_t launch_tag(const LAUNCH &launch)
{
    return (load_relaxed(&launch.head.scratch->launch) + 1) << TAG_SHIFT;
}

// Records the result of a block: a word, and the block's sum.
template <class LAUNCH>
DEVICE void note_block(const LAUNCH &launch, uint64_t tag, uint32_t slot, uint32_t word, uint64_t sum)
{
    store_relaxed_both(launch.head.planes[PLANE_NOTES] + 2ull * slot, tag | word, sum);
}

// The result of a block; its word carries the tag once the result is known.
struct block_note {
    uint64_t word, sum;
};

template <class LAUNCH> DEVICE block_note look_at_note(const LAUNCH &launch, uint32_t slot)
{
    uint64_t v[2];
    load_relaxed_both(launch.head.planes[PLANE_NOTES] + 2ull * slot, v);
    return {v[0], v[1]};
}

// Waits until the result is known; the block's data may still be on its way. `note`: what the last look has found.
template <class LAUNCH> DEVICE uint32_t wait_note(const LAUNCH &launch, uint64_t tag, uint32_t slot, block_note &note)
{
    while ((note.word & ~TAG_MASK) != tag) {
        __nanosleep(20);
        note = look_at_note(launch, slot);
    }
    return static_cast<uint32_t>(note.word & TAG_MASK);
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

// The segment of the last ticket. A team's tickets only increase.
struct walk {
    uint32_t index, first, end, item, kind;
};

template <class LAUNCH> DEVICE void walk_begin(const LAUNCH &launch, walk &at)
{
    at = {0, 0, 0, 0, 0};
    at.index = 0xffffffffu;
    at.end = get_segment(launch, 0).first_ticket;
}

// After the last segment comes a sentinel that begins past all tickets.
template <class LAUNCH> DEVICE void walk_to(const LAUNCH &launch, walk &at, uint32_t ticket)
{
    while (ticket >= at.end) {
        at.index++;
        const segment &now = get_segment(launch, at.index);
        at.first = now.first_ticket;
        at.item = now.work >> 2;
        at.kind = now.work & 3;
        at.end = get_segment(launch, at.index + 1).first_ticket;
    }
}

// A block of a list: page number, block of the page, region of the item.
struct place {
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
template <class LAUNCH, class ITEM> DEVICE place find_block(const LAUNCH &launch, const ITEM &item, uint32_t k)
{
    place at;
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

// Blocks that a team has done but not yet reported to their chunks; lane i knows the chunk of the i-th. Before a block
// is reported, everything written for it must have arrived, and while all teams write that takes many times as long as
// a block. So it is done for many blocks at once.
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

    template <class LAUNCH> DEVICE void tell(const LAUNCH &launch, uint32_t lane)
    {
        __syncwarp();
        if (lane < count)
            count_release(&launch.head.items[item].blocks_done, 1);
        count = 0;
    }
};

// A launch of few tickets lets the next launch begin at once; in a long one that costs more than it gains.
constexpr uint32_t FEW_TICKETS = 16; // per team

template <class LAUNCH> DEVICE bool is_short(const LAUNCH &launch, uint32_t teams)
{
    return launch.head.tickets <= FEW_TICKETS * teams;
}

// The last team to end prepares the scratch for the next launch. All lanes of its first warp call it.
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

// Address of byte `offset` of a page, and how many bytes from there on are contiguous, at most `left`.
DEVICE uint8_t *page_piece(const region &r, uint8_t *page, uint32_t offset, uint32_t left, uint32_t *piece)
{
    if (r.shape & SHAPE_WHOLE) {
        *piece = left;
        return page + offset;
    }
    uint32_t row = offset / r.row_bytes, inside = offset - row * r.row_bytes, rest = r.row_bytes - inside;
    *piece = rest < left ? rest : left;
    return page + row * r.row_stride + inside;
}

} // namespace strait
#endif
