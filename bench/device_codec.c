#include "bench/device_codec.h"

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include "bench/cases.h"
#include "bench/device_beside.h"
#include "bench/device_calls.h"
#include "bench/device_kernels.h"
#include "bench/device_pool.h"
#include "tools/util.h"

/* ---- Rows ------------------------------------------------------------------------------------------------------ */

static struct device_row *add_row(struct device_bench *bench, struct device_row row)
{
    struct device_row *added = &bench->report.rows[bench->report.count];
    if (bench->report.count < DEVICE_ROWS_MAX)
        bench->report.count++;
    *added = row;
    return added;
}

struct copy_call {
    struct device_pool *pool;
    bool kernel;
};

static bool call_copy(const struct device_bench *bench, void *arg, unsigned turn)
{
    const struct copy_call *copy = arg;
    const struct device_pool *pool = copy->pool;
    (void)turn;
    if (copy->kernel)
        return device_ok(device_copy(pool->back, pool->raw, pool->bytes, bench->stream), "copy");
    return device_ok(cudaMemcpyAsync(pool->back, pool->raw, pool->bytes, cudaMemcpyDeviceToDevice, bench->stream),
                     "copy");
}

static bool add_copies(struct device_bench *bench, struct device_pool *pool)
{
    float us[REPEATS_MAX];
    for (int kernel = 0; kernel < 2; kernel++) {
        struct copy_call copy = {pool, kernel};
        if (!device_time_calls(bench, call_copy, &copy, bench->repeats, us))
            return false;
        double rate = (double)pool->bytes / us[bench->repeats / 2] / 1000;
        add_row(bench, (struct device_row){.name = kernel ? "copy kernel" : "copy engine",
                                           .mode = "-",
                                           .order = "-",
                                           .bytes = pool->bytes,
                                           .encode = rate,
                                           .ok = device_pool_same(pool)});
        if (2 * rate > bench->copy_traffic)
            bench->copy_traffic = 2 * rate;
    }
    return true;
}

struct pool_call {
    struct device_pool *pool;
    enum strait_mode mode;
    uint32_t sm_budget;
};

static bool call_encode(const struct device_bench *bench, void *arg, unsigned turn)
{
    const struct pool_call *call = arg;
    (void)turn;
    return device_encode_pool(bench, call->pool, call->mode, call->sm_budget);
}

static bool call_decode(const struct device_bench *bench, void *arg, unsigned turn)
{
    const struct pool_call *call = arg;
    (void)turn;
    return device_decode_pool(bench, call->pool, call->sm_budget);
}

static bool add_codec(struct device_bench *bench, struct device_pool *pool, const struct device_pool_params *params,
                      enum strait_mode mode, uint32_t sm_budget)
{
    struct pool_call call = {pool, mode, sm_budget};
    float us[REPEATS_MAX];
    uint64_t coded;
    struct device_row row = {.name = sm_budget > 0 ? "limited" : "codec",
                             .mode = mode_names[mode],
                             .order = params->scattered ? "random" : "in row",
                             .bytes = pool->bytes,
                             .page_bytes = params->page_bytes,
                             .chunk_bytes = params->chunk_bytes,
                             .sm_budget = sm_budget};
    if (!device_pool_sum(pool, &row.values) || !device_prove_pool(bench, pool, mode, sm_budget, &coded))
        return false;
    row.ratio = (double)pool->bytes / (double)coded;
    row.ok = device_pool_decoded(pool);
    if (!device_time_calls(bench, call_encode, &call, bench->repeats, us))
        return false;
    row.encode = (double)pool->bytes / us[bench->repeats / 2] / 1000;
    if (!device_time_calls(bench, call_decode, &call, bench->repeats, us))
        return false;
    row.decode = (double)pool->bytes / us[bench->repeats / 2] / 1000;
    row.ok = row.ok && device_pool_decoded(pool);
    row.limit = sm_budget > 0 ? 0 : bench->copy_traffic / (1 + 1 / row.ratio);
    add_row(bench, row);
    return true;
}

static const enum strait_mode modes[] = {STRAIT_MODE_TOP16, STRAIT_MODE_TIERED, STRAIT_MODE_BASE};
enum { MODES = sizeof(modes) / sizeof(modes[0]) };

