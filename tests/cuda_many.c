#include "tests/cuda_many.h"

#include <string.h>

enum { CHUNKS = 20, REGIONS = 4, IDS = 128, PAGE = 32768, REGION_PAGES = CHUNKS * IDS, TURNS = 3 };

#define REGION_BYTES ((size_t)REGION_PAGES * PAGE)
#define POOL_BYTES   (REGIONS * REGION_BYTES)

/* The same pages on the host and on the device, and what becomes of them. */
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
        pool->here[r] = (struct strait_region){
            .base = region, .page_stride = PAGE, .page_count = REGION_PAGES, .rows = 1, .row_bytes = PAGE, .table = r};
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
static void compare_chunk(const struct pool *pool, const struct strait_encode_params *params, uint32_t c)
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

static void compare_pages(const struct pool *pool)
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
    } modes[] = {{STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16}, {STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED},
                 {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE},  {STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE},
                 {STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE},  {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT}};
    struct pool *pool = make_pool();
    struct strait_run run = {.size = sizeof(run),
                             .stream = device->stream,
                             .scratch = device->scratch,
                             .scratch_size = device->scratch_size,
                             .tables = device->tables};
    for (int m = 0; m < COUNT(modes); m++) {
        const struct strait_encode_params params = {sizeof(params), modes[m].element, modes[m].mode, device->codebook};
        for (int turn = 0; turn < TURNS; turn++) {
            require_cuda(cudaMemset(pool->chunks, CANARY, CHUNKS * pool->room));
            require_cuda(cudaMemset(pool->target, CANARY, POOL_BYTES));
            device_filled();
            run.caching = turn % 2 == 0 ? STRAIT_CACHING_AUTO : STRAIT_CACHING_LINK;
            require(strait_encode_batch(device->codec, &params, pool->encode, CHUNKS, &run) == STRAIT_OK);
            device_wait(device);
            for (uint32_t c = 0; c < CHUNKS; c++) {
                compare_chunk(pool, &params, c);
                pool->decode[c].src_size = pool->results[c].bytes;
            }
            require(strait_decode_batch(device->codec, device->codebook, pool->decode, CHUNKS, &run) == STRAIT_OK);
            device_wait(device);
            compare_pages(pool);
        }
    }
    free_pool(pool);
}
