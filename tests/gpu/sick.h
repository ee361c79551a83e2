/* A daemon whose first GPU is to fail or to stall, and its peer. */
#ifndef STRAIT_TESTS_GPU_SICK_H
#define STRAIT_TESTS_GPU_SICK_H

#include "tests/gpu/scenes.h"

struct sick {
    struct daemon_process daemons[2];
    struct strait_client *clients[2];
    struct gpu_pool *pool, *peers; /* the one on that GPU, and whom it moves pages with */
    struct gpu_pool *host, *hosts;
    struct gpu_pool *near; /* on the last GPU of that daemon; NULL: there is but one */
    bool sinks;            /* it is the sink's */
};

/* `more`: an option of that daemon, or NULL. False: nothing can be done to GPUs here. */
bool sick_open(struct sick *sick, bool sinks, const char *more);
void sick_close(struct sick *sick);
void sick_break(struct sick *sick); /* its first GPU; nobody has been told yet */

/* A transfer of all pages between that GPU and the peer. */
struct pair {
    struct flow offer, expect;
    struct flow *own, *others; /* the sick daemon's, and the other */
};
void pair_begin(struct pair *pair, struct sick *sick, const char *key);
/* Both sides are told soon, and the sick daemon's why. */
void pair_fails(struct pair *pair, struct sick *sick, const char *what);
/* Of a pair that begins when the GPU has failed. */
void later_fails(struct pair *p, struct sick *s);
/* LOCAL, as the first GPU has failed. */
void require_reason(const struct flow *flow);

#endif
