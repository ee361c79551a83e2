/* Daemons and the workers at them: every worker a client of libstrait with a pool of each form. */
#ifndef STRAIT_TESTS_SOAK_WORLD_H
#define STRAIT_TESTS_SOAK_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/strait.h>

#include "tests/soak/daemon.h"

/* The memory of a pool, with contents that tell where every page came from. */

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

enum { DAEMONS_MAX = 3, WORKERS_MAX = 6, FORMS_MAX = 5, ROUTES_MAX = 96 };

struct worker {
    struct soak_daemon *daemon; /* borrowed */
    uint32_t node;              /* index of the daemon */
    struct strait_client *client;
    struct pool pools[FORMS_MAX];
    bool may_lose; /* its daemon: that is no error */
};

/* From a pool to one of the same form. */
struct route {
    struct pool *source, *sink;
    struct strait_peer *to_sink, *to_source; /* owned by the clients of source and sink */
};

/* Which daemons and workers there shall be. */
struct world_plan {
    uint32_t daemon_count, worker_count, form_count;
    struct daemon_options daemons[DAEMONS_MAX];
    uint32_t worker_nodes[WORKERS_MAX];
    const struct form *forms;
};

struct world {
    char folder[64];
    uint32_t daemon_count, worker_count, form_count, route_count;
    struct soak_daemon daemons[DAEMONS_MAX];
    struct worker workers[WORKERS_MAX];
    struct route routes[ROUTES_MAX];
};

/* Starts all of it and waits until every pool is registered. False: complained. world_fini in any case. */
bool world_init(struct world *world, const char *program, const struct world_plan *plan);
/* Closes the clients, stops the daemons, removes the folder. */
void world_fini(struct world *world);

/* A way from one worker's pool of a form to another's. NULL: out of memory or routes, complained. */
const struct route *world_route(struct world *world, uint32_t from, uint32_t to, uint32_t form);

/* Handles what the clients have to tell, waiting up to `ms` for it. False: a daemon is gone that should be there. */
bool world_pump(struct world *world, int ms);

/* Complains about what is still held after a while of nothing under way: slots, pages, transfers. */
void world_check_rest(struct world *world);

static inline bool route_is_local(const struct route *route)
{
    return route->source->worker->node == route->sink->worker->node;
}

#endif
