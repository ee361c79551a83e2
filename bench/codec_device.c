/* strait bench codec --device: the CUDA variant on paged pools in GPU memory. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <library_types.h>

#include "bench/bench.h"
#include "bench/device.h"
#include "bench/table.h"
#include "tools/report.h"

#define DEVICE_ALIGNMENT 256u

/* ---- Options ----------------------------------------------------------------------------------------------------- */

enum device_case {
    CASE_CODEC,   /* large pools, and copies of them */
    CASE_LIMITED, /* on some of the multiprocessors */
    CASE_SMALL,   /* 4 KiB pages */
    CASE_GRAPHS,  /* small batches, encoded and decoded by one graph */
    CASE_BESIDE,  /* beside matrix products */
};
static const char *const case_names[] = {"codec", "limited", "small", "graphs", "beside", NULL};

struct device_options {
    struct bench_options common;
    bool device; /* always, in effect */
    struct number_list cases;
    uint64_t page, chunk, size, repeats;
    const char *cublas;
};

#define OPTIONS struct device_options
static const struct bench_option known_options[] = {
    {OPTION(FLAG, device, "device", NULL, NULL, "this bench, in place of the one in host memory")},
    {OPTION(NAMES, cases, "cases", "codec,limited,small,graphs,beside", "LIST",
            "codec (large pools), limited (few multiprocessors), small (4K pages), graphs (small batches), beside "
            "(matrix products of cuBLAS)"),
     .names = case_names},
    {OPTION(SIZE, size, "size", "1G", "SIZE", "bytes of the large pools; the others have a quarter"), .min = 1},
    {OPTION(SIZE, page, "page", "32K", "SIZE", "bytes of a page, a multiple of 16"), .min = 16,
     .max = STRAIT_PAGE_BYTES_MAX, .multiple = 16},
    {OPTION(SIZE, chunk, "chunk", "16M", "SIZE", "bytes of a chunk before compression"), .min = 16, .max = 1u << 30},
    {OPTION(NUMBER, repeats, "repeats", "5", "N", "run everything N times"), .min = 1, .max = REPEATS_MAX},
    {OPTION(TEXT, cublas, "cublas", NULL, "FILE", "library for beside; libcublas.so.13 or .12")},
};
static char command_name[] = "strait bench codec";
static const struct bench_command command = {
    .name = command_name,
    .summary = "Measures the CUDA variant of the codec on pools in GPU memory, beside plain copies, and "
               "compares all that was decoded.",
    .options = known_options,
    .option_count = sizeof(known_options) / sizeof(known_options[0]),
    .codebook = true,
};

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

struct pool_params {
    const struct bench_values *values;       /* each region repeats a tensor */
    uint64_t bytes, page_bytes, chunk_bytes; /* of values */
    bool scattered;                          /* pages in random order */
    uint32_t number; /* of the pool among pools of its kind: each uses another part of the tensors */
};

/* Source pages, a buffer of chunks and destination pages, and a batch for each direction. */
struct pool {
    struct pool_params made;
    uint64_t bytes;
    uint8_t *raw, *coded, *back;
    uint64_t coded_room;
    struct strait_region from[VALUE_REGIONS_MAX], to[VALUE_REGIONS_MAX];
    struct strait_encode_item *encode;
    struct strait_decode_item *decode;
    uint32_t chunks;
    uint32_t *ids;                 /* in device memory */
    struct strait_result *results; /* pinned: first those of encoding */
};

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

static bool fill_regions(struct pool *pool, const struct pool_params *params, uint32_t count)
{
    const uint64_t bytes = pool->bytes / count;
    for (uint32_t r = 0; r < count; r++) {
        const struct span *span = &params->values->tensors.spans.list[r];
        pool->from[r] = (struct strait_region){.base = pool->raw + r * bytes,
                                               .page_stride = params->page_bytes,
                                               .page_count = (uint32_t)(bytes / params->page_bytes),
                                               .rows = 1,
                                               .row_bytes = (uint32_t)params->page_bytes,
                                               .table = strait_codebook_find(params->values->codebook, span->class)};
        pool->to[r] = pool->from[r];
        pool->to[r].base = pool->back + r * bytes;
        if (!fill_region(pool->raw + r * bytes, bytes, span, params->number * 4096ull))
            return false;
    }
    return true;
}

