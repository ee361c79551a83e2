// Decoding team: shared memory, and what workers of all modes have in common. Warps form a pipeline:
//
// fetch warps  check the metadata of a chunk in parts; the last part gives the verdict   (decode_check.cuh)
// fetch warp   draws tickets, looks blocks up, loads them to shared memory               (decode.cu)
// workers      decode a block; nothing is written before the verdict                     (mode_*.cuh)
// finish warp  checks what workers did not (counts, padding, block ends), publishes sum and status
// fetch warps  close a chunk: compare the sums of pages once all blocks are finished
//
// A coded block is read from global memory only once, so that a concurrent writer cannot change what has been checked.
#ifndef STRAIT_KERNELS_CUDA_DECODE_TEAM_CUH
#define STRAIT_KERNELS_CUDA_DECODE_TEAM_CUH

#include "kernels/cuda/bits.cuh"
#include "kernels/cuda/work.cuh"

namespace strait
{

// Flags of a block, in one word with its mode.
constexpr uint32_t BLOCK_MODE = 15, BLOCK_STOP = 16; // end of the launch
constexpr uint32_t BLOCK_REFUSED = 32;               // its chunk has not passed its check
constexpr uint32_t BLOCK_DIRECT = 64;                // whole vectors of a page that has no gaps and is 16-byte aligned
constexpr uint32_t BLOCK_WHOLE = 128;                // direct, and has all its values
constexpr uint32_t BLOCK_CODEBOOK = 256, BLOCK_FP32 = 512; // its chunk names a codebook; has values of FP32
constexpr uint32_t BLOCK_E5M2 = 1024, BLOCK_FP16 = 2048;   // ... of FP8 E5M2; of FP16

struct decode_block {
    uint32_t what;
    uint32_t item, slot;
    uint32_t bytes;  // decoded, 2n + t
    uint32_t units;  // coded
    uint32_t before; // bytes in its first line before it
    uint32_t table;
    uint32_t first_step; // of the page's sum: number of its first vector / 4
    uint32_t region;     // in the launch
    uint32_t offset;     // of the block in the page
    uint8_t *page;

