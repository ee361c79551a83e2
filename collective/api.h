/* NCCL's interface as of 2.32, as far as passing calls on requires: types and their sizes, operations, functions, and
 * the hooks that calls go through. So this folder builds without NCCL; where its header is found, check_header.c
 * compares. Enums are ints here. */
#ifndef STRAIT_COLLECTIVE_API_H
#define STRAIT_COLLECTIVE_API_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where fields of configs lie, of those that this library reads. */
enum {
    COLL_CONFIG_MAGIC_AT = 8,
    COLL_CONFIG_EXTENSIONS_AT = 16,
    COLL_CONFIG_SELECTION_AT = 40,
    COLL_CONFIG_POLICY_AT = 52,
    COLL_CONFIG_LAUNCHED_AT = 64,
    COLL_ENCRYPTION_MODE_AT = 16,
};

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

typedef struct {
    void *base;
} coll_multimem;

typedef struct ncclComm *coll_comm;
typedef struct CUstream_st *coll_stream;
typedef struct ncclWindow_vidmem *coll_window;
typedef struct ncclParamHandle *coll_param;
typedef int coll_result, coll_type, coll_reduction, coll_residence, coll_statistic, coll_cft_mode;
typedef uint32_t coll_cft_id;

/* Used behind pointers only. */
typedef void coll_config, coll_simulation, coll_properties, coll_signal;
typedef void coll_dev_requirements, coll_dev_comm, coll_dev_resources;
typedef void coll_gin_barrier, coll_gin_inbox, coll_gin_outbox, coll_ll_a2a, coll_lsa_barrier;

/* Begins every config: a caller that was built with an older header gives a smaller size, and has fewer fields. */
struct coll_config_head {
    size_t size;
    unsigned magic, version;
};
#define COLL_CONFIG_MAGIC 0xcafebeefu
#define COLL_UNDEFINED    INT_MIN
#define COLL_CONFIG_HAS(config, field)            \
    ((config)->head.magic == COLL_CONFIG_MAGIC && \
     (config)->head.size >= offsetof(__typeof__(*(config)), field) + sizeof((config)->field))

/* Of a single call of a collective. */
typedef struct {
    struct coll_config_head head;
    void *extensions;
    int least_blocks, most_blocks, nvls_blocks, cluster;
    const char *selection; /* of algorithms */
    int must_select, policy;
    uint64_t tag;
    void *launched; /* an event that NCCL records */
} coll_call_config;

typedef struct {
    struct coll_config_head head;
    int mode;
    const char *key;
} coll_encryption;

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
    COLL_SUSPEND_MEMORY = 1,
    COLL_ENCRYPTION_NONE = 0,
};

