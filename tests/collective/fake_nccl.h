/* NCCL's functions, declared from its documentation and not from collective/api.h, and what a fake NCCL tells of the
 * calls that reached it. */
#ifndef STRAIT_TESTS_COLLECTIVE_FAKE_NCCL_H
#define STRAIT_TESTS_COLLECTIVE_FAKE_NCCL_H

#include "collective/api.h"

#define FAKE_VISIBLE __attribute__((visibility("default")))

/* clang-format off */

/* Every function by its name. */
#define FAKE_NAMES(X) \
    X(MemAlloc) X(MemFree) X(GetVersion) X(GetUniqueId) X(GetErrorString) X(GetLastError) X(ResetDebugInit) \
    X(CommInitRank) X(CommInitRankConfig) X(CommInitAll) X(CommSplit) X(CommFinalize) X(CommDestroy) X(CommAbort) \
    X(CommGetAsyncError) X(CommCount) X(CommCuDevice) X(CommUserRank) X(CommRegister) X(CommDeregister) \
    X(RedOpCreatePreMulSum) X(RedOpDestroy) \
    X(AllGather) X(AllReduce) X(Bcast) X(Broadcast) X(Reduce) X(ReduceScatter) X(Send) X(Recv) \
    X(GroupStart) X(GroupEnd) FAKE_NEW_NAMES(X)

/* Those that an older NCCL does not have. */
#define FAKE_NEW_NAMES(X) \
    X(CommInitRankScalable) X(CommShrink) X(CommRevoke) X(CommWindowRegister) X(CommWindowDeregister) \
    X(AlltoAll) X(Gather) X(Scatter) X(GroupSimulateEnd) \
    X(DevCommCreate) X(DevCommDestroy) X(GinBarrierCreateRequirement) X(LsaBarrierCreateRequirement) \
    X(LLA2ACreateRequirement) X(LLA2ACalcSlots) X(TeamWorld) X(TeamLsa) X(TeamRail) X(TeamRankToWorld) \
    X(TeamRankToLsa)

/* clang-format on */

typedef coll_result result_of;
#define COLLECTIVE_TAIL coll_comm comm, coll_stream stream

/* Declared as NAME here; the fake defines them as pncclNAME with weak aliases ncclNAME. */
#define FAKE_DECLARE(p)                                                                                             \
    result_of p##MemAlloc(void **ptr, size_t size);                                                                 \
    result_of p##MemFree(void *ptr);                                                                                \
    result_of p##GetVersion(int *version);                                                                          \
    result_of p##GetUniqueId(coll_id *id);                                                                          \
    const char *p##GetErrorString(coll_result result);                                                              \
    const char *p##GetLastError(coll_comm comm);                                                                    \
    void p##ResetDebugInit(void);                                                                                   \
    result_of p##CommInitRank(coll_comm *comm, int nranks, coll_id id, int rank);                                   \
    result_of p##CommInitRankConfig(coll_comm *comm, int nranks, coll_id id, int rank, void *config);               \
    result_of p##CommInitRankScalable(coll_comm *comm, int nranks, int rank, int nid, coll_id *ids, void *config);  \
    result_of p##CommInitAll(coll_comm *comms, int ndev, const int *devices);                                       \
    result_of p##CommSplit(coll_comm comm, int color, int key, coll_comm *child, void *config);                     \
    result_of p##CommShrink(coll_comm comm, int *list, int count, coll_comm *child, void *config, int flags);       \
    result_of p##CommFinalize(coll_comm comm);                                                                      \
    result_of p##CommDestroy(coll_comm comm);                                                                       \
    result_of p##CommAbort(coll_comm comm);                                                                         \
    result_of p##CommRevoke(coll_comm comm, int flags);                                                             \
    result_of p##CommGetAsyncError(coll_comm comm, coll_result *error);                                             \
    result_of p##CommCount(coll_comm comm, int *count);                                                             \
    result_of p##CommCuDevice(coll_comm comm, int *device);                                                         \
    result_of p##CommUserRank(coll_comm comm, int *rank);                                                           \
    result_of p##CommRegister(coll_comm comm, void *buffer, size_t size, void **handle);                            \
    result_of p##CommDeregister(coll_comm comm, void *handle);                                                      \
    result_of p##CommWindowRegister(coll_comm comm, void *buffer, size_t size, coll_window *window, int flags);     \
    result_of p##CommWindowDeregister(coll_comm comm, coll_window window);                                          \
    result_of p##RedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, coll_comm comm);              \
    result_of p##RedOpDestroy(int op, coll_comm comm);                                                              \
    result_of p##AllGather(const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL);                  \
    result_of p##AllReduce(const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL);          \
    result_of p##AlltoAll(const void *send, void *recv, size_t count, int type, COLLECTIVE_TAIL);                   \
    result_of p##Bcast(void *buffer, size_t count, int type, int root, COLLECTIVE_TAIL);                            \
    result_of p##Broadcast(const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL);        \
    result_of p##Gather(const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL);           \
    result_of p##Reduce(const void *send, void *recv, size_t count, int type, int op, int root, COLLECTIVE_TAIL);   \
    result_of p##ReduceScatter(const void *send, void *recv, size_t count, int type, int op, COLLECTIVE_TAIL);      \
    result_of p##Scatter(const void *send, void *recv, size_t count, int type, int root, COLLECTIVE_TAIL);          \
    result_of p##Send(const void *send, size_t count, int type, int peer, COLLECTIVE_TAIL);                         \
    result_of p##Recv(void *recv, size_t count, int type, int peer, COLLECTIVE_TAIL);                               \
    result_of p##GroupStart(void);                                                                                  \
    result_of p##GroupEnd(void);                                                                                    \
    result_of p##GroupSimulateEnd(void *info);                                                                      \
    result_of p##DevCommCreate(coll_comm comm, const void *requirements, void *made);                               \
    result_of p##DevCommDestroy(coll_comm comm, const void *made);                                                  \
    result_of p##GinBarrierCreateRequirement(coll_comm comm, coll_team team, int n, void *handle, void *resources); \
    result_of p##LsaBarrierCreateRequirement(coll_team team, int n, void *handle, void *resources);                 \
    result_of p##LLA2ACreateRequirement(int blocks, int slots, void *handle, void *resources);                      \
    int p##LLA2ACalcSlots(int elements, int size);                                                                  \
    coll_team p##TeamWorld(coll_comm comm);                                                                         \
    coll_team p##TeamLsa(coll_comm comm);                                                                           \
    coll_team p##TeamRail(coll_comm comm);                                                                          \
    int p##TeamRankToWorld(coll_comm comm, coll_team team, int rank);                                               \
    int p##TeamRankToLsa(coll_comm comm, coll_team team, int rank);

FAKE_DECLARE(nccl)
FAKE_DECLARE(pnccl)

/* ---- What the fake tells, and is told; found with dlsym. Of the calling thread ----------------------------------- */

/* The lines of the calls that have come since the last time, one for each: its name and arguments. */
const char *fake_take(void);
/* From now on: what functions return, and whether they do no more than that. */
void fake_answer(int result, int blind);
const char *fake_last_error(void);

#define FAKE_VERSION     22809
#define FAKE_VERSION_OLD 21805

/* As NCCL names its functions. */
#define ALIAS(name) __typeof__(nccl##name) nccl##name __attribute__((weak, alias("pnccl" #name)));

/* Writes a line, and returns what this thread is to be answered. */
__attribute__((format(printf, 1, 2), visibility("hidden"))) int told(const char *format, ...);

#endif
