/* What a peer or a client of this node has asked for before its other side came: requests without their offer,
 * announcements without their expectation, reads without their pool, and what is known of others that have ended. */
#ifndef STRAIT_DAEMON_PENDING_H
#define STRAIT_DAEMON_PENDING_H

#include "daemon/offer.h"
#include "daemon/source.h"

/* A REQUEST that came before its offer, or an ANNOUNCE before its expectation; or that such a one has ended. */
struct pending_key {
    struct name wants; /* the offer, or the expectation; of a read only the tenant and the pool count */
    bool is_request, is_read;
};
struct pending {
    struct pending_key key;
    struct peer *peer;    /* NULL: local */
    struct sink *sink;    /* local request */
    struct offer *offer;  /* local announce */
    struct name from;     /* the other side's name: that of the expectation, or of the offer */
    struct source_key at; /* request of a peer: its leg */
    uint64_t geometry;
    struct epoch epoch;
    struct wire_span *spans;
    uint32_t span_count;
    struct page_set pages;        /* of a peer's read, in place of spans */
    uint32_t charged;             /* of peer_use.pending_spans */
    bool more;                    /* the spans, or pages, are not complete yet */
    bool on_gpu;                  /* the sink's pool has pages on a GPU */
    uint32_t consumers;           /* of the offer, as the sink says; 0: it does not */
    bool asked, undescribed;      /* the peer has been asked how the sink's pool is laid out; and has not answered */
    enum strait_reason withdrawn; /* why it has ended, for its other side to hear when it comes; NONE: it waits */
    uint64_t expires;
    uint64_t deadline; /* of a peer's read: its end. It waits for its pool until `expires` */
    uint64_t came;     /* uv_hrtime */
    struct pending *prev, *next;
    struct pending *aside; /* temporary list while one of the same name is looked up */
    UT_hash_handle by_name, by_leg;
};

#define WITHDRAWN_MAX 4096u  /* of those that have ended, kept at a time, */
#define WITHDRAWN_MS  60000u /* for this long */

/* A new one of this peer, not added yet. NULL: no memory, or the peer has too many. */
struct pending *pending_new(struct node *node, struct peer *peer);
void pending_add(struct node *node, struct pending *pending);
void pending_remove(struct node *node, struct pending *pending);

struct pending *pending_find_leg(struct node *node, struct peer *peer, uint64_t leg);
/* The next entry for a request. One at a time: handling it may add to the list or remove from it. */
struct pending *pending_find(struct node *node, bool request, const struct request *side);

/* The same pair is tried again: that it had ended before does not matter any more. */
void pending_forget_withdrawn(struct node *node, const struct pending_key *key, const struct name *from);
/* Forgets the oldest that has ended, of this peer or (NULL) of anybody. False: there is none to forget. */
bool pending_make_room(struct node *node, const struct peer *peer);
/* A peer's REQUEST whose deadline has passed becomes one that has ended, as its offer may still come. The END that says
 * so has no names: once the REQUEST is forgotten, it means nothing. False: it need not be kept. */
bool pending_keep_expired(struct node *node, struct pending *pending, uint64_t now);

void pending_forget_peer(struct node *node, struct peer *peer);
void pending_forget_sink(struct node *node, struct sink *sink);
void pending_forget_offer(struct node *node, struct offer *offer);
void pending_fini(struct node *node);

#endif
