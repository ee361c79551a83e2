/* What programs that run scenes on real GPUs share. */
#ifndef STRAIT_TESTS_GPU_DEVICE_H
#define STRAIT_TESTS_GPU_DEVICE_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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

/* In a process that is not to outlive who has started it: what is left of ranks would keep the GPU busy. */
static inline void end_with_parent(void)
{
    require(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
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

/* Is this scene among those that were asked for: all, when none is named? */
static inline bool is_named(const char *scene, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (strcmp(scene, names[i]) == 0)
            return true;
    return count == 0;
}

#endif
