#include "ep/host.h"

#include <string.h>

void ep_host_tell(const struct ep_group_view *group, struct ep_announce announce, uint64_t epoch)
{
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        struct ep_announce *told = ep_announce_of(group, rank, group->rank);
        *told = announce;
        ep_host_add_range(group, rank, EP_FLAG_READY, epoch, told, sizeof(*told));
    }
    ep_host_signal(group, EP_FLAG_READY, epoch);
}

void ep_host_progress(const struct ep_group_view *group, uint64_t epoch)
{
    for (uint32_t rank = 0; rank < group->rank_count && group->at.parts > 0; rank++)
        __atomic_store_n(ep_flag_of(group, rank, EP_FLAG_PROGRESS, group->rank), ep_progress(epoch, group->at.parts),
                         __ATOMIC_RELEASE);
}

enum strait_status ep_host_announce(void *context, const struct ep_announce_args *args, struct CUstream_st *stream)
{
    const uint64_t epoch = ep_host_epoch(&args->group, &args->handle, true);

    (void)context;
    (void)stream;
    if (!ep_host_failed(&args->group))
        ep_host_tell(&args->group, args->announce, epoch);
    return STRAIT_OK;
}

/* ---- Dispatch: to the ranks of experts --------------------------------------------------------------------------- */

/* The slot of place 0 of the list for `rank` there. */
static uint64_t first_slot(const struct ep_send_args *args, uint32_t rank)
{
    return args->group.low_latency ? (uint64_t)args->group.rank * args->group.tokens_max : args->handle.send_base[rank];
}

static void send_lists(const struct ep_send_args *args, uint32_t rank, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;
    const uint32_t *tokens = &handle->send_token[(uint64_t)rank * group->tokens_max], topk = handle->topk;
    const uint32_t count = handle->send_count[rank];
    uint32_t *counts = ep_counts_of(group, rank, epoch, group->rank);
    int32_t *records = ep_numbers_of(group, rank, epoch, topk, (uint64_t)group->rank * group->tokens_max);

    memcpy(counts, handle->send_count, group->rank_count * sizeof(uint32_t));
    for (uint32_t j = 0; j < count; j++) {
        int32_t *numbers = &records[(uint64_t)j * (topk + 1)];
        memcpy(numbers, &handle->own_topk[(uint64_t)tokens[j] * topk], topk * sizeof(*numbers));
        numbers[topk] = (int32_t)tokens[j];
    }
    ep_host_add_range(group, rank, args->signal, epoch, counts, group->rank_count * sizeof(uint32_t));
    ep_host_add_range(group, rank, args->signal, epoch, records, (uint64_t)count * (topk + 1) * sizeof(int32_t));
}

static void send_raw_rows(const struct ep_send_args *args, uint32_t rank, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const uint32_t *tokens = &args->handle.send_token[(uint64_t)rank * group->tokens_max];
    const uint64_t first = first_slot(args, rank), count = args->handle.send_count[rank];
    uint64_t room = group->at.row_slots;
    uint8_t *rows = ep_rows_of(group, rank, epoch, args->row_bytes, 0);

    if (count == 0)
        return;
    if (!group->low_latency)
        rows =
            ep_announced(group, rank, *ep_announce_of(group, group->rank, rank), args->row_bytes, &args->peers, &room);
    if (rows == NULL) {
        ep_host_fail(group, STRAIT_ERR_CORRUPT, rank);
        return;
    }
    const uint64_t taken = first >= room ? 0 : count < room - first ? count : room - first;
    for (uint64_t j = 0; j < taken; j++)
        memcpy(rows + (first + j) * args->row_bytes, args->rows + (uint64_t)tokens[j] * args->row_bytes,
               args->row_bytes);
    ep_host_add_range(group, rank, args->signal, epoch, rows + first * args->row_bytes, taken * args->row_bytes);
    if (rank != group->rank) {
        group->state->sent_bytes += count * args->row_bytes;
        group->state->raw_bytes += count * args->row_bytes;
    }
}

