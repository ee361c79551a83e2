/* Proxy of a rank: the thread that carries what the rank stores for ranks of other hosts, by TCP.
 *
 * A rank of another host has a replica of its arena on each host, which ranks there write and read as they do arenas of
 * their own host. Phases tell in a manifest (kernels.h) which ranges a signal is about; the proxy sees the signal's
 * flag in the replica, sends the ranges and then the signal, and the other rank's proxy puts each at the same offset:
 * into the arena itself, or into the replica of the sender's arena where that was what has changed. Last it sets the
 * flag. Buffers suffice as they do on one host (handle.c): what a rank writes again has been received.
 *
 * On the wire each is a chunk of transport/tcp.h, whose header is a frame of 32 bytes, little-endian; links have one
 * connection, so chunks arrive in order. What arrives is checked: an invalid frame ends the link, and nothing but the
 * arena's areas behind the flags can be written by ranges. Like ranks of one host those of others are trusted with
 * values. Nothing is encrypted; secrets that ranks exchange by all_gather keep out who cannot read the network.
 *
 * A link that ends is no error by itself: whoever waits for the rank finds it missing when the group's timeout is over.
 */
#ifndef STRAIT_EP_PROXY_H
#define STRAIT_EP_PROXY_H

#include "ep/kernels.h"
#include "internal/address.h"
#include "transport/transport.h"

struct ep_proxy;

/* What other ranks need to know of a proxy; plain bytes. */
struct ep_proxy_info {
    struct address address;
    uint8_t secret[16];
};

/* Listens. view: rank, rank_count and remote are set. *info is for the other ranks. ERR_NO_MEMORY; ERR_IO: no address
 * that others could reach. */
enum strait_status ep_proxy_create(const struct ep_group_view *view, struct ep_proxy_info *info,
                                   struct ep_proxy **proxy);

/* Connects to the ranks of other hosts, which do the same, and begins to carry. view: complete, with host addresses of
 * all arenas, manifests and places, and stays. infos: of all ranks. What went wrong is told in `text`: ERR_TIMEOUT,
 * ERR_IO, ERR_NO_MEMORY. */
enum strait_status ep_proxy_start(struct ep_proxy *proxy, const struct ep_group_view *view,
                                  const struct ep_proxy_info *infos, char *text, size_t text_size);

/* Waits until the other ranks have what was signalled, so much longer at most, and ends. NULL: nothing. */
void ep_proxy_destroy(struct ep_proxy *proxy, uint64_t timeout_ns);

/* ---- Links, for tests ------------------------------------------------------------------------------------------- */

enum { EP_FRAME_BYTES = 32 };

enum ep_frame_type {
    EP_FRAME_RANGE = 1, /* a: offset; small: EP_OF_SENDER or 0; the bytes follow */
    EP_FRAME_SIGNAL,    /* small: enum ep_flag; a: its value */
    EP_FRAME_FLUSH,     /* to be answered once what came before has been put where it belongs */
    EP_FRAME_FLUSHED,   /* the answer */
};

/* The link to a rank of another host. Zeroed but for view, rank and link. */
struct ep_proxy_peer {
    const struct ep_group_view *view; /* host addresses */
    struct link *link;                /* NULL: it has ended */
    uint32_t rank;
    bool connected;
    bool flushing, flushed, answered;
    uint32_t frames;              /* handed to the transport, not sent yet */
    uint64_t sent[EP_FLAG_KINDS]; /* epochs of signals */
    uint64_t came[EP_FLAG_KINDS];
    /* The signal under way. Its manifest is a copy: where the rank was left out, or a call given up, the next call may
     * overwrite the other meanwhile. */
    bool under_way;
    struct ep_manifest manifest;
    enum ep_flag kind;
    uint64_t value;
    uint32_t range, row;
    uint64_t piece; /* bytes of the row that were handed over */
};

/* Of the transport; its owner is a counter of links that are not closed, the links' owners are peers. */
extern const struct transport_events ep_proxy_events;

/* Hands to the transport what it has room for. False: there was nothing. */
bool ep_proxy_peer_send(struct ep_proxy_peer *peer);
/* Once all signals have been handed over, asks to be told when they are there. True: they are, or the link has ended.
 */
bool ep_proxy_peer_flush(struct ep_proxy_peer *peer);

#endif
