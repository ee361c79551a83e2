/* Handles: the calls of a step, as phases of the group's backend. Which phases, and in which order: kernels.h.
 *
 * Buffers of LL. Ranks send without asking, so the buffer that call c uses, c % 4, must be free at every peer by then:
 * the peer must have completed call c - 4. A rank that begins c has completed c - 1 or c - 2, since of the calls before
 * c only the last may be open (begin_call). Let x be the later one that it has completed. So the peer has sent in x,
 * hence begun x, and before that, as all ranks make the same calls in the same order, completed all that was not open
 * when x began: all but x - 1. As x - 1 >= c - 3, c - 4 is complete there. Three buffers would not do: c - 3 may be
 * open. A rank that was left out is not waited for, and nothing is sent to it.
 *
 * Buffers of HT. A call is complete when something of it has come from each rank. A rank that begins c has completed
 * c - 1, so every peer has begun c - 1 and completed c - 2: two buffers for counts and numbers. Rows, scales, weights
 * and announcements have one buffer, for which READY of call c stands: a peer that says it has completed c - 1, which
 * for a combine includes that all others have read there what they need (DONE). */
#include <stdlib.h>
#include <string.h>

#include "ep/group.h"

enum pending { PENDING_NONE, PENDING_RECEIVE, PENDING_REDUCE };

struct strait_ep_handle {
    struct strait_ep_group *group;
    struct ep_handle_view view;
    void *memory; /* of the view */
    uint32_t tokens;
    bool routed, dispatched;
    bool weighted; /* LL: the last dispatch had weights */
    enum pending pending;
    struct ep_receive_args receive;
    struct ep_reduce_args reduce;
};

/* ---- Making a handle --------------------------------------------------------------------------------------------- */

/* A piece of the handle's memory: counts its bytes, and is its address once there is memory. */
static void *piece(uint8_t *memory, uint64_t *bytes, uint64_t size)
{
    void *at = memory != NULL ? memory + *bytes : NULL;

    *bytes += (size + 255) / 256 * 256;
    return at;
}

/* Places the view's arrays in memory, NULL: nowhere yet. Returns how many bytes they take. */
static uint64_t place_view(const struct strait_ep_group *group, struct ep_handle_view *view, uint8_t *memory)
{
    const uint64_t ranks = group->view.rank_count, tokens = group->view.tokens_max, topk = view->topk;
    uint64_t bytes = 0;

    view->state = piece(memory, &bytes, sizeof(*view->state));
    view->own_topk = piece(memory, &bytes, tokens * topk * sizeof(*view->own_topk));
    view->send_index = piece(memory, &bytes, tokens * ranks * sizeof(*view->send_index));
    view->send_token = piece(memory, &bytes, ranks * tokens * sizeof(*view->send_token));
    view->send_count = piece(memory, &bytes, ranks * sizeof(*view->send_count));
    view->send_base = piece(memory, &bytes, ranks * sizeof(*view->send_base));
    view->recv_count = piece(memory, &bytes, ranks * sizeof(*view->recv_count));
    view->recv_base = piece(memory, &bytes, ranks * sizeof(*view->recv_base));
    view->numbers = piece(memory, &bytes, ranks * tokens * (topk + 1) * sizeof(*view->numbers));
    view->expert_row = piece(memory, &bytes, ranks * tokens * topk * sizeof(*view->expert_row));
    view->totals = piece(memory, &bytes, (2 + group->view.local_experts) * sizeof(*view->totals));
    view->weights = piece(memory, &bytes, tokens * topk * sizeof(*view->weights));
    view->scratch = piece(memory, &bytes, group->ops->scratch_bytes(&group->view, view->layout, view->topk));
    return bytes;
}

