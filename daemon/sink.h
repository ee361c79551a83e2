/* The sink's half of a leg: asks a source for pages, grants it slots, and decodes what arrives there. */
#ifndef STRAIT_DAEMON_SINK_H
#define STRAIT_DAEMON_SINK_H

#include "daemon/exchange.h"

struct sink {
    struct node *node;
    struct expectation *expectation;
    uint64_t id; /* of the leg */
    struct sink_leg leg;
    struct segments segments;
    uint64_t bytes;     /* bytes of the pages in them */
    struct name source; /* the offer it wants */
    char address[MESSAGE_ADDRESS_MAX + 1];
    struct peer *peer;    /* the peer it is bound to; NULL: none yet, or none any more */
    struct source *local; /* the other half, when it is under this daemon */
    bool is_local;
    bool asked;           /* REQUEST has gone to `peer` */
    bool waiting;         /* in exchange.wanting */
    uint64_t granted_at;  /* latest grant, loop's clock */
    uint64_t wants_since; /* loop's clock: since when it wants a slot with none outstanding; 0: it does not starve */
    struct sink *next;    /* of the expectation */
    struct sink *closed_next;
    struct sink *wprev, *wnext;
    UT_hash_handle hh; /* exchange.sinks, by id */
};

struct sink *sink_create(struct expectation *expectation, const struct name *source, const char *address, bool local);
void sink_free(struct sink *sink);
void sink_ask(struct sink *sink);                                  /* sends REQUEST if its peer is up */
void sink_ask_peer(struct sink *sink, struct peer *peer);          /* the same over this connection, which is up */
void sink_detach_peer(struct sink *sink);                          /* unbinds it from its peer: it may ask again */
bool sink_apply(struct sink *sink, const struct leg_event *event); /* true: the event was accepted (ARRIVING) */
void sink_event(struct sink *sink, enum leg_event_type type, enum strait_reason reason);

/* sink_messages.c */
enum strait_reason sink_segments(struct sink *sink, const struct message_segments *message);

/* sink_grants.c */
bool sink_holds_grants(const struct sink *sink);
void sink_grants(struct node *node);  /* hands out free slots, leg by leg */
void sink_reclaim(struct node *node); /* asks for unused grants back that other legs need */

/* sink_chunks.c. `device`: our GPU whose link the chunk comes by; -1: the connection's own link. */
struct landing sink_arriving(struct node *node, struct peer *peer, int32_t device, const void *header,
                             size_t header_size, size_t size);
void sink_arrived(struct node *node, uint64_t cookie, enum strait_status status);
void sink_copied(struct sink *sink, uint64_t grant, const struct job_result *result);

#endif
