/* Objects behind the handles of strait.h, and the functions that the library's files offer each other. A file calls
 * only those above it in this list: events, outbox, gpu, peer, transfer, serve, pool, connection,
 * client.
 *
 * A client has one connection at a time. Its states:
 *
 *     DISCONNECTED --connect--> HANDSHAKE --WELCOME--> READY --end of the socket--> DISCONNECTED
 *                                                        \--the library gives up--> CLOSING
 *     CLOSING --end of the socket--> DISCONNECTED
 *
 * CLOSING exists because only the daemon knows when pages are no longer touched. It closes the client's socket after
 * that, so the library shuts its own side down and calls nothing drained before the socket has ended. */
#ifndef STRAIT_CLIENT_CLIENT_H
#define STRAIT_CLIENT_CLIENT_H

#include <string.h>
#include <time.h>

#include "internal/busy_poll.h"
#include "internal/clock.h"
#include "internal/default_socket.h"
#include "proto/blob.h"
#include "proto/socket_ring.h"
#include "proto/message.h"

#define NEVER            UINT64_MAX
#define BACKOFF_FIRST_MS 20u
#define BACKOFF_LAST_MS  500u
#define GRACE_MS         100u        /* how late the daemon's verdict may be before the library gives its own */
#define PING_MS          1000u       /* silence of a daemon from which something is due, before it gets a PING */
#define ANSWER_MS        2000u       /* how long its answer may take before the daemon counts as hung */
#define DEADLINE_MAX_MS  86400000u   /* 24 h */
#define QUEUE_BYTES_MAX  (64u << 20) /* in the channel; further messages wait in the outbox */
#define DECLINE_MS       60000u      /* deadline of an expectation that is given up at once */
#define WITHDRAWALS_MAX  512u        /* ends of requests that wait for the next daemon */
#define EVENTS_AHEAD     4096u       /* nothing more is read while so many events wait */
#define PEER_NOTES_MAX   256u        /* notes to one peer that are not answered, */
#define PEER_BYTES_MAX   (1u << 20)  /* and their keys and data */

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* An event: first it waits, then it is handed out until the next poll. Verdicts must not need to allocate: their nodes
 * are part of the transfer. */
struct event_node {
    struct strait_event event;
    struct event_node *next;
    bool heap;                                      /* freed when the event was seen */
    void *payload[3];                               /* freed with the event */
    void (*seen)(const struct strait_event *event); /* called after the node's last use, unless NULL; may free the
                                                       object that contains the node */
};

struct event_list {
    struct event_node *first, **end;
    uint32_t count;
};

enum { NODE_READY, NODE_TRANSFERRING, NODE_VERDICT, NODE_DRAINED, NODES };

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

enum connection_state {
    DISCONNECTED, /* no socket; the next attempt is at reconnect_at */
    HANDSHAKE,    /* HELLO is sent, WELCOME awaited */
    READY,
    CLOSING, /* shut down by the library; the daemon has yet to close its end */
};

struct outbox_entry;
struct words;
struct fence;
struct stream_wait;

struct outbox {
    struct outbox_entry *first, **end;
};

struct strait_client {
    int epoll_fd, timer_fd, event_fd;
    bool polling;      /* in strait_poll, which signals at its end if something is left */
    uint32_t corks;    /* calls of strait_cork that are not taken back */
    bool signalled;    /* event_fd is readable */
    bool input_left;   /* unread frames remain in the channel */
    uint64_t timer_at; /* what timer_fd is set to; NEVER: disarmed */
    uint64_t next_due; /* lower bound: no transfer is due earlier */
    char *socket;      /* path, or NULL when embedded */
    char *own_socket;  /* path of the user's own daemon, which is tried first; or NULL */
    bool uses_own;     /* which of the two; fixed once a daemon has answered */
    char *embedded;    /* options, or NULL */

    enum connection_state state;
    struct channel *channel;
    struct socket_ring ring; /* in place of the socket; none: the daemon does not take them */
    bool ring_received;      /* RING has come: what the daemon sends comes by them */
    bool asleep;             /* the daemon wakes us */
    bool takes_rings;        /* what its WELCOME says */
    uint64_t looked_at;      /* ms: when the socket was read last, besides */
    uint64_t polled_at;      /* ns: when strait_poll returned last */
    uint64_t awake_since;    /* ns: since then it is called without a pause, and the daemon need not wake us; 0: not */
    uint32_t tight;          /* calls of strait_poll without a pause and an event */
    bool want_out;           /* the socket is watched for EPOLLOUT */
    bool write_failed;       /* nothing more can be sent, though the other side has not closed */
    uint32_t backoff_ms;
    uint64_t reconnect_at;
    enum strait_status reported;      /* the failure that the last event CONNECTION reported */
    char away[SOCKET_PATH_MAX + 128]; /* why no daemon could be reached at the last attempt; "" */