    DEVICE uint32_t mode() const
    {
        return what & BLOCK_MODE;
    }
};

// Streams are read in words, a little past the end of the block: the bytes there never matter. A block is fetched as
// whole lines of global memory, as far as its chunk has them, including the bytes before and after it.
constexpr uint32_t DECODE_STAGES_MAX = 3, DECODE_SLACK = 64, LINE = 128, DECODE_TABLE_ROOM = LINE;
constexpr uint32_t DECODE_STAGE_BYTES = DECODE_TABLE_ROOM + BLOCK_SIZE + 3 * LINE;

// Blocks that the fetch warp looks up at once, and slots for them, which stay valid until the finish warp is done with
// them.
constexpr uint32_t LOOKUP_BLOCKS = 2, LOOKUP_SLOTS = 8;
static_assert(LOOKUP_SLOTS >= LOOKUP_BLOCKS + DECODE_STAGES_MAX, "what is still needed would be overwritten");

// Fields of a chunk header that has passed checks 1 to 6, after which all metadata lies inside the chunk.
struct chunk_header {
    int32_t status;
    uint32_t page_count, page_bytes, units, rows_per_page, metadata_units;
    uint32_t element, lengths, has_codebook, id[4];
    uint32_t what; // decode_block.what of all its blocks
    uint64_t sum;  // of the metadata, as the header states it
    const uint8_t *metadata;
};

// Set in the findings of a warp of workers: no encoder would have written its part of the block.
constexpr uint32_t WARP_BAD = 1u << 31;

struct alignas(16) decode_shared {
    // Barriers, one of each for a stage.
    uint64_t issued[DECODE_STAGES_MAX];    // a block has been released to the workers: its loads have been issued
    uint64_t full[DECODE_STAGES_MAX];      // the block has arrived
    uint64_t empty[DECODE_STAGES_MAX];     // the stage may be filled
    uint64_t done[DECODE_STAGES_MAX];      // the workers are done with the block
    uint64_t counts2_ready, counts3_ready; // tiers 2 and 3: all warps have published their counts
    uint64_t sums[DECODE_STAGES_MAX][WORKER_WARPS];
    uint4 keys[4]; // of the sum: in shared memory to save registers
    alignas(16) uint32_t counts2[DECODE_STAGES_MAX][WORKER_WARPS];
    alignas(16) uint32_t counts3[DECODE_STAGES_MAX][WORKER_WARPS];
    uint32_t escapes[DECODE_STAGES_MAX][WORKER_WARPS]; // of tier 4, by warp; WARP_BAD
    decode_block blocks[LOOKUP_SLOTS];
    struct segment_cursor saved; // state of the fetch warp while it closes a chunk
    chunk_header header;         // of the fetch warp's current chunk
    // Typed modes: rankings of bases; results of base_order for the values; first words.
    alignas(16) uint32_t base_images[DECODE_STAGES_MAX][16];
    uint32_t orders[DECODE_STAGES_MAX][WORKER_WARPS], firsts[DECODE_STAGES_MAX][WORKER_WARPS];
    uint16_t samples[DECODE_STAGES_MAX][WORKER_WARPS][32]; // FP8: how often each exponent is in the sample
    uint2 iterations[WORKER_WARPS]; // (of all blocks, of tiers), saved by a warp of workers during a call
};

// Three teams leave each thread 64 registers: too few for lanes that load.
ANY_SIDE constexpr team_shape decode_shape(uint32_t capability)
{
    const uint32_t fixed = BLOCK_VALUES + BLOCK_VALUES / 2 + static_cast<uint32_t>(sizeof(decode_shared));
    return choose_shape(capability, {fixed, DECODE_STAGE_BYTES, 128, 2, DECODE_STAGES_MAX, capability < 90 ? 2u : 3u});
}

constexpr team_shape DECODE_SHAPE = decode_shape(CAPABILITY);
constexpr uint32_t DECODE_STAGES = DECODE_SHAPE.buffers;

struct decode_team {
    static constexpr uint32_t BYTES = DECODE_SHAPE.bytes;

    uint8_t *memory;
    uint32_t number; // of the team in its thread block

    DEVICE const uint32_t *table(uint32_t stage) const
    {
        return reinterpret_cast<const uint32_t *>(memory + stage * DECODE_STAGE_BYTES);
    }
    DEVICE uint8_t *lines(uint32_t stage) const
    {
        return memory + stage * DECODE_STAGE_BYTES + DECODE_TABLE_ROOM;
    }
    // By value: exponents that are not in the first tiers, or not in the codes.
    DEVICE uint8_t *exponents() const
    {
        return memory + DECODE_STAGES * DECODE_STAGE_BYTES;
    }
    // Tiers 1 and 2, a word for 8 values; or a bit for each value: whether it is listed as an escape.
    DEVICE uint32_t *items() const
    {
        return reinterpret_cast<uint32_t *>(exponents() + BLOCK_VALUES);
    }
    DEVICE decode_shared &shared() const
    {
        return *reinterpret_cast<decode_shared *>(exponents() + BLOCK_VALUES + BLOCK_VALUES / 2);
    }
    DEVICE uint32_t barrier_id() const
    {
        return 1 + number;
    }
};

// The word at any byte of a stream.
DEVICE uint32_t load_word(const uint8_t *stream, uint32_t at)
{
    const uint32_t *words = reinterpret_cast<const uint32_t *>(stream) + at / 4;
    return at % 4 == 0 ? words[0] : shift_right(words[0], words[1], at % 4 * 8);
}

// An item of 2 or 4 bits of a stream that begins at byte `at`.
template <uint32_t WIDTH> DEVICE uint32_t get_item_of(const uint8_t *stream, uint32_t at, uint32_t i)
{
    return stream[at + i * WIDTH / 8] >> (i * WIDTH % 8) & ((1u << WIDTH) - 1);
}

// The u16 at a byte of an escape list: its count, or a position.
DEVICE uint32_t list_count(const uint8_t *input, uint32_t at)
{
    return input[at] | input[at + 1] << 8;
}

// Team of this thread, derived anew so that the compiler knows that all of it is in shared memory.
template <uint32_t TEAMS> DEVICE decode_team this_team(uint32_t thread = threadIdx.x)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    const uint32_t number = TEAMS == 1 ? 0 : thread / TEAM_THREADS;
    return {memory + number * decode_team::BYTES, number};
}

