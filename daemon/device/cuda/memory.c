/* Maps the memory of clients and pins memory of the host. */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/cuda/cuda.h"

/* ---- The driver -------------------------------------------------------------------------------------------------- */

/* Functions that only the driver API has. The plugin does not link the driver: it looks them up at run time. */
struct driver {
    PFN_cuMemGetAddressRange_v3020 address_range;
    PFN_cuPointerGetAttribute_v4000 pointer_attribute;
    PFN_cuMemImportFromShareableHandle_v10020 import;
    PFN_cuMemGetAllocationPropertiesFromHandle_v10020 properties;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 unreserve;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemRelease_v10020 release;
    PFN_cuGetErrorString_v6000 error_string;
};

static struct driver driver_calls;
static bool driver_complete;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static const struct driver_entry {
    const char *name;
    unsigned version;
    size_t offset;
} driver_entries[] = {
    {"cuMemGetAddressRange", 3020, offsetof(struct driver, address_range)},
    {"cuPointerGetAttribute", 4000, offsetof(struct driver, pointer_attribute)},
    {"cuMemImportFromShareableHandle", 10020, offsetof(struct driver, import)},
    {"cuMemGetAllocationPropertiesFromHandle", 10020, offsetof(struct driver, properties)},
    {"cuMemGetAllocationGranularity", 10020, offsetof(struct driver, granularity)},
    {"cuMemAddressReserve", 10020, offsetof(struct driver, reserve)},
    {"cuMemAddressFree", 10020, offsetof(struct driver, unreserve)},
    {"cuMemMap", 10020, offsetof(struct driver, map)},
    {"cuMemUnmap", 10020, offsetof(struct driver, unmap)},
    {"cuMemSetAccess", 10020, offsetof(struct driver, set_access)},
    {"cuMemRelease", 10020, offsetof(struct driver, release)},
    {"cuGetErrorString", 6000, offsetof(struct driver, error_string)},
};

static void driver_find(void)
{
    for (size_t i = 0; i < sizeof(driver_entries) / sizeof(driver_entries[0]); i++) {
        void *found = NULL;
        enum cudaDriverEntryPointQueryResult status;
        if (cudaGetDriverEntryPointByVersion(driver_entries[i].name, &found, driver_entries[i].version,
                                             cudaEnableDefault, &status) != cudaSuccess ||
            found == NULL)
            return;
        *(void **)((char *)&driver_calls + driver_entries[i].offset) = found;
    }
    driver_complete = true;
}

/* NULL: the driver lacks some of them. */
static const struct driver *driver_get(void)
{
    pthread_once(&driver_once, driver_find);
    return driver_complete ? &driver_calls : NULL;
}

static const char *driver_text(CUresult result)
{
    const char *text = NULL;
    return driver_complete && driver_calls.error_string(result, &text) == CUDA_SUCCESS && text != NULL
               ? text
               : "unknown error";
}

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

/* State that unmapping needs. */
struct mapping {
    enum strait_handle kind;
    CUdeviceptr base;
    size_t size; /* VMM */
};

static enum strait_status refuse_driver(const struct device_why *why, enum strait_status status, const char *what,
                                        CUresult result)
{
    return refuse(why, result == CUDA_ERROR_OUT_OF_MEMORY ? STRAIT_ERR_NO_MEMORY : status, "%s: %s", what,
                  driver_text(result));
}

static enum strait_status check_number(const struct device *device, int number, const struct device_why *why)
{
    if (number == device->number)
        return STRAIT_OK;
    return refuse(why, STRAIT_ERR_INVALID, "its memory is on device %d as the daemon counts them, not on %d", number,
                  device->number);
}

/* ---- Memory by address ------------------------------------------------------------------------------------------- */

