/* Samples of what a running node moves, for `strait calibrate --from-node`: the exponents of values in pages that are
 * ready are counted by class, and the client gets the counts, never the pages.
 *
 * A page is looked at only while somebody has said that it is written and will not change: it is ready in an offer that
 * has no verdict yet, or it is served. Pages of expectations are not, even when they have landed: with DONE they are
 * their owner's again. Nor is what other pages of a pool hold. Whoever takes such a promise back (a verdict, a fence,
 * an expectation of a served page) calls sampling_over or sampling_stop first, which wait for the few microseconds that
 * a worker may be copying a part of a page: so what is told to the client afterwards needs no wait of its own.
 *
 * One sample is taken at a time. It is counted in small orders on a worker, one after the other, with rests nine times
 * as long between them. Pages in memory of GPUs are passed over. */
#ifndef STRAIT_DAEMON_SAMPLING_H
#define STRAIT_DAEMON_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

struct count;
struct message_sample;
struct node;
struct offer;
struct pool_ref;
struct sampling;
struct sampling_target;
struct session;
struct wire_page_list;

/* What is sampled of an offer, or of the pages that a pool serves. Begins as zeroes. */
struct sampled {
    struct sampling_target *targets; /* not looked at yet */
    uint64_t order;                  /* the latest order that has pages of it */
};

/* The node's part. Begins as zeroes. */
struct sampler {
    struct sampling *sampling; /* NULL: no sample is being taken */
    uint64_t samplings;        /* number of the latest */
    struct count *count;       /* NULL: not made yet */
    uint64_t order;            /* number of the latest one */
    bool counting;             /* it is with a worker, */
    bool dropped;              /* and its sample has ended meanwhile */
};

/* From a client: begins a sample, with what is offered. The answer comes when the sample is complete. False: it is
 * refused, and the client was told. */
bool sampling_begin(struct session *session, const struct message_sample *message);
/* May the session's client know what the values of this pool are like? Those of others are for root and the daemon's
 * own user. */
bool sampling_may_see(const struct session *session, const struct pool_ref *pool);

/* The segments of an offer from `from` on are ready. */
void sampling_ready(struct offer *offer, uint32_t from);
/* Pages of a pool are served: those of a list, or all that have their bit in `served` of the group. The bits are
 * borrowed until sampling_over. */
void sampling_served(struct pool_ref *pool, const uint64_t *served, const struct wire_page_list *list);
void sampling_served_all(struct pool_ref *pool, const uint64_t *served, uint32_t group);
/* No page of it is being looked at once this has returned; sampling_over: nor will be. */
void sampling_stop(struct node *node, const struct sampled *sampled);
void sampling_over(struct node *node, struct sampled *sampled);

void sampling_tick(struct node *node);
void sampling_session_end(struct session *session);    /* its sample is dropped */
void sampling_end(struct node *node, const char *why); /* the client gets no sample, but the reason */
void sampling_fini(struct node *node);                 /* nothing is counting any more */

#endif
