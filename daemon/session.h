/* Client session as pools and requests use it: messages to the client, memory charged to it, words that it shares with
 * its GPUs, and its pools. Accepting, reading and ending it are in clients.c. */
#ifndef STRAIT_DAEMON_SESSION_H
#define STRAIT_DAEMON_SESSION_H

#include <uthash.h>

#include "daemon/base/tenants.h"
#include "daemon/memory/pool.h"
#include "daemon/notes.h"
#include "daemon/policy.h"
#include "daemon/sampling.h"
#include "proto/socket_ring.h"

struct node;
struct request;
struct serving;
struct watch;

struct session {
    struct node *node;
    struct channel *channel; /* NULL: closed, or handed over to the peers */
    struct socket_ring ring; /* in place of the socket; none: the client has not sent RINGS */
    bool ring_place;         /* counts among the node's ringed: it has rings, or may send RINGS as its next message */
    struct watch *socket;
    struct watch *process; /* on the client's pidfd; NULL: only the socket shows its death */
    int pidfd;
    uint32_t pid, uid;
    struct tenant *tenant; /* NULL: it is refused */
    bool admin;            /* root or the daemon's own user: sees all tenants */

    bool embedded;         /* the client is the process that the node is embedded in: the node ends with it */
    bool has_hello;        /* HELLO has come, and there was a place for the client */
    uint64_t hello_until;  /* uv_now by which it is to come */
    bool successor;        /* it has the listening sockets, */
    uint64_t ready_until;  /* and is to accept by then; 0: that was told */
    bool mapping;          /* a pool is being mapped: messages wait */
    bool dirty;            /* something is to be flushed, */
    bool urgent;           /* a sink's verdict among it: before what others are told */
    bool backlog;          /* messages wait for their next turn */
    uint32_t stats_wanted; /* reports that it has asked for */
    uint64_t stats_turn;   /* in which it got one */
    const char *doomed;    /* why the session ends with this turn of the loop; NULL: it does not */
    bool ending;           /* nothing is read any more; the socket closes when all requests have drained */
    uint32_t jobs;         /* mapping and unmapping for this session */
    uint32_t undrained;    /* number of its requests whose pages are not free yet */
    uint64_t charged;      /* memory that its live requests take */
    uint32_t *words;       /* words shared with the client and its GPUs; NULL: none */
    uint32_t word_count;   /* number of words */
    uint64_t partial;      /* the transfer whose further parts must come next; 0: none */
    struct session_notes notes;
    struct request *requests;      /* hash, by transfer */
    struct request *untold;        /* those of them whose state the client does not know, until the loop sleeps */
    struct failed_request *failed; /* the latest that failed and are forgotten; NULL: none did */
    uint32_t failed_count;
    struct session *prev, *next;
};

struct failed_request;

/* ---- Messages and charges ---------------------------------------------------------------------------------------- */

/* For the functions below a session of NULL is a client that is gone: nothing is sent, charged or raised. */

/* Queues a message. Never ends the session under its caller: a session whose message cannot be queued ends with the
 * turn. */
void session_send(struct session *session, const struct message *message);
/* Charges memory taken for a request. False: the client has used up its share. */
bool session_charge(struct session *session, uint64_t bytes);
/* Keeps what is needed to tell the other side of a request that has failed or was not admitted, where a START names it
 * only now. */
void session_keep_failed(struct session *session, const struct failed_request *failed);
const struct failed_request *session_find_failed(const struct session *session, uint64_t transfer); /* NULL: unknown */
void session_forget(struct session *session, struct request *request); /* the request is freed */
void session_drained(struct session *session);                         /* one of its requests has drained */

/* ---- Tenants ----------------------------------------------------------------------------------------------------- */

/* Why a client of a removed tenant is refused what is new, and ended when its live requests have drained. */
extern const char session_no_tenant[];
/* Looks up the tenant of the client's user. Whoever has none is refused with its hello: it may be another daemon that
 * wants shared memory. */
void session_find_tenant(struct session *session, uint32_t gid);
/* Whether the tenant was removed, and all that the client had begun is over and told. */
bool session_lost_tenant(const struct session *session);
/* The tenant of this daemon that is called so; NULL: there is none. */
const struct tenant *tenant_named(struct node *node, struct view name);
/* Whether `tenant`, which asks for a pool, has none of that id here, but another tenant has; then that is counted and
 * logged, with `what` was asked for. It says nothing about keys: those of other tenants are never looked up. */
bool tenant_denied(struct node *node, const struct pool_id *pool, struct view tenant, const char *what);

/* ---- Words ------------------------------------------------------------------------------------------------------- */

/* Streams of a client's GPUs wait by words that client, daemon and GPUs share. A stream waits until its word has
 * reached a value; the daemon raises the word when the layer is in place, and in any case with the verdict. The client
 * may raise it too, when it gives the verdict itself: a word is only ever raised, so the order of the two does not
 * matter. */

/* Maps the client's words. False: the client broke the protocol. */
bool session_words(struct session *session, const struct message_words *message, const int *fds, uint32_t fd_count);
void session_words_fini(struct session *session);
void session_raise(struct session *session, uint32_t word, uint32_t value);

/* ---- Pools: mapped and unmapped on workers, known by their ids --------------------------------------------------- */

/* Ids count within a tenant: a pool that another one registers under the same id is not in the way. */
struct pool_key {
    const struct tenant *tenant;
    struct pool_id id;
};

/* A registered pool and its users. */
struct pool_ref {
    struct node *node;
    struct pool *pool;
    uint32_t uid; /* the client's */
    struct tenant *tenant;
    struct session *session; /* NULL: the client is gone */
    uint32_t uses;           /* offers and expectations that are not drained */
    bool removing;
    struct serving *serving; /* serve.c; NULL: peers have never been allowed to read pages of it */
    struct policy_pool policy;
    struct sampled sampled; /* of the served pages */
    uint64_t sampled_by;    /* number of the latest sample that counts the pool */
    UT_hash_handle hh;      /* exchange.pools */
    struct pool_key key;
};

struct pool_ref *pool_find(struct node *node, const struct tenant *tenant, const struct pool_id *id); /* NULL: none */

/* Maps a pool; the client gets its status. False: the client broke the protocol. */
bool session_pool_register(struct session *session, struct message *message, const int *fds, uint32_t fd_count);
struct pool_ref *session_pool(struct session *session, const struct pool_id *id); /* of this client; NULL: none */
/* Unmaps the pool as soon as no request uses it. */
void session_pool_remove(struct pool_ref *pool);
void session_pool_removed(struct session *session, const struct pool_id *id); /* tells the client */
void session_pool_gone(struct pool_ref *pool);   /* the last use of a pool to be removed has ended */
void session_pools_end(struct session *session); /* the client is gone */

#endif
