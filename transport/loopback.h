/* A network inside one thread, with faults to order: for the tests of what lies above. Transports of the process find
 * each other through link_address; all of them belong to one thread. Chunks are copied from the sender's buffer to the
 * landing when they are due, so `sent` comes with the delivery.
 *
 * Which chunk meets which fault depends only on the seed and on the order of sends: a run can be repeated.
 *
 * Options of transport_create, of the transport that sends: the members of struct loopback_faults by their names, such
 * as "seed=7 delay_us=500 lose=10". */
#ifndef STRAIT_TRANSPORT_LOOPBACK_H
#define STRAIT_TRANSPORT_LOOPBACK_H

#include "transport/transport.h"

/* Faults of what a transport sends. Rates are per mille of the chunks; one chunk meets at most one of them, in the
 * order given here. */
struct loopback_faults {
    uint32_t seed;
    uint32_t delay_us;  /* every chunk takes this long */
    uint32_t jitter_us; /* and up to this much more, so that chunks overtake one another */
    uint32_t lose;      /* the sender hears OK, the receiver nothing */
    uint32_t fail;      /* the sender hears ERR_IO, the receiver nothing */
    uint32_t truncate;  /* half of it arrives, and is announced as such */
    uint32_t garble;    /* half of it lands, then `arrived` says ERR_IO; the sender hears OK */
    uint32_t corrupt;   /* it arrives with one bit changed */
    uint32_t duplicate; /* it arrives twice */
    uint32_t cut_after; /* the link breaks instead of taking this many chunks plus one; 0: never */
};

extern const struct transport_ops transport_loopback;

/* From the next send on. */
void loopback_set_faults(struct transport *transport, const struct loopback_faults *faults);

/* Breaks the link on both sides, as a lost connection does. */
void loopback_cut(struct link *link);

/* While stalled nothing that this link's peer sent is delivered to it; what is sent waits. As a stopped process does.
 */
void loopback_stall(struct link *link, bool stalled);

#endif
