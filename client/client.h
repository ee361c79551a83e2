/* What the files of the library share: the objects behind the handles of strait.h and who may do what to them.
 *
 * One connection at a time. Its states:
 *
 *     AWAY --connect--> GREETING --WELCOME--> READY --end of the socket--> AWAY
 *                                               \--the library gives up--> CLOSING --end of the socket--> AWAY
 *
 * CLOSING exists because only the daemon knows when pages are no longer touched: it closes a client's socket after
 * that, so the library, having shut its side down, waits for the end before it calls anything drained. */
#ifndef STRAIT_CLIENT_CLIENT_H
#define STRAIT_CLIENT_CLIENT_H

#include "proto/blob.h"
#include "proto/channel.h"
#include "proto/message.h"

#define NEVER            UINT64_MAX
#define BACKOFF_FIRST_MS 20u
#define BACKOFF_LAST_MS  500u
#define GRACE_MS         100u        /* what the daemon may be late with a verdict before the library gives one */
#define DEADLINE_MAX_MS  86400000u   /* 24 h */
#define QUEUE_BYTES_MAX  (64u << 20) /* in the channel; what exceeds it waits in the outbox */
#define EVENTS_AHEAD     4096u       /* nothing more is read while so many events wait */
#define NOTES_AHEAD      256u        /* notifications kept for a daemon that is away */

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* An event on its way: waiting, then handed out until the next poll. Verdicts must not need memory: their nodes are
 * part of the transfer. */
struct event_node {
    struct strait_event event;
    struct event_node *next;
    bool heap;        /* freed when done with */
    void *payload[3]; /* freed with the event */
};

struct event_list {
    struct event_node *first, **end;
    uint32_t count;
};

enum { NODE_READY, NODE_TRANSFERRING, NODE_VERDICT, NODE_DRAINED, NODES };

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

enum connection_state {
    AWAY,     /* no socket; the next attempt is at reconnect_at */
    GREETING, /* HELLO is sent, WELCOME awaited */
    READY,
    CLOSING, /* shut down by the library; waits for the daemon to let go */
};

struct outbox_entry;
struct words;
struct stream_wait;

struct outbox {
    struct outbox_entry *first, **end;
    uint32_t notes; /* of all entries */
};

struct strait_client {
    int epoll_fd, timer_fd, event_fd;
    bool signalled;    /* event_fd is readable */
    bool input_left;   /* frames were left in the channel */
    uint64_t timer_at; /* what timer_fd is set to, NEVER: nothing */
    uint64_t next_due; /* no transfer is due earlier; may be too early */
    char *socket;      /* path, or NULL when embedded */
    char *own_socket;  /* where a daemon of this user's own would be, which goes first; or NULL */
    bool uses_own;     /* settled once a daemon has answered */
    char *embedded;    /* options, or NULL */

    enum connection_state state;
    struct channel *channel;
    bool want_out;     /* the socket is watched for EPOLLOUT */
    bool write_failed; /* nothing can be sent any more, though the other side has not closed */
    uint32_t backoff_ms;
    uint64_t reconnect_at;
    enum strait_status told; /* the failure last told in an event CONNECTION */

    bool welcomed; /* at least once: what follows is known */
    uint32_t version;
    char address[MESSAGE_ADDRESS_MAX + 1];
    uint8_t codebook_id[CODEBOOK_ID_BYTES];

    struct words *words; /* that streams of GPUs wait for; NULL: none has */
    struct outbox outbox;
    struct event_list waiting, handed;
    struct strait_pool *pools;
    struct strait_peer *peers;
    struct strait_transfer *transfers; /* not released */
    struct strait_transfer **buckets;  /* the same by id */
    uint32_t bucket_count, transfer_count;
    uint64_t last_id;
};

struct strait_pool {
    struct strait_client *client;
    struct strait_pool *next, **link;
    struct pool_id id;
    enum strait_coding coding;
    bool refused;  /* by the present daemon */
    bool removing; /* strait_pool_remove was called */
    uint32_t region_count, group_count, fd_count;
    struct wire_region *wire; /* in the pool's order, as is `regions` */
    struct blob_region *regions;
    uint32_t *group_pages; /* ids of a group are below this */
    int *fds;
    struct event_node removed;
};

