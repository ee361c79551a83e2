#ifndef STRAIT_DAEMON_EXCHANGE_H
#define STRAIT_DAEMON_EXCHANGE_H

#include <uthash.h>

#include "daemon/leg_queue.h"
#include "daemon/memory/pool.h"
#include "daemon/peers/peer.h"
#include "daemon/policy.h"
#include "daemon/protocol/coverage.h"
#include "daemon/protocol/leg.h"
#include "daemon/protocol/segments.h"
#include "daemon/receive.h"

/* The offers and expectations of this node's clients, the legs that pair them, and requests that wait for their other
 * side.
 *
 *   session --> expectation --> sink leg(s)   ~~~ peer ~~~   source leg(s) <-- offer <-- session
 *
 * The two halves of a leg are in sink.h and source.h.
 *
 * Objects are freed only at the end of the loop's turn (exchange_turn), so that pointers stay valid while actions are
 * carried out. */

struct node;
struct session;
struct expectation;
struct offer;
struct sink;
struct sink_port;
struct source;

/* (pool id, key): bytes beyond the key are 0. */
struct name {
    struct pool_id pool;
    uint8_t size;
    uint8_t key[STRAIT_KEY_BYTES_MAX];
};

/* A registered pool and its users. */
struct pool_ref {
    struct node *node;
    struct pool *pool;
    uint32_t uid;            /* the client's */
    struct session *session; /* NULL: the client is gone */
    uint32_t uses;           /* offers and expectations that are not drained */
    bool removing;
    struct policy_pool policy;
    UT_hash_handle hh; /* exchange.pools, by pool->id */
    struct pool_id id;
};

struct request;

/* What a leg reports to the request that it serves, while it carries out the actions of a step. */
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
    const char *text;            /* says more about a failure; static */
    bool begun;                  /* all of its initial pages have been received */
    bool decided, told, drained; /* the verdict is set; the client was told; nothing touches its pages any more */
    uint64_t began;              /* uv_hrtime */
    UT_hash_handle by_name;
    UT_hash_handle by_transfer; /* session->requests */
    bool is_offer;
    uint64_t charged; /* daemon memory taken for it, charged to its client */
    bool over;        /* in exchange.over: a candidate for being freed */
    struct request *over_next;
    struct request *verdict_prev, *verdict_next; /* exchange.verdicts */
};

struct expectation {
    struct request request; /* first */
    struct epoch epoch;
    uint32_t sources;
    uint64_t deadline; /* loop's clock, ms */
    struct wire_span *wanted;
    uint32_t wanted_count;
    struct coverage *coverage;
    struct sink *sinks; /* utlist, by `next` */
    struct wait *waits; /* waits of the client's streams */
    uint32_t sink_count, complete_count;
    uint8_t *aux;
    size_t aux_size;
    uint64_t raw_bytes, wire_bytes;
    struct expectation *prev, *next; /* exchange.expectations */
};

