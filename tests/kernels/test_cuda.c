/* The CUDA variant against its scalar twin: chunks, verdicts and pages of random and of chosen batches.
 *
 *   test_cuda              10^4 random trials, the chosen ones, and many blocks in one launch
 *   test_cuda --chosen     only the chosen ones, every buffer an allocation of its own: for compute-sanitizer
 *   test_cuda --chosen N   one in N of them
 *   test_cuda --trials N   N random ones
 *   test_cuda --many       only many blocks in one launch
 *   test_cuda --mixed N    only N batches of chunks with blocks of many modes
 *   test_cuda --times      only how fast that is, in all modes: for a comparison of plugins
 *   test_cuda --times NAME only in those whose names have this in them */
#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "tests/kernels/cuda_support.h"

static struct strait_codebook *codebook;
static struct device device;
static unsigned done;
static unsigned passed_over, one_in = 1; /* of the chosen trials */

/* ---- Making trials --------------------------------------------------------------------------------------------- */

static const uint32_t sizes[] = {1,     2,     3,     7,     8,     15,    16,    17,    18,    30,    31,
                                 32,    33,    34,    62,    64,    66,    127,   128,   129,   130,   254,
                                 640,   1024,  2048,  4096,  7168,  8064,  8191,  8192,  8193,  8320,  12288,
                                 16256, 16368, 16382, 16383, 16384, 16385, 16386, 16387, 16400, 16512, 32767,
                                 32768, 32769, 32770, 49150, 49152, 49153, 65536};

static uint32_t round_to(uint32_t size, uint32_t multiple)
{
    return (size + multiple - 1) / multiple * multiple;
}

static bool is_fp16_or_fp32(enum strait_element element)
{
    return element == STRAIT_ELEMENT_FP16 || element == STRAIT_ELEMENT_FP32;
}

static struct asked random_asked(struct rng *rng)
{
    struct asked asked = {codebook, STRAIT_ELEMENT_BF16, (enum strait_mode)rng_below(rng, 7)};
    if (rng_below(rng, 2) == 0)
        asked.element = rng_below(rng, 2) == 0 ? STRAIT_ELEMENT_FP16 : STRAIT_ELEMENT_FP32;
    if (is_fp16_or_fp32(asked.element) && rng_below(rng, 4) != 0)
        asked.mode = (enum strait_mode)(STRAIT_MODE_BASE + rng_below(rng, 3));
    if (rng_below(rng, 12) == 0)
        asked.element = (enum strait_element)rng_below(rng, 6);
    if (rng_below(rng, 6) == 0)
        asked.element = rng_below(rng, 2) == 0 ? STRAIT_ELEMENT_FP8_E4M3 : STRAIT_ELEMENT_FP8_E5M2;
    if (rng_below(rng, 8) == 0) {
        asked.codebook = NULL;
        if (asked.element == STRAIT_ELEMENT_BF16 || is_fp16_or_fp32(asked.element))
            asked.mode = rng_below(rng, 4) == 0   ? STRAIT_MODE_RAW
                         : rng_below(rng, 2) == 0 ? STRAIT_MODE_PARTS
                                                  : STRAIT_MODE_BASE;
    }
    return asked;
}

static struct shape random_shape(struct rng *rng, const struct asked *asked, uint32_t pages)
{
    const uint32_t align = element_bytes(asked->element);
    struct shape shape = {.page_count = pages, .rows = 1};
    uint32_t size = rng_below(rng, 3) == 0 ? 1 + rng_below(rng, 40000) : sizes[rng_below(rng, COUNT(sizes))];
    shape.row_bytes = size;
    shape.table = asked->codebook == NULL ? 0 : rng_below(rng, TEST_TABLES);
    if (rng_below(rng, 4) == 0) { /* rows */
        shape.rows = 2 + rng_below(rng, 9);
        shape.row_bytes = round_to(1 + size / shape.rows, rng_below(rng, 2) == 0 ? 16 : align);
        shape.row_gap = rng_below(rng, 2) == 0 ? 16 * rng_below(rng, 3) : align * rng_below(rng, 20);
        shape.columns = rng_below(rng, 2) == 0 ? rng_below(rng, 5) : 0;
        if (shape.columns > 1)
            shape.row_bytes = round_to(shape.row_bytes, shape.columns * (rng_below(rng, 2) == 0 ? 16 : align));
    }
    if (rng_below(rng, 2) == 0) {
        shape.skew = align * rng_below(rng, 16);
        shape.page_gap = align * rng_below(rng, 40);
    }
    const uint32_t columns = shape.columns > 1 ? shape.columns : 1;
    uint32_t stride = shape.rows * (shape.row_bytes + columns * shape.row_gap) + shape.page_gap;
    shape.page_gap += round_to(stride, rng_below(rng, 2) == 0 ? 16 : align) - stride;
    return shape;
}