static bool handle_config_good(const struct strait_ep_group *group, const struct strait_ep_handle_config *config)
{
    const uint64_t rows = (uint64_t)group->view.rank_count * group->view.tokens_max * config->topk;

    if (config->size < sizeof(*config) || config->topk == 0 || config->topk > group->config.topk_max)
        return false;
    if (group->view.low_latency)
        return (config->layout == STRAIT_EP_EXPERT_MAJOR || config->layout == STRAIT_EP_RANK_MAJOR) &&
               config->expert_alignment <= 1;
    if (config->layout == STRAIT_EP_FLAT)
        return config->expert_alignment <= 1;
    return config->layout == STRAIT_EP_EXPERT_MAJOR &&
           rows + (uint64_t)group->view.local_experts * config->expert_alignment <= INT32_MAX;
}

enum strait_status strait_ep_handle_create(struct strait_ep_group *group, const struct strait_ep_handle_config *config,
                                           struct strait_ep_handle **handle)
{
    if (group == NULL || config == NULL || handle == NULL || !handle_config_good(group, config))
        return STRAIT_ERR_INVALID;
    struct strait_ep_handle *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return STRAIT_ERR_NO_MEMORY;
    made->group = group;
    made->view.layout = config->layout;
    made->view.topk = config->topk;
    made->view.expert_alignment = config->expert_alignment > 0 ? config->expert_alignment : 1;
    made->memory = group->ops->alloc(group->context, place_view(group, &made->view, NULL));
    if (made->memory == NULL) {
        free(made);
        return STRAIT_ERR_NO_MEMORY;
    }
    place_view(group, &made->view, made->memory);
    *handle = made;
    return STRAIT_OK;
}

/* ---- Calls that are open ----------------------------------------------------------------------------------------- */

/* Begins a call of the group. False: not while so many are open, see above. */
static bool begin_call(struct strait_ep_handle *handle)
{
    struct strait_ep_group *group = handle->group;

    if (handle->pending != PENDING_NONE || group->open_count == 2 ||
        (group->open_count == 1 && group->open[0].call != group->calls))
        return false;
    group->calls++;
    return true;
}

static void open_call(struct strait_ep_handle *handle, enum pending pending)
{
    struct strait_ep_group *group = handle->group;

    handle->pending = pending;
    group->open[group->open_count++] = (struct ep_open_call){handle, group->calls};
}

static void close_call(struct strait_ep_handle *handle)
{
    struct strait_ep_group *group = handle->group;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < group->open_count; i++)
        if (group->open[i].handle != handle)
            group->open[kept++] = group->open[i];
    group->open_count = kept;
    handle->pending = PENDING_NONE;
}

void strait_ep_handle_destroy(struct strait_ep_handle *handle)
{
    if (handle == NULL)
        return;
    close_call(handle);
    handle->group->ops->free(handle->group->context, handle->memory);
    free(handle);
}

/* What a call returns: on GPUs whether its work was launched, in host memory what came of it. */
static enum strait_status outcome(const struct strait_ep_group *group, enum strait_status status)
{
    return status == STRAIT_OK && group->config.memory == STRAIT_EP_HOST ? ep_group_usable(group) : status;
}

/* ---- Update ------------------------------------------------------------------------------------------------------ */

static bool routing_good(const struct strait_ep_handle *handle, const struct strait_ep_routing *routing)
{
    const struct ep_group_view *group = &handle->group->view;
    const bool wants = routing->expert_counts != NULL || routing->expert_offsets != NULL ||
                       routing->rank_counts != NULL || routing->total != NULL;

    return routing->size >= sizeof(*routing) && routing->tokens <= group->tokens_max &&
           (routing->topk != NULL || routing->tokens == 0) && (routing->topk_bytes == 4 || routing->topk_bytes == 8) &&
           (uintptr_t)routing->topk % routing->topk_bytes == 0 && !(group->low_latency && wants) &&
           (routing->expert_offsets == NULL || handle->view.layout == STRAIT_EP_EXPERT_MAJOR);
}

