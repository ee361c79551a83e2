#include "ep/host.h"

#include <string.h>

/* ---- Own tokens -------------------------------------------------------------------------------------------------- */

/* Number k of a token as the lists have it: -1 unless it is an expert that the token has not had before. */
static int32_t checked_number(const struct ep_route_args *args, const int32_t *before, uint32_t token, uint32_t k)
{
    const uint64_t at = (uint64_t)token * args->handle.topk + k;
    const int64_t number =
        args->topk_bytes == 8 ? ((const int64_t *)args->topk)[at] : ((const int32_t *)args->topk)[at];

    if (number < 0 || number >= args->group.experts)
        return -1;
    for (uint32_t i = 0; i < k; i++)
        if (before[i] == number)
            return -1;
    return (int32_t)number;
}

enum strait_status ep_host_route(void *context, const struct ep_route_args *args, struct CUstream_st *stream)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;
    const uint32_t ranks = group->rank_count, topk = handle->topk;

    (void)context;
    (void)stream;
    if (ep_host_failed(group))
        return STRAIT_OK;
    memset(handle->send_count, 0, ranks * sizeof(*handle->send_count));
    for (uint32_t token = 0; token < args->tokens; token++) {
        int32_t *numbers = &handle->own_topk[(uint64_t)token * topk];
        int32_t *index = &handle->send_index[(uint64_t)token * ranks];
        for (uint32_t rank = 0; rank < ranks; rank++)
            index[rank] = -1;
        for (uint32_t k = 0; k < topk; k++) {
            numbers[k] = checked_number(args, numbers, token, k);
            const uint32_t rank = numbers[k] >= 0 ? ep_rank_of(group, numbers[k]) : 0;
            if (numbers[k] < 0 || index[rank] >= 0)
                continue;
            index[rank] = (int32_t)handle->send_count[rank];
            handle->send_token[(uint64_t)rank * group->tokens_max + handle->send_count[rank]++] = token;
        }
    }
    return STRAIT_OK;
}

/* ---- What came --------------------------------------------------------------------------------------------------- */

/* Takes the numbers of records that came, as local ones. */
static bool take_numbers(const struct ep_group_view *group, const struct ep_handle_view *handle, uint64_t epoch)
{
    const uint32_t topk = handle->topk;
    const int32_t first = (int32_t)(group->rank * group->local_experts);

    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        for (uint32_t j = 0; j < handle->recv_count[rank]; j++) {
            const uint64_t record = (uint64_t)rank * group->tokens_max + j;
            const int32_t *came = ep_numbers_of(group, group->rank, epoch, topk, record);
            int32_t *numbers = &handle->numbers[record * (topk + 1)];
            for (uint32_t k = 0; k < topk; k++) {
                const int32_t local = came[k] >= first ? came[k] - first : -1;
                numbers[k] = local < (int32_t)group->local_experts ? local : -1;
            }
            numbers[topk] = came[topk];
            if ((uint32_t)numbers[topk] >= group->tokens_max) {
                ep_host_fail(group, STRAIT_ERR_CORRUPT, rank);
                return false;
            }
        }
    return true;
}

/* Rows of each local expert to totals[2 + e]. */
static void count_experts(const struct ep_group_view *group, const struct ep_handle_view *handle)
{
    memset(handle->totals, 0, (2 + group->local_experts) * sizeof(*handle->totals));
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        for (uint32_t j = 0; j < handle->recv_count[rank]; j++) {
            const uint64_t record = (uint64_t)rank * group->tokens_max + j;
            const int32_t *numbers = &handle->numbers[record * (handle->topk + 1)];
            for (uint32_t k = 0; k < handle->topk; k++)
                if (numbers[k] >= 0)
                    handle->totals[2 + numbers[k]]++;
        }
}

/* Gives records their rows in the experts' zones. next[e]: the zone's first row. False: an LL zone has no room, which
 * only numbers that a rank sends twice in one token can bring about. */
static bool place_rows(const struct ep_group_view *group, const struct ep_handle_view *handle, uint32_t *next)
{
    const uint32_t all = group->rank_count * group->tokens_max;

    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        for (uint32_t j = 0; j < handle->recv_count[rank]; j++) {
            const uint64_t record = (uint64_t)rank * group->tokens_max + j;
            const int32_t *numbers = &handle->numbers[record * (handle->topk + 1)];
            int32_t *rows = &handle->expert_row[record * handle->topk];
            for (uint32_t k = 0; k < handle->topk; k++) {
                rows[k] = numbers[k] >= 0 ? (int32_t)next[numbers[k]]++ : -1;
                if (group->low_latency && rows[k] >= (int32_t)(((uint32_t)numbers[k] + 1) * all)) {
                    ep_host_fail(group, STRAIT_ERR_CORRUPT, rank);
                    return false;
                }
            }
        }
    return true;
}