    /* Liveness of the daemon. A PING is sent only while something is due from it, so an idle daemon is left alone. */
    uint32_t live;        /* transfers without a verdict or not drained yet */
    uint32_t note_count;  /* notes that the daemon has yet to answer */
    uint32_t fence_count; /* fences that it has yet to answer */
    uint32_t answers;     /* registrations, removals and statistics that the daemon has yet to answer */
    uint64_t heard_at;    /* since when nothing has been read from the daemon although something is due */
    uint64_t pinged_at;   /* of the HELLO or PING that is not answered yet; 0: none */
    bool silent;          /* the daemon counts as hung, and an event CONNECTION said so */
    bool going;           /* the daemon has said GOAWAY: what is new waits for the next connection */

    bool welcomed; /* at least once: the fields below are known */
    uint32_t version;
    char address[MESSAGE_ADDRESS_MAX + 1];
    uint8_t codebook_id[CODEBOOK_ID_BYTES];

    struct busy_poll busy_poll;
    bool stepped; /* a transfer was started, or has come further, since strait_wait looked */

    struct words *words; /* GPU streams wait for these; NULL: no stream has waited yet */
    struct note **notes; /* by number, MESSAGE_NOTES_MAX of them; NULL: there was none yet */
    size_t note_bytes;
    uint32_t next_note;   /* the number to try next */
    struct fence *fences; /* not over */
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
    bool refused; /* by the currently connected daemon */
    bool told;    /* that daemon has said `status` of it, and `why` it refused it */
    enum strait_status status;
    char why[256];
    bool removing; /* strait_pool_remove was called */
    uint32_t region_count, group_count, fd_count;
    struct wire_region *wire; /* in the pool's order, as is `regions` */
    struct blob_region *regions;
    uint32_t *group_pages;               /* per group: page ids are below this */
    uint64_t *served[STRAIT_GROUPS_MAX]; /* a bit per page id; NULL: none of the group */
    int *fds;
    char compat[STRAIT_COMPAT_BYTES_MAX + 1];
    struct event_node removed;
};

struct strait_peer {
    struct strait_client *client;
    struct strait_peer *next, **link;
    struct pool_blob blob;
    uint32_t note_count; /* notes to it that are not answered */
    size_t note_bytes;
};

/* A note that is not answered. */
struct note {
    struct event_node failed; /* first. Ready to be queued, because a failure must not need to allocate */
    struct strait_peer *peer; /* NULL: removed since */
    size_t size;
    struct pool_id pool; /* the peer's */
    uint8_t key[];
};

struct strait_transfer {
    struct strait_client *client;
    struct strait_pool *pool; /* NULL once the pool is gone */
    struct strait_transfer *next, **link, *bucket_next;
    uint64_t id;
    void *context;
    bool sink, last; /* last: the offer is complete */
    bool asked;      /* an offer whose consumers the first that asks counts */
    bool known;      /* a message about it was sent on this connection */
    bool ended;      /* the verdict was given */
    bool drained, released, aborting;
    bool settled; /* no longer one of client->live */
    enum strait_state state;
    enum strait_reason reason;
    uint32_t layers_landed, pages_landed;
    uint64_t pages;    /* listed so far */
    uint64_t deadline; /* of a sink; of an offer: the end of its first lease */
    uint32_t lease_ms; /* of an offer */
    size_t key_size;
    uint8_t key[STRAIT_KEY_BYTES_MAX];
    uint32_t deferred;        /* its messages in the outbox */
    uint32_t waiting, handed; /* its events; the transfer is freed only after they were seen */
    struct event_node nodes[NODES];
    struct wire_page_list *lists; /* sink: its pages, all reported as failed when the library gives the verdict; the ids
                                     follow in the same block */
    uint32_t list_count;
    struct stream_wait *waits; /* streams that wait for it */
    uint32_t wait_count;
    uint64_t raw_bytes, wire_bytes;    /* that have moved, as the daemon's verdict says, */
    char *peer;                        /* and with whom; NULL: nobody */
    struct strait_failed_page *failed; /* failed pages of a verdict received in parts so far */
    uint32_t failed_count, failed_capacity;
};

/* ---- Event queue, timer (events.c) ------------------------------------------------------------------------------- */

