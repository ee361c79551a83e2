/* The source's half of a leg: announces which of the pages that the sink wants are ready, encodes and sends them. */
#ifndef STRAIT_DAEMON_SOURCE_H
#define STRAIT_DAEMON_SOURCE_H

#include "daemon/chunk_header.h"
#include "daemon/offer.h"
#include "daemon/memory/view.h"
#include "daemon/peers/peer.h"
#include "daemon/protocol/segments.h"

struct sink;

/* Key of a source leg: the connection that asked for it, and the id chosen there. */
struct source_key {
    struct peer *peer;
    uint64_t id;
};

/* The grants that come with a REQUEST: first, first + 1, ... */
struct open_grants {
    uint64_t first;
    uint32_t count;
    const uint32_t *slots;
};

/* A chunk that is being encoded or sent. */
struct inflight_chunk {
    struct source *source;
    uint64_t grant;
    struct arena *from; /* it is encoded in a slot of this arena of ours; NULL: straight into the peer's arena */
    uint32_t send_slot;
    struct chunk_path path;
    struct gpu_ends ends; /* of a GPU link */
    uint64_t size, raw_bytes;
    uint64_t since;
    uint8_t header[CHUNK_HEADER_BYTES];
    enum strait_element element;
    enum strait_mode mode;
    struct inflight_chunk *next;
};

/* The offer's pages as tiles of a reshape. */
struct source_tiles {
    struct reshape reshape;
    struct pool_view *view;
    struct page_set pages; /* of the offer, as tiles: made anew when the offer has more */
    uint64_t page_count;   /* of the offer's pages, then */
};

/* Port to the sink: over a connection, or in the memory of this daemon (local.c). */
struct source_port {
    uint32_t list_max;                                                  /* segments in one message */
    void (*send)(struct source *source, const struct message *message); /* SEGMENTS, RELEASED, END */
    bool (*is_stuck)(struct source *source); /* it has to wait for memory to encode its next chunk into */
    void (*encode)(struct source *source, const struct leg_grant *grant);   /* ENCODED follows, */
    void (*transmit)(struct source *source, const struct leg_grant *grant); /* and SENT */
};
extern const struct source_port source_over_peer, source_over_memory;

struct source {
    struct node *node;
    struct offer *offer;
    const struct source_port *port;
    uint64_t id; /* of the leg, drawn by the sink */
    struct epoch epoch;
    struct source_leg leg;
    const char *why;          /* why the leg has ended; static, or kept with the offer */
    struct timeline timeline; /* from the REQUEST of a peer on */
    struct segments segments;
    uint64_t bytes;           /* bytes of the pages in them */
    struct wire_span *wanted; /* pages, or tiles */
    uint32_t wanted_count;
    struct source_tiles *tiles; /* the pools are laid out differently; NULL: units are pages */
    struct peer *peer;
    struct sink *local; /* the other half, when it is under this daemon */
    bool sink_on_gpu;   /* its pool has pages on a GPU */
    bool done_early;    /* the sink is DONE, and not all chunks are known here to be encoded */
    bool superseded;    /* the sink asked again over another connection: how this leg ends does not count */
    struct inflight_chunk *inflight;
    uint64_t queued_at;
    bool waiting; /* in exchange.encoding */
    bool timed;   /* its chunks are under way, for the policy */
    struct source *next;
    struct source *closed_next;
    struct source *wprev, *wnext;
    UT_hash_handle hh; /* exchange.sources, by (peer, id) */
    struct source_key at;
};

/* Takes ownership of `wanted`, also on failure. Exactly one of peer and local is not NULL. */
struct source *source_create(struct offer *offer, const struct source_port *port, struct peer *peer, struct sink *local,
                             uint64_t id, const struct epoch *epoch, struct wire_span *wanted, uint32_t wanted_count);
void source_free(struct source *source);

/* Queues an event. */
void source_post(struct source *source, const struct leg_event *event);
void source_event(struct source *source, enum leg_event_type type, enum strait_reason reason);
void source_message(struct source *source, const struct message *message); /* of its sink: GRANT, REVOKE, END */
/* Called by the queue: takes the event and carries out its actions. */
void source_take(struct source *source, const struct leg_event *event);

/* The request is bound to its offer: announces to the sink what is ready of what it wants, and uses its open grants for
 * that or releases them. `sink`: how the sink's pool is laid out; NULL: like the offer's. */
void source_bind(struct source *source, const struct pool_blob *sink, const struct open_grants *open);
/* `count` more segments of the offer, from `from` on, are ready: announces those that the sink wants. */
void source_more(struct source *source, uint32_t from, uint32_t count);

/* The pool that the leg's units are of: the offer's, or its view. */
const struct pool *source_pool(const struct source *source);
const struct page_set *source_pages(const struct source *source);

void source_sent(struct node *node, uint64_t cookie, enum strait_status status);
/* A GPU link has ended: chunks on it will not arrive. */
void source_gpu_link_ended(struct node *node, struct peer *peer, struct gpu_ends ends);

#endif
