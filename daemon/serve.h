/* Pages that peers may read without an offer of their owner (strait_pool_serve): which they are, the reads that are
 * under way, and the fences that wait for those. A read has an offer made for it, so that legs, links and verdicts are
 * those of any transfer. */
#ifndef STRAIT_DAEMON_SERVE_H
#define STRAIT_DAEMON_SERVE_H

#include "daemon/offer.h"
#include "daemon/session.h"

struct fence_wait;

/* A read that is under way: the daemon's part of it that is no ordinary offer's. */
struct served_read {
    struct serving *serving;
    struct session *session; /* of the pool; it ends after its reads have drained. NULL: this read has */
    struct offer *offer;
    struct fence_wait *waits; /* fences that wait for it */
    struct served_read *prev, *next;
};

/* From the client that owns the pool. False: it broke the protocol. */
bool serve_message(struct session *session, const struct message_serve *message);

/* The pool of that tenant and id, if its client lives and has ever served pages of it; NULL. */
struct pool_ref *serve_find(struct node *node, const struct name *wanted);
/* Begins a read of these pages by that reader, for at most deadline_ms. NULL: *reason says why. */
struct offer *serve_begin(struct pool_ref *pool, const struct name *reader, const struct page_set *pages,
                          uint32_t deadline_ms, enum strait_reason *reason);
/* Nothing touches the offer's pages any more; it need not be that of a read, nor is this called only once. */
void serve_drained(struct offer *offer);

void serve_expire(struct node *node, uint64_t now); /* the loop's clock: of fences */
/* Ends all reads of the pool for good: it is removed, or (LOCAL) its client has gone. */
void serve_end(struct pool_ref *pool, enum strait_reason reason);
/* Shows the pages that the pool serves to the sample that has begun. */
void serve_sample(struct pool_ref *pool);

#endif
