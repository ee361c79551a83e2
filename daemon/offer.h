/* The source's side of a request: what is ready, which expectations it looks for, and the verdict over all its
 * consumers. */
#ifndef STRAIT_DAEMON_OFFER_H
#define STRAIT_DAEMON_OFFER_H

#include "daemon/protocol/segments.h"
#include "daemon/request.h"

struct source;

/* An offer that looks for its expectation instead of waiting for a REQUEST. */
struct announce {
    char address[MESSAGE_ADDRESS_MAX + 1]; /* "": under this daemon */
    struct name sink;
    struct peer *announced_to; /* the peer to which ANNOUNCE was sent */
    bool bound;
    struct announce *next;
};

struct offer {
    struct request request; /* first */
    uint64_t id;
    uint32_t consumers, leg_count, done_count, failed_count;
    uint32_t lease_ms;
    uint64_t expires;
    bool later;
    bool complete;         /* nothing more will be appended, */
    bool last;             /* and all pages are ready */
    struct segment *ready; /* in the order in which they became ready */
    uint32_t ready_count, ready_capacity;
    struct wire_span *later_spans; /* what was offered as `later` */
    uint32_t later_count;
    bool *later_ready;       /* which regions of them are ready: all groups, one after another */
    struct awaited *awaited; /* appends whose events have not completed */
    uint8_t *aux;
    size_t aux_size;
    struct source *sources;
    struct announce *announces;
    struct offer *prev, *next; /* exchange.offers */
};

struct offer *offer_create(struct node *node, struct session *session, struct pool_ref *pool,
                           const struct message_offer *message);
void offer_begin(struct offer *offer, const struct message_offer *message); /* called with the last of its messages */
enum strait_reason offer_append(struct offer *offer, const struct message_append *message);

void offer_announce(struct offer *offer, struct announce *announce); /* to the peer, if it is up */
void offer_fail(struct offer *offer, enum strait_reason reason, const char *text);
void offer_consumer_ended(struct offer *offer, enum strait_reason reason);
void offer_send_verdict(struct offer *offer); /* sends the client the verdict */

#endif