/* HT: lists to all ranks, and what theirs mean. */
static enum strait_status exchange_routing(struct strait_ep_handle *handle, const struct strait_ep_routing *routing,
                                           struct CUstream_st *stream)
{
    struct strait_ep_group *group = handle->group;
    const struct ep_send_args send = {.group = group->view,
                                      .handle = handle->view,
                                      .tokens = routing->tokens,
                                      .signal = EP_FLAG_ROUTE,
                                      .begin = true,
                                      .lists = true};
    const struct ep_plan_args plan = {.group = group->view,
                                      .handle = handle->view,
                                      .expert_counts = routing->expert_counts,
                                      .expert_offsets = routing->expert_offsets,
                                      .rank_counts = routing->rank_counts,
                                      .total = routing->total};

    const enum strait_status status = group->ops->send(group->context, &send, stream);
    return status == STRAIT_OK ? group->ops->plan(group->context, &plan, stream) : status;
}

enum strait_status strait_ep_update(struct strait_ep_handle *handle, const struct strait_ep_routing *routing,
                                    struct CUstream_st *stream)
{
    if (handle == NULL || routing == NULL || handle->pending != PENDING_NONE || !routing_good(handle, routing))
        return STRAIT_ERR_INVALID;
    struct strait_ep_group *group = handle->group;
    const struct ep_route_args route = {.group = group->view,
                                        .handle = handle->view,
                                        .topk = routing->topk,
                                        .topk_bytes = routing->topk_bytes,
                                        .tokens = routing->tokens};
    enum strait_status status = ep_group_usable(group);
    if (status != STRAIT_OK)
        return status;
    if (!group->view.low_latency && !begin_call(handle))
        return STRAIT_ERR_INVALID;
    handle->tokens = routing->tokens;
    handle->routed = true;
    handle->dispatched = false;
    status = group->ops->route(group->context, &route, stream);
    if (status == STRAIT_OK && !group->view.low_latency)
        status = exchange_routing(handle, routing, stream);
    return outcome(group, status);
}

/* ---- Dispatch ---------------------------------------------------------------------------------------------------- */

static bool rows_good(const struct strait_ep_group *group, const struct strait_ep_tensor *tensor)
{
    return (uintptr_t)tensor->data % 16 == 0 && tensor->row_bytes > 0 && tensor->row_bytes % 16 == 0 &&
           tensor->row_bytes <= group->config.row_bytes_max && (unsigned)tensor->type <= STRAIT_ELEMENT_FP8_E5M2;
}

static bool same_rows(const struct strait_ep_tensor *in, const struct strait_ep_tensor *out)
{
    return in->row_bytes == out->row_bytes && in->type == out->type;
}

static bool scales_good(const struct strait_ep_group *group, const struct strait_ep_tensor *scales)
{
    return scales->data == NULL || ((uintptr_t)scales->data % 4 == 0 && scales->row_bytes > 0 &&
                                    scales->row_bytes % 4 == 0 && scales->row_bytes <= group->config.scale_bytes_max);
}

/* Tensors of peers, NULL: none. Those of ranks of other hosts are not looked at. */
static bool peers_good(const struct strait_ep_handle *handle, void *const *peers)
{
    const struct ep_group_view *group = &handle->group->view;

    if (peers == NULL)
        return true;
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        if (!ep_is_remote(group, rank) && (peers[rank] == NULL || (uintptr_t)peers[rank] % 16 != 0))
            return false;
    return handle->view.layout == STRAIT_EP_FLAT;
}

/* What was measured to gain by coding through host memory, and with how many multiprocessors at least. */
static const struct gain {
    enum strait_element type;
    uint32_t sm_budget;
} gains[] = {{STRAIT_ELEMENT_BF16, 1}, {STRAIT_ELEMENT_FP8_E4M3, 32}};

static bool gains_by_coding(const struct ep_group_view *group, enum strait_element type)
{
    bool found = false;

    for (size_t i = 0; i < sizeof(gains) / sizeof(gains[0]); i++)
        found |= gains[i].type == type && gains[i].sm_budget <= group->sm_budget;
    return found;
}

