/* Table of the host backend: memory of processes, and the phases of the files beside this one. */
#include "ep/host.h"

#include <stdlib.h>
#include <string.h>

/* What a coded group needs beside: see struct ep_host. */
static bool open_coder(struct ep_host *host, const struct ep_open_args *args)
{
    const struct strait_ep_config *config = args->config;
    const uint32_t ranks = config->topk_max < config->rank_count ? config->topk_max : config->rank_count;

    host->codec = strait_codec_get(NULL);
    host->metadata_bytes = args->at.chunk_bytes - (uint64_t)args->at.chunk_rows * config->row_bytes_max;
    host->scratch = aligned_alloc(64, (strait_scratch_size(host->codec) + 63) / 64 * 64);
    host->metadata = malloc(host->metadata_bytes);
    host->ids = malloc(args->at.chunk_rows * sizeof(*host->ids));
    if (config->algorithm == STRAIT_EP_HIGH_THROUGHPUT) {
        host->rows = malloc((size_t)config->tokens_max * ranks * config->row_bytes_max);
        if (host->rows == NULL)
            return false;
    }
    return host->scratch != NULL && host->metadata != NULL && host->ids != NULL;
}

static void host_close(void *context)
{
    struct ep_host *host = context;

    free(host->scratch);
    free(host->metadata);
    free(host->ids);
    free(host->rows);
    free(host);
}

static enum strait_status host_open(const struct ep_open_args *args, void **context)
{
    struct ep_host *host = calloc(1, sizeof(*host));

    if (host == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (args->coded && !open_coder(host, args)) {
        host_close(host);
        return STRAIT_ERR_NO_MEMORY;
    }
    *context = host;
    return STRAIT_OK;
}

static void *host_alloc(void *context, uint64_t bytes)
{
    (void)context;
    return calloc(1, bytes > 0 ? bytes : 1);
}

static void host_free(void *context, void *memory)
{
    (void)context;
    free(memory);
}

static void *host_alloc_pinned(void *context, uint64_t bytes, void **device)
{
    *device = host_alloc(context, bytes);
    return *device;
}

static enum strait_status host_write(void *context, void *memory, const void *host, uint64_t bytes,
                                     struct CUstream_st *stream)
{
    (void)context;
    (void)stream;
    memcpy(memory, host, bytes);
    return STRAIT_OK;
}

static enum strait_status host_read(void *context, void *host, const void *memory, uint64_t bytes,
                                    struct CUstream_st *stream)
{
    (void)context;
    (void)stream;
    memcpy(host, memory, bytes);
    return STRAIT_OK;
}

static uint64_t host_scratch_bytes(const struct ep_group_view *group, enum strait_ep_layout layout, uint32_t topk)
{
    (void)group;
    (void)layout;
    (void)topk;
    return 0;
}

const struct ep_ops ep_host_ops = {
    .version = EP_OPS_VERSION,
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .alloc_pinned = host_alloc_pinned,
    .free_pinned = host_free,
    .write = host_write,
    .read = host_read,
    .scratch_bytes = host_scratch_bytes,
    .route = ep_host_route,
    .announce = ep_host_announce,
    .send = ep_host_send,
    .plan = ep_host_plan,
    .receive = ep_host_receive,
    .stage = ep_host_stage,
    .send_back = ep_host_send_back,
    .reduce = ep_host_reduce,
    .settle = ep_host_settle,
    .quantize = ep_host_quantize,
};
