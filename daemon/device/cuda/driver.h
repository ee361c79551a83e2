/* Functions that only the driver API has. The plugin does not link the driver: it looks them up at run time. */
#ifndef STRAIT_DAEMON_DEVICE_CUDA_DRIVER_H
#define STRAIT_DAEMON_DEVICE_CUDA_DRIVER_H

#include <cuda.h>
#include <cudaTypedefs.h>

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

/* NULL: the driver lacks some of them. */
const struct driver *driver_get(void);
const char *driver_text(CUresult result);

#endif
