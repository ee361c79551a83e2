/* Dispatch and combine of NCCL EP. */
#include "ep/nccl_ep/arguments.h"
#include "ep/nccl_ep/group.h"

static bool is_ll(const struct ncclEpHandle *handle)
{
    return handle->group->config.algorithm == STRAIT_EP_LOW_LATENCY;
}

static nep_result check_handle(const struct ncclEpHandle *handle, const char *function)
{
    if (handle == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s: the handle is NULL", function);
    if (handle->handle == NULL || !handle->updated)
        return nep_refuse(NEP_INVALID_USAGE, "%s: the handle has had no ncclEpUpdateHandle", function);
    return NEP_SUCCESS;
}

/* A tensor that is [tokens][...]: of the caller's own tokens. */
static nep_result check_own(const struct nep_view *view, const struct ncclEpHandle *handle, const char *name)
{
    if (view->rows != handle->tokens || (view->dims != 2 && handle->tokens > 0))
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s has %zu rows in %u dimensions, not the %u of topk_idx in 2", name,
                          view->rows, view->dims, handle->tokens);
    return NEP_SUCCESS;
}

/* A tensor of the layout's: LL has all of its slots; HT, what the caller made room for. */
static nep_result check_received(const struct nep_view *view, const struct ncclEpHandle *handle, const char *name)
{
    const struct strait_ep_config *config = &handle->group->config;
    const size_t slots = (size_t)config->rank_count * config->tokens_max;
    const size_t least = handle->config.layout == STRAIT_EP_EXPERT_MAJOR ? slots * handle->group->local_experts : slots;
    if (is_ll(handle) && (view->dims != 3 || view->rows != least))
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s has %zu rows in %u dimensions, not %zu in 3", name, view->rows,
                          view->dims, least);
    if (!is_ll(handle) && view->dims > 2)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s has %u dimensions, not 2", name, view->dims);
    return NEP_SUCCESS;
}

/* Floats, or int32, of which each row of `like` has `values`. */
static nep_result check_beside(const struct nep_view *view, const struct nep_view *like, int type, size_t values,
                               const char *name)
{
    if (view->data == NULL)
        return NEP_SUCCESS;
    if (view->type != type || view->rows != like->rows || view->values != values)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s is not %zu rows of %zu values of type %d", name, like->rows, values,
                          type);
    return NEP_SUCCESS;
}

static nep_result check_row(const struct nep_view *view, const char *name)
{
    if (view->row_bytes % 16 != 0 || (uintptr_t)view->data % 16 != 0)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s: rows of %zu bytes at %p: both have to be multiples of 16", name,
                          view->row_bytes, view->data);
    return NEP_SUCCESS;
}

/* Weights, and slots, that a row of the layout has. */
static size_t weights_of(const struct ncclEpHandle *handle)
{
    return handle->config.layout == STRAIT_EP_EXPERT_MAJOR ? 1 : handle->config.topk;
}

/* Tensors of all ranks, which rows go straight into or are read from, as windows of NCCL have them; NULL: by a copy. */
static void *const *peers_of(const struct ncclEpHandle *handle, const struct nep_view *view,
                             void *peers[STRAIT_EP_RANKS_MAX])
{
    const bool in_place = handle->config.layout == STRAIT_EP_FLAT;
    return in_place && nep_peers(view, handle->group->config.rank_count, peers) ? peers : NULL;
}

/* ---- Dispatch ---------------------------------------------------------------------------------------------------- */

struct dispatch {
    struct ncclEpHandle *handle;
    struct nep_dispatch_config config;
    struct nep_layout_info info;
    struct {
        struct nep_view tokens, weights, scales;
    } in;
    struct {
        struct nep_view tokens, weights, scales, topk;
    } out;
    struct nep_view expert_counts, rank_counts;
    struct nep_view plain; /* the caller's tokens, of which those of `in` are made; data NULL: there is nothing to do */
};

