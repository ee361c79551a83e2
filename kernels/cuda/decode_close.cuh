// The end of a chunk: once all blocks are done, pages get their status, in parts; the last part writes the result.
// Judging pages earlier does not pay: while blocks are being written, the fence that it needs takes longer.
#ifndef STRAIT_KERNELS_CUDA_DECODE_CLOSE_CUH
#define STRAIT_KERNELS_CUDA_DECODE_CLOSE_CUH

#include "kernels/cuda/close.cuh"
#include "kernels/cuda/decode_check.cuh"

namespace strait
{

// The page's status, from the notes on its blocks and from its sum. If it is OK, `tally` gets what it adds to the
// statistics.
template <class LAUNCH>
DEVICE int32_t judge_page(const LAUNCH &launch, const decode_item &item, const chunk_header &header, uint32_t page,
                          uint64_t tag, page_tally &tally, uint32_t *page_bytes)
{
    const region r = get_region(launch, item.first_region + page / item.id_count);
    const uint32_t slot = item.first_slot + first_block_of(launch, item, page), blocks = blocks_of(r.page_bytes);
    uint64_t sum = 0;
    uint32_t status = 0;
#pragma unroll 1
    for (uint32_t b = 0; b < blocks; b++) {
        block_note note = look_at_note(launch, slot + b);
        const uint32_t word = wait_note(launch, tag, slot + b, note);
        sum += note.sum;
        status = status == 0 ? word >> 17 : status;
        tally.add(word >> 14 & 7, block_bytes(r.page_bytes, b) / 2, word & 16383);
    }
    *page_bytes = r.page_bytes;
    const uint32_t index = item.select == nullptr ? page : item.select[page];
    if (status != 0)
        return -static_cast<int32_t>(status);
    if (index >= header.page_count)
        return STRAIT_ERR_INVALID;
    const uint64_t entry = entry_at(index);
    tally.table = word_at(header.metadata, entry + 4) & 0xffff;
    sum += sum_seed(r.page_bytes, index, tally.table);
    const bool same = word_at(header.metadata, entry + 8) == static_cast<uint32_t>(sum) &&
                      word_at(header.metadata, entry + 12) == static_cast<uint32_t>(sum >> 32);
    return same ? STRAIT_OK : STRAIT_ERR_INTEGRITY;
}

// All lanes, after all parts of the chunk: writes the result.
template <class LAUNCH> DEVICE void finish_chunk(const LAUNCH &launch, uint32_t item_index, uint64_t tag, uint32_t lane)
{
    const decode_item &item = get_item<decode_item>(launch, item_index);
    progress &chunk = launch.head.items[item_index];
    const int32_t chunk_status = -static_cast<int32_t>(wait_verdict(chunk, tag));
    strait_result result = {};
    const uint64_t values = lane < STRAIT_BLOCK_MODES ? load_relaxed(&chunk.values[lane]) : 0;
    const uint64_t failure = load_relaxed(&chunk.first_failure);
    result.chunk_status = chunk_status;
    result.failed_pages = load_relaxed(&chunk.failed_pages);
    result.bytes = load_relaxed(&chunk.bytes);
    if (chunk_status != STRAIT_OK)
        result.status = chunk_status;
    else if (failure != 0)
        result.status = -static_cast<int32_t>(~failure & 255);
    write_result(item.result, result, values, lane);
    clear_progress(chunk, lane);
}

// All lanes: one part of the end of a chunk. True for the last part.
template <class LAUNCH>
DEVICE bool close_part(const LAUNCH &launch, const chunk_header &header, uint32_t item_index, uint32_t part,
                       uint64_t tag, uint32_t lane)
{
    const decode_item &item = get_item<decode_item>(launch, item_index);
    progress &chunk = launch.head.items[item_index];
    wait_for_blocks(chunk, item.block_count, lane);
    const int32_t chunk_status = -static_cast<int32_t>(wait_verdict(chunk, tag));
    page_tally all = {};
    uint64_t bytes = 0, first_failure = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < item.close_each; i += 32) {
        const uint32_t page = part * item.close_each + i + lane;
        page_tally tally = {};
        if (page < item.page_count) {
            uint32_t page_bytes = 0;
            int32_t status = chunk_status;
            if (chunk_status == STRAIT_OK)
                status = judge_page(launch, item, header, page, tag, tally, &page_bytes);
            if (page < item.page_status_count)
                item.page_status[page] = status;
            if (status != STRAIT_OK) {
                const uint64_t failure = ~(static_cast<uint64_t>(page) << 8 | static_cast<uint32_t>(-status));
                first_failure = max(first_failure, failure);
                tally = {};
                tally.failed = 1;
            }
            bytes += tally.failed ? 0 : page_bytes;
        }
        count_classes(launch, tally, page < item.page_count, lane);
        all.merge(tally);
    }
    add_tally(chunk, all, lane);
    bytes = warp_sum(bytes);
    if (first_failure != 0)
        atomicMax(reinterpret_cast<unsigned long long *>(&chunk.first_failure),
                  static_cast<unsigned long long>(first_failure));
    if (lane == 0)
        add_u64(&chunk.bytes, bytes);
    return is_last_part(chunk, item.closings, lane);
}

} // namespace strait
#endif
