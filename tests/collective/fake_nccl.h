/* NCCL's functions as collective/api.h lists them, which the build compares with NCCL's own header, and what a fake
 * NCCL tells of the calls that reached it. */
#ifndef STRAIT_TESTS_COLLECTIVE_FAKE_NCCL_H
#define STRAIT_TESTS_COLLECTIVE_FAKE_NCCL_H

#include "collective/api.h"

#define FAKE_VISIBLE    __attribute__((visibility("default")))
#define COLLECTIVE_TAIL coll_comm comm, coll_stream stream

/* A fake defines pncclNAME, with a weak alias ncclNAME. */
#define X(returns, name, parameters, ...)      \
    COLL_TYPE_##returns nccl##name parameters; \
    COLL_TYPE_##returns pnccl##name parameters;
COLL_API(X)
#undef X
#define ALIAS(name) __typeof__(nccl##name) nccl##name __attribute__((weak, alias("pnccl" #name)));

/* ---- What the fake tells, and is told; found with dlsym. Of the calling thread ----------------------------------- */

/* The lines of the calls that have come since the last time, one for each: its name and arguments. */
const char *fake_take(void);
/* From now on: what functions return, and whether they do no more than that. */
void fake_answer(int result, int blind);
const char *fake_last_error(void);

#define FAKE_VERSION     23203
#define FAKE_VERSION_OLD 21805

/* Writes a line, and returns what this thread is to be answered. */
__attribute__((format(printf, 1, 2), visibility("hidden"))) int told(const char *format, ...);

#endif
