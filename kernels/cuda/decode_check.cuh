// Checks 1 to 11 of FORMAT.md section 6, in parts that run in parallel: each part records which checks fail, and the
// verdict is the first of these.
#ifndef STRAIT_KERNELS_CUDA_DECODE_CHECK_CUH
#define STRAIT_KERNELS_CUDA_DECODE_CHECK_CUH

#include "kernels/cuda/decode_team.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/parts.cuh"
#include "kernels/cuda/typed.cuh"

namespace strait
{

DEVICE uint32_t word_at(const uint8_t *metadata, uint64_t offset)
{
    return *reinterpret_cast<const uint32_t *>(metadata + offset);
}

// Flag of blocks of this element type, from a table in a word: there are not many registers.
DEVICE uint32_t what_of_element(uint32_t element)
{
    constexpr uint32_t FLAGS = BLOCK_FP16 / BLOCK_FP32 << (4 * STRAIT_ELEMENT_FP16) | 1u << (4 * STRAIT_ELEMENT_FP32) |
                               BLOCK_E5M2 / BLOCK_FP32 << (4 * STRAIT_ELEMENT_FP8_E5M2);
    return (FLAGS >> (4 * element) & 7) * BLOCK_FP32;
}

DEVICE int32_t header_status(const decode_item &item, chunk_header &header, const uint32_t w[12])
{
    const uint32_t version = w[1] & 255, element = w[1] >> 8 & 255, flags = w[1] >> 16 & 255;
    if (w[0] != ('S' | 'T' << 8 | 'R' << 16 | static_cast<uint32_t>('C') << 24))
        return STRAIT_ERR_CORRUPT;
    if (version != FORMAT_VERSION || element > STRAIT_ELEMENT_FP8_E5M2 || flags > 1)
        return STRAIT_ERR_UNSUPPORTED;
    if (w[1] >> 24 != 0 || w[5] != 0 || w[2] == 0 || w[2] > STRAIT_CHUNK_PAGES_MAX || w[3] == 0 ||
        w[3] > STRAIT_PAGE_BYTES_MAX || w[4] % UNIT != 0)
        return STRAIT_ERR_CORRUPT;
    header.element = element;
    header.lengths = flags;
    header.page_count = w[2];
    header.page_bytes = w[3];
    header.units = w[4] / UNIT;
    header.rows_per_page = blocks_of(w[3]) - 1;
    header.has_codebook = (w[6] | w[7] | w[8] | w[9]) != 0;
    header.what = (header.has_codebook ? BLOCK_CODEBOOK : 0) | what_of_element(element);
    for (uint32_t i = 0; i < 4; i++)
        header.id[i] = w[6 + i];
    header.sum = w[10] | static_cast<uint64_t>(w[11]) << 32;
    const uint64_t metadata = (metadata_bytes(w[2], header.rows_per_page, flags) + UNIT - 1) / UNIT;
    if (header.units < metadata + 1)
        return STRAIT_ERR_CORRUPT;
    header.metadata_units = static_cast<uint32_t>(metadata);
    if (metadata > item.metadata_limit) // with src_size below, as far as the chunk
        header.metadata = item.src;
    if (item.src_size < w[4])
        return STRAIT_ERR_TRUNCATED;
    return item.src_size > w[4] && !item.at_most ? STRAIT_ERR_CORRUPT : STRAIT_OK;
}

// Checks 1 to 6.
DEVICE chunk_header read_header(const decode_item &item)
{
    chunk_header header = {};
    header.metadata = item.metadata != nullptr ? item.metadata : item.src;
    header.status = STRAIT_ERR_TRUNCATED;
    if (item.src_size < STRAIT_CHUNK_HEADER_BYTES)
        return header;
    uint32_t w[12];
#pragma unroll
    for (uint32_t v = 0; v < 3; v++) {
        const uint4 x = reinterpret_cast<const uint4 *>(header.metadata)[v];
        w[4 * v] = x.x, w[4 * v + 1] = x.y, w[4 * v + 2] = x.z, w[4 * v + 3] = x.w;
    }
    header.status = header_status(item, header, w);
    return header;
}

DEVICE uint64_t entry_at(uint32_t page)
{
    return STRAIT_CHUNK_HEADER_BYTES + 16ull * page;
}

DEVICE uint32_t length_of(const chunk_header &header, uint32_t page)
{
    if (!header.lengths)
        return header.page_bytes;
    return word_at(header.metadata, entry_at(header.page_count) + 4ull * page);
}

DEVICE uint32_t row_of(const chunk_header &header, uint32_t page, uint32_t b)
{
    if (b == 0)
        return word_at(header.metadata, entry_at(page));
    return word_at(header.metadata, rows_offset(header.page_count, header.lengths) +
                                        4 * (static_cast<uint64_t>(page) * header.rows_per_page + b - 1));
}

// The unit where block b of a page of `blocks` blocks ends.
DEVICE uint32_t block_end(const chunk_header &header, uint32_t page, uint32_t blocks, uint32_t b)
{
    if (b + 1 < blocks)
        return row_of(header, page, b + 1) >> 4;
    return page + 1 < header.page_count ? row_of(header, page + 1, 0) >> 4 : header.units;
}

// Whether a block of a typed mode can have this many units: these modes have only a least number.
DEVICE bool typed_extent_fits(uint32_t mode, uint32_t element, uint32_t bytes, uint32_t extent)
{
    if (mode == STRAIT_BLOCK_FP8) {
        const uint32_t least = fp8_rests_size(element == STRAIT_ELEMENT_FP8_E5M2, bytes) + (bytes + 3) / 4 + FP8_RANKS;
        return is_fp8(element) && extent >= units_of(least) && extent < units_of(bytes);
    }
    const bool fp32 = element == STRAIT_ELEMENT_FP32;
    const uint32_t m = bytes / (fp32 ? 4 : 2), tail = bytes % (fp32 ? 4 : 2);
    const uint32_t halves = mode == STRAIT_BLOCK_PARTS ? 0 : low_bits_size_of(mode, fp32, m) + m;
    const uint32_t least = halves + (m + 3) / 4 + tail + TYPED_END_BYTES;
    return typed_mode_fits(mode, element) && extent >= units_of(least) && extent < units_of(bytes);
}

// Whether a block of this many raw bytes can have this mode and this many units.
DEVICE bool extent_fits(uint32_t mode, uint32_t element, uint32_t bytes, uint32_t extent)
{
    const uint32_t n = bytes / 2, t = bytes % 2, raw = units_of(bytes), codes = (n + 1) / 2;
    switch (mode) {
    case STRAIT_BLOCK_RAW:
        return extent == raw;
    case STRAIT_BLOCK_CONST:
        return extent == 1 && extent < raw;
    case STRAIT_BLOCK_TOP16:
        return extent == units_of(n + codes + t) && extent < raw;
    case STRAIT_BLOCK_TOP16_ESCAPES:
        return extent >= units_of(n + codes + 5 + t) && extent < raw;
    case STRAIT_BLOCK_TIERED:
        return extent >= units_of(n + (n + 3) / 4 + t) && extent < raw;
    default:
        return typed_extent_fits(mode, element, bytes, extent);
    }
}

// What parts of the check find: failed checks; pages of the greatest length, and shorter ones.
constexpr uint32_t FAILED_8 = 1, FAILED_9 = 2, FAILED_10 = 4, HAS_LONGEST = 8, HAS_SHORTER = 16, TABLE_SHIFT = 8;

struct part_findings {
    uint32_t found;       // flags
    uint32_t table_limit; // tables that the codebook must have: 0 to 65536
    uint64_t sum;         // terms of the metadata's sum
};

DEVICE void check_entry(const chunk_header &header, uint32_t page, uint32_t length, part_findings &found)
{
    const uint32_t word = word_at(header.metadata, entry_at(page) + 4), table = word & 0xffff;
    if (word >> 16 != 0 || (table != 0 && !header.has_codebook))
        found.found |= FAILED_10;
    found.table_limit = max(found.table_limit, table + 1);
    found.found |= length == header.page_bytes ? HAS_LONGEST : HAS_SHORTER;
}

// Checks 8 to 10 for block b of a page, which may or may not exist.
DEVICE void check_block(const chunk_header &header, uint32_t page, uint32_t b, part_findings &found)
{
    const uint32_t length = length_of(header, page), row = row_of(header, page, b), mode = row & 15, at = row >> 4;
    if (b == 0)
        check_entry(header, page, length, found);
    if (length == 0 || length > header.page_bytes) { // check 8 reports it
        found.found |= FAILED_8;
        return;
    }
    const uint32_t blocks = blocks_of(length);
    if (b >= blocks) {
        found.found |= row != 0 ? FAILED_10 : 0;
        return;
    }
    if ((DEVICE_BLOCK_MODES >> mode & 1) == 0)
        found.found |= FAILED_9;
    const uint32_t end = block_end(header, page, blocks, b);
    const bool by_table = mode >= STRAIT_BLOCK_TOP16 && mode <= STRAIT_BLOCK_TIERED;
    const bool has_table = header.element == STRAIT_ELEMENT_BF16 && header.has_codebook;
    const bool begins = page > 0 || b > 0 || at == header.metadata_units;
    if ((by_table && !has_table) || !begins || end <= at ||
        !extent_fits(mode, header.element, block_bytes(length, b), end - at))
        found.found |= FAILED_10;
}

// A vector of metadata: adds its sum, and checks that only zeroes follow the last row.
DEVICE void check_vector(const chunk_header &header, uint32_t unit, part_findings &found)
{
    const uint4 x = reinterpret_cast<const uint4 *>(header.metadata)[unit];
    uint32_t w[4] = {x.x, x.y, x.z, x.w};
    if (unit == 2) // the sum counts its own field as zero
        w[2] = w[3] = 0;
    found.sum += sum_of_vector(w, unit);
    const uint64_t end = metadata_bytes(header.page_count, header.rows_per_page, header.lengths);
    for (uint32_t j = 0; j < 4; j++)
        if (16ull * unit + 4 * j >= end && w[j] != 0)
            found.found |= FAILED_8;
}

// Status of the chunk from the findings of all parts: checks 7 to 11, then whether the chunk fits the list of pages.
template <class LAUNCH>
DEVICE int32_t find_status(const LAUNCH &launch, const decode_item &item, const chunk_header &header,
                           const part_findings &found)
{
    if (header.status != STRAIT_OK)
        return header.status;
    const uint64_t seed = sum_seed(static_cast<uint64_t>(header.metadata_units) * UNIT, 0xffffffffu, 65535);
    if (found.sum + seed != header.sum)
        return STRAIT_ERR_INTEGRITY;
    const uint32_t lengths = HAS_LONGEST | HAS_SHORTER;
    if ((found.found & FAILED_8) != 0 || (header.lengths && (found.found & lengths) != lengths))
        return STRAIT_ERR_CORRUPT;
    if ((found.found & FAILED_9) != 0)
        return STRAIT_ERR_UNSUPPORTED;
    if ((found.found & FAILED_10) != 0)
        return STRAIT_ERR_CORRUPT;
    bool fits = found.table_limit <= launch.head.table_count;
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *id = launch.head.codebook_id + 4 * i;
        fits = fits && header.id[i] == (id[0] | id[1] << 8 | id[2] << 16 | static_cast<uint32_t>(id[3]) << 24);
    }
    if (header.has_codebook && !fits)
        return STRAIT_ERR_CODEBOOK;
    if (item.select == nullptr && item.page_count != header.page_count)
        return STRAIT_ERR_INVALID;
    const uint32_t element = header.element;
    const uint32_t alignment = element == STRAIT_ELEMENT_FP32                                     ? 4
                               : element == STRAIT_ELEMENT_BF16 || element == STRAIT_ELEMENT_FP16 ? 2
                                                                                                  : 1;
    return item.alignment % alignment != 0 ? STRAIT_ERR_ALIGNMENT : STRAIT_OK;
}

