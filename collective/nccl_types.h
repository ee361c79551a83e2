/* The types of NCCL's interface, as far as passing calls on requires: sizes and ways of passing, not meanings. So this
 * folder builds without NCCL; if its header is found, check_header.c compares. Enums are ints here. */
#ifndef STRAIT_COLLECTIVE_NCCL_TYPES_H
#define STRAIT_COLLECTIVE_NCCL_TYPES_H

#include <stddef.h>

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

/* Only behind pointers, and never looked at. */
typedef void coll_config, coll_simulation;
typedef void coll_dev_requirements, coll_dev_comm, coll_dev_resources;
typedef void coll_gin_barrier, coll_ll_a2a, coll_lsa_barrier;

/* Results that are tested or returned here. */
enum {
    COLL_SUCCESS = 0,
    COLL_UNHANDLED_CUDA_ERROR = 1,
    COLL_SYSTEM_ERROR = 2,
    COLL_INTERNAL_ERROR = 3,
    COLL_INVALID_USAGE = 5,
    COLL_REMOTE_ERROR = 6,
    COLL_IN_PROGRESS = 7,
};

/* Flags that are tested. */
enum {
    COLL_SHRINK_ABORT = 1,
};

/* Reductions that are tested. */
enum {
    COLL_SUM = 0,
    COLL_AVG = 4,
};

#endif
