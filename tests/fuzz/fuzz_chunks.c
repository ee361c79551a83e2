/* Foreign bytes as chunks, and as pages to be coded. */
#include <string.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "tests/fuzz/fuzz.h"

/* ---- Chunks -------------------------------------------------------------------------------------------------- */

enum { DECODED_MAX = 4 << 20 }; /* a fuzzer has no time for more */

/* The set that chunks may name, made once. */
static const struct strait_codebook *target_codebook(void)
{
    static struct strait_codebook *codebook;
    if (codebook == NULL)
        codebook = test_codebook();
    return codebook;
}

/* Where the pages of a chunk go: each to memory of its own, of exactly its size. */
struct target_pages {
    uint32_t count; /* 0: the chunk is refused as a whole, or is too large */
    struct strait_region *regions;
    int32_t *status;
    struct strait_result result;
};

static void add_page(struct strait_region *region, const struct strait_page_info *info)
{
    *region = (struct strait_region){
        .base = malloc(info->page_bytes), .page_count = 1, .rows = 1, .row_bytes = info->page_bytes};
    require(region->base != NULL);
    memset(region->base, CANARY, info->page_bytes);
}

/* Descriptions of all pages; NULL when the chunk is refused or too large. */
static struct strait_page_info *describe(const uint8_t *chunk, size_t size, uint32_t *count)
{
    struct strait_chunk_info info;
    uint64_t total = 0;
    if (strait_chunk_info(chunk, size, &info) != STRAIT_OK || strait_chunk_pages(chunk, size, 0, NULL) != STRAIT_OK)
        return NULL;
    struct strait_page_info *pages = calloc(info.page_count, sizeof(*pages));
    require(pages != NULL && strait_chunk_pages(chunk, size, info.page_count, pages) == STRAIT_OK);
    for (uint32_t p = 0; p < info.page_count; p++)
        total += pages[p].page_bytes;
    *count = info.page_count;
    if (total <= DECODED_MAX)
        return pages;
    free(pages);
    return NULL;
}

static void target_pages_init(struct target_pages *pages, const uint8_t *chunk, size_t size)
{
    *pages = (struct target_pages){.count = 0};
    struct strait_page_info *info = describe(chunk, size, &pages->count);
    if (info == NULL) {
        pages->count = 0;
        return;
    }
    pages->regions = calloc(pages->count, sizeof(*pages->regions));
    pages->status = calloc(pages->count, sizeof(*pages->status));
    require(pages->regions != NULL && pages->status != NULL);
    for (uint32_t p = 0; p < pages->count; p++)
        add_page(&pages->regions[p], &info[p]);
    free(info);
}

static void target_pages_fini(struct target_pages *pages)
{
    for (uint32_t p = 0; p < pages->count; p++)
        free(pages->regions[p].base);
    free(pages->regions);
    free(pages->status);
}

static void target_pages_decode(struct target_pages *pages, const struct strait_codec *codec, const uint8_t *chunk,
                                size_t size)
{
    const struct strait_pages list = {.regions = pages->regions, .region_count = pages->count, .id_count = 1};
    const struct strait_run run = {
        .size = sizeof(run), .result = &pages->result, .page_status = pages->status, .page_status_count = pages->count};
    require(strait_decode(codec, target_codebook(), &list, NULL, chunk, size, &run) == STRAIT_OK);
}

static struct strait_result verify(const struct strait_codec *codec, const uint8_t *chunk, size_t size)
{
    struct strait_result result;
    const struct strait_run run = {.size = sizeof(run), .result = &result};
    require(strait_verify(codec, target_codebook(), chunk, size, &run) == STRAIT_OK);
    return result;
}

/* The status of the chunk's first page, decoded to 64 bytes. */
static int decode_one(const struct strait_codec *codec, const uint8_t *chunk, size_t size, uint8_t page[64])
{
    struct strait_result result = {.status = STATUS_UNSET};
    struct strait_region region = {.base = page, .page_count = 1, .rows = 1, .row_bytes = 64};
    const struct strait_pages list = {.regions = &region, .region_count = 1, .id_count = 1};
    const struct strait_run run = {.size = sizeof(run), .result = &result};
    const uint32_t first = 0;
    require(strait_decode(codec, target_codebook(), &list, &first, chunk, size, &run) == STRAIT_OK);
    return result.status;
}