void events_init(struct event_list *list);
/* Queues a node and makes the client's descriptor readable. */
void event_push(struct strait_client *client, struct event_node *node);
/* Allocates a node, which the caller pushes or frees. NULL: no memory. */
struct event_node *event_create(enum strait_event_type type);
/* Takes back the events that the last poll handed out. */
void events_recycle(struct strait_client *client);
uint32_t events_hand_out(struct strait_client *client, struct strait_event *events, uint32_t capacity);
/* Drops the waiting events of a transfer, or (NULL) all. */
/* Makes the client's descriptor readable if events, or messages that were received, are left, and otherwise not. */
void events_settle(struct strait_client *client);
void events_drop(struct strait_client *client, const struct strait_transfer *transfer);
void event_signal(struct strait_client *client);
/* One more answer of the daemon is due: `due` is client->live, note_count or answers. */
void answer_due(struct strait_client *client, uint32_t *due);
/* When the daemon has to be asked for a sign of life, or counts as hung; NEVER. */
uint64_t heartbeat_due(const struct strait_client *client);
/* Sets the timer to the next deadline, heartbeat or attempt to connect, or leaves it if it expires before that. */
void timer_update(struct strait_client *client);

/* ---- Messages that are sent, now or later (outbox.c) ------------------------------------------------------------- */

void outbox_init(struct outbox *outbox);
/* Sends the message, or keeps a copy to send later, in order. `transfer` may be NULL; `peer` is for START only.
 * ERR_NO_MEMORY. */
enum strait_status outbox_send(struct strait_client *client, const struct message *message,
                               struct strait_transfer *transfer, const struct strait_peer *peer);
/* The same for the registration of a pool, which carries descriptors. */
enum strait_status outbox_send_pool(struct strait_client *client, struct strait_pool *pool);
/* Like outbox_send, for messages that must not get lost: without memory the connection is given up, which tells the
 * daemon just as well. */
void outbox_send_always(struct strait_client *client, const struct message *message);
/* Writes as much as the socket takes. Every public call that sends messages ends with it. */
void outbox_flush(struct strait_client *client);
/* Watches the socket for output exactly while there is some. */
void outbox_watch(struct strait_client *client);
/* What waits for the transfer is not sent. Sources that it was to be started with are told of its end. */
void outbox_drop_transfer(struct strait_client *client, const struct strait_transfer *transfer);
/* A sink's request that has ended and that no daemon knows: the source that `start` names is told so, now or, for
 * DECLINE_MS, by the next daemon. ERR_AGAIN: too many wait; ERR_NO_MEMORY. */
enum strait_status outbox_withdraw(struct strait_client *client, const struct strait_transfer *transfer,
                                   const struct message *start);
void outbox_drop_pool(struct strait_client *client, const struct strait_pool *pool);
void outbox_clear(struct strait_client *client);
void outbox_keep_new(struct strait_client *client); /* drops what is for the transfers that the daemon knows */
/* Copies lists and, behind them in the same block, their ids. */
struct wire_page_list *lists_copy(const struct strait_page_list *lists, uint32_t count);

/* ---- GPU streams that wait (gpu.c) ------------------------------------------------------------------------------- */

/* The message that names the client's words to a daemon; their descriptor is sent with it. */
struct message words_message(void);
/* Releases the streams that wait for a transfer: it has its verdict, or its handle was released. */
void stream_release(struct strait_transfer *transfer);

/* ---- Peers (peer.c) ---------------------------------------------------------------------------------------------- */

void peer_destroy(struct strait_peer *peer);
/* Whether pages of the peer's pool can be read into pages of this one. */
bool peer_readable(const struct strait_pool *pool, const struct strait_peer *peer);
/* The daemon's answer to notes. */
void notes_answered(struct strait_client *client, const struct message_noted *message);
/* The daemon will answer none of the notes: they may have been delivered, or not. */
void notes_fail(struct strait_client *client, const char *text);
void notes_destroy(struct strait_client *client);

/* ---- Transfers (transfer.c) -------------------------------------------------------------------------------------- */

struct strait_transfer *table_find(const struct strait_client *client, uint64_t id);
/* Moves to READY or TRANSFERRING; other states and steps back are ignored. */
void transfer_advance(struct strait_transfer *transfer, enum strait_state state);
/* The daemon's verdict, ignored when there is one already. Takes `aux`; the failed pages received so far go along. */
void transfer_done(struct strait_transfer *transfer, void *aux, size_t aux_size);
void transfer_fail(struct strait_transfer *transfer, enum strait_reason reason, bool drained, const char *text);
/* What the verdict that follows says of what has moved, and with whom. */
void transfer_moved(struct strait_transfer *transfer, const struct message_state *state);
void transfer_drained(struct strait_transfer *transfer);
/* The library's own verdict: all pages of a sink failed. A transfer that the daemon never heard of is drained in any
 * case. */
