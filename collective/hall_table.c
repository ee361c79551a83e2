#include "collective/hall_table.h"

#include <poll.h>
#include <stdlib.h>

struct hall_table {
    struct hall_table *older;
    uint64_t words[2];
    unsigned seated;
    struct coll_board board;
    int sockets[HALL_RANKS_MAX]; /* by rank; -1: nobody */
};

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* Also false if there is unread data before the end: nobody waits for the answer. */
static bool is_there(const void *whom, int rank)
{
    const struct hall_table *table = whom;
    struct pollfd look = {.fd = table->sockets[rank], .events = POLLRDHUP};
    return look.fd >= 0 && poll(&look, 1, 0) == 0;
}

static void end(struct hall_tables *tables, struct hall_table *ended)
{
    struct hall_table **at = &tables->newest;
    while (*at != ended)
        at = &(*at)->older;
    *at = ended->older;
    tables->count--;
    free(ended->board.sheet);
    free(ended);
}

/* Frees the oldest table at which nobody sits. */
static bool make_room(struct hall_tables *tables)
{
    struct hall_table *oldest = NULL;
    for (struct hall_table *table = tables->newest; table != NULL; table = table->older)
        oldest = table->seated == 0 ? table : oldest;
    if (oldest != NULL)
        end(tables, oldest);
    return oldest != NULL;
}

static struct hall_table *make(struct hall_tables *tables, const struct meet_hello *hello)
{
    if (tables->count == HALL_TABLES_MAX && !make_room(tables))
        return NULL;
    struct hall_table *made = calloc(1, sizeof(*made));
    struct coll_sheet *sheet = calloc(1, coll_sheet_size((int)hello->ranks));
    if (made == NULL || sheet == NULL) {
        free(made);
        free(sheet);
        return NULL;
    }
    *made =
        (struct hall_table){.older = tables->newest,
                            .words = {hello->words[0], hello->words[1]},
                            .board = {.sheet = sheet, .ranks = (int)hello->ranks, .is_there = is_there, .whom = made}};
    for (int rank = 0; rank < HALL_RANKS_MAX; rank++)
        made->sockets[rank] = -1;
    tables->newest = made;
    tables->count++;
    return made;
}

static struct hall_table *find(const struct hall_tables *tables, const struct meet_hello *hello)
{
    struct hall_table *table = tables->newest;
    while (table != NULL && (table->words[0] != hello->words[0] || table->words[1] != hello->words[1]))
        table = table->older;
    return table;
}

/* ---- Seats ------------------------------------------------------------------------------------------------------- */

bool hall_sit(struct hall_tables *tables, const struct meet_hello *hello, int socket, struct hall_seat *seat)
{
    if (hello->ranks < 2 || hello->ranks > HALL_RANKS_MAX || hello->rank >= hello->ranks)
        return false;
    const int rank = (int)hello->rank;
    struct hall_table *table = find(tables, hello);
    if (table == NULL)
        table = make(tables, hello);
    if (table == NULL || table->board.ranks != (int)hello->ranks || table->sockets[rank] >= 0 ||
        coll_board_has_said(&table->board, rank, COLL_ROUND_PRESENT))
        return false;
    table->sockets[rank] = socket;
    table->seated++;
    *seat = (struct hall_seat){table, rank};
    return true;
}

/* One word for each round, and COLL_ROUND_PRESENT before all others. */
static bool may_say(const struct hall_seat *seat, enum coll_round round)
{
    const struct coll_board *board = &seat->table->board;
    return !coll_board_has_said(board, seat->rank, round) &&
           (round == COLL_ROUND_PRESENT || coll_board_has_said(board, seat->rank, COLL_ROUND_PRESENT));
}

static void leave(const struct hall_seat *seat)
{
    for (int round = 0; round < COLL_ROUNDS; round++)
        coll_board_decide(&seat->table->board, (enum coll_round)round, COLL_ENDING_LEFT, seat->rank);
}

bool hall_hear(const struct hall_seat *seat, const struct meet_request *request, struct coll_view *view)
{
    const struct coll_board *board = &seat->table->board;
    if (request->action == MEET_SAY) {
        if (!may_say(seat, request->round))
            return false;
        coll_board_say(board, seat->rank, request->round, &request->word);
        coll_board_judge(board, request->round);
    } else if (request->action == MEET_GIVE_UP) {
        coll_board_decide(board, request->round, COLL_ENDING_ABSENT, seat->rank);
    } else if (request->action == MEET_PASS) {
        coll_board_pass(board, seat->rank, request->word.index);
        coll_board_judge(board, COLL_ROUND_REACHED);
    } else if (request->action == MEET_LEAVE) {
        leave(seat);
        return false;
    }
    *view = coll_board_view(board, request->round);
    return true;
}

/* Decides for the others what can be told now. */
void hall_rise(struct hall_tables *tables, struct hall_seat *seat)
{
    struct hall_table *table = seat->table;
    const int rank = seat->rank;
    if (table == NULL)
        return;
    table->sockets[rank] = -1;
    table->seated--;
    *seat = (struct hall_seat){0};
    for (int round = 0; round < COLL_ROUNDS; round++)
        coll_board_judge(&table->board, (enum coll_round)round);
    const struct coll_view view = coll_board_view(&table->board, COLL_ROUND_PRESENT);
    if (table->seated == 0 && (view.all || view.ending == COLL_ENDING_OPEN))
        end(tables, table);
}

void hall_clear(struct hall_tables *tables)
{
    while (tables->newest != NULL)
        end(tables, tables->newest);
}
