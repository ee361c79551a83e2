// A decoding team: its shared memory, and what its warps tell each other.
//
//   first warps  check the metadata of a chunk in parts; the last part gives the verdict     (decode_check.cuh)
//   first warp   draws a ticket, looks the block up, fetches it to shared memory             (decode_begin.cuh)
//   workers      decode it; nothing is written before the verdict is known                   (decode_work.cuh,
//                                   decode_tiered.cuh, decode_top16.cuh, decode_base.cuh, decode_typed.cuh)
//   last warp    checks what workers did not: counts, padding, ends; notes sum and status    (decode_end.cuh,
//                                                                                             decode_typed_end.cuh)
//   first warps  compare the sums of pages once all blocks are done                          (decode_close.cuh)
//
// A coded block is read from global memory only once, so that what was checked cannot change, whoever writes there.
#ifndef STRAIT_KERNELS_CUDA_DECODE_CUH
#define STRAIT_KERNELS_CUDA_DECODE_CUH

#include "kernels/cuda/bits.cuh"
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/work.cuh"

namespace strait
{

// What all workers need to know of a block, in one word: its mode, and these flags.
constexpr uint32_t BLOCK_MODE = 15, BLOCK_STOP = 16; // there are no more
constexpr uint32_t BLOCK_PASSED = 32;                // the chunk's verdict is known to be OK
constexpr uint32_t BLOCK_DIRECT = 64;                // whole vectors of a page that has no gaps and is 16-byte aligned
constexpr uint32_t BLOCK_WHOLE = 128;                // direct, and has all its values
constexpr uint32_t BLOCK_CODEBOOK = 256, BLOCK_FP32 = 512; // its chunk names a codebook; has values of FP32

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
constexpr uint32_t DECODE_STAGES = 3, DECODE_SLACK = 64, LINE = 128, DECODE_TABLE_ROOM = LINE;
constexpr uint32_t DECODE_STAGE_BYTES = DECODE_TABLE_ROOM + BLOCK_SIZE + 3 * LINE;

// Blocks that the first warp looks up at once, and room for its findings, which stay until the last warp is done with
// them.
constexpr uint32_t LOOK_UP = 2, LOOKED_UP = 8;
static_assert(LOOKED_UP >= LOOK_UP + DECODE_STAGES, "what is still needed would be overwritten");

// What a header says, once it has passed checks 1 to 6; after these, all of the metadata lies inside the chunk.
struct chunk_header {
    int32_t status;
    uint32_t page_count, page_bytes, units, rows_per_page, metadata_units;
    uint32_t element, lengths, has_codebook, id[4];
    uint32_t what; // decode_block.what of all its blocks
    uint64_t sum;  // of the metadata, as the header states it
    const uint8_t *metadata;
};

// What a warp of workers found in its part of a block.
constexpr uint32_t WARP_BAD = 1u << 31;

struct alignas(16) decode_shared {
    // Barriers, each for a block's stage in turn: the block is on its way; it has arrived; the stage may be filled; the
    // workers are done with it.
    uint64_t begun[DECODE_STAGES], full[DECODE_STAGES], empty[DECODE_STAGES], done[DECODE_STAGES];
    uint64_t counted2, counted3; // tiers: all warps have counted their items
    uint64_t sums[DECODE_STAGES][WORKER_WARPS];
    uint4 keys[4]; // of the sum: kept here to save registers
    alignas(16) uint32_t counts2[DECODE_STAGES][WORKER_WARPS];
    alignas(16) uint32_t counts3[DECODE_STAGES][WORKER_WARPS];
    uint32_t escapes[DECODE_STAGES][WORKER_WARPS]; // of tier 4, by warp; WARP_BAD
    decode_block blocks[LOOKED_UP];
    struct walk kept;    // the first warp's state while it ends a chunk
    chunk_header header; // of the first warp's current chunk
    // Blocks of the later modes: rankings of their bases; results of base_order for their values; first words.
    alignas(16) uint32_t base_images[DECODE_STAGES][16];
    uint32_t orders[DECODE_STAGES][WORKER_WARPS], firsts[DECODE_STAGES][WORKER_WARPS];
    uint2 turns[WORKER_WARPS]; // the turns (of all blocks, of tiers) that a warp of workers saves here during a call
};

struct decode_team {
    static constexpr uint32_t BYTES =
        (DECODE_STAGES * DECODE_STAGE_BYTES + BLOCK_VALUES + BLOCK_VALUES / 2 + sizeof(decode_shared) + 127) / 128 *
        128;

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
    DEVICE uint32_t among() const
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

} // namespace strait
#endif
