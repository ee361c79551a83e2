// The end of a chunk: once all blocks have arrived, its metadata is written in parts by as many warps as there are
// parts; the last one writes header and result.
#ifndef STRAIT_KERNELS_CUDA_ENCODE_CLOSE_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_CLOSE_CUH

#include "kernels/cuda/close.cuh"
#include "kernels/cuda/encode.cuh"

namespace strait
{

template <class LAUNCH> DEVICE uint32_t get_size(const LAUNCH &launch, uint32_t slot)
{
    return static_cast<uint32_t>(load_relaxed(launch.head.planes[PLANE_SIZES] + slot) & TAG_MASK);
}

// Where a block begins in its chunk, in units.
template <class LAUNCH> DEVICE uint32_t get_start(const LAUNCH &launch, const encode_item &item, uint32_t slot)
{
    const uint64_t *starts = launch.head.planes[PLANE_STARTS];
    uint64_t before = load_relaxed(starts + slot) - load_relaxed(starts + item.first_slot);
    return item.metadata_units + static_cast<uint32_t>(before & TAG_MASK);
}

// LATER: blocks may have modes whose forms say more than these.
template <bool LATER, class LAUNCH>
DEVICE uint32_t make_row(const LAUNCH &launch, const encode_item &item, uint32_t slot)
{
    const uint32_t form = size_form(get_size(launch, slot));
    return get_start(launch, item, slot) << 4 | (LATER ? form_mode(form) : form);
}

// The entry of a page, and what it adds to the statistics.
template <bool LATER, class LAUNCH>
DEVICE void make_entry(const LAUNCH &launch, const encode_item &item, uint32_t page, uint32_t w[4], page_tally &tally)
{
    const region r = get_region(launch, item.first_region + page / item.id_count);
    const uint32_t slot = item.first_slot + first_block_of(launch, item, page), blocks = blocks_of(r.page_bytes);
    const uint64_t *sums = launch.head.planes[PLANE_SUMS] + slot;
    const uint32_t start = get_start(launch, item, slot);
    uint32_t size = get_size(launch, slot);
    uint64_t sum = sum_seed(r.page_bytes, page, r.table) + load_relaxed(sums);
    tally.table = r.table;
    tally.failed = size_form(size) == BAD_PAGE;
    w[0] = start << 4 | (LATER ? form_mode(size_form(size)) : size_form(size));
    w[1] = r.table;
    if (!tally.failed)
        tally.add(LATER ? form_counted(size_form(size)) : size_form(size), block_bytes(r.page_bytes, 0) / 2,
                  size_escapes(size));
#pragma unroll 1
    for (uint32_t b = 1; b < blocks && !tally.failed; b++) {
        size = get_size(launch, slot + b);
        sum += load_relaxed(sums + b);
        tally.add(LATER ? form_counted(size_form(size)) : size_form(size), block_bytes(r.page_bytes, b) / 2,
                  size_escapes(size));
    }
    w[2] = static_cast<uint32_t>(sum);
    w[3] = static_cast<uint32_t>(sum >> 32);
}

// A word of the metadata past the entries: a page's length, a block's row, or padding.
template <bool LATER, class LAUNCH>
DEVICE uint32_t make_word_at(const LAUNCH &launch, const encode_item &item, uint64_t offset)
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
    return make_row<LATER>(launch, item, item.first_slot + first_block_of(launch, item, page) + b);
}

// The header's three vectors, the sum taken as zero.
template <class LAUNCH> DEVICE void make_header(const LAUNCH &launch, const encode_item &item, uint32_t header[12])
{
    const uint32_t last = item.first_slot + item.block_count - 1;
    const uint32_t units = get_start(launch, item, last) + size_units(get_size(launch, last));
    const uint8_t *id = launch.head.codebook_id;
    header[0] = 'S' | 'T' << 8 | 'R' << 16 | static_cast<uint32_t>('C') << 24;
    header[1] = FORMAT_VERSION | static_cast<uint32_t>(launch.head.element) << 8 | (item.has_lengths ? 1u << 16 : 0);
    header[2] = item.page_count;
    header[3] = item.page_bytes;
    header[4] = units * UNIT;
    header[5] = 0;
    for (int i = 0; i < 4; i++)
        header[6 + i] =
            id[4 * i] | id[4 * i + 1] << 8 | id[4 * i + 2] << 16 | static_cast<uint32_t>(id[4 * i + 3]) << 24;
    header[10] = header[11] = 0;
}

template <class LAUNCH> DEVICE uint64_t write_header(const LAUNCH &launch, const encode_item &item, uint64_t sum)
{
    uint32_t header[12];
    make_header(launch, item, header);
    sum += sum_seed(static_cast<uint64_t>(item.metadata_units) * UNIT, 0xffffffffu, 65535);
    for (uint32_t v = 0; v < 3; v++)
        sum += sum_of_vector(header + 4 * v, v);
    header[10] = static_cast<uint32_t>(sum);
    header[11] = static_cast<uint32_t>(sum >> 32);
    for (uint32_t v = 0; v < 3; v++)
        reinterpret_cast<uint4 *>(item.dst)[v] =
            make_uint4(header[4 * v], header[4 * v + 1], header[4 * v + 2], header[4 * v + 3]);
    return header[4];
}

// One lane, after all parts of the chunk.
template <class LAUNCH> DEVICE void finish_chunk(const LAUNCH &launch, const encode_item &item, progress &chunk)
{
    strait_result result = {};
    result.failed_pages = load_relaxed(&chunk.failed_pages);
    if (result.failed_pages != 0) {
        result.status = STRAIT_ERR_PAGE_ID;
    } else {
        result.bytes = write_header(launch, item, load_relaxed(&chunk.sum));
        for (int m = 0; m < STRAIT_BLOCK_MODES; m++)
            result.values[m] = load_relaxed(&chunk.values[m]);
    }
    write_result(item.result, result);
    clear_progress(chunk);
}

// All lanes: one part of the end of a chunk.
template <bool LATER, class LAUNCH>
DEVICE void close_part(const LAUNCH &launch, uint32_t item_index, uint32_t part, uint64_t tag, uint32_t lane)
{
    const encode_item &item = get_item<encode_item>(launch, item_index);
    progress &chunk = launch.head.items[item_index];
    wait_for_blocks(chunk, item.block_count, lane);
    const bool lost = load_relaxed(&chunk.failed_checks) != 0;
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
                make_entry<LATER>(launch, item, page, w, tally);
                if (page < item.page_status_count)
                    item.page_status[page] = tally.failed ? STRAIT_ERR_PAGE_ID : STRAIT_OK;
            } else {
                for (uint32_t j = 0; j < 4; j++)
                    w[j] = make_word_at<LATER>(launch, item, 16ull * unit + 4 * j);
            }
            sum += sum_of_vector(w, unit);
            if (!lost)
                reinterpret_cast<uint4 *>(item.dst)[unit] = make_uint4(w[0], w[1], w[2], w[3]);
        }
        if (!lost)
            count_classes(launch, tally, is_entry, lane);
        all.merge(tally);
    }
    add_tally(chunk, all, lane);
    sum = warp_sum(sum);
    if (lane == 0) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&chunk.sum), static_cast<unsigned long long>(sum));
        if (count_acq_rel(&chunk.closed) == item.closings - 1)
            finish_chunk(launch, item, chunk);
    }
    __syncwarp();
}

} // namespace strait
#endif
