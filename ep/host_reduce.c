#include "ep/host.h"

#include <string.h>

/* ---- HT: what peers will read ------------------------------------------------------------------------------------ */

/* Makes the row of a record at its slot: FLAT the caller's, EXPERT_MAJOR the sum over its experts here. */
static void stage_row(const struct ep_stage_args *args, uint64_t epoch, uint64_t record, uint64_t slot)
{
    const struct ep_group_view *group = &args->group;
    uint8_t *dst = ep_rows_of(group, group->rank, epoch, args->row_bytes, slot);
    const uint32_t topk = args->handle.topk;
    const uint8_t *terms[STRAIT_EP_TOPK_MAX];
    uint32_t count = 0;

    if (args->handle.layout != STRAIT_EP_EXPERT_MAJOR) {
        memcpy(dst, args->rows + slot * args->row_bytes, args->row_bytes);
        return;
    }
    for (uint32_t k = 0; k < topk; k++) {
        const int64_t row = args->handle.expert_row[record * topk + k];
        if (row >= 0)
            terms[count++] = args->rows + row * args->row_bytes;
    }
    ep_host_sum(args->type, dst, terms, NULL, count, args->row_bytes);
}

static void stage_weights(const struct ep_stage_args *args, uint64_t epoch, uint64_t record, uint64_t slot)
{
    const uint32_t topk = args->handle.topk;
    float *dst = ep_weights_of(&args->group, args->group.rank, epoch, topk, slot);

    for (uint32_t k = 0; k < topk; k++) {
        if (args->handle.layout != STRAIT_EP_EXPERT_MAJOR) {
            dst[k] = args->weights[slot * topk + k];
            continue;
        }
        const int64_t row = args->handle.expert_row[record * topk + k];
        dst[k] = row >= 0 ? args->weights[row] : 0.0f;
    }
}

/* The weights that a rank of another host reads here. */
static void add_weights(const struct ep_stage_args *args, uint32_t rank, uint64_t epoch)
{
    const uint64_t count = args->handle.recv_count[rank];
    const float *weights =
        ep_weights_of(&args->group, args->group.rank, epoch, args->handle.topk, args->handle.recv_base[rank]);

    if (args->weights != NULL)
        ep_host_add_range(&args->group, rank, EP_FLAG_READY, epoch, weights, count * args->handle.topk * sizeof(float));
}

/* The rows, where they were made or the caller has them in the heap. */
static void add_rows(const struct ep_stage_args *args, uint32_t rank, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const uint64_t first = args->handle.recv_base[rank], count = args->handle.recv_count[rank];
    uint64_t room;

    if (!ep_is_remote(group, rank))
        return;
    const uint8_t *rows = ep_announced(group, group->rank, args->announce, args->row_bytes, NULL, &room);
    if (rows != NULL && first + count <= room)
        ep_host_add_range(group, rank, EP_FLAG_READY, epoch, rows + first * args->row_bytes, count * args->row_bytes);
}

/* Encodes the staged rows for another rank. */
static void stage_chunk(struct ep_host *host, const struct ep_stage_args *args, uint32_t rank, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_host_rows rows = ep_host_received(group, &args->handle, epoch, rank, args->row_bytes, args->type);
    uint8_t *chunk = ep_chunk_of(group, group->rank, epoch, rank, 0);

    ep_host_add_range(group, rank, EP_FLAG_READY, epoch, chunk, ep_host_encode(host, group, &rows, chunk));
}

enum strait_status ep_host_stage(void *context, const struct ep_stage_args *args, struct CUstream_st *stream)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;
    const uint64_t epoch = ep_host_epoch(group, handle, true);

    (void)stream;
    if (ep_host_failed(group))
        return STRAIT_OK;
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        for (uint32_t j = 0; j < handle->recv_count[rank]; j++) {
            const uint64_t record = (uint64_t)rank * group->tokens_max + j, slot = handle->recv_base[rank] + j;
            if (args->rows != NULL && (rank != group->rank || !args->keep_own))
                stage_row(args, epoch, record, slot);
            if (args->weights != NULL)
                stage_weights(args, epoch, record, slot);
        }
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        if (rank == group->rank)
            continue;
        add_weights(args, rank, epoch);
        if (group->coded)
            stage_chunk(context, args, rank, epoch);
        else
            add_rows(args, rank, epoch);
    }
    if (ep_host_failed(group))
        return STRAIT_OK;
    ep_host_progress(group, epoch);
    ep_host_tell(group, args->announce, epoch);
    return STRAIT_OK;
}