static void trial_layout(struct trial *trial, const struct shape *shapes, uint32_t regions, uint32_t ids)
{
    layout_init(&trial->src, 64, shapes, regions, trial->has_ids ? trial->ids : NULL, ids);
    layout_mirror(&trial->dst, &trial->src);
}

static void random_trial(struct rng *rng, struct trial *trial, const struct asked *asked)
{
    struct shape shapes[3];
    uint32_t regions = 1 + rng_below(rng, 3), ids = 1 + rng_below(rng, 4), pages = ids + rng_below(rng, 3);
    bool alike = rng_below(rng, 2) == 0;
    *trial = (struct trial){.asked = *asked, .has_ids = rng_below(rng, 2) == 0};
    for (uint32_t r = 0; r < regions; r++)
        shapes[r] = alike && r > 0 ? shapes[0] : random_shape(rng, asked, pages);
    for (uint32_t i = 0; i < ids; i++) /* distinct, unless one is bad */
        trial->ids[i] = (i * 7 + 1) % pages;
    for (uint32_t i = 0; i < ids; i++)
        for (uint32_t j = 0; j < i; j++)
            if (trial->ids[i] == trial->ids[j])
                trial->has_ids = false;
    if (rng_below(rng, 20) == 0)
        trial->ids[rng_below(rng, ids)] = pages + (rng_below(rng, 2) == 0 ? 0 : (uint32_t)rng_next(rng) >> 8);
    trial->shift = rng_below(rng, 3) == 0 ? element_bytes(asked->element) * rng_below(rng, 8) : 0;
    trial_layout(trial, shapes, regions, ids);
    for (uint32_t p = 0; p < layout_count(&trial->src); p++) {
        uint32_t size = layout_page_bytes(&trial->src, p);
        uint8_t ranking[256], *page = malloc(size);
        require(page != NULL);
        test_ranking(ranking, shapes[p / ids].table);
        fill_pattern(rng, (enum pattern)rng_below(rng, PATTERNS), ranking, page, size);
        layout_write(&trial->src, p, page);
        free(page);
    }
}

static void trial_fini(struct trial *trial)
{
    free(trial->chunk);
    layout_fini(&trial->src);
    layout_fini(&trial->dst);
}

/* ---- Hostile chunks -------------------------------------------------------------------------------------------- */

enum hostility {
    HONEST,
    BIT_OF_METADATA,
    BIT_OF_METADATA_REPAIRED,
    WORD_OF_METADATA_REPAIRED,
    BIT_OF_STREAMS,
    BYTES_OF_STREAMS,
    BLOCK_OF_NOISE,
    END_OF_BLOCK,
    ENDS_EARLY,
    ENDS_LATE,
    HEADER_FIELD,
    HOSTILITIES
};

static void flip(uint8_t *bytes, uint64_t bit)
{
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
}

/* Word of the metadata to something near what it was, or to anything. */
static void change_word(struct rng *rng, uint8_t *word)
{
    uint32_t was = load_le32(word);
    const uint32_t choice[] = {was + 1, was - 1, was + 16, was - 16, was ^ 3, 0, UINT32_MAX, (uint32_t)rng_next(rng),
                               was ^ 1, was + 2};
    store_le32(word, choice[rng_below(rng, COUNT(choice))]);
}

static void resize_chunk(struct trial *trial, uint64_t size)
{
    uint8_t *bytes = malloc(size == 0 ? 1 : size);
    require(bytes != NULL);
    memset(bytes, 0x3C, size);
    memcpy(bytes, trial->chunk, size < trial->chunk_size ? size : trial->chunk_size);
    free(trial->chunk);
    trial->chunk = bytes;
    trial->chunk_size = size;
}

