/* The sink's side of a request: which pages are expected, which have landed, and the verdict over all its legs. */
#ifndef STRAIT_DAEMON_EXPECTATION_H
#define STRAIT_DAEMON_EXPECTATION_H

#include "daemon/protocol/coverage.h"
#include "daemon/request.h"

struct part;
struct sink;
struct sink_port;

struct expectation {
    struct request request; /* first */
    struct epoch epoch;
    uint32_t sources;
    uint32_t tokens;    /* of the request; 0: not said */
    bool begins_within; /* the first page of each group may lack tokens at its beginning */
    bool tells_pages;   /* the client is told of each page that has landed */
    uint64_t deadline;  /* loop's clock, ms */
    struct wire_span *wanted;
    uint32_t wanted_count;
    struct coverage *coverage;
    struct part *parts;     /* from pools of other layouts; utlist, by `next` */
    uint32_t *left;         /* with parts: bytes that each of its units lacks */
    struct brought **begun; /* with parts: of each of its pool's regions, what they have begun to bring */
    bool has_pages;         /* a source of the same layout has announced some: there can be no parts */
    bool is_read;           /* its source is no offer, but what a pool serves: these pages of it, */
    struct page_set served; /* with the expectation's own logical indexes */
    struct sink *sinks;     /* utlist, by `next` */
    struct wait *waits;     /* waits of the client's streams */
    uint32_t sink_count, complete_count;
    uint8_t *aux;
    size_t aux_size;
    struct expectation *prev, *next; /* exchange.expectations */
};

/* Creates an expectation as the client's message describes it, still without pages. */
struct expectation *expectation_create(struct node *node, struct session *session, struct pool_ref *pool,
                                       const struct message_expect *message);
void expectation_begin(struct expectation *expectation); /* its list of pages is complete */
/* More of the pages that a read names in the peer's pool. False: the expectation has failed. */
bool expectation_read(struct expectation *expectation, const struct wire_page_list *lists, uint32_t count);
struct sink *expectation_find_leg(const struct expectation *expectation, const struct name *source);
/* Adds the leg to one more source. NULL: no memory, and the expectation has failed. */
struct sink *expectation_add_leg(struct expectation *expectation, const struct name *source, const char *address,
                                 const struct sink_port *port);
void expectation_fail(struct expectation *expectation, enum strait_reason reason, const char *text);
void expectation_expire(struct expectation *expectation);       /* its deadline has passed */
void expectation_send_verdict(struct expectation *expectation); /* sends the client the verdict */

/* A stream of the client waits for a layer or for the verdict, by a word that is raised then; at once if there is
 * nothing left to wait for. */
void expectation_wait(struct expectation *expectation, const struct message_wait *message);

#endif