// ---- Workers, for blocks of all modes ------------------------------------------------------------------------------

// Writes values to their page and adds them to its sum.
struct block_writer {
    const uint4 *keys;
    partial_sum sum;
};

// Byte i of a vector, and the byte after it.
DEVICE uint32_t pair_of(const uint32_t w[4], uint32_t i)
{
    const uint32_t word = i < 8 ? (i < 4 ? w[0] : w[1]) : (i < 12 ? w[2] : w[3]);
    return word >> (8 * (i % 4));
}

// Stores `count` bytes of a vector to their page, row by row. Where rows are 16-byte aligned, a vector lies in one row.
template <class LAUNCH>
DEVICE void put_slowly(const LAUNCH &launch, const decode_block &block, uint32_t vector, const uint32_t w[4],
                       uint32_t count)
{
    const region r = get_region(launch, block.region);
    const uint32_t offset = block.offset + 16 * vector, width = r.shape & SHAPE_WIDTH;
    uint32_t piece, i = 0;
    if (width == 4 && count == 16) {
        *reinterpret_cast<uint4 *>(page_piece(r, block.page, offset, 16, &piece)) = make_uint4(w[0], w[1], w[2], w[3]);
        return;
    }
#pragma unroll 1
    for (; width > 0 && i + 2 <= count; i += 2)
        *reinterpret_cast<uint16_t *>(page_piece(r, block.page, offset + i, 2, &piece)) =
            static_cast<uint16_t>(pair_of(w, i));
#pragma unroll 1
    for (; i < count; i++)
        *page_piece(r, block.page, offset + i, 1, &piece) = static_cast<uint8_t>(pair_of(w, i));
}

// Stores a vector of a block that is not direct; `tail` is the tail byte of the block, if it has one.
template <class LAUNCH>
DEVICE void put_any(const LAUNCH &launch, const decode_block &block, partial_sum &sum, const uint32_t keys[4],
                    uint32_t vector, uint32_t w[4], uint32_t tail)
{
    if (16 * vector >= block.bytes)
        return;
    const uint32_t left = block.bytes - 16 * vector, count = left < 16 ? left : 16;
    const uint32_t step = block.first_step + vector / 4;
    if (left < 16) {
        truncate_vector(w, count & ~1u);
        if (count % 2 != 0) {
            const uint32_t at = count - 1;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                w[j] |= at / 4 == j ? tail << (8 * (at % 4)) : 0;
        }
    }
    sum_part(sum, w, count, keys, step * SUM_STEP_EVEN, step * SUM_STEP_ODD);
    put_slowly(launch, block, vector, w, count);
}

// Loads from shared memory are not moved ahead of stores to global memory, so this many vectors are made before the
// first is stored.
constexpr uint32_t PUT_TOGETHER = 2;

// Stores a worker's vectors of a direct block. A WHOLE block has all its values.
template <bool WHOLE, class MAKE>
DEVICE void put_direct(const decode_block &block, partial_sum &sum, const uint32_t keys[4], uint32_t first, MAKE make)
{
    const uint32_t vectors = WHOLE ? BLOCK_VECTORS : block.bytes / 16, step = block.first_step + first / 4;
    const uint32_t even_step = step * SUM_STEP_EVEN, odd_step = step * SUM_STEP_ODD;
    uint4 *dst = reinterpret_cast<uint4 *>(block.page + block.offset) + first;
#pragma unroll
    for (uint32_t g = 0; g < 4; g += PUT_TOGETHER) {
        uint32_t w[PUT_TOGETHER][4];
#pragma unroll
        for (uint32_t i = 0; i < PUT_TOGETHER; i++)
            if (WHOLE || first + 32 * (g + i) < vectors)
                make(first + 32 * (g + i), w[i]);
#pragma unroll
        for (uint32_t i = 0; i < PUT_TOGETHER; i++) {
            const uint32_t k = g + i;
            if (WHOLE || first + 32 * k < vectors) {
                sum_vector(sum, w[i], keys, even_step + k * 8 * SUM_STEP_EVEN, odd_step + k * 8 * SUM_STEP_ODD);
                store_streaming(dst + 32 * k, w[i]);
            }
        }
    }
}