static void make_hostile(struct rng *rng, struct trial *trial, enum hostility how)
{
    static const uint32_t end_bytes[] = {2, 12, 60};
    uint64_t at;
    struct strait_chunk_info info;
    require(strait_chunk_info(trial->chunk, trial->chunk_size, &info) == STRAIT_OK);
    uint8_t *chunk = trial->chunk, *blocks = chunk + info.metadata_bytes;
    uint32_t metadata = (uint32_t)info.metadata_bytes, streams = (uint32_t)(trial->chunk_size - metadata);
    switch (how) {
    case BIT_OF_METADATA:
    case BIT_OF_METADATA_REPAIRED:
        flip(chunk, rng_below(rng, 8 * metadata));
        break;
    case WORD_OF_METADATA_REPAIRED:
        change_word(rng, chunk + 48 + 4 * rng_below(rng, (metadata - 48) / 4));
        break;
    case BIT_OF_STREAMS:
        flip(blocks, rng_below(rng, 8 * streams));
        break;
    case BYTES_OF_STREAMS:
        for (uint32_t i = 0; i < 20; i++)
            blocks[rng_below(rng, streams)] = (uint8_t)rng_next(rng);
        break;
    case BLOCK_OF_NOISE:
        rng_fill(rng, blocks + rng_below(rng, streams) / 2, streams / 2);
        break;
    case END_OF_BLOCK: /* of the last: coder, base, form, bases and patches of later modes */
        at = trial->chunk_size - 1 - rng_below(rng, end_bytes[rng_below(rng, COUNT(end_bytes))]);
        chunk[at] = (uint8_t)(rng_below(rng, 2) == 0 ? rng_below(rng, 5) : rng_next(rng));
        break;
    case ENDS_EARLY:
        resize_chunk(trial, rng_below(rng, (uint32_t)trial->chunk_size));
        break;
    case ENDS_LATE:
        resize_chunk(trial, trial->chunk_size + 1 + rng_below(rng, 40));
        break;
    case HEADER_FIELD:
        change_word(rng, chunk + 4 * rng_below(rng, 12));
        break;
    default:
        break;
    }
    if (how == BIT_OF_METADATA_REPAIRED || how == WORD_OF_METADATA_REPAIRED ||
        (how == HEADER_FIELD && rng_below(rng, 2) == 0))
        repair_metadata(trial->chunk, trial->chunk_size);
}

static void choose_pages(struct rng *rng, struct trial *trial)
{
    uint32_t count = layout_count(&trial->dst);
    trial->has_select = rng_below(rng, 4) == 0;
    trial->copied_metadata = rng_below(rng, 4) == 0;
    trial->metadata_size = rng_below(rng, 3) == 0 ? 0 : 48 + 16 * rng_below(rng, 2 * count + 2);
    for (uint32_t i = 0; i < count; i++)
        trial->select[i] = rng_below(rng, 8) == 0 ? rng_below(rng, count + 2) : i;
    if (rng_below(rng, 16) == 0)
        trial->select[rng_below(rng, count)] = UINT32_MAX;
}

/* Mostly of a size that is no multiple of 16; and bytes that are too many are so with the flag alone. */
static void choose_room(struct rng *rng, struct trial *trial)
{
    trial->at_most = rng_below(rng, 3) == 0;
    if (trial->at_most || rng_below(rng, 16) == 0)
        trial->room = rng_below(rng, rng_below(rng, 2) == 0 ? 40 : 5000);
}

/* ---- Random batches -------------------------------------------------------------------------------------------- */

static const struct manner manners[] = {{0, STRAIT_CACHING_AUTO}, {0, STRAIT_CACHING_LINK}, {1, STRAIT_CACHING_AUTO},
                                        {2, STRAIT_CACHING_LINK}, {5, STRAIT_CACHING_AUTO}, {0, STRAIT_CACHING_AUTO},
                                        {1, STRAIT_CACHING_LINK}};

