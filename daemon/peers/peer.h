/* Connections to other daemons: control messages over TCP, authenticated, watched by heartbeats, and the transport
 * links that belong to them. Whichever side needs a connection first makes it. Each side may dial one, so two daemons
 * have up to two connections, which are independent `struct peer`s.
 *
 * A `struct peer` is one connection, never two in succession. A user that waits for a connection keeps the address and
 * asks again (peers_get); one that uses a connection keeps the pointer, from `up` to the end of `quiet`. A pointer to a
 * peer that is not UP yet is valid only until the caller returns to the loop: an attempt that fails is replaced by a
 * new object. While an old connection waits for its link to close, peers_get makes a new one. */
#ifndef STRAIT_DAEMON_PEERS_PEER_H
#define STRAIT_DAEMON_PEERS_PEER_H

#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/base/options.h"
#include "daemon/base/seal.h"
#include "proto/channel.h"
#include "transport/transport.h"

struct uv_loop_s;
struct peers;

enum peer_state {
    PEER_IDLE, /* not connected; `why` tells how the last attempt failed. Dialled by peers_get, with a back-off of a
                  sixteenth of the time that it has been away, 20 ms to 1 s; forgotten when nobody asks for a minute */
    PEER_DIALLING,
    PEER_PROVING, /* TLS and hellos */
    PEER_LINKING, /* authenticated; a transport's link is being made */
    PEER_UP,
    PEER_CLOSING, /* the control connection is gone, its link is not closed yet */
};

/* The ends of a GPU link: one of our GPUs, and one of the peer's. */
struct gpu_ends {
    enum message_link_by by;
    uint32_t device, peer_device;
};
static inline bool gpu_ends_equal(struct gpu_ends a, struct gpu_ends b)
{
    return a.by == b.by && a.device == b.device && a.peer_device == b.peer_device;
}

struct peer {
    struct peers *peers;
    enum peer_state state;
    char address[MESSAGE_ADDRESS_MAX + 1]; /* dialled: as given; accepted: as the peer says it listens */
    bool dialled;
    uint64_t node, incarnation;              /* the peer's, since LINKING */
    char software[MESSAGE_SOFTWARE_MAX + 1]; /* version of its software; "": not told */
    int64_t clock_skew_us;                   /* hello_clock_skew_us */
    uint64_t token;      /* drawn here for this connection; every data header from the peer carries it */
    uint64_t peer_token; /* drawn by the peer; every data header to it carries it; since LINKING */
    struct link *link;   /* of the transport in use, from UP until `quiet` */
    bool direct;         /* that transport stores straight into the peer's arena */
    bool rings;          /* its messages go through shared memory, since UP */
    bool sealed;         /* chunks by that link are encrypted, with these, since UP */
    struct seal_direction seal_out, seal_in;
    bool codebook_matches, has_codebook;    /* the peer's set is ours; it has one: */
    uint8_t codebook_id[CODEBOOK_ID_BYTES]; /* the latest that it has told of */
    bool takes_codebooks;                   /* CODEBOOK_ASK, CODEBOOK_PART and CODEBOOK_KNOWN may be sent to it */
    bool takes_reshapes;                    /* POOL_ASK, POOL_DESCRIPTION and SEGMENTS of tiles may be sent to it */
    uint32_t block_modes;                   /* that it decodes: bit m is mode m; since LINKING */
    uint32_t slot_bytes, slot_count;        /* of the peer's receive arena */
    char why[128];                          /* why it is not UP, for people */
    uint32_t attempts;                      /* dialled: that have failed one after the other */
    uint32_t refusals;                      /* the latest of them that failed for what only people mend, */
    uint64_t refused_since;                 /* and when the first of these did */
    uint64_t away_since;                    /* dialled: when it was lost, or first not reached; 0: neither */
    void *owner;                            /* for the user's own data, NULL at first */
    uint64_t round_trip_us;                 /* of heartbeats, smoothed */
    uint32_t writers; /* jobs of the user that write to the peer's arena: its link has to stay mapped */
};

/* Called on the loop's thread, never from inside a call of the functions below. For each peer the order is: `up`, then
 * the others, then `down`, after which only arriving, arrived and sent may come, then `quiet`. A connection that fails
 * before `up` causes no callback. Callbacks may call everything declared here. */
