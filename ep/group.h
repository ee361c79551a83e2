/* Group: its ranks' arenas, mapped here, and what its handles share. */
#ifndef STRAIT_EP_GROUP_H
#define STRAIT_EP_GROUP_H

#include "ep/heap.h"
#include "ep/kernels.h"
#include "ep/proxy.h"

/* A call of a handle that has sent and not received. */
struct ep_open_call {
    struct strait_ep_handle *handle;
    uint64_t call;
};

struct strait_ep_group {
    struct strait_ep_config config; /* defaults filled in */
    struct ep_group_view view;
    const struct ep_ops *ops;
    void *context; /* of ops; NULL: not open */
    /* Arenas: bases as ops mapped them (peer), or shared host memory and where phases see it. */
    bool peer;
    bool mixed; /* the view's `coded` says that rows can be coded: each call chooses */
    void *bases[STRAIT_EP_RANKS_MAX];
    const char *medium;
    /* Where some ranks are on other hosts. */
    struct ep_proxy *proxy;
    struct ep_group_view host_view; /* of the proxy: with addresses of the host */
    uint64_t *report;               /* the host's address of view.report */
    struct ep_heap heap;
    uint64_t calls, coded_calls; /* begun; of these with coded rows */
    struct ep_open_call open[2];
    uint32_t open_count;
};

/* Why no call can be made any more: what the report says, but for timeouts of a group with mask; else OK. */
enum strait_status ep_group_usable(const struct strait_ep_group *group);

/* What to tell peers of a tensor: where it lies in the heap, {0, 0}: elsewhere. */
struct ep_announce ep_group_place(const struct strait_ep_group *group, const void *data, uint32_t row_bytes);

#endif