static void random_batch(struct rng *rng)
{
    struct trial trials[BATCH_MAX];
    uint32_t count = 1 + rng_below(rng, BATCH_MAX), decoded = 0;
    const struct asked asked = random_asked(rng);
    for (uint32_t i = 0; i < count; i++)
        random_trial(rng, &trials[i], &asked);
    compare_encoding(&device, trials, count, manners[rng_below(rng, COUNT(manners))]);
    for (uint32_t i = 0; i < count; i++) { /* those that became chunks */
        if (trials[i].chunk == NULL) {
            trial_fini(&trials[i]);
            continue;
        }
        enum hostility how = rng_below(rng, 2) == 0 ? HONEST : (enum hostility)rng_below(rng, HOSTILITIES);
        make_hostile(rng, &trials[i], how);
        choose_pages(rng, &trials[i]);
        choose_room(rng, &trials[i]);
        trials[i].dst.pages.ids = trials[i].has_ids ? trials[decoded].ids : NULL;
        if (decoded != i)
            trials[decoded] = trials[i];
        trials[decoded].src.pages.regions = trials[decoded].src.regions;
        trials[decoded].dst.pages.regions = trials[decoded].dst.regions;
        trials[decoded].src.pages.ids = trials[decoded].dst.pages.ids;
        decoded++;
    }
    if (decoded > 0)
        compare_decoding(&device, trials, decoded, manners[rng_below(rng, COUNT(manners))]);
    for (uint32_t i = 0; i < decoded; i++)
        trial_fini(&trials[i]);
    done += count;
}

/* ---- Chosen batches -------------------------------------------------------------------------------------------- */

/* One page list, encoded and decoded, from where `room` bytes follow the chunk; the chunk hostile in every way. */
static void chosen_trial_in(struct rng *rng, const struct asked *asked, const struct shape *shape, enum pattern pattern,
                            enum hostility how, bool at_most, uint32_t room)
{
    struct trial trial = {.asked = *asked, .at_most = at_most, .room = room};
    if (passed_over++ % one_in != 0)
        return;
    trial_layout(&trial, shape, 1, shape->page_count);
    layout_fill(&trial.src, rng, pattern, codebook);
    compare_encoding(&device, &trial, 1, manners[done % COUNT(manners)]);
    make_hostile(rng, &trial, how);
    compare_decoding(&device, &trial, 1, manners[done % COUNT(manners)]);
    trial_fini(&trial);
    done++;
}

static void chosen_trial(struct rng *rng, const struct asked *asked, const struct shape *shape, enum pattern pattern,
                         enum hostility how)
{
    chosen_trial_in(rng, asked, shape, pattern, how, false, 0);
}

/* Elements and modes that kernels support. */
static const struct asked_mode {
    enum strait_element element;
    enum strait_mode mode;
} asked_modes[] = {{STRAIT_ELEMENT_BF16, STRAIT_MODE_TOP16},    {STRAIT_ELEMENT_BF16, STRAIT_MODE_TIERED},
                   {STRAIT_ELEMENT_BF16, STRAIT_MODE_RAW},      {STRAIT_ELEMENT_BF16, STRAIT_MODE_BASE},
                   {STRAIT_ELEMENT_FP32, STRAIT_MODE_BASE},     {STRAIT_ELEMENT_FP16, STRAIT_MODE_BASE},
                   {STRAIT_ELEMENT_FP32, STRAIT_MODE_SPLIT},    {STRAIT_ELEMENT_FP16, STRAIT_MODE_SPLIT},
                   {STRAIT_ELEMENT_FP8_E4M3, STRAIT_MODE_BASE}, {STRAIT_ELEMENT_FP8_E5M2, STRAIT_MODE_SPLIT},
                   {STRAIT_ELEMENT_BF16, STRAIT_MODE_PARTS},    {STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS},
                   {STRAIT_ELEMENT_FP32, STRAIT_MODE_PARTS}};

static struct asked ask(size_t number)
{
    return (struct asked){codebook, asked_modes[number].element, asked_modes[number].mode};
}

