#include "ep/nccl_ep/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ep/nccl_ep/arguments.h"

#define TIMEOUT_NS  100000000000u /* NCCL EP's default */
#define SCALE_SHARE 16u           /* a token's scales are at most this part of its bytes */
#define TEXT_BYTES  256

nep_result ncclEpGetVersion(int *version)
{
    if (version == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpGetVersion: version is NULL");
    *version = NEP_VERSION;
    return NEP_SUCCESS;
}

/* ---- Bootstrap --------------------------------------------------------------------------------------------------- */

/* Memory that NCCL gathers by: of the host, then of the device, each for what is sent and all that comes. */
struct staging {
    uint8_t *host, *device;
    nep_stream stream;
};

static bool gather(const struct ncclEpGroup *group, const struct staging *staging, size_t bytes)
{
    const struct nep_memory *memory = group->memory;
    return memory->copy(staging->device, staging->host, bytes, staging->stream) &&
           nep_nccl()->AllGather(staging->device, staging->device + bytes, bytes, NEP_INT8, group->comm,
                                 staging->stream) == NEP_SUCCESS &&
           memory->copy(staging->host + bytes, staging->device + bytes, bytes * group->config.rank_count,
                        staging->stream) &&
           memory->wait(staging->stream);
}

/* strait_ep_all_gather of a communicator. */
static int gather_all(void *context, const void *send, void *receive, size_t bytes)
{
    const struct ncclEpGroup *group = context;
    const struct nep_memory *memory = group->memory;
    const size_t all = bytes * group->config.rank_count;
    if (!memory->enter(group->device))
        return -1;
    const struct staging staging = {memory->alloc_pinned(bytes + all), memory->alloc(bytes + all), memory->stream()};
    bool good = staging.host != NULL && staging.device != NULL;
    if (good)
        memcpy(staging.host, send, bytes);
    good = good && gather(group, &staging, bytes);
    if (good)
        memcpy(receive, staging.host + bytes, all);
    memory->stream_end(staging.stream);
    memory->free(staging.device);
    memory->free_pinned(staging.host);
    memory->leave();
    return good ? 0 : -1;
}

/* ---- Configuration ----------------------------------------------------------------------------------------------- */

static nep_result check_config(const struct nep_group_config *config)
{
    const bool ht = config->algorithm == NEP_HIGH_THROUGHPUT;
    const char *wrong =
        config->version == 0                          ? "version is 0"
        : config->algorithm != NEP_LOW_LATENCY && !ht ? "algorithm is neither LL nor HT"
        : config->experts == 0                        ? "num_experts is 0"
        : config->tokens_max == 0                     ? "max_dispatch_tokens_per_rank is 0"
        : config->token_bytes_max == 0                ? "max_token_bytes is 0"
        : ht && config->token_bytes_max % 16 != 0     ? "max_token_bytes is no multiple of 16"
        : ht && config->receive_max != 0 && config->receive_max < config->tokens_max
            ? "max_recv_tokens_per_rank is less than max_dispatch_tokens_per_rank"
        : config->overflow < NEP_OVERFLOW_AUTO || config->overflow > NEP_OVERFLOW_DROP ? "overflow_policy is unknown"
        : ht && config->overflow == NEP_OVERFLOW_DROP && config->receive_max == 0
            ? "overflow_policy DROP needs max_recv_tokens_per_rank"
        : config->topk_max > config->experts    ? "num_topk is more than num_experts"
        : config->topk_max > STRAIT_EP_TOPK_MAX ? "num_topk is more than 32"
        : ht && config->mask != 0               ? "enable_mask is for LL alone"
        : config->zero_copy < NEP_ZERO_COPY_AUTO || config->zero_copy > NEP_ZERO_COPY_ON ? "zero_copy is unknown"
        : (config->allocator.alloc == NULL) != (config->allocator.free == NULL) ? "alloc has one function of two"
                                                                                : NULL;
    return wrong == NULL ? NEP_SUCCESS : nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCreateGroup: %s", wrong);
}

/* What there is no counterpart of here; none of it changes a result. */
static void note_ignored(const struct nep_group_config *config)
{
    if (config->allocator.alloc != NULL)
        nep_note("alloc is not used: peers can only map memory of cudaMalloc");
    if (config->rdma_bytes != 0 || config->qps != 0)
        nep_note("rdma_buffer_size and num_qp_per_rank are not used: there is no RDMA here");
    if (config->zero_copy == NEP_ZERO_COPY_ON)
        nep_note("zero_copy ON is as AUTO: rows are staged where tensors are not in reach of peers");
}

static uint64_t timeout_of(const struct nep_group_config *config)
{
    const char *text = getenv("NCCL_EP_TIMEOUT_MS");
    char *end = NULL;
    const unsigned long long ms = text != NULL ? strtoull(text, &end, 10) : 0;
    if (ms > 0 && ms < UINT64_MAX / 1000000 && *end == '\0')
        return ms * 1000000;
    return config->timeout_ns != 0 ? config->timeout_ns : TIMEOUT_NS;
}

/* Whether rows are compressed: nothing in NCCL EP's interface says so. */
static nep_result read_coding(enum strait_ep_coding *coding)
{
    static const char *const names[] = {"auto", "raw", "coded"};
    const char *text = getenv("STRAIT_EP_CODING");
    *coding = STRAIT_EP_AUTO;
    if (text == NULL || text[0] == '\0')
        return NEP_SUCCESS;
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *coding = (enum strait_ep_coding)i;
            return NEP_SUCCESS;
        }
    return nep_refuse(NEP_INVALID_ARGUMENT, "STRAIT_EP_CODING is auto, raw or coded, not '%s'", text);
}

