#include "tests/cuda_mixed.h"

#include <string.h>

#include "internal/bytes.h"

enum { PAGES = 12, MODES_MAX = 4, UNIT = 16 };

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
    {STRAIT_ELEMENT_BF16, 4, {STRAIT_MODE_TIERED, STRAIT_MODE_TOP16, STRAIT_MODE_BASE, STRAIT_MODE_RAW}},
    {STRAIT_ELEMENT_FP32, 3, {STRAIT_MODE_SPLIT, STRAIT_MODE_BASE, STRAIT_MODE_RAW}},
    {STRAIT_ELEMENT_BF16, 2, {STRAIT_MODE_TIERED, STRAIT_MODE_TOP16}},
    {STRAIT_ELEMENT_FP16, 3, {STRAIT_MODE_SPLIT, STRAIT_MODE_BASE, STRAIT_MODE_RAW}},
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
                                            PATTERN_EDGES, PATTERN_WIDENED, PATTERN_CONST, PATTERN_SPREAD};
    const struct shape shape = {.page_count = PAGES,
                                .rows = 1,
                                .row_bytes = 3 * 16384 + 4 * rng_below(rng, 4097),
                                .page_gap = rng_below(rng, 2) == 0 ? 0 : 8,
                                .table = rng_below(rng, TEST_TABLES)};
    struct ways ways;
    *trial = (struct trial){.asked = {device->codebook, of->element, of->modes[0]}};
    layout_init(&trial->src, 64, &shape, 1, NULL, PAGES);
    layout_mirror(&trial->dst, &trial->src);
    for (uint32_t p = 0; p < PAGES; p++) {
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