/* The group as phases of a call see it. Where calls choose, they code rows of FLAT that gain by it, unless tensors of
 * peers are reached. Ranks choose alike: tensors of a call are of one type, layouts and budgets are equal. */
static struct ep_group_view view_of_call(const struct strait_ep_handle *handle, const struct strait_ep_tensor *tensor,
                                         void *const *peers)
{
    struct ep_group_view view = handle->group->view;

    if (handle->group->mixed)
        view.coded = handle->view.layout == STRAIT_EP_FLAT && peers == NULL && gains_by_coding(&view, tensor->type);
    return view;
}

/* Where a tensor of FLAT is announced to lie, if rows go straight there. */
static struct ep_announce place_of(const struct strait_ep_handle *handle, const struct ep_group_view *view,
                                   const struct strait_ep_tensor *tensor, void *const *peers, uint32_t rows)
{
    if (handle->view.layout != STRAIT_EP_FLAT || view->coded)
        return (struct ep_announce){0, 0};
    if (peers != NULL && view->remote == 0)
        return (struct ep_announce){EP_IN_PEERS, rows};
    return ep_group_place(handle->group, tensor->data, tensor->row_bytes);
}

static void copy_peers(const struct strait_ep_handle *handle, void *const *peers, struct ep_peers *to)
{
    if (peers != NULL)
        memcpy(to->tensors, peers, handle->group->config.rank_count * sizeof(peers[0]));
}

static bool dispatch_good(const struct strait_ep_handle *handle, const struct strait_ep_dispatch_in *in,
                          const struct strait_ep_dispatch_out *out, uint32_t flags)
{
    const struct strait_ep_group *group = handle->group;
    const bool low_latency = group->view.low_latency, experts = handle->view.layout == STRAIT_EP_EXPERT_MAJOR;
    const bool empty = handle->tokens == 0; /* tensors of no tokens may be NULL */

    if (in->size < sizeof(*in) || out->size < sizeof(*out) || !handle->routed ||
        (flags & ~(uint32_t)(STRAIT_EP_SEND_ONLY | STRAIT_EP_GLOBAL_IDS | STRAIT_EP_WIDE_IDS)) != 0 ||
        (!low_latency && (flags & STRAIT_EP_SEND_ONLY) != 0))
        return false;
    if (!rows_good(group, &in->tokens) || !rows_good(group, &out->tokens) || !same_rows(&in->tokens, &out->tokens) ||
        (in->tokens.data == NULL && !empty) || (out->tokens.data == NULL && (low_latency || out->rows > 0)))
        return false;
    if (!scales_good(group, &in->scales) || !scales_good(group, &out->scales) ||
        (out->scales.data != NULL && in->scales.data != NULL && in->scales.row_bytes != out->scales.row_bytes))
        return false;
    if (!empty &&
        ((out->weights != NULL && in->weights == NULL) || (out->scales.data != NULL && in->scales.data == NULL)))
        return false;
    const uint32_t id_bytes = (flags & STRAIT_EP_WIDE_IDS) != 0 ? 8 : 4;
    if (!peers_good(handle, out->peers))
        return false;
    return (out->topk == NULL || (!experts && (uintptr_t)out->topk % id_bytes == 0)) &&
           (out->expert_counts == NULL || (low_latency && experts)) && (out->rank_counts == NULL || low_latency);
}

static struct ep_send_args send_of(const struct strait_ep_handle *handle, const struct strait_ep_dispatch_in *in)
{
    const struct ep_group_view *group = &handle->group->view;
    const bool some = handle->tokens > 0;

    return (struct ep_send_args){
        .handle = handle->view,
        .rows = some ? in->tokens.data : NULL,
        .weights = some ? in->weights : NULL,
        .scales = some ? in->scales.data : NULL,
        .row_bytes = in->tokens.row_bytes,
        .scale_bytes = in->scales.row_bytes,
        .tokens = handle->tokens,
        .type = in->tokens.type,
        .signal = EP_FLAG_DATA,
        .begin = group->low_latency,
        .lists = group->low_latency,
        .keep_weights =
            group->low_latency && handle->view.layout == STRAIT_EP_EXPERT_MAJOR && some && in->weights != NULL,
    };
}

