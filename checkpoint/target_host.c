/* Host memory as a target of loads: pages whose values are next to one another there are decoded in place, others by
 * way of a stage. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checkpoint/arena.h"
#include "checkpoint/target.h"
#include "internal/bytes.h"
#include "internal/element.h"

#define STAGE_BYTES     (1u << 20) /* of pages that are decoded together: they stay in a processor's cache */
#define STAGE_ALIGNMENT 64u

/* Pages that one call decodes. */
struct batch {
    struct strait_region *regions;
    uint32_t *select;
    int32_t *status;
    uint32_t *first; /* delivery of each page, and how many it has */
    uint32_t *count;
    uint32_t pages, room;
};

struct host {
    uint8_t *buffer;
    uint64_t buffer_bytes;
    uint8_t *stage;
    uint64_t stage_bytes, stage_used;
    uint8_t *rounded; /* values of a page that were rounded */
    uint64_t rounded_bytes;
    void *scratch; /* the codec's */
    struct batch direct, staged;
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static bool reserve(uint8_t **memory, uint64_t *bytes, uint64_t needed)
{
    if (needed <= *bytes)
        return true;
    free(*memory);
    *bytes = (needed + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    *memory = aligned_alloc(STAGE_ALIGNMENT, *bytes);
    if (*memory == NULL)
        *bytes = 0;
    return *memory != NULL;
}

static void batch_fini(struct batch *batch)
{
    free(batch->regions);
    free(batch->select);
    free(batch->status);
    free(batch->first);
    free(batch->count);
}

static bool grow_list(void *list, uint32_t room, size_t item)
{
    void *grown = realloc(*(void **)list, room * item);
    if (grown != NULL)
        *(void **)list = grown;
    return grown != NULL;
}

static bool batch_grow(struct batch *batch)
{
    const uint32_t room = batch->room == 0 ? 64 : 2 * batch->room;
    if (!grow_list(&batch->regions, room, sizeof(*batch->regions)) ||
        !grow_list(&batch->select, room, sizeof(*batch->select)) ||
        !grow_list(&batch->status, room, sizeof(*batch->status)) ||
        !grow_list(&batch->first, room, sizeof(*batch->first)) ||
        !grow_list(&batch->count, room, sizeof(*batch->count)))
        return false;
    batch->room = room;
    return true;
}

static void host_close(void *state)
{
    struct host *host = state;
    if (host->buffer != NULL)
        munmap(host->buffer, host->buffer_bytes);
    free(host->stage);
    free(host->rounded);
    free(host->scratch);
    batch_fini(&host->direct);
    batch_fini(&host->staged);
    free(host);
}

static void *host_open(void)
{
    struct host *host = calloc(1, sizeof(*host));
    const size_t bytes = (strait_scratch_size(NULL) + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    if (host == NULL)
        return NULL;
    host->scratch = aligned_alloc(STAGE_ALIGNMENT, bytes);
    if (host->scratch != NULL)
        return host;
    host_close(host);
    return NULL;
}

static uint8_t *host_buffer(void *state, uint64_t bytes)
{
    struct host *host = state;
    if (bytes <= host->buffer_bytes)
        return host->buffer;
    if (host->buffer != NULL)
        munmap(host->buffer, host->buffer_bytes);
    host->buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    host->buffer_bytes = host->buffer == MAP_FAILED ? 0 : bytes;
    if (host->buffer == MAP_FAILED)
        host->buffer = NULL;
    return host->buffer;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* The BF16 value nearest to one of F32, the even one of two. */
static inline uint16_t round_value(uint32_t value)
{
    if ((value & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(value >> 16 | 0x40);
    return (uint16_t)((value + 0x7fff + (value >> 16 & 1)) >> 16);
}

static void round_values(uint8_t *dst, const uint8_t *src, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        store_le16(dst + 2 * i, round_value(load_le32(src + 4 * i)));
}

static void walk_of(struct walk *walk, const struct delivery *delivery)
{
    const struct checkpoint_box shard = {
        .offsets = delivery->shard->offsets, .sizes = delivery->shard->sizes, .dims = delivery->shard->dims};
    walk_init(walk, &shard, &delivery->part, delivery->memory);
}

/* Writes the values of a decoded page to their place. */
static enum strait_status place_values(struct host *host, const struct delivery *delivery, const uint8_t *page)
{
    const uint64_t count = delivery->end - delivery->first;
    struct walk walk;
    walk_of(&walk, delivery);
    page += delivery->source->first_byte;
    if (delivery->shard != delivery->source) {
        uint8_t *span = walk_span(&walk, delivery->first, delivery->end);
        if (span == NULL && !reserve(&host->rounded, &host->rounded_bytes, 2 * count))
            return STRAIT_ERR_NO_MEMORY;
        round_values(span != NULL ? span : host->rounded, page, count);
        if (span != NULL)
            return STRAIT_OK;
        page = host->rounded;
    }
    walk_copy(&walk, delivery->first, delivery->end, page);
    return STRAIT_OK;
}

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

/* Decodes the pages of a batch and places the values of those that were staged. */
static void batch_run(struct host *host, struct batch *batch, struct chunk_work *work)
{
    const bool staged = batch == &host->staged;
    const struct strait_pages pages = {.regions = batch->regions, .region_count = batch->pages, .id_count = 1};
    struct strait_result result;
    const struct strait_run run = {.size = sizeof(run),
                                   .scratch = host->scratch,
                                   .scratch_size = strait_scratch_size(NULL),
                                   .result = &result,
                                   .page_status = batch->status,
                                   .page_status_count = batch->pages,
                                   .caching = staged ? STRAIT_CACHING_KEEP : STRAIT_CACHING_AUTO};
    if (batch->pages == 0)
        return;
    const enum strait_status called =
        strait_decode(NULL, NULL, &pages, batch->select, work->chunk, work->info.chunk_bytes, &run);
    for (uint32_t p = 0; p < batch->pages; p++) {
        enum strait_status status = called != STRAIT_OK ? called : (enum strait_status)batch->status[p];
        if (status == STRAIT_ERR_INVALID || status == STRAIT_ERR_PAGE_ID)
            status = STRAIT_ERR_CORRUPT; /* the chunk has changed since its pages were described */
        for (uint32_t d = batch->first[p]; d < batch->first[p] + batch->count[p]; d++) {
            struct delivery *delivery = &work->deliveries[d];
            if (delivery->status != STRAIT_OK)
                continue;
            delivery->status =
                status == STRAIT_OK && staged ? place_values(host, delivery, batch->regions[p].base) : status;
        }
    }
    batch->pages = 0;
    host->stage_used = staged ? 0 : host->stage_used;
}

/* Whether a page is as long as its shard says, or long enough for one that shares it. */
static bool page_fits(const struct delivery *delivery, uint32_t page_bytes)
{
    const struct checkpoint_shard *source = delivery->source;
    const uint64_t bytes = (delivery->end - delivery->first) * source->dtype->bytes;
    return source->bytes < source->page_bytes ? source->first_byte + bytes <= page_bytes : bytes == page_bytes;
}

/* The place of a page whose only delivery can be decoded in place; NULL for others. */
static uint8_t *direct_place(const struct delivery *delivery, uint32_t page_bytes, uint32_t alignment)
{
    struct walk walk;
    if (delivery->shard != delivery->source ||
        (delivery->end - delivery->first) * delivery->source->dtype->bytes != page_bytes)
        return NULL;
    walk_of(&walk, delivery);
    uint8_t *place = walk_span(&walk, delivery->first, delivery->end);
    return (uintptr_t)place % alignment == 0 ? place : NULL;
}

static bool batch_add(struct batch *batch, uint8_t *place, uint32_t page_bytes, uint32_t page, uint32_t first,
                      uint32_t count)
{
    if (batch->pages == batch->room && !batch_grow(batch))
        return false;
    batch->regions[batch->pages] =
        (struct strait_region){.base = place, .page_count = 1, .rows = 1, .row_bytes = page_bytes};
    batch->select[batch->pages] = page;
    batch->first[batch->pages] = first;
    batch->count[batch->pages] = count;
    batch->pages++;
    return true;
}

static bool add_staged(struct host *host, struct chunk_work *work, uint32_t page_bytes, uint32_t first, uint32_t count)
{
    if (host->stage_used + page_bytes > host->stage_bytes)
        batch_run(host, &host->staged, work);
    if (!reserve(&host->stage, &host->stage_bytes, page_bytes > STAGE_BYTES ? page_bytes : STAGE_BYTES))
        return false;
    uint8_t *place = host->stage + host->stage_used;
    host->stage_used += (page_bytes + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    return batch_add(&host->staged, place, page_bytes, work->deliveries[first].page, first, count);
}

/* Adds the page of the deliveries first..first+count-1 to a batch. */
static void add_page(struct host *host, struct chunk_work *work, uint32_t first, uint32_t count)
{
    const uint32_t page = work->deliveries[first].page, page_bytes = work->pages[page].page_bytes;
    uint32_t good = 0, last = first;
    for (uint32_t d = first; d < first + count; d++) {
        struct delivery *delivery = &work->deliveries[d];
        const bool fits = delivery->source->dtype->element == work->info.element && page_fits(delivery, page_bytes);
        delivery->status = fits ? STRAIT_OK : STRAIT_ERR_CORRUPT;
        good += fits;
        last = fits ? d : last;
    }
    if (good == 0)
        return;
    uint8_t *place =
        good == 1 ? direct_place(&work->deliveries[last], page_bytes, element_bytes(work->info.element)) : NULL;
    const bool added = place != NULL ? batch_add(&host->direct, place, page_bytes, page, last, 1)
                                     : add_staged(host, work, page_bytes, first, count);
    for (uint32_t d = first; !added && d < first + count; d++)
        work->deliveries[d].status = STRAIT_ERR_NO_MEMORY;
}

static void host_deliver(void *state, struct chunk_work *work)
{
    struct host *host = state;
    for (uint32_t first = 0, count; first < work->count; first += count) {
        for (count = 1; first + count < work->count; count++)
            if (work->deliveries[first + count].page != work->deliveries[first].page)
                break;
        add_page(host, work, first, count);
    }
    batch_run(host, &host->direct, work);
    batch_run(host, &host->staged, work);
}

const struct target *target_find(enum strait_checkpoint_memory memory, const char **why)
{
    static const struct target host = {
        .open = host_open, .close = host_close, .buffer = host_buffer, .deliver = host_deliver};
    if (memory == STRAIT_CHECKPOINT_HOST)
        return &host;
    *why = memory == STRAIT_CHECKPOINT_CUDA ? "boxes in GPU memory cannot be loaded into directly by this version"
                                            : "unknown kind of memory";
    return NULL;
}