struct strait_peer {
    struct strait_client *client;
    struct strait_peer *next, **link;
    struct pool_blob blob;
};

struct strait_transfer {
    struct strait_client *client;
    struct strait_pool *pool; /* NULL once the pool is gone */
    struct strait_transfer *next, **link, *bucket_next;
    uint64_t id;
    void *context;
    bool sink, last; /* last: an offer that is complete */
    bool known;      /* something of it was sent on this connection */
    bool ended;      /* the verdict is given */
    bool drained, released, aborting;
    enum strait_state state;
    enum strait_reason reason;
    uint32_t layers_landed;
    uint64_t pages;    /* listed so far */
    uint64_t deadline; /* of a sink; of an offer: the end of its first lease */
    size_t key_size;
    uint8_t key[STRAIT_KEY_BYTES_MAX];
    uint32_t deferred;        /* messages of it in the outbox */
    uint32_t waiting, handed; /* events of it; it is not freed before they were seen */
    struct event_node nodes[NODES];
    struct wire_page_list *lists; /* of a sink: what fails when the library has to say so; ids lie behind */
    uint32_t list_count;
    struct stream_wait *waits; /* streams that wait for it */
    uint32_t wait_count;
    struct strait_failed_page *failed; /* parts of a verdict that came so far */
    uint32_t failed_count, failed_capacity;
};

/* ---- events.c ---------------------------------------------------------------------------------------------------- */

void events_init(struct event_list *list);
/* Queues a node and makes the client's descriptor readable. */
void event_push(struct strait_client *client, struct event_node *node);
/* A node of the heap, to be pushed or freed. NULL: no memory. */
struct event_node *event_create(enum strait_event_type type);
/* Takes back what the last poll handed out. */
void events_recycle(struct strait_client *client);
uint32_t events_hand_out(struct strait_client *client, struct strait_event *events, uint32_t capacity);
/* Forgets the waiting events of a transfer, or (NULL) all. */
void events_drop(struct strait_client *client, const struct strait_transfer *transfer);
void event_signal(struct strait_client *client);

/* ---- poll.c ------------------------------------------------------------------------------------------------------ */

uint64_t clock_ms(void); /* monotonic */
void timer_update(struct strait_client *client);

/* ---- connection.c ------------------------------------------------------------------------------------------------ */

/* Begins to connect; a failure only plans the next attempt. */
enum strait_status connection_start(struct strait_client *client);
/* Reads, writes and, when it is time, connects. */
void connection_work(struct strait_client *client);
/* Writes what the socket takes: every verb ends with it. */
void connection_flush(struct strait_client *client);
/* The library gives the connection up, because of what came or of what could not be sent. */
void connection_break(struct strait_client *client, enum strait_status why, const char *text);
/* WELCOME has come: everything that waited goes out. */
void connection_ready(struct strait_client *client);
void connection_close(struct strait_client *client);

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */

/* One message of the daemon. Anything but OK breaks the connection. */
enum strait_status dispatch(struct strait_client *client, const struct message *message);

/* ---- outbox.c ---------------------------------------------------------------------------------------------------- */

void outbox_init(struct outbox *outbox);
/* Sends, or keeps a copy to send later, in order. `transfer` may be NULL; `peer` belongs to START. ERR_NO_MEMORY. */
enum strait_status outbox_send(struct strait_client *client, const struct message *message,
                               struct strait_transfer *transfer, const struct strait_peer *peer);
/* The same for the registration of a pool, which brings descriptors. */
enum strait_status outbox_send_pool(struct strait_client *client, struct strait_pool *pool);
/* Like outbox_send for what cannot be refused: without memory the connection is given up, which says it as well. */
void outbox_send_always(struct strait_client *client, const struct message *message);
/* Hands to the channel what it takes. */
void outbox_drain(struct strait_client *client);
void outbox_drop_transfer(struct strait_client *client, const struct strait_transfer *transfer);
void outbox_drop_pool(struct strait_client *client, const struct strait_pool *pool);
void outbox_clear(struct strait_client *client);

/* ---- copy.c ------------------------------------------------------------------------------------------------------ */

