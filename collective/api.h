/* NCCL's interface as of 2.28, as far as passing calls on requires: types and their sizes, operations, functions, and
 * the hooks that calls go through. So this folder builds without NCCL; where its header is found, check_header.c
 * compares. Enums are ints here. */
#ifndef STRAIT_COLLECTIVE_API_H
#define STRAIT_COLLECTIVE_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef COLL_TYPES_OF_NCCL /* else those of its headers (check_header.c) */

/* ---- Types ------------------------------------------------------------------------------------------------------- */

#define COLL_ID_BYTES 128u

/* Passed by value. */
typedef struct {
    char bytes[COLL_ID_BYTES];
} coll_id;

typedef struct {
    int ranks, rank, stride;
} coll_team;

typedef struct ncclComm *coll_comm;
typedef struct CUstream_st *coll_stream;
typedef struct ncclWindow_vidmem *coll_window;
typedef int coll_result, coll_type, coll_reduction, coll_residence;

/* Used behind pointers only. */
typedef void coll_config, coll_simulation;
typedef void coll_dev_requirements, coll_dev_comm, coll_dev_resources;
typedef void coll_gin_barrier, coll_ll_a2a, coll_lsa_barrier;

/* Results that this library tests or returns. */
enum {
    COLL_SUCCESS = 0,
    COLL_UNHANDLED_CUDA_ERROR = 1,
    COLL_SYSTEM_ERROR = 2,
    COLL_INTERNAL_ERROR = 3,
    COLL_INVALID_USAGE = 5,
    COLL_REMOTE_ERROR = 6,
    COLL_IN_PROGRESS = 7,
};

/* Flags that this library tests. */
enum {
    COLL_SHRINK_ABORT = 1,
};

/* Reductions that this library tests. */
enum {
    COLL_SUM = 0,
    COLL_AVG = 4,
};

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* NCCL's operations. Composite ones (AllToAllv as grouped sends and receives, dispatch and combine of experts) will get
 * rows of their own. */
#define COLL_OPERATION_MAP(X)           \
    X(ALL_GATHER, "all_gather")         \
    X(ALL_REDUCE, "all_reduce")         \
    X(ALL_TO_ALL, "all_to_all")         \
    X(BROADCAST, "broadcast")           \
    X(GATHER, "gather")                 \
    X(REDUCE, "reduce")                 \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(SCATTER, "scatter")               \
    X(SEND, "send")                     \
    X(RECV, "recv")

/* name, NCCL's value, bytes of an element, text; the last row is for unknown values */
#define COLL_TYPE_MAP(X)       \
    X(INT8, 0, 1, "int8")      \
    X(UINT8, 1, 1, "uint8")    \
    X(INT32, 2, 4, "int32")    \
    X(UINT32, 3, 4, "uint32")  \
    X(INT64, 4, 8, "int64")    \
    X(UINT64, 5, 8, "uint64")  \
    X(FP16, 6, 2, "fp16")      \
    X(FP32, 7, 4, "fp32")      \
    X(FP64, 8, 8, "fp64")      \
    X(BF16, 9, 2, "bf16")      \
    X(FP8_E4M3, 10, 1, "e4m3") \
    X(FP8_E5M2, 11, 1, "e5m2") \
    X(UNKNOWN, 12, 0, "unknown")

enum coll_operation {
#define X(name, text) COLL_##name,
    COLL_OPERATION_MAP(X)
#undef X
        COLL_OPERATIONS
};

enum coll_types {
#define X(name, value, bytes, text) COLL_##name = value,
    COLL_TYPE_MAP(X)
#undef X
        COLL_TYPES
};

struct coll_call {
    enum coll_operation operation;
    const void *send;
    void *receive;
    size_t count; /* as given to NCCL: for all_gather what one rank sends, for reduce_scatter what one receives */
    coll_type type;
    coll_reduction reduction; /* for operations that reduce */
    int peer;                 /* for send and recv; for broadcast, gather, reduce and scatter the root */
    coll_comm comm;
    coll_stream stream;
    /* State of the calling thread and of the stream at the time of the call. */
    bool grouped, captured;
    bool registered; /* the program has registered memory with NCCL before; of this process alone */
};

const char *coll_operation_name(enum coll_operation operation);
const char *coll_type_name(unsigned type);
unsigned coll_type_row(coll_type type);                 /* COLL_UNKNOWN for unknown types */
uint64_t coll_call_bytes(const struct coll_call *call); /* of `count` elements; 0 when the type is unknown */

#endif

/* ---- Functions --------------------------------------------------------------------------------------------------- */

