/* Strangers who write rubbish to a daemon's ports. */
#ifndef TESTS_CHAOS_ATTACK_H
#define TESTS_CHAOS_ATTACK_H

#include "tests/chaos/world.h"

/* Both return how many connections were made and written to. */
uint32_t attack_ucx(struct world *w, int side);   /* whatever else than control and metrics it listens on */
uint32_t attack_ports(struct world *w, int side); /* control, metrics and the unix socket */

/* Connections of strangers who are gone that UCX has not closed: version 1.13 waits for ever for the rest of a message
 * whose length came, and does not look whether anybody is there to send it. */
uint32_t attack_left(const struct side *s);

#endif
