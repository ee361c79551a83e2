/* Connections of a node, shared by the files of this folder. The life of one:
 *
 *   IDLE --peers_get--> DIALLING --connected--> PROVING --TLS, hellos--> LINKING --link connected--> UP
 *                       accepted ones begin here ^
 *
 * A connection that is to end is only marked (connection_fail); it is ended at the end of the loop's turn
 * (connection_end), so that no callback runs inside a call and nothing is freed under a caller. An ended connection is
 * CLOSING until its links are closed and its name lookup has returned; a dialled one leaves a new IDLE one in its place
 * at once. */
#ifndef STRAIT_DAEMON_PEERS_PEER_INTERNAL_H
#define STRAIT_DAEMON_PEERS_PEER_INTERNAL_H

#include <sys/queue.h>
#include <sys/un.h>
#include <uthash.h>
#include <uv.h>

#include "daemon/base/auth.h"
#include "daemon/base/listen.h"
#include "daemon/base/tls.h"
#include "daemon/base/watch.h"
#include "daemon/peers/peer.h"
#include "daemon/peers/poll.h"
#include "proto/ring_layer.h"
#include "transport/tcp.h"

#define PEER_TRANSPORTS_MAX 8u
#define PEER_RECORDS_MAX    4096u    /* dialled connections, including IDLE ones: a user has no more than remain free */
#define PEER_ACCEPTED_MAX   1280u    /* accepted connections, including those not proved yet and CLOSING ones */
#define PEER_HALF_OPEN_MAX  128u     /* accepted connections that are not proved yet, */
#define PEER_HALF_OPEN_HOST 32u      /* and those of one host */
#define PEER_GREETING_SHARE 4u       /* their handshakes have a quarter of the time, */
#define PEER_GREETING_NS    10000000 /* and may use up this much at once */
#define PEER_GREETING_OWED  1000000000 /* ns, the most that they can have used up too much: those who come wait 4 s */
#define PEER_HELLO_BODY_MAX 4096u
#define PEER_QUEUE_BYTES    (64u * 1024 * 1024)
#define PEER_BACKOFF_MS     20u /* after an attempt that fails: a sixteenth of the time that the peer has been away, */
#define PEER_BACKOFF_MAX_MS 1000u /* 20 ms to this */
#define PEER_REFUSED_MS     1000u /* refused for so long, */
#define PEER_REFUSALS       3u    /* and so often, nobody waits for it */
#define PEER_FORGET_MS      60000u
#define PEER_TICK_MAX_MS    50u
#define PEER_RETRIES_MS     100u  /* a client may name thousands of addresses that are not reached: */
#define PEER_RETRIES_MAX    50u   /* as many of them are dialled again in that time */
#define PEER_SHORT_LIFE_MS  1000u /* a peer that goes down sooner is not dialled again at once, but after */
#define PEER_FLAP_MAX_MS    200u  /* 20 ms to this: its node is alive, and the deadlines of its users run on */

/* A user whose clients asked for addresses that are on record. */
struct peer_asker {
    uint32_t uid, records; /* that exist because of this user */
    UT_hash_handle hh;
};

/* A transport of this node, or of one of its GPUs. */
struct peer_transport {
    LIST_ENTRY(peer_transport) entry; /* of a GPU's */
    struct peers *peers;
    int32_t device;          /* device of its arena's memory; -1: the host */
    enum message_link_by by; /* of a GPU's */
    const struct transport_ops *ops;
    bool on_demand;           /* made for its first link, and destroyed after the last */
    bool left;                /* on demand: a copy, until its port is closed */
    uint32_t links;           /* not closed yet */
    struct transport *handle; /* NULL: on demand, and there is no link */
    struct port *port;
    void *send_handle;
    bool sends_known; /* send_handle is to be released */
};

/* A link from link_open until `closed`. */
struct peer_link {
    LIST_ENTRY(peer_link) entry;
    struct connection *connection;
    struct peer_transport *transport;
    struct link *link;
    struct gpu_link *gpu; /* the GPU link that it serves; NULL: the connection's own link, or an attempt at that */
    bool connected, closing, abandoned;
};