// All lanes: the findings of all lanes.
DEVICE part_findings all_findings(const part_findings &of_lane)
{
    return {__reduce_or_sync(ALL_LANES, of_lane.found), __reduce_max_sync(ALL_LANES, of_lane.table_limit),
            warp_sum(of_lane.sum)};
}

DEVICE void store_verdict(progress &chunk, uint64_t tag, uint32_t inverted_status)
{
    store_relaxed(&chunk.verdict, tag | VERDICT_READY | inverted_status);
}

// In place of -status while some part of the check has not ended.
constexpr uint32_t NO_VERDICT = 256;

// All lanes: -status of the chunk, from the records of all parts.
template <class LAUNCH>
DEVICE uint32_t gather_records(const LAUNCH &launch, const chunk_header &header, uint32_t item_index, uint64_t tag,
                               uint32_t lane)
{
    const decode_item &item = get_item<decode_item>(launch, item_index);
    uint64_t v[2] = {tag, 0};
    if (lane < item.checks)
        load_relaxed_both(launch.head.records + 2 * (item_index * CHECK_RECORDS + lane), v);
    if (!__all_sync(ALL_LANES, (v[0] & ~TAG_MASK) == tag))
        return NO_VERDICT;
    const uint32_t word = static_cast<uint32_t>(v[0] & TAG_MASK), flags = word & ((1u << TABLE_SHIFT) - 1);
    const part_findings all = all_findings({flags, word >> TABLE_SHIFT, v[1]});
    return -find_status(launch, item, header, all);
}

