/* Groups and handles of NCCL EP: a communicator's group of libstrait-ep, and its handles. */
#ifndef STRAIT_EP_NCCL_EP_GROUP_H
#define STRAIT_EP_NCCL_EP_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/ep.h>

#include "ep/nccl_ep/abi.h"
#include "ep/nccl_ep/device.h"

struct ncclEpGroup {
    struct strait_ep_group *group;
    struct strait_ep_config config;
    nep_comm comm;
    const struct nep_memory *memory;
    int device;
    uint32_t local_experts;
    /* LL: rows and scales of a dispatch that quantizes, until they are sent; [tokens_max] row_bytes_max. Calls follow
     * each other on the stream, so one will do. */
    uint8_t *quantized;
    struct ncclEpHandle *handles;
};

/* Rows of experts' zones with their alignment, which the host makes of where zones begin. In pinned memory. */
struct nep_zones {
    uint32_t experts;
    int32_t values[]; /* [experts + 1] where zones begin and the last ends, then [experts] */
};

struct ncclEpHandle {
    struct ncclEpHandle *next;
    struct ncclEpGroup *group;
    struct strait_ep_handle *handle; /* NULL: topk is not known yet */
    struct strait_ep_handle_config config;
    int32_t *counters; /* where int32 of libstrait-ep wait to become the caller's int64; [2 * local_experts + 1] */
    struct nep_zones *zones;
    uint32_t tokens; /* of the last update */
    bool updated;
    int ids; /* numbering of experts that the update asked for */
};

/* Makes the handle of libstrait-ep, with config.topk. */
nep_result nep_handle_open(struct ncclEpHandle *handle);

#endif
