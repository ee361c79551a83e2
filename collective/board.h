/* What the ranks of a communicator say, each in a place of its own, and what follows for all: of each question one
 * word, which whoever can tell sets, once. The memory may be that of several processes, or of one that is asked. */
#ifndef STRAIT_COLLECTIVE_BOARD_H
#define STRAIT_COLLECTIVE_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Questions, one after the other: whether a rank is there, equally far (of what does not block), and able. */
enum coll_round { COLL_ROUND_PRESENT, COLL_ROUND_REACHED, COLL_ROUND_ABLE, COLL_ROUNDS };

/* What a rank says. */
struct coll_word {
    uint32_t able;
    uint32_t blocks; /* its communicator does; the same on all */
    uint32_t index;  /* of the operation that is next; the same on all */
    uint32_t paired; /* it has sent or received before */
    uint64_t thread; /* that speaks; no other rank's, unless the communicator blocks */
};

/* What became of a round. LOST is of a rank alone, which cannot ask any more. */
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
    /* Of a rank that has come: whether it is still there. */
    bool (*is_there)(const void *whom, int rank);
    const void *whom;
};

enum { COLL_NAMED_MAX = 8 };

/* Of a round, what a rank is told. */
struct coll_view {
    enum coll_ending ending;
    int about;   /* the rank that the ending is about */
    bool all;    /* all have said that they are there */
    bool paired; /* any has said so in COLL_ROUND_REACHED */
    int absent;  /* ranks that have said nothing in this round; the first of them: */
    int named[COLL_NAMED_MAX];
};

bool coll_board_has_said(const struct coll_board *board, int rank, enum coll_round round);
/* At most once for each rank and round. */
void coll_board_say(const struct coll_board *board, int rank, enum coll_round round, const struct coll_word *word);
/* It has begun so many operations without COLL_ROUND_REACHED. */
void coll_board_pass(const struct coll_board *board, int rank, uint32_t begun);
/* Decides what can be told by now. */
void coll_board_judge(const struct coll_board *board, enum coll_round round);
/* Unless it is decided. */
void coll_board_decide(const struct coll_board *board, enum coll_round round, enum coll_ending ending, int about);
struct coll_view coll_board_view(const struct coll_board *board, enum coll_round round);
/* True once, of all who ask: whose business it is to end what there is one of. */
bool coll_board_first(const struct coll_board *board);

#endif
