/* Runs of the CUDA variant beside its trials: many blocks in one launch, chunks of mixed modes, and speed. */
#include <string.h>

#include "internal/bytes.h"
#include "tests/kernels/cuda_support.h"

/* ---- Many blocks in one launch --------------------------------------------------------------------------------- */

enum { CHUNKS = 20, REGIONS = 4, IDS = 128, POOL_PAGE = 32768, REGION_PAGES = CHUNKS * IDS, POOL_RUNS = 3 };

#define REGION_BYTES ((size_t)REGION_PAGES * POOL_PAGE)
#define POOL_BYTES   (REGIONS * REGION_BYTES)

/* Pages on the host and on the device, their chunks, and the pages decoded from these. */
struct pool {
    uint8_t *bytes, *back;             /* on the host */
    uint8_t *source, *target, *chunks; /* on the device */
    uint32_t ids[REGION_PAGES], *device_ids;
    struct strait_region here[REGIONS], from[REGIONS], to[REGIONS];
    struct strait_encode_item encode[CHUNKS];
    struct strait_decode_item decode[CHUNKS];
    struct strait_result *results; /* pinned: those of encoding, then those of decoding */
    uint64_t room;                 /* of a chunk */
};

/* Each region repeats a piece of two MiB or so, so that no two of its pages are alike. */
static void fill_pool(struct pool *pool)
{
    const size_t piece = ((size_t)2 << 20) - 34;
    static const enum pattern patterns[REGIONS] = {PATTERN_FALLING, PATTERN_RARE, PATTERN_WIDENED, PATTERN_FP16};
    struct rng rng = rng_init(601);
    for (uint32_t r = 0; r < REGIONS; r++) {
        uint8_t ranking[256], *region = pool->bytes + r * REGION_BYTES;
        test_ranking(ranking, r);
        fill_pattern(&rng, patterns[r], ranking, region, piece);
        for (size_t at = piece; at < REGION_BYTES; at += piece)
            memcpy(region + at, region, REGION_BYTES - at < piece ? REGION_BYTES - at : piece);
        pool->here[r] = (struct strait_region){.base = region,
                                               .page_stride = POOL_PAGE,
                                               .page_count = REGION_PAGES,
                                               .rows = 1,
                                               .row_bytes = POOL_PAGE,
                                               .table = r};
        pool->from[r] = pool->to[r] = pool->here[r];
        pool->from[r].base = pool->source + r * REGION_BYTES;
        pool->to[r].base = pool->target + r * REGION_BYTES;
    }
    for (uint32_t i = 0; i < REGION_PAGES; i++)
        pool->ids[i] = i;
    for (uint32_t i = REGION_PAGES; i > 1; i--) {
        uint32_t other = rng_below(&rng, i), id = pool->ids[i - 1];
        pool->ids[i - 1] = pool->ids[other];
        pool->ids[other] = id;
    }
}

static struct strait_pages list_of(const struct strait_region *regions, const uint32_t *ids, uint32_t chunk)
{
    return (struct strait_pages){
        .regions = regions, .ids = ids + chunk * IDS, .region_count = REGIONS, .id_count = IDS};
}

static struct pool *make_pool(void)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    require(pool != NULL && (pool->bytes = malloc(POOL_BYTES)) != NULL && (pool->back = malloc(POOL_BYTES)) != NULL);
    require_cuda(cudaMalloc((void **)&pool->source, POOL_BYTES));
    require_cuda(cudaMalloc((void **)&pool->target, POOL_BYTES));
    fill_pool(pool);
    const struct strait_pages pages = list_of(pool->here, pool->ids, 0);
    pool->room = (strait_encode_bound(&pages) + 255) / 256 * 256;
    require_cuda(cudaMalloc((void **)&pool->chunks, CHUNKS * pool->room));
    require_cuda(cudaMalloc((void **)&pool->device_ids, sizeof(pool->ids)));
    require_cuda(cudaHostAlloc((void **)&pool->results, 2 * CHUNKS * sizeof(*pool->results), cudaHostAllocMapped));
    require_cuda(cudaMemcpy(pool->source, pool->bytes, POOL_BYTES, cudaMemcpyHostToDevice));
    require_cuda(cudaMemcpy(pool->device_ids, pool->ids, sizeof(pool->ids), cudaMemcpyHostToDevice));
    for (uint32_t c = 0; c < CHUNKS; c++) {
        pool->encode[c] = (struct strait_encode_item){.src = list_of(pool->from, pool->device_ids, c),
                                                      .dst = pool->chunks + c * pool->room,
                                                      .dst_capacity = pool->room,
                                                      .result = &pool->results[c]};
        pool->decode[c] = (struct strait_decode_item){.dst = list_of(pool->to, pool->device_ids, c),
                                                      .src = pool->encode[c].dst,
                                                      .result = &pool->results[CHUNKS + c]};
    }
    return pool;
}

