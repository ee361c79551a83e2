/* The boards of a hall (hall.h): one for each communicator whose ranks meet there, found by its key. No I/O except
 * checking whether a connection has ended.
 *
 * All input is untrusted: hall_hear and hall_sit reject a rank that breaks a rule, so that it is disconnected, and
 * others come to no harm. A board goes with its last rank if all have come, as no other rank will. Otherwise it stays,
 * so that a late rank hears what the others have heard, until newer boards take up all the room. */
#ifndef STRAIT_COLLECTIVE_HALL_TABLE_H
#define STRAIT_COLLECTIVE_HALL_TABLE_H

#include "collective/meeting_frame.h"
#include "collective/reduce.h"

/* Larger communicators do not join. */
enum { HALL_TABLES_MAX = 256, HALL_RANKS_MAX = COLL_REDUCE_SOURCES_MAX };

struct hall_tables {
    struct hall_table *newest;
    unsigned count;
};

/* A rank's place at a table. */
struct hall_seat {
    struct hall_table *table; /* NULL: none */
    int rank;
};

/* False: this rank, connected by `socket`, is refused. */
bool hall_sit(struct hall_tables *tables, const struct meet_hello *hello, int socket, struct hall_seat *seat);
/* Does what is requested; *view is the answer, if there is one. False: it breaks a rule, or is MEET_LEAVE. */
bool hall_hear(const struct hall_seat *seat, const struct meet_request *request, struct coll_view *view);
/* The rank's connection has ended, or is about to. The table may be freed. */
void hall_rise(struct hall_tables *tables, struct hall_seat *seat);
/* Frees all tables. */
void hall_clear(struct hall_tables *tables);

#endif
