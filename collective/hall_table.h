/* The boards of a hall (hall.h): one for each communicator whose ranks meet there, found by its key. No I/O but a look
 * at whether a connection has ended.
 *
 * All that comes is foreign: who breaks a rule is told so, to be hung up on, and does no harm to others. A board goes
 * with its last rank when all have come, as no other one will. Else it stays, so that a rank that comes late hears what
 * the others have: until as many newer ones are there as there is room for. */
#ifndef STRAIT_COLLECTIVE_HALL_TABLE_H
#define STRAIT_COLLECTIVE_HALL_TABLE_H

#include "collective/meeting_frame.h"
#include "collective/reduce.h"

/* Of more ranks none join. */
enum { HALL_TABLES_MAX = 256, HALL_RANKS_MAX = COLL_REDUCE_SOURCES_MAX };

struct hall_tables {
    struct hall_table *newest;
    unsigned count;
};

/* A rank's. */
struct hall_seat {
    struct hall_table *table; /* NULL: none */
    int rank;
};

/* False: it is not for this one, who has `socket`. */
bool hall_sit(struct hall_tables *tables, const struct meet_hello *hello, int socket, struct hall_seat *seat);
/* Does what is asked for; *view is the answer, if it has one. False: it breaks a rule, or is MEET_LEAVE. */
bool hall_hear(const struct hall_seat *seat, const struct meet_request *request, struct coll_view *view);
/* Its connection has ended, or will. The table may go. */
void hall_rise(struct hall_tables *tables, struct hall_seat *seat);
/* All of them. */
void hall_clear(struct hall_tables *tables);

#endif