static nep_result take_dispatch(struct dispatch *dispatch, const struct nep_dispatch_in *in,
                                const struct nep_dispatch_out *out, const struct nep_layout_info *info,
                                const struct nep_dispatch_config *config)
{
    const nep_comm comm = dispatch->handle->group->comm;
    struct nep_dispatch_in inputs;
    struct nep_dispatch_out outputs;
    nep_result result = NEP_TAKE(inputs, in, NEP_DISPATCH_IN_V1, false);
    if (result == NEP_SUCCESS)
        result = NEP_TAKE(outputs, out, NEP_DISPATCH_OUT_V1, false);
    if (result == NEP_SUCCESS)
        result = NEP_TAKE(dispatch->info, info, NEP_LAYOUT_INFO_V1, true);
    if (result == NEP_SUCCESS)
        result = NEP_TAKE(dispatch->config, config, NEP_DISPATCH_CONFIG_V1, true);
    if (result != NEP_SUCCESS)
        return result;
    const struct {
        struct nep_view *view;
        const struct nep_tensor *tensor;
        bool optional;
        const char *name;
    } views[] = {
        {&dispatch->in.tokens, inputs.tokens, false, "inputs->tokens"},
        {&dispatch->in.weights, inputs.weights, true, "inputs->topk_weights"},
        {&dispatch->in.scales, inputs.scales, true, "inputs->scales"},
        {&dispatch->out.tokens, outputs.tokens, false, "outputs->tokens"},
        {&dispatch->out.weights, outputs.weights, true, "outputs->topk_weights"},
        {&dispatch->out.scales, outputs.scales, true, "outputs->scales"},
        {&dispatch->out.topk, outputs.topk, true, "outputs->topk_idx"},
        {&dispatch->expert_counts, dispatch->info.expert_counts, true, "expert_counters"},
        {&dispatch->rank_counts, dispatch->info.rank_counts, true, "src_rank_counters"},
    };
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]) && result == NEP_SUCCESS; i++)
        result = nep_view(views[i].view, views[i].tensor, comm, views[i].optional, views[i].name);
    return result;
}

enum { ROW_VALUES = 4 * STRAIT_EP_SCALE_VALUES }; /* a row is a multiple, as its scales are 16 bytes */

static nep_result check_quantization(const struct dispatch *dispatch)
{
    const struct nep_view *in = &dispatch->in.tokens, *out = &dispatch->out.tokens, *scales = &dispatch->out.scales;
    const struct ncclEpHandle *handle = dispatch->handle;
    const size_t values = in->values, bytes = values + values / STRAIT_EP_SCALE_VALUES * sizeof(float);
    if (!is_ll(handle))
        return nep_refuse(NEP_INVALID_USAGE, "ncclEpDispatch: DS_FP8E3M4 is for LL alone");
    if (in->type != NEP_BF16 || out->type != NEP_E4M3)
        return nep_refuse(NEP_INVALID_ARGUMENT,
                          "ncclEpDispatch: DS_FP8E3M4 makes ncclFloat8e4m3 of ncclBfloat16, not type %d of %d",
                          out->type, in->type);
    if (values == 0 || values % ROW_VALUES != 0)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpDispatch: DS_FP8E3M4 needs rows of a multiple of %d, not of %zu",
                          ROW_VALUES, values);
    if (bytes > handle->group->config.row_bytes_max)
        return nep_refuse(
            NEP_INVALID_ARGUMENT,
            "ncclEpDispatch: DS_FP8E3M4: %zu bytes of a token and its scales are more than max_token_bytes", bytes);
    if (dispatch->in.scales.data != NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT,
                          "ncclEpDispatch: DS_FP8E3M4 makes scales: inputs->scales has to be NULL");
    if (scales->data == NULL || scales->dims != 3 || scales->type != NEP_FP32 || scales->rows != out->rows ||
        scales->values != values / STRAIT_EP_SCALE_VALUES)
        return nep_refuse(NEP_INVALID_ARGUMENT,
                          "ncclEpDispatch: DS_FP8E3M4 needs outputs->scales of ncclFloat32 and the layout's shape, %zu "
                          "for a row",
                          values / STRAIT_EP_SCALE_VALUES);
    return NEP_SUCCESS;
}

static nep_result check_recipe(const struct dispatch *dispatch)
{
    const bool scales = dispatch->in.scales.data != NULL || dispatch->out.scales.data != NULL;
    switch (dispatch->config.recipe) {
    case NEP_QUANT_NONE:
        if (scales)
            return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpDispatch: there are scales, but quant_recipe is NONE");
        return NEP_SUCCESS;
    case NEP_QUANT_FORWARD:
        if (dispatch->config.round_scales != 0)
            return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpDispatch: QUANT_FWD does not round scales");
        if (dispatch->in.tokens.rows > 0 && (dispatch->in.scales.data == NULL || dispatch->out.scales.data == NULL))
            return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpDispatch: QUANT_FWD needs scales on both sides");
        return NEP_SUCCESS;
    case NEP_QUANT_E4M3:
        return check_quantization(dispatch);
    default:
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpDispatch: quant_recipe %d is unknown", dispatch->config.recipe);
    }
}

