/* A libnccl.so.2 that moves nothing: it writes down what it was called with. Built a second time as an older NCCL,
 * without what came later. Like NCCL it exports pncclX and weak aliases ncclX, and calls some of the latter itself. */
#include "tests/collective/fake_nccl.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)
struct ncclComm {
    int rank, ranks;
    bool starting; /* does not block, and has not been asked yet */
};

enum { PENDING_MAX = 64 };

static _Thread_local struct {
    char lines[1 << 16], taken[1 << 16];
    size_t size;
    int result;
    bool blind;
    int depth, pending_count;
    struct {
        coll_comm *slot, comm;
    } pending[PENDING_MAX];
} here;

/* ---- For tests --------------------------------------------------------------------------------------------------- */

const char *fake_take(void)
{
    memcpy(here.taken, here.lines, here.size);
    here.taken[here.size] = '\0';
    here.size = 0;
    return here.taken;
}

void fake_answer(int result, int blind)
{
    here.result = result;
    here.blind = blind;
}

const char *fake_last_error(void)
{
    static const char text[] = "fake: the last error";
    return text;
}

int told(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof(line) - 1, format, arguments);
    va_end(arguments);
    line[size++] = '\n';
    if (here.size + (size_t)size < sizeof(here.lines)) {
        memcpy(here.lines + here.size, line, (size_t)size);
        here.size += (size_t)size;
    }
    return here.result;
}

static const char *hex(const coll_id *id)
{
    static _Thread_local char text[2 * COLL_ID_BYTES + 1];
    for (unsigned i = 0; i < COLL_ID_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)id->bytes[i]);
    return text;
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

/* At once, or when the group ends: until then the slot is as it was. */
static int make(int result, coll_comm *slot, int rank, int ranks, const int *config)
{
    if (here.blind || result != COLL_SUCCESS)
        return result;
    coll_comm comm = calloc(1, sizeof(*comm));
    *comm = (struct ncclComm){rank, ranks, config != NULL && *config == 0};
    if (here.depth == 0) {
        *slot = comm;
        return comm->starting ? COLL_IN_PROGRESS : result;
    }
    here.pending[here.pending_count].slot = slot;
    here.pending[here.pending_count++].comm = comm;
    return result;
}

int pncclCommInitRank(coll_comm *comm, int nranks, coll_id id, int rank)
{
    return make(told("CommInitRank %p %d %s %d", (void *)comm, nranks, hex(&id), rank), comm, rank, nranks, NULL);
}
ALIAS(CommInitRank)

int pncclCommInitRankConfig(coll_comm *comm, int nranks, coll_id id, int rank, void *config)
{
    return make(told("CommInitRankConfig %p %d %s %d %p", (void *)comm, nranks, hex(&id), rank, config), comm, rank,
                nranks, config);
}
ALIAS(CommInitRankConfig)

int pncclCommInitAll(coll_comm *comms, int ndev, const int *devices)
{
    int result = told("CommInitAll %p %d %p", (void *)comms, ndev, (const void *)devices);
    for (int i = 0; i < ndev && !here.blind; i++)
        make(result, &comms[i], i, ndev, NULL);
    return result;
}
ALIAS(CommInitAll)

/* The children of this NCCL have three ranks; color -1 is left out. */
int pncclCommSplit(coll_comm comm, int color, int key, coll_comm *child, void *config)
{
    int result = told("CommSplit %p %d %d %p %p", (void *)comm, color, key, (void *)child, config);
    if (color >= 0)
        return make(result, child, 2, 3, config);
    if (!here.blind)
        *child = NULL;
    return result;
}
ALIAS(CommSplit)

int pncclCommFinalize(coll_comm comm)
{
    return told("CommFinalize %p", (void *)comm);
}
ALIAS(CommFinalize)

int pncclCommDestroy(coll_comm comm)
{
    int result = told("CommDestroy %p", (void *)comm);
    if (!here.blind && result == COLL_SUCCESS)
        free(comm);
    return result;
}
ALIAS(CommDestroy)

int pncclCommAbort(coll_comm comm)
{
    int result = told("CommAbort %p", (void *)comm);
    if (!here.blind && result == COLL_SUCCESS)
        free(comm);
    return result;
}
ALIAS(CommAbort)

