/* Ranks of collectives that share a GPU, and those on hosts of their own, as far as anybody is told. */
#ifndef STRAIT_TESTS_GPU_APART_H
#define STRAIT_TESTS_GPU_APART_H

#include "tests/gpu/device.h"

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

#endif