static struct ep_receive_args receive_of(const struct strait_ep_handle *handle,
                                         const struct strait_ep_dispatch_out *out, uint32_t flags)
{
    return (struct ep_receive_args){
        .handle = handle->view,
        .rows = out->tokens.data,
        .weights = out->weights,
        .scales = out->scales.data,
        .topk = out->topk,
        .expert_counts = out->expert_counts,
        .rank_counts = out->rank_counts,
        .row_bytes = out->tokens.row_bytes,
        .scale_bytes = out->scales.row_bytes,
        .row_count = out->rows,
        .type = out->tokens.type,
        .global_ids = (flags & STRAIT_EP_GLOBAL_IDS) != 0,
        .wide_ids = (flags & STRAIT_EP_WIDE_IDS) != 0,
    };
}

/* Rows for the rank itself take no way through its arena, unless the tensors are needed before the call is complete. */
static void keep_own_rows(const struct strait_ep_handle *handle, const struct strait_ep_dispatch_in *in,
                          struct ep_send_args *send, struct ep_receive_args *receive)
{
    const struct ep_group_view *group = &handle->group->view;

    if (group->low_latency && handle->view.layout == STRAIT_EP_EXPERT_MAJOR) {
        send->keep_own = in->tokens.data != NULL;
        receive->own = in->tokens.data;
        return;
    }
    send->own = receive->rows;
    send->own_rows = group->low_latency ? group->rank_count * group->tokens_max : receive->row_count;
    receive->own_given = send->own != NULL;
}

enum strait_status strait_ep_dispatch(struct strait_ep_handle *handle, const struct strait_ep_dispatch_in *in,
                                      const struct strait_ep_dispatch_out *out, uint32_t flags,
                                      struct CUstream_st *stream)
{
    if (handle == NULL || in == NULL || out == NULL || !dispatch_good(handle, in, out, flags))
        return STRAIT_ERR_INVALID;
    struct strait_ep_group *group = handle->group;
    const struct ep_group_view view = view_of_call(handle, &in->tokens, out->peers);
    struct ep_send_args send = send_of(handle, in);
    struct ep_announce_args announce = {.group = view, .handle = handle->view};
    enum strait_status status = ep_group_usable(group);
    if (status != STRAIT_OK)
        return status;
    if (!begin_call(handle))
        return STRAIT_ERR_INVALID;
    group->coded_calls += view.coded;
    handle->receive = receive_of(handle, out, flags);
    handle->receive.group = send.group = view;
    handle->weighted = in->weights != NULL;
    if (!group->view.low_latency) {
        announce.announce = place_of(handle, &view, &out->tokens, out->peers, out->rows);
        copy_peers(handle, out->peers, &send.peers);
        if (announce.announce.offset != 0) {
            handle->receive.rows = NULL;
            if (announce.announce.rows > out->rows)
                announce.announce.rows = out->rows;
        }
        status = group->ops->announce(group->context, &announce, stream);
    }
    if ((flags & STRAIT_EP_SEND_ONLY) == 0)
        keep_own_rows(handle, in, &send, &handle->receive);
    if (status == STRAIT_OK)
        status = group->ops->send(group->context, &send, stream);
    if (status == STRAIT_OK && (flags & STRAIT_EP_SEND_ONLY) != 0) {
        open_call(handle, PENDING_RECEIVE);
        return outcome(group, status);
    }
    if (status == STRAIT_OK)
        status = group->ops->receive(group->context, &handle->receive, stream);
    handle->dispatched = status == STRAIT_OK;
    return outcome(group, status);
}

/* ---- Quantization ------------------------------------------------------------------------------------------------ */

