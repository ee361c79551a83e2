/* Connections to other daemons: control messages over TCP, authenticated, watched by heartbeats, and the links of
 * transports that belong to them. A connection is made by whichever side needs it first; each side may dial one, so
 * that two daemons have up to two, which are independent `struct peer`s.
 *
 * A `struct peer` is one connection, never two of them one after another. Who waits for a connection keeps the address
 * and asks again (peers_get); who uses one keeps the pointer, from `up` to the end of `quiet`. A pointer to a peer that
 * is not UP yet is good until the caller returns to the loop and no longer: an attempt that fails is replaced by a new
 * object. While an old connection waits for its link to close, peers_get makes a new one. */
#ifndef STRAIT_DAEMON_PEERS_PEER_H
#define STRAIT_DAEMON_PEERS_PEER_H

#include "daemon/equipment/log.h"
#include "daemon/equipment/metrics.h"
#include "daemon/equipment/options.h"
#include "proto/channel.h"
#include "transport/transport.h"

struct uv_loop_s;
struct peers;

enum peer_state {
    PEER_IDLE, /* not connected; `why` tells of the last attempt. Dialled by peers_get, with a back-off of 20 ms to
                  1 s; forgotten when nobody asks for a minute */
    PEER_DIALLING,
    PEER_PROVING, /* hellos and proofs */
    PEER_LINKING, /* proved; the link of a transport is being made */
    PEER_UP,
    PEER_CLOSING, /* control is gone, its link is not closed yet */
};

/* A link between two GPUs: of ours, and of the peer's. */
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
    char address[MESSAGE_ADDRESS_MAX + 1]; /* dialled ones: as given; accepted ones: as the peer says it listens */
    bool dialled;
    uint64_t node, incarnation; /* the peer's, since LINKING */
    uint64_t token;      /* drawn here for this connection: stands in every data header that comes from the peer */
    uint64_t peer_token; /* drawn by the peer: stands in every data header that goes to it; since LINKING */
    struct link *link;   /* of the transport in use, from UP until `quiet` */
    bool direct;         /* that transport stores straight into the peer's arena */
    bool codebook_matches;
    uint32_t slot_bytes, slot_count; /* of the peer's receive arena */
    char why[128];                   /* why it is not UP, for people */
    void *owner;                     /* of the user's own data, NULL at first */
    uint64_t round_trip_us;          /* of heartbeats, smoothed */
};

/* Called on the loop's thread, never from inside a call of the functions below. For each peer: `up`, then the others,
 * then `down`, after which only arriving, arrived and sent may come, then `quiet`. A connection that fails before `up`
 * is not heard of. Callbacks may call everything here. */
struct peers_events {
    void (*up)(void *owner, struct peer *peer);
    /* ANNOUNCE, REQUEST, SEGMENTS, GRANT, REVOKE, RELEASED, END, PEER_NOTE, ARENA, REACH; borrowed. False: it broke the
     * protocol. */
    bool (*message)(void *owner, struct peer *peer, const struct message *message);
    /* Was UP, is not any more: nothing can be sent. Chunks and sends in flight still get their callbacks. The user
     * stops writing to what link_map gave and then calls peer_quit_link. */
    void (*down)(void *owner, struct peer *peer);
    /* The link is closed: no slot of this peer's grants is written any more. The peer is freed when this returns. */
    void (*quiet)(void *owner, struct peer *peer);
    /* `device`: of ours, whose link it comes by; -1: the connection's own. */
    struct landing (*arriving)(void *owner, struct peer *peer, int32_t device, const void *header, size_t header_size,
                               size_t size);
    void (*arrived)(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status);
    void (*sent)(void *owner, struct peer *peer, uint64_t cookie, enum strait_status status);
    /* A link between two GPUs is up, or it is not any more: peer_has_gpu_link. */
    void (*gpu_link)(void *owner, struct peer *peer, struct gpu_ends ends);
    void (*closed)(void *owner); /* of peers_close: last */
};

struct peers_config {
    struct uv_loop_s *loop;
    const struct node_options *options;
    struct log *log;
    struct metrics *metrics;
    const struct transport_arena *arena; /* receive arena; slot sizes: */
    uint32_t slot_bytes, slot_count;
    void *send_base; /* send arena, made known to every transport */
    size_t send_size;
    uint64_t incarnation, node;
    const uint8_t *codebook_id; /* NULL: none */
    const struct peers_events *events;
    void *owner;
};

