/* NCCL, or libstrait-coll in its place, opened by its path. */
#ifndef STRAIT_TESTS_GPU_COLLECTIVE_NCCL_H
#define STRAIT_TESTS_GPU_COLLECTIVE_NCCL_H

#include <stdbool.h>

#include "collective/call.h"

#define NCCL_OPERATION_END coll_comm comm, coll_stream stream

struct nccl {
    coll_result (*GetUniqueId)(coll_id *id);
    coll_result (*CommInitRank)(coll_comm *made, int ranks, coll_id id, int rank);
    coll_result (*CommInitAll)(coll_comm *made, int count, const int *devices);
    coll_result (*CommSplit)(coll_comm comm, int color, int key, coll_comm *made, void *config);
    coll_result (*CommDestroy)(coll_comm comm);
    coll_result (*CommAbort)(coll_comm comm);
    coll_result (*CommGetAsyncError)(coll_comm comm, coll_result *error);
    coll_result (*AllGather)(const void *send, void *receive, size_t count, coll_type type, NCCL_OPERATION_END);
    coll_result (*AlltoAll)(const void *send, void *receive, size_t count, coll_type type, NCCL_OPERATION_END);
    coll_result (*ReduceScatter)(const void *send, void *receive, size_t count, coll_type type,
                                 coll_reduction reduction, NCCL_OPERATION_END);
    coll_result (*AllReduce)(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                             NCCL_OPERATION_END);
    coll_result (*Send)(const void *send, size_t count, coll_type type, int peer, NCCL_OPERATION_END);
    coll_result (*Recv)(void *receive, size_t count, coll_type type, int peer, NCCL_OPERATION_END);
    coll_result (*GroupStart)(void);
    coll_result (*GroupEnd)(void);
    const char *(*GetErrorString)(coll_result result);
    size_t (*report)(coll_comm comm, char *dst, size_t dst_capacity); /* NULL: it is NCCL itself */
};

extern struct nccl nccl;

/* Ends the program when it cannot be used. */
void nccl_open(const char *path);
void require_nccl(coll_result result);

/* Calls of this operation that went compressed; 0 of NCCL itself. */
unsigned long long nccl_compressed(coll_comm comm, const char *operation);

#endif