/* What ncclCommMemStats is asked for: bytes of GPU memory, except SUSPENDED, which is 0 or 1. */
enum {
    COLL_MEMORY_SUSPENDABLE = 0, /* also while it is suspended */
    COLL_MEMORY_SUSPENDED = 1,
    COLL_MEMORY_PERSISTENT = 2,
    COLL_MEMORY_TOTAL = 3,
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
    const coll_call_config *config; /* the program's own; NULL: none */
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
 *             count, type, comm and stream, those of COLL_API_CONFIGURED also config, and their hooks are generated.
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
    X(RESULT, CommGetUniqueId, (coll_comm comm, coll_id *id), (comm, id), HOOK) \
    X(RESULT, CommGrow, \
      (coll_comm comm, int ranks, const coll_id *id, int rank, coll_comm *made, coll_config *config), \
      (comm, ranks, id, rank, made, config), HOOK) \
    X(RESULT, CommFinalize, (coll_comm comm), (comm), HOOK) \
    X(RESULT, CommDestroy, (coll_comm comm), (comm), HOOK) \
    X(RESULT, CommAbort, (coll_comm comm), (comm), HOOK) \
    X(RESULT, CommRevoke, (coll_comm comm, int flags), (comm, flags), HOOK) \
    X(RESULT, CommGetAsyncError, (coll_comm comm, coll_result *error), (comm, error), HOOK) \
    X(RESULT, CommCount, (const coll_comm comm, int *count), (comm, count), FORWARD) \
    X(RESULT, CommCuDevice, (const coll_comm comm, int *device), (comm, device), FORWARD) \
    X(RESULT, CommUserRank, (const coll_comm comm, int *rank), (comm, rank), FORWARD) \
    X(RESULT, CommSuspend, (coll_comm comm, int flags), (comm, flags), HOOK) \
    X(RESULT, CommResume, (coll_comm comm), (comm), HOOK) \
    X(RESULT, CommMemStats, (coll_comm comm, coll_statistic statistic, uint64_t *value), (comm, statistic, value), \
      HOOK) \
    X(RESULT, SetEncryption, (const coll_encryption *encryption), (encryption), HOOK) \
    \
    X(RESULT, CommRegister, (const coll_comm comm, void *buffer, size_t size, void **handle), \
      (comm, buffer, size, handle), HOOK) \
    X(RESULT, CommDeregister, (const coll_comm comm, void *handle), (comm, handle), HOOK) \
    X(RESULT, CommWindowRegister, (coll_comm comm, void *buffer, size_t size, coll_window *window, int flags), \
      (comm, buffer, size, window, flags), HOOK) \
    X(RESULT, CommWindowDeregister, (coll_comm comm, coll_window window), (comm, window), HOOK) \
    X(RESULT, WinGetUserPtr, (coll_comm comm, coll_window window, void **pointer), (comm, window, pointer), FORWARD) \
    X(RESULT, RedOpCreatePreMulSum, \
      (coll_reduction *made, void *scalar, coll_type type, coll_residence residence, coll_comm comm), \
      (made, scalar, type, residence, comm), FORWARD) \
    X(RESULT, RedOpDestroy, (coll_reduction reduction, coll_comm comm), (reduction, comm), FORWARD) \
    \
    X(RESULT, GroupStart, (void), (), HOOK) \
    X(RESULT, GroupEnd, (void), (), HOOK) \
    X(RESULT, GroupSimulateEnd, (coll_simulation *simulation), (simulation), HOOK) \
    \
    X(RESULT, PutSignal, \
      (const void *send, size_t count, coll_type type, int peer, coll_window window, size_t offset, int signal, \
       int context, unsigned flags, coll_comm comm, coll_stream stream), \
      (send, count, type, peer, window, offset, signal, context, flags, comm, stream), FORWARD) \
    X(RESULT, Signal, \
      (int peer, int signal, int context, unsigned flags, coll_comm comm, coll_stream stream), \
      (peer, signal, context, flags, comm, stream), FORWARD) \
    X(RESULT, WaitSignal, (int count, coll_signal *signals, coll_comm comm, coll_stream stream), \
      (count, signals, comm, stream), FORWARD) \
    \
    X(RESULT, ParamBind, (coll_param *param, const char *key), (param, key), FORWARD) \
    X(RESULT, ParamGetI8, (coll_param param, int8_t *value), (param, value), FORWARD) \
    X(RESULT, ParamGetI16, (coll_param param, int16_t *value), (param, value), FORWARD) \
    X(RESULT, ParamGetI32, (coll_param param, int32_t *value), (param, value), FORWARD) \
    X(RESULT, ParamGetI64, (coll_param param, int64_t *value), (param, value), FORWARD) \
    X(RESULT, ParamGetU8, (coll_param param, uint8_t *value), (param, value), FORWARD) \
    X(RESULT, ParamGetU16, (coll_param param, uint16_t *value), (param, value), FORWARD) \
    X(RESULT, ParamGetU32, (coll_param param, uint32_t *value), (param, value), FORWARD) \
    X(RESULT, ParamGetU64, (coll_param param, uint64_t *value), (param, value), FORWARD) \
    X(RESULT, ParamGetStr, (coll_param param, const char **value), (param, value), FORWARD) \
    X(RESULT, ParamGet, (coll_param param, void *value, int capacity, int *size), (param, value, capacity, size), \
      FORWARD) \
    X(RESULT, ParamGetParameter, (const char *key, const char **value, int *size), (key, value, size), FORWARD) \
    X(RESULT, ParamGetAllParameterKeys, (const char ***keys, int *count), (keys, count), FORWARD) \
    X(NOTHING, ParamDumpAll, (void), (), FORWARD)

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

/* nccl.h: the same collectives with a config for this call; NULL: as without. */
#define COLL_API_CONFIGURED(X) \
    X(RESULT, AllGatherConfig, \
      (const void *send, void *receive, size_t count, coll_type type, coll_comm comm, \
       coll_stream stream, const coll_call_config *config), \
      (send, receive, count, type, comm, stream, config), HOOK, ALL_GATHER, send, receive, 0, 0) \
    X(RESULT, AllReduceConfig, \
      (const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction, coll_comm comm, \
       coll_stream stream, const coll_call_config *config), \
      (send, receive, count, type, reduction, comm, stream, config), HOOK, ALL_REDUCE, send, receive, reduction, 0) \
    X(RESULT, AlltoAllConfig, \
      (const void *send, void *receive, size_t count, coll_type type, coll_comm comm, \
       coll_stream stream, const coll_call_config *config), \
      (send, receive, count, type, comm, stream, config), HOOK, ALL_TO_ALL, send, receive, 0, 0) \
    X(RESULT, BroadcastConfig, \
      (const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm, \
       coll_stream stream, const coll_call_config *config), \
      (send, receive, count, type, root, comm, stream, config), HOOK, BROADCAST, send, receive, 0, root) \
    X(RESULT, GatherConfig, \
      (const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm, \
       coll_stream stream, const coll_call_config *config), \
      (send, receive, count, type, root, comm, stream, config), HOOK, GATHER, send, receive, 0, root) \
    X(RESULT, ReduceConfig, \
      (const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction, int root, coll_comm comm, \
       coll_stream stream, const coll_call_config *config), \
      (send, receive, count, type, reduction, root, comm, stream, config), HOOK, REDUCE, send, receive, reduction, root) \
    X(RESULT, ReduceScatterConfig, \
      (const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction, coll_comm comm, \
       coll_stream stream, const coll_call_config *config), \
      (send, receive, count, type, reduction, comm, stream, config), HOOK, REDUCE_SCATTER, send, receive, reduction, 0) \
    X(RESULT, ScatterConfig, \
      (const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm, \
       coll_stream stream, const coll_call_config *config), \
      (send, receive, count, type, root, comm, stream, config), HOOK, SCATTER, send, receive, 0, root)

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
    X(NUMBER, TeamRankToLsa, (coll_comm comm, coll_team team, int rank), (comm, team, rank), FORWARD) \
    X(RESULT, CommQueryProperties, (coll_comm comm, coll_properties *properties), (comm, properties), FORWARD) \
    X(RESULT, GinInboxA2ACreateRequirement, (coll_team team, int blocks, int size_log2, coll_gin_inbox *handle, \
                                             coll_dev_resources *resources), \
      (team, blocks, size_log2, handle, resources), FORWARD) \
    X(RESULT, GinOutboxCreateRequirement, \
      (int blocks, int size_log2, coll_gin_outbox *handle, coll_dev_resources *resources), \
      (blocks, size_log2, handle, resources), FORWARD) \
    X(RESULT, GetLsaDevicePointer, (coll_window window, size_t offset, int rank, void **pointer), \
      (window, offset, rank, pointer), FORWARD) \
    X(RESULT, GetLsaMultimemDevicePointer, (coll_window window, size_t offset, void **pointer), \
      (window, offset, pointer), FORWARD) \
    X(RESULT, GetMultimemDevicePointer, (coll_window window, size_t offset, coll_multimem multimem, void **pointer), \
      (window, offset, multimem, pointer), FORWARD) \
    X(RESULT, GetPeerDevicePointer, (coll_window window, size_t offset, int peer, void **pointer), \
      (window, offset, peer, pointer), FORWARD) \
    X(RESULT, GetCftDeviceLeInfo, (coll_window window, size_t offset, int peer, coll_team team, coll_cft_id *id, \
                                   size_t *at), \
      (window, offset, peer, team, id, at), FORWARD) \
    X(RESULT, GetMultimemDeviceLeInfo, (coll_window window, size_t offset, coll_cft_id *id, size_t *at), \
      (window, offset, id, at), FORWARD) \
    X(RESULT, GetPeerDeviceLeInfo, (coll_window window, size_t offset, int peer, coll_cft_id *id, size_t *at), \
      (window, offset, peer, id, at), FORWARD) \
    X(TEAM, TeamCft, (coll_comm comm, coll_cft_mode mode), (comm, mode), FORWARD) \
    X(TEAM, TeamCftMultimem, (coll_comm comm), (comm), FORWARD)

/* clang-format on */

#define COLL_API(X) COLL_API_HOST(X) COLL_API_OPERATIONS(X) COLL_API_CONFIGURED(X) COLL_API_DEVICE(X)

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
