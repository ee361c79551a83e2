/* Calls of NCCL's operations, and the types of NCCL's interface as far as passing calls on requires: their sizes and
 * how they are passed. So this folder builds without NCCL; where its header is found, check_header.c compares. Enums
 * are ints here. */
#ifndef STRAIT_COLLECTIVE_CALL_H
#define STRAIT_COLLECTIVE_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* ---- Graph capture ----------------------------------------------------------------------------------------------- */

/* Finds the driver, which NCCL has loaded by the time that the first communicator is made. Not done in every call,
 * because the loader must not be called in a process that was just forked. Any thread. */
void coll_capture_prepare(void);

/* Whether work queued on the stream goes into a CUDA graph. False without a driver. Any thread. */
bool coll_is_captured(coll_stream stream);

#endif
