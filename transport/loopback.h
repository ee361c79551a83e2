/* A network inside one thread, with faults on request, for tests of the layers above. The transports of the process
 * find each other through link_address; all of them belong to one thread. A chunk is copied from the sender's buffer to
 * the landing when it is due, so `sent` comes with the delivery.
 *
 * Which chunk meets which fault depends only on the seed and on the order of sends, so a run can be repeated.
 *
 * The options of transport_create, for the transport that sends, are the members of struct loopback_faults by name,
 * such as "seed=7 delay_us=500 lose=10". */
#ifndef STRAIT_TRANSPORT_LOOPBACK_H
#define STRAIT_TRANSPORT_LOOPBACK_H

#include "transport/transport.h"

/* Faults of the chunks that a transport sends. Rates are per mille of the chunks; a chunk meets at most one of them, in
 * the order given here. */
struct loopback_faults {
    uint32_t seed;
    uint32_t delay_us;  /* every chunk takes this long */
    uint32_t jitter_us; /* plus up to this much, so that chunks overtake one another */
    uint32_t lose;      /* the sender hears OK, the receiver nothing */
    uint32_t fail;      /* the sender hears ERR_IO, the receiver nothing */
    uint32_t truncate;  /* half of it arrives, and is announced as such */
    uint32_t garble;    /* half of it lands, then `arrived` says ERR_IO; the sender hears OK */
    uint32_t corrupt;   /* one bit is changed */
    uint32_t duplicate; /* it arrives twice */
    uint32_t cut_after; /* the link breaks at the first chunk after this many; 0: never */
};

extern const struct transport_ops transport_loopback;

/* Takes effect from the next send on. */
void loopback_set_faults(struct transport *transport, const struct loopback_faults *faults);

/* Breaks the link on both sides, like a lost connection. */
void loopback_cut(struct link *link);

/* While a link is stalled, nothing that its peer sent is delivered to it, as if its process were stopped; what the peer
 * sends waits. */
void loopback_stall(struct link *link, bool stalled);

#endif