/* X(returns, name, parameters, arguments, way, ...), for ncclNAME and pncclNAME each.
 *
 *   returns   RESULT, TEXT, NOTHING, TEAM or NUMBER
 *   way       HOOK: goes through coll_hook_NAME (hooks.c); FORWARD: straight to NCCL
 *   ...       of collectives, send and recv, the fields of struct coll_call in which they differ: operation,
 *             send, receive, reduction, and peer, which is the root where there is one. All of them have the parameters
 *             count, type, comm and stream, and their hooks are generated.
 *
 * Functions that an installed older NCCL lacks are NULL in struct coll_table. */
#define COLL_TYPE_RESULT  coll_result
#define COLL_TYPE_TEXT    const char *
#define COLL_TYPE_NOTHING void
#define COLL_TYPE_TEAM    coll_team
#define COLL_TYPE_NUMBER  int

/* clang-format off */

/* nccl.h */
#define COLL_API_HOST(X) \
    X(RESULT, MemAlloc, (void **pointer, size_t size), (pointer, size), FORWARD) \
    X(RESULT, MemFree, (void *pointer), (pointer), FORWARD) \
    X(RESULT, GetVersion, (int *version), (version), FORWARD) \
    X(RESULT, GetUniqueId, (coll_id *id), (id), HOOK) \
    X(TEXT, GetErrorString, (coll_result result), (result), FORWARD) \
    X(TEXT, GetLastError, (coll_comm comm), (comm), FORWARD) \
    X(NOTHING, ResetDebugInit, (void), (), FORWARD) \
    \
    X(RESULT, CommInitRank, (coll_comm *made, int ranks, coll_id id, int rank), (made, ranks, id, rank), HOOK) \
    X(RESULT, CommInitRankConfig, (coll_comm *made, int ranks, coll_id id, int rank, coll_config *config), \
      (made, ranks, id, rank, config), HOOK) \
    X(RESULT, CommInitRankScalable, \
      (coll_comm *made, int ranks, int rank, int id_count, coll_id *ids, coll_config *config), \
      (made, ranks, rank, id_count, ids, config), HOOK) \
    X(RESULT, CommInitAll, (coll_comm *made, int count, const int *devices), (made, count, devices), HOOK) \
    X(RESULT, CommSplit, (coll_comm comm, int color, int key, coll_comm *made, coll_config *config), \
      (comm, color, key, made, config), HOOK) \
    X(RESULT, CommShrink, \
      (coll_comm comm, int *excluded, int excluded_count, coll_comm *made, coll_config *config, int flags), \
      (comm, excluded, excluded_count, made, config, flags), HOOK) \
    X(RESULT, CommFinalize, (coll_comm comm), (comm), HOOK) \
    X(RESULT, CommDestroy, (coll_comm comm), (comm), HOOK) \
    X(RESULT, CommAbort, (coll_comm comm), (comm), HOOK) \
    X(RESULT, CommRevoke, (coll_comm comm, int flags), (comm, flags), HOOK) \
    X(RESULT, CommGetAsyncError, (coll_comm comm, coll_result *error), (comm, error), HOOK) \
    X(RESULT, CommCount, (const coll_comm comm, int *count), (comm, count), FORWARD) \
    X(RESULT, CommCuDevice, (const coll_comm comm, int *device), (comm, device), FORWARD) \
    X(RESULT, CommUserRank, (const coll_comm comm, int *rank), (comm, rank), FORWARD) \
    \
    X(RESULT, CommRegister, (const coll_comm comm, void *buffer, size_t size, void **handle), \
      (comm, buffer, size, handle), HOOK) \
    X(RESULT, CommDeregister, (const coll_comm comm, void *handle), (comm, handle), HOOK) \
    X(RESULT, CommWindowRegister, (coll_comm comm, void *buffer, size_t size, coll_window *window, int flags), \
      (comm, buffer, size, window, flags), HOOK) \
    X(RESULT, CommWindowDeregister, (coll_comm comm, coll_window window), (comm, window), HOOK) \
    X(RESULT, RedOpCreatePreMulSum, \
      (coll_reduction *made, void *scalar, coll_type type, coll_residence residence, coll_comm comm), \
      (made, scalar, type, residence, comm), FORWARD) \
    X(RESULT, RedOpDestroy, (coll_reduction reduction, coll_comm comm), (reduction, comm), FORWARD) \
    \
    X(RESULT, GroupStart, (void), (), HOOK) \
    X(RESULT, GroupEnd, (void), (), HOOK) \
    X(RESULT, GroupSimulateEnd, (coll_simulation *simulation), (simulation), HOOK)

