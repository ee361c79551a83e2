/* A relay of TCP connections in front of daemons, in a process of its own: what stands between them can be cut. */
#ifndef STRAIT_TESTS_SOAK_RELAY_H
#define STRAIT_TESTS_SOAK_RELAY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { RELAY_FRONTS_MAX = 3 };

/* Each port in front leads to the one behind, of the same host. */
struct relay {
    const char *host; /* numeric */
    uint32_t count;
    unsigned front[RELAY_FRONTS_MAX], behind[RELAY_FRONTS_MAX]; /* of 1 .. 65535 */
    pid_t pid;                                                  /* 0: it does not run */
    int orders;                                                 /* a pipe */
};

/* Host, count and ports are given. False: errno tells. It ends with this process, or by relay_stop. */
bool relay_start(struct relay *relay);
/* Closes all connections and refuses new ones for so many ms. Returns at once. */
void relay_cut(struct relay *relay, uint32_t ms);
/* Nothing happens to one that does not run. */
void relay_stop(struct relay *relay);

#endif
