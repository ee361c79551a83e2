#include "collective/board.h"

#include <stdatomic.h>

/* The word of a decided round: the ending, and the rank that it is about. */
enum { ENDING_BITS = 8 };

struct entry {
    struct coll_word words[COLL_ROUNDS];
    _Atomic uint32_t said[COLL_ROUNDS]; /* the word is there */
    _Atomic uint32_t passed;            /* operations that the rank has begun without the others */
};

struct coll_sheet {
    _Atomic uint32_t decided[COLL_ROUNDS];
    _Atomic uint32_t asked;
    struct entry entries[];
};

size_t coll_sheet_size(int ranks)
{
    return sizeof(struct coll_sheet) + (size_t)ranks * sizeof(struct entry);
}

bool coll_board_has_said(const struct coll_board *board, int rank, enum coll_round round)
{
    return atomic_load(&board->sheet->entries[rank].said[round]) != 0;
}

void coll_board_say(const struct coll_board *board, int rank, enum coll_round round, const struct coll_word *word)
{
    struct entry *own = &board->sheet->entries[rank];
    own->words[round] = *word;
    atomic_store(&own->said[round], 1);
}

void coll_board_pass(const struct coll_board *board, int rank, uint32_t begun)
{
    atomic_store(&board->sheet->entries[rank].passed, begun);
}

/* Only the first decision counts. */
void coll_board_decide(const struct coll_board *board, enum coll_round round, enum coll_ending ending, int about)
{
    uint32_t open = COLL_ENDING_OPEN;
    const uint32_t decided = (uint32_t)ending | (uint32_t)about << ENDING_BITS;
    (void)atomic_compare_exchange_strong(&board->sheet->decided[round], &open, decided);
}

bool coll_board_first(const struct coll_board *board)
{
    return atomic_exchange(&board->sheet->asked, 1) == 0;
}

/* ---- Deciding ---------------------------------------------------------------------------------------------------- */

static bool have_all_said(const struct coll_board *board, enum coll_round round)
{
    bool all = true;
    for (int rank = 0; rank < board->ranks; rank++)
        all &= coll_board_has_said(board, rank, round);
    return all;
}

static const struct coll_word *word_of(const struct coll_board *board, int rank, enum coll_round round)
{
    return &board->sheet->entries[rank].words[round];
}

static bool shares_thread(const struct coll_board *board, int rank, enum coll_round round)
{
    for (int before = 0; before < rank; before++)
        if (word_of(board, before, round)->thread == word_of(board, rank, round)->thread)
            return true;
    return false;
}

/* Checks one rank, after all have said their words. */
static enum coll_ending look_at(const struct coll_board *board, int rank, enum coll_round round)
{
    const struct coll_word *first = word_of(board, 0, round), *word = word_of(board, rank, round);
    if (word->blocks != first->blocks || word->index != first->index)
        return COLL_ENDING_DIFFERS;
    return word->blocks == 0 && shares_thread(board, rank, round) ? COLL_ENDING_ONE_THREAD : COLL_ENDING_GO;
}

/* Whether the rank has passed an operation that another one waits in; it may wait for that one in turn. */
static bool is_ahead(const struct coll_board *board, int rank)
{
    const uint32_t passed = atomic_load(&board->sheet->entries[rank].passed);
    bool ahead = false;
    for (int other = 0; other < board->ranks && passed > 0; other++)
        ahead |= coll_board_has_said(board, other, COLL_ROUND_REACHED) &&
                 word_of(board, other, COLL_ROUND_REACHED)->index < passed;
    return ahead;
}

/* Checks one rank, whoever else has said something. */
static enum coll_ending look_first_at(const struct coll_board *board, int rank, enum coll_round round)
{
    const bool said = coll_board_has_said(board, rank, round);
    if (said && word_of(board, rank, round)->able == 0)
        return COLL_ENDING_UNABLE;
    const bool came = said || coll_board_has_said(board, rank, COLL_ROUND_PRESENT);
    if (came && !board->is_there(board->whom, rank))
        return COLL_ENDING_ENDED;
    return round == COLL_ROUND_REACHED && is_ahead(board, rank) ? COLL_ENDING_DIFFERS : COLL_ENDING_GO;
}

void coll_board_judge(const struct coll_board *board, enum coll_round round)
{
    if (atomic_load(&board->sheet->decided[round]) != COLL_ENDING_OPEN)
        return;
    const bool all = have_all_said(board, round);
    enum coll_ending ending = COLL_ENDING_GO;
    int about = 0;
    for (int rank = 0; rank < board->ranks && ending == COLL_ENDING_GO; rank++)
        ending = look_first_at(board, about = rank, round);
    for (int rank = 0; rank < board->ranks && all && ending == COLL_ENDING_GO; rank++)
        ending = look_at(board, about = rank, round);
    if (all || ending != COLL_ENDING_GO)
        coll_board_decide(board, round, ending, about);
}

/* ---- Views ------------------------------------------------------------------------------------------------------- */

struct coll_view coll_board_view(const struct coll_board *board, enum coll_round round)
{
    const uint32_t decided = atomic_load(&board->sheet->decided[round]);
    struct coll_view view = {.ending = (enum coll_ending)(decided & ((1u << ENDING_BITS) - 1)),
                             .about = (int)(decided >> ENDING_BITS),
                             .all = have_all_said(board, COLL_ROUND_PRESENT)};
    for (int rank = 0; rank < board->ranks; rank++) {
        if (coll_board_has_said(board, rank, COLL_ROUND_REACHED))
            view.paired |= word_of(board, rank, COLL_ROUND_REACHED)->paired != 0;
        if (coll_board_has_said(board, rank, round))
            continue;
        if (view.absent < COLL_NAMED_MAX)
            view.named[view.absent] = rank;
        view.absent++;
    }
    return view;
}