/* nccl.h: collectives, send and recv */
#define COLL_API_OPERATIONS(X) \
    X(RESULT, AllGather, \
      (const void *send, void *receive, size_t count, coll_type type, coll_comm comm, coll_stream stream), \
      (send, receive, count, type, comm, stream), HOOK, ALL_GATHER, send, receive, 0, 0) \
    X(RESULT, AllReduce, (const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction, \
                          coll_comm comm, coll_stream stream), \
      (send, receive, count, type, reduction, comm, stream), HOOK, ALL_REDUCE, send, receive, reduction, 0) \
    X(RESULT, AlltoAll, \
      (const void *send, void *receive, size_t count, coll_type type, coll_comm comm, coll_stream stream), \
      (send, receive, count, type, comm, stream), HOOK, ALL_TO_ALL, send, receive, 0, 0) \
    X(RESULT, Bcast, (void *buffer, size_t count, coll_type type, int root, coll_comm comm, coll_stream stream), \
      (buffer, count, type, root, comm, stream), HOOK, BROADCAST, buffer, buffer, 0, root) \
    X(RESULT, Broadcast, (const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm, \
                          coll_stream stream), \
      (send, receive, count, type, root, comm, stream), HOOK, BROADCAST, send, receive, 0, root) \
    X(RESULT, Gather, (const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm, \
                       coll_stream stream), \
      (send, receive, count, type, root, comm, stream), HOOK, GATHER, send, receive, 0, root) \
    X(RESULT, Reduce, (const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction, \
                       int root, coll_comm comm, coll_stream stream), \
      (send, receive, count, type, reduction, root, comm, stream), HOOK, REDUCE, send, receive, reduction, root) \
    X(RESULT, ReduceScatter, (const void *send, void *receive, size_t count, coll_type type, \
                              coll_reduction reduction, coll_comm comm, coll_stream stream), \
      (send, receive, count, type, reduction, comm, stream), HOOK, REDUCE_SCATTER, send, receive, reduction, 0) \
    X(RESULT, Scatter, (const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm, \
                        coll_stream stream), \
      (send, receive, count, type, root, comm, stream), HOOK, SCATTER, send, receive, 0, root) \
    X(RESULT, Send, \
      (const void *send, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream), \
      (send, count, type, peer, comm, stream), HOOK, SEND, send, NULL, 0, peer) \
    X(RESULT, Recv, (void *receive, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream), \
      (receive, count, type, peer, comm, stream), HOOK, RECV, NULL, receive, 0, peer)

/* nccl_device.h: what the host calls for kernels that communicate by themselves */
#define COLL_API_DEVICE(X) \
    X(RESULT, DevCommCreate, (coll_comm comm, const coll_dev_requirements *requirements, coll_dev_comm *made), \
      (comm, requirements, made), FORWARD) \
    X(RESULT, DevCommDestroy, (coll_comm comm, const coll_dev_comm *dev_comm), (comm, dev_comm), FORWARD) \
    X(RESULT, GinBarrierCreateRequirement, (coll_comm comm, coll_team team, int barriers, coll_gin_barrier *handle, \
                                            coll_dev_resources *resources), \
      (comm, team, barriers, handle, resources), FORWARD) \
    X(RESULT, LsaBarrierCreateRequirement, \
      (coll_team team, int barriers, coll_lsa_barrier *handle, coll_dev_resources *resources), \
      (team, barriers, handle, resources), FORWARD) \
    X(RESULT, LLA2ACreateRequirement, \
      (int blocks, int slots, coll_ll_a2a *handle, coll_dev_resources *resources), \
      (blocks, slots, handle, resources), FORWARD) \
    X(NUMBER, LLA2ACalcSlots, (int elements, int element_size), (elements, element_size), FORWARD) \
    X(TEAM, TeamWorld, (coll_comm comm), (comm), FORWARD) \
    X(TEAM, TeamLsa, (coll_comm comm), (comm), FORWARD) \
    X(TEAM, TeamRail, (coll_comm comm), (comm), FORWARD) \
    X(NUMBER, TeamRankToWorld, (coll_comm comm, coll_team team, int rank), (comm, team, rank), FORWARD) \
    X(NUMBER, TeamRankToLsa, (coll_comm comm, coll_team team, int rank), (comm, team, rank), FORWARD)

/* clang-format on */

#define COLL_API(X) COLL_API_HOST(X) COLL_API_OPERATIONS(X) COLL_API_DEVICE(X)

#ifndef COLL_TYPES_OF_NCCL

/* The functions that are looked at: each passes its arguments on to coll_thread.nccl unchanged and
 * returns what NCCL returned. */

#define COLL_DECLARE_FORWARD(returns, name, parameters)
#define COLL_DECLARE_HOOK(returns, name, parameters)                 COLL_TYPE_##returns coll_hook_##name parameters;
#define COLL_DECLARE(returns, name, parameters, arguments, way, ...) COLL_DECLARE_##way(returns, name, parameters)
COLL_API(COLL_DECLARE)
#undef COLL_DECLARE
#undef COLL_DECLARE_HOOK
#undef COLL_DECLARE_FORWARD

#endif

#endif
