/* The transfer protocol as two pure state machines. A *leg* is one pair of an offer and an expectation; the source's
 * daemon and the sink's daemon each run one half of it. No clock, no memory, no I/O: events go in, actions come out.
 * Both halves are plain data without pointers (a copy is a snapshot, equal bytes are equal states), so that the model
 * test can explore them.
 *
 * The sink numbers the units (one page of one region) that the source announces as ready, grants slots of its receive
 * arena for ranges of them, receives a chunk for each grant, decodes it and, when all units of all legs of its
 * expectation are in place, says DONE. The source encodes a chunk for each grant and sends it.
 *
 *   sink    START -> REQUEST ... SEGMENTS -> GRANT ... chunk -> decode ... COMPLETE -> FINISH -> END(DONE)
 *   source  BIND -> SEGMENTS ... GRANT -> encode -> chunk ... END -> verdict
 *
 * A REQUEST may carry *open* grants, for whatever is ready when it meets its offer: that saves a transfer one round
 * trip of two before its first chunks. They are numbered without gaps. The source's first SEGMENTS names the units that
 * it will send for them, in order, from unit 0 on; the source releases at once those that it does not need. The chunks
 * may overtake the SEGMENTS.
 *
 * A leg ends in three steps. The *verdict* is reported once and never changes. *Drained* is reported once, at or after
 * the verdict: no job of this leg touches pages any more. *Closed*: the leg holds no slot either and can be forgotten.
 *
 * Lost, duplicated or reordered messages do no harm (one connection does none of this, but old messages may come late
 * over a new one): grants have increasing ids, and a message that does not match the state is ignored or answered with
 * RELEASED. */
#ifndef STRAIT_DAEMON_PROTOCOL_LEG_H
#define STRAIT_DAEMON_PROTOCOL_LEG_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/strait.h>

#define LEG_GRANTS 8u /* outstanding at once, as the sink counts */
#define SOURCE_GRANTS                                                                                  \
    (2 * LEG_GRANTS)    /* the sink may have a chunk in place before the source hears that it was sent \
                         */
#define LEG_ACTIONS 24u /* most that one event can cause: SOURCE_GRANTS, and a few */

enum grant_state {
    GRANT_NONE = 0,
    /* Sink. */
    GRANT_GIVEN,    /* waits for its chunk */
    GRANT_REVOKING, /* asked back: waits for RELEASED or the chunk */
    GRANT_ARRIVING, /* the transport writes the slot; count 0: for an open grant */
    GRANT_DECODING, /* a job reads the slot and writes pages */
    GRANT_OPEN,     /* went with a REQUEST: its range is not known yet (count 0); waits for it, or for the chunk */
    GRANT_EARLY,    /* an open grant's chunk is in the slot and waits for its range */
    GRANT_VOID,     /* a chunk arrives in vain: its range was lost with the link, or is in place already */
    GRANT_DROPPED,  /* no chunk will come, or be taken, but a decoder still waits for one */
    /* Source. */
    GRANT_QUEUED,   /* waits for a send slot */
    GRANT_ENCODING, /* a job reads pages and writes the slot */
    GRANT_SENDING,  /* the transport reads the slot */
};

struct leg_grant {
    uint64_t id;
    uint32_t first, count; /* units */
    uint32_t slot;         /* of the sink's receive arena */
    uint16_t state;        /* enum grant_state */
    uint16_t ahead;        /* sink: 1: a decoder waits for the chunk (SINK_AHEAD) */
};

