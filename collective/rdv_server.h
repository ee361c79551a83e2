/* Rendezvous server for communicator bootstrap over TCP, run by the process that called ncclGetUniqueId, as NCCL's
 * bootstrap root is. One poll loop; connections authenticate by a secret that travels in the unique id.
 *
 * All input is untrusted: a connection until it has shown the secret, and its requests even then. A peer that breaks a
 * rule is disconnected, without harm to others. The number of connections and the time of half a frame are limited. The
 * server waits for nobody, calls no NCCL, and launches nothing. */
#ifndef STRAIT_COLLECTIVE_RDV_SERVER_H
#define STRAIT_COLLECTIVE_RDV_SERVER_H

#include "collective/rendezvous.h"
#include "collective/call.h"
#include "collective/reduce.h"

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

/* One entry, with its vote, for each communicator whose ranks join here, found by its key. An entry is freed with its
 * last connection if all ranks have joined. Otherwise it is kept, so that a late rank gets the result of the others,
 * until newer entries need the room. */

/* Larger communicators do not join. */
enum { RDV_ENTRIES_MAX = 256, RDV_RANKS_MAX = COLL_REDUCE_SOURCES_MAX };

struct rdv_entries {
    struct rdv_entry *newest;
    unsigned count;
};

/* Rank of an entry. */
struct rdv_slot {
    struct rdv_entry *entry; /* NULL: none */
    int rank;
};

/* False: this rank, connected by `socket`, is refused. */
bool rdv_admit(struct rdv_entries *entries, const struct rdv_hello *hello, int socket, struct rdv_slot *slot);
/* Handles a request; *state is the answer, if it has one. False: the request breaks a rule, or is RDV_LEAVE. */
bool rdv_handle(const struct rdv_slot *slot, const struct rdv_request *request, struct coll_vote_state *state);
/* The rank's connection has ended, or is about to. The entry may be freed. */
void rdv_depart(struct rdv_entries *entries, struct rdv_slot *slot);
/* Frees all entries. */
void rdv_entries_free(struct rdv_entries *entries);

/* ---- The server -------------------------------------------------------------------------------------------------- */

struct rdv_server;

/* NULL: no address to listen at, or no memory. */
struct rdv_server *rdv_server_open(struct coll_rdv_endpoint *endpoint);
/* Waits for events, for at most so many milliseconds; -1: without limit. */
void rdv_server_wait(struct rdv_server *server, int milliseconds);
/* Handles the events that rdv_server_wait has found. */
void rdv_server_progress(struct rdv_server *server);
/* Takes over a connection that was accepted elsewhere. */
void rdv_server_adopt(struct rdv_server *server, int socket);
/* Closes this process's descriptors; a forked child may do so while its parent goes on serving. */
void rdv_server_close(struct rdv_server *server);

/* Numbers of connections and of entries. */
void rdv_server_counts(const struct rdv_server *server, unsigned *conns, unsigned *entries);

/* ---- Unique ids -------------------------------------------------------------------------------------------------- */

/* Payload of ncclUniqueId: NCCL uses only the first bytes of an id and leaves the others zero, where the endpoint of
 * the server of this process, started by the first id, is stored. An id whose last bytes are in use stays unchanged.
 * Any thread. */
void coll_unique_id_put(coll_id *id);
/* An id without a payload gives an endpoint of zeros. */
void coll_unique_id_read(const coll_id *id, struct coll_rdv_endpoint *endpoint);

/* Around fork. In the child, coll_unique_id_clear before unlocking drops the parent's server; the child's first id
 * starts one of its own. */
void coll_unique_id_lock(void);
void coll_unique_id_unlock(void);
void coll_unique_id_clear(void);

#endif