static bool make_ids(struct pool *pool, uint32_t count, bool scattered)
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

static void make_items(struct pool *pool, uint32_t regions, uint32_t ids, uint32_t ids_each)
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

static bool make_batches(struct pool *pool, const struct pool_params *params, uint32_t regions)
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

static bool pool_init(struct pool *pool, const struct pool_params *params)
{
    const uint32_t regions = values_regions(params->values);
    const uint64_t round = regions * params->page_bytes;
    *pool = (struct pool){.made = *params, .bytes = params->bytes / round * round};
    if (pool->bytes == 0) {
        print_error(NULL, "--size is less than a page for each of %u tensors", regions);
        return false;
    }
    return device_ok(cudaMalloc((void **)&pool->raw, pool->bytes), "memory") &&
           device_ok(cudaMalloc((void **)&pool->back, pool->bytes), "memory") && fill_regions(pool, params, regions) &&
           make_batches(pool, params, regions) && device_ok(cudaDeviceSynchronize(), "device");
}

static bool pool_read_results(struct pool *pool, uint64_t *coded_bytes)
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

/* Runs a kernel over the pool that counts: differences of source and destination, or device_sum of the source. */
static bool pool_count(const struct pool *pool, bool sum, uint64_t *found)
{
    unsigned long long *count = NULL;
    bool good = device_ok(cudaHostAlloc((void **)&count, sizeof(*count), cudaHostAllocMapped), "pinned memory");

    if (!good)
        return false;
    *count = 0;
    good = device_ok(sum ? device_sum(pool->raw, pool->bytes, count, NULL)
                         : device_count_differences(pool->raw, pool->back, pool->bytes, count, NULL),
                     "kernel") &&
           device_ok(cudaDeviceSynchronize(), "device");
    *found = *count;
    cudaFreeHost(count);
    return good;
}

static bool pool_same(const struct pool *pool)
{
    uint64_t differences;

    return pool_count(pool, false, &differences) && differences == 0;
}

static bool pool_decoded(const struct pool *pool)
{
    for (uint32_t c = 0; c < pool->chunks; c++)
        if (pool->results[pool->chunks + c].status != STRAIT_OK)
            return false;
    return pool_same(pool);
}

static void pool_fini(struct pool *pool)
{
    cudaFree(pool->raw);
    cudaFree(pool->coded);
    cudaFree(pool->back);
    cudaFree(pool->ids);
    cudaFreeHost(pool->results);
    free(pool->encode);
    free(pool->decode);
    *pool = (struct pool){0};
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

struct bench {
    const struct device_options *asked;
    const struct bench_values *values;
    const struct strait_codec *codec;
    struct CUstream_st *stream; /* of all calls */
    uint8_t *scratch, *tables;
    uint64_t scratch_size;
    int multiprocessors;
    double copy_traffic; /* bytes that the faster copy reads and writes per nanosecond */
    bool flipped;        /* the fault that was asked for has been made */
    struct report *report;
};

static struct strait_run make_run(const struct bench *bench, uint32_t sm_budget)
{
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = bench->scratch,
                               .scratch_size = bench->scratch_size,
                               .stream = bench->stream,
                               .sm_budget = sm_budget,
                               .tables = bench->tables};
}

static bool status_ok(enum strait_status status, const char *what)
{
    if (status != STRAIT_OK)
        print_error(NULL, "%s: %s", what, strait_status_string(status));
    return status == STRAIT_OK;
}

static bool encode_pool(const struct bench *bench, const struct pool *pool, enum strait_mode mode, uint32_t sm_budget)
{
    const struct strait_encode_params params = {
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = mode, .codebook = bench->values->codebook};
    const struct strait_run run = make_run(bench, sm_budget);
    return status_ok(strait_encode_batch(bench->codec, &params, pool->encode, pool->chunks, &run), "encoding");
}

static bool decode_pool(const struct bench *bench, const struct pool *pool, uint32_t sm_budget)
{
    const struct strait_run run = make_run(bench, sm_budget);
    return status_ok(strait_decode_batch(bench->codec, bench->values->codebook, pool->decode, pool->chunks, &run),
                     "decoding");
}

