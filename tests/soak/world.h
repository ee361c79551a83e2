/* Daemons and the workers at them: every worker a client of libstrait with a pool of each form. */
#ifndef STRAIT_TESTS_SOAK_WORLD_H
#define STRAIT_TESTS_SOAK_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/soak/daemon.h"
#include "tests/soak/pool.h"

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