/* What the direction of a pass asks for (HT). */
static nep_result check_pass(const struct dispatch *dispatch)
{
    const bool backward = dispatch->config.pass == NEP_BACKWARD;
    if (dispatch->config.pass != NEP_FORWARD && !backward)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpDispatch: pass_direction %d is unknown", dispatch->config.pass);
    if (is_ll(dispatch->handle))
        return NEP_SUCCESS;
    if (dispatch->config.send_only != 0)
        return nep_refuse(NEP_INVALID_USAGE, "ncclEpDispatch: send_only is for LL alone");
    if (backward &&
        (dispatch->in.weights.data != NULL || dispatch->out.weights.data != NULL || dispatch->out.topk.data != NULL))
        return nep_refuse(NEP_INVALID_ARGUMENT,
                          "ncclEpDispatch: a backward pass has neither topk_weights nor topk_idx");
    if (!backward && dispatch->in.weights.data == NULL && dispatch->handle->tokens > 0)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpDispatch: a forward pass needs inputs->topk_weights");
    return NEP_SUCCESS;
}

static nep_result check_inputs(const struct dispatch *dispatch)
{
    const struct ncclEpHandle *handle = dispatch->handle;
    nep_result result = check_own(&dispatch->in.tokens, handle, "inputs->tokens");
    if (result == NEP_SUCCESS)
        result = check_row(&dispatch->in.tokens, "inputs->tokens");
    if (result == NEP_SUCCESS)
        result = check_beside(&dispatch->in.weights, &dispatch->in.tokens, NEP_FP32, handle->config.topk,
                              "inputs->topk_weights");
    if (result == NEP_SUCCESS && dispatch->in.scales.data != NULL)
        result = check_own(&dispatch->in.scales, handle, "inputs->scales");
    if (result == NEP_SUCCESS && dispatch->in.scales.data != NULL)
        result = check_row(&dispatch->in.scales, "inputs->scales");
    if (result == NEP_SUCCESS && dispatch->in.scales.row_bytes > handle->group->config.scale_bytes_max)
        result = nep_refuse(NEP_INVALID_ARGUMENT,
                            "inputs->scales has rows of %zu bytes, more than %u, 1/16 of max_token_bytes",
                            dispatch->in.scales.row_bytes, handle->group->config.scale_bytes_max);
    return result;
}

/* From here on the rows that are sent are those that run_dispatch makes. */
static void place_quantized(struct dispatch *dispatch)
{
    struct nep_view *tokens = &dispatch->in.tokens, *scales = &dispatch->in.scales;
    uint8_t *room = dispatch->handle->group->quantized;
    if (dispatch->config.recipe != NEP_QUANT_E4M3)
        return;
    dispatch->plain = *tokens;
    tokens->data = room;
    tokens->type = NEP_E4M3;
    tokens->row_bytes = tokens->values;
    *scales = *tokens;
    scales->data = room + tokens->rows * tokens->row_bytes;
    scales->type = NEP_FP32;
    scales->values = tokens->values / STRAIT_EP_SCALE_VALUES;
    scales->row_bytes = scales->values * sizeof(float);
}

static nep_result quantize(const struct dispatch *dispatch, nep_stream stream)
{
    const struct strait_ep_quantization quantization = {
        .size = sizeof(quantization),
        .rows = nep_rows(&dispatch->plain),
        .quantized = nep_rows(&dispatch->in.tokens),
        .scales = dispatch->in.scales.data,
        .count = (uint32_t)dispatch->plain.rows,
        .powers_of_two = dispatch->config.round_scales != 0,
    };
    if (dispatch->plain.data == NULL)
        return NEP_SUCCESS;
    return nep_result_of(strait_ep_quantize(dispatch->handle->group->group, &quantization, stream), "ncclEpDispatch",
                         "");
}

