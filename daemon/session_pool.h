/* A client's pools: mapped and unmapped on workers, known by their ids. */
#ifndef STRAIT_DAEMON_SESSION_POOL_H
#define STRAIT_DAEMON_SESSION_POOL_H

#include <uthash.h>

#include "daemon/memory/pool.h"
#include "daemon/policy.h"

struct node;
struct session;

/* A registered pool and its users. */
struct pool_ref {
    struct node *node;
    struct pool *pool;
    uint32_t uid;            /* the client's */
    struct session *session; /* NULL: the client is gone */
    uint32_t uses;           /* offers and expectations that are not drained */
    bool removing;
    struct policy_pool policy;
    UT_hash_handle hh; /* exchange.pools, by pool->id */
    struct pool_id id;
};

/* Maps a pool; the client gets its status. False: the client broke the protocol. */
bool session_pool_register(struct session *session, struct message *message, const int *fds, uint32_t fd_count);
struct pool_ref *session_pool(struct session *session, const struct pool_id *id); /* of this client; NULL: none */
/* Unmaps the pool as soon as no request uses it. */
void session_pool_remove(struct pool_ref *pool);
void session_pool_removed(struct session *session, const struct pool_id *id); /* tells the client */
void session_pool_gone(struct pool_ref *pool);   /* the last use of a pool to be removed has ended */
void session_pools_end(struct session *session); /* the client is gone */

#endif
