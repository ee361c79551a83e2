/* The offers and expectations of this node's clients, the legs that pair them, and requests that wait for their other
 * side.
 *
 *   client --> expectation --> sink leg(s)   ~~~ peer ~~~   source leg(s) <-- offer <-- client
 *
 * Objects are freed only before the loop blocks (exchange_turn), so that pointers stay valid while actions are carried
 * out. */
#ifndef STRAIT_DAEMON_EXCHANGE_H
#define STRAIT_DAEMON_EXCHANGE_H

#include "daemon/base/metrics.h"
#include "daemon/protocol/leg.h"
#include "daemon/peers/peer.h"
#include "daemon/policy.h"
#include "daemon/memory/arena.h"
#include "daemon/descriptions.h"
#include "daemon/gpu_links.h"
#include "daemon/notes.h"
#include "daemon/peer_codebooks.h"
#include "daemon/peer_figures.h"

struct expectation;
struct offer;
struct pending;
struct pool_ref;
struct request;
struct sink;
struct source;
struct tombstone;
struct withdrawal_entry;

#define TOLD_MAX 64u

struct exchange {
    struct notes notes;
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
    struct request *to_reap; /* and so are these, unless something still refers to them */
    struct pending *pending; /* oldest first */
    struct pending *pending_by_name, *pending_by_leg;
    uint32_t pending_count;
    uint32_t withdrawn_count;             /* of the pending ones: only kept for their other side to find */
    struct tombstone *tombstones;         /* hash, oldest first */
    struct withdrawal_entry *withdrawals; /* oldest first */
    uint32_t withdrawal_count;
    bool withdrew; /* there is a new one since they were last looked at */
    struct leg_queue events;
    struct request *verdicts;       /* set, but not sent yet: their legs have to know them first */
    struct timeline told[TOLD_MAX]; /* of expectations whose DONE is queued for its client in this turn */
    uint32_t told_count;
    uint32_t encoding_jobs;
    uint32_t down_peers; /* their links are to be closed */
    bool stepped;        /* a leg has made a step, or a client has announced one, since this was cleared */
    bool gpu_stepped;    /* a leg between GPUs has made a step since this was cleared */
    uint64_t next_leg;
    uint64_t redialled_at; /* loop's clock */
};

/* The exchange's data of a peer (peer->owner), from `up` to `quiet`. */
struct peer_use {
    struct node *node;
    struct peer_figures *figures;
    uint32_t pending, pending_spans;
    uint32_t reads, read_pages;         /* of pools that this node serves */
    uint32_t slots[RECEIVE_ARENAS_MAX]; /* per receive arena: how many of its slots the peer may write to */
    uint64_t flagged;                   /* chunks that flags have told of, and no message so far */
    struct peer_gpu_arena *arenas;      /* gpu_path.c: arenas of its GPUs, which ours may use */
    struct pool_paths *pool_paths;      /* which of our GPUs its pools reach */
    bool down, quit;                    /* its link is to be closed; closing */
    bool superseded;                    /* the same daemon has made another connection since */
    enum pin_state pin;
    void *pinned; /* its arena as mapped here; NULL: not pinned */
    struct policy policy;
    struct peer_codebooks codebooks;
    struct descriptions descriptions; /* of its pools */
    struct note_answers note_answers; /* for this peer */
};

/* Where what is carried from and to the peer is counted; NULL: nowhere any more. */
static inline struct peer_figures *peer_figures_of(const struct peer *peer)
{
    const struct peer_use *use = peer != NULL ? peer->owner : NULL;
    return use != NULL ? use->figures : NULL;
}

/* ---- exchange.c: begin, turn, end -------------------------------------------------------------------------------- */

void exchange_init(struct node *node);
void exchange_tick(struct node *node);       /* deadlines, leases, redials; every 10 ms while something lives */
void exchange_turn(struct node *node);       /* events, grants, encodes: before the loop blocks */
bool exchange_idle(const struct node *node); /* no offer, no expectation, nothing pending */
/* Fails with LOCAL what waits for its other side; what moves goes on. */
void exchange_fail_waiting(struct node *node, const char *why);
void exchange_drain(struct node *node); /* ends what waits for requests that can no longer come */
void exchange_fail_all(struct node *node, enum strait_reason reason);
void exchange_fail_on_failed_gpus(struct node *node); /* requests with pages on GPUs that have failed */
void exchange_fini(struct node *node); /* frees what is pending and remembered; no request is live any more */
extern const struct peers_events exchange_peers_events; /* owner: the node */

#endif
