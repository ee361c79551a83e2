// Sums of several ranks' values at the speed of memory: each thread loads 16 bytes from several sources, several times,
// before it adds any of them.
#include "collective/cuda/reduce.h"

#include "collective/cuda/accumulate.cuh"
#include "collective/reduce.h"

namespace strait
{
namespace
{

constexpr uint32_t THREADS_MAX = 1024, THREADS = 256, VECTOR = 16;
constexpr uint32_t LISTED_MAX = 64; // addresses that a launch has

// Up to LISTED_MAX sources are listed.
struct reduce_launch {
    const uint8_t *source[LISTED_MAX]; // in the order of addition, from the first vector on
    uint8_t *dst;
    uint64_t vectors; // number of dst's vectors, each aligned to its size
    uint32_t sources;
    uint32_t head, tail; // elements before and behind them, fewer than in a vector
    reduce_terms terms;
};

// More sources are tiles, added one tile after another: a tile is a number of sources that lie evenly spaced, source[i]
// is the first one of tile i, and `sources` is the number of tiles.
struct reduce_tiles {
    reduce_launch launch;
    int64_t stride[LISTED_MAX];
    uint32_t length[LISTED_MAX];
};

// ---- Vectors --------------------------------------------------------------------------------------------------------

// Vectors need not be aligned to 16 bytes in all sources. They are loaded so that they stay in L2: buffers that are
// reused for one piece after another then need not go to memory at all.
template <bool ALIGNED> DEVICE uint4 load_vector(const uint8_t *from)
{
    const uint32_t low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) % VECTOR; // the same for all threads
    if (ALIGNED || low == 0)
        return __ldcg(reinterpret_cast<const uint4 *>(from));
    if (low % 8 == 0) {
        const uint2 a = *reinterpret_cast<const uint2 *>(from), b = *reinterpret_cast<const uint2 *>(from + 8);
        return make_uint4(a.x, a.y, b.x, b.y);
    }
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (low % 4 == 0) {
            w[i] = *reinterpret_cast<const uint32_t *>(from + 4 * i);
        } else {
            const uint16_t *const halves = reinterpret_cast<const uint16_t *>(from + 4 * i);
            w[i] = halves[0] | static_cast<uint32_t>(halves[1]) << 16;
        }
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

template <coll_reduce_type TYPE, reduce_kind KIND> struct vector_accumulator {
    accumulator<TYPE, KIND> of[4];

    DEVICE void begin()
    {
        for (int i = 0; i < 4; i++)
            of[i].begin();
    }
    DEVICE void add(const uint4 &v, const reduce_terms &terms)
    {
        of[0].add(v.x, terms);
        of[1].add(v.y, terms);
        of[2].add(v.z, terms);
        of[3].add(v.w, terms);
    }
    DEVICE uint4 end(const reduce_terms &terms)
    {
        return make_uint4(of[0].end(terms), of[1].end(terms), of[2].end(terms), of[3].end(terms));
    }
};

// Adds COUNT vectors, `stride` vectors apart, SOURCES at a time. Kernels made for SOURCES sources have exactly as many.
template <coll_reduce_type TYPE, reduce_kind KIND, int SOURCES, int COUNT, bool ALIGNED>
DEVICE void reduce_vectors(const reduce_launch &launch, uint64_t first, uint32_t stride)
{
    vector_accumulator<TYPE, KIND> sums[COUNT];
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        sums[u].begin();
    constexpr bool ONCE = ALIGNED && SOURCES <= 4;
    const uint32_t sources = ONCE ? SOURCES : launch.sources;
    uint32_t s = 0;
#pragma unroll 1
    do {
        uint4 v[SOURCES][COUNT];
#pragma unroll
        for (int k = 0; k < SOURCES; k++)
            if (s + k < sources)
#pragma unroll
                for (int u = 0; u < COUNT; u++)
                    v[k][u] = load_vector<ALIGNED>(launch.source[s + k] + (first + u * stride) * VECTOR);
#pragma unroll
        for (int k = 0; k < SOURCES; k++)
            if (s + k < sources)
#pragma unroll
                for (int u = 0; u < COUNT; u++)
                    sums[u].add(v[k][u], launch.terms);
        s += SOURCES;
    } while (!ONCE && s < sources);
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        *reinterpret_cast<uint4 *>(launch.dst + (first + u * stride) * VECTOR) = sums[u].end(launch.terms);
}

// One vector of each source. The sum goes on from tile to tile, so that no order of addition depends on them.
template <coll_reduce_type TYPE, reduce_kind KIND> DEVICE void add_tiles(const reduce_tiles &tiles, uint64_t vector)
{
    constexpr uint32_t AT_ONCE = 8;
    vector_accumulator<TYPE, KIND> sum;
    sum.begin();
#pragma unroll 1
    for (uint32_t tile = 0; tile < tiles.launch.sources; tile++) {
        const uint8_t *from = tiles.launch.source[tile] + vector * VECTOR;
        const int64_t stride = tiles.stride[tile];
#pragma unroll 1
        for (uint32_t left = tiles.length[tile]; left > 0; left -= left < AT_ONCE ? left : AT_ONCE) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++)
                if (k < left)
                    v[k] = load_vector<false>(from + k * stride);
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++)
                if (k < left)
                    sum.add(v[k], tiles.launch.terms);
            from += AT_ONCE * stride;
        }
    }
    *reinterpret_cast<uint4 *>(tiles.launch.dst + vector * VECTOR) = sum.end(tiles.launch.terms);
}

