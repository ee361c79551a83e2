/* Daemons of our own, on loopback, and the workers at them: every worker a client of libstrait with a pool of each
 * form; and the runs of the soak test. */
#ifndef STRAIT_TESTS_SOAK_WORLD_H
#define STRAIT_TESTS_SOAK_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/strait.h>

#include "tests/daemon.h"
#include "tests/soak/relay.h"

/* A rule was broken: told on stderr (the first ones), and counted. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t complaints(void);
/* So many that nothing is learned from going on. */
bool too_many_complaints(void);

/* ---- Daemons ----------------------------------------------------------------------------------------------------- */

#define DAEMON_PATH_MAX 128u

struct daemon_options {
    const char *transports;
    uint64_t arena_bytes, chunk_bytes;
    const char *host;         /* numeric; NULL: 127.0.0.1 */
    bool relayed;             /* peers reach it through the relay of its world */
    const char *const *extra; /* more options, "--name=value"; ends with NULL. NULL: none */
};

struct soak_daemon {
    const char *program, *folder; /* borrowed; in the folder is a file "codebook" */
    char name[16];
    struct daemon_options options;
    pid_t pid;                          /* 0: not running */
    pid_t leaving;                      /* the one before it, which ends by itself; 0: there is none */
    unsigned port, metrics_port, front; /* the same in every life, as blobs tell them; front: the relay's, if any */
    int reserved[3];                    /* keep them; -1: none */
    long log_begin;                     /* of this life */
    char socket[DAEMON_PATH_MAX], log[DAEMON_PATH_MAX];
};

/* Starts it; daemon_await_ready follows. False: complained. */
bool daemon_launch(struct soak_daemon *daemon);
bool daemon_await_ready(struct soak_daemon *daemon);
/* False: it has ended by itself, which was complained about. */
bool daemon_runs(struct soak_daemon *daemon);
/* By SIGTERM; complains when it does not end, or with another status than 0. Nothing happens to one that does not run.
 */
void daemon_stop(struct soak_daemon *daemon);
/* By SIGKILL. */
void daemon_kill(struct soak_daemon *daemon);
/* SIGTERM, without waiting: it becomes the one that leaves, and another can be launched once daemon_left says so. */
void daemon_leave(struct soak_daemon *daemon);
/* Starts another with --replace; the one that ran becomes the one that leaves. False: complained. */
bool daemon_replace(struct soak_daemon *daemon);
/* True once none is leaving any more. Complains when it ended with another status than 0. */
bool daemon_left(struct soak_daemon *daemon);
/* The text of its metrics; the caller frees it. NULL: no answer. */
char *daemon_metrics(const struct soak_daemon *daemon);

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

#define BLOB_MAX 4096u

/* Of what pages are. K and V of a layer are interleaved page by page, or lie apart. */
struct form {
    const char *name;
    uint32_t page_bytes, layers, roles, ids;
    bool interleaved;
    enum strait_element element; /* 0: BF16 */
};

struct worker;

struct pool {
    struct worker *worker; /* borrowed */
    struct form form;
    struct strait_memory memory;
    struct strait_pool *pool; /* owned by the worker's client */
    uint32_t *vacant, vacant_count;
    bool told;    /* the daemon's answer has come */
    bool watched; /* only sinks take from it, and its vacant pages are wiped: pool_is_wiped */
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

/* Wipes all pages; from then on only moves that end wipe what they took. All pages are vacant. */
void pool_watch(struct pool *pool);
void pool_wipe(struct pool *pool, uint32_t id);
/* Whether nobody has written to a vacant page. */
bool pool_is_wiped(const struct pool *pool);

/* Takes `count` pages, in no order, which must be vacant; gives them back. */
void pool_take(struct pool *pool, uint32_t *ids, uint32_t count);
void pool_give(struct pool *pool, const uint32_t *ids, uint32_t count);

/* ---- Worlds ------------------------------------------------------------------------------------------------------ */

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
    struct relay relay; /* if daemons are relayed */
};

/* Starts all of it and waits until every pool is registered. False: complained. world_fini in any case. */
bool world_init(struct world *world, const char *program, const struct world_plan *plan);
/* Closes the clients, stops the daemons, removes the folder. */
void world_fini(struct world *world);

/* A way from one worker's pool of a form to another's. NULL: out of memory or routes, complained. */
const struct route *world_route(struct world *world, uint32_t from, uint32_t to, uint32_t form);

/* Handles what the clients have to tell, waiting up to `ms` for it. False: a daemon is gone that should be there. */
bool world_pump(struct world *world, int ms);

/* Time for which the daemons, the relay and this process were ready to run and had no processor, in ms, as far as
 * world_look_waited has seen it; that looks every 20 ms. */
uint64_t world_waited_ms(void);
void world_look_waited(const struct world *world);

/* Complains about what is still held after a while of nothing under way: slots, pages, transfers. */
void world_check_rest(struct world *world);

static inline bool route_is_local(const struct route *route)
{
    return route->source->worker->node == route->sink->worker->node;
}

/* ---- Runs: each complains about what is wrong, which decides the exit status ------------------------------------- */

struct soak_options {
    const char *daemon; /* the program */
    const char *transport, *scenario;
    uint64_t seconds, concurrency, stall_ms;
    /* Of "faults". */
    uint64_t transfers, seed, fault; /* fault: the only one that strikes; UINT64_MAX: all */
    const char *host;                /* numeric, of the loopback */
    const char *daemon_options[8];   /* "name=value", of both daemons; the rest is NULL */
    bool secret;                     /* the daemons have one, */
    bool certificates;               /* or certificates */
};

/* One that is named: arenas of one chunk, shared by slow and ready sources ("one-slot"); one transfer that runs out of
 * time among many ("deadline"); either daemon comes back, then both ("restart"). False: there is no such scenario. */
bool soak_scenario(const struct soak_options *options);
/* Faults of all kinds strike two daemons while transfers go on between them, over shm, tcp or ucx. False: there is no
 * such transport. */
bool soak_faults(const struct soak_options *options);

#endif
