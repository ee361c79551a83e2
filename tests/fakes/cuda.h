/* A driver for the tests of what stands between applications and GPUs, in place of libcuda.so.1: the part of its
 * interface that is used here, for two devices whose memory is the host's and whose streams are those of fakes/gpu.h.
 *
 * It takes nothing for granted: memory that work on a stream touches must be a device's or pinned, contexts must be
 * current where the driver demands one; what is not so ends the program. Its IPC handles are those of
 * tests/fakes/device.h, so that the daemon's fake plugin opens them. */
#ifndef STRAIT_TESTS_FAKE_CUDA_H
#define STRAIT_TESTS_FAKE_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/fakes/gpu.h"

/* What the tests tell it, and learn of it: the symbol "fake_cuda_control". */
struct fake_cuda_control {
    _Atomic uint32_t delay_us;    /* before all that runs on a stream */
    _Atomic uint32_t mapped_only; /* allocations from now on are of the kind that has no IPC handles */
    _Atomic uint32_t capturing;   /* all streams are */
    _Atomic uint32_t fail;        /* this many of the next calls that queue work fail */
    /* Counted. */
    _Atomic uint32_t launches, waits, synchronised;
    _Atomic int32_t device_bytes, pinned_bytes, events, streams; /* that are there now */
};

/* The prototypes of the driver's functions are in a header that may not be here. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define FAKE_VISIBLE __attribute__((visibility("default")))

/* Results, as the driver numbers them. */
enum {
    FAKE_OK = 0,
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_NOT_READY = 600,
    FAKE_LAUNCH_FAILED = 719,
};

extern struct fake_cuda_control fake_cuda_control;

/* ---- For the codec's fake plugin, and tests in C ----------------------------------------------------------------- */

#pragma GCC visibility push(default)
int cuda_device(void); /* of the context that is current; -1: none is */
/* Is it device memory of that device (-1: of any), or pinned? */
bool cuda_is_reachable(const void *bytes, size_t size, int device);
/* Runs it on the stream, in its order. `handle`: as an application names a stream, NULL, 1 and 2 included. */
int cuda_queue(void *handle, void (*run)(void *argument), void *argument);
coll_stream cuda_stream(void *handle); /* NULL: no context is current */
#pragma GCC visibility pop

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
    demand(cuda_queue(stream, stream_count_, counter) == 0);
}

#endif
