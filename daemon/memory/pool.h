/* A client's KV pool as mapped by the daemon, and which of its pages are in use. */
#ifndef STRAIT_DAEMON_MEMORY_POOL_H
#define STRAIT_DAEMON_MEMORY_POOL_H

#include <strait/codec.h>

#include "daemon/device/devices.h"
#include "daemon/protocol/page_set.h"
#include "daemon/protocol/segments.h"
#include "proto/blob.h"

struct pool_group {
    struct strait_region *regions; /* mapped, in the pool's order; table: by the region's class in the codebook */
    int32_t *layers;               /* per region */
    uint8_t *roles;                /* per region: enum strait_role */
    uint32_t region_count;
    uint32_t page_count; /* ids are below this in every region */
    enum strait_element element;
    int32_t device;     /* the GPU that holds the memory of all regions; -1: the host */
    uint32_t *uses;     /* per page id: number of offers; 0 while it is expected */
    uint64_t *expected; /* a bit per page id: dense, so that releasing millions of them in any order is fast */
};

struct pool {
    struct pool_id id;
    uint64_t geometry;             /* blob_geometry, of: */
    struct blob_region *described; /* its regions as peers see them */
    uint32_t described_count;
    char compat[STRAIT_COMPAT_BYTES_MAX + 1];
    uint64_t bytes; /* mapped host memory */
    uint64_t device_bytes;
    uint32_t coding; /* enum strait_coding */
    uint32_t group_count;
    struct pool_group *groups;
    struct region_sizes sizes; /* of the groups, for segments_cut */
    struct pool_mapping *mappings;
    uint32_t mapping_count;
    struct devices *devices; /* hold some of the mappings; NULL: all memory is the host's */
    uint64_t quarantined;    /* pages of transfers that have a verdict but are not drained; kept by the owner */
};

/* Limits that a registration is checked against. */
struct pool_context {
    bool embedded;           /* pointers are allowed */
    uint64_t bytes_max;      /* limit on host memory */
    struct devices *devices; /* NULL: no GPUs */
};

/* Checks a registration and maps it: memfds must be regular memfds, sealed against shrinking, large enough; regions
 * must lie inside, with strides and sizes without overflow, and no two pages of the pool may overlap one another in
 * memory within a region. Memory of GPUs must be on the device that the region names, the same for a whole group, and
 * large enough. Pointers only when embedded. Memory of memfds has been touched before, so that its worker is charged
 * for it, and the daemon's page tables fit into its limit (daemon/memory/limits.h). Maps every page of the host's
 * memory (for writing), which takes long: runs on a worker. fds are borrowed. On OK the caller owns *pool. ERR_INVALID,
 * ERR_UNSUPPORTED (also: no GPUs), ERR_DEVICE, ERR_NO_MEMORY, ERR_IO; `why` says more. */
enum strait_status pool_map(const struct message_pool_register *registration, const int *fds,
                            const struct pool_context *context, struct pool **pool, char *why, size_t why_size);
/* Gives each region the table of its class in the codebook set (NULL: 0). A pool that was just mapped has table 0. */
void pool_choose_tables(struct pool *pool, const struct strait_codebook *codebook);
/* Frees the groups, and nothing else. */
void pool_free_groups(struct pool *pool);
/* Unmaps; may take long. No job may use the pool. NULL is allowed. */
void pool_unmap(struct pool *pool);

/* Are all ids of the list the pool's? */
bool pool_has(const struct pool *pool, const struct wire_page_list *list);

/* Marks the pages of a list as expected, or as used by one more offer: all or none. False: *used is in the way. A page
 * in a live expectation is in nothing else, nor twice in one list. */
bool pool_mark(struct pool *pool, const struct wire_page_list *list, bool expected, uint32_t *used);
/* Clears the marks of all pages of a set. */
void pool_release(struct pool *pool, const struct page_set *pages, bool expected);

#endif
