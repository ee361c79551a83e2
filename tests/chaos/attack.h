/* Strangers that write garbage to a daemon's ports. */
#ifndef TESTS_CHAOS_ATTACK_H
#define TESTS_CHAOS_ATTACK_H

#include "tests/chaos/world.h"

/* Both return the number of connections that were made and written to. */
uint32_t attack_ucx(struct world *w, int side);   /* every port that it listens on, except control and metrics */
uint32_t attack_ports(struct world *w, int side); /* control, metrics and the unix socket */

#endif
