/* A driver for the tests of what stands between applications and GPUs, in place of libcuda.so.1: the part of its
 * interface that is used here, for two devices whose memory is the host's and whose streams are threads.
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
#include <stdio.h>
#include <stdlib.h>

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
    FAKE_NOT_SUPPORTED = 801,
};

#define demand(condition)                                                                        \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "fake CUDA: %s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                             \
        }                                                                                        \
    } while (0)

extern struct fake_cuda_control fake_cuda_control;

/* ---- Between its files, and for the codec's fake plugin ---------------------------------------------------------- */

#pragma GCC visibility push(default)
int fake_current_device(void); /* of the context that is current; -1: none is */
/* Is it device memory of that device (-1: of any), or pinned? */
bool fake_is_reachable(const void *bytes, size_t size, int device);
/* Runs it on the stream, in its order. `handle`: as an application names a stream, NULL, 1 and 2 included. */
int fake_queue(void *handle, void (*run)(void *argument), void *argument);
int fake_stream_device(void *handle);
void fake_finish_device(int device); /* waits for all of its streams */
#pragma GCC visibility pop

#endif
