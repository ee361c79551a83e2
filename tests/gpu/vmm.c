#include "tests/gpu/vmm.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "tests/support.h"

static void *entry(const char *name, unsigned version)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult status;
    require(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status) == cudaSuccess);
    require(found != NULL);
    return found;
}

#define ENTRY(name) ((PFN_##name##_v10020)(uintptr_t)entry(#name, 10020))

uint8_t *vmm_alloc(int device, size_t *size, int *fd)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    const CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t unit;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    require(ENTRY(cuMemGetAllocationGranularity)(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    *size = (*size + unit - 1) / unit * unit;
    require(ENTRY(cuMemCreate)(&handle, *size, &properties, 0) == CUDA_SUCCESS);
    require(ENTRY(cuMemAddressReserve)(&base, *size, 0, 0, 0) == CUDA_SUCCESS);
    require(ENTRY(cuMemMap)(base, *size, 0, handle, 0) == CUDA_SUCCESS);
    require(ENTRY(cuMemSetAccess)(base, *size, &access, 1) == CUDA_SUCCESS);
    require(ENTRY(cuMemExportToShareableHandle)(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    return (uint8_t *)(uintptr_t)base;
}