// All lanes: -status of the chunk; waits for the parts of its check. The caller reads nothing else that they wrote.
template <class LAUNCH>
DEVICE uint32_t wait_verdict(const LAUNCH &launch, const chunk_header &header, uint32_t item_index, uint64_t tag,
                             uint32_t lane)
{
    const progress &chunk = launch.head.items[item_index];
    const bool has_records = get_item<decode_item>(launch, item_index).checks <= CHECK_RECORDS;
    for (;; __nanosleep(20)) {
        const uint64_t v = load_relaxed(&chunk.verdict);
        if (__any_sync(ALL_LANES, (v & ~TAG_MASK) == tag)) // lanes may see different states
            return __reduce_max_sync(ALL_LANES, (v & ~TAG_MASK) == tag ? static_cast<uint32_t>(v) & 255 : 0);
        const uint32_t status = has_records ? gather_records(launch, header, item_index, tag, lane) : NO_VERDICT;
        if (status != NO_VERDICT)
            return status;
    }
}

// One lane: adds a part's findings to those of the others. True for the last part, which gets all of them.
DEVICE bool merge_findings(progress &chunk, uint32_t parts, part_findings &found)
{
    atomicOr(&chunk.failed_checks, found.found);
    atomicMax(&chunk.table_limit, found.table_limit);
    atomicAdd(reinterpret_cast<unsigned long long *>(&chunk.sum), static_cast<unsigned long long>(found.sum));
    if (count_acq_rel(&chunk.checked) != parts - 1)
        return false;
    found = {load_relaxed(&chunk.failed_checks), load_relaxed(&chunk.table_limit), load_relaxed(&chunk.sum)};
    return true;
}