int pncclCommGetAsyncError(coll_comm comm, coll_result *error)
{
    int result = told("CommGetAsyncError %p %p", (void *)comm, (void *)error);
    if (here.blind)
        return result;
    *error = comm->starting ? COLL_IN_PROGRESS : COLL_SUCCESS;
    comm->starting = false;
    return result;
}
ALIAS(CommGetAsyncError)

/* NCCL refuses these while a communicator is not ready. */
int pncclCommCount(coll_comm comm, int *count)
{
    int result = told("CommCount %p %p", (void *)comm, (void *)count);
    if (here.blind || result != COLL_SUCCESS)
        return result;
    *count = comm->ranks;
    return comm->starting ? 4 : COLL_SUCCESS;
}
ALIAS(CommCount)

int pncclCommUserRank(coll_comm comm, int *rank)
{
    int result = told("CommUserRank %p %p", (void *)comm, (void *)rank);
    if (here.blind || result != COLL_SUCCESS)
        return result;
    *rank = comm->rank;
    return comm->starting ? 4 : COLL_SUCCESS;
}
ALIAS(CommUserRank)

int pncclCommCuDevice(coll_comm comm, int *device)
{
    return told("CommCuDevice %p %p", (void *)comm, (void *)device);
}
ALIAS(CommCuDevice)

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

int pncclGroupStart(void)
{
    int result = told("GroupStart");
    here.depth += result == COLL_SUCCESS && !here.blind;
    return result;
}
ALIAS(GroupStart)

static int end_group(int result)
{
    if (here.blind)
        return result;
    if (here.depth == 0)
        return COLL_INVALID_USAGE;
    if (--here.depth > 0)
        return result;
    for (int i = 0; i < here.pending_count; i++) {
        coll_comm comm = here.pending[i].comm;
        if (result == COLL_SUCCESS)
            *here.pending[i].slot = comm;
        else
            free(comm);
    }
    here.pending_count = 0;
    return result;
}

int pncclGroupEnd(void)
{
    return end_group(told("GroupEnd"));
}
ALIAS(GroupEnd)

#ifndef FAKE_OLD
int pncclCommInitRankScalable(coll_comm *comm, int nranks, int rank, int nid, coll_id *ids, void *config)
{
    return make(told("CommInitRankScalable %p %d %d %d %p %p", (void *)comm, nranks, rank, nid, (void *)ids, config),
                comm, rank, nranks, config);
}
ALIAS(CommInitRankScalable)

int pncclCommShrink(coll_comm comm, int *list, int count, coll_comm *child, void *config, int flags)
{
    int result = told("CommShrink %p %p %d %p %p %d", (void *)comm, (void *)list, count, (void *)child, config, flags);
    return make(result, child, 0, 3, config);
}
ALIAS(CommShrink)

int pncclGroupSimulateEnd(void *info)
{
    return end_group(told("GroupSimulateEnd %p", info));
}
ALIAS(GroupSimulateEnd)
#endif

/* ---- Calls that are only written down --------------------------------------------------------------------------- */

/* clang-format off */
#define RECORD(name, parameters, format, ...) int pnccl##name parameters { return told(#name " " format, __VA_ARGS__); } ALIAS(name)
/* clang-format on */

RECORD(MemAlloc, (void **ptr, size_t size), "%p %zu", (void *)ptr, size)
RECORD(MemFree, (void *ptr), "%p", ptr)

int pncclGetVersion(int *version)
{
#ifdef FAKE_OLD
    *version = FAKE_VERSION_OLD;
#else
    *version = FAKE_VERSION;
#endif
    return told("GetVersion %p", (void *)version);
}
ALIAS(GetVersion)

RECORD(GetUniqueId, (coll_id * id), "%p", (void *)id)

const char *pncclGetErrorString(coll_result result)
{
    told("GetErrorString %d", result);
    return fake_last_error() + result;
}
ALIAS(GetErrorString)

const char *pncclGetLastError(coll_comm comm)
{
    told("GetLastError %p", (void *)comm);
    return fake_last_error();
}
ALIAS(GetLastError)

void pncclResetDebugInit(void)
{
    told("ResetDebugInit");
}
ALIAS(ResetDebugInit)

