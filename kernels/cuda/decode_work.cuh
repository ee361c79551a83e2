// Workers of a decoding team: what blocks of all modes have in common.
#ifndef STRAIT_KERNELS_CUDA_DECODE_WORK_CUH
#define STRAIT_KERNELS_CUDA_DECODE_WORK_CUH

#include "kernels/cuda/decode.cuh"

namespace strait
{

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

// Puts `count` bytes of a vector where they belong. Where rows are 16-byte aligned, a vector lies in one row.
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

// Puts a vector of a block that is not written directly; `tail` is the block's tail byte, if it has one.
template <class LAUNCH>
DEVICE void put_any(const LAUNCH &launch, const decode_block &block, partial_sum &sum, const uint32_t keys[4],
                    uint32_t vector, uint32_t w[4], uint32_t tail)
{
    if (16 * vector >= block.bytes)
        return;
    const uint32_t left = block.bytes - 16 * vector, count = left < 16 ? left : 16;
    const uint32_t step = block.first_step + vector / 4;
    if (left < 16) {
        keep_bytes(w, count & ~1u);
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

// Puts a worker's vectors of a direct block. A WHOLE block has all its values.
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

// Puts a worker's vectors; make(vector, w) gives their values.
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
DEVICE void work_raw(const LAUNCH &launch, const decode_block &block, block_writer &writer, const uint8_t *input,
                     uint32_t warp, uint32_t lane)
{
    const uint32_t tail = block.bytes % 2 != 0 ? input[block.bytes - 1] : 0;
    put_block<false>(launch, block, writer, tail, warp, lane, [&](uint32_t vector, uint32_t w[4]) {
        const uint4 x = reinterpret_cast<const uint4 *>(input)[vector];
        w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
    });
}

template <class LAUNCH>
DEVICE void work_const(const LAUNCH &launch, const decode_block &block, block_writer &writer, const uint8_t *input,
                       uint32_t warp, uint32_t lane)
{
    const uint32_t value = *reinterpret_cast<const uint16_t *>(input) * 0x10001u;
    put_block<false>(launch, block, writer, input[2], warp, lane,
                     [&](uint32_t, uint32_t w[4]) { w[0] = w[1] = w[2] = w[3] = value; });
}

// A warp of workers leaves its sum and findings of a block to the last warp.
DEVICE void leave_block(decode_shared &shared, uint32_t stage, uint64_t lane_sum, uint32_t found, uint32_t warp,
                        uint32_t lane)
{
    const uint64_t sum = warp_sum(lane_sum);
    if (lane == 0) {
        shared.sums[stage][warp] = sum;
        shared.escapes[stage][warp] = found;
    }
    warp_arrive(&shared.done[stage], lane);
}

// Whether an exponent is in the top 16, or in the first three tiers, as far as the table in shared memory tells: asking
// global memory would hold up the block.
DEVICE bool in_top16(const uint32_t *table, uint32_t exponent)
{
    return holds_byte(table[8], exponent) || holds_byte(table[9], exponent) || holds_byte(table[10], exponent) ||
           holds_byte(table[11], exponent);
}

DEVICE bool in_tiers(const uint32_t *table, uint32_t exponent)
{
    const uint32_t other = ~exponent & 255; // fills the bytes that hold no exponents
    return holds_byte(table[0], exponent) || holds_byte((table[1] & 0xffff) | other * 0x01010000u, exponent) ||
           holds_byte(table[4], exponent) || holds_byte(table[5], exponent) || holds_byte(table[6], exponent) ||
           holds_byte((table[7] & 0xffffff) | other << 24, exponent);
}

} // namespace strait
#endif
