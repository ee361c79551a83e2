#include "checkpoint/batch.h"

#include <stdlib.h>

#include "internal/element.h"

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static void batch_fini(struct batch *batch)
{
    free(batch->regions);
    free(batch->select);
    free(batch->status);
    free(batch->first);
    free(batch->count);
}

void batches_fini(struct batches *batches)
{
    batch_fini(&batches->direct);
    batch_fini(&batches->staged);
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

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

void delivery_walk(struct walk *walk, const struct delivery *delivery)
{
    const struct checkpoint_box shard = {
        .offsets = delivery->shard->offsets, .sizes = delivery->shard->sizes, .dims = delivery->shard->dims};
    walk_init(walk, &shard, &delivery->part, delivery->memory);
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
    delivery_walk(&walk, delivery);
    uint8_t *place = walk_span(&walk, delivery->first, delivery->end);
    return (uintptr_t)place % alignment == 0 ? place : NULL;
}

/* Decodes the pages of a batch and places the values of those that were staged. */
static void batch_run(struct batches *batches, struct batch *batch, const struct batch_ops *ops, void *state)
{
    const bool staged = batch == &batches->staged;
    const enum strait_status called = batch->pages > 0 ? ops->decode(state, batch, batches->work) : STRAIT_OK;
    for (uint32_t p = 0; p < batch->pages; p++) {
        enum strait_status status = called != STRAIT_OK ? called : (enum strait_status)batch->status[p];
        if (status == STRAIT_ERR_INVALID || status == STRAIT_ERR_PAGE_ID)
            status = STRAIT_ERR_CORRUPT; /* the chunk has changed since its pages were described */
        for (uint32_t d = batch->first[p]; d < batch->first[p] + batch->count[p]; d++) {
            struct delivery *delivery = &batches->work->deliveries[d];
            if (delivery->status == STRAIT_OK)
                delivery->status =
                    status == STRAIT_OK && staged ? ops->place(state, delivery, batch->regions[p].base) : status;
        }
    }
    batch->pages = 0;
    if (staged)
        ops->stage_empty(state);
}

static bool add_staged(struct batches *batches, const struct batch_ops *ops, void *state, uint32_t page_bytes,
                       uint32_t first, uint32_t count)
{
    uint8_t *place = ops->stage(state, page_bytes);
    if (place == NULL) {
        batch_run(batches, &batches->staged, ops, state);
        place = ops->stage(state, page_bytes);
    }
    return place != NULL &&
           batch_add(&batches->staged, place, page_bytes, batches->work->deliveries[first].page, first, count);
}

/* Adds the page of the deliveries first..first+count-1 to a batch. */
static void add_page(struct batches *batches, const struct batch_ops *ops, void *state, uint32_t first, uint32_t count)
{
    const struct chunk_work *work = batches->work;
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
    const bool added = place != NULL ? batch_add(&batches->direct, place, page_bytes, page, last, 1)
                                     : add_staged(batches, ops, state, page_bytes, first, count);
    for (uint32_t d = first; !added && d < first + count; d++)
        work->deliveries[d].status = STRAIT_ERR_NO_MEMORY;
}

void batches_run(struct batches *batches, const struct batch_ops *ops, void *state, struct chunk_work *work)
{
    batches->work = work;
    for (uint32_t first = 0, count; first < work->count; first += count) {
        for (count = 1; first + count < work->count; count++)
            if (work->deliveries[first + count].page != work->deliveries[first].page)
                break;
        add_page(batches, ops, state, first, count);
    }
    batch_run(batches, &batches->direct, ops, state);
    batch_run(batches, &batches->staged, ops, state);
}
