/* Ranks of collectives on hosts of their own, as far as anybody is told, and on which GPUs they are. */
#ifndef STRAIT_TESTS_GPU_APART_H
#define STRAIT_TESTS_GPU_APART_H

#include "tests/gpu/device.h"

/* With STRAIT_TEST_HOSTS=1 each rank that is a process is on a host of its own, as far as NCCL and libstrait-coll are
 * told. Such ranks can share a GPU, which NCCL refuses those of one host. */
static inline bool are_apart(void)
{
    const char *apart = getenv("STRAIT_TEST_HOSTS");
    return apart != NULL && atoi(apart) == 1;
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
    return count >= ranks || (count > 0 && are_apart());
}

/* Of a limit in seconds: ranks that share a GPU have it by turns, and each waits for the others. */
static inline unsigned patience(unsigned seconds)
{
    return are_apart() ? 4 * seconds : seconds;
}

/* The GPU of a rank. */
static inline void use_device(int rank)
{
    int count = 0;
    require_cuda(cudaGetDeviceCount(&count));
    require_cuda(cudaSetDevice(are_apart() ? rank % count : rank));
}

#endif
