// Blocks of pages to shared memory: as one bulk copy, as one per row, or element by element.
#ifndef STRAIT_KERNELS_CUDA_GATHER_CUH
#define STRAIT_KERNELS_CUDA_GATHER_CUH

#include "kernels/cuda/work.cuh"

namespace strait
{

// Whether bulk copies can bring `bytes` bytes from `offset` of a page.
DEVICE bool can_bulk(const region &r, uint32_t bytes)
{
    bool whole = r.shape & SHAPE_WHOLE;
    return (r.shape & SHAPE_WIDTH) == 4 && bytes % 16 == 0 && (whole || r.row_bytes % 16 == 0);
}

// All lanes: the copies that can_bulk allows. Their bytes have already been announced to the barrier.
DEVICE void bulk_gather(const region &r, uint8_t *page, uint32_t offset, uint32_t bytes, uint8_t *dst,
                        uint64_t *barrier, uint32_t lane)
{
    if (r.shape & SHAPE_WHOLE) {
        if (lane == 0)
            bulk_load(dst, page + offset, bytes, barrier);
        return;
    }
    const uint32_t first = offset / r.row_bytes, last = (offset + bytes - 1) / r.row_bytes;
    for (uint32_t row = first + lane; row <= last; row += 32) {
        uint32_t begin = row * r.row_bytes, end = begin + r.row_bytes;
        uint32_t from = begin < offset ? offset : begin, to = end > offset + bytes ? offset + bytes : end;
        bulk_load(dst + (from - offset), page + row * r.row_stride + (from - begin), to - from, barrier);
    }
}

// All lanes: copies elements of a type to which addresses and rows are aligned.
template <class T>
DEVICE void copy_elements(const region &r, uint8_t *page, uint32_t offset, uint32_t bytes, uint8_t *dst, uint32_t lane)
{
    const uint32_t count = bytes / sizeof(T);
    uint32_t piece;
#pragma unroll 4
    for (uint32_t i = lane; i < count; i += 32)
        *reinterpret_cast<T *>(dst + i * sizeof(T)) =
            *reinterpret_cast<const T *>(page_piece(r, page, offset + i * sizeof(T), sizeof(T), &piece));
#pragma unroll 1
    for (uint32_t i = count * sizeof(T) + lane; i < bytes; i += 32)
        dst[i] = *page_piece(r, page, offset + i, 1, &piece);
}

// All lanes: gathers any block and pads it with zeroes to a multiple of 16 bytes.
DEVICE void plain_gather(const region &r, uint8_t *page, uint32_t offset, uint32_t bytes, uint8_t *dst, uint32_t lane)
{
    const uint32_t width = r.shape & SHAPE_WIDTH;
    if (width == 0)
        copy_elements<uint8_t>(r, page, offset, bytes, dst, lane);
    else if (width < 3)
        copy_elements<uint16_t>(r, page, offset, bytes, dst, lane);
    else
        copy_elements<uint64_t>(r, page, offset, bytes, dst, lane);
    if (bytes % 16 != 0 && lane < 16 - bytes % 16)
        dst[bytes + lane] = 0;
    fence_bulk(); // it may leave by a bulk copy
}

} // namespace strait
#endif