static void free_pool(struct pool *pool)
{
    cudaFree(pool->source);
    cudaFree(pool->target);
    cudaFree(pool->chunks);
    cudaFree(pool->device_ids);
    cudaFreeHost(pool->results);
    free(pool->bytes);
    free(pool->back);
    free(pool);
}

/* Chunk c is what the host makes of the same pages. */
static void compare_pool_chunk(const struct pool *pool, const struct strait_encode_params *params, uint32_t c)
{
    const struct strait_pages pages = list_of(pool->here, pool->ids, c);
    struct strait_result result;
    struct strait_run run = {.size = sizeof(run), .result = &result};
    uint8_t *expected = malloc(pool->room), *got = malloc(pool->room);
    require(expected != NULL && got != NULL);
    require(strait_encode(NULL, params, expected, pool->room, &pages, &run) == STRAIT_OK);
    require(memcmp(&result, &pool->results[c], sizeof(result)) == 0);
    require_cuda(cudaMemcpy(got, pool->encode[c].dst, result.bytes, cudaMemcpyDeviceToHost));
    require(memcmp(got, expected, result.bytes) == 0);
    free(expected);
    free(got);
}

static void compare_pool(const struct pool *pool)
{
    for (uint32_t c = 0; c < CHUNKS; c++)
        require(pool->results[CHUNKS + c].status == STRAIT_OK && pool->results[CHUNKS + c].failed_pages == 0);
    require_cuda(cudaMemcpy(pool->back, pool->target, POOL_BYTES, cudaMemcpyDeviceToHost));
    require(memcmp(pool->back, pool->bytes, POOL_BYTES) == 0);
}

void many_blocks(const struct device *device)
{
    static const struct {
        enum strait_element element;
        enum strait_mode mode;
    } modes[] = {{STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16},    {STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED},
                 {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE},     {STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE},
                 {STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE},     {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT},
                 {STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE}, {STRAIT_ELEMENT_FP8_E5M2, STRAIT_MODE_BASE},
                 {STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS},    {STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS},
                 {STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS}};
    struct pool *pool = make_pool();
    struct strait_run run = device_run(device, NULL);
    for (int m = 0; m < COUNT(modes); m++) {
        const struct strait_encode_params params = {
            .size = sizeof(params), .element = modes[m].element, .mode = modes[m].mode, .codebook = device->codebook};
        for (int turn = 0; turn < POOL_RUNS; turn++) {
            require_cuda(cudaMemset(pool->chunks, CANARY, CHUNKS * pool->room));
            require_cuda(cudaMemset(pool->target, CANARY, POOL_BYTES));
            device_filled();
            run.caching = turn % 2 == 0 ? STRAIT_CACHING_AUTO : STRAIT_CACHING_LINK;
            require(strait_encode_batch(device->codec, &params, pool->encode, CHUNKS, &run) == STRAIT_OK);
            device_wait(device);
            for (uint32_t c = 0; c < CHUNKS; c++) {
                compare_pool_chunk(pool, &params, c);
                pool->decode[c].src_size = pool->results[c].bytes;
            }
            require(strait_decode_batch(device->codec, device->codebook, pool->decode, CHUNKS, &run) == STRAIT_OK);
            device_wait(device);
            compare_pool(pool);
        }
    }
    free_pool(pool);
}

/* ---- Chunks of mixed modes ------------------------------------------------------------------------------------- */

enum { MIXED_PAGES = 12, MODES_MAX = 5, UNIT = 16 };

/* One list of pages as it is asked for in several ways. The metadata differs in rows alone. */
struct ways {
    uint8_t *chunks[MODES_MAX];
    uint64_t sizes[MODES_MAX];
    uint32_t count;
};