// ---- Elements before and behind the vectors -------------------------------------------------------------------------

template <coll_reduce_type TYPE> DEVICE uint32_t load_element(const uint8_t *from)
{
    if constexpr (TYPE == COLL_REDUCE_FP32)
        return *reinterpret_cast<const uint32_t *>(from);
    else
        return *reinterpret_cast<const uint16_t *>(from);
}

template <coll_reduce_type TYPE> DEVICE void store_element(uint8_t *to, uint32_t bits)
{
    if constexpr (TYPE == COLL_REDUCE_FP32)
        *reinterpret_cast<uint32_t *>(to) = bits;
    else
        *reinterpret_cast<uint16_t *>(to) = static_cast<uint16_t>(bits);
}

template <coll_reduce_type TYPE, reduce_kind KIND>
DEVICE void reduce_element(const reduce_launch &launch, int64_t offset)
{
    accumulator<TYPE, KIND> sum;
    sum.begin();
#pragma unroll 8
    for (uint32_t s = 0; s < launch.sources; s++)
        sum.add(load_element<TYPE>(launch.source[s] + offset), launch.terms);
    store_element<TYPE>(launch.dst + offset, sum.end(launch.terms));
}

template <coll_reduce_type TYPE, reduce_kind KIND> DEVICE void reduce_element(const reduce_tiles &tiles, int64_t offset)
{
    accumulator<TYPE, KIND> sum;
    sum.begin();
    for (uint32_t tile = 0; tile < tiles.launch.sources; tile++)
        for (uint32_t i = 0; i < tiles.length[tile]; i++)
            sum.add(load_element<TYPE>(tiles.launch.source[tile] + i * tiles.stride[tile] + offset),
                    tiles.launch.terms);
    store_element<TYPE>(tiles.launch.dst + offset, sum.end(tiles.launch.terms));
}

// One thread for each element, of all that `sources` names.
template <coll_reduce_type TYPE, reduce_kind KIND, typename SOURCES_OF>
DEVICE void reduce_edges(const reduce_launch &launch, const SOURCES_OF &sources)
{
    constexpr int64_t ELEMENT = TYPE == COLL_REDUCE_FP32 ? 4 : 2;
    const uint32_t i = threadIdx.x;
    if (i < launch.head)
        reduce_element<TYPE, KIND>(sources, (static_cast<int64_t>(i) - launch.head) * ELEMENT);
    else if (i < launch.head + launch.tail)
        reduce_element<TYPE, KIND>(sources,
                                   static_cast<int64_t>(launch.vectors * VECTOR) + (i - launch.head) * ELEMENT);
}

// ---- Kernels --------------------------------------------------------------------------------------------------------

template <coll_reduce_type TYPE, reduce_kind KIND, int SOURCES, int COUNT, bool ALIGNED>
__global__ void __launch_bounds__(THREADS_MAX, 1) reduce_all(const __grid_constant__ reduce_launch launch)
{
    const uint32_t threads = blockDim.x;
    const uint64_t tile = static_cast<uint64_t>(threads) * COUNT;
    if (blockIdx.x == gridDim.x - 1)
        reduce_edges<TYPE, KIND>(launch, launch);
    for (uint64_t begin = blockIdx.x * tile; begin < launch.vectors; begin += gridDim.x * tile) {
        const uint64_t first = begin + threadIdx.x;
        if (begin + tile <= launch.vectors) {
            reduce_vectors<TYPE, KIND, SOURCES, COUNT, ALIGNED>(launch, first, threads);
            continue;
        }
#pragma unroll 1
        for (uint64_t i = first; i < launch.vectors; i += threads)
            reduce_vectors<TYPE, KIND, SOURCES, 1, ALIGNED>(launch, i, 0);
    }
}