void transfer_give_up(struct strait_transfer *transfer, enum strait_reason reason, bool drained, const char *text);
/* Gives up the transfers that are due at `now`; the daemon, if it still lives, is told to abort them. */
void transfers_expire(struct strait_client *client, uint64_t now);
/* Gives up all transfers. */
/* `known_only`: those of which the daemon has heard. */
void transfers_fail(struct strait_client *client, enum strait_reason reason, bool drained, const char *text,
                    bool known_only);
/* The socket ended: the transfers that the daemon knew are drained, and the next daemon knows nothing of them. */
void transfers_drained(struct strait_client *client);
void transfer_destroy(struct strait_transfer *transfer);
/* event_node.seen of all events of transfers: frees a released transfer with its last event. */
void transfer_event_seen(const struct strait_event *event);

/* ERR_INVALID: not pages of the pool, or too many. Adds their number to *pages. */
enum strait_status lists_check(const struct strait_pool *pool, const struct strait_page_list *lists, uint32_t count,
                               uint64_t *pages);
/* Sends a message with these lists, in as many parts as they need; `transfer` may be NULL. */
enum strait_status lists_send(struct strait_client *client, struct strait_transfer *transfer,
                              const struct message *message, const struct strait_page_list *lists, uint32_t count);

/* ---- Served pages (serve.c) -------------------------------------------------------------------------------------- */

/* Tells a daemon that has just got the pool what of it is served. */
void serve_again(struct strait_pool *pool);
void serve_forget(struct strait_pool *pool); /* the pool is freed */
void fence_answered(struct strait_client *client, uint64_t number);
void fences_over(struct strait_client *client); /* the daemon's end of the socket is closed: nothing is read any more */
void fences_destroy(struct strait_client *client);

/* ---- Pools (pool.c) ---------------------------------------------------------------------------------------------- */

struct strait_pool *pool_find(struct strait_client *client, const struct pool_id *id);
/* The daemon no longer has the pool: queues POOL_REMOVED; the pool is freed once that event was seen. */
void pool_removed(struct strait_pool *pool);
void pool_destroy(struct strait_pool *pool);

/* Whether some of the pool's memory is on a GPU. */
static inline bool pool_on_gpu(const struct strait_pool *pool)
{
    uint32_t r = 0;
    while (r < pool->region_count && pool->wire[r].device < 0)
        r++;
    return r < pool->region_count;
}

/* ---- Connection (connection.c) ----------------------------------------------------------------------------------- */

/* Begins to connect; after a failure the next attempt is scheduled. */
enum strait_status connection_start(struct strait_client *client);
/* Reads and, when it is time, connects. */
void connection_work(struct strait_client *client);
void connection_close(struct strait_client *client);

/* ---- Clock and arguments ----------------------------------------------------------------------------------------- */

static inline uint64_t clock_ms(void)
{
    return clock_ns() / 1000000;
}

/* Whether this library understands a params struct of `size` bytes: it must not be older than the first release, and
 * must hold only zeros beyond the fields known here. */
static inline bool params_known(const void *params, size_t size, size_t known)
{
    const uint8_t *bytes = params;
    if (size < known)
        return false;
    for (size_t i = known; i < size; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

/* Copies parameters to `dst`, the library's own struct of `known` bytes, whose first version had `oldest` bytes and was
 * enlarged by eight bytes at a time: what the caller does not know is 0. False: no version has this size, or what this
 * library does not know is used. */
static inline bool params_read(void *dst, size_t known, size_t oldest, const void *params)
{
    size_t size;
    if (params == NULL)
        return false;
    memcpy(&size, params, sizeof(size));
    const bool earlier = size >= oldest && size < known && (size - oldest) % sizeof(uint64_t) == 0;
    if (!earlier && !params_known(params, size, known))
        return false;
    memset(dst, 0, known);
    memcpy(dst, params, size < known ? size : known);
    return true;
}

/* Reads the optional trace of a request: *context is then empty or points to `bytes`. False: it is malformed. */
static inline bool trace_read(const char *traceparent, uint8_t bytes[TRACE_BYTES], struct view *context)
{
    const bool given = traceparent != NULL && traceparent[0] != '\0';
    *context = view_of(bytes, given ? TRACE_BYTES : 0);
    return !given || trace_parse(traceparent, bytes) == NULL;
}

/* Whether a key or payload is of a legal size, and there unless that is 0. */
static inline bool bytes_valid(const void *data, size_t size, size_t min, size_t max)
{
    return size >= min && size <= max && (size == 0 || data != NULL);
}

#endif
