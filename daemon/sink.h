/* The sink's half of a leg: asks a source for pages, grants it slots, and decodes what arrives there. */
#ifndef STRAIT_DAEMON_SINK_H
#define STRAIT_DAEMON_SINK_H

#include "daemon/expectation.h"
#include "daemon/memory/job.h"
#include "daemon/peers/peer.h"
#include "daemon/protocol/segments.h"
#include "daemon/memory/arena.h"

struct source;

/* Port to the source: over a connection, or in the memory of this daemon (local.c). */
struct sink_port {
    bool takes_slots; /* chunks arrive in slots of the receive arenas */
    void (*request)(struct sink *sink, const struct leg_action *action);
    void (*send)(struct sink *sink, const struct message *message); /* GRANT, REVOKE, END */
    /* Cuts the next chunk of at most grant->count units from grant->first on, and takes a slot for it. False: no slot
     * is free. Count 0: a page is too large for a slot. */
    bool (*cut)(struct sink *sink, struct leg_event *grant);
    void (*granted)(struct sink *sink); /* SEGMENTS have told what open grants are for; or NULL */
    void (*decode)(struct sink *sink, const struct leg_grant *grant);    /* sink_landed follows */
    void (*free_slot)(struct sink *sink, const struct leg_grant *grant); /* or NULL: there are none */
    void (*refuse)(struct sink *sink, uint64_t grant);                   /* the answer to a queued ARRIVING */
};
extern const struct sink_port sink_over_peer, sink_over_memory;

struct sink {
    struct node *node;
    struct expectation *expectation;
    const struct sink_port *port;
    uint64_t id; /* of the leg */
    struct sink_leg leg;
    struct part *part; /* the source's pool is laid out in another way: units are tiles; NULL: they are pages */
    struct segments segments;
    uint64_t bytes;     /* bytes of the pages in them */
    struct name source; /* the offer it wants */
    uint32_t consumers; /* of that, as the client says; 0: it does not */
    char address[MESSAGE_ADDRESS_MAX + 1];
    struct peer *peer;    /* the peer it is bound to; NULL: none yet, or none any more */
    struct source *local; /* the other half, when it is under this daemon */
    bool asked;           /* it has been asked for: REQUEST has gone to `peer` */
    uint32_t asked_since; /* of peer_is_hopeless */
    const char *why;      /* why the source has ended; static, or kept with the request */
    bool waiting;         /* in exchange.wanting */
    uint64_t granted_at;  /* latest grant, loop's clock */
    uint64_t wants_since; /* loop's clock: since when it wants a slot with none outstanding; 0: it does not starve */
    struct sink *next;    /* of the expectation */
    struct sink *closed_next;
    struct sink *wprev, *wnext;
    UT_hash_handle hh; /* exchange.sinks, by id */
};

/* The pool that the leg's units are of: the expectation's, or its view. */
const struct pool *sink_pool(const struct sink *sink);
const struct page_set *sink_pages(const struct sink *sink);

struct sink *sink_create(struct expectation *expectation, const struct name *source, const char *address,
                         const struct sink_port *port);
void sink_free(struct sink *sink);
void sink_ask(struct sink *sink);                         /* sends REQUEST if its peer is up */
void sink_ask_peer(struct sink *sink, struct peer *peer); /* the same over this connection, which is up */
void sink_detach_peer(struct sink *sink);                 /* unbinds it from its peer: it may ask again */

/* Queues an event. */
void sink_post(struct sink *sink, const struct leg_event *event);
void sink_event(struct sink *sink, enum leg_event_type type, enum strait_reason reason);
void sink_message(struct sink *sink, const struct message *message); /* of its source: SEGMENTS, RELEASED, END */
/* Called by the queue: takes the event and carries out its actions. */
void sink_take(struct sink *sink, const struct leg_event *event);
/* The same, not by way of the queue. True: the event was accepted (ARRIVING). */
bool sink_take_now(struct sink *sink, const struct leg_event *event);
struct leg_grant *sink_find_grant(struct sink *sink, uint64_t id); /* NULL: it holds none of that number */

/* Grants the next chunk a slot, which is queued. False: the leg does not want one, or none is free for it. */
bool sink_grant(struct sink *sink);
bool sink_holds_grants(const struct sink *sink);
void sink_reclaim(struct node *node); /* asks for unused grants back that other legs need */
int32_t sink_next_device(const struct sink *sink, uint32_t first); /* the GPU that holds the next units; -1: the host */
/* How many units from `first` on fit into one chunk for a slot of this arena, and of `most` bytes. */
uint32_t sink_cut(const struct sink *sink, const struct receive_arena *arena, uint64_t most, uint32_t first,
                  uint32_t count);

/* `device`: our GPU whose link the chunk comes by; -1: the connection's own link. */
struct landing sink_arriving(struct node *node, struct peer *peer, int32_t device, const void *header,
                             size_t header_size, size_t size);
void sink_arrived(struct node *node, uint64_t cookie, enum strait_status status);
/* A job has put the pages of a grant in place, or failed to. */
void sink_landed(struct sink *sink, uint64_t grant, const struct job_result *result);

#endif
