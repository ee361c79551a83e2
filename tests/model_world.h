/* The world that the model test explores: one sink's daemon and one source's daemon, made of nothing but their legs,
 * and everything that can happen around them: messages and chunks delivered in any order, lost, doubled or damaged,
 * jobs that end well or badly, aborts, grants asked back, links that break, daemons that crash, the same pages expected
 * again. Ghosts know what the daemons cannot know: which bytes are where, and who may still write.
 *
 * Assumed of the environment, and shown to be needed by leaving each out: messages and chunks of a link that a side has
 * seen closed do not reach it (connection tokens), epochs are compared, closed source legs are remembered, and a sink
 * is told QUIET only when no job of the source can write its slots any more. */
#ifndef STRAIT_TESTS_MODEL_WORLD_H
#define STRAIT_TESTS_MODEL_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/protocol/leg.h"

enum { EPOCHS = 2, SLOTS_MAX = 2, NET_MAX = 8, JOBS_MAX = 6 };

struct setting {
    uint8_t units, slots, window, send_slots;
    bool direct;    /* the source's job writes the sink's slot itself */
    bool open;      /* requests bring a grant, when a slot is free */
    uint8_t faults; /* at most, on one path */
    uint8_t depth;  /* of events that are explored, */
    uint8_t ahead;  /* after so many of a fair run */
};

/* What can be left out or done wrong. The machines stay as they are: the world around them is changed. */
enum bug {
    BUG_NONE,
    BUG_EPOCH,         /* messages reach whatever leg is live */
    BUG_EARLY_ACK,     /* landed before it is decoded */
    BUG_BAD_LANDS,     /* decoders that find nothing wrong */
    BUG_REVOKE_FREES,  /* slots asked back are taken back at once */
    BUG_QUIET_EARLY,   /* QUIET while a job of the source still writes */
    BUG_TOKEN,         /* what belongs to an old link is let in */
    BUG_DRAINED_EARLY, /* pages are free with the verdict */
    BUG_SEEN,          /* grants are not remembered */
    BUG_TOMBSTONE,     /* nor are source legs */
    BUG_MUTE,          /* what was not used is not given back */
    BUG_NO_DEADLINE,   /* verdicts wait for ever */
    BUG_EARLY_DECODE,  /* an open grant is taken for one of all units */
    BUG_FORGETFUL,     /* the slot is granted while the chunk arrives */
    BUGS
};

extern struct setting setting;
extern enum bug bug;
extern const char *violation; /* the first one found */

/* Inline: every step makes many of them. */
static inline void claim(bool holds, const char *fact)
{
    if (!holds && violation == NULL)
        violation = fact;
}

/* ---- The world --------------------------------------------------------------------------------------------------- */

enum side { SINK, SOURCE };

enum message_kind {
    TO_SOURCE_REQUEST = 1,
    TO_SOURCE_GRANT,
    TO_SOURCE_REVOKE,
    TO_SOURCE_END,
    TO_SINK_SEGMENTS,
    TO_SINK_RELEASED,
    TO_SINK_END,
    TO_SINK_CHUNK,
};

struct message {
    uint8_t kind, epoch, link, first, count, id;
    union {
        uint8_t slot, last, reason, version;
    };
    union {
        uint8_t bad;    /* a chunk was damaged */
        uint8_t opened; /* units that are the open grant's */
    };
};

enum job_kind { JOB_NONE, JOB_ARRIVE, JOB_DECODE, JOB_ENCODE, JOB_SEND, JOB_HELD /* came before its range */ };

/* What runs beside a daemon, and what it has in hands. */
struct job {
    uint8_t kind, epoch, id, first, count, slot, arena, unused;
    struct message chunk;
};

/* How a request is met: the units that are ready, and these flags. */
enum { LAST = 16, ONE_FITS = 32 };

enum phase { PHASE_NONE, PHASE_LIVE, PHASE_OVER };
enum told { TOLD_VERDICT = 1, TOLD_DRAINED = 2, TOLD_CLOSED = 4 };

struct world {
    struct sink_leg sink[EPOCHS];
    struct source_leg source[EPOCHS];
    struct message net[NET_MAX];
    struct job jobs[2][JOBS_MAX];
    uint8_t phase[2][EPOCHS], tomb[2][EPOCHS], told[2][EPOCHS];
    uint8_t landed[EPOCHS], done[EPOCHS],
        offered[EPOCHS]; /* units in place; the sink said DONE; version of the offer */
    struct {
        uint8_t epoch, id; /* of the holder: epoch + 1, or 0 */
    } slots[SLOTS_MAX];
    uint8_t version; /* of what the source's pages hold */
    uint8_t send_used, expected, link;
    uint8_t arena, mapped; /* the sink's receive arena is a new one after a crash; the one that the source knows */
    uint8_t broken, noticed[2], quiet;
    uint8_t faults, disturbed, crowded, unused[5];
};

/* Compared as words. */
_Static_assert(sizeof(struct world) % 8 == 0, "whole words");

static inline bool leg_live(const struct world *world, enum side side, uint8_t epoch)
{
    return world->phase[side][epoch] == PHASE_LIVE;
}

struct job *find_job(struct world *world, enum side side, enum job_kind kind, uint8_t epoch, uint8_t id);
bool any_job(const struct world *world, enum side side, enum job_kind kind, uint8_t epoch);
void remove_job(struct world *world, enum side side, struct job *job);
enum side addressee(const struct message *message);

/* Equal sets are equal bytes: to be called after a change. */
void sort_jobs(struct job *jobs);
void sort_net(struct message *net);

/* A side has seen the link closed: nothing of it reaches that side. */
void purge(struct world *world, enum side side);

/* ---- What its legs are told -------------------------------------------------------------------------------------- */

void sink_event(struct world *world, uint8_t epoch, struct leg_event event);
void source_event(struct world *world, uint8_t epoch, struct leg_event event);
void to_sink(struct world *world, const struct message *message);
/* `how`: of a request. */
void to_source(struct world *world, const struct message *message, uint8_t how);
void expect(struct world *world);
void abort_leg(struct world *world, enum side side, uint8_t epoch, enum strait_reason reason);

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

enum choice_kind {
    DELIVER,    /* a: message; b: how a request is met */
    FINISH_JOB, /* a: side, b: job */
    GRANT,      /* a: epoch, b: units */
    ENCODE,     /* a: epoch */
    FINISH,     /* a: epoch */
    MORE,       /* a: epoch, b: units, 16: last */
    NOTICE,     /* a: side */
    QUIET,
    RECONNECT,
    /* What a fair run does without. */
    UNFAIR,
    RECLAIM = UNFAIR, /* a: epoch */
    ABORT,            /* a: side, b: epoch */
    EXPECT_AGAIN,
    /* Faults. */
    DROP,   /* a: message */
    DOUBLE, /* a: message, b as in DELIVER */
    DAMAGE, /* a: message */
    FAIL_JOB,
    BREAK,
    CRASH, /* a: side */
};

extern const char *const choice_names[];

enum { CHOICES_MAX = 160 };

struct choice {
    uint8_t kind, a, b;
};

struct choices {
    int count;
    struct choice list[CHOICES_MAX];
};

/* What can happen in this state; the same list for the same bytes. */
void list_choices(const struct world *world, struct choices *choices);
void apply(struct world *world, struct choice choice);

/* What holds in every state. */
void check_jobs(const struct world *world);

#endif