// Stores a worker's vectors, whose values make(vector, w) gives.
template <bool WHOLE, class LAUNCH, class MAKE>
DEVICE void put_block(const LAUNCH &launch, const decode_block &block, block_writer &writer, uint32_t tail,
                      uint32_t warp, uint32_t lane, MAKE make)
{
    const uint4 k = writer.keys[lane % 4];
    const uint32_t keys[4] = {k.x, k.y, k.z, k.w}, first = warp * 128 + lane;
    if (WHOLE || (block.what & BLOCK_DIRECT) != 0) {
        put_direct<WHOLE>(block, writer.sum, keys, first, make);
    } else {
#pragma unroll 1
        for (uint32_t g = 0; g < 4; g++) {
            uint32_t w[4];
            make(first + 32 * g, w);
            put_any(launch, block, writer.sum, keys, first + 32 * g, w, tail);
        }
    }
}

template <class LAUNCH>
DEVICE void decode_raw(const LAUNCH &launch, const decode_block &block, block_writer &writer, const uint8_t *input,
                       uint32_t warp, uint32_t lane)
{
    const uint32_t tail = block.bytes % 2 != 0 ? input[block.bytes - 1] : 0;
    put_block<false>(launch, block, writer, tail, warp, lane, [&](uint32_t vector, uint32_t w[4]) {
        const uint4 x = reinterpret_cast<const uint4 *>(input)[vector];
        w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
    });
}

template <class LAUNCH>
DEVICE void decode_const(const LAUNCH &launch, const decode_block &block, block_writer &writer, const uint8_t *input,
                         uint32_t warp, uint32_t lane)
{
    const uint32_t value = *reinterpret_cast<const uint16_t *>(input) * 0x10001u;
    put_block<false>(launch, block, writer, input[2], warp, lane,
                     [&](uint32_t, uint32_t w[4]) { w[0] = w[1] = w[2] = w[3] = value; });
}

// Publishes the sum and the findings of a warp of workers for the finish warp.
DEVICE void publish_findings(decode_shared &shared, uint32_t stage, uint64_t lane_sum, uint32_t found, uint32_t warp,
                             uint32_t lane)
{
    const uint64_t sum = warp_sum(lane_sum);
    if (lane == 0) {
        shared.sums[stage][warp] = sum;
        shared.escapes[stage][warp] = found;
    }
    warp_arrive(&shared.done[stage], lane);
}

// ---- Finish warp, for blocks of all modes --------------------------------------------------------------------------

// Whether the unused bits after the last of `count` items are zero.
template <uint32_t WIDTH> DEVICE bool is_padded(const uint8_t *input, uint32_t at, uint32_t count)
{
    const uint32_t used = count * WIDTH % 8;
    return used == 0 || input[at + count * WIDTH / 8] >> used == 0;
}

// All lanes: whether all items equal the first. Mostly, one of the first few differs.
template <uint32_t WIDTH> DEVICE bool all_same(const uint8_t *input, uint32_t at, uint32_t count, uint32_t lane)
{
    const uint32_t first = get_item_of<WIDTH>(input, at, 0);
    for (uint32_t i = 0; i < count; i += 32) {
        const bool differs = i + lane < count && get_item_of<WIDTH>(input, at, i + lane) != first;
        if (__any_sync(ALL_LANES, differs))
            return false;
    }
    return true;
}

// Offsets and item counts of the streams of a block.
struct streams {
    uint32_t n, at2, at3, at4; // where tiers 2 to 4 begin; without tiers, at2 is the end of the codes
    uint32_t count2, count3, count4;
    uint32_t used; // bytes, with the tail
    bool good;
};

} // namespace strait
#endif