static void give_own_row(const struct ep_send_args *args, int64_t place, const uint8_t *row)
{
    if (place >= 0 && place < args->own_rows)
        memcpy(args->own + place * args->row_bytes, row, args->row_bytes);
}

/* Rows for the rank itself to the outputs. */
static void give_own(const struct ep_send_args *args)
{
    const struct ep_handle_view *handle = &args->handle;
    const uint32_t me = args->group.rank, topk = handle->topk;
    const uint64_t list = (uint64_t)me * args->group.tokens_max;

    for (uint32_t j = 0; j < handle->send_count[me]; j++) {
        const uint64_t token = handle->send_token[list + j];
        const uint8_t *row = args->rows + token * args->row_bytes;
        if (handle->layout != STRAIT_EP_EXPERT_MAJOR)
            give_own_row(args, (int64_t)first_slot(args, me) + j, row);
        for (uint32_t k = 0; k < topk && handle->layout == STRAIT_EP_EXPERT_MAJOR; k++) {
            const int32_t number = handle->own_topk[token * topk + k];
            if (number >= 0 && ep_rank_of(&args->group, number) == me)
                give_own_row(args, handle->expert_row[(list + j) * topk + k], row);
        }
    }
}

static void send_rows(struct ep_host *host, const struct ep_send_args *args, uint32_t rank, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_host_rows rows = {.base = (void *)args->rows,
                                      .ids = &args->handle.send_token[(uint64_t)rank * group->tokens_max],
                                      .count = args->handle.send_count[rank],
                                      .id_end = args->tokens,
                                      .row_bytes = args->row_bytes,
                                      .type = args->type};

    uint8_t *chunk = ep_chunk_of(group, rank, epoch, group->rank, 0);
    if (group->coded && rank != group->rank)
        ep_host_add_range(group, rank, args->signal, epoch, chunk, ep_host_encode(host, group, &rows, chunk));
    else if (rank == group->rank && args->own != NULL)
        give_own(args);
    else if (rank != group->rank || !args->keep_own)
        send_raw_rows(args, rank, epoch);
}

static void send_scales(const struct ep_send_args *args, uint32_t rank, uint64_t epoch)
{
    const uint32_t *tokens = &args->handle.send_token[(uint64_t)rank * args->group.tokens_max];
    const uint64_t count = args->handle.send_count[rank], bytes = args->scale_bytes;
    uint8_t *scales = ep_scales_of(&args->group, rank, epoch, args->scale_bytes, first_slot(args, rank));

    for (uint64_t j = 0; j < count; j++)
        memcpy(scales + j * bytes, args->scales + (uint64_t)tokens[j] * bytes, bytes);
    ep_host_add_range(&args->group, rank, args->signal, epoch, scales, count * bytes);
}

static void send_weights(const struct ep_send_args *args, uint32_t rank, uint64_t epoch)
{
    const uint32_t *tokens = &args->handle.send_token[(uint64_t)rank * args->group.tokens_max];
    const uint64_t count = args->handle.send_count[rank], topk = args->handle.topk;
    float *weights = ep_weights_of(&args->group, rank, epoch, args->handle.topk, first_slot(args, rank));

    for (uint64_t j = 0; j < count; j++)
        memcpy(&weights[j * topk], &args->weights[(uint64_t)tokens[j] * topk], topk * sizeof(float));
    ep_host_add_range(&args->group, rank, args->signal, epoch, weights, count * topk * sizeof(float));
}

enum strait_status ep_host_send(void *context, const struct ep_send_args *args, struct CUstream_st *stream)
{
    const struct ep_group_view *group = &args->group;
    const uint64_t epoch = ep_host_epoch(group, &args->handle, args->begin);

