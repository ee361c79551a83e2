/* The memory of a pool, with contents that tell where every page came from. */
#ifndef STRAIT_TESTS_SOAK_POOL_H
#define STRAIT_TESTS_SOAK_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/strait.h>

#define BLOB_MAX 4096u

/* Of what pages are. K and V of a layer are interleaved page by page, or lie apart. */
struct form {
    const char *name;
    uint32_t page_bytes, layers, roles, ids;
    bool interleaved;
};

struct worker;

struct pool {
    struct worker *worker; /* borrowed */
    struct form form;
    struct strait_memory memory;
    struct strait_pool *pool; /* owned by the worker's client */
    uint32_t *vacant, vacant_count;
    bool told; /* the daemon's answer has come */
    uint8_t blob[BLOB_MAX];
    size_t blob_size;
};

static inline uint32_t form_regions(const struct form *form)
{
    return form->layers * form->roles;
}

/* Of one id, over all regions. */
static inline uint64_t form_id_bytes(const struct form *form)
{
    return (uint64_t)form_regions(form) * form->page_bytes;
}

/* Allocates, fills with values that code well, and registers. False without memory. pool_fini in any case. */
bool pool_init(struct pool *pool, struct worker *worker, struct strait_client *client, const struct form *form);
/* After the client was closed. Safe on zeroes. */
void pool_fini(struct pool *pool);

uint8_t *pool_page(const struct pool *pool, uint32_t region, uint32_t id);

/* Takes `count` pages, in no order, which must be vacant; gives them back. */
void pool_take(struct pool *pool, uint32_t *ids, uint32_t count);
void pool_give(struct pool *pool, const uint32_t *ids, uint32_t count);

#endif
