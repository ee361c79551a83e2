// Rows: copied to several places, or summed, a warp at a time. A row is vectors of 16 bytes; a warp's chunk of it is
// vectors that its lanes load before they store any.
#ifndef STRAIT_EP_CUDA_ROWS_CUH
#define STRAIT_EP_CUDA_ROWS_CUH

#include "ep/cuda/block.cuh"

namespace strait
{

constexpr uint32_t VECTOR = 16;

DEVICE uint32_t divide_up(uint32_t x, uint32_t y)
{
    return (x + y - 1) / y;
}

// Part of all rows, the same for each: chunks of `steps` vectors for each lane.
struct row_parts {
    uint32_t vectors, steps, chunks;
    uint32_t parts, chunks_each; // a task is a part of a row
};

// Cuts rows into chunks of at most steps_max steps, and into as many parts as it takes for each warp to have a task.
DEVICE row_parts cut_rows(uint32_t row_bytes, uint32_t steps_max, uint32_t rows, uint32_t warps)
{
    row_parts cut;
    cut.vectors = row_bytes / VECTOR;
    const uint32_t all = divide_up(cut.vectors, LANES);
    cut.chunks = divide_up(all, steps_max);
    cut.steps = divide_up(all, cut.chunks);
    const uint32_t wanted = rows >= warps ? 1 : divide_up(warps, rows > 0 ? rows : 1);
    cut.chunks_each = divide_up(cut.chunks, wanted < cut.chunks ? wanted : cut.chunks);
    cut.parts = divide_up(cut.chunks, cut.chunks_each);
    return cut;
}

// Calls work(first vector of the lane, end) for each chunk of a part.
template <class WORK> DEVICE void for_chunks(const row_parts &cut, uint32_t part, const WORK &work)
{
    const uint32_t first = part * cut.chunks_each, each = cut.steps * LANES;
    for (uint32_t chunk = first; chunk < first + cut.chunks_each && chunk < cut.chunks; chunk++) {
        const uint32_t begin = chunk * each, end = begin + each;
        work(begin + lane_of_thread(), end < cut.vectors ? end : cut.vectors);
    }
}

constexpr uint32_t COPY_STEPS = 8;

// Copies a part of a row to `count` places, at least one; the list is in shared memory.
DEVICE void copy_part(const row_parts &cut, uint32_t part, const uint8_t *from, uint8_t *const *to, uint32_t count)
{
    for_chunks(cut, part, [&](uint32_t first, uint32_t end) {
        uint4 v[COPY_STEPS];
#pragma unroll
        for (uint32_t u = 0; u < COPY_STEPS; u++)
            if (first + u * LANES < end)
                v[u] = load_vector(from + (first + u * LANES) * VECTOR);
        for (uint32_t i = 0; i < count; i++) {
            uint8_t *const place = to[i];
#pragma unroll
            for (uint32_t u = 0; u < COPY_STEPS; u++)
                if (first + u * LANES < end)
                    store_vector(place + (first + u * LANES) * VECTOR, v[u]);
        }
    });
}

// ---- Sums -----------------------------------------------------------------------------------------------------------

// Sum of the values of a vector. It begins with the first term itself.
template <strait_element TYPE, bool WEIGHTED> struct vector_sum {
    static constexpr int COUNT = values_of_word<TYPE>();
    float sum[4 * COUNT];

    DEVICE void begin()
    {
#pragma unroll
        for (int i = 0; i < 4 * COUNT; i++)
            sum[i] = 0;
    }
    DEVICE void take(const uint4 &v, float weight, bool first)
    {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float x[COUNT];
            widen<TYPE>(words[w], x);
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const float term = WEIGHTED ? multiply(weight, x[i]) : x[i];
                float &to = sum[w * COUNT + i];
                to = first ? term : add(to, term);
            }
        }
    }
    DEVICE uint4 end() const
    {
        return make_uint4(narrow<TYPE>(sum), narrow<TYPE>(sum + COUNT), narrow<TYPE>(sum + 2 * COUNT),
                          narrow<TYPE>(sum + 3 * COUNT));
    }
};

