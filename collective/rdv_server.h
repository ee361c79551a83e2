#ifndef STRAIT_COLLECTIVE_RDV_SERVER_H
#define STRAIT_COLLECTIVE_RDV_SERVER_H

#include "collective/rendezvous.h"
#include "collective/call.h"
#include "collective/reduce.h"

/* The boards of a hall (hall.h): one for each communicator whose ranks meet there, found by its key. No I/O except
 * checking whether a connection has ended.
 *
 * All input is untrusted: hall_hear and hall_sit reject a rank that breaks a rule, so that it is disconnected, and
 * others come to no harm. A board goes with its last rank if all have come, as no other rank will. Otherwise it stays,
 * so that a late rank hears what the others have heard, until newer boards take up all the room. */

/* Larger communicators do not join. */
enum { RDV_ENTRIES_MAX = 256, RDV_RANKS_MAX = COLL_REDUCE_SOURCES_MAX };

struct rdv_entries {
    struct rdv_entry *newest;
    unsigned count;
};

/* A rank's place at a table. */
struct rdv_slot {
    struct rdv_entry *entry; /* NULL: none */
    int rank;
};

/* False: this rank, connected by `socket`, is refused. */
bool rdv_admit(struct rdv_entries *entries, const struct rdv_hello *hello, int socket, struct rdv_slot *slot);
/* Does what is requested; *view is the answer, if there is one. False: it breaks a rule, or is MEET_LEAVE. */
bool rdv_handle(const struct rdv_slot *slot, const struct rdv_request *request, struct coll_vote_state *state);
/* The rank's connection has ended, or is about to. The table may be freed. */
void rdv_depart(struct rdv_entries *entries, struct rdv_slot *slot);
/* Frees all tables. */
void rdv_entries_free(struct rdv_entries *entries);

/* A process's place to meet (meeting.h), for ranks anywhere: it listens, and answers their requests. A connection is
 * untrusted until it shows the secret, and its requests are validated even then. The number of connections, and how
 * long half a frame may last, are limited. Nothing here waits for anybody, calls NCCL, or launches anything. */

struct rdv_server;

/* NULL: it cannot listen anywhere, or there is no memory. */
struct rdv_server *rdv_server_open(struct coll_rdv_endpoint *endpoint);
/* Waits until there is something to do, for at most so many milliseconds; -1: without limit. */
void rdv_server_wait(struct rdv_server *server, int milliseconds);
/* Does what there is to do then. */
void rdv_server_progress(struct rdv_server *server);
/* Takes over a connection that was accepted elsewhere. */
void rdv_server_adopt(struct rdv_server *server, int socket);
/* Closes what this process has of it; a forked child may do so while its parent goes on. */
void rdv_server_close(struct rdv_server *server);

/* Numbers of connections and of boards. */
void rdv_server_counts(const struct rdv_server *server, unsigned *conns, unsigned *entries);

/* The place where ranks meet travels in the unique id: NCCL uses only its first bytes and leaves the others zero. There
 * the process that asks for an id puts a card with its own place (hall.h), which it opens then. An id that already has
 * something there stays unchanged. Any thread. */

void coll_unique_id_put(coll_id *id);
/* If there is none, *place is all zero. */
void coll_unique_id_read(const coll_id *id, struct coll_rdv_endpoint *endpoint);

/* Around fork. In the child, coll_card_clear before unlocking forgets the parent's place; the child will open its
 * own. */
void coll_unique_id_lock(void);
void coll_unique_id_unlock(void);
void coll_unique_id_clear(void);

#endif
