/* What the ranks of a communicator say, each in a place of its own, and what follows for all: for each question one
 * ending, set once by whoever can first tell. The memory may be shared by several processes, or belong to the one that
 * is asked. */
#ifndef STRAIT_COLLECTIVE_BOARD_H
#define STRAIT_COLLECTIVE_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The questions, in this order: whether a rank has come, is equally far (of communicators that do not block), and is
 * able. */
enum coll_round { COLL_ROUND_PRESENT, COLL_ROUND_REACHED, COLL_ROUND_ABLE, COLL_ROUNDS };

/* What a rank says. */
struct coll_word {
    uint32_t able;
    uint32_t blocks; /* its communicator blocks; the same on all ranks */
    uint32_t index;  /* of its next operation; the same on all ranks */
    uint32_t paired; /* it has sent or received before */
    uint64_t thread; /* the thread that speaks; unlike all other ranks', unless the communicator blocks */
};

/* How a round ended. LOST is local to a rank that cannot ask any more. */
enum coll_ending {
    COLL_ENDING_OPEN,
    COLL_ENDING_GO,
    COLL_ENDING_ABSENT,
    COLL_ENDING_ENDED,
    COLL_ENDING_UNABLE,
    COLL_ENDING_DIFFERS,
    COLL_ENDING_ONE_THREAD,
    COLL_ENDING_LEFT,
    COLL_ENDING_LOST,
    COLL_ENDINGS
};

/* All zero: nobody has said anything. */
struct coll_sheet;
size_t coll_sheet_size(int ranks);

struct coll_board {
    struct coll_sheet *sheet;
    int ranks;
    /* Whether a rank that has come is still there. */
    bool (*is_there)(const void *whom, int rank);
    const void *whom;
};

enum { COLL_NAMED_MAX = 8 };

/* What a rank is told about a round. */
struct coll_view {
    enum coll_ending ending;
    int about;   /* the rank that the ending is about */
    bool all;    /* all have said that they are there */
    bool paired; /* any rank has said so in COLL_ROUND_REACHED */
    int absent;  /* number of ranks that have said nothing in this round; the first of them: */
    int named[COLL_NAMED_MAX];
};

bool coll_board_has_said(const struct coll_board *board, int rank, enum coll_round round);
/* At most once for each rank and round. */
void coll_board_say(const struct coll_board *board, int rank, enum coll_round round, const struct coll_word *word);
/* The rank has begun so many operations before COLL_ROUND_REACHED. */
void coll_board_pass(const struct coll_board *board, int rank, uint32_t begun);
/* Decides whatever can be decided by now. */
void coll_board_judge(const struct coll_board *board, enum coll_round round);
/* Does nothing if it is already decided. */
void coll_board_decide(const struct coll_board *board, enum coll_round round, enum coll_ending ending, int about);
struct coll_view coll_board_view(const struct coll_board *board, enum coll_round round);
/* Returns true to exactly one caller, which then removes what exists only once. */
bool coll_board_first(const struct coll_board *board);

#endif
