/* Between the parts of the fake NCCL. */
#ifndef STRAIT_TESTS_COLLECTIVE_FAKE_CALLS_H
#define STRAIT_TESTS_COLLECTIVE_FAKE_CALLS_H

#include "tests/collective/fake_nccl.h"

/* As NCCL names its functions. */
#define ALIAS(name) __typeof__(nccl##name) nccl##name __attribute__((weak, alias("pnccl" #name)));

/* Writes a line, and returns what this thread is to be answered. */
__attribute__((format(printf, 1, 2), visibility("hidden"))) int told(const char *format, ...);

#endif
