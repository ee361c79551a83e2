#include "bench/device_calls.h"

#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "tools/util.h"

/* ---- Calls ----------------------------------------------------------------------------------------------------- */

static struct strait_run make_run(const struct device_bench *bench, uint32_t sm_budget)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = bench->scratch,
                               .scratch_size = bench->scratch_size,
                               .stream = bench->stream,
                               .sm_budget = sm_budget,
                               .tables = bench->tables};
}

bool device_status_ok(enum strait_status status, const char *what)
{
    if (status != STRAIT_OK)
        print_error(NULL, "%s: %s", what, strait_status_string(status));
    return status == STRAIT_OK;
}

bool device_encode_pool(const struct device_bench *bench, const struct device_pool *pool, enum strait_mode mode,
                        uint32_t sm_budget)
{
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = mode, .codebook = bench->codebook};
    const struct strait_run run = make_run(bench, sm_budget);
    return device_status_ok(strait_encode_batch(bench->codec, &params, pool->encode, pool->chunks, &run), "encoding");
}

bool device_decode_pool(const struct device_bench *bench, const struct device_pool *pool, uint32_t sm_budget)
{
    const struct strait_run run = make_run(bench, sm_budget);
    return device_status_ok(strait_decode_batch(bench->codec, bench->codebook, pool->decode, pool->chunks, &run),
                            "decoding");
}

bool device_prove_pool(const struct device_bench *bench, struct device_pool *pool, enum strait_mode mode,
                       uint32_t sm_budget, uint64_t *coded_bytes)
{
    return device_ok(cudaMemsetAsync(pool->back, 0x5A, pool->bytes, bench->stream), "memset") &&
           device_ok(cudaMemsetAsync(pool->coded, 0xA5, pool->coded_room, bench->stream), "memset") &&
           device_encode_pool(bench, pool, mode, sm_budget) &&
           device_ok(cudaStreamSynchronize(bench->stream), "device") && device_pool_read_results(pool, coded_bytes) &&
           device_decode_pool(bench, pool, sm_budget) && device_ok(cudaStreamSynchronize(bench->stream), "device");
}

bool device_use_scratch(struct device_bench *bench, const struct device_pool *pool)
{
    uint64_t encode = strait_encode_scratch_size(bench->codec, pool->encode, pool->chunks);
    uint64_t decode = strait_decode_scratch_size(bench->codec, pool->decode, pool->chunks);
    cudaFree(bench->scratch);
    bench->scratch_size = encode > decode ? encode : decode;
    return device_ok(cudaMalloc((void **)&bench->scratch, bench->scratch_size), "memory") &&
           device_ok(cudaMemset(bench->scratch, 0, bench->scratch_size), "memset");
}

/* ---- Time ------------------------------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

bool device_time_calls(const struct device_bench *bench, device_timed_call *call, void *arg, unsigned count, float *us)
{
    cudaEvent_t *events = calloc(count + 1, sizeof(*events));
    bool ok = events != NULL;
    for (unsigned i = 0; ok && i <= count; i++)
        ok = device_ok(cudaEventCreate(&events[i]), "event");
    for (unsigned i = 0; ok && i < 3; i++) /* warm-up */
        ok = call(bench, arg, i);
    for (unsigned i = 0; ok && i <= count; i++)
        ok = device_ok(cudaEventRecord(events[i], bench->stream), "event") && (i == count || call(bench, arg, i));
    ok = ok && device_ok(cudaStreamSynchronize(bench->stream), "device");
    for (unsigned i = 0; ok && i < count; i++)
        ok = device_ok(cudaEventElapsedTime(&us[i], events[i], events[i + 1]), "event");
    for (unsigned i = 0; ok && i < count; i++)
        us[i] *= 1000;
    for (unsigned i = 0; events != NULL && i <= count; i++)
        if (events[i] != NULL)
            cudaEventDestroy(events[i]);
    free(events);
    if (ok)
        qsort(us, count, sizeof(us[0]), by_value);
    return ok;
}