/* Copies what the message points into to one block, which the caller frees. ERR_NO_MEMORY. */
enum strait_status message_copy(struct message *message, void **block);
/* Lists and, behind them in the same block, their ids. */
struct wire_page_list *lists_copy(const struct strait_page_list *lists, uint32_t count);

/* ---- region.c ---------------------------------------------------------------------------------------------------- */

/* Checks regions as strait.h demands. */
enum strait_status regions_check(const struct strait_pool_region *regions, uint32_t count, bool embedded);

/* ---- pool.c ------------------------------------------------------------------------------------------------------ */

struct message pool_registration(const struct strait_pool *pool);
bool pool_on_gpu(const struct strait_pool *pool); /* some of it */
struct strait_pool *pool_find(struct strait_client *client, const struct pool_id *id);
/* The pool is the daemon's no more: tells it, and frees it once that event was seen. */
void pool_removed(struct strait_pool *pool);
void pool_destroy(struct strait_pool *pool);

/* ---- peer.c ------------------------------------------------------------------------------------------------------ */

void peer_destroy(struct strait_peer *peer);

/* ---- table.c ----------------------------------------------------------------------------------------------------- */

/* Gives the transfer its id and a place. ERR_NO_MEMORY. */
enum strait_status table_insert(struct strait_client *client, struct strait_transfer *transfer);
struct strait_transfer *table_find(const struct strait_client *client, uint64_t id);
void table_remove(struct strait_transfer *transfer);

/* ---- verdict.c --------------------------------------------------------------------------------------------------- */

/* READY or TRANSFERRING; anything else, or backwards, is ignored. */
void transfer_advance(struct strait_transfer *transfer, enum strait_state state);
/* The daemon's verdict, unless there is one. `aux` is taken; what came of the list of failed pages goes along. */
void transfer_done(struct strait_transfer *transfer, void *aux, size_t aux_size);
void transfer_fail(struct strait_transfer *transfer, enum strait_reason reason, bool drained, const char *text);
void transfer_drained(struct strait_transfer *transfer);
/* The library's own: all pages of a sink failed. What the daemon never heard of is drained in any case. */
void transfer_give_up(struct strait_transfer *transfer, enum strait_reason reason, bool drained, const char *text);
/* When the library has to give the verdict itself. */
uint64_t transfer_due(const struct strait_transfer *transfer);
/* Gives those that are due at `now`. */
void transfers_expire(struct strait_client *client, uint64_t now);
/* All of them. */
void transfers_fail(struct strait_client *client, enum strait_reason reason, bool drained, const char *text);
/* The socket ended: what the daemon knew is free, and the next one knows nothing of it. */
void transfers_drained(struct strait_client *client);
void transfer_destroy(struct strait_transfer *transfer);

/* ---- lists.c ----------------------------------------------------------------------------------------------------- */

/* Checks lists against the pool; adds their pages to *pages. ERR_INVALID. */
enum strait_status lists_check(const struct strait_pool *pool, const struct strait_page_list *lists, uint32_t count,
                               uint64_t *pages);
/* Sends an EXPECT, OFFER or APPEND that is complete but for its lists, in as many messages as they need. */
enum strait_status lists_send(struct strait_transfer *transfer, const struct message *message,
                              const struct strait_page_list *lists, uint32_t count);

/* ---- embedded.c -------------------------------------------------------------------------------------------------- */

/* Starts a daemon in this process; its socket in *fd. ERR_UNSUPPORTED, ERR_IO. */
enum strait_status embedded_start(const char *options, int *fd);

/* ---- stream.c ---------------------------------------------------------------------------------------------------- */

/* What tells a daemon of the client's words; their descriptor goes with it. */
struct message words_message(void);
/* Lets the streams that wait for a transfer go on: it has its verdict, or nobody asks for it any more. */
void stream_release(struct strait_transfer *transfer);

/* ---- Params ------------------------------------------------------------------------------------------------------ */

/* Whether a params struct of `size` bytes is one that this library understands: not older than the first release, and
 * nothing but zeros beyond what is known here. */
bool params_known(const void *params, size_t size, size_t known);

/* Whether key or payload is there, and of a legal size. */
static inline bool bytes_valid(const void *data, size_t size, size_t min, size_t max)
{
    return size >= min && size <= max && (size == 0 || data != NULL);
}

#endif