static void chosen_sizes(struct rng *rng)
{
    for (int s = 0; s < COUNT(sizes); s++) {
        for (int m = 0; m < COUNT(asked_modes); m++) {
            const struct asked asked = ask((size_t)m);
            const struct shape shape = {.page_count = 2,
                                        .rows = 1,
                                        .row_bytes = sizes[s],
                                        .page_gap = round_to(sizes[s], element_bytes(asked.element)) - sizes[s],
                                        .table = (uint32_t)s % TEST_TABLES};
            static const enum pattern later[] = {PATTERN_FALLING, PATTERN_WIDENED,  PATTERN_FP16,
                                                 PATTERN_SPREAD,  PATTERN_NARROWED, PATTERN_FP8};
            chosen_trial(rng, &asked, &shape, (enum pattern)((s + m) % PATTERNS), HONEST);
            if (asked.mode >= STRAIT_MODE_BASE)
                chosen_trial(rng, &asked, &shape, later[s % COUNT(later)], HONEST);
        }
    }
}

static void chosen_patterns(struct rng *rng)
{
    for (int p = 0; p < PATTERNS; p++) {
        for (int m = 0; m < COUNT(asked_modes); m++) {
            for (int k = 0; k < 4; k++) {
                static const uint32_t bytes[] = {16384, 20480, 3000, 7168};
                const struct asked asked = ask((size_t)m);
                const struct shape shape = {.page_count = 2,
                                            .rows = k == 2 ? 5 : 1,
                                            .row_bytes = bytes[k],
                                            .row_gap = k == 2 ? 8 : 0,
                                            .skew = k == 1 ? 4 : 0,
                                            .table = (uint32_t)(k + m) % TEST_TABLES};
                chosen_trial(rng, &asked, &shape, (enum pattern)p, HONEST);
            }
        }
    }
}

static void chosen_hostilities(struct rng *rng)
{
    static const enum pattern patterns[] = {PATTERN_FALLING, PATTERN_RARE, PATTERN_NARROWED, PATTERN_WIDENED};
    for (int how = 0; how < HOSTILITIES; how++) {
        for (int m = 0; m < COUNT(asked_modes); m++) {
            for (int k = 0; k < 4; k++) {
                static const uint32_t bytes[] = {16384 + 600, 16384 + 600, 7168, 3001}, gaps[] = {4, 4, 0, 3};
                const struct asked asked = ask((size_t)m);
                const struct shape shape = {
                    .page_count = 3, .rows = 1, .row_bytes = bytes[k], .page_gap = gaps[k], .table = 2};
                const enum pattern pattern = element_bytes(asked.element) == 1 && k != 1 ? PATTERN_FP8 : patterns[k];
                chosen_trial(rng, &asked, &shape, pattern, (enum hostility)how);
            }
        }
    }
}

/* Blocks with patches, whole ones and short ones. */
static void chosen_patches(struct rng *rng)
{
    const struct asked asked = {codebook, STRAIT_ELEMENT_FP16, STRAIT_MODE_PARTS};
    for (uint32_t i = 0; i < 300; i++) {
        const uint32_t bytes = i % 3 == 0 ? 16384 : 600 + 2 * rng_below(rng, 3000);
        const struct shape shape = {.page_count = 1, .rows = 1, .row_bytes = bytes, .table = i % TEST_TABLES};
        chosen_trial(rng, &asked, &shape, PATTERN_NARROWED, END_OF_BLOCK);
    }
}

/* Rooms of all sizes modulo 16, and chunks that say that they end before, in or after them. */
static void chosen_rooms(struct rng *rng)
{
    static const enum hostility hostilities[] = {HONEST, ENDS_EARLY, ENDS_LATE, HEADER_FIELD,
                                                 WORD_OF_METADATA_REPAIRED};
    for (uint32_t room = 0; room < 34; room++) {
        for (int m = 0; m < COUNT(asked_modes); m++) {
            const struct asked asked = ask((size_t)m);
            const struct shape shape = {
                .page_count = 2, .rows = 1, .row_bytes = 16384 + 64 * room, .table = room % TEST_TABLES};
            const enum pattern pattern = element_bytes(asked.element) == 1 ? PATTERN_FP8 : PATTERN_FALLING;
            chosen_trial_in(rng, &asked, &shape, pattern, hostilities[room % COUNT(hostilities)], true,
                            room % 2 == 0 ? room : 128 + room);
        }
    }
}