static void compare_pages(const struct target_pages *a, const struct target_pages *b)
{
    require(memcmp(&a->result, &b->result, sizeof(a->result)) == 0);
    for (uint32_t p = 0; p < a->count; p++) {
        require(a->status[p] == b->status[p]);
        if (a->status[p] == STRAIT_OK)
            require(memcmp(a->regions[p].base, b->regions[p].base, a->regions[p].row_bytes) == 0);
    }
}

static void check_decode(const uint8_t *chunk, size_t size, const struct strait_result *verified)
{
    struct target_pages first;
    target_pages_init(&first, chunk, size);
    if (first.count > 0) {
        target_pages_decode(&first, variant(0), chunk, size);
        if (verified->chunk_status == STRAIT_OK)
            require(memcmp(&first.result, verified, sizeof(*verified)) == 0);
    }
    for (int v = 1; first.count > 0 && v < variant_count(); v++) {
        struct target_pages other;
        target_pages_init(&other, chunk, size);
        target_pages_decode(&other, variant(v), chunk, size);
        compare_pages(&first, &other);
        target_pages_fini(&other);
    }
    target_pages_fini(&first);
}

/* Decodes and verifies with every variant: all agree. */
static void target_check(const uint8_t *chunk, size_t size)
{
    _Alignas(8) uint8_t page[64];
    struct strait_result verified = verify(variant(0), chunk, size);
    int one = decode_one(variant(0), chunk, size, page);
    for (int v = 1; v < variant_count(); v++) {
        struct strait_result other = verify(variant(v), chunk, size);
        require(memcmp(&verified, &other, sizeof(other)) == 0);
        require(decode_one(variant(v), chunk, size, page) == one);
    }
    check_decode(chunk, size, &verified);
}

void fuzz_chunk(const uint8_t *data, size_t size)
{
    target_check(data, size);
}

static void repair(uint8_t *chunk, size_t size)
{
    static const uint8_t no_id[STRAIT_CODEBOOK_ID_BYTES];
    store_le32(chunk + 16, (uint32_t)size);
    if (memcmp(chunk + 24, no_id, sizeof(no_id)) != 0)
        memcpy(chunk + 24, strait_codebook_id(target_codebook()), sizeof(no_id));
    repair_metadata(chunk, size);
}

/* Writes the sums of all pages as they were decoded; returns how many did not fail for another reason. */
static uint32_t repair_pages(uint8_t *chunk, size_t size)
{
    struct target_pages pages;
    uint32_t good = 0;
    target_pages_init(&pages, chunk, size);
    if (pages.count > 0)
        target_pages_decode(&pages, variant(0), chunk, size);
    for (uint32_t p = 0; p < pages.count; p++) {
        uint8_t *entry = chunk + 48 + 16 * (size_t)p;
        good += pages.status[p] == STRAIT_ERR_INTEGRITY || pages.status[p] == STRAIT_OK;
        if (pages.status[p] == STRAIT_ERR_INTEGRITY)
            store_le64(entry + 8,
                       reference_page_sum(pages.regions[p].base, pages.regions[p].row_bytes, p, load_le16(entry + 4)));
    }
    target_pages_fini(&pages);
    return good;
}

/* Now those pages pass. */
static void check_repaired(const uint8_t *chunk, size_t size, uint32_t good)
{
    struct target_pages pages;
    uint32_t passed = 0;
    target_pages_init(&pages, chunk, size);
    target_pages_decode(&pages, variant(0), chunk, size);
    for (uint32_t p = 0; p < pages.count; p++)
        passed += pages.status[p] == STRAIT_OK;
    require(passed == good);
    target_pages_fini(&pages);
}

/* A chunk whose size, codebook id and sums are right: what a sender with bad intentions writes. */
void fuzz_chunk_repaired(const uint8_t *data, size_t size)
{
    size = size / 16 * 16;
    if (size < 64)
        return;
    uint8_t *chunk = malloc(size);
    require(chunk != NULL);
    memcpy(chunk, data, size);
    repair(chunk, size);
    target_check(chunk, size);
    uint32_t good = repair_pages(chunk, size);
    if (good > 0) {
        repair_metadata(chunk, size);
        target_check(chunk, size);
        check_repaired(chunk, size, good);
    }
    free(chunk);
}

/* ---- Round trips ----------------------------------------------------------------------------------------------- */

enum { REGION_FIELDS = 6, HEAD = 4, TOTAL_MAX = 80 * 1024 };