static uint32_t round_up(uint32_t value, uint32_t multiple)
{
    return value > UINT32_MAX - multiple ? UINT32_MAX / multiple * multiple
                                         : (value + multiple - 1) / multiple * multiple;
}

static nep_result translate(struct ncclEpGroup *group, const struct nep_group_config *config)
{
    struct strait_ep_config *ours = &group->config;
    ours->size = sizeof(*ours);
    ours->all_gather = gather_all;
    ours->context = group;
    ours->algorithm = config->algorithm == NEP_LOW_LATENCY ? STRAIT_EP_LOW_LATENCY : STRAIT_EP_HIGH_THROUGHPUT;
    ours->memory = nep_memory_is_cuda(group->memory) ? STRAIT_EP_CUDA : STRAIT_EP_HOST;
    ours->experts = config->experts;
    ours->tokens_max = config->tokens_max;
    ours->receive_max = config->algorithm == NEP_HIGH_THROUGHPUT ? config->receive_max : 0;
    ours->row_bytes_max = round_up(config->token_bytes_max, 16);
    ours->scale_bytes_max = round_up(config->token_bytes_max / SCALE_SHARE, 16);
    ours->topk_max = config->topk_max != 0                  ? config->topk_max
                     : config->experts < STRAIT_EP_TOPK_MAX ? config->experts
                                                            : STRAIT_EP_TOPK_MAX;
    ours->sm_budget = config->sms != 0 ? config->sms : 2 * config->channels; /* a channel is two */
    ours->overflow = config->overflow == NEP_OVERFLOW_DROP ? STRAIT_EP_DROP : STRAIT_EP_TRAP;
    ours->mask = config->mask != 0;
    ours->timeout_ns = timeout_of(config);
    return read_coding(&ours->coding);
}