enum leg_event_type {
    /* Sink. */
    SINK_START,    /* both names are known: send REQUEST to the source; again while not bound. With `opens` new open
                      grants of these `slots`, numbered from leg->next_grant; slots that it cannot use come back */
    SINK_SEGMENTS, /* message: units [before, before + count) are ready; last. Accepted only when before is leg->ready.
                      The first SEGMENTS may name `opens` open grants, from `grant` on, and the `units` of each */
    SINK_GRANT,    /* `slot` is free for the next `count` units: only while sink_wants() */
    SINK_RECLAIM,  /* other legs starve: ask for unused grants back */
    SINK_RELEASED, /* message: `grant` will not be used */
    SINK_ARRIVING, /* the transport announces a chunk for `grant` */
    SINK_ARRIVED,  /* its bytes are in the slot; reason NONE, or why it failed */
    SINK_AHEAD,    /* a decoder has been begun that waits for the chunk of `grant`, which is GIVEN. Until DECODED or
                      ABSENT the leg is not drained and the slot not freed */
    SINK_ABSENT,   /* that decoder has ended without the chunk, which may still come */
    SINK_DECODED,  /* they are in the pages and checked; reason NONE, or why it failed. Of a decoder that waited also
                      instead of ARRIVING, which is then refused */
    SINK_FINISH,   /* all legs of the expectation are complete and cover it: DONE */
    SINK_END,      /* message: the source failed with `reason` (already translated: leg_peer_reason). A complete leg
                      needs its source no more and ignores it */
    SINK_FAIL,     /* `reason`: deadline, abort, dead client, dead peer */
    SINK_QUIET,    /* the link to the peer is closed: neither transport nor a job of the source writes granted slots any
                      more, and no message of that link will come. A leg that was bound asks for no more slots and must
                      be failed (unless it is complete); an unbound one can START again on the next link */
    /* Source. */
    SOURCE_BIND,    /* a REQUEST has met its offer: `count` units are ready so far, last. It may carry `opens` open
                       grants, from `grant` on, of these `slots`, each for so many `units` (from the first 0 on: not
                       used). Repeated: announces all units again */
    SOURCE_MORE,    /* `count` more units are ready; last */
    SOURCE_GRANT,   /* message: `grant`, first, count, slot */
    SOURCE_REVOKE,  /* message: give `grant` back if it has not been begun; if it has, its chunk is the answer */
    SOURCE_ENCODE,  /* a send slot is free: only while source_wants() */
    SOURCE_ENCODED, /* `grant`; reason NONE, or why it failed */
    SOURCE_SENT,    /* `grant`; reason NONE, or why it failed */
    SOURCE_END,     /* message: the sink's verdict: `reason` NONE is DONE */
    SOURCE_FAIL,    /* `reason`: lease, abort, dead client, dead peer */
};

/* Fields that an event does not name are 0. */
struct leg_event {
    enum leg_event_type type;
    enum strait_reason reason;
    bool last;
    uint64_t grant;
    uint32_t before, first, count, slot;
    uint32_t opens, slots[LEG_GRANTS], units[LEG_GRANTS];
};

enum leg_action_type {
    LEG_SEND_REQUEST,  /* with `count` open grants, the newest of the leg; `grant.id`: the first of them, or 0 */
    LEG_SEND_SEGMENTS, /* units [first, first + count) and `last`; from unit 0 on also source_leg.opened */
    LEG_SEND_GRANT,    /* `grant` */
    LEG_SEND_REVOKE,   /* `grant.id` */
    LEG_SEND_RELEASED, /* `grant.id` */
    LEG_SEND_END,      /* reason NONE: DONE */
    LEG_ENCODE,        /* `grant`, into a send slot (or straight into the sink's) */
    LEG_TRANSMIT,      /* `grant`: its chunk is encoded */
    LEG_ACCEPT,        /* `grant`: let the chunk into the slot. Without it ARRIVING is refused */
    LEG_DECODE,        /* `grant` */
    LEG_FREE_SLOT,     /* sink: `grant.slot` can be granted again; source: the send slot of `grant.id` is free */
    LEG_STATE,         /* `state` was reached: READY or TRANSFERRING */
    LEG_COMPLETE,      /* sink: everything announced has landed and nothing will follow */
    LEG_VERDICT,       /* reason NONE: DONE */
    LEG_DRAINED,
    LEG_CLOSED, /* last of all */
};

struct leg_action {
    enum leg_action_type type;
    enum strait_reason reason;
    enum strait_state state;
    bool last;
    uint32_t first, count;
    struct leg_grant grant;
};

struct leg_actions {
    uint32_t count;
    struct leg_action list[LEG_ACTIONS];
};

struct sink_leg {
    uint32_t state;   /* enum strait_state */
    uint32_t reason;  /* of FAILED */
    uint32_t window;  /* grants outstanding at most, 1..LEG_GRANTS */
    uint32_t ready;   /* units announced */
    uint32_t granted; /* units granted at least once: [0, granted) */
    uint32_t landed;  /* units in place */
    uint8_t started, last, complete, drained, closed, quiet;
    uint8_t returned_count;
    uint8_t unused;
    uint64_t next_grant;
    struct leg_grant grants[LEG_GRANTS]; /* by id; entries behind the last are zero */
    struct { /* ranges that came back unused, to be granted again before new ones; by first unit */
        uint32_t first, count;
    } returned[LEG_GRANTS];
};