template <coll_reduce_type TYPE, reduce_kind KIND>
__global__ void __launch_bounds__(THREADS_MAX, 1) reduce_by_tiles(const __grid_constant__ reduce_tiles tiles)
{
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    if (blockIdx.x == gridDim.x - 1)
        reduce_edges<TYPE, KIND>(tiles.launch, tiles);
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < tiles.launch.vectors;
         i += threads)
        add_tiles<TYPE, KIND>(tiles, i);
}

// Sources at a time, and vectors of each: what a thread has in flight, within its registers.
enum shape { SHAPE_TWO, SHAPE_THREE, SHAPE_FOUR, SHAPE_MANY, SHAPE_UNALIGNED, SHAPE_TILES, SHAPES };
constexpr uint32_t vectors_each[SHAPES] = {4, 2, 2, 1, 1, 1};

template <coll_reduce_type TYPE, reduce_kind KIND> const void *kernel_of_shape(shape which)
{
    const void *const kernels[SHAPES] = {reinterpret_cast<const void *>(reduce_all<TYPE, KIND, 2, 4, true>),
                                         reinterpret_cast<const void *>(reduce_all<TYPE, KIND, 3, 2, true>),
                                         reinterpret_cast<const void *>(reduce_all<TYPE, KIND, 4, 2, true>),
                                         reinterpret_cast<const void *>(reduce_all<TYPE, KIND, 8, 1, true>),
                                         reinterpret_cast<const void *>(reduce_all<TYPE, KIND, 4, 1, false>),
                                         reinterpret_cast<const void *>(reduce_by_tiles<TYPE, KIND>)};
    return kernels[which];
}

template <coll_reduce_type TYPE> const void *kernel_of_kind(reduce_kind kind, shape which)
{
    if (kind == REDUCE_IN_FP32)
        return kernel_of_shape<TYPE, REDUCE_IN_FP32>(which);
    return kind == REDUCE_RING ? kernel_of_shape<TYPE, REDUCE_RING>(which)
                               : kernel_of_shape<TYPE, REDUCE_EXTREME>(which);
}

const void *kernel_of(coll_reduce_type type, reduce_kind kind, shape which)
{
    if (type == COLL_REDUCE_BF16)
        return kernel_of_kind<COLL_REDUCE_BF16>(kind, which);
    return type == COLL_REDUCE_FP16 ? kernel_of_kind<COLL_REDUCE_FP16>(kind, which)
                                    : kernel_of_kind<COLL_REDUCE_FP32>(kind, which);
}

// ---- Launching ------------------------------------------------------------------------------------------------------

reduce_kind kind_of(const coll_reduce &reduce)
{
    if (reduce.operation == COLL_REDUCE_MAX || reduce.operation == COLL_REDUCE_MIN)
        return REDUCE_EXTREME;
    return reduce.order == COLL_REDUCE_NCCL_RING ? REDUCE_RING : REDUCE_IN_FP32;
}

reduce_terms terms_of(const coll_reduce &reduce)
{
    const bool mean = reduce.operation == COLL_REDUCE_AVG;
    const uint32_t share = coll_reduce_share(reduce.type, mean ? reduce.sources : 1);
    return {mean ? static_cast<float>(1.0 / reduce.sources) : 1.0f,
            reduce.type == COLL_REDUCE_FP32 ? share : share << 16 | share, reduce.operation == COLL_REDUCE_MIN, 0};
}

// Where vectors begin and end, by the alignment of dst.
void cut(const coll_reduce &reduce, reduce_launch *launch)
{
    const size_t element = coll_reduce_element_bytes(reduce.type);
    const size_t before = (VECTOR - reinterpret_cast<uintptr_t>(reduce.dst) % VECTOR) % VECTOR / element;
    launch->head = static_cast<uint32_t>(before < reduce.count ? before : reduce.count);
    launch->vectors = (reduce.count - launch->head) * element / VECTOR;
    launch->tail = static_cast<uint32_t>(reduce.count - launch->head - launch->vectors * (VECTOR / element));
    launch->dst = static_cast<uint8_t *>(reduce.dst) + launch->head * element;
}

// Source number i in the order of addition, from the first vector on.
const uint8_t *source_of(const coll_reduce &reduce, const reduce_launch &launch, uint32_t i)
{
    const uint32_t first = kind_of(reduce) == REDUCE_RING ? reduce.rank + 1 : 0;
    return static_cast<const uint8_t *>(reduce.source[(first + i) % reduce.sources]) +
           launch.head * coll_reduce_element_bytes(reduce.type);
}

