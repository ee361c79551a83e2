#include "bench/device_pool.h"

#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "bench/device_kernels.h"
#include "bench/random.h"
#include "tools/util.h"

#define DEVICE_ALIGNMENT 256u

bool device_ok(int error, const char *what)
{
    if (error != cudaSuccess)
        print_error(NULL, "%s: %s", what, cudaGetErrorString((cudaError_t)error));
    return error == cudaSuccess;
}

/* The largest power of two up to the number of tensors, so that any power of two of bytes divides evenly. */
static uint32_t count_regions(const struct tensors *tensors)
{
    uint32_t count = 1;
    while (2 * count <= tensors->spans.count && 2 * count <= POOL_REGIONS_MAX)
        count *= 2;
    return count;
}

/* Repeats a tensor over a region. */
static bool fill_region(uint8_t *region, uint64_t bytes, const struct span *span, uint64_t skip)
{
    const uint64_t period = 2 * span->values;
    uint64_t at = 0, first = skip % period / 2 * 2;
    for (uint64_t piece; at < bytes; at += piece, first = 0) {
        piece = period - first < bytes - at ? period - first : bytes - at;
        if (!device_ok(cudaMemcpyAsync(region + at, span->data + first, piece, cudaMemcpyHostToDevice, NULL), "copy"))
            return false;
    }
    return true;
}

static bool fill_regions(struct device_pool *pool, const struct device_pool_params *params, uint32_t count)
{
    const uint64_t bytes = pool->bytes / count;
    for (uint32_t r = 0; r < count; r++) {
        const struct span *span = &params->tensors->spans.list[r];
        pool->from[r] = (struct strait_region){.base = pool->raw + r * bytes,
                                               .page_stride = params->page_bytes,
                                               .page_count = (uint32_t)(bytes / params->page_bytes),
                                               .rows = 1,
                                               .row_bytes = (uint32_t)params->page_bytes,
                                               .table = strait_codebook_find(params->codebook, span->class)};
        pool->to[r] = pool->from[r];
        pool->to[r].base = pool->back + r * bytes;
        if (!fill_region(pool->raw + r * bytes, bytes, span, params->number * 4096ull))
            return false;
    }
    return true;
}

static bool make_ids(struct device_pool *pool, uint32_t count, bool scattered)
{
    uint32_t *ids = malloc(count * sizeof(*ids));
    bool ok = ids != NULL;
    for (uint32_t i = 0; ok && i < count; i++)
        ids[i] = i;
    if (ok && scattered)
        random_order(ids, count, 1);
    ok = ok && device_ok(cudaMalloc((void **)&pool->ids, count * sizeof(*ids)), "memory") &&
         device_ok(cudaMemcpy(pool->ids, ids, count * sizeof(*ids), cudaMemcpyHostToDevice), "copy");
    free(ids);
    return ok;
}

