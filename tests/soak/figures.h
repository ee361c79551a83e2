/* A daemon's figures, as /metrics tells them, and as the kernel does. */
#ifndef STRAIT_TESTS_SOAK_FIGURES_H
#define STRAIT_TESTS_SOAK_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/soak/daemon.h"

/* The text of GET /metrics; the caller frees it. NULL: no answer. */
char *figures_fetch(const struct soak_daemon *daemon);
/* The value of a name, with its labels; -1: there is none. */
int64_t figure_read(const char *text, const char *name);
/* Sum over all labels. */
int64_t figure_sum(const char *text, const char *family);

/* Seconds below which a share of a histogram lies, interpolated in its bucket; -1: empty or not told. */
double figure_quantile(const char *text, const char *family, double quantile);

struct process_size {
    uint64_t resident, anonymous; /* bytes; resident has pools and arenas in it, anonymous the heap only */
    uint32_t descriptors, threads;
};

bool process_size_read(pid_t pid, struct process_size *size);

#endif