struct source_leg {
    uint32_t state;
    uint32_t reason;
    uint32_t ready; /* units announced */
    uint8_t last, drained, closed, unused;
    uint64_t seen;                          /* highest grant id met */
    uint64_t opened;                        /* the first of the open grants that are used, or 0 */
    uint32_t opened_units[LEG_GRANTS];      /* the units of each, from unit 0 on; 0 behind the last */
    struct leg_grant grants[SOURCE_GRANTS]; /* by id; entries behind the last are zero */
};

void sink_init(struct sink_leg *leg, uint32_t window);
void source_init(struct source_leg *leg);

/* Takes one event and returns its actions, in the order in which they are to be done. False: the peer broke the
 * protocol in a way that an honest one cannot (a grant beyond what was announced, units that overflow, more units after
 * `last`, a chunk for no units, an impossible DONE): the caller still does the actions (a bad grant is answered with
 * RELEASED), then fails the leg with GEOMETRY.
 *
 * A closed leg still answers late messages. Whoever forgets a leg has to answer in its place: GRANT with RELEASED and,
 * when it failed or is not known at all, END; REVOKE with RELEASED; REQUEST with END, and RELEASED for its grants (a
 * second source leg of the same name and epoch would not know the grants of the first); SEGMENTS with END; a chunk is
 * refused. */
bool sink_step(struct sink_leg *leg, const struct leg_event *event, struct leg_actions *actions);
bool source_step(struct source_leg *leg, const struct leg_event *event, struct leg_actions *actions);

/* Does the leg want a slot? If so, the next range to grant is [*first, *first + *count); SINK_GRANT may take less of
 * it, from its beginning. A returned range fitted a slot and is best taken whole. SINK_GRANT only gives the slot back
 * (FREE_SLOT) where the range would be cut into too many pieces (LEG_GRANTS given or returned ones), and where nothing
 * is wanted. */
bool sink_wants(const struct sink_leg *leg, uint32_t *first, uint32_t *count);
/* Number of grants that could be asked back: given, not yet arriving. */
uint32_t sink_unused(const struct sink_leg *leg);
/* The grant that SOURCE_ENCODE would begin; NULL: none is queued. */
const struct leg_grant *source_next(const struct source_leg *leg);
static inline bool source_wants(const struct source_leg *leg)
{
    return source_next(leg) != NULL;
}

/* Translates the peer's reason of failure to this side: ABORTED becomes PEER_ABORT, LOCAL becomes PEER_DOWN, ... */
enum strait_reason leg_peer_reason(enum strait_reason reason);

/* ---- Queue of events --------------------------------------------------------------------------------------------- */

/* Queue of events for the legs of a node, in their order.
 *
 * An event for a leg is appended, wherever it comes from. The legs' machines take events only from leg_queue.run, which
 * every callback of the loop calls before it returns, so no machine is stepped while the actions of a step are carried
 * out, and the queue is empty whenever the loop goes on. Only the announcement of a chunk, which the transport makes
 * from the loop, is not queued (sink_arriving): it needs its answer at once. */

struct node;
struct sink;
struct source;

struct leg_post {
    struct sink *sink; /* exactly one of sink and source is the receiver */
    struct source *source;
    struct leg_event event;
};

struct leg_queue {
    struct leg_post *posts; /* a ring */
    uint32_t first, count, capacity;
    uint32_t legs;                  /* for which there is room */
    void (*run)(struct node *node); /* carries out all queued events */
    bool running;
};

/* Makes room for the events of one more leg: called for each leg before its first event. False: no memory. */
bool leg_queue_reserve(struct leg_queue *queue);
void leg_queue_release(struct leg_queue *queue); /* the leg has ended */
void leg_queue_fini(struct leg_queue *queue);

void leg_queue_append(struct leg_queue *queue, const struct leg_post *post);
bool leg_queue_take(struct leg_queue *queue, struct leg_post *post); /* false: the queue is empty */

#endif