/* ---- Sums of own tokens ------------------------------------------------------------------------------------------ */

/* Where the rows of each rank for this one begin, and how many there are. */
struct sources {
    const uint8_t *rows[STRAIT_EP_RANKS_MAX];
};

/* LL, coded: decodes the rows of other ranks to where raw ones would be. */
static bool decode_back(struct ep_host *host, const struct ep_reduce_args *args, uint64_t epoch, uint32_t rank)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;
    const uint32_t topk = handle->topk;
    uint32_t count = 0;

    for (uint32_t j = 0; j < handle->send_count[rank]; j++) {
        const uint32_t token = handle->send_token[(uint64_t)rank * group->tokens_max + j];
        if (handle->layout != STRAIT_EP_EXPERT_MAJOR) {
            host->ids[count++] = rank * group->tokens_max + j;
            continue;
        }
        for (uint32_t k = 0; k < topk; k++) {
            const int32_t expert = handle->own_topk[(uint64_t)token * topk + k];
            if (expert >= 0 && ep_rank_of(group, expert) == rank)
                host->ids[count++] = token * topk + k;
        }
    }
    const struct ep_host_rows rows = {.base = ep_rows_of(group, group->rank, epoch, args->row_bytes, 0),
                                      .ids = host->ids,
                                      .count = count,
                                      .id_end = group->at.row_slots,
                                      .row_bytes = args->row_bytes,
                                      .type = args->type};
    return ep_host_decode(host, group, &rows, ep_chunk_of(group, group->rank, epoch, rank, 0), rank);
}

/* Finds the rows of all ranks. LL: they are in the own arena. HT: in theirs, or coded there, and decoded to `at` on. */
static bool find_sources(struct ep_host *host, const struct ep_reduce_args *args, uint64_t epoch,
                         struct sources *sources)
{
    const struct ep_group_view *group = &args->group;
    uint8_t *at = host->rows;

    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        const uint32_t count = args->handle.send_count[rank];
        const bool chunk = group->coded && rank != group->rank;
        uint64_t room = count;
        sources->rows[rank] = NULL;
        if (count == 0 || !ep_host_active(group, rank))
            continue;
        if (rank == group->rank && args->own != NULL) {
            const uint64_t base =
                group->low_latency ? (uint64_t)rank * group->tokens_max : args->handle.send_base[rank];
            sources->rows[rank] = args->own + base * args->row_bytes;
            continue;
        }
        if (group->low_latency) {
            if (chunk && !decode_back(host, args, epoch, rank))
                return false;
            sources->rows[rank] =
                ep_rows_of(group, group->rank, epoch, args->row_bytes, (uint64_t)rank * group->tokens_max);
            continue;
        }
        if (chunk) {
            const struct ep_host_rows rows = {
                .base = at, .count = count, .id_end = count, .row_bytes = args->row_bytes, .type = args->type};
            if (!ep_host_decode(host, group, &rows, ep_chunk_of(group, rank, epoch, group->rank, 0), rank))
                return false;
            sources->rows[rank] = at;
            at += (uint64_t)count * args->row_bytes;
            continue;
        }
        const struct ep_announce said = *ep_announce_of(group, group->rank, rank);
        const uint8_t *rows = ep_announced(group, rank, said, args->row_bytes, &args->peers, &room);
        if (rows == NULL || (uint64_t)args->handle.send_base[rank] + count > room) {
            ep_host_fail(group, STRAIT_ERR_CORRUPT, rank);
            return false;
        }
        sources->rows[rank] = rows + (uint64_t)args->handle.send_base[rank] * args->row_bytes;
    }
    return true;
}