struct peers_events {
    void (*up)(void *owner, struct peer *peer);
    /* ANNOUNCE, REQUEST, WITHDRAW, SEGMENTS, GRANT, REVOKE, RELEASED, END, PEER_NOTE, PEER_NOTED, ARENA, REACH,
     * CODEBOOK_ASK, CODEBOOK_PART, CODEBOOK_KNOWN; borrowed. False: the peer broke the protocol. */
    bool (*message)(void *owner, struct peer *peer, const struct message *message);
    /* The peer has told of another codebook set, or that it has none now. */
    void (*codebook)(void *owner, struct peer *peer);
    /* Whether chunks that name the peer's set can be decoded here, for the log; may be called before `up`. */
    bool (*knows_codebook)(void *owner, const uint8_t id[CODEBOOK_ID_BYTES]);
    /* No longer UP: nothing can be sent. Chunks and sends in flight still get their callbacks. The user stops writing
     * to what link_map gave and then calls peer_quit_link. */
    void (*down)(void *owner, struct peer *peer);
    /* The link is closed: no slot granted to this peer is written any more. The peer is freed when this returns. */
    void (*quiet)(void *owner, struct peer *peer);
    /* `device`: our GPU whose link the chunk comes by; -1: the connection's own link. */
    struct landing (*arriving)(void *owner, struct peer *peer, int32_t device, const void *header, size_t header_size,
                               size_t size);
    void (*arrived)(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status);
    void (*sent)(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status);
    /* A GPU link has come up or gone down: ask peer_has_gpu_link. */
    void (*gpu_link)(void *owner, struct peer *peer, struct gpu_ends ends);
    void (*closed)(void *owner); /* ends peers_close; the last callback */
};

struct peers_config {
    struct uv_loop_s *loop;
    const struct node_options *options;
    struct log *log;
    struct metrics *metrics;
    const struct transport_arena *arena; /* receive arena, and its slots: */
    uint32_t slot_bytes, slot_count;
    void *send_base; /* send arena, registered with every transport */
    size_t send_size;
    uint64_t incarnation, node;
    const char *version;        /* of this software, for people; NULL: peers are not told */
    const uint8_t *codebook_id; /* NULL: none */
    bool codebooks;             /* CODEBOOK_ASK, CODEBOOK_PART and CODEBOOK_KNOWN are taken */
    bool reshapes;              /* POOL_ASK, POOL_DESCRIPTION and SEGMENTS of tiles are taken */
    uint32_t block_modes;       /* that are decoded here, for peers; 0: they are not told */
    const char *rdma_devices;   /* where the system lists them; NULL: RDMA_DEVICES */
    const struct peers_events *events;
    void *owner;
};

/* Checks the option texts that transports will parse. ERR_INVALID: `why`. */
enum strait_status peers_check_options(const struct node_options *options, char *why, size_t why_size);
/* Listens (if options say so) and makes the transports that options name and this build has; one that cannot be made is
 * logged and left out. On OK the caller owns *peers. ERR_INVALID, ERR_IO (address in use, ...), ERR_NO_MEMORY;
 * `why`. */
enum strait_status peers_open(const struct peers_config *config, struct peers **peers, char *why, size_t why_size);
/* Whether at least one of the transports that options name is available; if not, `why` tells the reason for each. A
 * transport that only serves daemons sharing a unix socket is not missed where there is no such socket (embedded). */
bool peers_can_travel(const struct peers *peers, char *why, size_t why_size);
/* Times and limits of the options apply from now on. */
void peers_set_options(struct peers *peers, const struct node_options *options);
/* Another codebook set (its id; NULL: none) is in force: connections that are up hear of it. */
void peers_set_codebook(struct peers *peers, const uint8_t *id);
/* Writes the descriptors on which it listens, at most `most`, and returns how many. */
uint32_t peers_listening(const struct peers *peers, int *fds, uint32_t most);
/* To be called at the end of a turn, before the loop's prepare handles of the peers: the loop will not sleep before the
 * next turn, so peers of this host need not wake it. Without this call they do. */
void peers_stay_awake(struct peers *peers);
/* Another process accepts in this one's place from now on: the listening sockets are closed here, and peers are told
 * that new requests go by a new connection. Connections stay. */
void peers_go_away(struct peers *peers);
/* Closes everything: `down` and `quiet` for each peer that is UP (each needs its peer_quit_link), then `closed`, after
 * which *peers is freed and has no handle on the loop. A peer that is alive but does not close its side of a link,
 * because it is stopped, is waited for no longer than for a heartbeat (peer-timeout). After that `quiet` guarantees
 * nothing about the arena, so the caller must not use it again. */
void peers_close(struct peers *peers);

/* Uses these credentials, whose reference it takes over, for new connections; those that exist keep theirs. Peers that
 * have the secret of before are let in, and dialled with it if they refuse the new one, until the next call.
 * ERR_INVALID: there were none and now there are, or the other way round; nothing has changed; `why`. */
enum strait_status peers_reload(struct peers *peers, struct credentials *credentials, char *why, size_t why_size);

/* The list of host:port that others dial, which WELCOME tells clients. */
const char *peers_address(const struct peers *peers);
/* Transports that peers are offered, the best first ("shm,tcp"), and those that options name and this node has not,
 * with the reasons, for people. */
const char *peers_offered(const struct peers *peers);
const char *peers_left_out(const struct peers *peers);

/* Asks for a connection to this address, a list of host:port, and returns the dialled peer for it, UP or on its way
 * there; that of another address if both lead to one daemon. One is made when there is none or the old one is CLOSING;
 * an IDLE one is dialled when its back-off allows, so call again for as long as somebody waits. NULL: out of memory,
 * malformed address (peers_address_ok tells), too many addresses of this user's clients, or after peers_close. */