static enum strait_status check_pointer(const struct device *device, CUdeviceptr pointer, const struct device_why *why)
{
    const struct driver *driver = driver_get();
    unsigned kind = 0;
    int number = -1;
    CUresult result = driver->pointer_attribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
    if (result != CUDA_SUCCESS || kind != CU_MEMORYTYPE_DEVICE)
        return refuse(why, STRAIT_ERR_INVALID, "its pointer is none to memory of a GPU");
    result = driver->pointer_attribute(&number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    if (result != CUDA_SUCCESS)
        return refuse_driver(why, STRAIT_ERR_INVALID, "its pointer", result);
    return check_number(device, number, why);
}

/* The range that begins at `first` may be several adjacent allocations. */
static enum strait_status check_range(CUdeviceptr first, uint64_t size, const struct device_why *why)
{
    CUdeviceptr at = first, base;
    size_t part;
    while (at - first < size) {
        if (driver_get()->address_range(&base, &part, at) != CUDA_SUCCESS || base + part <= at)
            return refuse(why, STRAIT_ERR_INVALID, "its allocation has %llu bytes, its regions end at %llu",
                          (unsigned long long)(at - first), (unsigned long long)size);
        at = base + part;
    }
    return STRAIT_OK;
}

static enum strait_status map_pointer(struct device *device, const struct device_handle *handle,
                                      struct mapping *mapping, const struct device_why *why)
{
    mapping->base = (CUdeviceptr)(uintptr_t)handle->pointer;
    enum strait_status status = check_pointer(device, mapping->base, why);
    return status == STRAIT_OK ? check_range(mapping->base, handle->size, why) : status;
}

/* ---- IPC --------------------------------------------------------------------------------------------------------- */

static enum strait_status map_ipc(struct device *device, const struct device_handle *handle, struct mapping *mapping,
                                  const struct device_why *why)
{
    cudaIpcMemHandle_t ipc;
    void *base = NULL;
    for (size_t i = 0; i < sizeof(ipc); i++)
        ((uint8_t *)&ipc)[i] = handle->ipc[i];
    cudaError_t error = cudaIpcOpenMemHandle(&base, ipc, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess)
        return refuse_error(why, STRAIT_ERR_INVALID, "its IPC handle cannot be opened", error);
    mapping->base = (CUdeviceptr)(uintptr_t)base;
    enum strait_status status = check_pointer(device, mapping->base, why);
    if (status == STRAIT_OK)
        status = check_range(mapping->base, handle->size, why);
    if (status != STRAIT_OK)
        cudaIpcCloseMemHandle(base);
    return status;
}

/* ---- VMM --------------------------------------------------------------------------------------------------------- */

/* The driver does not tell the size of an imported allocation, but maps no more than there is. */
static enum strait_status map_allocation(struct device *device, CUmemGenericAllocationHandle allocation,
                                         const struct device_handle *handle, struct mapping *mapping,
                                         const struct device_why *why)
{
    const struct driver *driver = driver_get();
    CUresult result = driver->reserve(&mapping->base, mapping->size, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return refuse_driver(why, STRAIT_ERR_NO_MEMORY, "addresses for its memory", result);
    result = driver->map(mapping->base, mapping->size, 0, allocation, 0);
    if (result != CUDA_SUCCESS) {
        driver->unreserve(mapping->base, mapping->size);
        return refuse(why, STRAIT_ERR_INVALID,
                      "its allocation cannot be mapped up to byte %llu, where its regions end: %s",
                      (unsigned long long)handle->size, driver_text(result));
    }
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->number},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = driver_get()->set_access(mapping->base, mapping->size, &access, 1);
    if (result == CUDA_SUCCESS)
        return STRAIT_OK;
    driver->unmap(mapping->base, mapping->size);
    driver->unreserve(mapping->base, mapping->size);
    return refuse_driver(why, STRAIT_ERR_INVALID, "its memory cannot be accessed", result);
}

static enum strait_status map_imported(struct device *device, CUmemGenericAllocationHandle allocation,
                                       const struct device_handle *handle, struct mapping *mapping,
                                       const struct device_why *why)
{
    const struct driver *driver = driver_get();
    CUmemAllocationProp properties = {0};
    size_t unit = 0;
    CUresult result = driver->properties(&properties, allocation);
    if (result == CUDA_SUCCESS)
        result = driver->granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS || unit == 0)
        return refuse_driver(why, STRAIT_ERR_INVALID, "its allocation", result);
    if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return refuse(why, STRAIT_ERR_INVALID, "its allocation is not of a GPU's memory");
    mapping->size = (size_t)(handle->size + unit - 1) / unit * unit;
    enum strait_status status = check_number(device, properties.location.id, why);
    return status == STRAIT_OK ? map_allocation(device, allocation, handle, mapping, why) : status;
}