/* Sums the rows of the ranks of a token, one of each. */
static void reduce_ranks(const struct ep_reduce_args *args, const struct sources *sources, uint32_t token)
{
    const int32_t *index = &args->handle.send_index[(uint64_t)token * args->group.rank_count];
    const uint8_t *terms[STRAIT_EP_RANKS_MAX];
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < args->group.rank_count; rank++)
        if (index[rank] >= 0 && sources->rows[rank] != NULL)
            terms[count++] = sources->rows[rank] + (uint64_t)index[rank] * args->row_bytes;
    ep_host_sum(args->type, args->rows + (uint64_t)token * args->row_bytes, terms, NULL, count, args->row_bytes);
}

/* LL EXPERT_MAJOR: the row of a token's expert k on a rank. NULL: there is none. */
static const uint8_t *expert_term(const struct ep_reduce_args *args, uint32_t token, uint32_t k, uint32_t rank,
                                  uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;
    const uint32_t topk = handle->topk;

    if (rank != group->rank || args->own == NULL)
        return ep_rows_of(group, group->rank, epoch, args->row_bytes, (uint64_t)token * topk + k);
    const int32_t j = handle->send_index[(uint64_t)token * group->rank_count + rank];
    const int64_t row = handle->expert_row[((uint64_t)rank * group->tokens_max + (uint32_t)j) * topk + k];
    return row >= 0 ? args->own + row * args->row_bytes : NULL;
}

/* Sums the rows of a token's experts, rank by rank. */
static void reduce_experts(const struct ep_reduce_args *args, const struct sources *sources, uint32_t token,
                           uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const uint32_t topk = args->handle.topk;
    const int32_t *numbers = &args->handle.own_topk[(uint64_t)token * topk];
    const uint8_t *terms[STRAIT_EP_TOPK_MAX];
    float weights[STRAIT_EP_TOPK_MAX];
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        for (uint32_t k = 0; k < topk && sources->rows[rank] != NULL; k++) {
            if (numbers[k] < 0 || ep_rank_of(group, numbers[k]) != rank)
                continue;
            weights[count] = args->weights != NULL ? args->weights[(uint64_t)token * topk + k] : 1.0f;
            terms[count] = expert_term(args, token, k, rank, epoch);
            count += terms[count] != NULL;
        }
    ep_host_sum(args->type, args->rows + (uint64_t)token * args->row_bytes, terms, weights, count, args->row_bytes);
}

/* Fetches the gradients of a token's weights, each from the rank of its expert. */
static void fetch_weights(const struct ep_reduce_args *args, uint32_t token, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;

    for (uint32_t k = 0; k < handle->topk; k++) {
        const uint64_t at = (uint64_t)token * handle->topk + k;
        const uint32_t rank = handle->own_topk[at] >= 0 ? ep_rank_of(group, handle->own_topk[at]) : 0;
        const int32_t j =
            handle->own_topk[at] >= 0 ? handle->send_index[(uint64_t)token * group->rank_count + rank] : -1;
        args->weights_out[at] =
            j < 0 ? 0.0f : ep_weights_of(group, rank, epoch, handle->topk, handle->send_base[rank] + (uint64_t)j)[k];
    }
}

enum strait_status ep_host_reduce(void *context, const struct ep_reduce_args *args, struct CUstream_st *stream)
{
    const struct ep_group_view *group = &args->group;
    const uint64_t epoch = ep_host_epoch(group, &args->handle, false);
    struct sources sources;

    (void)stream;
    if (ep_host_failed(group) || !ep_host_wait(group, group->low_latency ? EP_FLAG_DATA : EP_FLAG_READY, epoch) ||
        !find_sources(context, args, epoch, &sources))
        return STRAIT_OK;
    for (uint32_t token = 0; token < args->tokens; token++) {
        if (group->low_latency && args->handle.layout == STRAIT_EP_EXPERT_MAJOR)
            reduce_experts(args, &sources, token, epoch);
        else
            reduce_ranks(args, &sources, token);
        if (args->weights_out != NULL)
            fetch_weights(args, token, epoch);
    }
    if (!group->low_latency)
        ep_host_signal(group, EP_FLAG_DONE, epoch);
    return STRAIT_OK;
}

enum strait_status ep_host_settle(void *context, const struct ep_settle_args *args, struct CUstream_st *stream)
{
    (void)context;
    (void)stream;
    if (!ep_host_failed(&args->group))
        (void)ep_host_wait(&args->group, EP_FLAG_DONE, ep_host_epoch(&args->group, &args->handle, false));
    return STRAIT_OK;
}