bool ep_host_take_lists(const struct ep_group_view *group, const struct ep_handle_view *handle, uint64_t epoch)
{
    uint32_t next[STRAIT_EP_EXPERTS_MAX];

    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        const uint32_t count =
            ep_host_active(group, rank) ? ep_counts_of(group, group->rank, epoch, rank)[group->rank] : 0;
        if (count > group->tokens_max) {
            ep_host_fail(group, STRAIT_ERR_CORRUPT, rank);
            return false;
        }
        handle->recv_count[rank] = count;
        handle->recv_base[rank] = rank * group->tokens_max;
    }
    if (!take_numbers(group, handle, epoch))
        return false;
    if (handle->layout != STRAIT_EP_EXPERT_MAJOR)
        return true;
    count_experts(group, handle);
    for (uint32_t expert = 0; expert < group->local_experts; expert++)
        next[expert] = expert * group->rank_count * group->tokens_max;
    return place_rows(group, handle, next);
}

/* ---- HT: what all ranks send to all ------------------------------------------------------------------------------ */

/* counts[s][d], cut to what receivers take. False: the group has failed. */
static bool take_matrix(const struct ep_group_view *group, const struct ep_handle_view *handle, uint64_t epoch,
                        uint32_t counts[STRAIT_EP_RANKS_MAX][STRAIT_EP_RANKS_MAX])
{
    const uint32_t ranks = group->rank_count;

    for (uint32_t from = 0; from < ranks; from++) {
        memcpy(counts[from], from == group->rank ? handle->send_count : ep_counts_of(group, group->rank, epoch, from),
               ranks * sizeof(uint32_t));
        for (uint32_t to = 0; to < ranks; to++)
            if (counts[from][to] > group->tokens_max) {
                ep_host_fail(group, STRAIT_ERR_CORRUPT, from);
                return false;
            }
    }
    for (uint32_t to = 0; to < ranks; to++) {
        uint32_t left = group->receive_max;
        for (uint32_t from = 0; from < ranks; from++) {
            if (counts[from][to] > left && !group->drop) {
                ep_host_fail(group, STRAIT_ERR_NO_SPACE, to);
                return false;
            }
            if (counts[from][to] > left)
                counts[from][to] = left;
            left -= counts[from][to];
        }
    }
    return true;
}

/* Own lists as far as they are taken, and where the rows of this rank begin elsewhere, and those of others here. */
static void take_counts(const struct ep_group_view *group, const struct ep_handle_view *handle,
                        uint32_t counts[STRAIT_EP_RANKS_MAX][STRAIT_EP_RANKS_MAX])
{
    const uint32_t ranks = group->rank_count, me = group->rank;
    uint32_t base = 0;

    for (uint32_t rank = 0; rank < ranks; rank++) {
        handle->send_base[rank] = 0;
        for (uint32_t before = 0; before < me; before++)
            handle->send_base[rank] += counts[before][rank];
        for (uint32_t j = counts[me][rank]; j < handle->send_count[rank]; j++) {
            const uint32_t token = handle->send_token[(uint64_t)rank * group->tokens_max + j];
            handle->send_index[(uint64_t)token * ranks + rank] = -1;
        }
        handle->send_count[rank] = counts[me][rank];
        handle->recv_base[rank] = base;
        handle->recv_count[rank] = counts[rank][me];
        base += counts[rank][me];
    }
}

/* Zones of the experts, one after another. */
static void plan_zones(const struct ep_plan_args *args)
{
    const struct ep_handle_view *handle = &args->handle;
    uint32_t next[STRAIT_EP_EXPERTS_MAX], end = 0;

    for (uint32_t expert = 0; expert < args->group.local_experts; expert++) {
        next[expert] = end;
        if (args->expert_offsets != NULL)
            args->expert_offsets[expert] = (int32_t)end;
        end += (uint32_t)handle->totals[2 + expert];
        end = (end + handle->expert_alignment - 1) / handle->expert_alignment * handle->expert_alignment;
    }
    handle->totals[1] = (int32_t)end;
    (void)place_rows(&args->group, handle, next); /* false for LL only */
}

enum strait_status ep_host_plan(void *context, const struct ep_plan_args *args, struct CUstream_st *stream)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;
    const uint64_t epoch = ep_host_epoch(group, handle, false);
    const uint32_t last = group->rank_count - 1;
    uint32_t counts[STRAIT_EP_RANKS_MAX][STRAIT_EP_RANKS_MAX];

    (void)context;
    (void)stream;
    if (ep_host_failed(group) || !ep_host_wait(group, EP_FLAG_ROUTE, epoch) ||
        !take_matrix(group, handle, epoch, counts))
        return STRAIT_OK;
    take_counts(group, handle, counts);
    if (!take_numbers(group, handle, epoch))
        return STRAIT_OK;
    count_experts(group, handle);
    handle->totals[0] = (int32_t)(handle->recv_base[last] + handle->recv_count[last]);
    handle->totals[1] = handle->totals[0];
    if (handle->layout == STRAIT_EP_EXPERT_MAJOR)
        plan_zones(args);
    if (args->expert_counts != NULL)
        memcpy(args->expert_counts, &handle->totals[2], group->local_experts * sizeof(int32_t));
    if (args->rank_counts != NULL)
        memcpy(args->rank_counts, handle->recv_count, group->rank_count * sizeof(int32_t));
    if (args->total != NULL)
        *args->total = handle->totals[1];
    return STRAIT_OK;
}