static bool round_trip(const struct bench *bench, struct pool *pool, enum strait_mode mode, uint32_t sm_budget,
                       uint64_t *coded_bytes)
{
    return device_ok(cudaMemsetAsync(pool->back, 0x5A, pool->bytes, bench->stream), "memset") &&
           device_ok(cudaMemsetAsync(pool->coded, 0xA5, pool->coded_room, bench->stream), "memset") &&
           encode_pool(bench, pool, mode, sm_budget) && device_ok(cudaStreamSynchronize(bench->stream), "device") &&
           pool_read_results(pool, coded_bytes) && decode_pool(bench, pool, sm_budget) &&
           device_ok(cudaStreamSynchronize(bench->stream), "device");
}

static bool use_scratch(struct bench *bench, const struct pool *pool)
{
    uint64_t encode = strait_encode_scratch_size(bench->codec, pool->encode, pool->chunks);
    uint64_t decode = strait_decode_scratch_size(bench->codec, pool->decode, pool->chunks);
    cudaFree(bench->scratch);
    bench->scratch_size = encode > decode ? encode : decode;
    return device_ok(cudaMalloc((void **)&bench->scratch, bench->scratch_size), "memory") &&
           device_ok(cudaMemset(bench->scratch, 0, bench->scratch_size), "memset");
}

/* Times `count` calls, one after another, in microseconds. */
typedef bool timed_call(const struct bench *bench, void *arg, unsigned turn);

static bool time_calls(const struct bench *bench, timed_call *call, void *arg, unsigned count, double *us)
{
    cudaEvent_t *events = calloc(count + 1, sizeof(*events));
    bool ok = events != NULL;
    float ms;

    for (unsigned i = 0; ok && i <= count; i++)
        ok = device_ok(cudaEventCreate(&events[i]), "event");
    for (unsigned i = 0; ok && i < 3; i++) /* warm-up */
        ok = call(bench, arg, i);
    for (unsigned i = 0; ok && i <= count; i++)
        ok = device_ok(cudaEventRecord(events[i], bench->stream), "event") && (i == count || call(bench, arg, i));
    ok = ok && device_ok(cudaStreamSynchronize(bench->stream), "device");
    for (unsigned i = 0; ok && i < count; i++)
        if ((ok = device_ok(cudaEventElapsedTime(&ms, events[i], events[i + 1]), "event")))
            us[i] = 1000 * (double)ms;
    for (unsigned i = 0; events != NULL && i <= count; i++)
        if (events[i] != NULL)
            cudaEventDestroy(events[i]);
    free(events);
    return ok;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static const struct column columns[] = {
    {"case", NULL, "case", COLUMN_TEXT},
    {"mode", NULL, "mode", COLUMN_TEXT},
    {"bytes", NULL, "bytes", COLUMN_SIZE},
    {"page_bytes", NULL, "page", COLUMN_SIZE},
    {"order", NULL, "order", COLUMN_TEXT},
    {"chunk_bytes", NULL, "chunk", COLUMN_SIZE},
    {"sm_budget", NULL, "SMs", COLUMN_COUNT},
    {"ratio", NULL, "ratio", COLUMN_RATIO},
    {"encode_GBps", NULL, "enc GB/s", COLUMN_NUMBER},
    {"decode_GBps", NULL, "dec GB/s", COLUMN_NUMBER},
    {"limit_GBps", NULL, "limit", COLUMN_NUMBER},
    {"p50_us", NULL, "p50 us", COLUMN_NUMBER},
    {"p99_us", NULL, "p99 us", COLUMN_NUMBER},
    {"check", NULL, "check", COLUMN_CHECK},
};
static const struct column beside_columns[] = {
    {"mode", NULL, "mode", COLUMN_TEXT},
    {"what", NULL, "what", COLUMN_TEXT},
    {"sm_budget", NULL, "SMs", COLUMN_COUNT},
    {"share", NULL, "share", COLUMN_PERCENT},
    {"loss", NULL, "loss", COLUMN_PERCENT},
    {"excess", NULL, "excess", COLUMN_PERCENT},
    {"GBps_per_sm", NULL, "GB/s/SM", COLUMN_NUMBER},
    {"check", NULL, "check", COLUMN_CHECK},
};
static const struct table tables[] = {
    TABLE("rows", NULL, NULL, columns),
    TABLE("beside", "beside matrix products", NULL, beside_columns),
};

static const enum strait_mode modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED, STRAIT_MODE_BASE};
enum { MODES = sizeof(modes) / sizeof(modes[0]) };

