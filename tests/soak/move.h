/* One transfer, from its plan to the comparison of what landed: both of its sides, as their workers drive them. */
#ifndef STRAIT_TESTS_SOAK_MOVE_H
#define STRAIT_TESTS_SOAK_MOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/soak/world.h"

enum style {
    STYLE_WHOLE,  /* all pages are ready with the offer */
    STYLE_CHUNKS, /* pages are appended, part by part */
    STYLE_LAYERS, /* pages are known, and become ready layer by layer */
    STYLES
};
extern const char *const style_names[STYLES];

enum starter {
    START_PUSH,   /* the source, and says so */
    START_PULL,   /* the sink, and says so */
    START_SOURCE, /* the source */
    START_SINK,   /* the sink */
    START_BOTH,
    STARTERS
};
extern const char *const starter_names[STARTERS];

/* What the sink of a move names that is taken already, and for which it is refused. */
enum taken {
    TAKEN_NOTHING,
    TAKEN_PAGE, /* its first page */
    TAKEN_NAME, /* with own_names, and a starter that is the sink's */
    TAKENS
};

struct move;

struct move_plan {
    const struct route *route;
    uint32_t pages; /* ids: each has a page in every region */
    enum style style;
    uint32_t parts; /* STYLE_CHUNKS: the first one comes with the offer; at most as many as pages */
    enum starter starter;
    bool source_first; /* begins before the sink does */
    bool own_names;    /* the sides name the request differently */
    bool aux;          /* a small payload comes with the last append */
    bool held;         /* nothing is appended before move_release */
    uint32_t gap_ms;   /* between the beginnings of both sides */
    uint32_t pause_ms; /* between appends */
    uint32_t deadline_ms;
    uint32_t lease_ms; /* 0: the deadline */
    enum taken taken;
    const struct move *taker; /* with `taken`: a live move of the same route */
};

struct move_end {
    struct move *move;
    bool is_sink, begun, decided, drained;
    struct strait_transfer *transfer;
    enum strait_state state;
    enum strait_reason reason;
    double begun_at, decided_at;
    uint32_t *ids;
};

struct move {
    struct move_plan plan;
    uint32_t number;
    struct move_end source, sink;
    uint64_t *hashes; /* of the source's pages, region after region */
    uint32_t appended, appends, layers_landed;
    uint64_t second_due, append_due; /* in ms */
    double began;
    bool intact; /* nothing that was looked at was wrong */
};

/* What the workers of one daemon have begun, and have seen DONE. */
struct tally {
    uint64_t offers, expectations, source_done, sink_done;
    uint64_t sent_bytes, landed_bytes, local_bytes; /* raw, of transfers that were DONE */
};
extern struct tally tallies[DAEMONS_MAX];

uint64_t move_bytes(const struct move_plan *plan);

/* Takes vacant pages of both pools, gives the source's new contents and wipes the sink's. move_finish in any case. */
void move_prepare(struct move *move, const struct move_plan *plan);
void move_begin(struct move *move);
/* Does what is due: the second side, the next append. */
void move_turn(struct move *move);
void move_release(struct move *move);
/* Gives up: the side without a verdict gets one. */
void move_abort(struct move *move);

/* Both sides have their verdict, and nothing touches the pages any more. */
bool move_over(const struct move *move);
/* Compares what was DONE, lets go of all. True: DONE at both sides, and every page right. */
bool move_finish(struct move *move);

/* Complains about a move that is not DONE, with what is known of it. */
void move_complain(const struct move *move);

/* An event of a transfer. */
void move_take(const struct strait_event *event);

/* Moves that run together. */

struct group {
    struct move *moves;
    uint32_t count, room;
};

void group_init(struct group *group, uint32_t room);
/* Prepares another move. */
struct move *group_add(struct group *group, const struct move_plan *plan);
void group_begin(struct group *group);

/* Drives the moves of one group, or of two, until `reached` says so of each of them. False: not within `ms`,
 * complained.
 */
bool groups_until(struct world *world, struct group *group, struct group *other,
                  bool (*reached)(const struct move *move), uint64_t ms, const char *what);

/* Checks and lets go of all moves; those that are not DONE are complained about. Returns how many were DONE. */
uint32_t group_finish(struct group *group);

#endif
