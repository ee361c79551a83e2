/* Memory of GPUs in a pool. */
#include "daemon/memory/pool_private.h"

/* Adds to the text which region was refused. */
static enum strait_status refused(const struct pool_why *why, enum strait_status status, uint32_t r, const char *text)
{
    return pool_refuse(why, status, "region %u: %s", r, text);
}

enum strait_status pool_map_device(const struct pool_context *context, const struct wire_region *region, uint32_t r,
                                   const int *fds, uint64_t first, uint64_t size, struct pool_mapping *mapping,
                                   const struct pool_why *why)
{
    char text[256] = "";
    const struct device_why told = {.text = text, .size = sizeof(text)};
    const struct device_handle handle = {.kind = (enum strait_handle)region->handle,
                                         .ipc = region->ipc.data,
                                         .fd = region->handle == STRAIT_HANDLE_CUDA_VMM ? fds[region->fd] : -1,
                                         .pointer = (uint8_t *)(uintptr_t)first,
                                         .size = size};
    *mapping = (struct pool_mapping){.device = region->device};
    enum strait_status status = devices_open(context->devices, region->device, &told);
    if (status == STRAIT_OK)
        status = devices_map(context->devices, region->device, &handle, &mapping->memory, &told);
    if (status != STRAIT_OK)
        return refused(why, status, r, text);
    mapping->base = mapping->memory.base;
    mapping->size = mapping->memory.size;
    return STRAIT_OK;
}