/* mode NULL: a copy of the whole memory. */
static cJSON *add_row(struct bench *bench, const char *name, const char *mode, const struct pool *pool)
{
    cJSON *row = report_add_row(bench->report, "rows");
    bool paged = mode != NULL;

    cJSON_AddStringToObject(row, "case", name);
    cJSON_AddStringToObject(row, "mode", paged ? mode : "-");
    cJSON_AddStringToObject(row, "order", !paged ? "-" : pool->made.scattered ? "random" : "in row");
    cJSON_AddNumberToObject(row, "bytes", (double)pool->bytes);
    cJSON_AddNumberToObject(row, "page_bytes", paged ? (double)pool->made.page_bytes : 0);
    cJSON_AddNumberToObject(row, "chunk_bytes", paged ? (double)pool->made.chunk_bytes : 0);
    return row;
}

struct call {
    enum { COPY_ENGINE, COPY_KERNEL, ENCODE, DECODE } op;
    struct pool *pool;
    enum strait_mode mode;
    uint32_t sm_budget;
};

static bool run_call(const struct bench *bench, void *arg, unsigned turn)
{
    const struct call *call = arg;
    const struct pool *pool = call->pool;

    (void)turn;
    switch (call->op) {
    case COPY_ENGINE:
        return device_ok(cudaMemcpyAsync(pool->back, pool->raw, pool->bytes, cudaMemcpyDeviceToDevice, bench->stream),
                         "copy");
    case COPY_KERNEL:
        return device_ok(device_copy(pool->back, pool->raw, pool->bytes, bench->stream), "copy");
    case ENCODE:
        return encode_pool(bench, pool, call->mode, call->sm_budget);
    default:
        return decode_pool(bench, pool, call->sm_budget);
    }
}

/* GB/s of the median call. */
static bool time_rate(const struct bench *bench, struct call call, double *rate)
{
    double us[REPEATS_MAX];

    if (!time_calls(bench, run_call, &call, (unsigned)bench->asked->repeats, us))
        return false;
    *rate = (double)call.pool->bytes / median_of(us, bench->asked->repeats) / 1000;
    return true;
}

static bool add_copies(struct bench *bench, struct pool *pool)
{
    for (int kernel = 0; kernel < 2; kernel++) {
        double rate;
        if (!time_rate(bench, (struct call){.op = kernel ? COPY_KERNEL : COPY_ENGINE, .pool = pool}, &rate))
            return false;
        cJSON *row = add_row(bench, kernel ? "copy kernel" : "copy engine", NULL, pool);
        cJSON_AddNumberToObject(row, "encode_GBps", rate);
        cJSON_AddBoolToObject(row, "check", pool_same(pool));
        if (2 * rate > bench->copy_traffic)
            bench->copy_traffic = 2 * rate;
    }
    return true;
}

static bool make_fault(struct bench *bench, const struct pool *pool)
{
    uint8_t byte, *at = pool->back + pool->bytes / 2;

    if (bench->asked->common.fault.count == 0 || bench->flipped)
        return true;
    bench->flipped = true;
    if (!device_ok(cudaMemcpy(&byte, at, 1, cudaMemcpyDeviceToHost), "copy"))
        return false;
    byte ^= 1;
    return device_ok(cudaMemcpy(at, &byte, 1, cudaMemcpyHostToDevice), "copy");
}