/* Who the ranks are, as the communicator says. */
static nep_result ask(struct ncclEpGroup *group)
{
    const struct nep_nccl *nccl = nep_nccl();
    int rank = -1, ranks = 0;
    if (nccl == NULL)
        return nep_refuse(NEP_SYSTEM_ERROR, "ncclEpCreateGroup: there is no NCCL in this process");
    if (nccl->CommUserRank(group->comm, &rank) != NEP_SUCCESS || nccl->CommCount(group->comm, &ranks) != NEP_SUCCESS)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCreateGroup: NCCL does not know the communicator");
    if (nccl->CommCuDevice(group->comm, &group->device) != NEP_SUCCESS)
        group->device = -1;
    group->config.rank = (uint32_t)rank;
    group->config.rank_count = (uint32_t)ranks;
    group->memory = nep_memory(group->device);
    return NEP_SUCCESS;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static nep_result open_group(struct ncclEpGroup *group)
{
    char text[TEXT_BYTES] = "";
    if (!group->memory->enter(group->device))
        return nep_refuse(NEP_CUDA_ERROR, "ncclEpCreateGroup: device %d cannot be used", group->device);
    const enum strait_status status = strait_ep_group_create(&group->config, &group->group, text, sizeof(text));
    group->memory->leave();
    if (status != STRAIT_OK)
        group->group = NULL;
    return nep_result_of(status, "ncclEpCreateGroup", text);
}

static nep_result make_room(struct ncclEpGroup *group)
{
    const struct strait_ep_config *config = &group->config;
    if (config->algorithm != STRAIT_EP_LOW_LATENCY)
        return NEP_SUCCESS;
    if (!group->memory->enter(group->device))
        return nep_refuse(NEP_CUDA_ERROR, "ncclEpCreateGroup: device %d cannot be used", group->device);
    group->quantized = group->memory->alloc((size_t)config->tokens_max * config->row_bytes_max);
    group->memory->leave();
    return group->quantized != NULL ? NEP_SUCCESS : nep_refuse(NEP_SYSTEM_ERROR, "ncclEpCreateGroup: out of memory");
}

/* Waits for the group's work. */
static void end(struct ncclEpGroup *group)
{
    strait_ep_group_destroy(group->group);
    if (group->quantized != NULL && group->memory->enter(group->device)) {
        group->memory->free(group->quantized);
        group->memory->leave();
    }
    free(group);
}

nep_result ncclEpCreateGroup(nep_group *made, nep_comm comm, const struct nep_group_config *config)
{
    struct nep_group_config taken;
    nep_result result = NEP_TAKE(taken, config, NEP_GROUP_CONFIG_V1, false);
    if (result == NEP_SUCCESS && (made == NULL || comm == NULL))
        result = nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpCreateGroup: a group or a communicator is NULL");
    if (result == NEP_SUCCESS)
        result = check_config(&taken);
    if (result != NEP_SUCCESS)
        return result;
    struct ncclEpGroup *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return nep_refuse(NEP_SYSTEM_ERROR, "ncclEpCreateGroup: out of memory");
    group->comm = comm;
    result = ask(group);
    if (result == NEP_SUCCESS)
        result = translate(group, &taken);
    if (result == NEP_SUCCESS)
        result = open_group(group);
    if (result == NEP_SUCCESS)
        result = make_room(group);
    if (result != NEP_SUCCESS) {
        end(group);
        return result;
    }
    note_ignored(&taken);
    group->local_experts = taken.experts / group->config.rank_count;
    *made = group;
    return NEP_SUCCESS;
}

nep_result ncclEpGroupDestroy(nep_group group)
{
    if (group == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpGroupDestroy: the group is NULL");
    if (group->handles != NULL)
        return nep_refuse(NEP_INVALID_USAGE, "ncclEpGroupDestroy: the group has handles yet");
    end(group);
    return NEP_SUCCESS;
}

/* ---- Ranks that are left out ------------------------------------------------------------------------------------- */

static nep_result check_masked(const struct ncclEpGroup *group, const void *pointer, const char *function)
{
    if (group == NULL || pointer == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s: an argument is NULL", function);
    if (!group->config.mask)
        return nep_refuse(NEP_INVALID_USAGE, "%s: the group was made without enable_mask", function);
    if (group->group == NULL)
        return nep_refuse(NEP_INVALID_USAGE, "%s: the last ncclEpMaskClean failed", function);
    return NEP_SUCCESS;
}

/* The caller's ranks are in memory of the device. */
static bool write_ranks(const struct ncclEpGroup *group, int *mask, const int32_t *ranks, nep_stream stream)
{
    const struct nep_memory *memory = group->memory;
    const size_t bytes = group->config.rank_count * sizeof(ranks[0]);
    if (!memory->enter(group->device))
        return false;
    void *host = memory->alloc_pinned(bytes);
    if (host != NULL)
        memcpy(host, ranks, bytes);
    const bool good = host != NULL && memory->copy(mask, host, bytes, stream) && memory->wait(stream);
    memory->free_pinned(host);
    memory->leave();
    return good;
}

nep_result ncclEpMaskQuery(nep_group group, int *mask, nep_stream stream)
{
    int32_t ranks[STRAIT_EP_RANKS_MAX];
    nep_result result = check_masked(group, mask, "ncclEpMaskQuery");
    if (result == NEP_SUCCESS)
        result = nep_result_of(strait_ep_mask_get(group->group, ranks, stream), "ncclEpMaskQuery", "");
    if (result == NEP_SUCCESS && !write_ranks(group, mask, ranks, stream))
        result = nep_refuse(NEP_CUDA_ERROR, "ncclEpMaskQuery: the ranks could not be copied");
    return result;
}

nep_result ncclEpMaskUpdate(nep_group group, const int *mask, nep_stream stream)
{
    int32_t ranks[STRAIT_EP_RANKS_MAX];
    nep_result result = check_masked(group, mask, "ncclEpMaskUpdate");
    if (result != NEP_SUCCESS)
        return result;
    for (uint32_t i = 0; i < group->config.rank_count; i++)
        ranks[i] = mask[i] != 0;
    return nep_result_of(strait_ep_mask_set(group->group, ranks, stream), "ncclEpMaskUpdate", "");
}

/* A rank that was left out has missed calls, so all ranks, that one included, make the group and its handles anew.
 * Handles need an update before their next dispatch, and graphs have to be captured again. */
nep_result ncclEpMaskClean(nep_group group, nep_stream stream)
{
    int32_t ranks[STRAIT_EP_RANKS_MAX];
    nep_result result = check_masked(group, group, "ncclEpMaskClean");
    if (result != NEP_SUCCESS)
        return result;
    (void)strait_ep_mask_get(group->group, ranks, stream); /* waits for the stream */
    for (struct ncclEpHandle *handle = group->handles; handle != NULL; handle = handle->next) {
        strait_ep_handle_destroy(handle->handle);
        handle->handle = NULL;
        handle->updated = false;
    }
    strait_ep_group_destroy(group->group);
    result = open_group(group);
    for (struct ncclEpHandle *handle = group->handles; handle != NULL && result == NEP_SUCCESS; handle = handle->next)
        if (handle->config.topk != 0)
            result = nep_handle_open(handle);
    return result;
}

nep_result ncclEpGetAsyncError(nep_group group, int *error)
{
    if (group == NULL || error == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpGetAsyncError: an argument is NULL");
    *error = group->group == NULL || strait_ep_async_error(group->group, NULL) != STRAIT_OK;
    return NEP_SUCCESS;
}

nep_result ncclEpErrorClear(nep_group group)
{
    nep_result result = check_masked(group, group, "ncclEpErrorClear");
    if (result == NEP_SUCCESS)
        strait_ep_error_clear(group->group);
    return result;
}
