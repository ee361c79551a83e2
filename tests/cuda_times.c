#include "tests/cuda_times.h"

#include <string.h>

enum { PAGE = 32768, RUNS = 15, PIECE = 4 << 20 };

/* What is timed: values, and how they are coded. */
static const struct timed {
    const char *name;
    enum strait_element element;
    enum strait_mode mode;
    enum pattern pattern;
} timed[] = {{"bf16 top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_FALLING},
             {"bf16 tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_FALLING},
             {"bf16 base", STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE, PATTERN_FALLING},
             {"fp16 split", STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT, PATTERN_FP16},
             {"fp16 base", STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE, PATTERN_FP16},
             {"fp32 split", STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT, PATTERN_FALLING},
             {"fp32 base", STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, PATTERN_FALLING},
             {"fp32z base", STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE, PATTERN_WIDENED},
             {"bf16 raw", STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW, PATTERN_FALLING},
             /* The table does not suit: it has none of the values; blocks hardly shrink, or hardly not; some escape. */
             {"none top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_HIGH},
             {"none tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_HIGH},
             {"limit top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_LIMIT},
             {"limit tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_LIMIT},
             {"some top16", STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16, PATTERN_RARE},
             {"some tiered", STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED, PATTERN_RARE}};

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
    return (struct strait_region){
        .base = base, .page_stride = PAGE, .page_count = (uint32_t)(times->bytes / PAGE), .rows = 1, .row_bytes = PAGE};
}

/* Bell curves by sums of random numbers: exponents fall off below the largest as in tensors. */
static uint16_t bell_value(struct rng *rng, enum pattern pattern)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(rng_next(rng) >> 40) / (float)(1 << 24) - 0.5f;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof(bits));
    if (pattern != PATTERN_FP16)
        return (uint16_t)(bits >> 16);
    const int exponent = (int)(bits >> 23 & 255) - 112;
    return exponent <= 0 ? 0 : (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

/* Values by the ranks of their exponents, in place of a bell curve. */
static bool is_of_ranks(enum pattern pattern)
{
    return pattern == PATTERN_HIGH || pattern == PATTERN_LIMIT || pattern == PATTERN_RARE;
}

static void fill(const struct times *times, const struct timed *what)
{
    uint8_t *piece = malloc(PIECE);
    struct rng rng = rng_init(602);
    require(piece != NULL);
    if (is_of_ranks(what->pattern)) {
        uint8_t ranking[256];
        test_ranking(ranking, 0);
        fill_pattern(&rng, what->pattern, ranking, piece, PIECE);
    }
    for (size_t i = 0; !is_of_ranks(what->pattern) && i < PIECE / 2; i++) {
        uint16_t value = bell_value(&rng, what->pattern);
        if (what->element == STRAIT_ELEMENT_FP32 && i % 2 == 0) /* the lower half */
            value = what->pattern == PATTERN_WIDENED ? 0 : (uint16_t)rng_next(&rng);
        put_value(piece, i, value);
    }
    for (uint64_t at = 0; at < times->bytes; at += PIECE)
        require_cuda(cudaMemcpy(times->source + at, piece, PIECE, cudaMemcpyHostToDevice));
    free(piece);
}

static bool encode(const struct times *times, const struct timed *what)
{
    const struct strait_region region = region_of(times, times->source);
    const struct strait_pages pages = {.regions = &region, .region_count = 1, .id_count = region.page_count};
    const struct strait_encode_params params = {sizeof(params), what->element, what->mode, times->device->codebook};
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
    for (uint64_t at = 0; at < times->bytes; at += times->bytes - PIECE) {
        require_cuda(cudaMemcpy(from, times->source + at, PIECE, cudaMemcpyDeviceToHost));
        require_cuda(cudaMemcpy(back, times->target + at, PIECE, cudaMemcpyDeviceToHost));
        require(memcmp(from, back, PIECE) == 0);
        if (at != 0)
            break;
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
    printf("%-12s %5u MiB  ratio %.3f  encode %7.1f GB/s  decode %7.1f GB/s\n", what->name, mib,
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
    times.run = (struct strait_run){.size = sizeof(times.run),
                                    .result = times.result,
                                    .stream = device->stream,
                                    .scratch = device->scratch,
                                    .scratch_size = device->scratch_size,
                                    .tables = device->tables};
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