static bool add_codec(struct bench *bench, struct pool *pool, enum strait_mode mode, uint32_t sm_budget)
{
    uint64_t coded, sum;
    uint8_t digits[8];
    double encode, decode;

    if (!pool_count(pool, true, &sum) || !round_trip(bench, pool, mode, sm_budget, &coded) || !make_fault(bench, pool))
        return false;
    bool right = pool_decoded(pool);
    if (!time_rate(bench, (struct call){ENCODE, pool, mode, sm_budget}, &encode) ||
        !time_rate(bench, (struct call){DECODE, pool, mode, sm_budget}, &decode))
        return false;
    double ratio = (double)pool->bytes / (double)coded;
    cJSON *row = add_row(bench, sm_budget > 0 ? "limited" : "codec", mode_names[mode], pool);
    cJSON_AddNumberToObject(row, "sm_budget", sm_budget);
    cJSON_AddNumberToObject(row, "ratio", ratio);
    cJSON_AddNumberToObject(row, "encode_GBps", encode);
    cJSON_AddNumberToObject(row, "decode_GBps", decode);
    json_add_known(row, "limit_GBps", sm_budget > 0 ? 0 : bench->copy_traffic / (1 + 1 / ratio));
    for (int i = 0; i < 8; i++) /* most significant digit first */
        digits[i] = (uint8_t)(sum >> (56 - 8 * i));
    json_add_hex(row, "values", digits, sizeof(digits));
    cJSON_AddBoolToObject(row, "check", pool_decoded(pool) && right);
    return true;
}

static bool add_pool(struct bench *bench, struct pool_params params, bool copies)
{
    struct pool pool;
    bool good = pool_init(&pool, &params) && use_scratch(bench, &pool);

    if (good && copies)
        good = add_copies(bench, &pool);
    for (int m = 0; good && m < MODES; m++)
        good = add_codec(bench, &pool, modes[m], 0);
    pool_fini(&pool);
    return good;
}

/* All bytes, and a quarter of them; pages in order and at random. Copies come first, as they give the limit. */
static bool add_sizes(struct bench *bench, struct pool_params params)
{
    const uint64_t all = params.bytes;

    for (int i = 0; i < 4; i++) {
        params.bytes = i < 2 ? all : all / 4;
        params.scattered = i % 2 != 0;
        if (!add_pool(bench, params, i == 0))
            return false;
    }
    return true;
}

static const uint32_t budgets[] = {4, 8, 16, 32};
enum { BUDGETS = sizeof(budgets) / sizeof(budgets[0]) };

static bool add_limited(struct bench *bench, struct pool_params params)
{
    struct pool pool;
    bool good = pool_init(&pool, &params) && use_scratch(bench, &pool);

    for (int b = 0; b < BUDGETS; b++)
        for (int m = 0; good && m < MODES; m++)
            good = add_codec(bench, &pool, modes[m], budgets[b]);
    pool_fini(&pool);
    return good;
}

/* ---- One graph --------------------------------------------------------------------------------------------------- */

enum { GRAPH_POOLS = 24, GRAPH_TURNS = 240 };

struct graphs {
    struct pool pools[GRAPH_POOLS];
    cudaGraphExec_t exec[GRAPH_POOLS];
    unsigned count;
};

static bool call_graph(const struct bench *bench, void *arg, unsigned turn)
{
    const struct graphs *graphs = arg;

    return device_ok(cudaGraphLaunch(graphs->exec[turn % graphs->count], bench->stream), "graph");
}

/* Encodes pool k and decodes one that was encoded long ago, so that neither is in a cache. */
static bool capture(const struct bench *bench, struct graphs *graphs, unsigned k, enum strait_mode mode)
{
    const struct pool *other = &graphs->pools[(k + graphs->count / 2) % graphs->count];
    cudaGraph_t graph;

    if (!device_ok(cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeThreadLocal), "capture") ||
        !encode_pool(bench, &graphs->pools[k], mode, 0) || !decode_pool(bench, other, 0) ||
        !device_ok(cudaStreamEndCapture(bench->stream, &graph), "capture"))
        return false;
    bool good = device_ok(cudaGraphInstantiate(&graphs->exec[k], graph, 0), "graph");
    cudaGraphDestroy(graph);
    return good;
}

static bool time_graphs(struct bench *bench, struct graphs *graphs, enum strait_mode mode)
{
    const struct pool *first = &graphs->pools[0];
    double us[GRAPH_TURNS];
    uint64_t coded;
    bool right = true;

    for (unsigned k = 0; k < graphs->count; k++)
        if (!round_trip(bench, &graphs->pools[k], mode, 0, &coded))
            return false;
    for (unsigned k = 0; k < graphs->count; k++)
        if (!capture(bench, graphs, k, mode))
            return false;
    if (!time_calls(bench, call_graph, graphs, GRAPH_TURNS, us))
        return false;
    for (unsigned k = 0; k < graphs->count; k++) {
        right = pool_decoded(&graphs->pools[k]) && right;
        cudaGraphExecDestroy(graphs->exec[k]);
    }
    cJSON *row = add_row(bench, "one graph", mode_names[mode], first);
    cJSON_AddNumberToObject(row, "ratio", (double)first->bytes / (double)coded);
    cJSON_AddNumberToObject(row, "p50_us", median_of(us, GRAPH_TURNS)); /* sorts */
    cJSON_AddNumberToObject(row, "p99_us", us[GRAPH_TURNS * 99 / 100]);
    cJSON_AddBoolToObject(row, "check", right);
    return true;
}

