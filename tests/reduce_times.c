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

/* The median, in milliseconds. NULL: of a copy of so many bytes. */
static double measure(const struct coll_reduce *reduce, unsigned budget, size_t bytes, cudaStream_t stream)
{
    float ms[RUNS];
    for (int i = -3; i < RUNS; i++) {
        float once;
        require_cuda(cudaEventRecord(begin, stream));
        if (reduce == NULL)
            require_cuda(cudaMemcpyAsync(target, source[0], bytes, cudaMemcpyDeviceToDevice, stream));
        else
            require_cuda(coll_reduce_launch(reduce, budget, stream));
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
    struct coll_reduce reduce = {.type = what->type,
                                 .operation = what->operation,
                                 .order = what->order,
                                 .sources = what->sources,
                                 .dst = target,
                                 .count = bytes / coll_reduce_element_bytes(what->type)};
    for (uint32_t i = 0; i < what->sources; i++)
        reduce.source[i] = source[i] + (i == 1 ? what->shift : 0);
    const double ms = measure(&reduce, what->budget, bytes, stream);
    const double moved = (double)bytes * (what->sources + 1);
    printf("%-14s %u ranks, SMs %3u, shift %u: %4zu MiB %8.1f us, %6.0f GB/s of results, %6.0f GB/s of memory\n",
           what->name, what->sources, what->budget, what->shift, bytes >> 20, ms * 1e3, (double)bytes / 1e6 / ms,
           moved / 1e6 / ms);
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
        const double ms = measure(NULL, 0, sizes[s], stream);
        printf("%-14s %34zu MiB %8.1f us, %6.0f GB/s of results, %6.0f GB/s of memory\n", "copy", sizes[s] >> 20,
               ms * 1e3, (double)sizes[s] / 1e6 / ms, 2 * (double)sizes[s] / 1e6 / ms);
        for (int i = 0; i < COUNT(timed); i++)
            time_one(&timed[i], sizes[s], stream);
    }
    for (int i = 0; i < SOURCES; i++)
        cudaFree(source[i]);
    cudaFree(target);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
}
