/* Strangers who write rubbish to a daemon's ports. */
#ifndef TESTS_CHAOS_ATTACK_H
#define TESTS_CHAOS_ATTACK_H

#include "tests/chaos/world.h"

/* Both return how many connections were made and written to. */
uint32_t attack_ucx(struct world *w, int side);   /* whatever else than control and metrics it listens on */
uint32_t attack_ports(struct world *w, int side); /* control, metrics and the unix socket */

#endif