static bool add_graphs(struct bench *bench, uint64_t bytes, unsigned count)
{
    struct graphs graphs = {.count = count};
    struct pool_params params = {.values = bench->values,
                                 .bytes = bytes,
                                 .page_bytes = 16u << 10,
                                 .chunk_bytes = bytes < (8u << 20) ? bytes : 8u << 20,
                                 .scattered = true};
    bool good = true;

    for (; good && params.number < count; params.number++)
        good = pool_init(&graphs.pools[params.number], &params);
    good = good && use_scratch(bench, &graphs.pools[0]);
    for (int m = 0; good && m < MODES; m++)
        good = time_graphs(bench, &graphs, modes[m]);
    for (unsigned k = 0; k < count; k++)
        pool_fini(&graphs.pools[k]);
    return good;
}

/* ---- Beside matrix products -------------------------------------------------------------------------------------- */

/* How much slower products of cuBLAS become, planned for the multiprocessors that are left, while the codec runs on the
 * others in a stream of higher priority. */
enum { PRODUCT_SIZE = 8192, PRODUCTS = 24, CALLS = 512, CALLS_QUEUED = 3, TURNS = 3 };

struct products {
    void *handle; /* of cuBLAS */
    int (*gemm)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
                int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                int compute, int algorithm);
    int (*set_sm_count)(void *handle, int count);
    uint8_t *result;
    cudaStream_t stream, codec_stream;
    cudaEvent_t begin, end, calls[CALLS];
};

/* The library stays loaded, because the driver knows its kernels. False: there is none that works. */
static bool open_products(struct products *products, const char *path)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.13",
                                        "/usr/local/cuda/lib64/libcublas.so.12"};
    void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*create)(void **handle), (*set_stream)(void *handle, cudaStream_t stream), lowest, highest;

    for (unsigned i = 0; path == NULL && library == NULL && i < sizeof(names) / sizeof(names[0]); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return false;
    *(void **)&create = dlsym(library, "cublasCreate_v2");
    *(void **)&set_stream = dlsym(library, "cublasSetStream_v2");
    *(void **)&products->gemm = dlsym(library, "cublasGemmEx");
    *(void **)&products->set_sm_count = dlsym(library, "cublasSetSmCountTarget");
    for (unsigned i = 0; i < CALLS; i++)
        cudaEventCreate(&products->calls[i]);
    return create != NULL && set_stream != NULL && products->gemm != NULL && products->set_sm_count != NULL &&
           cudaDeviceGetStreamPriorityRange(&lowest, &highest) == cudaSuccess &&
           cudaStreamCreateWithFlags(&products->stream, cudaStreamNonBlocking) == cudaSuccess &&
           cudaStreamCreateWithPriority(&products->codec_stream, cudaStreamNonBlocking, highest) == cudaSuccess &&
           cudaEventCreate(&products->begin) == cudaSuccess && cudaEventCreate(&products->end) == cudaSuccess &&
           cudaMalloc((void **)&products->result, 2ull * PRODUCT_SIZE * PRODUCT_SIZE) == cudaSuccess &&
           create(&products->handle) == 0 && set_stream(products->handle, products->stream) == 0;
}

static bool multiply(struct products *products, const void *factor, unsigned count)
{
    static const float one = 1, zero = 0;
    enum { N = PRODUCT_SIZE, TRANSPOSE = 1, COMPUTE_FLOAT = 68, ALGORITHM_DEFAULT = -1 }; /* of cublas_api.h */
    int status = 0;

    for (unsigned i = 0; status == 0 && i < count; i++)
        status =
            products->gemm(products->handle, TRANSPOSE, 0, N, N, N, &one, factor, CUDA_R_16BF, N, factor, CUDA_R_16BF,
                           N, &zero, products->result, CUDA_R_16BF, N, COMPUTE_FLOAT, ALGORITHM_DEFAULT);
    if (status != 0)
        print_error(NULL, "cuBLAS: a product failed with %d", status);
    return status == 0;
}