enum gpu_link_state {
    GPU_LINK_NONE,   /* made once it is wanted and next_try is reached */
    GPU_LINK_MAKING, /* the peer was asked, or has to answer, or the two are connecting */
    GPU_LINK_UP,
    GPU_LINK_ENDING, /* its link is not closed yet */
};

/* A link between one of our GPUs, and one of the peer's. */
struct gpu_link {
    LIST_ENTRY(gpu_link) entry;
    struct gpu_ends ends;
    enum gpu_link_state state;
    bool wanted;   /* wanted by us; else only by the peer */
    bool answered; /* dialled: the other end's address is known */
    struct peer_link *link;
    uint64_t deadline, next_try;
    uint32_t backoff; /* after the next attempt that fails */
    char why[160];    /* why there is no link */
};

struct connection {
    struct peer peer; /* first */
    TAILQ_ENTRY(connection) entry;
    TAILQ_ENTRY(connection) dirty_entry;
    UT_hash_handle by_address;
    bool dirty; /* it is in peers.dirty */
    TAILQ_ENTRY(connection) unread_entry;
    bool unread;   /* it is in peers.unread */
    bool backlog;  /* messages that were received wait for the next turn: others have theirs first */
    bool failing;  /* ends with this turn of the loop; peer.why says why, */
    bool refused;  /* and that time does not heal it */
    bool repeated; /* the previous attempt failed for the same reason: not worth another line */
    bool was_up;
    bool going; /* the peer has said GOAWAY: not for new requests, and its end is no reason to dial */

    struct channel *channel;
    struct tls *tls; /* below the channel; NULL: clear text */
    struct watch *watch;
    LIST_ENTRY(connection) ring_entry;
    struct ring_layer ring; /* in place of the socket, */
    bool has_ring;          /* where the link has rings: what this side sends, */
    bool ring_received;     /* and what it receives, which it does from RING on */

    /* Dialling. */
    uint32_t uid;             /* whose clients asked for it first */
    struct peer_asker *asker; /* NULL: it is not on record (peers.by_address) */
    struct dial *dial;        /* its attempts, until they and their look-ups have ended */
    bool dial_ended;          /* only look-ups are left of it */
    uint64_t next_address;    /* when the next address is tried */
    bool is_alias;            /* IDLE: the attempt before led to the daemon of another connection: */
    uint64_t alias_node, alias_incarnation;
    int socket;                   /* accepted: until the channel, or a transport, takes it */
    struct sockaddr_storage from; /* accepted */
    uint64_t asked, next_try;     /* IDLE */
    uint32_t flap_backoff;        /* after the next short life */
    bool disproved;               /* TLS has failed */
    uint32_t reloads;             /* of the credentials, until it began with them */
    bool previous_secret; /* offers the secret of before the latest reload: the peer may not have reloaded yet */

    /* Proving. */
    char host[ADDRESS_HOST_MAX]; /* dialled: the name or number that led to the socket */
    uint64_t deadline;           /* for reaching UP */
    uint8_t nonce[NONCE_BYTES];
    struct message hello; /* the peer's, until it is proved */
    bool has_hello;
    enum seal_suite suite; /* of page data; NONE: it is not encrypted */

    /* Linking. */
    bool has_links; /* the peer's first PEER_LINKS has come */
    bool same_host;
    char shm_path[sizeof(((struct sockaddr_un *)NULL)->sun_path)]; /* "": no shm */
    char offered[MESSAGE_ADDRESS_MAX + 1];                         /* transports, as the peer lists them */
    bool common_tried;                                             /* dialled: a transport that both have was tried */
    uint32_t attempt;                                              /* dialled: index of the transport being tried */
    uint64_t attempt_deadline;
    bool shm_is_full;  /* dialled: the peer's unix socket has too many connections waiting; try again */
    bool wants_answer; /* dialled: the peer was asked for its link's address */
    LIST_HEAD(, peer_link) links;
    LIST_HEAD(, gpu_link) gpu_links;
    struct peer_link *current;
    struct message held; /* a message that came before UP; nothing more is read until then */
    bool holding;

    /* Up. */
    uint64_t up_at, received_at;
    uint64_t next_heartbeat, sequence, sent_at_ns, seen;
    uint64_t answered; /* the latest heartbeat of ours that was */
};

