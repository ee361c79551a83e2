/* The world that the model test explores: a sink's daemon and a source's daemon, reduced to their legs, and everything
 * that can happen around them: messages and chunks delivered in any order, lost, duplicated or damaged, jobs that
 * succeed or fail, aborts, revoked grants, links that break, daemons that crash, the same pages expected again. Ghost
 * state holds what the daemons cannot know: which bytes are where, and who may still write.
 *
 * Assumptions about the environment, each shown to be necessary by leaving it out: messages and chunks of a link that a
 * side has seen closed do not reach that side (connection tokens), epochs are compared, closed source legs are
 * remembered, and a sink is told QUIET only when no job of the source can write its slots any more. */
#ifndef STRAIT_TESTS_MODEL_WORLD_H
#define STRAIT_TESTS_MODEL_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/protocol/leg.h"

enum { EPOCHS = 2, SLOTS_MAX = 2, NET_MAX = 8, JOBS_MAX = 6 };

/* How chunks get into slots. */
enum way {
    STAGED,  /* the transport brings them */
    DIRECT,  /* the source's job writes the sink's slot itself, */
    FLAGGED, /* and sets a flag, so that the sink may decode before it is told */
};

struct setting {
    uint8_t units, slots, window, send_slots;
    uint8_t direct; /* enum way */
    bool open;      /* requests bring grants of the slots that are free, up to the window */
    uint8_t faults; /* maximum on one path */
    uint8_t depth;  /* number of events explored, */
    uint8_t ahead;  /* after this many events of a fair run */
};

/* Planted bugs. The state machines are unchanged: only the world around them is changed. */
enum bug {
    BUG_NONE,
    BUG_EPOCH,         /* messages reach any live leg, whatever their epoch */
    BUG_EARLY_ACK,     /* a chunk is reported landed before it is decoded */
    BUG_BAD_LANDS,     /* decoders accept damaged chunks */
    BUG_REVOKE_FREES,  /* revoked slots are taken back at once */
    BUG_QUIET_EARLY,   /* QUIET while a job of the source still writes */
    BUG_TOKEN,         /* messages of an old link are accepted */
    BUG_DRAINED_EARLY, /* pages are free with the verdict */
    BUG_SEEN,          /* grants are not remembered */
    BUG_TOMBSTONE,     /* closed source legs are not remembered */
    BUG_MUTE,          /* unused grants are not returned */
    BUG_NO_DEADLINE,   /* verdicts may wait forever */
    BUG_EARLY_DECODE,  /* an open grant is taken for one of all units */
    BUG_FORGETFUL,     /* a slot is granted again while a chunk arrives in it */
    BUG_UNNAMED,       /* of the open grants that are used, only the first is named */
    BUG_UNWATCHED,     /* decoders that wait are forgotten */
    BUGS
};

extern struct setting setting;
extern enum bug bug;
extern const char *violation; /* the first one found */

/* Inline, because every step makes many claims. */
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
        uint8_t bad; /* a chunk was damaged */
        uint8_t
            open; /* a request's slots, plus 1, or the units of each grant that is used: 4 bits each, 0 behind them */
    };
};

static inline uint8_t open_of(const struct message *message, uint32_t i)
{
    return i < SLOTS_MAX ? message->open >> 4 * i & 15 : 0;
}

enum job_kind {
    JOB_NONE,
    JOB_ARRIVE,
    JOB_DECODE,
    JOB_ENCODE,
    JOB_SEND,
    JOB_HELD /* came before its range, or while a decoder waits */,
    JOB_WAIT
};

/* A job that runs beside a daemon, and what it holds. */
struct job {
    uint8_t kind, epoch, id, first, count, slot, arena, unused;
    struct message chunk;
};

/* How a request is answered: the units that are ready, and these flags; how many of them fit into each slot. */
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
    struct {
        uint8_t epoch, id, first, count, version; /* of the chunk that is whole in the slot: epoch + 1, or 0 */
        uint8_t waited;                           /* a decoder has waited for the holder's chunk */
        uint8_t unused[2];
    } flags[SLOTS_MAX];
    uint8_t version; /* of what the source's pages hold */
    uint8_t send_used, expected, link;
    uint8_t arena, mapped; /* version of the sink's receive arena, raised by a crash; the one that the source maps */
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

/* Makes equal sets equal bytes; to be called after a change. */
void sort_jobs(struct job *jobs);
void sort_net(struct message *net);

/* A side has seen the link closed: nothing sent over it may reach that side any more. */
void purge(struct world *world, enum side side);

/* ---- What its legs are told -------------------------------------------------------------------------------------- */

void sink_event(struct world *world, uint8_t epoch, struct leg_event event);
void source_event(struct world *world, uint8_t epoch, struct leg_event event);
void wait_for_chunk(struct world *world, uint8_t epoch, uint8_t id); /* begins a decoder ahead of the chunk */
void to_sink(struct world *world, const struct message *message);
/* `how`: how a request is answered. */
void to_source(struct world *world, const struct message *message, uint8_t how);
void expect(struct world *world);
void abort_leg(struct world *world, enum side side, uint8_t epoch, enum strait_reason reason);

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

enum choice_kind {
    DELIVER,    /* a: message; b: how a request is answered */
    FINISH_JOB, /* a: side, b: job */
    GRANT,      /* a: epoch, b: units */
    ENCODE,     /* a: epoch */
    FINISH,     /* a: epoch */
    MORE,       /* a: epoch, b: units, 16: last */
    NOTICE,     /* a: side */
    QUIET,
    RECONNECT,
    WAIT, /* a: epoch, b: grant */
    /* Events that a fair run does not have. */
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

/* Lists what can happen in this state; equal states give equal lists. */
void list_choices(const struct world *world, struct choices *choices);
void apply(struct world *world, struct choice choice);

/* Checks what must hold in every state. */
void check_jobs(const struct world *world);

#endif