RECORD(CommRegister, (coll_comm comm, void *buffer, size_t size, void **handle), "%p %p %zu %p", (void *)comm, buffer,
       size, (void *)handle)
RECORD(CommDeregister, (coll_comm comm, void *handle), "%p %p", (void *)comm, handle)
RECORD(RedOpCreatePreMulSum, (int *op, void *scalar, int type, int residence, coll_comm comm), "%p %p %d %d %p",
       (void *)op, scalar, type, residence, (void *)comm)
RECORD(RedOpDestroy, (int op, coll_comm comm), "%d %p", op, (void *)comm)
RECORD(AllGather, (const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL), "%p %p %zu %d %p %p", send,
       recv, count, type, (void *)comm, (void *)stream)
RECORD(AllReduce, (const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL),
       "%p %p %zu %d %d %p %p", send, recv, count, type, op, (void *)comm, (void *)stream)
RECORD(Broadcast, (const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL),
       "%p %p %zu %d %d %p %p", send, recv, count, type, root, (void *)comm, (void *)stream)

/* As NCCL does it: by way of a name that others override. */
int pncclBcast(void *buffer, size_t count, int type, int root, COLLECTIVE_TAIL)
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
ALIAS(Bcast)

RECORD(Reduce, (const void *send, void *recv, size_t count, int type, int op, int root, COLLECTIVE_TAIL),
       "%p %p %zu %d %d %d %p %p", send, recv, count, type, op, root, (void *)comm, (void *)stream)
RECORD(ReduceScatter, (const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL),
       "%p %p %zu %d %d %p %p", send, recv, count, type, op, (void *)comm, (void *)stream)
RECORD(Send, (const void *send, size_t count, int type, int peer, COLLECTIVE_TAIL), "%p %zu %d %d %p %p", send, count,
       type, peer, (void *)comm, (void *)stream)
RECORD(Recv, (void *recv, size_t count, int type, int peer, COLLECTIVE_TAIL), "%p %zu %d %d %p %p", recv, count, type,
       peer, (void *)comm, (void *)stream)

/* ---- Calls that an older one lacks ------------------------------------------------------------------------------- */

#ifndef FAKE_OLD
RECORD(CommRevoke, (coll_comm comm, int flags), "%p %d", (void *)comm, flags)
RECORD(CommWindowRegister, (coll_comm comm, void *buffer, size_t size, coll_window *window, int flags),
       "%p %p %zu %p %d", (void *)comm, buffer, size, (void *)window, flags)
RECORD(CommWindowDeregister, (coll_comm comm, coll_window window), "%p %p", (void *)comm, (void *)window)
RECORD(AlltoAll, (const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL), "%p %p %zu %d %p %p", send,
       recv, count, type, (void *)comm, (void *)stream)
RECORD(Gather, (const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL),
       "%p %p %zu %d %d %p %p", send, recv, count, type, root, (void *)comm, (void *)stream)
RECORD(Scatter, (const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL),
       "%p %p %zu %d %d %p %p", send, recv, count, type, root, (void *)comm, (void *)stream)
RECORD(DevCommCreate, (coll_comm comm, const void *requirements, void *made), "%p %p %p", (void *)comm, requirements,
       made)
RECORD(DevCommDestroy, (coll_comm comm, const void *made), "%p %p", (void *)comm, made)
RECORD(GinBarrierCreateRequirement, (coll_comm comm, coll_team team, int n, void *handle, void *resources),
       "%p %d %d %d %d %p %p", (void *)comm, team.ranks, team.rank, team.stride, n, handle, resources)
RECORD(LsaBarrierCreateRequirement, (coll_team team, int n, void *handle, void *resources), "%d %d %d %d %p %p",
       team.ranks, team.rank, team.stride, n, handle, resources)
RECORD(LLA2ACreateRequirement, (int blocks, int slots, void *handle, void *resources), "%d %d %p %p", blocks, slots,
       handle, resources)
RECORD(LLA2ACalcSlots, (int elements, int size), "%d %d", elements, size)

/* Three fields that depend on who was asked. */
static coll_team team(int first)
{
    return (coll_team){first, first + 1, -first};
}

coll_team pncclTeamWorld(coll_comm comm)
{
    return team(10 + told("TeamWorld %p", (void *)comm));
}
ALIAS(TeamWorld)

