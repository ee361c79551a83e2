/* How long the machine stalled all processes. The service's time limits hold on a machine that runs every process that
 * is ready; test machines are shared and sometimes stand still for a second. A test of an exact limit subtracts this
 * time from the time that passed. */
#ifndef STRAIT_TESTS_MACHINE_H
#define STRAIT_TESTS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* Starts a process, which ends with this one, that repeatedly sleeps a millisecond and adds up the excess. Call it
 * before threads and forks: processes that are forked later read the same count. */
bool machine_watch(void);

/* Total stall time since machine_watch; 0 if it was not called. On a machine that keeps up it does not grow. */
uint64_t machine_late_ns(void);

static inline uint64_t machine_late_ms(void)
{
    return machine_late_ns() / 1000000;
}

#endif