// All lanes: what one part of the check finds. Parts take vectors and blocks in turn, so that they are equally long
// whatever the header claims.
DEVICE part_findings find_in_part(const chunk_header &header, const decode_item &item, uint32_t part, uint32_t lane)
{
    part_findings found = {};
    if (header.status == STRAIT_OK) {
        const uint32_t per_page = header.rows_per_page + 1, blocks = header.page_count * per_page;
        const uint32_t stride = 32 * item.checks;
#pragma unroll 1
        for (uint64_t k = 32 * part + lane; k < blocks; k += stride)
            check_block(header, static_cast<uint32_t>(k) / per_page, static_cast<uint32_t>(k) % per_page, found);
#pragma unroll 1
        for (uint64_t u = 32 * part + lane; u < header.metadata_units; u += stride)
            check_vector(header, static_cast<uint32_t>(u), found);
    }
    return all_findings(found);
}

// All lanes: one part of the check of a chunk. The last part publishes the verdict: of few parts, the one whose ticket
// is drawn last, which waits for the others; of many, the one that ends last.
template <class LAUNCH>
DEVICE void check_part(const LAUNCH &launch, const chunk_header &header, uint32_t item_index, uint32_t part,
                       uint64_t tag, uint32_t lane)
{
    const decode_item &item = get_item<decode_item>(launch, item_index);
    progress &chunk = launch.head.items[item_index];
    part_findings found = find_in_part(header, item, part, lane);
    if (item.checks > CHECK_RECORDS) {
        if (lane == 0 && merge_findings(chunk, item.checks, found))
            store_verdict(chunk, tag, -find_status(launch, item, header, found));
    } else {
        if (lane == 0)
            store_relaxed_both(launch.head.records + 2 * (item_index * CHECK_RECORDS + part),
                               tag | found.table_limit << TABLE_SHIFT | found.found, found.sum);
        if (part == item.checks - 1) {
            const uint32_t status = wait_verdict(launch, header, item_index, tag, lane);
            if (lane == 0)
                store_verdict(chunk, tag, status);
        }
    }
    __syncwarp();
}

} // namespace strait
#endif
