/* Pools, between a client and its daemon. Sizes and strides of regions are left to the daemon to check: it knows the
 * memory, and can refuse a pool without giving up the connection. */
#include <strait/codec.h>

#include "proto/channel.h"
#include "proto/fields.h"
#include "proto/limits.h"

static enum strait_status region_check(const void *plain)
{
    const struct wire_region *region = plain;
    return corrupt_unless(region->handle != STRAIT_HANDLE_CUDA_IPC || region->ipc.size > 0);
}

#define REGION struct wire_region, Strait__Wire__Region
static const struct field region_fields[] = {
    KNOWN(REGION, handle, STRAIT_HANDLE_MEMFD, STRAIT_HANDLE_CUDA_VMM),
    I32(REGION, device, -1, INT32_MAX),
    U32(REGION, fd, 0, UINT32_MAX),
    U64(REGION, pointer),
    BYTES_OR_NONE(REGION, ipc, 64),
    U64(REGION, offset),
    U64(REGION, page_stride),
    U64(REGION, row_stride),
    U32(REGION, page_count, 0, UINT32_MAX),
    U32(REGION, rows, 0, UINT32_MAX),
    U32(REGION, row_bytes, 0, UINT32_MAX),
    KNOWN(REGION, element, STRAIT_ELEMENT_BYTES, STRAIT_ELEMENT_FP8_E5M2),
    KNOWN(REGION, role, STRAIT_ROLE_OTHER, STRAIT_ROLE_V),
    I32(REGION, layer, -1, INT32_MAX),
    U32(REGION, heads, 0, UINT32_MAX),
    U32(REGION, group, 0, STRAIT_GROUPS_MAX - 1),
};
static const struct layout region_layout = LAYOUT(REGION, region, region_fields, region_check);

static bool region_has_fd(const struct wire_region *region)
{
    return region->handle == STRAIT_HANDLE_MEMFD || region->handle == STRAIT_HANDLE_CUDA_VMM;
}

static enum strait_status pool_register_check(const void *plain)
{
    const struct message_pool_register *pool = plain;
    for (uint32_t i = 0; i < pool->region_count; i++)
        if (region_has_fd(&pool->regions[i]) && pool->regions[i].fd >= pool->fd_count)
            return STRAIT_ERR_CORRUPT;
    return STRAIT_OK;
}

#define POOL_REGISTER struct message_pool_register, Strait__Wire__PoolRegister
static const struct field pool_register_fields[] = {
    POOL(POOL_REGISTER, pool),
    U32(POOL_REGISTER, fd_count, 0, CHANNEL_FDS_MAX),
    KNOWN(POOL_REGISTER, coding, STRAIT_CODING_AUTO, STRAIT_CODING_TIERED),
    LIST(POOL_REGISTER, region_count, regions, REGION, 1, STRAIT_REGIONS_MAX, &region_layout),
};
const struct layout pool_register_layout =
    LAYOUT(POOL_REGISTER, pool_register, pool_register_fields, pool_register_check);

#define POOL_REMOVE struct message_pool_remove, Strait__Wire__PoolRemove
static const struct field pool_remove_fields[] = {
    POOL(POOL_REMOVE, pool),
};
const struct layout pool_remove_layout = LAYOUT(POOL_REMOVE, pool_remove, pool_remove_fields, NULL);

#define POOL_STATUS struct message_pool_status, Strait__Wire__PoolStatus
static const struct field pool_status_fields[] = {
    POOL(POOL_STATUS, pool),
    KNOWN_SIGNED(POOL_STATUS, status, STATUS_LAST, STRAIT_OK),
    BOOL(POOL_STATUS, removed),
    TEXT(POOL_STATUS, text),
};
const struct layout pool_status_layout = LAYOUT(POOL_STATUS, pool_status, pool_status_fields, NULL);