coll_team pncclTeamLsa(coll_comm comm)
{
    return team(20 + told("TeamLsa %p", (void *)comm));
}
ALIAS(TeamLsa)

coll_team pncclTeamRail(coll_comm comm)
{
    return team(30 + told("TeamRail %p", (void *)comm));
}
ALIAS(TeamRail)

RECORD(TeamRankToWorld, (coll_comm comm, coll_team t, int rank), "%p %d %d %d %d", (void *)comm, t.ranks, t.rank,
       t.stride, rank)
RECORD(TeamRankToLsa, (coll_comm comm, coll_team t, int rank), "%p %d %d %d %d", (void *)comm, t.ranks, t.rank,
       t.stride, rank)
#endif

/* ---- Calls that came after 2.28 ---------------------------------------------------------------------------------- */

#ifndef FAKE_OLD
int pncclCommGrow(coll_comm comm, int nranks, const coll_id *id, int rank, coll_comm *grown, void *config)
{
    int result =
        told("CommGrow %p %d %p %d %p %p", (void *)comm, nranks, (const void *)id, rank, (void *)grown, config);
    return make(result, grown, rank < 0 ? 1 : rank, nranks, config);
}
ALIAS(CommGrow)

/* As bytes of GPU memory: what it is asked for, and what it is told. */
int pncclCommMemStats(coll_comm comm, int statistic, uint64_t *value)
{
    int result = told("CommMemStats %p %d %p", (void *)comm, statistic, (void *)value);
    if (!here.blind && result == COLL_SUCCESS)
        *value = 1000 + (uint64_t)statistic;
    return result;
}
ALIAS(CommMemStats)

RECORD(CommGetUniqueId, (coll_comm comm, coll_id *id), "%p %p", (void *)comm, (void *)id)
RECORD(CommSuspend, (coll_comm comm, int flags), "%p %d", (void *)comm, flags)
RECORD(CommResume, (coll_comm comm), "%p", (void *)comm)
RECORD(SetEncryption, (const coll_encryption *encryption), "%p", (const void *)encryption)
RECORD(WinGetUserPtr, (coll_comm comm, coll_window window, void **pointer), "%p %p %p", (void *)comm, (void *)window,
       (void *)pointer)
RECORD(PutSignal,
       (const void *send, size_t count, int type, int peer, coll_window window, size_t offset, int signal, int context,
        unsigned flags, COLLECTIVE_TAIL),
       "%p %zu %d %d %p %zu %d %d %u %p %p", send, count, type, peer, (void *)window, offset, signal, context, flags,
       (void *)comm, (void *)stream)
RECORD(Signal, (int peer, int signal, int context, unsigned flags, COLLECTIVE_TAIL), "%d %d %d %u %p %p", peer, signal,
       context, flags, (void *)comm, (void *)stream)
RECORD(WaitSignal, (int count, void *signals, COLLECTIVE_TAIL), "%d %p %p %p", count, signals, (void *)comm,
       (void *)stream)
RECORD(AllGatherConfig,
       (const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL, const coll_call_config *config),
       "%p %p %zu %d %p %p %p", send, recv, count, type, (void *)comm, (void *)stream, (const void *)config)
RECORD(AlltoAllConfig,
       (const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL, const coll_call_config *config),
       "%p %p %zu %d %p %p %p", send, recv, count, type, (void *)comm, (void *)stream, (const void *)config)
RECORD(AllReduceConfig,
       (const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL, const coll_call_config *config),
       "%p %p %zu %d %d %p %p %p", send, recv, count, type, op, (void *)comm, (void *)stream, (const void *)config)
RECORD(ReduceScatterConfig,
       (const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL, const coll_call_config *config),
       "%p %p %zu %d %d %p %p %p", send, recv, count, type, op, (void *)comm, (void *)stream, (const void *)config)
RECORD(BroadcastConfig,
       (const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL,
        const coll_call_config *config),
       "%p %p %zu %d %d %p %p %p", send, recv, count, type, root, (void *)comm, (void *)stream, (const void *)config)
RECORD(GatherConfig,
       (const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL,
        const coll_call_config *config),
       "%p %p %zu %d %d %p %p %p", send, recv, count, type, root, (void *)comm, (void *)stream, (const void *)config)
