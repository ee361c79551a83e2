#include "bench/chunks.h"

#include <stdlib.h>

#include "tools/util.h"

#define SLOT_ALIGNMENT 64u

/* The caller frees the regions through pages->regions. */
static bool list_pages(struct strait_pages *pages, const struct cut *cut, uint8_t *bytes, uint64_t page_bytes)
{
    uint32_t count = cut_pages(cut, page_bytes);
    struct strait_region *region = calloc(count, sizeof(*region));

    *pages = (struct strait_pages){.regions = region, .region_count = count, .id_count = 1};
    if (region == NULL)
        return false;
    for (uint32_t i = 0; i < cut->run_count; i++) {
        const struct run *run = &cut->runs[i];
        for (uint64_t at = 0; at < run->bytes; at += page_bytes) {
            uint64_t left = run->bytes - at;
            *region++ = (struct strait_region){
                .base = bytes + run->offset + at,
                .page_count = 1,
                .rows = 1,
                .row_bytes = (uint32_t)(left < page_bytes ? left : page_bytes),
                .table = run->table,
            };
        }
    }
    return true;
}

static struct chunk *grow(struct bench_chunks *list)
{
    if (list->count == list->capacity) {
        uint32_t capacity = 2 * list->capacity + 64;
        struct chunk *grown = realloc(list->chunks, capacity * sizeof(*grown));
        if (grown == NULL)
            return NULL;
        list->chunks = grown;
        list->capacity = capacity;
    }
    list->chunks[list->count] = (struct chunk){0};
    return &list->chunks[list->count++];
}

static bool add_chunk(struct bench_chunks *list, const struct cut *cut, const struct data *data, uint8_t *back)
{
    struct chunk *chunk = grow(list);

    if (chunk == NULL || !list_pages(&chunk->src, cut, data->bytes, list->page_bytes) ||
        !list_pages(&chunk->dst, cut, back, list->page_bytes)) {
        print_error(NULL, "out of memory");
        return false;
    }
    chunk->coded_at = list->coded_bytes;
    chunk->coded_capacity = strait_encode_bound(&chunk->src);
    if (chunk->coded_capacity == 0)
        print_error(NULL, "--chunk is too large for these pages");
    list->coded_bytes += (chunk->coded_capacity + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    return chunk->coded_capacity > 0;
}

bool bench_chunks_init(struct bench_chunks *list, const struct data *data, uint8_t *back, uint64_t page_bytes,
                       uint64_t chunk_bytes)
{
    struct cutter cutter = {.plan = &data->plan, .page_bytes = page_bytes, .chunk_bytes = chunk_bytes};
    struct cut cut = {0};
    enum cut_result result;
    bool ok = true;

    *list = (struct bench_chunks){.page_bytes = page_bytes};
    while (ok && (result = cutter_next(&cutter, &cut)) != CUT_END) {
        ok = result == CUT_OK && add_chunk(list, &cut, data, back);
        if (result == CUT_NO_MEMORY)
            print_error(NULL, "out of memory");
    }
    cut_fini(&cut);
    if (!ok)
        bench_chunks_fini(list);
    return ok;
}

void bench_chunks_fini(struct bench_chunks *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        free((void *)(uintptr_t)list->chunks[i].src.regions);
        free((void *)(uintptr_t)list->chunks[i].dst.regions);
    }
    free(list->chunks);
    *list = (struct bench_chunks){0};
}