/* More regions than kernel parameters hold. */
static void many_regions(void)
{
    enum { REGIONS = 1500, BYTES = 96 };
    static struct strait_region regions[REGIONS], there[REGIONS];
    static uint8_t values[REGIONS * BYTES];
    struct rng rng = rng_init(7);
    rng_fill(&rng, values, sizeof(values));
    uint8_t *memory, *chunk, *expected, *got;
    require_cuda(cudaMalloc((void **)&memory, sizeof(values)));
    require_cuda(cudaMemcpy(memory, values, sizeof(values), cudaMemcpyHostToDevice));
    for (uint32_t r = 0; r < REGIONS; r++) {
        regions[r] = (struct strait_region){
            .base = values + r * BYTES, .page_count = 1, .rows = 1, .row_bytes = BYTES - r % 3 * 16, .table = r % 5};
        there[r] = regions[r];
        there[r].base = memory + r * BYTES;
    }
    struct strait_pages pages = {.regions = regions, .region_count = REGIONS, .id_count = 1}, far = pages;
    far.regions = there;
    struct strait_encode_params params = {
        .size = sizeof(params), .element = STRAIT_ELEMENT_BF16, .mode = STRAIT_MODE_TIERED, .codebook = codebook};
    struct strait_result result, *cuda;
    struct strait_run run = {.size = sizeof(run), .result = &result};
    uint64_t bound = strait_encode_bound(&pages);
    require((expected = malloc(bound)) != NULL && (got = malloc(bound)) != NULL);
    require(strait_encode(variant(0), &params, expected, bound, &pages, &run) == STRAIT_OK);
    require_cuda(cudaMalloc((void **)&chunk, bound));
    require_cuda(cudaMemset(chunk, CANARY, bound)); /* a memory checker does not see what bulk copies write */
    require_cuda(cudaHostAlloc((void **)&cuda, sizeof(*cuda), cudaHostAllocMapped));
    run = device_run(&device, cuda);
    device_filled();
    require(strait_encode(device.codec, &params, chunk, bound, &far, &run) == STRAIT_OK);
    device_wait(&device);
    require(memcmp(cuda, &result, sizeof(result)) == 0);
    require_cuda(cudaMemcpy(got, chunk, result.bytes, cudaMemcpyDeviceToHost));
    require(memcmp(got, expected, result.bytes) == 0);
    require_cuda(cudaMemset(memory, 0, sizeof(values)));
    device_filled();
    require(strait_decode(device.codec, codebook, &far, NULL, chunk, result.bytes, &run) == STRAIT_OK);
    device_wait(&device);
    require(cuda->status == STRAIT_OK && cuda->failed_pages == 0);
    static uint8_t back[sizeof(values)];
    require_cuda(cudaMemcpy(back, memory, sizeof(back), cudaMemcpyDeviceToHost));
    for (uint32_t r = 0; r < REGIONS; r++)
        require(memcmp(back + r * BYTES, values + r * BYTES, regions[r].row_bytes) == 0);
    cudaFree(memory);
    cudaFree(chunk);
    cudaFreeHost(cuda);
    free(expected);
    free(got);
    done++;
}