static nep_result check_outputs(const struct dispatch *dispatch)
{
    const struct ncclEpHandle *handle = dispatch->handle;
    const struct nep_view *in = &dispatch->in.tokens, *out = &dispatch->out.tokens;
    const struct nep_view *scales = &dispatch->out.scales;
    nep_result result = check_received(out, handle, "outputs->tokens");
    if (result == NEP_SUCCESS)
        result = check_row(out, "outputs->tokens");
    if (result == NEP_SUCCESS && (out->type != in->type || out->row_bytes != in->row_bytes))
        result = nep_refuse(NEP_INVALID_ARGUMENT, "outputs->tokens has other rows than inputs->tokens");
    if (result == NEP_SUCCESS)
        result = check_beside(&dispatch->out.weights, out, NEP_FP32, weights_of(handle), "outputs->topk_weights");
    if (result == NEP_SUCCESS)
        result = check_beside(&dispatch->out.topk, out, is_ll(handle) ? NEP_INT32 : NEP_INT64, handle->config.topk,
                              "outputs->topk_idx");
    if (result == NEP_SUCCESS && dispatch->out.topk.data != NULL && handle->config.layout == STRAIT_EP_EXPERT_MAJOR)
        result = nep_refuse(NEP_INVALID_ARGUMENT, "outputs->topk_idx: with EXPERT_MAJOR the slot tells the expert");
    if (result == NEP_SUCCESS && scales->data != NULL &&
        (scales->type != dispatch->in.scales.type || scales->row_bytes != dispatch->in.scales.row_bytes ||
         scales->rows < out->rows))
        result = nep_refuse(NEP_INVALID_ARGUMENT, "outputs->scales has other rows than inputs->scales");
    return result;
}