static bool quantization_good(const struct strait_ep_quantization *q)
{
    const struct strait_ep_tensor *in = &q->rows, *out = &q->quantized;

    return q->size >= sizeof(*q) && in->type == STRAIT_ELEMENT_BF16 && out->type == STRAIT_ELEMENT_FP8_E4M3 &&
           out->row_bytes > 0 && out->row_bytes % STRAIT_EP_SCALE_VALUES == 0 &&
           in->row_bytes == 2ull * out->row_bytes && (uintptr_t)in->data % 16 == 0 && (uintptr_t)out->data % 16 == 0 &&
           (uintptr_t)q->scales % 4 == 0 &&
           (q->count == 0 || (in->data != NULL && out->data != NULL && q->scales != NULL));
}

enum strait_status strait_ep_quantize(struct strait_ep_group *group, const struct strait_ep_quantization *quantization,
                                      struct CUstream_st *stream)
{
    if (group == NULL || quantization == NULL || !quantization_good(quantization))
        return STRAIT_ERR_INVALID;
    const struct ep_quantize_args args = {.rows = quantization->rows.data,
                                          .quantized = quantization->quantized.data,
                                          .scales = quantization->scales,
                                          .row_count = quantization->count,
                                          .values = quantization->quantized.row_bytes,
                                          .sm_budget = group->config.sm_budget,
                                          .powers = quantization->powers_of_two};
    return group->ops->quantize(group->context, &args, stream);
}

/* ---- Combine ----------------------------------------------------------------------------------------------------- */

static bool combine_good(const struct strait_ep_handle *handle, const struct strait_ep_combine_in *in,
                         const struct strait_ep_combine_out *out, uint32_t flags)
{
    const struct strait_ep_group *group = handle->group;
    const bool low_latency = group->view.low_latency;
    const enum strait_element type = in->tokens.type;
    /* Only in host memory it is known here whether anything came. */
    const bool some = group->config.memory == STRAIT_EP_HOST && !low_latency && handle->view.totals[0] > 0;

    if (in->size < sizeof(*in) || out->size < sizeof(*out) || !(low_latency ? handle->dispatched : handle->routed) ||
        (flags & ~(uint32_t)STRAIT_EP_SEND_ONLY) != 0 || (!low_latency && flags != 0))
        return false;
    if (!rows_good(group, &in->tokens) || !rows_good(group, &out->tokens) || !same_rows(&in->tokens, &out->tokens) ||
        (type != STRAIT_ELEMENT_BF16 && type != STRAIT_ELEMENT_FP16 && type != STRAIT_ELEMENT_FP32))
        return false;
    if ((out->tokens.data == NULL && handle->tokens > 0) || (in->tokens.data == NULL && (low_latency || some)) ||
        !peers_good(handle, in->peers))
        return false;
    if (low_latency)
        return in->weights == NULL && (out->weights == NULL || handle->view.layout == STRAIT_EP_EXPERT_MAJOR);
    return out->weights == NULL || in->weights != NULL || !some;
}

static struct ep_reduce_args reduce_of(const struct strait_ep_handle *handle, const struct strait_ep_combine_out *out)
{
    const bool low_latency = handle->group->view.low_latency;
    const float *kept = handle->weighted ? handle->view.weights : NULL;
    struct ep_reduce_args args = {.handle = handle->view,
                                  .rows = out->tokens.data,
                                  .row_bytes = out->tokens.row_bytes,
                                  .tokens = handle->tokens,
                                  .type = out->tokens.type};

    if (!low_latency)
        args.weights_out = out->weights;
    else if (handle->view.layout == STRAIT_EP_EXPERT_MAJOR)
        args.weights = out->weights != NULL ? out->weights : kept;
    return args;
}

/* HT combine up to where all ranks can read. Of FLAT, reduce then has the rank's own rows from the caller's tensor. */
static enum strait_status stage(struct strait_ep_handle *handle, const struct strait_ep_combine_in *in,
                                struct CUstream_st *stream)
{
    struct strait_ep_group *group = handle->group;
    struct ep_stage_args args = {.group = handle->reduce.group,
                                 .handle = handle->view,
                                 .rows = in->tokens.data,
                                 .weights = in->weights,
                                 .row_bytes = in->tokens.row_bytes,
                                 .type = in->tokens.type};

