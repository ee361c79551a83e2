/* What the parts of a pool share. */
#ifndef STRAIT_DAEMON_MEMORY_POOL_PRIVATE_H
#define STRAIT_DAEMON_MEMORY_POOL_PRIVATE_H

#include "daemon/memory/pool.h"

#define POOL_IDS_MAX (64u * 1024 * 1024) /* page ids of all groups: each costs 4 bytes */

/* Memory that holds regions. */
struct pool_mapping {
    uint8_t *base;
    size_t size;
    bool borrowed; /* a client's pointer in embedded mode: not ours to unmap */
};

/* Where an error is told, for people. */
struct pool_why {
    char *text;
    size_t size;
};

/* Notes why and returns status. */
enum strait_status pool_refuse(const struct pool_why *why, enum strait_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Bytes from the beginning of a region's page 0 to the end of its last page. The region has been checked. */
uint64_t pool_region_span(const struct wire_region *region);

/* Everything that can be told without looking at memory or descriptors. ERR_INVALID, ERR_UNSUPPORTED, ERR_NO_MEMORY. */
enum strait_status pool_check(const struct message_pool_register *registration, bool embedded,
                              const struct pool_why *why);

/* Maps the memory of all regions into pool->mappings; bases[r] receives where region r begins. What was mapped is
 * pool_unmap's to undo, also on failure. */
enum strait_status pool_map_memory(struct pool *pool, const struct message_pool_register *registration, const int *fds,
                                   uint64_t bytes_max, uint8_t **bases, const struct pool_why *why);

#endif
