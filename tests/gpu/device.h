/* What programs that run scenes on real GPUs share. */
#ifndef STRAIT_TESTS_GPU_DEVICE_H
#define STRAIT_TESTS_GPU_DEVICE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/support.h"

#define require_cuda(call) require_cuda_(call, #call, __FILE__, __LINE__)
static inline void require_cuda_(cudaError_t error, const char *what, const char *file, int line)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cudaGetErrorString(error));
    abort();
}

/* In a process of its own: what starts the driver here would be inherited. */
static inline int count_devices(void)
{
    int status, count = 0;
    pid_t pid = fork();
    if (pid == 0) {
        cudaError_t error = cudaGetDeviceCount(&count);
        if (error != cudaSuccess)
            fprintf(stderr, "%s\n", cudaGetErrorString(error));
        _exit(error == cudaSuccess ? count : 0);
    }
    require(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

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

/* Is this scene among those that were asked for: all, when none is named? */
static inline bool is_named(const char *scene, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (strcmp(scene, names[i]) == 0)
            return true;
    return count == 0;
}

#endif