static enum strait_status map_vmm(struct device *device, const struct device_handle *handle, struct mapping *mapping,
                                  const struct device_why *why)
{
    CUmemGenericAllocationHandle allocation;
    CUresult result =
        driver_get()->import(&allocation, (void *)(uintptr_t)handle->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return refuse_driver(why, STRAIT_ERR_INVALID, "its descriptor cannot be imported", result);
    enum strait_status status = map_imported(device, allocation, handle, mapping, why);
    driver_get()->release(allocation); /* the mapping keeps the allocation */
    return status;
}

/* ---- All kinds of memory ----------------------------------------------------------------------------------------- */

static enum strait_status map_kind(struct device *device, const struct device_handle *handle, struct mapping *mapping,
                                   const struct device_why *why)
{
    switch (handle->kind) {
    case STRAIT_HANDLE_CUDA_IPC:
        return map_ipc(device, handle, mapping, why);
    case STRAIT_HANDLE_CUDA_VMM:
        return map_vmm(device, handle, mapping, why);
    default:
        return map_pointer(device, handle, mapping, why);
    }
}

enum strait_status memory_map(struct device *device, const struct device_handle *handle, struct device_memory *memory,
                              const struct device_why *why)
{
    if (driver_get() == NULL)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "the driver is too old");
    if (device_failure(device, why))
        return STRAIT_ERR_DEVICE;
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    cudaError_t error = cudaSetDevice(device->number);
    if (mapping == NULL)
        return refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    mapping->kind = handle->kind;
    enum strait_status status = error == cudaSuccess ? map_kind(device, handle, mapping, why)
                                                     : refuse_error(why, STRAIT_ERR_DEVICE, "GPU", error);
    if (status != STRAIT_OK) {
        free(mapping);
        return device_refuse(device, status, "mapping memory", why);
    }
    *memory =
        (struct device_memory){.base = (uint8_t *)(uintptr_t)mapping->base, .size = handle->size, .mapping = mapping};
    return STRAIT_OK;
}

void memory_unmap(struct device *device, struct device_memory *memory)
{
    struct mapping *mapping = memory->mapping;
    cudaSetDevice(device->number);
    if (mapping->kind == STRAIT_HANDLE_CUDA_IPC)
        cudaIpcCloseMemHandle(memory->base);
    if (mapping->kind == STRAIT_HANDLE_CUDA_VMM) {
        driver_get()->unmap(mapping->base, mapping->size);
        driver_get()->unreserve(mapping->base, mapping->size);
    }
    (void)cudaGetLastError();
    free(mapping);
}

/* ---- Between processes ------------------------------------------------------------------------------------------- */

static enum strait_status check_access(const struct device *device, int number, const struct device_why *why)
{
    int can = number == device->number;
    if (!can && cudaDeviceCanAccessPeer(&can, device->number, number) != cudaSuccess)
        can = 0;
    if (can)
        return STRAIT_OK;
    return refuse(why, STRAIT_ERR_UNSUPPORTED, "GPU %d has no access to the memory of GPU %d", device->number, number);
}

static enum strait_status check_reached(const struct device *device, CUdeviceptr base, uint64_t size,
                                        const struct device_why *why)
{
    int number = -1;
    CUresult result = driver_get()->pointer_attribute(&number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base);
    if (result != CUDA_SUCCESS)
        return refuse_driver(why, STRAIT_ERR_UNSUPPORTED, "the peer's arena", result);
    enum strait_status status = check_access(device, number, why);
    return status == STRAIT_OK ? check_range(base, size, why) : status;
}

