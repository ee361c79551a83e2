/* How long the machine kept everybody waiting. What the service promises in time it promises on a machine that runs
 * whoever is ready; tests share theirs with others, and at times it stands still for a second. A limit that is meant
 * exactly is compared with what passed less this. */
#ifndef STRAIT_TESTS_MACHINE_H
#define STRAIT_TESTS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* Starts a process, which ends with this one, that sleeps a millisecond again and again and counts what came on top.
 * Before threads and forks: processes that are forked later read the same count. */
bool machine_watch(void);

/* In all, since then; 0 where nobody watches. On a machine that keeps up it does not grow. */
uint64_t machine_late_ns(void);

static inline uint64_t machine_late_ms(void)
{
    return machine_late_ns() / 1000000;
}

#endif
