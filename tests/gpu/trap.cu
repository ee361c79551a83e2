#include "tests/gpu/trap.h"

#include <cuda_runtime_api.h>

namespace
{

__global__ void stumble(bool address, int *nowhere)
{
    if (address)
        *nowhere = 1;
    else
        __trap();
}

} // namespace

const char *trap_here(int device, enum trap_kind kind)
{
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) {
        stumble<<<1, 1>>>(kind == TRAP_ADDRESS, reinterpret_cast<int *>(64));
        error = cudaDeviceSynchronize();
    }
    return cudaGetErrorString(error);
}
