#include "ep/cuda/backend.h"

bool ep_cuda_good(cudaError_t error)
{
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error == cudaSuccess;
}

bool ep_cuda_enter(const struct ep_cuda *cuda, struct ep_cuda_entered *entered)
{
    if (!ep_cuda_good(cudaGetDevice(&entered->before)))
        return false;
    entered->moved = entered->before != cuda->device;
    if (entered->moved && !ep_cuda_good(cudaSetDevice(cuda->device)))
        return false;
    entered->mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&entered->mode);
    return true;
}

void ep_cuda_leave(const struct ep_cuda_entered *entered)
{
    enum cudaStreamCaptureMode mode = entered->mode;

    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (entered->moved)
        (void)ep_cuda_good(cudaSetDevice(entered->before));
}