/* ---- One graph ------------------------------------------------------------------------------------------------- */

enum { GRAPH_POOLS = 24, GRAPH_TURNS = 240 };

struct graphs {
    struct device_pool pools[GRAPH_POOLS];
    cudaGraphExec_t exec[GRAPH_POOLS];
    unsigned count;
};

static bool call_graph(const struct device_bench *bench, void *arg, unsigned turn)
{
    const struct graphs *graphs = arg;
    return device_ok(cudaGraphLaunch(graphs->exec[turn % graphs->count], bench->stream), "graph");
}

/* Encodes pool k and decodes one that was encoded long ago, so that neither is in a cache. */
static bool capture(const struct device_bench *bench, struct graphs *graphs, unsigned k, enum strait_mode mode)
{
    const struct device_pool *other = &graphs->pools[(k + graphs->count / 2) % graphs->count];
    cudaGraph_t graph;
    if (!device_ok(cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeThreadLocal), "capture") ||
        !device_encode_pool(bench, &graphs->pools[k], mode, 0) || !device_decode_pool(bench, other, 0) ||
        !device_ok(cudaStreamEndCapture(bench->stream, &graph), "capture"))
        return false;
    bool ok = device_ok(cudaGraphInstantiate(&graphs->exec[k], graph, 0), "graph");
    cudaGraphDestroy(graph);
    return ok;
}

static bool time_graphs(struct device_bench *bench, struct graphs *graphs, const struct device_pool_params *params,
                        enum strait_mode mode)
{
    float us[GRAPH_TURNS];
    uint64_t coded;
    bool ok = true;
    for (unsigned k = 0; k < graphs->count; k++)
        if (!device_prove_pool(bench, &graphs->pools[k], mode, 0, &coded))
            return false;
    for (unsigned k = 0; k < graphs->count; k++)
        if (!capture(bench, graphs, k, mode))
            return false;
    if (!device_time_calls(bench, call_graph, graphs, GRAPH_TURNS, us))
        return false;
    for (unsigned k = 0; k < graphs->count; k++) {
        ok = device_pool_decoded(&graphs->pools[k]) && ok;
        cudaGraphExecDestroy(graphs->exec[k]);
    }
    add_row(bench, (struct device_row){.name = "one graph",
                                       .mode = mode_names[mode],
                                       .order = "random",
                                       .bytes = graphs->pools[0].bytes,
                                       .page_bytes = params->page_bytes,
                                       .chunk_bytes = params->chunk_bytes,
                                       .ratio = (double)graphs->pools[0].bytes / (double)coded,
                                       .p50_us = us[GRAPH_TURNS / 2],
                                       .p99_us = us[GRAPH_TURNS * 99 / 100],
                                       .ok = ok});
    return true;
}

static bool add_graphs(struct device_bench *bench, uint64_t bytes, uint64_t page_bytes, unsigned count)
{
    struct graphs graphs = {.count = count};
    struct device_pool_params params = {.tensors = bench->tensors,
                                        .codebook = bench->codebook,
                                        .bytes = bytes,
                                        .page_bytes = page_bytes,
                                        .chunk_bytes = bytes < (8u << 20) ? bytes : 8u << 20,
                                        .scattered = true};
    bool ok = true;
    for (; ok && params.number < count; params.number++)
        ok = device_pool_init(&graphs.pools[params.number], &params);
    ok = ok && device_use_scratch(bench, &graphs.pools[0]);
    for (int m = 0; ok && m < MODES; m++)
        ok = time_graphs(bench, &graphs, &params, modes[m]);
    for (unsigned k = 0; k < count; k++)
        device_pool_fini(&graphs.pools[k]);
    return ok;
}

/* ---- The run --------------------------------------------------------------------------------------------------- */

static bool add_pool(struct device_bench *bench, struct device_pool_params params, bool copies)
{
    struct device_pool pool;
    bool ok = device_pool_init(&pool, &params) && device_use_scratch(bench, &pool);
    if (ok && copies)
        ok = add_copies(bench, &pool);
    for (int m = 0; ok && m < MODES; m++)
        ok = add_codec(bench, &pool, &params, modes[m], 0);
    device_pool_fini(&pool);
    return ok;
}

