#include "ep/arena.h"

/* Places an area of count * stride bytes at the end and returns its offset. */
static uint64_t place(struct ep_arena *arena, uint64_t count, uint64_t stride)
{
    const uint64_t at = arena->bytes;

    arena->bytes += count * stride;
    return at;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static uint8_t any_rows[16]; /* stands for rows where only sizes count */

/* Bytes that a chunk of so many rows can have; 0: 4 GiB or more. */
static uint64_t chunk_bound(uint32_t rows, uint32_t row_bytes)
{
    const struct strait_region region = {
        .base = any_rows, .page_stride = row_bytes, .page_count = rows, .rows = 1, .row_bytes = row_bytes};
    const struct strait_pages pages = {&region, NULL, 1, rows};

    return strait_encode_bound(&pages);
}

enum strait_status ep_arena_plan(const struct strait_ep_config *config, enum ep_rows rows, uint32_t parts,
                                 struct ep_arena *arena)
{
    const bool low_latency = config->algorithm == STRAIT_EP_LOW_LATENCY;
    const uint32_t ranks = config->rank_count, local = config->experts / ranks;
    const uint32_t all = ranks * config->tokens_max, topk = config->topk_max;

    *arena = (struct ep_arena){.buffers = low_latency ? EP_BUFFERS_LL : EP_BUFFERS_HT,
                               .row_buffers = low_latency ? EP_BUFFERS_LL : 1,
                               .slots = all,
                               .parts = parts,
                               .part_tokens = parts > 0 ? (config->tokens_max + parts - 1) / parts : 0,
                               .heap_bytes = aligned(config->heap_bytes)};
    if (!low_latency && config->receive_max != 0 && config->receive_max < all)
        arena->slots = config->receive_max;
    arena->row_slots = arena->slots;
    if (low_latency && arena->row_slots < config->tokens_max * topk)
        arena->row_slots = config->tokens_max * topk;
    if (rows != EP_ROWS_RAW) {
        const uint32_t copies = !low_latency ? 1 : topk < local ? topk : local;
        arena->chunk_rows = (parts > 0 ? arena->part_tokens : config->tokens_max) * copies;
        arena->chunk_bytes = aligned(chunk_bound(arena->chunk_rows, config->row_bytes_max));
        if (arena->chunk_bytes == 0)
            return STRAIT_ERR_INVALID;
    }

    arena->counts_stride = aligned((uint64_t)ranks * ranks * sizeof(uint32_t));
    arena->numbers_stride = aligned((uint64_t)all * (topk + 1) * sizeof(int32_t));
    arena->weights_stride = aligned((uint64_t)arena->slots * topk * sizeof(float));
    arena->scales_stride = aligned((uint64_t)arena->slots * config->scale_bytes_max);
    arena->rows_stride = aligned((uint64_t)arena->row_slots * config->row_bytes_max);

    arena->flags = place(arena, 1, aligned((uint64_t)EP_FLAG_KINDS * ranks * sizeof(uint64_t)));
    arena->wake = place(arena, 1, aligned(sizeof(struct ep_wake)));
    arena->announce = place(arena, 1, aligned(ranks * sizeof(struct ep_announce)));
    arena->counts = place(arena, arena->buffers, arena->counts_stride);
    arena->numbers = place(arena, arena->buffers, arena->numbers_stride);
    arena->weights = place(arena, arena->row_buffers, arena->weights_stride);
    arena->scales = place(arena, arena->row_buffers, arena->scales_stride);
    /* Decoded rows, and those of the rank itself, stay in a GPU's own memory. */
    const bool on_gpu = rows == EP_ROWS_CODED && config->memory == STRAIT_EP_CUDA;
    arena->rows = place(arena, on_gpu ? 0 : arena->row_buffers, arena->rows_stride);
    arena->chunks = place(arena, (uint64_t)arena->row_buffers * ranks * ep_arena_chunks(arena), arena->chunk_bytes);
    arena->heap = place(arena, 1, arena->heap_bytes);
    arena->bytes = (arena->bytes + 4095) / 4096 * 4096;
    return STRAIT_OK;
}