/* Times products, in ms, while the codec keeps coding; call NULL: alone. *rate: GB/s of codec calls that began and
 * ended meanwhile. */
static bool time_products(struct bench *bench, struct products *products, const void *factor, struct call *call,
                          double *ms, double *rate)
{
    int target = call != NULL ? bench->multiprocessors - (int)call->sm_budget : 0;
    unsigned queued = 0, ended = 0, within = 0;
    float took, at, first = 0, last = 0;

    /* One product before: cuBLAS may choose another kernel, which is loaded at its first run. */
    if (products->set_sm_count(products->handle, target) != 0 || !multiply(products, factor, 1) ||
        !device_ok(cudaDeviceSynchronize(), "device"))
        return false;
    bench->stream = products->codec_stream;
    while (call != NULL && queued < CALLS_QUEUED)
        if (!run_call(bench, call, 0) || cudaEventRecord(products->calls[queued++], bench->stream) != cudaSuccess)
            return false;
    if (queued > 0)
        cudaEventSynchronize(products->calls[0]);
    cudaEventRecord(products->begin, products->stream);
    if (!multiply(products, factor, PRODUCTS))
        return false;
    cudaEventRecord(products->end, products->stream);
    while (call != NULL && cudaEventQuery(products->end) == cudaErrorNotReady) {
        while (ended < queued && cudaEventQuery(products->calls[ended]) == cudaSuccess)
            ended++;
        if (queued - ended < CALLS_QUEUED && queued < CALLS &&
            (!run_call(bench, call, 0) || cudaEventRecord(products->calls[queued++], bench->stream) != cudaSuccess))
            return false;
    }
    if (!device_ok(cudaDeviceSynchronize(), "device") ||
        !device_ok(cudaEventElapsedTime(&took, products->begin, products->end), "event"))
        return false;
    *ms = (double)took;
    for (unsigned i = 0; i < queued; i++)
        if (cudaEventElapsedTime(&at, products->begin, products->calls[i]) == cudaSuccess && at >= 0 && at <= took) {
            first = within++ == 0 ? at : first;
            last = at;
        }
    *rate = within > 1 ? (double)call->pool->bytes * (within - 1) / ((double)(last - first) * 1e6) : 0;
    return true;
}

static bool add_beside_row(struct bench *bench, struct products *products, struct call call)
{
    double losses[TURNS], rates[TURNS], alone, with, none, share = (double)call.sm_budget / bench->multiprocessors;
    uint64_t coded;

    if (!round_trip(bench, call.pool, call.mode, call.sm_budget, &coded))
        return false;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        if (!time_products(bench, products, call.pool->raw, NULL, &alone, &none) ||
            !time_products(bench, products, call.pool->raw, &call, &with, &rates[turn]))
            return false;
        losses[turn] = 1 - alone / with;
    }
    /* Also checks what was coded beside the products. */
    if (!decode_pool(bench, call.pool, call.sm_budget) || !device_ok(cudaDeviceSynchronize(), "device"))
        return false;
    cJSON *row = report_add_row(bench->report, "beside");
    double loss = median_of(losses, TURNS);
    cJSON_AddStringToObject(row, "mode", mode_names[call.mode]);
    cJSON_AddStringToObject(row, "what", call.op == DECODE ? "decode" : "encode");
    cJSON_AddNumberToObject(row, "sm_budget", call.sm_budget);
    cJSON_AddNumberToObject(row, "share", share);
    cJSON_AddNumberToObject(row, "loss", loss);
    cJSON_AddNumberToObject(row, "excess", loss - share);
    cJSON_AddNumberToObject(row, "GBps_per_sm", median_of(rates, TURNS) / call.sm_budget);
    cJSON_AddBoolToObject(row, "check", pool_decoded(call.pool));
    return true;
}

