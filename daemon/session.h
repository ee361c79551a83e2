/* One client connection. */
#ifndef STRAIT_DAEMON_SESSION_H
#define STRAIT_DAEMON_SESSION_H

#include "daemon/node.h"
#include "daemon/peers/poll.h"

struct session {
    struct node *node;
    struct channel *channel; /* NULL: closed, or handed over to the peers */
    struct watch *socket;
    struct watch *process; /* on the client's pidfd; NULL: only the socket tells of its death */
    int pidfd;
    uint32_t pid, uid;
    bool inside;              /* the client is the process that the node is embedded in: the node ends with it */
    bool greeted;             /* HELLO has come */
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

/* Takes the socket. A client beyond the limit is closed and counted. */
void session_accept(struct node *node, int fd);
/* Ends the session: the client's live transfers fail, and the socket is closed when they have drained. */
void session_end(struct session *session, const char *why);
/* Queues a message. Never ends the session under its caller: a session whose message cannot be queued ends with the
 * turn. NULL session: the client is gone, nothing is sent. */
void session_send(struct session *session, const struct message *message);
/* The same for a notification, which is dropped when the client does not read. */
void session_send_note(struct session *session, const struct message *message);
void session_flush(struct node *node);                                    /* sends what the turn has queued */
void session_forget(struct session *session, struct request *request);    /* the request is freed */
void session_drained(struct session *session);                            /* one of its requests has drained */
struct request *session_find(struct session *session, uint64_t transfer); /* NULL: none, or over */
void session_process(struct session *session); /* handles received messages, until one has to wait */
void session_backlogs(struct node *node);      /* handles messages that waited */
void session_jobs_over(struct session *session);
void session_reap(struct node *node); /* at the end of a turn: frees those that have ended */

/* ---- session_pool.c: false means that the client broke the protocol ---------------------------------------------- */

bool session_pool_register(struct session *session, struct message *message, const int *fds, uint32_t fd_count);
bool session_pool_remove(struct session *session, const struct message_pool_remove *message);
struct pool_ref *session_pool(struct session *session, const struct pool_id *id); /* of this client; NULL: none */
void session_pools_end(struct session *session);                                  /* the client is gone */
void session_pool_gone(struct pool_ref *pool); /* the last use of a pool to be removed has ended */

/* ---- wait.c: the same -------------------------------------------------------------------------------------------- */

bool session_words(struct session *session, const struct message_words *message, const int *fds, uint32_t fd_count);
bool session_wait(struct session *session, const struct message_wait *message);
void session_words_fini(struct session *session);

/* ---- session_verbs.c --------------------------------------------------------------------------------------------- */

/* Handles all messages but HELLO, SHM_HELLO and those that carry descriptors. */
bool session_verb(struct session *session, const struct message *message);

#endif