RECORD(ScatterConfig,
       (const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL,
        const coll_call_config *config),
       "%p %p %zu %d %d %p %p %p", send, recv, count, type, root, (void *)comm, (void *)stream, (const void *)config)
RECORD(ReduceConfig,
       (const void *send, void *recv, size_t count, int type, int op, int root, COLLECTIVE_TAIL,
        const coll_call_config *config),
       "%p %p %zu %d %d %d %p %p %p", send, recv, count, type, op, root, (void *)comm, (void *)stream,
       (const void *)config)
RECORD(CommQueryProperties, (coll_comm comm, void *properties), "%p %p", (void *)comm, properties)
RECORD(GinInboxA2ACreateRequirement, (coll_team team, int blocks, int size, void *handle, void *resources),
       "%d %d %d %d %d %p %p", team.ranks, team.rank, team.stride, blocks, size, handle, resources)
RECORD(GinOutboxCreateRequirement, (int blocks, int size, void *handle, void *resources), "%d %d %p %p", blocks, size,
       handle, resources)
RECORD(GetLsaDevicePointer, (coll_window window, size_t offset, int rank, void **pointer), "%p %zu %d %p",
       (void *)window, offset, rank, (void *)pointer)
RECORD(GetLsaMultimemDevicePointer, (coll_window window, size_t offset, void **pointer), "%p %zu %p", (void *)window,
       offset, (void *)pointer)
RECORD(GetMultimemDevicePointer, (coll_window window, size_t offset, coll_multimem multimem, void **pointer),
       "%p %zu %p %p", (void *)window, offset, multimem.base, (void *)pointer)
RECORD(GetPeerDevicePointer, (coll_window window, size_t offset, int peer, void **pointer), "%p %zu %d %p",
       (void *)window, offset, peer, (void *)pointer)
RECORD(GetCftDeviceLeInfo, (coll_window window, size_t offset, int peer, coll_team team, coll_cft_id *id, size_t *at),
       "%p %zu %d %d %d %d %p %p", (void *)window, offset, peer, team.ranks, team.rank, team.stride, (void *)id,
       (void *)at)
RECORD(GetMultimemDeviceLeInfo, (coll_window window, size_t offset, coll_cft_id *id, size_t *at), "%p %zu %p %p",
       (void *)window, offset, (void *)id, (void *)at)
RECORD(GetPeerDeviceLeInfo, (coll_window window, size_t offset, int peer, coll_cft_id *id, size_t *at),
       "%p %zu %d %p %p", (void *)window, offset, peer, (void *)id, (void *)at)

coll_team pncclTeamCft(coll_comm comm, coll_cft_mode mode)
{
    return team(40 + told("TeamCft %p %d", (void *)comm, mode));
}
ALIAS(TeamCft)

coll_team pncclTeamCftMultimem(coll_comm comm)
{
    return team(50 + told("TeamCftMultimem %p", (void *)comm));
}
ALIAS(TeamCftMultimem)

RECORD(ParamBind, (coll_param * param, const char *key), "%p %s", (void *)param, key)
RECORD(ParamGetI8, (coll_param param, int8_t *value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGetI16, (coll_param param, int16_t *value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGetI32, (coll_param param, int32_t *value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGetI64, (coll_param param, int64_t *value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGetU8, (coll_param param, uint8_t *value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGetU16, (coll_param param, uint16_t *value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGetU32, (coll_param param, uint32_t *value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGetU64, (coll_param param, uint64_t *value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGetStr, (coll_param param, const char **value), "%p %p", (void *)param, (void *)value)
RECORD(ParamGet, (coll_param param, void *value, int capacity, int *size), "%p %p %d %p", (void *)param, value,
       capacity, (void *)size)
RECORD(ParamGetParameter, (const char *key, const char **value, int *size), "%s %p %p", key, (void *)value,
       (void *)size)
RECORD(ParamGetAllParameterKeys, (const char ***keys, int *count), "%p %p", (void *)keys, (void *)count)

void pncclParamDumpAll(void)
{
    told("ParamDumpAll");
}
ALIAS(ParamDumpAll)
#endif
#pragma GCC visibility pop
