/* One run under faults: its transfers, the fault that strikes, and what came of it. */
#ifndef STRAIT_TESTS_SOAK_FAULTS_H
#define STRAIT_TESTS_SOAK_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/soak/move.h"
#include "tests/support.h"

/* Their order is that of --fault. */
enum fault {
    F_ABORT_SOURCE,
    F_ABORT_SINK,
    F_ABORT_COLD,
    F_PAGE_TAKEN,
    F_NAME_TAKEN,
    F_RELOAD,
    F_STOP_SHORT,
    F_STOP_LONG,
    F_CUT,
    F_KILL,
    F_REPLACE,
    F_TERMINATE,
    FAULTS,
    F_NONE = FAULTS,
};

/* What a fault may cost, least first. */
enum harm {
    HARM_NONE, /* nothing but time */
    HARM_ONE,  /* the move that it strikes */
    HARM_LINK, /* moves of that time; both daemons live, so each side hears of the other's end when they meet again */
    HARM_PROCESS, /* moves of that time; a daemon that has ended tells nobody */
};

struct samples {
    double *ms;
    size_t count, room;
};

/* Of all moves that a fault has touched. */
struct account {
    uint32_t strikes, moves, done, given_up;
    struct samples verdicts, told; /* after the fault or the beginning; after the other side's */
};

struct slot {
    bool used, is_late;
    struct move move;
    enum harm harm;
    enum fault fault; /* the latest that touched it */
    double touched_at;
    uint64_t kept_ms;       /* kept_ms when it began */
    struct move_end *abort; /* the side that gives up, at: */
    uint64_t abort_due;
    uint64_t rest_until; /* unused: nothing begins before */
};

struct trial {
    struct world world;
    const struct route *ways[2];
    struct slot *slots; /* and after `slot_count` two that belong to a fault: one that has what another wants */
    uint32_t slot_count, live, deck[FAULTS], deck_at, decks;
    struct rng rng;
    uint64_t ended, wanted, next_due, watch_due;
    bool is_last_part; /* no daemon ends any more */

    /* The fault that strikes. */
    enum fault fault, only; /* F_NONE: none; all */
    uint32_t node;
    uint64_t due;
    uint32_t step;
    struct slot *struck;
    bool restored, healed[2];
    double restored_at, healed_at; /* healed_at: the latest fault that cost more than one move */
    uint64_t restored_kept_ms;

    struct account accounts[FAULTS + 1];
    uint64_t wrong, late, stranded, failed_for_nothing, excused;
    struct process_size sizes[2];
    uint64_t sized_at; /* `ended` when the sizes were taken; 0: not yet */
};

const char *fault_name(enum fault fault);

void samples_add(struct samples *samples, double ms);

/* Looks at memory and descriptors of both daemons: from now on they may not grow. */
void sizes_take(struct trial *trial);
/* Prints a line for each fault, complains about daemons that have grown since sizes_take, and frees the samples. */
void trial_report(struct trial *trial, uint64_t seed, double seconds);

#endif
