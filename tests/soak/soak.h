/* The runs of the soak test. Each complains about what is wrong; that decides the exit status. */
#ifndef STRAIT_TESTS_SOAK_SOAK_H
#define STRAIT_TESTS_SOAK_SOAK_H

#include <stdbool.h>
#include <stdint.h>

struct soak_options {
    const char *daemon; /* the program */
    const char *transport, *scenario;
    uint32_t seconds, concurrency, stall_ms;
};

/* A load of everything for `seconds`, its errors, its figures. */
void soak_mixed(const struct soak_options *options);
/* Arenas of one chunk, shared by slow and ready sources. */
void soak_one_slot(const struct soak_options *options, const char *transport);
/* One transfer that runs out of time among many. */
void soak_deadline(const struct soak_options *options, const char *transport);
/* Either daemon comes back, then both. */
void soak_restart(const struct soak_options *options, const char *transport);

#endif
