/* Figures of each peer, by the address that it is known by: they outlive its connections, and are bounded in number. */
#ifndef STRAIT_DAEMON_PEER_FIGURES_H
#define STRAIT_DAEMON_PEER_FIGURES_H

#include "daemon/base/metrics.h"
#include "daemon/peers/peer.h"

#define PEER_FIGURES_MAX 128u /* peers with figures of their own; those beyond share `others` */

/* What failed. */
enum peer_failure {
    PEER_FAILED_TRANSFER,   /* a transfer's leg to or from the peer, unless a side aborted it */
    PEER_FAILED_CHUNK,      /* a chunk was not carried, or was damaged */
    PEER_FAILED_CONNECTION, /* a connection that was up was lost */
    PEER_FAILURES,
};

/* Counters since the daemon's start, or since the address got a row. */
struct peer_figures {
    struct peer_figures *prev, *next;
    char address[MESSAGE_ADDRESS_MAX + 1];
    uint32_t uses; /* connections from up to quiet: a row that has one is kept */
    uint64_t used; /* when it was last taken: the largest is the latest */
    uint64_t raw_bytes_sent, wire_bytes_sent, chunks_sent;
    uint64_t raw_bytes_landed, wire_bytes_landed, chunks_landed;
    uint64_t wires[WIRE_NONE], ucx_gpus; /* of wire_bytes_sent, as in struct metrics */
    uint64_t failures[PEER_FAILURES];
    /* Gauges, refreshed before they are printed. */
    uint64_t connections, by_transport[TRANSPORTS];
    uint64_t round_trip_us; /* the shortest of its connections; 0: not measured yet */
};

struct peer_figures_table {
    struct peer_figures *list; /* utlist */
    uint32_t count;
    uint64_t turn;
    struct peer_figures
        others; /* of peers without a row, and of rows that were given up: sums over all rows only rise */
};

void peer_figures_init(struct peer_figures_table *table);
void peer_figures_fini(struct peer_figures_table *table);
/* Row for a connection to this address; give it back with peer_figures_leave. Where there are too many, the one that
 * was not in use for longest is given up. */
struct peer_figures *peer_figures_take(struct peer_figures_table *table, const char *address);
void peer_figures_leave(struct peer_figures *figures);
/* Counting. Figures of NULL are those of a peer that is gone: nothing is counted. */
void peer_figures_sent(struct peer_figures *figures, struct chunk_path path, uint64_t bytes, uint64_t raw_bytes);
void peer_figures_arrived(struct peer_figures *figures, uint64_t bytes);
void peer_figures_landed(struct peer_figures *figures, uint64_t raw_bytes);
void peer_figures_failed(struct peer_figures *figures, enum peer_failure what);
void peer_figures_verdict(struct peer_figures *figures, enum strait_reason reason); /* of a transfer's leg */

/* Calls f for each row, and last for the others. */
void peer_figures_each(struct peer_figures_table *table, void (*f)(void *arg, struct peer_figures *figures), void *arg);

#endif
