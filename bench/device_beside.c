#include "bench/device_beside.h"

#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "bench/cases.h"
#include "bench/device_calls.h"
#include "bench/device_gemm.h"
#include "bench/timing.h"

#define GEMM_SIZE     8192
#define GEMMS         12u /* products in a row, timed together */
#define WARM_GEMMS    10u
#define TURNS         3u    /* of products alone and beside the codec */
#define CALLS_MAX     4096u /* of the codec, during the products of one turn */
#define CALLS_WAITING 3u    /* so that the codec never runs out of work */

const char *const beside_names[BESIDE_SETTINGS] = {"plain", "priority", "told"};

/* State of a run. */
struct beside {
    struct device_bench *bench;
    struct device_pool pool;
    struct device_gemm gemm;
    cudaStream_t gemm_stream, streams[BESIDE_SETTINGS]; /* of the codec */
    cudaEvent_t begin, end;                             /* of the products */
    cudaEvent_t *calls;                                 /* the end of each call of the codec */
    double alone[BESIDE_ROWS_MAX * BESIDE_SETTINGS * TURNS];
    unsigned alone_count;
};

/* ---- Products ---------------------------------------------------------------------------------------------------- */

static bool enqueue_gemms(struct beside *beside, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (!device_gemm_run(&beside->gemm))
            return false;
    return true;
}

static bool enqueue_timed(struct beside *beside)
{
    return device_ok(cudaEventRecord(beside->begin, beside->gemm_stream), "event") && enqueue_gemms(beside, GEMMS) &&
           device_ok(cudaEventRecord(beside->end, beside->gemm_stream), "event");
}

/* Time of one product, in microseconds. */
static bool read_time(const struct beside *beside, double *us)
{
    float ms;

    if (!device_ok(cudaEventElapsedTime(&ms, beside->begin, beside->end), "event"))
        return false;
    *us = (double)ms * 1000 / GEMMS;
    return true;
}

static bool time_alone(struct beside *beside, double *us)
{
    if (!enqueue_timed(beside) || !device_ok(cudaStreamSynchronize(beside->gemm_stream), "device") ||
        !read_time(beside, us))
        return false;
    beside->alone[beside->alone_count++] = *us;
    return true;
}

/* ---- The codec beside -------------------------------------------------------------------------------------------- */

struct beside_call {
    enum strait_mode mode;
    bool decode;
    uint32_t sm_budget;
    enum beside_setting setting;
};

static bool enqueue_call(struct beside *beside, const struct beside_call *call, unsigned number)
{
    struct device_bench *bench = beside->bench;
    bool good = call->decode ? device_decode_pool(bench, &beside->pool, call->sm_budget)
                             : device_encode_pool(bench, &beside->pool, call->mode, call->sm_budget);
    return good && device_ok(cudaEventRecord(beside->calls[number], bench->stream), "event");
}

/* Keeps the codec busy until the products are over. *count: calls enqueued. */
static bool keep_coding(struct beside *beside, const struct beside_call *call, unsigned *count)
{
    unsigned over = 0;

    while (cudaEventQuery(beside->end) == cudaErrorNotReady) {
        while (over < *count && cudaEventQuery(beside->calls[over]) == cudaSuccess)
            over++;
        if (*count - over >= CALLS_WAITING || *count == CALLS_MAX)
            continue;
        if (!enqueue_call(beside, call, (*count)++))
            return false;
    }
    return device_ok(cudaDeviceSynchronize(), "device");
}

/* Rate of the calls that began and ended while products ran. 0: there was none. */
static bool read_rate(const struct beside *beside, unsigned count, double *rate)
{
    float end, first = -1, last = -1, at;
    unsigned within = 0;

    *rate = 0;
    if (!device_ok(cudaEventElapsedTime(&end, beside->begin, beside->end), "event"))
        return false;
    for (unsigned i = 0; i < count; i++) {
        if (!device_ok(cudaEventElapsedTime(&at, beside->begin, beside->calls[i]), "event"))
            return false;
        if (at < 0 || at > end)
            continue;
        if (within++ == 0)
            first = at;
        last = at;
    }
    if (within > 1 && last > first)
        *rate = (double)beside->pool.bytes * (within - 1) / ((double)(last - first) * 1e6);
    return true;
}

