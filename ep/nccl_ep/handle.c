#include <stdlib.h>

#include "ep/nccl_ep/arguments.h"
#include "ep/nccl_ep/group.h"

enum { HANDLE_BYTES = 256 }; /* of memory that a caller is asked for: handles here have their own */

/* ---- Making ------------------------------------------------------------------------------------------------------ */

nep_result nep_handle_open(struct ncclEpHandle *handle)
{
    struct ncclEpGroup *group = handle->group;
    if (group->group == NULL)
        return nep_refuse(NEP_INVALID_USAGE, "the handle's group is gone: the last ncclEpMaskClean failed");
    if (!group->memory->enter(group->device))
        return nep_refuse(NEP_CUDA_ERROR, "device %d cannot be used", group->device);
    const enum strait_status status = strait_ep_handle_create(group->group, &handle->config, &handle->handle);
    group->memory->leave();
    if (status != STRAIT_OK)
        handle->handle = NULL;
    return nep_result_of(status, "ncclEpInitHandle", "");
}

static nep_result check_layout(const struct ncclEpGroup *group, int layout, int topk, const char *function)
{
    const bool ll = group->config.algorithm == STRAIT_EP_LOW_LATENCY;
    if (layout != NEP_EXPERT_MAJOR && layout != (ll ? NEP_RANK_MAJOR : NEP_FLAT))
        return nep_refuse(NEP_INVALID_ARGUMENT,
                          "%s: layout %d: LL has EXPERT_MAJOR and RANK_MAJOR, HT EXPERT_MAJOR and FLAT", function,
                          layout);
    if (topk > (int)group->config.topk_max)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s: num_topk %d is more than the group's %u", function, topk,
                          group->config.topk_max);
    if (ll && topk <= 0)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s: LL needs num_topk", function);
    return NEP_SUCCESS;
}

static nep_result check_alignment(const struct nep_handle_config *config)
{
    if (config->alignment > UINT16_MAX + 1u || (config->alignment & (config->alignment - 1)) != 0)
        return nep_refuse(NEP_INVALID_ARGUMENT,
                          "dispatch_output_per_expert_alignment is %zu, no power of two up to 65536",
                          config->alignment);
    return NEP_SUCCESS;
}

nep_result ncclEpHandleMemSize(nep_group group, int layout, const struct nep_handle_config *config, size_t *size,
                               int topk)
{
    struct nep_handle_config taken;
    nep_result result = NEP_TAKE(taken, config, NEP_HANDLE_CONFIG_V1, true);
    if (result == NEP_SUCCESS && (group == NULL || size == NULL))
        result = nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpHandleMemSize: an argument is NULL");
    if (result == NEP_SUCCESS)
        result = check_layout(group, layout, topk, "ncclEpHandleMemSize");
    if (result == NEP_SUCCESS)
        result = check_alignment(&taken);
    if (result == NEP_SUCCESS)
        *size = HANDLE_BYTES;
    return result;
}

static nep_result check_memory(const struct ncclEpGroup *group, const struct nep_tensor *memory)
{
    struct nep_view view;
    nep_result result = nep_view(&view, memory, group->comm, true, "handle_mem");
    if (result == NEP_SUCCESS && view.data != NULL &&
        (view.dims != 1 || view.type != NEP_UINT8 || view.rows < HANDLE_BYTES))
        return nep_refuse(NEP_INVALID_ARGUMENT, "handle_mem is not ncclEpHandleMemSize() values of ncclUint8");
    return result;
}

static nep_result make(struct ncclEpHandle *handle)
{
    struct ncclEpGroup *group = handle->group;
    if (!group->memory->enter(group->device))
        return nep_refuse(NEP_CUDA_ERROR, "device %d cannot be used", group->device);
    const size_t counters = (2 * group->local_experts + 1) * sizeof(handle->counters[0]);
    handle->counters = group->memory->alloc(counters);
    handle->zones = group->memory->alloc_pinned(sizeof(*handle->zones) + counters);
    group->memory->leave();
    if (handle->counters == NULL || handle->zones == NULL)
        return nep_refuse(NEP_SYSTEM_ERROR, "ncclEpInitHandle: out of memory");
    handle->zones->experts = group->local_experts;
    return handle->config.topk != 0 ? nep_handle_open(handle) : NEP_SUCCESS;
}

static void end(struct ncclEpHandle *handle)
{
    const struct ncclEpGroup *group = handle->group;
    if (handle->handle != NULL)
        strait_ep_handle_destroy(handle->handle);
    if (group->memory->enter(group->device)) {
        group->memory->free(handle->counters);
        group->memory->free_pinned(handle->zones);
        group->memory->leave();
    }
    free(handle);
}

