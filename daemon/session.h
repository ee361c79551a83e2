/* Client session as pools and requests use it: messages to the client, memory charged to it, words that it shares with
 * its GPUs, and its pools. Accepting, reading and ending it are in clients.c. */
#ifndef STRAIT_DAEMON_SESSION_H
#define STRAIT_DAEMON_SESSION_H

#include <uthash.h>

#include "daemon/memory/pool.h"
#include "daemon/policy.h"
#include "proto/channel.h"

struct node;
struct request;
struct watch;

struct session {
    struct node *node;
    struct channel *channel; /* NULL: closed, or handed over to the peers */
    struct watch *socket;
    struct watch *process; /* on the client's pidfd; NULL: only the socket shows its death */
    int pidfd;
    uint32_t pid, uid;
    bool embedded;            /* the client is the process that the node is embedded in: the node ends with it */
    bool has_hello;           /* HELLO has come */
    bool mapping;             /* a pool is being mapped: messages wait */
    bool dirty;               /* something is to be flushed */
    bool backlog;             /* messages wait for their next turn */
    const char *doomed;       /* why the session ends with this turn of the loop; NULL: it does not */
    bool ending;              /* nothing is read any more; the socket closes when all requests have drained */
    uint32_t jobs;            /* mapping and unmapping for this session */
    uint32_t undrained;       /* number of its requests whose pages are not free yet */
    uint64_t charged;         /* memory that its live requests take */
    uint32_t *words;          /* words shared with the client and its GPUs; NULL: none */
    uint32_t word_count;      /* number of words */
    uint64_t partial;         /* the transfer whose further parts must come next; 0: none */
    struct request *requests; /* hash, by transfer */
    struct session *prev, *next;
};

/* ---- Messages and charges ---------------------------------------------------------------------------------------- */

/* For the functions below a session of NULL is a client that is gone: nothing is sent, charged or raised. */

/* Queues a message. Never ends the session under its caller: a session whose message cannot be queued ends with the
 * turn. */
void session_send(struct session *session, const struct message *message);
/* The same for a notification, which is dropped when the client does not read. */
void session_send_note(struct session *session, const struct message *message);
/* Charges memory taken for a request. False: the client has used up its share. */
bool session_charge(struct session *session, uint64_t bytes);
void session_forget(struct session *session, struct request *request); /* the request is freed */
void session_drained(struct session *session);                         /* one of its requests has drained */

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