/* Times products that begin when the codec is already at work. */
static bool time_beside(struct beside *beside, const struct beside_call *call, double *us, double *rate)
{
    unsigned count = 0;

    beside->bench->stream = beside->streams[call->setting];
    while (count < CALLS_WAITING)
        if (!enqueue_call(beside, call, count++))
            return false;
    return device_ok(cudaEventSynchronize(beside->calls[0]), "device") && enqueue_timed(beside) &&
           keep_coding(beside, call, &count) && read_time(beside, us) && read_rate(beside, count, rate);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Runs a product once after the change: cuBLAS may choose another kernel, which is loaded at its first run. */
static bool use_multiprocessors(struct beside *beside, int count)
{
    return device_gemm_use(&beside->gemm, count) && enqueue_gemms(beside, 1) &&
           device_ok(cudaStreamSynchronize(beside->gemm_stream), "device");
}

static bool measure(struct beside *beside, const struct beside_call *call, struct beside_row *row)
{
    int all = beside->bench->report.multiprocessors;
    double losses[TURNS], rates[TURNS], alone, with;

    for (unsigned turn = 0; turn < TURNS; turn++) {
        if (!use_multiprocessors(beside, 0) || !time_alone(beside, &alone) ||
            !use_multiprocessors(beside, call->setting == BESIDE_TOLD ? all - (int)call->sm_budget : 0) ||
            !time_beside(beside, call, &with, &rates[turn]))
            return false;
        losses[turn] = 1 - alone / with;
    }
    row->at[call->setting].loss = spread_of(losses, TURNS).p50;
    row->at[call->setting].sm_GBps = spread_of(rates, TURNS).p50 / call->sm_budget;
    return true;
}

static bool add_row(struct beside *beside, struct beside_call call)
{
    struct device_beside *report = &beside->bench->report.beside;
    struct beside_row *row = &report->rows[report->count];
    uint64_t coded;

    *row = (struct beside_row){.mode = mode_names[call.mode], .decode = call.decode, .sm_budget = call.sm_budget};
    beside->bench->stream = beside->streams[BESIDE_PLAIN];
    if (!device_prove_pool(beside->bench, &beside->pool, call.mode, call.sm_budget, &coded))
        return false;
    for (call.setting = 0; call.setting < BESIDE_SETTINGS; call.setting++)
        if (!measure(beside, &call, row))
            return false;
    /* Also checks what was coded beside the products. */
    if (!device_decode_pool(beside->bench, &beside->pool, call.sm_budget) ||
        !device_ok(cudaDeviceSynchronize(), "device"))
        return false;
    row->ok = device_pool_decoded(&beside->pool);
    report->count++;
    return true;
}

static bool add_rows(struct beside *beside)
{
    static const enum strait_mode modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED};
    static const uint32_t budgets[] = {4, 8, 16, 32};

    for (int m = 0; m < 2; m++)
        for (int decode = 0; decode < 2; decode++)
            for (int b = 0; b < 4; b++)
                if (!add_row(beside, (struct beside_call){modes[m], decode, budgets[b], BESIDE_PLAIN}))
                    return false;
    beside->bench->report.beside.alone_us = spread_of(beside->alone, beside->alone_count).p50;
    return true;
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static bool open_streams(struct beside *beside)
{
    int lowest, highest;

    beside->calls = calloc(CALLS_MAX, sizeof(beside->calls[0]));
    if (beside->calls == NULL || !device_ok(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "priorities") ||
        !device_ok(cudaStreamCreateWithFlags(&beside->gemm_stream, cudaStreamNonBlocking), "stream") ||
        !device_ok(cudaEventCreate(&beside->begin), "event") || !device_ok(cudaEventCreate(&beside->end), "event"))
        return false;
    for (int s = 0; s < BESIDE_SETTINGS; s++)
        if (!device_ok(cudaStreamCreateWithPriority(&beside->streams[s], cudaStreamNonBlocking,
                                                    s == BESIDE_PLAIN ? lowest : highest),
                       "stream"))
            return false;
    for (unsigned i = 0; i < CALLS_MAX; i++)
        if (!device_ok(cudaEventCreate(&beside->calls[i]), "event"))
            return false;
    return true;
}

static void close_streams(struct beside *beside)
{
    for (unsigned i = 0; beside->calls != NULL && i < CALLS_MAX; i++)
        if (beside->calls[i] != NULL)
            cudaEventDestroy(beside->calls[i]);
    free(beside->calls);
    for (int s = 0; s < BESIDE_SETTINGS; s++)
        if (beside->streams[s] != NULL)
            cudaStreamDestroy(beside->streams[s]);
    if (beside->gemm_stream != NULL)
        cudaStreamDestroy(beside->gemm_stream);
    if (beside->begin != NULL)
        cudaEventDestroy(beside->begin);
    if (beside->end != NULL)
        cudaEventDestroy(beside->end);
}

static bool run(struct beside *beside, const char *cublas)
{
    struct device_beside *report = &beside->bench->report.beside;

    if (!device_gemm_open(&beside->gemm, cublas, GEMM_SIZE, beside->pool.raw, beside->gemm_stream, report->why,
                          sizeof(report->why)))
        return true;
    report->size = GEMM_SIZE;
    report->version = beside->gemm.version;
    return enqueue_gemms(beside, WARM_GEMMS) && add_rows(beside);
}

bool device_beside_run(struct device_bench *bench, uint64_t bytes, uint64_t page_bytes, uint64_t chunk_bytes,
                       const char *cublas)
{
    const uint64_t factor = 2ull * GEMM_SIZE * GEMM_SIZE + POOL_REGIONS_MAX * page_bytes;
    struct beside beside = {.bench = bench};
    struct device_pool_params params = {.tensors = bench->tensors,
                                        .codebook = bench->codebook,
                                        .bytes = bytes > factor ? bytes : factor,
                                        .page_bytes = page_bytes,
                                        .chunk_bytes = chunk_bytes,
                                        .scattered = true};
    cudaStream_t own = bench->stream;
    bool good = open_streams(&beside) && device_pool_init(&beside.pool, &params) &&
                device_use_scratch(bench, &beside.pool) && run(&beside, cublas);

    cudaDeviceSynchronize();
    bench->stream = own;
    device_gemm_close(&beside.gemm);
    device_pool_fini(&beside.pool);
    close_streams(&beside);
    return good;
}