nep_result ncclEpInitHandle(nep_handle *made, nep_group group, int layout, const struct nep_handle_config *config,
                            int topk, const struct nep_tensor *memory)
{
    struct nep_handle_config taken;
    nep_result result = NEP_TAKE(taken, config, NEP_HANDLE_CONFIG_V1, true);
    if (result == NEP_SUCCESS && (made == NULL || group == NULL))
        result = nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpInitHandle: an argument is NULL");
    if (result == NEP_SUCCESS)
        result = check_layout(group, layout, topk, "ncclEpInitHandle");
    if (result == NEP_SUCCESS)
        result = check_alignment(&taken);
    if (result == NEP_SUCCESS)
        result = check_memory(group, memory);
    if (result != NEP_SUCCESS)
        return result;
    struct ncclEpHandle *handle = calloc(1, sizeof(*handle));
    if (handle == NULL)
        return nep_refuse(NEP_SYSTEM_ERROR, "ncclEpInitHandle: out of memory");
    handle->group = group;
    handle->config = (struct strait_ep_handle_config){
        .size = sizeof(handle->config),
        .layout = (enum strait_ep_layout)layout, /* the numbers are the same */
        .topk = topk > 0 ? (uint32_t)topk : 0,
        .expert_alignment = group->config.algorithm == STRAIT_EP_HIGH_THROUGHPUT && layout == NEP_EXPERT_MAJOR
                                ? (uint32_t)taken.alignment
                                : 0,
    };
    result = make(handle);
    if (result != NEP_SUCCESS) {
        end(handle);
        return result;
    }
    handle->next = group->handles;
    group->handles = handle;
    *made = handle;
    return NEP_SUCCESS;
}

