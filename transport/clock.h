/* Monotonic time. */
#ifndef STRAIT_TRANSPORT_CLOCK_H
#define STRAIT_TRANSPORT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

#endif
