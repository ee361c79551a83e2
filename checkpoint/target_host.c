/* Host memory as a target of loads: pages whose values are next to one another there are decoded in place, others by
 * way of a stage. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/arena.h"
#include "checkpoint/batch.h"
#include "checkpoint/plugin.h"
#include "checkpoint/rounding.h"
#include "internal/bytes.h"

#define STAGE_BYTES     (1u << 20) /* of pages that are decoded together: they stay in a processor's cache */
#define STAGE_ALIGNMENT 64u

struct host {
    uint8_t *stage;
    uint64_t stage_bytes, stage_used;
    uint8_t *rounded; /* values of a page that were rounded */
    uint64_t rounded_bytes;
    void *scratch; /* the codec's */
    struct batches batches;
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

static void host_close(void *state)
{
    struct host *host = state;
    free(host->stage);
    free(host->rounded);
    free(host->scratch);
    batches_fini(&host->batches);
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

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void round_values(uint8_t *dst, const uint8_t *src, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        store_le16(dst + 2 * i, rounding_of(load_le32(src + 4 * i)));
}

/* Writes the values of a decoded page to their place. */
static enum strait_status host_place(void *state, const struct delivery *delivery, const uint8_t *page)
{
    struct host *host = state;
    const uint64_t count = delivery->end - delivery->first;
    struct walk walk;
    delivery_walk(&walk, delivery);
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

static enum strait_status host_decode(void *state, struct batch *batch, const struct chunk_work *work)
{
    struct host *host = state;
    const struct strait_pages pages = {.regions = batch->regions, .region_count = batch->pages, .id_count = 1};
    struct strait_result result;
    const struct strait_run run = {.size = sizeof(run),
                                   .scratch = host->scratch,
                                   .scratch_size = strait_scratch_size(NULL),
                                   .result = &result,
                                   .page_status = batch->status,
                                   .page_status_count = batch->pages,
                                   .caching =
                                       batch == &host->batches.staged ? STRAIT_CACHING_KEEP : STRAIT_CACHING_AUTO};
    return strait_decode(NULL, NULL, &pages, batch->select, work->chunk, work->info.chunk_bytes, &run);
}

static uint8_t *host_stage(void *state, uint32_t page_bytes)
{
    struct host *host = state;
    if (host->stage_used > 0 && host->stage_used + page_bytes > host->stage_bytes)
        return NULL;
    if (!reserve(&host->stage, &host->stage_bytes, page_bytes > STAGE_BYTES ? page_bytes : STAGE_BYTES))
        return NULL;
    uint8_t *place = host->stage + host->stage_used;
    host->stage_used += (page_bytes + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    return place;
}

static void host_stage_empty(void *state)
{
    struct host *host = state;
    host->stage_used = 0;
}

static void host_deliver(void *state, struct chunk_work *work)
{
    static const struct batch_ops ops = {host_decode, host_place, host_stage, host_stage_empty};
    struct host *host = state;
    batches_run(&host->batches, &ops, host, work);
}

const struct target *target_find(enum strait_checkpoint_memory memory, const char **why)
{
    static const struct target host = {.open = host_open, .close = host_close, .deliver = host_deliver};
    if (memory == STRAIT_CHECKPOINT_HOST)
        return &host;
    *why = "unknown kind of memory";
    if (memory != STRAIT_CHECKPOINT_CUDA)
        return NULL;
    const struct checkpoint_plugin *plugin = checkpoint_plugin_find(why);
    return plugin != NULL ? plugin->target : NULL;
}