    (void)stream;
    if (ep_host_failed(group))
        return STRAIT_OK;
    if (!group->low_latency && args->signal == EP_FLAG_DATA && !ep_host_wait(group, EP_FLAG_READY, epoch))
        return STRAIT_OK;
    if (args->keep_weights)
        memcpy(args->handle.weights, args->weights, (size_t)args->tokens * args->handle.topk * sizeof(float));
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        if (!ep_host_active(group, rank))
            continue;
        if (args->lists)
            send_lists(args, rank, epoch);
        if (args->weights != NULL)
            send_weights(args, rank, epoch);
        if (args->scales != NULL)
            send_scales(args, rank, epoch);
        if (args->rows != NULL)
            send_rows(context, args, rank, epoch);
    }
    if (ep_host_failed(group))
        return STRAIT_OK;
    if (args->signal == EP_FLAG_DATA)
        ep_host_progress(group, epoch);
    ep_host_signal(group, args->signal, epoch);
    return STRAIT_OK;
}

/* ---- Dispatch: from all ranks ------------------------------------------------------------------------------------ */

/* Decodes what other ranks have sent to the rows area. */
static bool decode_rows(struct ep_host *host, const struct ep_receive_args *args, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;

    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        const struct ep_host_rows rows =
            ep_host_received(group, &args->handle, epoch, rank, args->row_bytes, args->type);
        if (rank != group->rank &&
            !ep_host_decode(host, group, &rows, ep_chunk_of(group, group->rank, epoch, rank, 0), rank))
            return false;
    }
    return true;
}

/* The row of a record that came. NULL: it is in the outputs, or there is none. */
static const uint8_t *came_row(const struct ep_receive_args *args, uint64_t epoch, uint64_t record, uint64_t slot)
{
    const struct ep_group_view *group = &args->group;
    const uint64_t list = (uint64_t)group->rank * group->tokens_max;
    const bool is_own = record >= list && record < list + group->tokens_max;

    if (is_own && args->own_given)
        return NULL;
    if (!is_own || args->own == NULL)
        return ep_rows_of(group, group->rank, epoch, args->row_bytes, slot);
    return record - list < args->handle.send_count[group->rank]
               ? args->own + (uint64_t)args->handle.send_token[record] * args->row_bytes
               : NULL;
}

/* Local numbers of a record to the output, with the flag as global ones. */
static void give_numbers(const struct ep_receive_args *args, const int32_t *numbers, uint64_t row)
{
    const uint32_t topk = args->handle.topk;
    const int32_t first = args->global_ids ? (int32_t)(args->group.rank * args->group.local_experts) : 0;

    for (uint32_t k = 0; k < topk; k++) {
        const int32_t number = numbers[k] >= 0 ? first + numbers[k] : -1;
        if (args->wide_ids)
            ((int64_t *)args->topk)[row * topk + k] = number;
        else
            ((int32_t *)args->topk)[row * topk + k] = number;
    }
}

/* Outputs of a record, FLAT and RANK_MAJOR: slots are rows. */
static void give_record(const struct ep_receive_args *args, uint64_t epoch, uint64_t record, uint64_t slot)
{
    const struct ep_group_view *group = &args->group;
    const uint32_t topk = args->handle.topk, me = group->rank;
    const int32_t *numbers = &args->handle.numbers[record * (topk + 1)];
    const uint8_t *row = came_row(args, epoch, record, slot);

    if (args->rows != NULL && row != NULL)
        memcpy(args->rows + slot * args->row_bytes, row, args->row_bytes);
    if (args->scales != NULL)
        memcpy(args->scales + slot * args->scale_bytes, ep_scales_of(group, me, epoch, args->scale_bytes, slot),
               args->scale_bytes);
    if (args->weights != NULL) {
        const float *weights = ep_weights_of(group, me, epoch, topk, slot);
        for (uint32_t k = 0; k < topk; k++)
            args->weights[slot * topk + k] = numbers[k] >= 0 ? weights[k] : 0.0f;
    }
    if (args->topk != NULL)
        give_numbers(args, numbers, slot);
}

