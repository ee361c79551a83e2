/* The common part of offers and expectations: a request as one client sees it, its pages, its verdict, and how requests
 * of its name ended before. */
#ifndef STRAIT_DAEMON_REQUEST_H
#define STRAIT_DAEMON_REQUEST_H

#include <uthash.h>

#include "daemon/base/metrics.h"
#include "daemon/device/devices.h"
#include "daemon/protocol/leg.h"
#include "daemon/protocol/page_set.h"
#include "daemon/session.h"
#include "daemon/span.h"

struct request;

/* (tenant, pool id, key): bytes beyond the key and the tenant's name are 0. What is looked up by name is found within
 * the tenant only. */
struct name {
    char tenant[TENANT_NAME_MAX]; /* as on the wire: none for "default" */
    struct pool_id pool;
    uint8_t size;
    uint8_t key[STRAIT_KEY_BYTES_MAX];
};

/* Callbacks of a leg to the request that it serves, made while the actions of a step are carried out. */
struct leg_callbacks {
    void (*landed)(struct request *request, const struct piece *piece);             /* sink: in the request's pages */
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
    struct tenant *tenant;
    struct name name;
    uint64_t transfer; /* number given by the client */
    struct page_set pages;
    enum strait_state state;
    enum strait_reason reason;
    const char *text;           /* says more about a failure; static, or of own_texts */
    struct own_text *own_texts; /* request_text; utlist */
    uint32_t own_text_count;
    bool begun;                      /* all of its initial pages have been received */
    bool decided, notified, drained; /* the verdict is set; the client knows it; nothing touches its pages any more */
    bool untold;                     /* in session->untold: the client is to be told `state` */
    struct request *untold_prev, *untold_next;
    struct timeline timeline;
    struct span span;
    UT_hash_handle by_name;
    UT_hash_handle by_transfer; /* session->requests */
    bool is_offer;
    bool nameless;                      /* an offer made for a read: nobody asks for it by name */
    uint64_t raw_bytes, wire_bytes;     /* that have moved, before coding, and as they travelled */
    char peer[MESSAGE_ADDRESS_MAX + 1]; /* of the first daemon that it moves pages with; "": none, or this one */
    uint64_t charged;                   /* daemon memory taken for it, charged to its client */
    bool to_reap;                       /* in exchange.over: a candidate for being freed */
    struct request *reap_next;
    struct request *verdict_prev, *verdict_next; /* exchange.verdicts */
};

/* A request of a client that is not in its session any more. */
struct failed_request {
    uint64_t transfer;
    struct name name;
    bool is_offer;
    enum strait_reason reason; /* NONE: this one is empty */
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

void name_set(struct name *name, struct view tenant, const struct pool_id *pool, struct view key);
/* The pool of that tenant and id, while its client lives; NULL. */
struct pool_ref *name_pool(struct node *node, const struct name *name);
/* Why the latest request of that name failed; NONE: it did not fail, or is forgotten. */
enum strait_reason tombstone_reason(struct node *node, const struct name *name, bool is_offer);
/* Remembers that the latest request of that name failed, or was not admitted; NONE: it did not fail. */
void tombstone_set(struct node *node, const struct name *name, bool is_offer, enum strait_reason reason);
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
/* Writes a text that is kept with the request, as each of its legs may fail with one; "" without memory, or if there
 * are many already. */
const char *request_text(struct request *request, const char *format, ...) __attribute__((format(printf, 2, 3)));
void request_free_texts(struct request *request);
/* Why the request has not met the other side yet, which it looks for at this address ("": under this daemon); kept with
 * it, as by request_text. `asked`: that daemon has been asked, or announced to. */
const char *request_waits(struct request *request, const char *address, bool asked);
/* Sets the verdict; the exchange sends it once the legs have taken the events that follow. */
void request_decide(struct request *request, enum strait_state state, enum strait_reason reason, const char *text);
/* Some of its pages are in memory of a GPU that has failed. */
bool request_on_failed_gpu(const struct request *request);
/* Marks the pages as used in the pool and adds them to the request. NONE, BUSY, GEOMETRY (no such page, or an index or
 * a page twice), NO_MEMORY, LOCAL (on a failed GPU); `why` (static, or kept with the request) says more. */
enum strait_reason request_add_pages(struct request *request, const struct wire_page_list *list, const char **why);
/* Moves forward. The client is told later in the turn, and of a state that did not last until then not at all. */
void request_state(struct request *request, enum strait_state state);
void request_tell_states(struct session *session); /* queues messages about all requests in session->untold */
void request_untell(struct request *request);      /* takes it out of session->untold; it need not be there */
void request_met(struct request *request, const char *address); /* the other side is at that address */
void request_drain(struct request *request);                    /* nothing touches its pages any more */
void requests_told(struct node *node); /* verdicts are written: records the phases of exchange.told */
void request_send_verdict(struct request *request, const char *text, struct view aux);

#endif