static const struct element_modes {
    enum strait_element element;
    uint32_t count;
    enum strait_mode modes[MODES_MAX];
} elements[] = {
    {STRAIT_ELEMENT_BF16,
     5,
     {STRAIT_MODE_TIERED, STRAIT_MODE_TOP16, STRAIT_MODE_BASE, STRAIT_MODE_PARTS, STRAIT_MODE_RAW}},
    {STRAIT_ELEMENT_FP32, 4, {STRAIT_MODE_SPLIT, STRAIT_MODE_BASE, STRAIT_MODE_PARTS, STRAIT_MODE_RAW}},
    {STRAIT_ELEMENT_BF16, 3, {STRAIT_MODE_TIERED, STRAIT_MODE_TOP16, STRAIT_MODE_PARTS}},
    {STRAIT_ELEMENT_FP16, 4, {STRAIT_MODE_SPLIT, STRAIT_MODE_BASE, STRAIT_MODE_PARTS, STRAIT_MODE_RAW}},
    {STRAIT_ELEMENT_FP8_E4M3, 2, {STRAIT_MODE_BASE, STRAIT_MODE_RAW}},
    {STRAIT_ELEMENT_FP8_E5M2, 2, {STRAIT_MODE_BASE, STRAIT_MODE_RAW}},
};

static void encode_ways(struct ways *ways, const struct trial *trial, const struct element_modes *of)
{
    struct verdict verdict;
    ways->count = of->count;
    for (uint32_t w = 0; w < ways->count; w++) {
        const struct asked asked = {trial->asked.codebook, of->element, of->modes[w]};
        require((ways->chunks[w] = encode_layout(variant(0), &asked, &trial->src, &verdict)) != NULL);
        ways->sizes[w] = verdict.result.bytes;
    }
}

static uint32_t row_at(const struct anatomy *anatomy, const uint8_t *chunk, uint64_t page, uint64_t block)
{
    return load_le32(chunk + anatomy_row(anatomy, page, block));
}

/* Unit where a block ends: where the next one begins. */
static uint32_t end_at(const struct anatomy *anatomy, const uint8_t *chunk, uint64_t size, uint64_t page,
                       uint64_t block)
{
    if (block < anatomy->rows_per_page)
        return row_at(anatomy, chunk, page, block + 1) >> 4;
    if (page + 1 < anatomy->page_count)
        return row_at(anatomy, chunk, page + 1, 0) >> 4;
    return (uint32_t)(size / UNIT);
}

/* Each block as it is in one of the chunks. */
static void mix(struct rng *rng, const struct ways *ways, struct trial *trial)
{
    struct anatomy anatomy;
    uint64_t room = 0;
    for (uint32_t w = 0; w < ways->count; w++)
        room += ways->sizes[w];
    require((trial->chunk = malloc(room)) != NULL && anatomy_read(&anatomy, ways->chunks[0], ways->sizes[0]));
    memcpy(trial->chunk, ways->chunks[0], anatomy.metadata_bytes);
    uint32_t at = (uint32_t)(anatomy.metadata_bytes / UNIT);
    for (uint64_t p = 0; p < anatomy.page_count; p++) {
        for (uint64_t b = 0; b <= anatomy.rows_per_page; b++) {
            const uint32_t w = rng_below(rng, ways->count), row = row_at(&anatomy, ways->chunks[w], p, b);
            const uint32_t units = end_at(&anatomy, ways->chunks[w], ways->sizes[w], p, b) - (row >> 4);
            memcpy(trial->chunk + (size_t)at * UNIT, ways->chunks[w] + (size_t)(row >> 4) * UNIT, (size_t)units * UNIT);
            store_le32(trial->chunk + anatomy_row(&anatomy, p, b), at << 4 | (row & 15));
            at += units;
        }
    }
    trial->chunk_size = (uint64_t)at * UNIT;
    store_le32(trial->chunk + 16, (uint32_t)trial->chunk_size);
    require(repair_metadata(trial->chunk, trial->chunk_size));
}

static void mixed_trial(struct rng *rng, const struct device *device, const struct element_modes *of,
                        struct trial *trial)
{
    static const enum pattern patterns[] = {PATTERN_RARE,  PATTERN_FALLING, PATTERN_SHARE, PATTERN_FP16,
                                            PATTERN_EDGES, PATTERN_WIDENED, PATTERN_CONST, PATTERN_SPREAD,
                                            PATTERN_FP8,   PATTERN_NARROWED};
    const struct shape shape = {.page_count = MIXED_PAGES,
                                .rows = 1,
                                .row_bytes = 3 * 16384 + 4 * rng_below(rng, 4097),
                                .page_gap = rng_below(rng, 2) == 0 ? 0 : 8,
                                .table = rng_below(rng, TEST_TABLES)};
    struct ways ways;
    *trial = (struct trial){.asked = {device->codebook, of->element, of->modes[0]}};
    layout_init(&trial->src, 64, &shape, 1, NULL, MIXED_PAGES);
    layout_mirror(&trial->dst, &trial->src);
    for (uint32_t p = 0; p < MIXED_PAGES; p++) {
        uint8_t ranking[256], *page = malloc(shape.row_bytes);
        require(page != NULL);
        test_ranking(ranking, shape.table);
        fill_pattern(rng, patterns[rng_below(rng, COUNT(patterns))], ranking, page, shape.row_bytes);
        layout_write(&trial->src, p, page);
        free(page);
    }
    encode_ways(&ways, trial, of);
    mix(rng, &ways, trial);
    for (uint32_t w = 0; w < ways.count; w++)
        free(ways.chunks[w]);
}

