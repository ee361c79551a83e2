/* Calls that the fake NCCL only writes down. */
#include "tests/collective/fake_calls.h"

#pragma GCC visibility push(default)
/* ---- What is only written down -------------------------------------------------------------------------------------
 */

int pncclMemAlloc(void **ptr, size_t size)
{
    return told("MemAlloc %p %zu", (void *)ptr, size);
}
ALIAS(MemAlloc)

int pncclMemFree(void *ptr)
{
    return told("MemFree %p", ptr);
}
ALIAS(MemFree)

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

int pncclGetUniqueId(coll_id *id)
{
    return told("GetUniqueId %p", (void *)id);
}
ALIAS(GetUniqueId)

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

int pncclCommRegister(coll_comm comm, void *buffer, size_t size, void **handle)
{
    return told("CommRegister %p %p %zu %p", (void *)comm, buffer, size, (void *)handle);
}
ALIAS(CommRegister)

int pncclCommDeregister(coll_comm comm, void *handle)
{
    return told("CommDeregister %p %p", (void *)comm, handle);
}
ALIAS(CommDeregister)

int pncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, coll_comm comm)
{
    return told("RedOpCreatePreMulSum %p %p %d %d %p", (void *)op, scalar, type, residence, (void *)comm);
}
ALIAS(RedOpCreatePreMulSum)

int pncclRedOpDestroy(int op, coll_comm comm)
{
    return told("RedOpDestroy %d %p", op, (void *)comm);
}
ALIAS(RedOpDestroy)

int pncclAllGather(const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL)
{
    return told("AllGather %p %p %zu %d %p %p", send, recv, count, type, (void *)comm, (void *)stream);
}
ALIAS(AllGather)

int pncclAllReduce(const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL)
{
    return told("AllReduce %p %p %zu %d %d %p %p", send, recv, count, type, op, (void *)comm, (void *)stream);
}
ALIAS(AllReduce)

int pncclBroadcast(const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL)
{
    return told("Broadcast %p %p %zu %d %d %p %p", send, recv, count, type, root, (void *)comm, (void *)stream);
}
ALIAS(Broadcast)

/* As NCCL does it: by way of a name that others override. */
int pncclBcast(void *buffer, size_t count, int type, int root, COLLECTIVE_TAIL)
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
ALIAS(Bcast)

int pncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, COLLECTIVE_TAIL)
{
    return told("Reduce %p %p %zu %d %d %d %p %p", send, recv, count, type, op, root, (void *)comm, (void *)stream);
}
ALIAS(Reduce)

int pncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL)
{
    return told("ReduceScatter %p %p %zu %d %d %p %p", send, recv, count, type, op, (void *)comm, (void *)stream);
}
ALIAS(ReduceScatter)

int pncclSend(const void *send, size_t count, int type, int peer, COLLECTIVE_TAIL)
{
    return told("Send %p %zu %d %d %p %p", send, count, type, peer, (void *)comm, (void *)stream);
}
ALIAS(Send)

int pncclRecv(void *recv, size_t count, int type, int peer, COLLECTIVE_TAIL)
{
    return told("Recv %p %zu %d %d %p %p", recv, count, type, peer, (void *)comm, (void *)stream);
}
ALIAS(Recv)

/* ---- What an older one lacks ---------------------------------------------------------------------------------------
 */

#ifndef FAKE_OLD
int pncclCommRevoke(coll_comm comm, int flags)
{
    return told("CommRevoke %p %d", (void *)comm, flags);
}
ALIAS(CommRevoke)

int pncclCommWindowRegister(coll_comm comm, void *buffer, size_t size, coll_window *window, int flags)
{
    return told("CommWindowRegister %p %p %zu %p %d", (void *)comm, buffer, size, (void *)window, flags);
}
ALIAS(CommWindowRegister)

int pncclCommWindowDeregister(coll_comm comm, coll_window window)
{
    return told("CommWindowDeregister %p %p", (void *)comm, (void *)window);
}
ALIAS(CommWindowDeregister)

int pncclAlltoAll(const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL)
{
    return told("AlltoAll %p %p %zu %d %p %p", send, recv, count, type, (void *)comm, (void *)stream);
}
ALIAS(AlltoAll)

int pncclGather(const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL)
{
    return told("Gather %p %p %zu %d %d %p %p", send, recv, count, type, root, (void *)comm, (void *)stream);
}
ALIAS(Gather)

int pncclScatter(const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL)
{
    return told("Scatter %p %p %zu %d %d %p %p", send, recv, count, type, root, (void *)comm, (void *)stream);
}
ALIAS(Scatter)

int pncclDevCommCreate(coll_comm comm, const void *requirements, void *made)
{
    return told("DevCommCreate %p %p %p", (void *)comm, requirements, made);
}
ALIAS(DevCommCreate)

int pncclDevCommDestroy(coll_comm comm, const void *made)
{
    return told("DevCommDestroy %p %p", (void *)comm, made);
}
ALIAS(DevCommDestroy)

int pncclGinBarrierCreateRequirement(coll_comm comm, coll_team team, int n, void *handle, void *resources)
{
    return told("GinBarrierCreateRequirement %p %d %d %d %d %p %p", (void *)comm, team.ranks, team.rank, team.stride, n,
                handle, resources);
}
ALIAS(GinBarrierCreateRequirement)

int pncclLsaBarrierCreateRequirement(coll_team team, int n, void *handle, void *resources)
{
    return told("LsaBarrierCreateRequirement %d %d %d %d %p %p", team.ranks, team.rank, team.stride, n, handle,
                resources);
}
ALIAS(LsaBarrierCreateRequirement)

int pncclLLA2ACreateRequirement(int blocks, int slots, void *handle, void *resources)
{
    return told("LLA2ACreateRequirement %d %d %p %p", blocks, slots, handle, resources);
}
ALIAS(LLA2ACreateRequirement)

int pncclLLA2ACalcSlots(int elements, int size)
{
    return told("LLA2ACalcSlots %d %d", elements, size);
}
ALIAS(LLA2ACalcSlots)

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

int pncclTeamRankToWorld(coll_comm comm, coll_team t, int rank)
{
    return told("TeamRankToWorld %p %d %d %d %d", (void *)comm, t.ranks, t.rank, t.stride, rank);
}
ALIAS(TeamRankToWorld)

int pncclTeamRankToLsa(coll_comm comm, coll_team t, int rank)
{
    return told("TeamRankToLsa %p %d %d %d %d", (void *)comm, t.ranks, t.rank, t.stride, rank);
}
ALIAS(TeamRankToLsa)
#endif
#pragma GCC visibility pop