/* What LL counts, which HT has told in its update. */
static nep_result check_counts(const struct dispatch *dispatch)
{
    const struct ncclEpGroup *group = dispatch->handle->group;
    const struct nep_view *experts = &dispatch->expert_counts, *ranks = &dispatch->rank_counts;
    if (!is_ll(dispatch->handle))
        return NEP_SUCCESS;
    if (dispatch->handle->config.layout == STRAIT_EP_EXPERT_MAJOR && experts->data == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpDispatch: LL EXPERT_MAJOR needs layout_info->expert_counters");
    if (experts->data != NULL && (experts->type != NEP_INT32 || experts->rows < group->local_experts))
        return nep_refuse(NEP_INVALID_ARGUMENT, "expert_counters is not %u values of ncclInt32", group->local_experts);
    if (ranks->data != NULL && (ranks->type != NEP_INT32 || ranks->rows < group->config.rank_count))
        return nep_refuse(NEP_INVALID_ARGUMENT, "src_rank_counters is not %u values of ncclInt32",
                          group->config.rank_count);
    return NEP_SUCCESS;
}

/* Rows that libstrait-ep leaves alone have values in NCCL EP: numbers of experts are -1 beyond the rows that came, and
 * rows between zones are zero. */
static bool prepare_outputs(const struct dispatch *dispatch, nep_stream stream)
{
    const struct nep_memory *memory = dispatch->handle->group->memory;
    const struct nep_view *topk = &dispatch->out.topk,
                          *gaps[] = {&dispatch->out.tokens, &dispatch->out.weights, &dispatch->out.scales};
    bool good = topk->data == NULL || memory->fill(topk->data, 0xff, topk->rows * topk->row_bytes, stream);
    for (size_t i = 0; i < 3 && dispatch->handle->config.expert_alignment > 1; i++)
        good = good &&
               (gaps[i]->data == NULL || memory->fill(gaps[i]->data, 0, gaps[i]->rows * gaps[i]->row_bytes, stream));
    return good;
}

static nep_result run_dispatch(const struct dispatch *dispatch, nep_stream stream)
{
    struct ncclEpHandle *handle = dispatch->handle;
    const int ids = dispatch->info.ids != NEP_IDS_AUTO ? dispatch->info.ids : handle->ids;
    void *peers[STRAIT_EP_RANKS_MAX];
    const bool ll_experts = is_ll(handle) && handle->config.layout == STRAIT_EP_EXPERT_MAJOR;
    const struct strait_ep_dispatch_in in = {
        .size = sizeof(in),
        .tokens = nep_rows(&dispatch->in.tokens),
        .weights = dispatch->in.weights.data,
        .scales = nep_rows(&dispatch->in.scales),
    };
    const struct strait_ep_dispatch_out out = {
        .size = sizeof(out),
        .tokens = nep_rows(&dispatch->out.tokens),
        .weights = dispatch->out.weights.data,
        .scales = nep_rows(&dispatch->out.scales),
        .topk = dispatch->out.topk.data,
        .expert_counts = ll_experts ? dispatch->expert_counts.data : NULL,
        .rank_counts = is_ll(handle) ? dispatch->rank_counts.data : NULL,
        .rows = (uint32_t)dispatch->out.tokens.rows,
        .peers = peers_of(handle, &dispatch->out.tokens, peers),
    };
    const uint32_t flags = (dispatch->config.send_only != 0 ? STRAIT_EP_SEND_ONLY : 0u) |
                           (ids == NEP_IDS_GLOBAL ? STRAIT_EP_GLOBAL_IDS : 0u) |
                           (is_ll(handle) ? 0u : STRAIT_EP_WIDE_IDS);
    if (!prepare_outputs(dispatch, stream))
        return nep_refuse(NEP_CUDA_ERROR, "ncclEpDispatch: the outputs could not be cleared");
    const nep_result result = quantize(dispatch, stream);
    if (result != NEP_SUCCESS)
        return result;
    return nep_result_of(strait_ep_dispatch(handle->handle, &in, &out, flags, stream), "ncclEpDispatch", "");
}

nep_result ncclEpDispatch(nep_handle handle, const struct nep_dispatch_in *in, const struct nep_dispatch_out *out,
                          const struct nep_layout_info *info, const struct nep_dispatch_config *config,
                          nep_stream stream)
{
    struct dispatch dispatch = {.handle = handle};
    nep_result result = check_handle(handle, "ncclEpDispatch");
    if (result == NEP_SUCCESS)
        result = take_dispatch(&dispatch, in, out, info, config);
    if (result == NEP_SUCCESS)
        result = check_recipe(&dispatch);
    if (result == NEP_SUCCESS)
        result = check_pass(&dispatch);
    if (result == NEP_SUCCESS)
        result = check_inputs(&dispatch);
    if (result == NEP_SUCCESS)
        place_quantized(&dispatch);
    if (result == NEP_SUCCESS)
        result = check_outputs(&dispatch);
    if (result == NEP_SUCCESS)
        result = check_counts(&dispatch);
    return result == NEP_SUCCESS ? run_dispatch(&dispatch, stream) : result;
}

/* ---- Combine ----------------------------------------------------------------------------------------------------- */

struct combine {
    struct ncclEpHandle *handle;
    struct nep_combine_config config;
    struct {
        struct nep_view tokens, weights;
    } in, out;
};

static nep_result take_combine(struct combine *combine, const struct nep_combine_in *in,
                               const struct nep_combine_out *out, const struct nep_combine_config *config)
{
    const nep_comm comm = combine->handle->group->comm;
    struct nep_combine_in inputs;
    struct nep_combine_out outputs;
    nep_result result = NEP_TAKE(inputs, in, NEP_COMBINE_IN_V1, false);
    if (result == NEP_SUCCESS)
        result = NEP_TAKE(outputs, out, NEP_COMBINE_OUT_V1, false);
    if (result == NEP_SUCCESS)
        result = NEP_TAKE(combine->config, config, NEP_COMBINE_CONFIG_V1, true);
    if (result == NEP_SUCCESS && (combine->config.recipe != NEP_COMBINE_QUANT_NONE || inputs.scales != NULL))
        result = nep_refuse(NEP_INVALID_USAGE, "ncclEpCombine: NVFP4 is not supported: quant_recipe has to be NONE");
    if (result == NEP_SUCCESS)
        result = nep_view(&combine->in.tokens, inputs.tokens, comm, false, "inputs->tokens");
    if (result == NEP_SUCCESS)
        result = nep_view(&combine->in.weights, inputs.weights, comm, true, "inputs->topk_weights");
    if (result == NEP_SUCCESS)
        result = nep_view(&combine->out.tokens, outputs.tokens, comm, false, "outputs->tokens");
    if (result == NEP_SUCCESS)
        result = nep_view(&combine->out.weights, outputs.weights, comm, true, "outputs->topk_weights");
    return result;
}

static nep_result check_weights(const struct combine *combine)
{
    const struct ncclEpHandle *handle = combine->handle;
    const bool in = combine->in.weights.data != NULL, out = combine->out.weights.data != NULL;
    const bool backward = combine->config.pass == NEP_BACKWARD;
    if (is_ll(handle)) {
        if (in)
            return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCombine: inputs->topk_weights are of HT alone");
        if (handle->config.layout != STRAIT_EP_EXPERT_MAJOR && out)
            return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCombine: LL RANK_MAJOR does not weigh rows");
        if (handle->config.layout == STRAIT_EP_EXPERT_MAJOR && !out && handle->tokens > 0)
            return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCombine: LL EXPERT_MAJOR needs outputs->topk_weights");
        return NEP_SUCCESS;
    }
    if (combine->config.send_only != 0)
        return nep_refuse(NEP_INVALID_USAGE, "ncclEpCombine: send_only is for LL alone");
    if (!backward && (in || out))
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCombine: a forward pass has no topk_weights");
    if (backward && (!in || (!out && handle->tokens > 0)))
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCombine: a backward pass needs topk_weights on both sides");
    return NEP_SUCCESS;
}

static nep_result check_combine(const struct combine *combine)
{
    const struct nep_view *in = &combine->in.tokens, *out = &combine->out.tokens;
    const struct ncclEpHandle *handle = combine->handle;
    nep_result result = check_received(in, handle, "inputs->tokens");
    if (result == NEP_SUCCESS)
        result = check_own(out, handle, "outputs->tokens");
    if (result == NEP_SUCCESS)
        result = check_row(in, "inputs->tokens");
    if (result == NEP_SUCCESS)
        result = check_row(out, "outputs->tokens");
    if (result == NEP_SUCCESS && (in->type != out->type || in->row_bytes != out->row_bytes))
        result = nep_refuse(NEP_INVALID_ARGUMENT, "outputs->tokens has other rows than inputs->tokens");
    if (result == NEP_SUCCESS && in->type != NEP_BF16 && in->type != NEP_FP16 && in->type != NEP_FP32)
        result = nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCombine: rows are BF16, FP16 or FP32");
    if (result == NEP_SUCCESS && combine->config.pass != NEP_FORWARD && combine->config.pass != NEP_BACKWARD)
        result = nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCombine: pass_direction %d is unknown", combine->config.pass);
    if (result == NEP_SUCCESS)
        result = check_weights(combine);
    if (result == NEP_SUCCESS)
        result = check_beside(&combine->in.weights, in, NEP_FP32, weights_of(handle), "inputs->topk_weights");
    if (result == NEP_SUCCESS)
        result = check_beside(&combine->out.weights, out, NEP_FP32, handle->config.topk, "outputs->topk_weights");
    return result;
}

nep_result ncclEpCombine(nep_handle handle, const struct nep_combine_in *in, const struct nep_combine_out *out,
                         const struct nep_combine_config *config, nep_stream stream)
{
    struct combine combine = {.handle = handle};
    nep_result result = check_handle(handle, "ncclEpCombine");
    if (result == NEP_SUCCESS)
        result = take_combine(&combine, in, out, config);
    if (result == NEP_SUCCESS)
        result = check_combine(&combine);
    if (result != NEP_SUCCESS)
        return result;
    void *peers[STRAIT_EP_RANKS_MAX];
    const struct strait_ep_combine_in ours = {
        .size = sizeof(ours),
        .tokens = nep_rows(&combine.in.tokens),
        .weights = combine.in.weights.data,
        .peers = peers_of(handle, &combine.in.tokens, peers),
        .rows = (uint32_t)combine.in.tokens.rows,
    };
    const struct strait_ep_combine_out made = {
        .size = sizeof(made),
        .tokens = nep_rows(&combine.out.tokens),
        .weights = combine.out.weights.data,
    };
    const uint32_t flags = combine.config.send_only != 0 ? STRAIT_EP_SEND_ONLY : 0u;
    return nep_result_of(strait_ep_combine(handle->handle, &ours, &made, flags, stream), "ncclEpCombine", "");
}

nep_result ncclEpComplete(nep_handle handle, const struct nep_empty_config *config, nep_stream stream)
{
    struct nep_empty_config taken;
    nep_result result = check_handle(handle, "ncclEpComplete");
    if (result == NEP_SUCCESS)
        result = NEP_TAKE(taken, config, NEP_EMPTY_CONFIG_V1, true);
    if (result == NEP_SUCCESS && !is_ll(handle))
        result = nep_refuse(NEP_INVALID_USAGE, "ncclEpComplete is for LL alone");
    return result == NEP_SUCCESS ? nep_result_of(strait_ep_complete(handle->handle, stream), "ncclEpComplete", "")
                                 : result;
}
