/* A process that makes unique ids and is asked by ranks, for as long as a test lets it. */
#ifndef STRAIT_TESTS_COLL_ENGINE_MAKER_H
#define STRAIT_TESTS_COLL_ENGINE_MAKER_H

#include <stdbool.h>
#include <sys/types.h>

#include "collective/api.h"

struct maker {
    pid_t process;
    coll_id ids[2];
};

struct maker maker_begin(void);
void maker_end(const struct maker *maker); /* by kill -9 */
/* Returns when it has stopped. Its system still takes connections, but nobody answers. */
void maker_stop(const struct maker *maker);
void maker_go_on(const struct maker *maker);

/* Waits until so many connections of this process have been made, whoever to. */
void await_connected(int count);

#endif