/* An offer that looks for its expectation instead of waiting for a REQUEST. */
struct announce {
    char address[MESSAGE_ADDRESS_MAX + 1]; /* "": under this daemon */
    struct name sink;
    struct peer *told; /* the peer to which ANNOUNCE was sent */
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

/* Key of a source leg: the connection that asked for it, and the id chosen there. */
struct source_key {
    struct peer *peer;
    uint64_t id;
};

/* The grants that come with a REQUEST: first, first + 1, ... */
struct open_grants {
    uint64_t first;
    uint32_t count;
    const uint32_t *slots;
};

/* A REQUEST that came before its offer, or an ANNOUNCE before its expectation. */
struct parked_key {
    struct name wants; /* the offer, or the expectation */
    bool is_request;
};
struct parked {
    struct parked_key key;
    struct peer *peer;    /* NULL: local */
    struct sink *sink;    /* local request */
    struct offer *offer;  /* local announce */
    struct name from;     /* the other side's name: that of the expectation, or of the offer */
    struct source_key at; /* request of a peer: its leg */
    uint64_t offer_id, geometry;
    struct epoch epoch;
    struct wire_span *spans;
    uint32_t span_count;
    bool more; /* the spans are not complete yet */
    uint64_t expires;
    struct parked *prev, *next;
    struct parked *aside; /* temporary list while one of the same name is looked up */
    UT_hash_handle by_name, by_leg;
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

/* A notification that waits for the connection to its peer. */
struct note {
    char address[MESSAGE_ADDRESS_MAX + 1];
    struct pool_id pool;
    size_t key_size, size;
    uint64_t expires;
    struct note *next;
    uint8_t bytes[]; /* key, then data */
};

struct exchange {
    struct note *notes; /* oldest first */
    uint32_t note_count;
    struct pool_ref *pools;
    struct request *expectations_by_name, *offers_by_name;
    struct expectation *expectations;
    struct offer *offers;
    struct sink *sinks;     /* hash */
    struct source *sources; /* hash */
    struct sink *wanting;   /* rotating list: the next to get a grant */
    uint32_t wanting_count;
    uint32_t wanting_pages;  /* those of them that need no slot */
    struct source *encoding; /* rotating list: the next to encode */
    uint32_t encoding_count;
    struct sink *closed_sinks; /* freed at the end of the turn, */
    struct source *closed_sources;
    struct request *over;  /* and so are these, unless something still refers to them */
    struct parked *parked; /* oldest first */
    struct parked *parked_by_name, *parked_by_leg;
    uint32_t parked_count;
    struct tombstone *tombstones; /* hash, oldest first */
    struct leg_queue events;
    struct request *verdicts; /* set, but not told yet: their legs have to know them first */
    uint32_t encoding_jobs;
    uint64_t next_leg, next_offer;
    uint64_t redialled_at; /* loop's clock */
};

/* ---- exchange.c: begin, turn, end -------------------------------------------------------------------------------- */

void exchange_init(struct node *node);
void exchange_tick(struct node *node);       /* deadlines, leases, redials; every 10 ms while something lives */
void exchange_redial(struct node *node);     /* legs that wait for a peer ask again */
void exchange_turn(struct node *node);       /* events, grants, encodes: before the loop blocks */
bool exchange_idle(const struct node *node); /* no offer, no expectation, nothing parked */
void exchange_fail_all(struct node *node, enum strait_reason reason);
void exchange_fini(struct node *node); /* frees what is parked and remembered; no request is live any more */
extern const struct peers_events exchange_peers_events; /* owner: the node */

/* Sends a notification now, or when its peer is up. */
void exchange_note(struct node *node, const char *address, const struct message *note);
void exchange_send_notes(struct node *node); /* sends those whose peer is up now */

/* Counts jobs that write straight into a peer's arena: its link must stay mapped until they have ended. */
void peer_writer_begin(struct peer *peer);
void peer_writer_end(struct peer *peer);

/* State of pinning a peer's arena, so that GPUs can write to it. */
enum pin_state { PIN_NONE, PIN_BUSY, PIN_DONE, PIN_FAILED };

/* The exchange's data of a peer (peer->owner), from `up` to `quiet`. */
struct peer_use {
    struct node *node;
    uint32_t writers; /* jobs that write to its arena */
    uint32_t parked, parked_spans;
    uint32_t slots[RECEIVE_ARENAS_MAX]; /* per receive arena: how many of its slots the peer may write to */
    struct peer_gpu_arena *arenas;      /* reach.c: arenas of its GPUs, which ours may use */
    struct reached *reached;            /* which of our GPUs its pools reach */
    bool down;
    enum pin_state pin;
    void *pinned; /* its arena as mapped here; NULL: not pinned */
    struct policy policy;
};

/* The allowed wires that go straight from GPU to GPU, best first. */
#define GPU_WIRES_MAX 3u /* WIRE_PEER, and the links */
struct gpu_wires {
    enum gpu_path list[GPU_WIRES_MAX];
    uint32_t count;
    bool measured; /* links are used only where they are faster than the way by the host */
};

/* Wires that are links between two GPUs. */
static inline bool way_is_link(struct chunk_way way)
{
    return way.gpus && way.wire != WIRE_PEER;
}
/* Of a wire between GPUs. */
static inline enum message_link_by wire_link(enum gpu_path wire)
{
    return wire == WIRE_NCCL ? LINK_BY_NCCL : LINK_BY_UCX;
}
static inline enum gpu_path link_wire(enum message_link_by by)
{
    return by == LINK_BY_NCCL ? WIRE_NCCL : WIRE_UCX;
}

/* ---- pin.c ------------------------------------------------------------------------------------------------------- */

/* Can GPUs write to the peer's arena? The first call starts pinning it. */
enum pin_state pin_peer(struct node *node, struct peer *peer);
/* Called before the peer's link is quit, when nothing writes any more. False: not yet; exchange_writer_done follows. */
bool pin_release(struct node *node, struct peer *peer);

void name_set(struct name *name, const struct pool_id *pool, struct view key);
/* Why the latest request of that name failed; NONE: it did not fail, or is forgotten. */
enum strait_reason tombstone_reason(struct node *node, const struct name *name, bool is_offer);
void tombstone_add(struct node *node, const struct request *request);
void tombstone_remove(struct node *node, const struct name *name, bool is_offer);
void tombstone_free(struct node *node, struct tombstone *stone);

/* ---- request.c --------------------------------------------------------------------------------------------------- */

/* Charges memory taken for a request to its client: false when the client has used up its share. */
bool request_charge(struct request *request, uint64_t bytes);
void request_wake_gpus(
    const struct request *request);         /* its pages are about to be coded: wakes the GPUs that hold them */
void request_over(struct request *request); /* part of it has ended: it is freed at the end of the turn if possible */
/* The text of a failure: `text`, or if there is none, what a failed device of the pool reports. It may point into
 * *state. */
const char *request_why(const struct request *request, struct device_state *state);
/* Sets the verdict; the exchange tells it once the legs have taken the events that follow. */
void request_decide(struct request *request, enum strait_state state, enum strait_reason reason, const char *text);
/* Some of its pages are in memory of a GPU that has failed. */
bool request_is_stranded(const struct request *request);
/* Marks the pages as used in the pool and adds them to the request. NONE, BUSY, GEOMETRY (no such page, or an index
 * twice), NO_MEMORY, LOCAL (stranded). */
enum strait_reason request_add_pages(struct request *request, const struct wire_page_list *list);
void request_state(struct request *request, enum strait_state state); /* moves forward, and tells the client */
void request_release_pool(struct request *request);                   /* drained: its pages are free */

/* ---- expectation.c ----------------------------------------------------------------------------------------------- */

/* Creates an expectation as the client's message describes it, still without pages. */
struct expectation *expectation_create(struct node *node, struct session *session, struct pool_ref *pool,
                                       const struct message_expect *message);
void expectation_begin(struct expectation *expectation); /* its list of pages is complete */
struct sink *expectation_find_leg(const struct expectation *expectation, const struct name *source);
/* Adds the leg to one more source. NULL: no memory, and the expectation has failed. */
struct sink *expectation_add_leg(struct expectation *expectation, const struct name *source, const char *address,
                                 const struct sink_port *port);
void expectation_fail(struct expectation *expectation, enum strait_reason reason, const char *text);
void expectation_tell(struct expectation *expectation); /* sends the client the verdict */

/* ---- wait.c ------------------------------------------------------------------------------------------------------ */

/* Releases streams that wait for these layers, or for the verdict of the expectation. */
void waits_layers(struct expectation *expectation, const int32_t *layers, uint32_t count);
void waits_decided(struct expectation *expectation);

/* ---- offer.c ----------------------------------------------------------------------------------------------------- */

struct offer *offer_create(struct node *node, struct session *session, struct pool_ref *pool,
                           const struct message_offer *message);
void offer_begin(struct offer *offer, const struct message_offer *message); /* called with the last of its messages */
enum strait_reason offer_append(struct offer *offer, const struct message_append *message);

void offer_announce(struct offer *offer, struct announce *announce); /* tells the peer if it is up */
void offer_fail(struct offer *offer, enum strait_reason reason, const char *text);
void offer_consumer_ended(struct offer *offer, enum strait_reason reason);
void offer_tell(struct offer *offer); /* sends the client the verdict */

/* ---- parked.c ---------------------------------------------------------------------------------------------------- */

/* Adds a leg to one source: at an address, or under this daemon. */
void expectation_start(struct expectation *expectation, const struct name *source, const char *address, bool local);
/* Looks for one more expectation: at an address, or under this daemon. */
void offer_start(struct offer *offer, const struct name *sink, const char *address, bool local);
struct parked *parked_find_leg(struct node *node, struct peer *peer, uint64_t leg);
void parked_remove(struct node *node, struct parked *parked); /* and frees it */
void parked_forget_peer(struct node *node, struct peer *peer);
void parked_forget_sink(struct node *node, struct sink *sink);
void parked_forget_offer(struct node *node, struct offer *offer);
void parked_meet_offer(struct offer *offer);
void parked_meet_expectation(struct expectation *expectation);

/* Shared by the exchange's files that deal with peers. */

/* The source leg that a message of this peer is about; NULL: there is none, or it has another epoch. */
struct source *exchange_find_source(struct node *node, struct peer *peer, uint64_t leg, const struct epoch *epoch);

/* match.c: the two messages that look for the other side of a leg. */
bool exchange_request(struct node *node, struct peer *peer, const struct message_request *r);
bool exchange_announce(struct node *node, struct peer *peer, const struct message_announce *a);

/* Tells the peer that a leg has failed, or never began. */
void exchange_send_end(struct peer *peer, uint64_t leg, const struct epoch *epoch, bool from_sink,
                       enum strait_reason reason);

/* Gives a grant back that no leg of ours holds. */
void exchange_send_released(struct peer *peer, const struct message_grant_id *id);

#endif
