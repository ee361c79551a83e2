// The end of a chunk: its metadata is written in parts, by as many warps as there are parts. The last one writes the
// header and, once all blocks have arrived, the result.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_CLOSE_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_CLOSE_CUH

#include "kernels/cuda/close.cuh"
#include "kernels/cuda/encode.cuh"

namespace strait
{

// A chunk whose end is being written: `first_start` is the place of its first block.
struct closing {
    uint64_t tag;
    uint32_t first_start;
};

// Where a block begins in its chunk, in units; waits until it is known.
template <class LAUNCH>
DEVICE uint32_t find_start(const LAUNCH &launch, const encode_item &item, const closing &end, uint32_t slot)
{
    return item.metadata_units + ((wait_start(launch, end.tag, slot) - end.first_start) & TAG_MASK);
}

// LATER: blocks may have later modes, whose forms also say how they are counted.
template <bool LATER> DEVICE uint32_t mode_of(uint32_t size)
{
    return LATER ? form_mode(size_form(size)) : size_form(size);
}

// Makes the entry of a page, and tallies what it adds to the statistics.
template <bool LATER, class LAUNCH>
DEVICE void make_entry(const LAUNCH &launch, const encode_item &item, const closing &end, uint32_t page, uint32_t w[4],
                       page_tally &tally)
{
    const region r = get_region(launch, item.first_region + page / item.id_count);
    const uint32_t slot = item.first_slot + first_block_of(launch, item, page), blocks = blocks_of(r.page_bytes);
    block_note note = look_at_note(launch, slot);
    const uint32_t start = find_start(launch, item, end, slot);
    uint64_t sum = sum_seed(r.page_bytes, page, r.table);
    uint32_t mode = 0;
    tally.table = r.table;
#pragma unroll 1
    for (uint32_t b = 0; b < blocks && !tally.failed; b++) {
        const uint32_t size = wait_note(launch, end.tag, slot + b, note);
        mode = b == 0 ? mode_of<LATER>(size) : mode;
        tally.failed = size_form(size) == BAD_PAGE;
        sum += note.sum;
        if (!tally.failed)
            tally.add(LATER ? form_counted(size_form(size)) : size_form(size), block_bytes(r.page_bytes, b) / 2,
                      size_escapes(size));
        if (b + 1 < blocks)
            note = look_at_note(launch, slot + b + 1);
    }
    w[0] = start << 4 | mode;
    w[1] = r.table;
    w[2] = static_cast<uint32_t>(sum);
    w[3] = static_cast<uint32_t>(sum >> 32);
}

// A word of the metadata past the entries: a page's length, a block's row, or padding.
template <bool LATER, class LAUNCH>
DEVICE uint32_t make_word_at(const LAUNCH &launch, const encode_item &item, const closing &end, uint64_t offset)
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
    block_note note = look_at_note(launch, slot);
    return find_start(launch, item, end, slot) << 4 | mode_of<LATER>(wait_note(launch, end.tag, slot, note));
}

// All lanes: writes the header, its three vectors by a lane each. Returns the bytes of the chunk.
template <class LAUNCH>
DEVICE uint32_t write_header(const LAUNCH &launch, const encode_item &item, const closing &end, uint64_t sum,
                             uint32_t lane)
{
    const uint32_t last = item.first_slot + item.block_count - 1;
    const uint32_t *id = reinterpret_cast<const uint32_t *>(launch.head.codebook_id);
    block_note note = look_at_note(launch, last);
    const uint32_t start = find_start(launch, item, end, last);
    const uint32_t bytes = (start + size_units(wait_note(launch, end.tag, last, note))) * UNIT;
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

// All lanes, after all parts of the chunk: does as much as possible before the chunk's blocks have arrived, then writes
// the result.
template <class LAUNCH>
DEVICE void finish_chunk(const LAUNCH &launch, uint32_t item_index, const closing &end, uint32_t lane)
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
    clear_progress(chunk, lane);
}

template <class LAUNCH> DEVICE closing begin_closing(const LAUNCH &launch, uint32_t item_index, uint64_t tag)
{
    return {tag, wait_start(launch, tag, get_item<encode_item>(launch, item_index).first_slot)};
}

// All lanes: one part of the end of a chunk, made from the notes on its blocks while these are on their way. True for
// the last part.
template <bool LATER, class LAUNCH>
DEVICE bool close_part(const LAUNCH &launch, uint32_t item_index, uint32_t part, const closing &end, uint32_t lane)
{
    const encode_item &item = get_item<encode_item>(launch, item_index);
    progress &chunk = launch.head.items[item_index];
    uint64_t sum = 0;
    page_tally all = {};
#pragma unroll 1
    for (uint32_t i = 0; i < item.close_each; i += 32) {
        const uint32_t unit = part * item.close_each + i + lane;
        const bool is_entry = unit >= ENTRY_UNITS_BEFORE && unit - ENTRY_UNITS_BEFORE < item.page_count;
        page_tally tally = {};
        if (unit >= ENTRY_UNITS_BEFORE && unit < item.metadata_units) {
            uint32_t w[4];
            if (is_entry) {
                const uint32_t page = unit - ENTRY_UNITS_BEFORE;
                make_entry<LATER>(launch, item, end, page, w, tally);
                if (page < item.page_status_count)
                    item.page_status[page] = tally.failed ? STRAIT_ERR_PAGE_ID : STRAIT_OK;
            } else {
                for (uint32_t j = 0; j < 4; j++)
                    w[j] = make_word_at<LATER>(launch, item, end, 16ull * unit + 4 * j);
            }
            sum += sum_of_vector(w, unit);
            reinterpret_cast<uint4 *>(item.dst)[unit] = make_uint4(w[0], w[1], w[2], w[3]);
        }
        __syncwarp();
        if (launch.head.class_stats != nullptr) { // whether the chunk is lost is known when all its blocks are counted
            wait_for_blocks(chunk, item.block_count, lane);
            if (load_relaxed(&chunk.failed_checks) == 0)
                count_classes(launch, tally, is_entry, lane);
        }
        all.merge(tally);
    }
    add_tally(chunk, all, lane);
    sum = warp_sum(sum);
    if (lane == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&chunk.sum), static_cast<unsigned long long>(sum));
    return is_last_part(chunk, item.closings, lane);
}

} // namespace strait
#endif
