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
    uint64_t bytes;     /* of the pages that they name */
    struct name source; /* the offer it wants */
    char address[MESSAGE_ADDRESS_MAX + 1];
    struct peer *peer;    /* it is bound to; NULL: none yet, or none any more */
    struct source *local; /* under this daemon: the other half */
    bool is_local;
    bool asked;           /* REQUEST has gone to `peer` */
    bool waiting;         /* in exchange.wanting */
    uint64_t granted_at;  /* latest grant, loop's clock */
    uint64_t wants_since; /* with nothing outstanding, loop's clock; 0: it does not starve */
    struct sink *next;    /* of the expectation */
    struct sink *closed_next;
    struct sink *wprev, *wnext;
    UT_hash_handle hh; /* exchange.sinks, by id */
};

struct sink *sink_create(struct expectation *expectation, const struct name *source, const char *address, bool local);
void sink_free(struct sink *sink);
void sink_ask(struct sink *sink);                                  /* REQUEST, when its peer is up */
void sink_ask_peer(struct sink *sink, struct peer *peer);          /* over this connection, which is up */
void sink_part(struct sink *sink);                                 /* from its peer: it may ask again */
bool sink_apply(struct sink *sink, const struct leg_event *event); /* true: the event was accepted (ARRIVING) */
void sink_event(struct sink *sink, enum leg_event_type type, enum strait_reason reason);

/* sink_messages.c */
enum strait_reason sink_segments(struct sink *sink, const struct message_segments *message);

/* sink_grants.c */
bool sink_holds_grants(const struct sink *sink);
void sink_grants(struct node *node);  /* hands out free slots, in turn */
void sink_reclaim(struct node *node); /* asks back what others starve for */

/* sink_chunks.c. `device`: of the link between GPUs that it comes by; -1: it comes by the connection's own. */
struct landing sink_arriving(struct node *node, struct peer *peer, int32_t device, const void *header,
                             size_t header_size, size_t size);
void sink_arrived(struct node *node, uint64_t cookie, enum strait_status status);
void sink_copied(struct sink *sink, uint64_t grant, const struct job_result *result);

#endif