// A list of terms, in shared memory.
struct term_list {
    const uint8_t *rows[STRAIT_EP_TOPK_MAX];
    float weights[STRAIT_EP_TOPK_MAX];
};

template <bool FEW> constexpr uint32_t SUM_STEPS = FEW ? 4 : 2;

// Sums of a chunk's vectors of at most TERMS terms: all are loaded before any is added.
template <strait_element TYPE, bool WEIGHTED, uint32_t TERMS, uint32_t STEPS>
DEVICE void sum_few(uint32_t first, uint32_t end, const term_list &terms, uint32_t count, uint8_t *to)
{
    uint4 v[TERMS][STEPS];
#pragma unroll
    for (uint32_t k = 0; k < TERMS; k++)
        if (k < count)
#pragma unroll
            for (uint32_t u = 0; u < STEPS; u++)
                if (first + u * LANES < end)
                    v[k][u] = load_vector(terms.rows[k] + (first + u * LANES) * VECTOR);
#pragma unroll
    for (uint32_t u = 0; u < STEPS; u++) {
        vector_sum<TYPE, WEIGHTED> sum;
        sum.begin();
#pragma unroll
        for (uint32_t k = 0; k < TERMS; k++)
            if (k < count)
                sum.take(v[k][u], WEIGHTED ? terms.weights[k] : 1.0f, k == 0);
        if (first + u * LANES < end)
            store_vector(to + (first + u * LANES) * VECTOR, sum.end());
    }
}

// Sums of STEPS vectors of each lane of any number of terms, TERMS at a time.
template <strait_element TYPE, bool WEIGHTED, uint32_t TERMS, uint32_t STEPS>
DEVICE void sum_many(uint32_t first, uint32_t end, const term_list &terms, uint32_t count, uint8_t *to)
{
    vector_sum<TYPE, WEIGHTED> sums[STEPS];
#pragma unroll
    for (uint32_t u = 0; u < STEPS; u++)
        sums[u].begin();
#pragma unroll 1
    for (uint32_t at = 0; at < count; at += TERMS) {
        uint4 v[TERMS][STEPS];
#pragma unroll
        for (uint32_t k = 0; k < TERMS; k++)
            if (at + k < count)
#pragma unroll
                for (uint32_t u = 0; u < STEPS; u++)
                    if (first + u * LANES < end)
                        v[k][u] = load_vector(terms.rows[at + k] + (first + u * LANES) * VECTOR);
#pragma unroll
        for (uint32_t k = 0; k < TERMS; k++)
            if (at + k < count)
#pragma unroll
                for (uint32_t u = 0; u < STEPS; u++)
                    sums[u].take(v[k][u], WEIGHTED ? terms.weights[at + k] : 1.0f, at + k == 0);
    }
#pragma unroll
    for (uint32_t u = 0; u < STEPS; u++)
        if (first + u * LANES < end)
            store_vector(to + (first + u * LANES) * VECTOR, sums[u].end());
}

// Stores a part of the sum of rows; of none: zeroes. FEW: of at most two, of which four vectors each are loaded at a
// time; otherwise of any number, of which two vectors of four rows are.
template <strait_element TYPE, bool WEIGHTED, bool FEW>
DEVICE void sum_part(const row_parts &cut, uint32_t part, const term_list &terms, uint32_t count, uint8_t *to)
{
    for_chunks(cut, part, [&](uint32_t first, uint32_t end) {
        if constexpr (FEW)
            sum_few<TYPE, WEIGHTED, 2, SUM_STEPS<true>>(first, end, terms, count, to);
        else
            sum_many<TYPE, WEIGHTED, 4, SUM_STEPS<false>>(first, end, terms, count, to);
    });
}

} // namespace strait
#endif
