/* The source's side of a request: what is ready, which expectations it looks for, and the verdict over all its
 * consumers. */
#ifndef STRAIT_DAEMON_OFFER_H
#define STRAIT_DAEMON_OFFER_H

#include "daemon/protocol/readiness.h"
#include "daemon/protocol/segments.h"
#include "daemon/request.h"

struct source;
struct served_read;

/* A sink that an offer knows: it looks for it, instead of waiting for a REQUEST, or the sink has asked or withdrawn. */
struct announce {
    char address[MESSAGE_ADDRESS_MAX + 1]; /* "": under this daemon */
    struct name sink;
    struct peer *announced_to; /* the peer to which ANNOUNCE was sent */
    bool bound;                /* it has a leg, or had one, or will have none */
    uint32_t asked_since;      /* of peer_is_hopeless */
    struct announce *next;
};

struct offer {
    struct request request; /* first */
    uint32_t consumers;     /* 0: the first that asks says it */
    uint32_t leg_count, done_count, failed_count;
    const char *why; /* of the first consumer that failed; static, or of request.own_texts */
    uint32_t lease_ms;
    uint64_t expires;
    bool later;            /* what the offer lists at first is not ready yet */
    bool complete;         /* nothing more will be appended, */
    bool last;             /* and all pages are ready */
    struct segment *ready; /* in the order in which they became ready */
    uint32_t ready_count, ready_capacity;
    struct readiness readiness;
    struct awaited *awaited; /* appends whose events have not completed */
    uint8_t *aux;
    size_t aux_size;
    struct source *sources;
    struct announce *announces;
    struct sampled sampled;
    struct served_read *read;  /* it stands for a read of served pages (serve.h); NULL: a client has made it */
    struct offer *prev, *next; /* exchange.offers */
};

struct offer *offer_create(struct node *node, struct session *session, struct pool_ref *pool,
                           const struct message_offer *message);
void offer_begin(struct offer *offer, const struct message_offer *message); /* called with the last of its messages */
/* An offer of pages that the pool serves, for one reader, until its deadline (ms): no client hears of it. NULL: *reason
 * says why. Takes `read` on success. */
struct offer *offer_for_read(struct pool_ref *pool, const struct name *reader, const struct page_set *pages,
                             uint32_t deadline_ms, struct served_read *read, enum strait_reason *reason);
/* `why` (static, or kept with the request) says more. */
enum strait_reason offer_append(struct offer *offer, const struct message_append *message, const char **why);

/* The sink among those that the offer knows; it is added if need be. NULL: no memory. */
struct announce *offer_sink(struct offer *offer, const struct name *sink);
void offer_announce(struct offer *offer, struct announce *announce); /* to the peer, if it is up */
void offer_fail(struct offer *offer, enum strait_reason reason, const char *text);
void offer_expire(struct offer *offer); /* its lease has run out */
/* Somebody asks for it, and says how many will (0: it does not say). The first counts. */
void offer_count(struct offer *offer, uint32_t consumers);
/* `why`: static, or kept with the request. */
void offer_consumer_ended(struct offer *offer, enum strait_reason reason, const char *why);
void offer_send_verdict(struct offer *offer); /* sends the client the verdict */

#endif
