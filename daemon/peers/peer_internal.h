/* What the peer_*.c files share. The life of a connection:
 *
 *   IDLE --peers_get--> DIALLING --connected--> PROVING --hellos, proofs--> LINKING --link connected--> UP
 *                       accepted ones begin here ^
 *
 * Whatever ends one is only noted (connection_doom) and done at the end of the loop's turn (connection_end): so no
 * callback runs inside a call, and nothing is freed under a caller. An ended connection is CLOSING until its links are
 * closed and its look-up of a name is back; a dialled one leaves a new IDLE one in its place at once. */
#ifndef STRAIT_DAEMON_PEERS_PEER_INTERNAL_H
#define STRAIT_DAEMON_PEERS_PEER_INTERNAL_H

#include <sys/queue.h>
#include <sys/un.h>
#include <uv.h>

#include "daemon/equipment/address.h"
#include "daemon/equipment/auth.h"
#include "daemon/peers/peer.h"
#include "daemon/peers/port.h"
#include "daemon/peers/watch.h"

#define PEER_KINDS_MAX        8u
#define PEER_RECORDS_MAX      4096u /* dialled ones, IDLE ones included */
#define PEER_ACCEPTED_MAX     1280u /* those that are not proved or are CLOSING included */
#define PEER_HALF_OPEN_MAX    128u  /* accepted ones that have not proved who they are */
#define PEER_HELLO_BODY_MAX   4096u
#define PEER_QUEUE_BYTES      (64u * 1024 * 1024)
#define PEER_BACKOFF_MS       20u
#define PEER_BACKOFF_MAX_MS   1000u
#define PEER_FORGET_MS        60000u
#define PEER_TICK_MAX_MS      50u
#define PEER_SHORT_LIFE_MS    1000u /* who goes down sooner is not dialled at once again, but after */
#define PEER_FLAP_MAX_MS      200u  /* 20 ms to this: its node is there, and its users' deadlines go on */
#define PEER_ACCEPTS_PER_TURN 64u

/* A transport of this node. */
struct kind {
    LIST_ENTRY(kind) entry; /* of a GPU's */
    struct peers *peers;
    int32_t device;          /* whose memory its arena is; -1: the host's */
    enum message_link_by by; /* of a GPU's */
    const struct transport_ops *ops;
    struct transport *transport;
    struct port *port;
    void *send_handle;
    bool sends_known; /* send_handle is to be released */
};

/* A link from link_open until `closed`. */
struct peer_link {
    LIST_ENTRY(peer_link) entry;
    struct connection *connection;
    struct kind *kind;
    struct link *link;
    struct gpu_link *gpu; /* it is this one's; NULL: the connection's own, or an attempt at that */
    bool connected, closing, abandoned;
};

enum gpu_link_state {
    GPU_LINK_NONE,   /* made when it is wanted and its time has come */
    GPU_LINK_MAKING, /* the peer has been asked, or is to answer, or the two connect */
    GPU_LINK_UP,
    GPU_LINK_ENDING, /* its link is not closed yet */
};

/* Of two GPUs, ours and the peer's: peer_gpu.c. */
struct gpu_link {
    LIST_ENTRY(gpu_link) entry;
    struct gpu_ends ends;
    enum gpu_link_state state;
    bool wanted;   /* here; else only the peer wants it */
    bool answered; /* dialled: the other end is known */
    struct peer_link *link;
    uint64_t deadline, next_try;
    uint32_t backoff; /* after the next attempt that fails */
    char why[160];    /* there is none */
};

struct connection {
    struct peer peer; /* first */
    TAILQ_ENTRY(connection) entry;
    TAILQ_ENTRY(connection) dirty_entry;
    bool dirty;    /* peers.dirty has it */
    bool doomed;   /* to be ended at the end of the turn; peer.why says why */
    bool repeated; /* the attempt before it failed for the same reason: not worth another line */
    bool was_up;

    struct channel *channel;
    struct watch *watch;

    /* Dialling. */
    uv_getaddrinfo_t lookup;
    bool looking_up;
    struct addrinfo *found, *next_address;
    int socket; /* until the channel has it */
    uint64_t address_deadline;
    uint64_t asked, next_try; /* IDLE */
    uint32_t backoff;         /* after the next attempt that fails */
    uint32_t flap_backoff;    /* after the next short life */
    bool unreached;           /* the attempt before it failed */

    /* Proving. */
    uint64_t deadline; /* for everything before UP */
    uint8_t nonce[NONCE_BYTES];
    struct message hello; /* the peer's, until it is proved */
    bool has_hello;

    /* Linking. */
    bool has_links; /* the peer's first PEER_LINKS has come */
    bool same_host;
    char shm_path[sizeof(((struct sockaddr_un *)NULL)->sun_path)]; /* "": no shm */
    char offered[MESSAGE_ADDRESS_MAX + 1];                         /* kinds, as the peer lists them */
    uint32_t attempt;                                              /* dialled: index of the kind being tried */
    uint64_t attempt_deadline;
    bool shm_is_full;  /* dialled: the peer's unix socket has too many waiting; to be tried again */
    bool wants_answer; /* dialled: the peer is asked for its link's address */
    LIST_HEAD(, peer_link) links;
    LIST_HEAD(, gpu_link) gpu_links;
    struct peer_link *current;
    struct message held; /* what came before UP; nothing more is read until then */
    bool holding;

