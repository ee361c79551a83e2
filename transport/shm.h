/* Shared memory between two daemons of one host: each maps the other's receive arena and stores into it. The unix
 * socket carries only a hello each way and then a small record per chunk, in order. Its end tells at once that the peer
 * has died, and proves that the peer stores no more; only then is a link closed.
 *
 * If both take rings (internal/ring.h), the accepted side makes them, and its hello has a second memfd: records go
 * through one pair of them, the other pair is the owners'. The socket then carries bytes of any value that wake a side
 * that sleeps, and at the end the farewell.
 *
 * All integers are little-endian. Hello, with the arena's memfd by SCM_RIGHTS:
 *   0 4 "SHM1" | 4 4 zero | 8 8 bytes of the arena | 16 8 zero
 * Record:
 *   0 4 "CHNK" | 4 4 bytes of the header, at most TRANSPORT_HEADER_MAX | 8 8 bytes of the chunk | 16 the header
 * The accepted side says hello first: the socket carried another protocol before, in which the other side had the last
 * word.
 *
 * A peer can make this side's stores fault (by a huge page that cannot be allocated, for one): the daemons of a host
 * trust each other that far, but no further. Options: none. */
#ifndef STRAIT_TRANSPORT_SHM_H
#define STRAIT_TRANSPORT_SHM_H

#include "transport/transport.h"

/* Address for link_connect of an accepted link (one byte): the dialler takes rings. Otherwise it is empty. */
#define SHM_TAKES_RINGS 'R'

extern const struct transport_ops transport_shm;

#endif
