/* A fuzz target: what libFuzzer calls, and what regression_driver.c calls without it. A finding is a crash or a
 * require() that fails. */
#ifndef STRAIT_TESTS_FUZZ_H
#define STRAIT_TESTS_FUZZ_H

#include "tests/support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