/* Outputs of a record, EXPERT_MAJOR: a row for each of its experts here. */
static void give_copies(const struct ep_receive_args *args, uint64_t epoch, uint64_t record, uint64_t slot)
{
    const struct ep_group_view *group = &args->group;
    const uint32_t topk = args->handle.topk, me = group->rank;
    const uint8_t *from = came_row(args, epoch, record, slot);

    for (uint32_t k = 0; k < topk; k++) {
        const int64_t row = args->handle.expert_row[record * topk + k];
        if (row < 0)
            continue;
        if (from != NULL)
            memcpy(args->rows + row * args->row_bytes, from, args->row_bytes);
        if (args->scales != NULL)
            memcpy(args->scales + row * args->scale_bytes, ep_scales_of(group, me, epoch, args->scale_bytes, slot),
                   args->scale_bytes);
        if (args->weights != NULL)
            args->weights[row] = ep_weights_of(group, me, epoch, topk, slot)[k];
    }
}

static void give_counts(const struct ep_receive_args *args)
{
    const struct ep_group_view *group = &args->group;

    if (args->rank_counts != NULL)
        memcpy(args->rank_counts, args->handle.recv_count, group->rank_count * sizeof(int32_t));
    if (args->expert_counts != NULL)
        memcpy(args->expert_counts, &args->handle.totals[2], group->local_experts * sizeof(int32_t));
}

enum strait_status ep_host_receive(void *context, const struct ep_receive_args *args, struct CUstream_st *stream)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;
    const uint64_t epoch = ep_host_epoch(group, handle, false);

    (void)stream;
    if (ep_host_failed(group) || !ep_host_wait(group, EP_FLAG_DATA, epoch))
        return STRAIT_OK;
    if (group->low_latency && !ep_host_take_lists(group, handle, epoch))
        return STRAIT_OK;
    if (!group->low_latency && (uint32_t)handle->totals[1] > args->row_count) {
        ep_host_fail(group, STRAIT_ERR_NO_SPACE, group->rank);
        return STRAIT_OK;
    }
    if (group->coded && !decode_rows(context, args, epoch))
        return STRAIT_OK;
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        for (uint32_t j = 0; j < handle->recv_count[rank]; j++) {
            const uint64_t record = (uint64_t)rank * group->tokens_max + j, slot = handle->recv_base[rank] + j;
            if (handle->layout == STRAIT_EP_EXPERT_MAJOR)
                give_copies(args, epoch, record, slot);
            else
                give_record(args, epoch, record, slot);
        }
    give_counts(args);
    return STRAIT_OK;
}

/* ---- LL combine: rows back to their tokens' ranks ---------------------------------------------------------------- */

/* Whether a list of rows for a rank, of which there are `count`, has room for one more: more come about only where it
 * has named an expert twice in one token. */
static bool has_room(const struct ep_group_view *group, uint32_t rank, uint32_t count, uint32_t room)
{
    if (count < room)
        return true;
    ep_host_fail(group, STRAIT_ERR_CORRUPT, rank);
    return false;
}

/* Rows of the list of `rank` in the caller's tensor, in their order, to host->ids. Returns their number. */
static uint32_t list_back(struct ep_host *host, const struct ep_send_back_args *args, uint32_t rank)
{
    const struct ep_handle_view *handle = &args->handle;
    uint32_t count = 0;

    for (uint32_t j = 0; j < handle->recv_count[rank]; j++) {
        const uint64_t record = (uint64_t)rank * args->group.tokens_max + j;
        if (handle->layout != STRAIT_EP_EXPERT_MAJOR) {
            host->ids[count++] = (uint32_t)record;
            continue;
        }
        for (uint32_t k = 0; k < handle->topk; k++) {
            if (handle->expert_row[record * handle->topk + k] < 0)
                continue;
            if (!has_room(&args->group, rank, count, args->group.at.chunk_rows))
                return 0;
            host->ids[count++] = (uint32_t)handle->expert_row[record * handle->topk + k];
        }
    }
    return count;
}

