/* The common part of offers and expectations: a request as one client sees it, its pages, its verdict, and how requests
 * of its name ended before. */
#ifndef STRAIT_DAEMON_REQUEST_H
#define STRAIT_DAEMON_REQUEST_H

#include <uthash.h>

#include "daemon/device/devices.h"
#include "daemon/protocol/leg.h"
#include "daemon/protocol/page_set.h"
#include "daemon/session.h"

struct request;

/* (pool id, key): bytes beyond the key are 0. */
struct name {
    struct pool_id pool;
    uint8_t size;
    uint8_t key[STRAIT_KEY_BYTES_MAX];
};

/* Callbacks of a leg to the request that it serves, made while the actions of a step are carried out. */
struct leg_callbacks {
    void (*layers)(struct request *request, const int32_t *layers, uint32_t count); /* sink: they have landed */
    void (*complete)(struct request *request);                                      /* sink */
    void (*verdict)(struct request *request, enum strait_reason reason, const char *text);
    void (*drained)(struct request *request);
};

/* The common part of an offer and an expectation: a request as one client sees it. */
struct request {
    struct node *node;
    const struct leg_callbacks *callbacks; /* of its legs */
    struct session *session;               /* NULL: the client is gone, or has released the request */
    struct pool_ref *pool;                 /* NULL once drained */
    struct name name;
    uint64_t transfer; /* number given by the client */
    struct page_set pages;
    enum strait_state state;
    enum strait_reason reason;
    const char *text;                /* says more about a failure; static */
    bool begun;                      /* all of its initial pages have been received */
    bool decided, notified, drained; /* the verdict is set; the client knows it; nothing touches its pages any more */
    uint64_t began;                  /* uv_hrtime */
    UT_hash_handle by_name;
    UT_hash_handle by_transfer; /* session->requests */
    bool is_offer;
    uint64_t charged; /* daemon memory taken for it, charged to its client */
    bool to_reap;     /* in exchange.over: a candidate for being freed */
    struct request *reap_next;
    struct request *verdict_prev, *verdict_next; /* exchange.verdicts */
};

/* Remembers how a request of that name ended. */
struct tombstone_key {
    struct name name;
    bool is_offer;
};
struct tombstone {
    struct tombstone_key key;
    enum strait_reason reason; /* NONE: DONE */
    uint64_t ended;            /* loop's clock */
    UT_hash_handle hh;
};

/* Bytes beyond the key become 0. */
void name_set(struct name *name, const struct pool_id *pool, struct view key);
/* Why the latest request of that name failed; NONE: it did not fail, or is forgotten. */
enum strait_reason tombstone_reason(struct node *node, const struct name *name, bool is_offer);
void tombstone_remove(struct node *node, const struct name *name, bool is_offer);
void tombstone_free(struct node *node, struct tombstone *stone);

/* Charges memory taken for a request to its client: false when the client has used up its share. */
bool request_charge(struct request *request, uint64_t bytes);
void request_wake_gpus(
    const struct request *request);         /* its pages are about to be coded: wakes the GPUs that hold them */
void request_reap(struct request *request); /* part of it has ended: it is freed at the end of the turn if possible */
/* The text of a failure: `text`, or if there is none, what a failed device of the pool reports. It may point into
 * *state. */
const char *request_why(const struct request *request, struct device_state *state);
/* Sets the verdict; the exchange sends it once the legs have taken the events that follow. */
void request_decide(struct request *request, enum strait_state state, enum strait_reason reason, const char *text);
/* Some of its pages are in memory of a GPU that has failed. */
bool request_on_failed_gpu(const struct request *request);
/* Marks the pages as used in the pool and adds them to the request. NONE, BUSY, GEOMETRY (no such page, or an index
 * twice), NO_MEMORY, LOCAL (on a failed GPU). */
enum strait_reason request_add_pages(struct request *request, const struct wire_page_list *list);
void request_state(struct request *request, enum strait_state state); /* moves forward, and notifies the client */
void request_drain(struct request *request);                          /* nothing touches its pages any more */
void request_send_verdict(struct request *request, const char *text, struct view aux);

#endif