struct peers {
    struct peers_config config;
    struct node_options options;
    struct transport_arena arena;
    TAILQ_HEAD(, connection) connections; /* oldest first */
    uint64_t retries_began;               /* when the latest PEER_RETRIES_MS began */
    uint32_t retries;                     /* in it */
    struct connection *by_address;        /* hash: dialled ones that new requests may use, or have dialled again */
    struct peer_asker *askers;            /* hash by uid */
    TAILQ_HEAD(, connection) dirty;       /* to be flushed or ended */
    TAILQ_HEAD(, connection) unread;      /* to be read in the next turn, although no poll reports them */
    LIST_HEAD(, connection) ringed;       /* those that have rings */
    uint32_t unread_count;
    struct peer_transport transports[PEER_TRANSPORTS_MAX];
    uint32_t transport_count, ports;
    uint32_t lookups; /* of names, under way */
    LIST_HEAD(, peer_transport) gpu_transports;
    char offered[MESSAGE_ADDRESS_MAX + 1];
    char left_out[192]; /* transports that options name but that are not available, and why */
    bool warned_of_ucx;
    bool alone; /* shm is named, but there is no unix socket for it */
    char shm_path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    char host[MESSAGE_ADDRESS_MAX]; /* identity of this host and its namespaces */
    char address[MESSAGE_ADDRESS_MAX + 1];
    struct listen_sockets sockets;
    struct acceptor *acceptors[ADDRESS_FOUND_MAX];
    uint32_t acceptor_count;
    int64_t greeting_ns;                    /* for handshakes of strangers: -PEER_GREETING_OWED to PEER_GREETING_NS */
    uint64_t greeting_at;                   /* when it was last added to; clock of uv_hrtime */
    struct credentials *credentials;        /* of new connections; NULL: none, they are in clear text */
    uint32_t reloads;                       /* of the credentials */
    uint8_t codebook_id[CODEBOOK_ID_BYTES]; /* config.codebook_id points here */
    struct watch_count watches;
    uv_timer_t tick;
    uv_prepare_t prepare; /* flushes, and says in shared memory that the loop sleeps */
    uv_check_t check;     /* the loop does not sleep any more: looks at what came by shared memory */
    bool awake;           /* the owner keeps the loop from sleeping in this turn */
    uv_idle_t turn;       /* active while something is dirty, unread or `turn_again` is set: the loop does not block */
    bool turn_again;      /* the owner was called back from a prepare handle */
    uint64_t abandon_at;  /* closing: from then on links do not wait for their peers */
    uint32_t handles;
    uint32_t tick_ms;
    uint64_t last_tick;
    /* Calls into files above the caller's. */
    void (*on_link_up)(struct connection *c);           /* the current link is connected */
    void (*on_connected)(struct connection *c, int fd); /* takes over the socket */
    void (*on_link_broken)(struct connection *c);       /* the current link of a peer that is up */
    void (*on_part_ended)(struct connection *c);        /* one of its links, or its dialling, has ended */
    void (*on_part_closed)(struct peers *peers);        /* a connection or a transport has ended */
    bool closing, ports_closing, handles_closing;
};

static inline struct connection *connection_of(struct peer *peer)
{
    return (struct connection *)peer;
}
static inline struct peers *peers_of(const struct connection *c)
{
    return c->peer.peers;
}
static inline uint64_t peers_now(const struct peers *peers)
{
    return uv_now(peers->config.loop);
}

/* Files from the bottom to the top: each calls only those before it. */

/* ---- connection.c ------------------------------------------------------------------------------------------------ */

/* An accepted connection, or one to be dialled for this user's clients, which is then on record. NULL: out of memory.
 */