static bool add_beside(struct bench *bench, struct pool_params params)
{
    const uint64_t factor = 2ull * PRODUCT_SIZE * PRODUCT_SIZE + VALUE_REGIONS_MAX * params.page_bytes;
    struct products products = {0};
    struct pool pool;
    cudaStream_t own = bench->stream;

    if (!open_products(&products, bench->asked->cublas)) {
        report_note(bench->report, "skipped: beside matrix products: no cuBLAS that works");
        return true;
    }
    params.bytes = params.bytes > factor ? params.bytes : factor;
    bool good = pool_init(&pool, &params) && use_scratch(bench, &pool);
    for (int m = 0; m < 2; m++)
        for (int op = ENCODE; op <= DECODE; op++)
            for (int b = 0; good && b < BUDGETS; b++)
                good = add_beside_row(bench, &products, (struct call){op, &pool, modes[m], budgets[b]});
    bench->stream = own;
    pool_fini(&pool);
    cudaFree(products.result); /* streams and events end with the process */
    return good;
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static bool add_all(struct bench *bench)
{
    const struct device_options *asked = bench->asked;
    struct pool_params params = {
        .values = bench->values, .bytes = asked->size, .page_bytes = asked->page, .chunk_bytes = asked->chunk};
    bool good = !list_has(&asked->cases, CASE_CODEC) || add_sizes(bench, params);

    params.bytes = asked->size / 4;
    params.scattered = true;
    good = good && (!list_has(&asked->cases, CASE_LIMITED) || add_limited(bench, params));
    good = good && (!list_has(&asked->cases, CASE_BESIDE) || add_beside(bench, params));
    params.page_bytes = 4096;
    good = good && (!list_has(&asked->cases, CASE_SMALL) || add_pool(bench, params, false));
    return good && (!list_has(&asked->cases, CASE_GRAPHS) ||
                    (add_graphs(bench, 32u << 20, 8) && add_graphs(bench, 4u << 20, GRAPH_POOLS)));
}

static bool open_device(struct bench *bench)
{
    size_t size = strait_codebook_image_size(bench->values->codebook);
    struct cudaDeviceProp properties;
    cJSON *root = bench->report->root;
    int driver = 0, runtime = 0;
    void *image;

    bench->codec = strait_codec_get("cuda");
    if (bench->codec == NULL) {
        print_error(NULL, "--device: no plugin libstrait-cuda.so, no driver, or no device that it has kernels for");
        return false;
    }
    image = malloc(size);
    bool good = image != NULL && status_ok(strait_codebook_image(bench->values->codebook, image, size), "tables") &&
                device_ok(cudaStreamCreateWithFlags(&bench->stream, cudaStreamNonBlocking), "stream") &&
                device_ok(cudaMalloc((void **)&bench->tables, size), "memory") &&
                device_ok(cudaMemcpy(bench->tables, image, size, cudaMemcpyHostToDevice), "copy") &&
                device_ok(cudaGetDeviceProperties(&properties, 0), "device");
    free(image);
    if (!good)
        return false;
    bench->multiprocessors = properties.multiProcessorCount;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cJSON_AddStringToObject(root, "device", properties.name);
    char kernels[96];
    if (strait_codec_describe(bench->codec, kernels, sizeof(kernels)) > 0)
        cJSON_AddStringToObject(root, "kernels", kernels);
    cJSON_AddNumberToObject(root, "multiprocessors", properties.multiProcessorCount);
    cJSON_AddNumberToObject(root, "driver", driver);
    cJSON_AddNumberToObject(root, "runtime", runtime);
    return true;
}

int bench_codec_device(int argc, char **argv)
{
    static struct device_options asked;
    struct bench_values values = {0};
    struct report report;
    struct bench bench = {.asked = &asked, .values = &values, .report = &report};
    enum exit_code code;

    if (!command_read(&command, &asked, argc, argv, &code))
        return code;
    bool good = report_init(&report, &asked.common) && values_open(&values, &asked.common, 1) && open_device(&bench);
    if (good) {
        report_add_values(&report, &values);
        cJSON_AddNumberToObject(report.root, "repeats", (double)asked.repeats);
        good = add_all(&bench); /* what was measured before a failure is printed, too */
        good = report_finish(&report, tables, sizeof(tables) / sizeof(tables[0])) && good;
    }
    cudaFree(bench.scratch);
    cudaFree(bench.tables);
    if (bench.stream != NULL)
        cudaStreamDestroy(bench.stream);
    values_close(&values);
    report_fini(&report);
    return good ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
