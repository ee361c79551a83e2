/* Streams of the fake driver, for tests in C: work on them tells when it has run. */
#ifndef STRAIT_TESTS_FAKE_CUDA_STREAMS_H
#define STRAIT_TESTS_FAKE_CUDA_STREAMS_H

#include <stdatomic.h>

#include "tests/fakes/cuda.h"

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuCtxGetCurrent(void **context);
int cuStreamCreate(void **stream, unsigned flags);

/* A stream on a device, of a context that is not current afterwards. */
static inline void *stream_make(int device)
{
    void *context, *stream;
    demand(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, device) == 0 && cuCtxPushCurrent_v2(context) == 0);
    demand(cuStreamCreate(&stream, 1) == 0 && cuCtxPopCurrent_v2(&context) == 0);
    return stream;
}

static inline void stream_count_(void *counter)
{
    atomic_fetch_add((atomic_int *)counter, 1);
}

/* Adds one when the stream comes to it. */
static inline void stream_mark(void *stream, atomic_int *counter)
{
    demand(fake_queue(stream, stream_count_, counter) == 0);
}

#endif
