#include "ep/host.h"

#include <string.h>

/* Rows as the codec's pages: a row is a page. */
static struct strait_region region_of(const struct ep_host_rows *rows)
{
    return (struct strait_region){.base = rows->base,
                                  .page_stride = rows->row_bytes,
                                  .page_count = rows->id_end,
                                  .rows = 1,
                                  .row_bytes = rows->row_bytes};
}

struct ep_host_rows ep_host_received(const struct ep_group_view *group, const struct ep_handle_view *handle,
                                     uint64_t epoch, uint32_t rank, uint32_t row_bytes, enum strait_element type)
{
    return (struct ep_host_rows){.base = ep_rows_of(group, group->rank, epoch, row_bytes, handle->recv_base[rank]),
                                 .count = handle->recv_count[rank],
                                 .id_end = handle->recv_count[rank],
                                 .row_bytes = row_bytes,
                                 .type = type};
}

uint64_t ep_host_encode(struct ep_host *host, const struct ep_group_view *group, const struct ep_host_rows *rows,
                        uint8_t *chunk)
{
    const struct strait_region region = region_of(rows);
    const struct strait_pages pages = {&region, rows->ids, 1, rows->count};
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = rows->type,
                                                .mode = rows->type == STRAIT_ELEMENT_BYTES ? STRAIT_MODE_RAW
                                                                                           : STRAIT_MODE_BASE};
    struct strait_result result = {.status = STRAIT_OK};
    const struct strait_run run = {.size = sizeof(run),
                                   .scratch = host->scratch,
                                   .scratch_size = strait_scratch_size(host->codec),
                                   .result = &result,
                                   .caching = STRAIT_CACHING_KEEP};

    if (rows->count == 0)
        return 0;
    enum strait_status status = strait_encode(host->codec, &params, chunk, group->at.chunk_bytes, &pages, &run);
    if (status == STRAIT_OK)
        status = result.status;
    if (status != STRAIT_OK) {
        ep_host_fail(group, status, group->rank);
        return 0;
    }
    group->state->sent_bytes += result.bytes;
    group->state->raw_bytes += (uint64_t)rows->count * rows->row_bytes;
    return result.bytes;
}

/* Copies a chunk's metadata, which must not change while they are read. False: they are not those of a chunk. */
static bool copy_metadata(struct ep_host *host, const struct ep_group_view *group, const uint8_t *chunk,
                          uint64_t *bytes)
{
    struct strait_chunk_info info;

    memcpy(host->metadata, chunk, STRAIT_CHUNK_HEADER_BYTES);
    if (strait_chunk_info(host->metadata, group->at.chunk_bytes, &info) != STRAIT_OK ||
        info.metadata_bytes > host->metadata_bytes)
        return false;
    memcpy(host->metadata, chunk, info.metadata_bytes);
    *bytes = info.metadata_bytes;
    return true;
}

bool ep_host_decode(struct ep_host *host, const struct ep_group_view *group, const struct ep_host_rows *rows,
                    const uint8_t *chunk, uint32_t rank)
{
    const struct strait_region region = region_of(rows);
    struct strait_result result = {.status = STRAIT_ERR_CORRUPT};
    struct strait_decode_item item = {.dst = {&region, rows->ids, 1, rows->count},
                                      .src = chunk,
                                      .src_size = group->at.chunk_bytes,
                                      .metadata = host->metadata,
                                      .result = &result,
                                      .flags = STRAIT_DECODE_AT_MOST};
    const struct strait_run run = {.size = sizeof(run),
                                   .scratch = host->scratch,
                                   .scratch_size = strait_scratch_size(host->codec),
                                   .caching = STRAIT_CACHING_KEEP};

    if (rows->count == 0)
        return true;
    if (copy_metadata(host, group, chunk, &item.metadata_size) &&
        strait_decode_batch(host->codec, NULL, &item, 1, &run) == STRAIT_OK && result.status == STRAIT_OK)
        return true;
    ep_host_fail(group, result.status == STRAIT_ERR_INTEGRITY ? STRAIT_ERR_INTEGRITY : STRAIT_ERR_CORRUPT, rank);
    return false;
}