unsigned mixed_blocks(const struct device *device, unsigned batches)
{
    static const uint32_t budgets[] = {1, 0, 2}; /* few teams: each has many blocks */
    struct rng rng = rng_init(602);
    for (unsigned i = 0; i < batches; i++) {
        struct trial trials[BATCH_MAX];
        for (int t = 0; t < BATCH_MAX; t++)
            mixed_trial(&rng, device, &elements[t % COUNT(elements)], &trials[t]);
        compare_decoding(device, trials, BATCH_MAX, (struct manner){.sm_budget = budgets[i % COUNT(budgets)]});
        for (int t = 0; t < BATCH_MAX; t++) {
            require(trials[t].decoded.result.status == STRAIT_OK);
            free(trials[t].chunk);
            layout_fini(&trials[t].src);
            layout_fini(&trials[t].dst);
        }
    }
    return batches * BATCH_MAX;
}

/* ---- Speed ----------------------------------------------------------------------------------------------------- */

enum { TIMED_PAGE = 32768, RUNS = 15, PIECE = 4 << 20 };

/* Rows of the table of speeds: values, and how they are coded. */
static const struct timed {
    const char *name;
    enum strait_element element;
    enum strait_mode mode;
    enum pattern pattern;
    bool no_set; /* encoded without a codebook set */
} timed[] = {{"bf16 top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_FALLING, false},
             {"bf16 tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_FALLING, false},
             {"bf16 base", STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, PATTERN_FALLING, false},
             {"fp16 split", STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, PATTERN_FP16, false},
             {"fp16 base", STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE, PATTERN_FP16, false},
             {"fp32 split", STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, PATTERN_FALLING, false},
             {"fp32 base", STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, PATTERN_FALLING, false},
             {"fp32z base", STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, PATTERN_WIDENED, false},
             {"bf16 parts", STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS, PATTERN_FALLING, false},
             {"fp16 parts", STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS, PATTERN_FP16, false},
             {"fp32 parts", STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS, PATTERN_FALLING, false},
             {"fp16 parts, patched", STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS, PATTERN_NARROWED, false},
             {"bf16 parts, no set", STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS, PATTERN_FALLING, true},
             {"fp16 parts, no set", STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS, PATTERN_FP16, true},
             {"fp32 parts, no set", STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS, PATTERN_FALLING, true},
             {"fp32z parts", STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS, PATTERN_WIDENED, false},
             {"e4m3 base", STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE, PATTERN_FP8, false},
             {"e5m2 base", STRAIT_ELEMENT_FP8_E5M2, STRAIT_MODE_BASE, PATTERN_FP8, false},
             {"bf16 raw", STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW, PATTERN_FALLING, false},
             /* The table does not suit: it has none of the values; blocks hardly shrink, or hardly not; some escape. */
             {"none top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_HIGH, false},
             {"none tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_HIGH, false},
             {"limit top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_LIMIT, false},
             {"limit tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_LIMIT, false},
             {"some top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_RARE, false},
             {"some tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_RARE, false}};

/* Device memory of one size: pages, a chunk, pages again. */
struct times {
    const struct device *device;
    uint64_t bytes;
    uint8_t *source, *target, *chunk;
    uint64_t room;
    struct strait_result *result; /* pinned */
    cudaEvent_t begin, end;
    struct strait_run run;
};

static struct strait_region region_of(const struct times *times, uint8_t *base)
{
    return (struct strait_region){.base = base,
                                  .page_stride = TIMED_PAGE,
                                  .page_count = (uint32_t)(times->bytes / TIMED_PAGE),
                                  .rows = 1,
                                  .row_bytes = TIMED_PAGE};
}

static void fill(const struct times *times, const struct timed *what)
{
    uint8_t ranking[256], *piece = malloc(PIECE);
    struct rng rng = rng_init(602);
    require(piece != NULL);
    test_ranking(ranking, 0);
    fill_pattern(&rng, what->pattern, ranking, piece, PIECE);
    for (uint64_t at = 0; at < times->bytes; at += PIECE)
        require_cuda(cudaMemcpy(times->source + at, piece, PIECE, cudaMemcpyHostToDevice));
    free(piece);
}

static bool encode(const struct times *times, const struct timed *what)
{
    const struct strait_region region = region_of(times, times->source);
    const struct strait_pages pages = {.regions = &region, .region_count = 1, .id_count = region.page_count};
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = what->element,
                                                .mode = what->mode,
                                                .codebook = what->no_set ? NULL : times->device->codebook};
    return strait_encode(times->device->codec, &params, times->chunk, times->room, &pages, &times->run) == STRAIT_OK;
}

static bool decode(const struct times *times, uint64_t size)
{
    const struct strait_region region = region_of(times, times->target);
    const struct strait_pages pages = {.regions = &region, .region_count = 1, .id_count = region.page_count};
    return strait_decode(times->device->codec, times->device->codebook, &pages, NULL, times->chunk, size,
                         &times->run) == STRAIT_OK;
}

static int by_time(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The median, in GB/s of raw bytes. `size` 0: of encoding. */
static double measure(const struct times *times, const struct timed *what, uint64_t size)
{
    float ms[RUNS];
    for (int i = -2; i < RUNS; i++) {
        float once;
        require_cuda(cudaEventRecord(times->begin, times->device->stream));
        require(size == 0 ? encode(times, what) : decode(times, size));
        require_cuda(cudaEventRecord(times->end, times->device->stream));
        device_wait(times->device);
        require_cuda(cudaEventElapsedTime(&once, times->begin, times->end));
        require(times->result->status == STRAIT_OK);
        if (i >= 0)
            ms[i] = once;
    }
    qsort(ms, RUNS, sizeof(ms[0]), by_time);
    return (double)times->bytes / 1e6 / (double)ms[RUNS / 2];
}

static void compare(const struct times *times)
{
    uint8_t *from = malloc(PIECE), *back = malloc(PIECE);
    require(from != NULL && back != NULL);
    for (int end = 0; end < 2; end++) {
        const uint64_t at = end == 0 ? 0 : times->bytes - PIECE;
        require_cuda(cudaMemcpy(from, times->source + at, PIECE, cudaMemcpyDeviceToHost));
        require_cuda(cudaMemcpy(back, times->target + at, PIECE, cudaMemcpyDeviceToHost));
        require(memcmp(from, back, PIECE) == 0);
    }
    free(from);
    free(back);
}

static void time_mode(const struct times *times, const struct timed *what)
{
    const unsigned mib = (unsigned)(times->bytes >> 20);
    fill(times, what);
    device_filled();
    require(encode(times, what));
    device_wait(times->device);
    const uint64_t size = times->result->bytes;
    const double encoding = measure(times, what, 0), decoding = measure(times, what, size);
    compare(times);
    printf("%-18s %5u MiB  ratio %.3f  encode %7.1f GB/s  decode %7.1f GB/s\n", what->name, mib,
           (double)times->bytes / (double)size, encoding, decoding);
}

static void time_size(const struct device *device, uint64_t bytes, const char *named)
{
    struct times times = {.device = device, .bytes = bytes};
    require_cuda(cudaMalloc((void **)&times.source, bytes));
    const struct strait_region region = region_of(&times, times.source);
    const struct strait_pages pages = {.regions = &region, .region_count = 1, .id_count = region.page_count};
    times.room = strait_encode_bound(&pages);
    require(times.room > bytes);
    require_cuda(cudaMalloc((void **)&times.target, bytes));
    require_cuda(cudaMalloc((void **)&times.chunk, times.room));
    require_cuda(cudaHostAlloc((void **)&times.result, sizeof(*times.result), cudaHostAllocMapped));
    require_cuda(cudaEventCreate(&times.begin));
    require_cuda(cudaEventCreate(&times.end));
    times.run = device_run(device, times.result);
    for (int i = 0; i < COUNT(timed); i++)
        if (strstr(timed[i].name, named) != NULL)
            time_mode(&times, &timed[i]);
    cudaFree(times.source);
    cudaFree(times.target);
    cudaFree(times.chunk);
    cudaFreeHost(times.result);
    cudaEventDestroy(times.begin);
    cudaEventDestroy(times.end);
}

void time_modes(const struct device *device, const char *named)
{
    time_size(device, (uint64_t)256 << 20, named);
    time_size(device, (uint64_t)1 << 30, named);
}