    args.announce = place_of(handle, &args.group, &in->tokens, in->peers, in->rows);
    if (args.announce.offset != 0)
        args.rows = NULL;
    else if (handle->view.layout == STRAIT_EP_FLAT)
        handle->reduce.own = args.rows;
    args.keep_own = handle->reduce.own != NULL;
    return group->ops->stage(group->context, &args, stream);
}

static enum strait_status combine_high_throughput(struct strait_ep_handle *handle,
                                                  const struct strait_ep_combine_in *in, struct CUstream_st *stream)
{
    struct strait_ep_group *group = handle->group;
    const struct ep_settle_args settle = {.group = group->view, .handle = handle->view};

    enum strait_status status = stage(handle, in, stream);
    if (status == STRAIT_OK)
        status = group->ops->reduce(group->context, &handle->reduce, stream);
    return status == STRAIT_OK ? group->ops->settle(group->context, &settle, stream) : status;
}

static enum strait_status combine_low_latency(struct strait_ep_handle *handle, const struct strait_ep_combine_in *in,
                                              uint32_t flags, struct CUstream_st *stream)
{
    struct strait_ep_group *group = handle->group;
    const struct ep_send_back_args send = {.group = group->view,
                                           .handle = handle->view,
                                           .rows = in->tokens.data,
                                           .row_bytes = in->tokens.row_bytes,
                                           .type = in->tokens.type,
                                           .keep_own = (flags & STRAIT_EP_SEND_ONLY) == 0};

    if (send.keep_own)
        handle->reduce.own = in->tokens.data;
    const enum strait_status status = group->ops->send_back(group->context, &send, stream);
    if (status != STRAIT_OK || (flags & STRAIT_EP_SEND_ONLY) == 0)
        return status == STRAIT_OK ? group->ops->reduce(group->context, &handle->reduce, stream) : status;
    open_call(handle, PENDING_REDUCE);
    return STRAIT_OK;
}

enum strait_status strait_ep_combine(struct strait_ep_handle *handle, const struct strait_ep_combine_in *in,
                                     const struct strait_ep_combine_out *out, uint32_t flags,
                                     struct CUstream_st *stream)
{
    if (handle == NULL || in == NULL || out == NULL || !combine_good(handle, in, out, flags))
        return STRAIT_ERR_INVALID;
    struct strait_ep_group *group = handle->group;
    enum strait_status status = ep_group_usable(group);
    if (status != STRAIT_OK)
        return status;
    if (!begin_call(handle))
        return STRAIT_ERR_INVALID;
    handle->reduce = reduce_of(handle, out);
    handle->reduce.group = view_of_call(handle, &in->tokens, in->peers);
    group->coded_calls += handle->reduce.group.coded;
    copy_peers(handle, in->peers, &handle->reduce.peers);
    status = group->view.low_latency ? combine_low_latency(handle, in, flags, stream)
                                     : combine_high_throughput(handle, in, stream);
    return outcome(group, status);
}

enum strait_status strait_ep_complete(struct strait_ep_handle *handle, struct CUstream_st *stream)
{
    if (handle == NULL || handle->pending == PENDING_NONE)
        return STRAIT_ERR_INVALID;
    struct strait_ep_group *group = handle->group;
    const enum pending pending = handle->pending;
    enum strait_status status = ep_group_usable(group);
    close_call(handle);
    if (status != STRAIT_OK)
        return status;
    status = pending == PENDING_RECEIVE ? group->ops->receive(group->context, &handle->receive, stream)
                                        : group->ops->reduce(group->context, &handle->reduce, stream);
    if (pending == PENDING_RECEIVE)
        handle->dispatched = status == STRAIT_OK;
    return outcome(group, status);
}
