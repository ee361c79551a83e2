/* NCCL, or libstrait-coll in its place, opened by its path; and where ranks are: several on one GPU, or on hosts of
 * their own as far as NCCL is told (STRAIT_TEST_HOSTS=1). */
#ifndef STRAIT_TESTS_GPU_COLLECTIVE_NCCL_H
#define STRAIT_TESTS_GPU_COLLECTIVE_NCCL_H

#include <stdbool.h>

#include "collective/call.h"
#include "tests/gpu/device.h"

/* Ranks of collectives that share a GPU, and those on hosts of their own, as far as anybody is told. */

/* With STRAIT_TEST_HOSTS=1 each rank that is a process is on a host of its own, as far as NCCL and libstrait-coll are
 * told. Such ranks can share a GPU, which NCCL refuses those of one host unless NCCL_MULTI_RANK_GPU_ENABLE=1 (2.30). */
static inline bool is_switched_on(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && atoi(value) == 1;
}

static inline bool are_apart(void)
{
    return is_switched_on("STRAIT_TEST_HOSTS");
}

static inline bool may_share(void)
{
    return are_apart() || is_switched_on("NCCL_MULTI_RANK_GPU_ENABLE");
}

/* In a process that is this rank alone, before NCCL is opened. */
static inline void tell_host(int rank)
{
    char host[32];
    snprintf(host, sizeof(host), "host %d", rank);
    if (are_apart())
        require(setenv("NCCL_HOSTID", host, 1) == 0);
}

/* Are there GPUs enough for so many ranks? *threads: they can be threads of a process, too. */
static inline bool have_devices(int ranks, bool *threads)
{
    const int count = count_devices();
    *threads = count >= ranks;
    return count >= ranks || (count > 0 && may_share());
}

/* Of a limit in seconds: ranks that share a GPU have it by turns, and each waits for the others. */
static inline unsigned patience(unsigned seconds)
{
    return may_share() ? 4 * seconds : seconds;
}

/* The GPU of a rank. */
static inline void use_device(int rank)
{
    int count = 0;
    require_cuda(cudaGetDeviceCount(&count));
    require_cuda(cudaSetDevice(may_share() ? rank % count : rank));
}

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