/* Listens (when options say so), makes the transports that options name and this build has (one that cannot be made is
 * logged and left out). On OK the caller owns *peers. ERR_INVALID, ERR_IO (address in use, ...), ERR_NO_MEMORY; `why`.
 */
enum strait_status peers_open(const struct peers_config *config, struct peers **peers, char *why, size_t why_size);
/* Whether at least one of the transports that options name is there; else `why` tells of each. What is named only for
 * daemons that share a unix socket, where there is none (embedded), is not missed. */
bool peers_can_travel(const struct peers *peers, char *why, size_t why_size);
/* Closes everything: `down` and `quiet` for each peer that is UP (each needs its peer_quit_link), then `closed`, after
 * which *peers is freed and has no handle on the loop. A peer that lives but does not close its side of a link, being
 * stopped, is waited for as long as for a heartbeat (peer-timeout): `quiet` says nothing about the arena after that,
 * which the caller does not use again. */
void peers_close(struct peers *peers);

/* "host:port" that others dial: what WELCOME tells clients. */
const char *peers_address(const struct peers *peers);

/* Wants a connection to this address: the dialled peer in use for it, UP or on its way there. Made when there is none
 * or when the old one is CLOSING; an IDLE one is dialled when its back-off allows: call again for as long as somebody
 * waits. NULL: without memory, malformed address (peers_address_ok tells), too many peers, or after peers_close. */
struct peer *peers_get(struct peers *peers, const char *address);
/* Is it "host:port" or "[v6]:port", with a port of 1..65535? */
bool peers_address_ok(const char *address);
/* Calls f for every peer, IDLE and CLOSING ones too. f does not call peers_get. */
void peers_each(struct peers *peers, void (*f)(void *arg, struct peer *peer), void *arg);

const char *peer_state_name(enum peer_state state);       /* "idle", ... */
const char *peer_transport_name(const struct peer *peer); /* "shm", "ucx"; "" without a link */

/* Queues a message; flushed at the end of the loop's turn. ERR_AGAIN: not UP. A peer that does not take its messages
 * (64 MiB wait), or for which memory is lacking, goes down. */
enum strait_status peer_send(struct peer *peer, const struct message *message);

/* After `down` (also from inside it), once: nothing of ours writes to the peer's arena any more. `quiet` follows. */
void peer_quit_link(struct peer *peer);

/* Sends the chunk at `data` (in the send arena; NULL with a direct link); `sent` follows unless ERR_*. ERR_AGAIN: not
 * UP. */
enum strait_status peer_send_chunk(struct peer *peer, const void *header, size_t header_size, const void *data,
                                   size_t size, uint64_t cookie);

/* ---- Links between GPUs ------------------------------------------------------------------------------------------ */

/* From now on our GPU `device` may have links of this kind, whose transport is `ops`, to those of peers that have done
 * so too; `arena` is all of its memory that they receive into. ERR_UNSUPPORTED: something is missing; ERR_INVALID:
 * options, or it was done before; ERR_IO, ERR_NO_MEMORY; `why`. */
enum strait_status peers_open_gpu(struct peers *peers, enum message_link_by by, uint32_t device,
                                  const struct transport_ops *ops, const struct transport_arena *arena,
                                  const char *options, char *why, size_t why_size);
bool peers_has_gpu(const struct peers *peers, enum message_link_by by, uint32_t device);

/* Sees to it that there is this link for as long as the connection lasts: gpu_link tells. */
void peer_want_gpu_link(struct peer *peer, struct gpu_ends ends);
bool peer_has_gpu_link(const struct peer *peer, struct gpu_ends ends);
/* Sends the chunk at `data`, memory of our GPU; `sent` follows unless ERR_*. ERR_AGAIN: there is no link. */
enum strait_status peer_send_gpu_chunk(struct peer *peer, struct gpu_ends ends, const void *header, size_t header_size,
                                       const void *data, size_t size, uint64_t cookie);

/* Why there is none, or how far it is: for people. */
const char *peer_gpu_link_why(const struct peer *peer, struct gpu_ends ends);

/* ---- Both -------------------------------------------------------------------------------------------------------- */

/* A client connection turned out to be another daemon, by its SHM_HELLO: takes the channel, on which nothing has been
 * sent and which the caller has stopped polling. */
void peers_accept_shm(struct peers *peers, struct channel *channel, const struct message_shm_hello *hello);

/* Ends the connection: `down` and `quiet` follow for one that is UP. Nothing can be sent from now on. */
void peer_drop(struct peer *peer, const char *why);

#endif