// Returns whether the sources' vectors are aligned as dst's are.
bool line_up(const coll_reduce &reduce, reduce_launch *launch)
{
    uintptr_t low = 0;
    for (uint32_t i = 0; i < reduce.sources; i++) {
        launch->source[i] = source_of(reduce, *launch, i);
        low |= reinterpret_cast<uintptr_t>(launch->source[i]);
    }
    launch->sources = reduce.sources;
    return low % VECTOR == 0;
}

// False: there are more than LISTED_MAX tiles.
bool line_up_tiles(const coll_reduce &reduce, reduce_tiles *tiles)
{
    reduce_launch *const launch = &tiles->launch;
    uint32_t i = 0;
    for (; i < reduce.sources && launch->sources < LISTED_MAX; launch->sources++) {
        const uint8_t *const from = source_of(reduce, *launch, i);
        uint32_t length = 1;
        const int64_t stride = i + 1 < reduce.sources ? source_of(reduce, *launch, i + 1) - from : 0;
        while (i + length < reduce.sources && source_of(reduce, *launch, i + length) == from + length * stride)
            length++;
        // The last one of two that are followed by others may begin an evenly spaced tile with these.
        length = length == 2 && i + 2 < reduce.sources ? 1 : length;
        launch->source[launch->sources] = from;
        tiles->stride[launch->sources] = stride;
        tiles->length[launch->sources] = length;
        i += length;
    }
    return i == reduce.sources;
}

shape shape_of(uint32_t sources, bool aligned)
{
    if (!aligned)
        return SHAPE_UNALIGNED;
    return sources >= 2 && sources <= 4 ? static_cast<shape>(SHAPE_TWO + sources - 2) : SHAPE_MANY;
}

// With a budget, a thread block fills a multiprocessor; otherwise several share one, and there are more if there is
// little data.
cudaError_t start(const void *kernel, void *argument, uint64_t vectors, uint32_t each, unsigned budget,
                  cudaStream_t stream)
{
    int device, all;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess)
        return error;
    const bool bound = budget > 0 && budget < static_cast<unsigned>(all);
    const uint32_t threads = bound ? THREADS_MAX : THREADS;
    const uint64_t most = bound ? budget : static_cast<unsigned>(all) * (THREADS_MAX / THREADS);
    const uint64_t tiles = (vectors + threads * each - 1) / (threads * each);
    const uint64_t blocks = tiles < 1 ? 1 : tiles < most ? tiles : most;
    void *arguments[] = {argument};
    return cudaLaunchKernel(kernel, dim3(static_cast<uint32_t>(blocks)), dim3(threads), arguments, 0, stream);
}

cudaError_t reduce_listed(const coll_reduce &reduce, unsigned budget, cudaStream_t stream)
{
    reduce_launch launch = {};
    cut(reduce, &launch);
    const shape which = shape_of(reduce.sources, line_up(reduce, &launch));
    launch.terms = terms_of(reduce);
    return start(kernel_of(reduce.type, kind_of(reduce), which), &launch, launch.vectors, vectors_each[which], budget,
                 stream);
}

cudaError_t reduce_many(const coll_reduce &reduce, unsigned budget, cudaStream_t stream)
{
    reduce_tiles tiles = {};
    cut(reduce, &tiles.launch);
    if (!line_up_tiles(reduce, &tiles))
        return cudaErrorInvalidValue;
    tiles.launch.terms = terms_of(reduce);
    return start(kernel_of(reduce.type, kind_of(reduce), SHAPE_TILES), &tiles, tiles.launch.vectors,
                 vectors_each[SHAPE_TILES], budget, stream);
}

} // namespace
} // namespace strait

cudaError_t coll_reduce_launch(const struct coll_reduce *reduce, unsigned sm_budget, cudaStream_t stream)
{
    if (coll_reduce_check(reduce) != STRAIT_OK)
        return cudaErrorInvalidValue;
    if (reduce->count == 0)
        return cudaSuccess;
    return reduce->sources <= strait::LISTED_MAX ? strait::reduce_listed(*reduce, sm_budget, stream)
                                                 : strait::reduce_many(*reduce, sm_budget, stream);
}

cudaError_t coll_reduce_prepare(void)
{
    cudaError_t error = cudaSuccess;
    cudaFuncAttributes attributes;
    for (int type = 0; type < COLL_REDUCE_TYPES; type++)
        for (int kind = 0; kind < strait::REDUCE_KINDS; kind++)
            for (int shape = 0; shape < strait::SHAPES && error == cudaSuccess; shape++)
                error = cudaFuncGetAttributes(&attributes, strait::kernel_of(static_cast<coll_reduce_type>(type),
                                                                             static_cast<strait::reduce_kind>(kind),
                                                                             static_cast<strait::shape>(shape)));
    return error;
}