    /* Up. */
    uint64_t up_at, heard;
    uint64_t next_beat, sequence, sent_at_ns, seen;
};

/* At most so many lines a second of what others can cause at will. */
struct log_limit {
    uint64_t second;
    uint32_t lines, suppressed;
};

struct peers {
    struct peers_config config;
    struct node_options options;
    TAILQ_HEAD(, connection) connections; /* oldest first */
    TAILQ_HEAD(, connection) dirty;       /* to be flushed or ended */
    struct kind kinds[PEER_KINDS_MAX];
    uint32_t kind_count, ports;
    LIST_HEAD(, kind) gpu_kinds;
    char offered[MESSAGE_ADDRESS_MAX + 1];
    char left_out[192]; /* of the transports named: those that cannot be had, and why */
    bool alone;         /* shm is named, but there is no unix socket for it */
    char shm_path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    char host[MESSAGE_ADDRESS_MAX]; /* identity of this host and its namespaces */
    char address[MESSAGE_ADDRESS_MAX + 1];
    int listen_fd;
    struct watch *listener;
    uint64_t listen_again; /* accepting rests until then; 0: it does not */
    struct secret secret_bytes;
    const struct secret *secret; /* NULL: none */
    struct watch_count watches;
    uv_timer_t tick;
    uv_prepare_t prepare; /* flushes */
    uv_idle_t turn;       /* active while something is dirty or was told: the loop does not block */
    bool told;            /* the owner was called back from a prepare handle */
    uint64_t abandon_at;  /* closing: links do not wait for their peers any longer */
    uint32_t handles;
    uint32_t tick_ms;
    uint64_t last_tick;
    struct log_limit limit;
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

/* ---- peer.c: connections ----------------------------------------------------------------------------------------- */

struct connection *connection_create(struct peers *peers, const char *address, bool dialled);
void connection_dirty(struct connection *c);
/* Notes that it is to end, and why; only the first reason counts. */
void connection_doom(struct connection *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same; the peer broke the protocol. */
void connection_blame(struct connection *c, const char *what);
/* Gives the socket to a channel and reads. */
void connection_begin(struct connection *c, int fd);
void connection_send(struct connection *c, const struct message *message);
void connection_up(struct connection *c);
/* Flushes what is queued, or ends it. */
void connection_flush(struct connection *c);
/* Frees it when it is CLOSING and nothing of it is left. */
void connection_settle(struct connection *c);

/* ---- peers.c: all of them ---------------------------------------------------------------------------------------- */

void peers_settle(struct peers *peers);
void peers_tick_start(struct peers *peers);
void peers_turn_start(struct peers *peers); /* something is dirty: flush before blocking */
/* The owner is called back while prepare handles run, where its own has been already: what it queues now is carried
 * out in one more turn, before the loop blocks. */
void peers_told(struct peers *peers);
/* A line that others can cause; at most ten a second; what was left out is counted in the next one. */
void peers_log_limited(struct peers *peers, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- peer_kind.c: transports ------------------------------------------------------------------------------------- */

/* The texts of options that transports are to read. ERR_INVALID: `why`. */
enum strait_status kinds_check(const struct peers *peers, char *why, size_t why_size);
/* Opens those that the options name, and notes which of them cannot be had. */
void kinds_open(struct peers *peers);
/* Makes the transport; its options are completed by what the node's own say. */
enum strait_status kind_open(struct peers *peers, struct kind *kind, const struct transport_arena *arena,
                             const char *options);
void kind_release_memory(struct kind *kind);

/* ---- peer_dial.c ------------------------------------------------------------------------------------------------- */

void connection_dial(struct connection *c);
void connection_dial_tick(struct connection *c);
void connection_dial_end(struct connection *c);
void socket_prepare(int fd); /* what every connection's socket is set to */

/* ---- peer_listen.c ----------------------------------------------------------------------------------------------- */

enum strait_status listener_open(struct peers *peers, char *why, size_t why_size);
void listener_close(struct peers *peers);
void listener_tick(struct peers *peers);

/* ---- peer_hello.c: each returns after connection_doom when the message is not what is due ------------------------ */

void hello_send(struct connection *c);
void hello_take(struct connection *c, struct message *message); /* takes it */
void proof_take(struct connection *c, const struct message_peer_proof *proof);

/* ---- peer_link.c ------------------------------------------------------------------------------------------------- */

extern const struct transport_events peer_transport_events; /* owner: the kind */
struct kind *kind_find(struct peers *peers, const char *name, size_t size);
void links_send(struct connection *c);
void links_take(struct connection *c, const struct message_peer_links *links);
void links_tick(struct connection *c);
/* A socket is taken in any case. */
enum strait_status link_make(struct connection *c, struct kind *kind, int fd, struct peer_link **link);
void link_end(struct peer_link *link);

/* ---- peer_gpu.c -------------------------------------------------------------------------------------------------- */

void gpu_link_take(struct connection *c, const struct message_gpu_link *message);
void gpu_links_tick(struct connection *c);
void gpu_links_free(struct connection *c);
void gpu_link_connected(struct connection *c, struct gpu_link *g);
void gpu_link_broken(struct connection *c, struct gpu_link *g, const char *why);
void gpu_link_closed(struct gpu_link *g);

/* ---- peer_beat.c ------------------------------------------------------------------------------------------------- */

void beat_take(struct connection *c, const struct message_heartbeat *beat);
void beat_tick(struct connection *c);

#endif
