/* Two network namespaces with a link of a chosen rate between them: a pair of virtual Ethernet devices, each with a
 * token bucket. Needs root, ip and tc. */
#ifndef STRAIT_BENCH_TRANSFER_LINK_H
#define STRAIT_BENCH_TRANSFER_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_NAME_BYTES 24

struct bench_link_end {
    char space[LINK_NAME_BYTES];  /* network namespace */
    char device[LINK_NAME_BYTES]; /* in it */
    const char *address;
};

struct bench_link {
    bool made;
    struct bench_link_end ends[2];
};

/* False: `why` says why. On success the caller must bench_link_close() it. */
bool bench_link_open(struct bench_link *link, char *why, size_t why_size);
/* Sets the rate of both directions. False when it failed, with the error on stderr. */
bool bench_link_shape(const struct bench_link *link, double gigabits, uint64_t burst);
/* Removes the namespaces, and with them the devices. Safe on zeroes. */
void bench_link_close(struct bench_link *link);

#endif