static struct shape read_shape(const uint8_t *field, uint32_t multiple, uint32_t ids)
{
    uint32_t rows = 1 + field[0] % 12, row_bytes = 1 + (uint32_t)(field[1] | (field[2] & 63) << 8);
    if (rows > 1)
        row_bytes = (row_bytes + multiple - 1) / multiple * multiple;
    uint32_t end = row_bytes * rows % multiple;
    return (struct shape){.page_count = ids,
                          .rows = rows,
                          .row_bytes = row_bytes,
                          .row_gap = rows > 1 ? multiple * (field[3] & 15u) : 0,
                          .page_gap = (end == 0 ? 0 : multiple - end) + multiple * (field[3] >> 4),
                          .skew = multiple * (field[4] & 15u),
                          .table = field[5] % TEST_TABLES};
}

/* Whether the pages of all regions are few enough. */
static bool read_shapes(struct shape *shapes, uint32_t regions, uint32_t ids, uint32_t multiple, bool no_tables,
                        const uint8_t *data)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < regions; r++) {
        shapes[r] = read_shape(data + HEAD + r * REGION_FIELDS, multiple, ids);
        shapes[r].table = no_tables ? 0 : shapes[r].table;
        total += (uint64_t)shapes[r].rows * shapes[r].row_bytes * ids;
    }
    return total <= TOTAL_MAX;
}

/* Goes round the input as long as there is room. */
static void fill_page(uint8_t *page, uint32_t size, const uint8_t *data, size_t data_size, const uint8_t *ranking,
                      size_t *at)
{
    for (uint32_t i = 0; i < size; i++)
        page[i] = data_size == 0 ? 0 : data[*at + i < data_size ? *at + i : (*at + i) % data_size];
    for (uint32_t i = 0; ranking != NULL && i < size / 2; i++)
        put_value(page, i, join_value(page[2 * i], ranking[page[2 * i + 1]]));
    *at += size;
}

static void fill_layout(struct layout *layout, const uint8_t *data, size_t size, bool ranks)
{
    uint8_t ranking[256], *page = malloc(TOTAL_MAX);
    size_t at = 0;
    require(page != NULL);
    for (uint32_t i = 0; i < layout_count(layout); i++) {
        test_ranking(ranking, layout->regions[i / layout->pages.id_count].table);
        fill_page(page, layout_page_bytes(layout, i), data, size, ranks ? ranking : NULL, &at);
        layout_write(layout, i, page);
    }
    free(page);
}

static void check_short_buffer(const struct asked *asked, const struct layout *src)
{
    struct strait_encode_params params = {
        .size = sizeof(params), .element = asked->element, .mode = asked->mode, .codebook = asked->codebook};
    struct verdict verdict;
    struct strait_run run = verdict_begin(&verdict);
    uint8_t byte;
    require(strait_encode(NULL, &params, &byte, strait_encode_bound(&src->pages) - 1, &src->pages, &run) ==
            STRAIT_ERR_NO_SPACE);
}

/* 64: of the later modes, 128: the last of them, 32: without a codebook where that can be. */
static struct asked read_asked(const struct strait_codebook *codebook, const uint8_t *data)
{
    struct asked asked = {codebook, (enum strait_element)(data[0] % 6), (enum strait_mode)(data[1] % 4)};
    if ((data[1] & 64) != 0)
        asked.mode = (data[1] & 128) != 0 ? STRAIT_MODE_PARTS : data[1] % 2 == 0 ? STRAIT_MODE_BASE : STRAIT_MODE_SPLIT;
    if ((asked.mode == STRAIT_MODE_BASE || asked.mode == STRAIT_MODE_PARTS) && (data[1] & 32) != 0)
        asked.codebook = NULL;
    return asked;
}

/* Any pages, of any shape, through every variant and back. The first bytes choose shape, table and mode, the others are
 * the values: as they are, or as ranks of exponents. */
void fuzz_roundtrip(const uint8_t *data, size_t size)
{
    struct shape shapes[3];
    if (size < HEAD)
        return;
    const struct asked asked = read_asked(target_codebook(), data);
    uint32_t regions = 1 + data[2] % 3, ids = 1 + data[3] % 4;
    size_t head = HEAD + regions * REGION_FIELDS;
    if (size < head || !read_shapes(shapes, regions, ids, element_bytes(asked.element), asked.codebook == NULL, data))
        return;
    struct layout src;
    struct verdict verdict;
    layout_init(&src, 4, shapes, regions, NULL, ids);
    fill_layout(&src, data + head, size - head, data[1] >= 128);
    free(round_trip(&asked, &src, &verdict));
    check_short_buffer(&asked, &src);
    layout_fini(&src);
}