struct peer *peers_get(struct peers *peers, const char *address, uint32_t uid);
/* Like peers_get, but makes and dials nothing. NULL: nobody has asked for it lately. */
const struct peer *peers_find(const struct peers *peers, const char *address);
/* Whether it is of no use to wait for this peer. It was dialled twice in vain since the caller began to ask, and either
 * has been away for unreachable-timeout, or, three times or more over a second, refused us or was refused for what only
 * people mend (other secrets, other versions, nothing in common): sooner it may be a secret that is being changed.
 * *since is the caller's, UINT32_MAX at first: the attempts that had failed by then. */
bool peer_is_hopeless(const struct peer *peer, uint32_t *since);
/* Is it a list of 1 to 8 times host:port, as daemon/base/address.h reads them? */
bool peers_address_ok(const char *address);
/* Does it have an address in common with those that we tell others? */
bool peers_is_own(const struct peers *peers, const char *address);
/* Calls f for every peer, including IDLE and CLOSING ones. f must not call peers_get. */
void peers_each(struct peers *peers, void (*f)(void *arg, struct peer *peer), void *arg);

/* Whether a transport of this name keeps the loop awake for nothing (poll.h). */
bool peers_spin(const struct peers *peers, const char *name);

const char *peer_state_name(enum peer_state state);       /* "idle", ... */
const char *peer_transport_name(const struct peer *peer); /* "shm", "ucx"; "" without a link */

/* Queues a message; it is flushed at the end of the loop's turn. ERR_AGAIN: not UP. A peer that does not read its
 * messages (64 MiB are queued), or for which memory is lacking, goes down. */
enum strait_status peer_send(struct peer *peer, const struct message *message);

/* A mark of what was sent so far, and whether the peer has handled all of it: known by the answers to heartbeats, so a
 * heartbeat or two later. A mark is of this connection only. */
uint64_t peer_mark(const struct peer *peer);
bool peer_has_handled(const struct peer *peer, uint64_t mark);

/* Bytes that peer_send has queued and the socket has not taken. */
size_t peer_queued(const struct peer *peer);

/* How much longer than its pages' encoding a chunk is that goes by the connection's link. */
static inline uint32_t peer_seal_bytes(const struct peer *peer)
{
    return peer->sealed ? SEAL_TAG_BYTES : 0;
}

static inline void peer_writer_begin(struct peer *peer)
{
    peer->writers++;
}
static inline void peer_writer_end(struct peer *peer)
{
    peer->writers--;
}
/* Called once, after `down` or from inside it: nothing of ours writes to the peer's arena any more. `quiet` follows. */
void peer_quit_link(struct peer *peer);

/* Sends the chunk at `data` (in the send arena; NULL with a direct link); `sent` follows unless ERR_*. ERR_AGAIN: not
 * UP. */
enum strait_status peer_send_chunk(struct peer *peer, const void *header, size_t header_size, const void *data,
                                   size_t size, uint64_t cookie);

/* ---- Links between GPUs ------------------------------------------------------------------------------------------ */

/* From now on our GPU `device` may have links of this kind, over the transport `ops`, to peers' GPUs that allow them
 * too; `arena` is all of its memory that they receive into. ERR_UNSUPPORTED: something is missing; ERR_INVALID:
 * options, or already done; ERR_IO, ERR_NO_MEMORY; `why`. */
enum strait_status peers_open_gpu(struct peers *peers, enum message_link_by by, uint32_t device,
                                  const struct transport_ops *ops, const struct transport_arena *arena,
                                  const char *options, char *why, size_t why_size);
bool peers_has_gpu(const struct peers *peers, enum message_link_by by, uint32_t device);

/* Makes this link, and makes it again when it ends, for as long as the connection lasts; gpu_link reports it. */
void peer_want_gpu_link(struct peer *peer, struct gpu_ends ends);
bool peer_has_gpu_link(const struct peer *peer, struct gpu_ends ends);
/* Sends the chunk at `data`, in our GPU's memory; `sent` follows unless ERR_*. ERR_AGAIN: there is no link. */
enum strait_status peer_send_gpu_chunk(struct peer *peer, struct gpu_ends ends, const void *header, size_t header_size,
                                       const void *data, size_t size, uint64_t cookie);

/* Why there is no such link, or how far its making is: for people. */
const char *peer_gpu_link_why(const struct peer *peer, struct gpu_ends ends);

/* ---- All connections --------------------------------------------------------------------------------------------- */

/* Takes over a client connection that turned out to be another daemon's, by its SHM_HELLO: nothing has been sent on the
 * channel, and the caller has stopped polling it. */
void peers_accept_shm(struct peers *peers, struct channel *channel, const struct message_shm_hello *hello);

/* Ends the connection: `down` and `quiet` follow for one that was UP. Nothing can be sent from now on. */
void peer_drop(struct peer *peer, const char *why);

#endif