enum strait_status memory_reach(struct device *device, const uint8_t handle[DEVICE_HANDLE_BYTES], uint64_t size,
                                struct device_memory *memory, const struct device_why *why)
{
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    cudaIpcMemHandle_t ipc;
    void *base = NULL;
    if (mapping == NULL)
        return refuse(why, STRAIT_ERR_NO_MEMORY, "no memory");
    memcpy(&ipc, handle, sizeof(ipc));
    cudaError_t error = cudaSetDevice(device->number);
    if (error == cudaSuccess)
        error = cudaIpcOpenMemHandle(&base, ipc, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
        free(mapping);
        return device_refuse(device,
                             refuse_error(why, STRAIT_ERR_UNSUPPORTED, "the peer's arena cannot be opened", error),
                             "mapping a peer's arena", why);
    }
    *mapping = (struct mapping){.kind = STRAIT_HANDLE_CUDA_IPC, .base = (CUdeviceptr)(uintptr_t)base};
    *memory = (struct device_memory){.base = base, .size = size, .mapping = mapping};
    enum strait_status status = check_reached(device, mapping->base, size, why);
    if (status != STRAIT_OK)
        memory_unmap(device, memory);
    return status;
}

enum strait_status memory_arena(struct device *device, uint64_t size, void **base, uint8_t handle[DEVICE_HANDLE_BYTES],
                                uint8_t id[DEVICE_ID_BYTES], const struct device_why *why)
{
    cudaIpcMemHandle_t ipc;
    struct cudaDeviceProp properties;
    cudaError_t error = cudaSetDevice(device->number);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&properties, device->number);
    if (error == cudaSuccess)
        error = cudaMalloc(base, size);
    if (error != cudaSuccess)
        return refuse_error(why, STRAIT_ERR_NO_MEMORY, "memory for gpu-arena-bytes", error);
    error = cudaMemset(*base, 0, size);
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    if (error == cudaSuccess)
        error = cudaIpcGetMemHandle(&ipc, *base);
    if (error != cudaSuccess) {
        cudaFree(*base);
        return refuse_error(why, STRAIT_ERR_UNSUPPORTED, "the arena cannot be shared between processes", error);
    }
    memcpy(handle, &ipc, sizeof(ipc));
    memcpy(id, &properties.uuid, DEVICE_ID_BYTES);
    return STRAIT_OK;
}

void memory_arena_free(struct device *device, void *base)
{
    cudaSetDevice(device->number);
    cudaFree(base);
    (void)cudaGetLastError();
}

/* ---- The host's -------------------------------------------------------------------------------------------------- */

static uint64_t in_use; /* bit n: device n */

void memory_use_device(int number)
{
    __atomic_fetch_or(&in_use, 1ull << number, __ATOMIC_RELEASE);
}

static cudaError_t pin(void *base, size_t size)
{
    return cudaHostRegister(base, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
}

static cudaError_t unpin(void *base, size_t size)
{
    (void)size;
    return cudaHostUnregister(base);
}

/* Calls with the context of a working device: pinning holds for all devices, and one of them may have failed alone. */
static cudaError_t with_any(cudaError_t (*call)(void *base, size_t size), void *base, size_t size)
{
    uint64_t left = __atomic_load_n(&in_use, __ATOMIC_ACQUIRE);
    cudaError_t error = cudaErrorNoDevice;
    for (; left != 0 && error != cudaSuccess; left &= left - 1) {
        error = cudaSetDevice(__builtin_ctzll(left));
        if (error == cudaSuccess)
            error = call(base, size);
        (void)cudaGetLastError();
    }
    return error;
}

enum strait_status memory_pin(void *base, size_t size, const struct device_why *why)
{
    cudaError_t error = with_any(pin, base, size);
    if (error == cudaSuccess)
        return STRAIT_OK;
    enum strait_status status =
        refuse_error(why, STRAIT_ERR_NO_MEMORY, "the daemon's arenas cannot be pinned for the GPU", error);
    return process_is_sick(-1, "pinning memory", why) ? STRAIT_ERR_DEVICE : status;
}

void memory_unpin(void *base)
{
    (void)with_any(unpin, base, 0);
}
