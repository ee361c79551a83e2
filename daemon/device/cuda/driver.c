#include "daemon/device/cuda/driver.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

static struct driver driver;
static bool complete;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const struct entry {
    const char *name;
    unsigned version;
    size_t offset;
} entries[] = {
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

static void find_all(void)
{
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *found = NULL;
        enum cudaDriverEntryPointQueryResult status;
        if (cudaGetDriverEntryPointByVersion(entries[i].name, &found, entries[i].version, cudaEnableDefault, &status) !=
                cudaSuccess ||
            found == NULL)
            return;
        *(void **)((char *)&driver + entries[i].offset) = found;
    }
    complete = true;
}

const struct driver *driver_get(void)
{
    pthread_once(&once, find_all);
    return complete ? &driver : NULL;
}

const char *driver_text(CUresult result)
{
    const char *text = NULL;
    return complete && driver.error_string(result, &text) == CUDA_SUCCESS && text != NULL ? text : "unknown error";
}