static void send_coded_back(struct ep_host *host, const struct ep_send_back_args *args, uint32_t rank, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const uint32_t zones = args->handle.layout == STRAIT_EP_EXPERT_MAJOR ? group->local_experts : 1;
    const struct ep_host_rows rows = {.base = (void *)args->rows,
                                      .ids = host->ids,
                                      .count = list_back(host, args, rank),
                                      .id_end = zones * group->rank_count * group->tokens_max,
                                      .row_bytes = args->row_bytes,
                                      .type = args->type};

    uint8_t *chunk = ep_chunk_of(group, rank, epoch, group->rank, 0);
    ep_host_add_range(group, rank, EP_FLAG_DATA, epoch, chunk, ep_host_encode(host, group, &rows, chunk));
}

/* RANK_MAJOR: the rows of a list lie in its order. */
static uint64_t send_list_back(const struct ep_send_back_args *args, uint32_t rank, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const uint64_t bytes = args->handle.recv_count[rank] * (uint64_t)args->row_bytes;
    const uint64_t mine = (uint64_t)group->rank * group->tokens_max, theirs = (uint64_t)rank * group->tokens_max;
    uint8_t *to = ep_rows_of(group, rank, epoch, args->row_bytes, mine);

    if (bytes == 0)
        return 0;
    memcpy(to, args->rows + theirs * args->row_bytes, bytes);
    ep_host_add_range(group, rank, EP_FLAG_DATA, epoch, to, bytes);
    return bytes;
}

/* EXPERT_MAJOR: each row to the place of its token's expert. */
static uint64_t send_experts_back(const struct ep_send_back_args *args, uint32_t rank, uint64_t epoch)
{
    const struct ep_group_view *group = &args->group;
    const struct ep_handle_view *handle = &args->handle;
    const uint32_t topk = handle->topk, bytes = args->row_bytes;
    uint32_t *places = ep_is_remote(group, rank) ? ep_places_of(group, epoch, rank) : NULL;
    uint32_t count = 0;

    for (uint32_t j = 0; j < handle->recv_count[rank]; j++) {
        const uint64_t record = (uint64_t)rank * group->tokens_max + j;
        const uint64_t token = (uint64_t)handle->numbers[record * (topk + 1) + topk];
        for (uint32_t k = 0; k < topk; k++) {
            const int64_t row = handle->expert_row[record * topk + k];
            if (row < 0)
                continue;
            if (places != NULL && !has_room(group, rank, count, group->place_count))
                return 0;
            memcpy(ep_rows_of(group, rank, epoch, bytes, token * topk + k), args->rows + row * bytes, bytes);
            if (places != NULL)
                places[count] = (uint32_t)(token * topk + k);
            count++;
        }
    }
    ep_host_add_listed(group, rank, EP_FLAG_DATA, epoch, count, bytes);
    return (uint64_t)count * bytes;
}

static void send_raw_back(const struct ep_send_back_args *args, uint32_t rank, uint64_t epoch)
{
    const bool experts = args->handle.layout == STRAIT_EP_EXPERT_MAJOR;
    const uint64_t sent = experts ? send_experts_back(args, rank, epoch) : send_list_back(args, rank, epoch);

    if (rank != args->group.rank) {
        args->group.state->sent_bytes += sent;
        args->group.state->raw_bytes += sent;
    }
}

enum strait_status ep_host_send_back(void *context, const struct ep_send_back_args *args, struct CUstream_st *stream)
{
    const struct ep_group_view *group = &args->group;
    const uint64_t epoch = ep_host_epoch(group, &args->handle, true);

    (void)stream;
    if (ep_host_failed(group))
        return STRAIT_OK;
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        if (!ep_host_active(group, rank) || (args->keep_own && rank == group->rank))
            continue;
        if (group->coded && rank != group->rank)
            send_coded_back(context, args, rank, epoch);
        else
            send_raw_back(args, rank, epoch);
    }
    if (!ep_host_failed(group))
        ep_host_signal(group, EP_FLAG_DATA, epoch);
    return STRAIT_OK;
}
