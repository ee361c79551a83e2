// Rows of pages to rows of pages, wherever the device reaches them.
#include "daemon/device/cuda/cuda.h"

namespace
{

constexpr unsigned THREADS = 256;

template <class WORD> __device__ void move_rows(const move &m)
{
    const uint32_t words = m.row_bytes / sizeof(WORD);
    const uint64_t all = static_cast<uint64_t>(words) * m.rows;
    for (uint64_t i = threadIdx.x; i < all; i += THREADS) {
        const uint64_t row = i / words, column = i % words;
        const WORD *from = reinterpret_cast<const WORD *>(m.from + row * m.from_stride);
        reinterpret_cast<WORD *>(m.to + row * m.to_stride)[column] = from[column];
    }
}

__global__ void __launch_bounds__(THREADS) move_all(const move *moves, uint32_t count)
{
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const move m = moves[i];
        switch (m.width) {
        case 16:
            move_rows<uint4>(m);
            break;
        case 8:
            move_rows<uint64_t>(m);
            break;
        case 4:
            move_rows<uint32_t>(m);
            break;
        case 2:
            move_rows<uint16_t>(m);
            break;
        default:
            move_rows<uint8_t>(m);
        }
    }
}

} // namespace

cudaError_t moves_launch(const struct move *moves, uint32_t count, cudaStream_t stream)
{
    void *arguments[] = {&moves, &count};
    return cudaLaunchKernel(reinterpret_cast<const void *>(move_all), dim3(count < 4096 ? count : 4096), dim3(THREADS),
                            arguments, 0, stream);
}