struct connection *connection_accepted(struct peers *peers, const char *address);
struct connection *connection_dialled(struct peers *peers, const char *address, uint32_t uid);
/* New requests for its address do not find the connection any longer. May be called again. */
void connection_unlist(struct connection *c);
/* Accepted, and not proved yet. */
bool connection_is_stranger(const struct connection *c);
/* The dialled connection to this daemon that has proved itself; NULL: there is none. */
struct connection *connection_to(struct peers *peers, uint64_t node, uint64_t incarnation);
/* Queues the connection to be flushed at the end of the turn. */
void connection_dirty(struct connection *c);
/* Lets the connection be read in the next turn, or no longer. */
void connection_unread(struct connection *c, bool unread);
/* Marks the connection to be ended at the end of the turn, and why; only the first reason counts. */
void connection_fail(struct connection *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for what only people can mend, on either side. */
void connection_refuse(struct connection *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, because the peer broke the protocol. */
void connection_protocol_error(struct connection *c, const char *what);
void connection_send(struct connection *c, const struct message *message);

/* Creates a link. Takes the socket in any case. */
enum strait_status link_make(struct connection *c, struct peer_transport *transport, int fd, struct peer_link **link);
void link_end(struct peer_link *link);
struct peer_transport *peer_transport_find(struct peers *peers, const char *name, size_t size);
struct peer_transport *gpu_transport_find(const struct peers *peers, enum message_link_by by, uint32_t device);

void peers_tick_start(struct peers *peers);
/* The owner was called back while prepare handles run, after its own prepare handle: what it queues now is carried out
 * in one more turn, before the loop blocks. */
void peers_turn_again(struct peers *peers);

/* ---- gpu_link.c -------------------------------------------------------------------------------------------------- */

void gpu_link_receive(struct connection *c, const struct message_gpu_link *message);
void gpu_links_tick(struct connection *c);
void gpu_links_free(struct connection *c);
void gpu_link_connected(struct connection *c, struct gpu_link *g);
void gpu_link_broken(struct connection *c, struct gpu_link *g, const char *why);
void gpu_link_closed(struct gpu_link *g);

/* ---- peer_link.c ------------------------------------------------------------------------------------------------- */

extern const struct transport_events peer_transport_events; /* owner: the peer_transport */
void links_send(struct connection *c);
void links_receive(struct connection *c, const struct message_peer_links *links);
void links_tick(struct connection *c);
/* The peer's codebook set: of its PEER_LINKS, or of CODEBOOK. */
void codebook_receive(struct connection *c, struct view id);
/* Tells the peer of our set, if it has heard of the one before. */
void codebook_send(struct connection *c);

/* ---- transports.c ------------------------------------------------------------------------------------------------ */

/* Opens the transports that the options name, and records which are not available. */
void peer_transports_open(struct peers *peers);
/* Makes a transport that there is on demand. OK if it is there already. */
enum strait_status peer_transport_begin(struct peer_transport *transport);
/* Destroys a transport that there is on demand, if it has no link. Its callbacks may call this. */
void peer_transport_leave(struct peer_transport *transport);
void peer_transport_close(struct peer_transport *transport);

/* ---- dial.c ------------------------------------------------------------------------------------------------------ */

void connection_dial(struct connection *c);
void connection_dial_tick(struct connection *c);
/* Gives up what is under way. May be called again, and for connections that were never dialled. */
void connection_dial_end(struct connection *c);

/* ---- peer.c: handshake, messages, heartbeats, the end ------------------------------------------------------------ */

/* Gives the socket to a channel and starts reading. */
void connection_start(struct connection *c, int fd);
void connection_up(struct connection *c);
/* Reads what no poll reports: records that TLS has received, and messages of the turn before. */
void connection_read_on(struct connection *c);
/* Reads what the peer has said before its link broke: of the two the ring may be looked at later. */
void connection_read_last(struct connection *c);
/* Whether the connection's rings have something to do for it. */
bool connection_ring_is_due(struct connection *c);
/* Flushes queued messages, or ends a failing connection. */
void connection_flush(struct connection *c);
/* Frees the connection when it is CLOSING and nothing of it is left. */
void connection_release(struct connection *c);
void heartbeat_tick(struct connection *c);

/* ---- listener.c -------------------------------------------------------------------------------------------------- */

/* Listens where the options say, and sets the addresses that others dial. ERR_INVALID, ERR_IO: `why`. */
enum strait_status listener_open(struct peers *peers, char *why, size_t why_size);
/* Begins to accept. ERR_IO, ERR_NO_MEMORY: listener_close. */
enum strait_status listener_start(struct peers *peers);
void listener_close(struct peers *peers);
/* For an accepted connection of which only the beginning of its first bytes had come. */
void connection_first_tick(struct connection *c);

#endif
