#include "tests/fuzz/chunk_target.h"

#include <string.h>

enum { TOTAL_MAX = 4 << 20 };

const struct strait_codebook *target_codebook(void)
{
    static struct strait_codebook *codebook;
    if (codebook == NULL)
        codebook = test_codebook();
    return codebook;
}

/* ---- Pages ----------------------------------------------------------------------------------------------------- */

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
    if (total <= TOTAL_MAX)
        return pages;
    free(pages);
    return NULL;
}

void target_pages_init(struct target_pages *pages, const uint8_t *chunk, size_t size)
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

void target_pages_fini(struct target_pages *pages)
{
    for (uint32_t p = 0; p < pages->count; p++)
        free(pages->regions[p].base);
    free(pages->regions);
    free(pages->status);
}

void target_pages_decode(struct target_pages *pages, const struct strait_codec *codec, const uint8_t *chunk,
                         size_t size)
{
    const struct strait_pages list = {.regions = pages->regions, .region_count = pages->count, .id_count = 1};
    const struct strait_run run = {
        .size = sizeof(run), .result = &pages->result, .page_status = pages->status, .page_status_count = pages->count};
    require(strait_decode(codec, target_codebook(), &list, NULL, chunk, size, &run) == STRAIT_OK);
}

/* ---- All variants ---------------------------------------------------------------------------------------------- */

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
    for (int v = 1; first.count > 0 && v < VARIANTS; v++) {
        struct target_pages other;
        if (variant(v) == NULL)
            continue;
        target_pages_init(&other, chunk, size);
        target_pages_decode(&other, variant(v), chunk, size);
        compare_pages(&first, &other);
        target_pages_fini(&other);
    }
    target_pages_fini(&first);
}

void target_check(const uint8_t *chunk, size_t size)
{
    _Alignas(8) uint8_t page[64];
    struct strait_result verified = verify(variant(0), chunk, size);
    int one = decode_one(variant(0), chunk, size, page);
    for (int v = 1; v < VARIANTS; v++) {
        if (variant(v) == NULL)
            continue;
        struct strait_result other = verify(variant(v), chunk, size);
        require(memcmp(&verified, &other, sizeof(other)) == 0);
        require(decode_one(variant(v), chunk, size, page) == one);
    }
    check_decode(chunk, size, &verified);
}
