/* Shared by the pool's files. */
#ifndef STRAIT_DAEMON_MEMORY_POOL_PRIVATE_H
#define STRAIT_DAEMON_MEMORY_POOL_PRIVATE_H

#include "daemon/memory/pool.h"

#define POOL_IDS_MAX (64u * 1024 * 1024) /* page ids of all groups together; each costs 4 bytes */

/* Memory that holds regions. */
struct pool_mapping {
    uint8_t *base;
    size_t size;
    bool borrowed;  /* a client's pointer in embedded mode: not ours to unmap */
    int32_t device; /* -1: the host */
    struct device_memory memory;
};

/* Receives the text of an error, for people. */
struct pool_why {
    char *text;
    size_t size;
};

/* Writes the text; returns `status`. */
enum strait_status pool_refuse(const struct pool_why *why, enum strait_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Bytes from the beginning of a region's page 0 to the end of its last page. The region has been checked. */
uint64_t pool_region_span(const struct wire_region *region);

/* Checks everything that does not need a look at memory or descriptors. ERR_INVALID, ERR_UNSUPPORTED, ERR_NO_MEMORY. */
enum strait_status pool_check(const struct message_pool_register *registration, const struct pool_context *context,
                              const struct pool_why *why);

/* Orders regions by the memory that they name: 0 when it is the same as far as the registration tells. */
int pool_memory_compare(const struct wire_region *a, const struct wire_region *b);

/* Maps the memory of all regions into pool->mappings; bases[r] receives the beginning of region r. pool_unmap undoes
 * what was mapped, also on failure. */
enum strait_status pool_map_memory(struct pool *pool, const struct message_pool_register *registration, const int *fds,
                                   const struct pool_context *context, uint8_t **bases, const struct pool_why *why);

/* Maps GPU memory of which region r needs `size` bytes, from the beginning of the memory or, for a pointer, from
 * `first`. */
enum strait_status pool_map_device(const struct pool_context *context, const struct wire_region *region, uint32_t r,
                                   const int *fds, uint64_t first, uint64_t size, struct pool_mapping *mapping,
                                   const struct pool_why *why);

#endif