static void make_items(struct device_pool *pool, uint32_t regions, uint32_t ids, uint32_t ids_each)
{
    uint64_t at = 0;
    for (uint32_t c = 0; c < pool->chunks; c++) {
        const uint32_t first = c * ids_each, left = ids - first;
        const struct strait_pages pages = {.regions = pool->from,
                                           .ids = pool->ids + first,
                                           .region_count = regions,
                                           .id_count = left < ids_each ? left : ids_each};
        pool->encode[c] =
            (struct strait_encode_item){.src = pages,
                                        .dst = (void *)(uintptr_t)at, /* made an address when there is memory */
                                        .dst_capacity = strait_encode_bound(&pages),
                                        .result = &pool->results[c]};
        pool->decode[c] = (struct strait_decode_item){.dst = pages, .result = &pool->results[pool->chunks + c]};
        pool->decode[c].dst.regions = pool->to;
        at += (pool->encode[c].dst_capacity + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    }
    pool->coded_room = at;
}

static bool make_batches(struct device_pool *pool, const struct device_pool_params *params, uint32_t regions)
{
    const uint32_t ids = pool->from[0].page_count;
    const uint64_t each = params->chunk_bytes / (regions * params->page_bytes);
    const uint32_t ids_each = each == 0 ? 1 : each < ids ? (uint32_t)each : ids;
    pool->chunks = (ids + ids_each - 1) / ids_each;
    pool->encode = calloc(pool->chunks, sizeof(pool->encode[0]));
    pool->decode = calloc(pool->chunks, sizeof(pool->decode[0]));
    if (pool->encode == NULL || pool->decode == NULL ||
        !device_ok(
            cudaHostAlloc((void **)&pool->results, 2 * pool->chunks * sizeof(pool->results[0]), cudaHostAllocMapped),
            "pinned memory") ||
        !make_ids(pool, ids, params->scattered))
        return false;
    make_items(pool, regions, ids, ids_each);
    if (!device_ok(cudaMalloc((void **)&pool->coded, pool->coded_room), "memory"))
        return false;
    for (uint32_t c = 0; c < pool->chunks; c++) {
        pool->encode[c].dst = pool->coded + (uintptr_t)pool->encode[c].dst;
        pool->decode[c].src = pool->encode[c].dst;
    }
    return true;
}

bool device_pool_init(struct device_pool *pool, const struct device_pool_params *params)
{
    const uint32_t regions = count_regions(params->tensors);
    const uint64_t round = regions * params->page_bytes;
    *pool = (struct device_pool){.bytes = params->bytes / round * round};
    if (pool->bytes == 0) {
        print_error(NULL, "--size is less than a page for each of %u tensors", regions);
        return false;
    }
    return device_ok(cudaMalloc((void **)&pool->raw, pool->bytes), "memory") &&
           device_ok(cudaMalloc((void **)&pool->back, pool->bytes), "memory") && fill_regions(pool, params, regions) &&
           make_batches(pool, params, regions) && device_ok(cudaDeviceSynchronize(), "device");
}

bool device_pool_read_results(struct device_pool *pool, uint64_t *coded_bytes)
{
    *coded_bytes = 0;
    for (uint32_t c = 0; c < pool->chunks; c++) {
        if (pool->results[c].status != STRAIT_OK) {
            print_error(NULL, "encoding: %s", strait_status_string(pool->results[c].status));
            return false;
        }
        pool->decode[c].src_size = pool->results[c].bytes;
        *coded_bytes += pool->results[c].bytes;
    }
    return true;
}

/* A counter for kernels. NULL: no memory, which was printed to stderr. */
static unsigned long long *counter(void)
{
    unsigned long long *count;
    if (!device_ok(cudaHostAlloc((void **)&count, sizeof(*count), cudaHostAllocMapped), "pinned memory"))
        return NULL;
    *count = 0;
    return count;
}

bool device_pool_same(const struct device_pool *pool)
{
    unsigned long long *count = counter();
    bool same = count != NULL &&
                device_ok(device_count_differences(pool->raw, pool->back, pool->bytes, count, NULL), "kernel") &&
                device_ok(cudaDeviceSynchronize(), "device") && *count == 0;
    cudaFreeHost(count);
    return same;
}

bool device_pool_sum(const struct device_pool *pool, uint64_t *sum)
{
    unsigned long long *count = counter();
    bool good = count != NULL && device_ok(device_sum(pool->raw, pool->bytes, count, NULL), "kernel") &&
                device_ok(cudaDeviceSynchronize(), "device");
    if (good)
        *sum = *count;
    cudaFreeHost(count);
    return good;
}

bool device_pool_decoded(const struct device_pool *pool)
{
    for (uint32_t c = 0; c < pool->chunks; c++)
        if (pool->results[pool->chunks + c].status != STRAIT_OK)
            return false;
    return device_pool_same(pool);
}

void device_pool_fini(struct device_pool *pool)
{
    cudaFree(pool->raw);
    cudaFree(pool->coded);
    cudaFree(pool->back);
    cudaFree(pool->ids);
    cudaFreeHost(pool->results);
    free(pool->encode);
    free(pool->decode);
    *pool = (struct device_pool){0};
}
