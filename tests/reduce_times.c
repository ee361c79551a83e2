#include "tests/reduce_times.h"

#include <stdlib.h>

#include "collective/cuda/reduce.h"
#include "tests/support.h"

#define require_cuda(call) require((call) == cudaSuccess)

enum { RUNS = 15, SOURCES = 8 };
static const size_t LARGEST = (size_t)256 << 20;

static const struct timed {
    const char *name;
    enum coll_reduce_type type;
    enum coll_reduce_operation operation;
    enum coll_reduce_order order;
    uint32_t sources;
    unsigned budget;
    uint32_t shift; /* of source 1, in bytes */
} timed[] = {{"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 3, 0, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 4, 0, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 8, 0, 0},
             {"bf16 ring avg", COLL_REDUCE_BF16, COLL_REDUCE_AVG, COLL_REDUCE_NCCL_RING, 4, 0, 0},
             {"bf16 max", COLL_REDUCE_BF16, COLL_REDUCE_MAX, COLL_REDUCE_IN_FP32, 4, 0, 0},
             {"fp16 sum", COLL_REDUCE_FP16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 0},
             {"fp32 sum", COLL_REDUCE_FP32, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 0},
             {"fp32 sum", COLL_REDUCE_FP32, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 4, 0, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 2},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 0, 8},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 8, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 16, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 2, 32, 0},
             {"bf16 sum", COLL_REDUCE_BF16, COLL_REDUCE_SUM, COLL_REDUCE_IN_FP32, 4, 16, 0}};

static uint8_t *source[SOURCES], *target;
static cudaEvent_t begin, end;

static int by_time(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* What is measured: one launch; or, without ranks, a copy; or, of a piece smaller than all, both for one piece after
 * another: what is copied there is added from there, as if it had been decoded. */
struct work {
    struct coll_reduce reduce;
    unsigned budget;
    size_t bytes, piece;
};

static void run(const struct work *work, cudaStream_t stream)
{
    if (work->reduce.sources == 0)
        require_cuda(cudaMemcpyAsync(target, source[0], work->bytes, cudaMemcpyDeviceToDevice, stream));
    else if (work->piece == 0)
        require_cuda(coll_reduce_launch(&work->reduce, work->budget, stream));
    else
        for (size_t at = 0; at < work->bytes; at += work->piece) {
            struct coll_reduce part = work->reduce;
            part.source[0] = source[0] + at;
            part.dst = target + at;
            part.count = work->piece / coll_reduce_element_bytes(part.type);
            require_cuda(cudaMemcpyAsync(source[1], source[2] + at, work->piece, cudaMemcpyDeviceToDevice, stream));
            require_cuda(coll_reduce_launch(&part, work->budget, stream));
        }
}

/* The median, in milliseconds. */
static double measure(const struct work *work, cudaStream_t stream)
{
    float ms[RUNS];
    for (int i = -3; i < RUNS; i++) {
        float once;
        require_cuda(cudaEventRecord(begin, stream));
        run(work, stream);
        require_cuda(cudaEventRecord(end, stream));
        require_cuda(cudaEventSynchronize(end));
        require_cuda(cudaEventElapsedTime(&once, begin, end));
        if (i >= 0)
            ms[i] = once;
    }
    qsort(ms, RUNS, sizeof(ms[0]), by_time);
    return (double)ms[RUNS / 2];
}

/* Of `bytes` bytes of result. */
static void time_one(const struct timed *what, size_t bytes, cudaStream_t stream)
{
    struct work work = {.reduce = {.type = what->type,
                                   .operation = what->operation,
                                   .order = what->order,
                                   .sources = what->sources,
                                   .dst = target,
                                   .count = bytes / coll_reduce_element_bytes(what->type)},
                        .budget = what->budget};
    for (uint32_t i = 0; i < what->sources; i++)
        work.reduce.source[i] = source[i] + (i == 1 ? what->shift : 0);
    const double ms = measure(&work, stream);
    const double moved = (double)bytes * (what->sources + 1);
    printf("%-14s %u ranks, SMs %3u, shift %u: %4zu MiB %8.1f us, %6.0f GB/s of results, %6.0f GB/s of memory\n",
           what->name, what->sources, what->budget, what->shift, bytes >> 20, ms * 1e3, (double)bytes / 1e6 / ms,
           moved / 1e6 / ms);
}

static void time_copy(size_t bytes, cudaStream_t stream)
{
    const struct work work = {.bytes = bytes};
    const double ms = measure(&work, stream);
    printf("%-14s %34zu MiB %8.1f us, %6.0f GB/s of results, %6.0f GB/s of memory\n", "copy", bytes >> 20, ms * 1e3,
           (double)bytes / 1e6 / ms, 2 * (double)bytes / 1e6 / ms);
}

static void time_pieces(size_t piece, cudaStream_t stream)
{
    struct work work = {.reduce = {.type = COLL_REDUCE_BF16, .sources = 2, .source = {NULL, source[1]}},
                        .bytes = LARGEST,
                        .piece = piece};
    const double ms = measure(&work, stream);
    printf("copies and sums of 2 ranks, pieces of %3zu MiB: %4zu MiB %8.1f us, %6.0f GB/s of results\n", piece >> 20,
           LARGEST >> 20, ms * 1e3, (double)LARGEST / 1e6 / ms);
}

void time_reduce(cudaStream_t stream)
{
    static const size_t sizes[] = {(size_t)1 << 20, (size_t)16 << 20, (size_t)256 << 20};
    require_cuda(cudaEventCreate(&begin));
    require_cuda(cudaEventCreate(&end));
    require_cuda(cudaMalloc((void **)&target, LARGEST));
    for (int i = 0; i < SOURCES; i++) {
        require_cuda(cudaMalloc((void **)&source[i], LARGEST + 16));
        require_cuda(cudaMemsetAsync(source[i], 0x3c + i, LARGEST + 16, stream));
    }
    for (int s = 0; s < COUNT(sizes); s++) {
        time_copy(sizes[s], stream);
        for (int i = 0; i < COUNT(timed); i++)
            time_one(&timed[i], sizes[s], stream);
    }
    for (size_t piece = (size_t)2 << 20; piece <= LARGEST; piece *= 2)
        time_pieces(piece, stream);
    for (int i = 0; i < SOURCES; i++)
        cudaFree(source[i]);
    cudaFree(target);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
}