nep_result ncclEpHandleDestroy(nep_handle handle)
{
    if (handle == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpHandleDestroy: the handle is NULL");
    struct ncclEpHandle **at = &handle->group->handles;
    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    if (*at == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpHandleDestroy: the group has no such handle");
    *at = handle->next;
    end(handle);
    return NEP_SUCCESS;
}

/* ---- Update ------------------------------------------------------------------------------------------------------ */

/* Counters that an update writes: the caller's memory, or ours where the caller's are int64. */
struct counter {
    struct nep_view view;
    int32_t *values; /* what libstrait-ep writes to; NULL: not wanted */
};

static nep_result open_counter(struct counter *counter, const struct nep_tensor *tensor,
                               const struct ncclEpHandle *handle, size_t least, int32_t *staged, const char *name)
{
    nep_result result = nep_view(&counter->view, tensor, handle->group->comm, true, name);
    if (result != NEP_SUCCESS || counter->view.data == NULL)
        return result;
    if (counter->view.dims != 1 || counter->view.rows < least ||
        (counter->view.type != NEP_INT32 && counter->view.type != NEP_INT64))
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s is not a row of %zu ncclInt32 or ncclInt64", name, least);
    counter->values = counter->view.type == NEP_INT32 ? counter->view.data : staged;
    return NEP_SUCCESS;
}

static bool close_counter(const struct counter *counter, const struct ncclEpHandle *handle, size_t count,
                          nep_stream stream)
{
    return counter->view.data == NULL || counter->view.type == NEP_INT32 ||
           handle->group->memory->widen(counter->view.data, counter->values, count, stream);
}

struct counters {
    struct counter experts, offsets, total;
};

static bool counts_zones(const struct counters *counters, const struct ncclEpHandle *handle)
{
    return counters->experts.values != NULL && handle->config.expert_alignment > 1;
}

static nep_result open_counters(struct counters *counters, const struct nep_layout_info *info,
                                const struct ncclEpHandle *handle)
{
    const uint32_t experts = handle->group->local_experts;
    int32_t *staged = handle->counters;
    *counters = (struct counters){0};
    nep_result result =
        open_counter(&counters->experts, info->expert_counts, handle, experts, staged, "expert_counters");
    if (result == NEP_SUCCESS)
        result =
            open_counter(&counters->offsets, info->expert_offsets, handle, experts, staged + experts, "expert_offsets");
    if (result == NEP_SUCCESS)
        result = open_counter(&counters->total, info->total, handle, 1, staged + 2 * experts, "recv_total_counter");
    if (result == NEP_SUCCESS && counts_zones(counters, handle)) { /* which needs these two */
        counters->offsets.values = counters->offsets.values != NULL ? counters->offsets.values : staged + experts;
        counters->total.values = counters->total.values != NULL ? counters->total.values : staged + 2 * experts;
    }
    if (result == NEP_SUCCESS && counters->offsets.values != NULL && handle->config.layout != STRAIT_EP_EXPERT_MAJOR)
        return nep_refuse(NEP_INVALID_ARGUMENT, "expert_offsets are of EXPERT_MAJOR alone");
    return result;
}

static void measure_zones(void *argument)
{
    struct nep_zones *zones = argument;
    const int32_t *begin = zones->values;
    int32_t *rows = zones->values + zones->experts + 1;
    for (uint32_t e = 0; e < zones->experts; e++)
        rows[e] = begin[e + 1] - begin[e];
}

/* NCCL EP's counts of experts are those of their zones, alignment included. */
static bool count_zones(const struct counters *counters, const struct ncclEpHandle *handle, nep_stream stream)
{
    const struct nep_memory *memory = handle->group->memory;
    struct nep_zones *zones = handle->zones;
    const size_t bytes = zones->experts * sizeof(zones->values[0]);
    return memory->copy(zones->values, counters->offsets.values, bytes, stream) &&
           memory->copy(zones->values + zones->experts, counters->total.values, sizeof(zones->values[0]), stream) &&
           memory->run(stream, measure_zones, zones) &&
           memory->copy(counters->experts.values, zones->values + zones->experts + 1, bytes, stream);
}

/* The type and shape of the numbers of experts, which also tell topk where ncclEpInitHandle was not told. */
static nep_result take_topk(struct ncclEpHandle *handle, const struct nep_view *view)
{
    if (view->dims != 2 || (view->type != NEP_INT32 && view->type != NEP_INT64))
        return nep_refuse(NEP_INVALID_ARGUMENT, "topk_idx is not [tokens][topk] of ncclInt32 or ncclInt64");
    if (view->rows > handle->group->config.tokens_max)
        return nep_refuse(NEP_INVALID_ARGUMENT, "topk_idx has %zu tokens, more than max_dispatch_tokens_per_rank",
                          view->rows);
    if (handle->handle == NULL && view->values <= handle->group->config.topk_max) {
        handle->config.topk = (uint32_t)view->values;
        nep_result result = nep_handle_open(handle);
        if (result != NEP_SUCCESS)
            return result;
    }
    if (view->values != handle->config.topk || handle->handle == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "topk_idx has %zu experts a token, the handle %u", view->values,
                          handle->config.topk);
    return NEP_SUCCESS;
}

static nep_result update(struct ncclEpHandle *handle, const struct nep_view *topk, const struct nep_layout_info *info,
                         nep_stream stream)
{
    struct counters counters;
    nep_result result = open_counters(&counters, info, handle);
    if (result != NEP_SUCCESS)
        return result;
    const struct strait_ep_routing routing = {
        .size = sizeof(routing),
        .topk = topk->data,
        .tokens = (uint32_t)topk->rows,
        .topk_bytes = topk->type == NEP_INT32 ? 4 : 8,
        .expert_counts = counters.experts.values,
        .expert_offsets = counters.offsets.values,
        .total = counters.total.values,
    };
    result = nep_result_of(strait_ep_update(handle->handle, &routing, stream), "ncclEpUpdateHandle", "");
    if (result != NEP_SUCCESS)
        return result;
    handle->tokens = routing.tokens;
    handle->updated = true;
    handle->ids = info->ids;
    const uint32_t experts = handle->group->local_experts;
    if ((counts_zones(&counters, handle) && !count_zones(&counters, handle, stream)) ||
        !close_counter(&counters.experts, handle, experts, stream) ||
        !close_counter(&counters.offsets, handle, experts, stream) ||
        !close_counter(&counters.total, handle, 1, stream))
        return nep_refuse(NEP_CUDA_ERROR, "ncclEpUpdateHandle: the counts could not be copied");
    return NEP_SUCCESS;
}

nep_result ncclEpUpdateHandle(nep_handle handle, const struct nep_tensor *topk, const struct nep_layout_info *info,
                              nep_stream stream)
{
    struct nep_layout_info taken;
    struct nep_view view;
    nep_result result = NEP_TAKE(taken, info, NEP_LAYOUT_INFO_V1, true);
    if (result != NEP_SUCCESS)
        return result;
    if (handle == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpUpdateHandle: the handle is NULL");
    if (info != NULL && handle->group->config.algorithm == STRAIT_EP_LOW_LATENCY)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpUpdateHandle: LL has no layout_info before its dispatch");
    result = nep_view(&view, topk, handle->group->comm, false, "topk_idx");
    if (result == NEP_SUCCESS)
        result = take_topk(handle, &view);
    return result == NEP_SUCCESS ? update(handle, &view, &taken, stream) : result;
}

nep_result ncclEpCreateHandle(nep_handle *made, nep_group group, int layout, const struct nep_tensor *topk,
                              const struct nep_layout_info *info, const struct nep_handle_config *config,
                              nep_stream stream)
{
    struct nep_view view;
    nep_handle handle;
    if (group == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCreateHandle: the group is NULL");
    nep_result result = nep_view(&view, topk, group->comm, false, "topk_idx");
    if (result == NEP_SUCCESS)
        result = ncclEpInitHandle(&handle, group, layout, config, (int)view.values, NULL);
    if (result != NEP_SUCCESS)
        return result;
    result = ncclEpUpdateHandle(handle, topk, info, stream);
    if (result == NEP_SUCCESS)
        *made = handle;
    else
        ncclEpHandleDestroy(handle);
    return result;
}