/* A list of which only some ids exist: a page of zeroes stands for the others, in all types. */
static void absent_pages(void)
{
    enum { BYTES = 14336, PAGES = 40 };
    static _Alignas(16) uint8_t values[PAGES * BYTES], zeroes[BYTES];
    struct rng rng = rng_init(8);
    uint8_t *memory, *nothing, *chunk, *expected, *got;
    uint32_t ids[PAGES], *far_ids;
    struct strait_result result, *cuda;
    fill_pattern(&rng, PATTERN_FALLING, strait_codebook_ranking(codebook, 0), values, sizeof(values));
    for (uint32_t p = 0; p < PAGES; p++)
        ids[p] = p % 3 == 1 ? UINT32_MAX - p : p;
    require_cuda(cudaMalloc((void **)&memory, sizeof(values)));
    require_cuda(cudaMemcpy(memory, values, sizeof(values), cudaMemcpyHostToDevice));
    require_cuda(cudaMalloc((void **)&nothing, sizeof(zeroes)));
    require_cuda(cudaMemset(nothing, 0, sizeof(zeroes)));
    require_cuda(cudaMalloc((void **)&far_ids, sizeof(ids)));
    require_cuda(cudaMemcpy(far_ids, ids, sizeof(ids), cudaMemcpyHostToDevice));
    require_cuda(cudaHostAlloc((void **)&cuda, sizeof(*cuda), cudaHostAllocMapped));
    const struct strait_region here = {
        .base = values, .page_stride = BYTES, .page_count = PAGES, .rows = 1, .row_bytes = BYTES};
    struct strait_region there = here;
    there.base = memory;
    const struct strait_pages pages = {&here, ids, 1, PAGES}, far = {&there, far_ids, 1, PAGES};
    const uint64_t bound = strait_encode_bound(&pages);
    require_cuda(cudaMalloc((void **)&chunk, bound));
    require((expected = malloc(bound)) != NULL && (got = malloc(bound)) != NULL);
    for (int m = 0; m < COUNT(asked_modes); m++) {
        const struct asked asked = ask((size_t)m);
        struct strait_encode_params params = {.size = sizeof(params),
                                              .element = asked.element,
                                              .mode = asked.mode,
                                              .codebook = asked.codebook,
                                              .absent = zeroes};
        struct strait_run run = {.size = sizeof(run), .result = &result};
        require(strait_encode(variant(0), &params, expected, bound, &pages, &run) == STRAIT_OK);
        require_cuda(cudaMemset(chunk, CANARY, bound));
        run = device_run(&device, cuda);
        params.absent = nothing;
        device_filled();
        require(strait_encode(device.codec, &params, chunk, bound, &far, &run) == STRAIT_OK);
        device_wait(&device);
        require(memcmp(cuda, &result, sizeof(result)) == 0 && result.status == STRAIT_OK);
        require_cuda(cudaMemcpy(got, chunk, result.bytes, cudaMemcpyDeviceToHost));
        require(memcmp(got, expected, result.bytes) == 0);
        done++;
    }
    cudaFree(memory);
    cudaFree(nothing);
    cudaFree(chunk);
    cudaFree(far_ids);
    cudaFreeHost(cuda);
    free(expected);
    free(got);
}

static void check_device(unsigned trials, bool chosen)
{
    struct rng rng = rng_init(600);
    device.exact = chosen && trials == 0;
    if (chosen) {
        chosen_sizes(&rng);
        chosen_patterns(&rng);
        chosen_hostilities(&rng);
        chosen_patches(&rng);
        chosen_rooms(&rng);
        many_regions();
        absent_pages();
        printf("%u chosen trials agree\n", done);
    }
    done = 0;
    while (done < trials)
        random_batch(&rng);
    if (trials > 0)
        printf("%u random trials agree\n", done);
}

static void check_many(void)
{
    many_blocks(&device);
    printf("many blocks agree\n");
}

int main(int argc, char **argv)
{
    bool chosen = argc >= 2 && strcmp(argv[1], "--chosen") == 0, many = argc == 2 && strcmp(argv[1], "--many") == 0;
    bool times = argc >= 2 && strcmp(argv[1], "--times") == 0, mixed = argc == 3 && strcmp(argv[1], "--mixed") == 0;
    unsigned trials = argc == 3 && strcmp(argv[1], "--trials") == 0 ? (unsigned)strtoul(argv[2], NULL, 0) : 10000;
    if (chosen && argc == 3 && (one_in = (unsigned)strtoul(argv[2], NULL, 0)) == 0)
        one_in = 1;
    codebook = test_codebook();
    printf("STRAIT_TEST_SEED=%llu\n", (unsigned long long)test_seed());
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!device_init(&device, codebook))
        return 77;
    if (times)
        time_modes(&device, argc == 3 ? argv[2] : "");
    else if (!many && !mixed)
        check_device(chosen ? 0 : trials, chosen || argc == 1);
    if (mixed || argc == 1)
        printf("%u chunks of mixed blocks agree\n",
               mixed_blocks(&device, mixed ? (unsigned)strtoul(argv[2], NULL, 0) : 60));
    if (many || argc == 1)
        check_many();
    device_fini(&device);
    strait_codebook_destroy(codebook);
    return 0;
}