static bool add_limited(struct device_bench *bench, struct device_pool_params params)
{
    static const uint32_t budgets[] = {4, 8, 16, 32};
    struct device_pool pool;
    bool ok = device_pool_init(&pool, &params) && device_use_scratch(bench, &pool);
    for (int b = 0; ok && b < 4; b++)
        for (int m = 0; ok && m < MODES; m++)
            ok = add_codec(bench, &pool, &params, modes[m], budgets[b]);
    device_pool_fini(&pool);
    return ok;
}

/* All bytes, and a quarter of them; pages in order and at random. Copies come first, as they give the limit. */
static bool add_sizes(struct device_bench *bench, struct device_pool_params params)
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

static bool add_all(struct device_bench *bench, const struct codec_options *options)
{
    struct device_pool_params params = {.tensors = bench->tensors,
                                        .codebook = bench->codebook,
                                        .bytes = options->size,
                                        .page_bytes = options->pages[0],
                                        .chunk_bytes = options->chunk_bytes};
    const bool *asked = options->cases;
    bool ok = !asked[DEVICE_CODEC] || add_sizes(bench, params);
    params.bytes = options->size / 4;
    params.scattered = true;
    ok = ok && (!asked[DEVICE_LIMITED] || add_limited(bench, params));
    params.page_bytes = 4096;
    ok = ok && (!asked[DEVICE_SMALL] || add_pool(bench, params, false));
    ok = ok && (!asked[DEVICE_GRAPHS] ||
                (add_graphs(bench, 32u << 20, 16u << 10, 8) && add_graphs(bench, 4u << 20, 16u << 10, GRAPH_POOLS)));
    return ok && (!asked[DEVICE_BESIDE] || device_beside_run(bench, options->size / 4, options->pages[0],
                                                             options->chunk_bytes, options->cublas));
}

static bool open_device(struct device_bench *bench)
{
    size_t size = strait_codebook_image_size(bench->codebook);
    struct cudaDeviceProp properties;
    void *image = malloc(size);
    bench->codec = strait_codec_get("cuda");
    if (bench->codec == NULL || image == NULL) {
        print_error(NULL, "--device: no plugin libstrait-cuda.so, no driver, or no device of compute capability 9.0");
        free(image);
        return false;
    }
    bool ok = device_status_ok(strait_codebook_image(bench->codebook, image, size), "tables") &&
              device_ok(cudaStreamCreateWithFlags(&bench->stream, cudaStreamNonBlocking), "stream") &&
              device_ok(cudaMalloc((void **)&bench->tables, size), "memory") &&
              device_ok(cudaMemcpy(bench->tables, image, size, cudaMemcpyHostToDevice), "copy") &&
              device_ok(cudaGetDeviceProperties(&properties, 0), "device");
    free(image);
    if (!ok)
        return false;
    snprintf(bench->report.device, sizeof(bench->report.device), "%.100s", properties.name);
    bench->report.multiprocessors = properties.multiProcessorCount;
    cudaDriverGetVersion(&bench->report.driver);
    cudaRuntimeGetVersion(&bench->report.runtime);
    return true;
}

static bool all_passed(const struct device_report *report)
{
    for (unsigned i = 0; i < report->count; i++)
        if (!report->rows[i].ok)
            return false;
    for (unsigned i = 0; i < report->beside.count; i++)
        if (!report->beside.rows[i].ok)
            return false;
    return true;
}

bool device_codec_run(const struct codec_options *options, const struct machine *machine, const struct tensors *tensors,
                      const struct strait_codebook *codebook)
{
    static struct device_bench bench;
    bench = (struct device_bench){.tensors = tensors,
                                  .codebook = codebook,
                                  .repeats = options->repeats,
                                  .report = {.options = options, .machine = machine, .codebook = codebook}};
    bool ok = open_device(&bench) && add_all(&bench, options);
    ok = (bench.report.count + bench.report.beside.count == 0 || device_report_print(&bench.report)) && ok;
    if (ok && !all_passed(&bench.report)) {
        print_error(NULL, "a check failed: what was decoded is not what was encoded");
        ok = false;
    }
    cudaFree(bench.scratch);
    cudaFree(bench.tables);
    if (bench.stream != NULL)
        cudaStreamDestroy(bench.stream);
    return ok;
}
