/* Fake GPUs and a fake NCCL to test compressed collectives in one process: GPU memory is the host's, streams are
 * threads, ranks are threads of the test, and what they send each other is copied. A captured stream makes a graph that
 * can be launched any number of times.
 *
 * They tolerate nothing: whatever a GPU or NCCL would refuse, or could not do, ends the program with a line that says
 * so. */
#ifndef STRAIT_TESTS_FAKES_GPU_H
#define STRAIT_TESTS_FAKES_GPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "collective/api.h"

#define demand(condition)                                                                   \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "fake: %s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                        \
        }                                                                                   \
    } while (0)

enum { FAKE_GPUS = 256, FAKE_GPUS_SHOWN = 8 }; /* shown: to programs that ask how many there are */

/* How tests control the GPUs, and what they learn from them. */
struct fake_gpu_control {
    _Atomic uint32_t jitter_us; /* a random delay of up to so long before each piece of work on a stream */
    /* The n-th allocation of an engine from now on (memory, event or stream) fails, on device fail_device, or on any if
     * that is < 0; 0: none fails. */
    _Atomic int32_t fail_making, fail_device;
    _Atomic uint32_t full; /* bits: devices whose memory has no room */
    /* The n-th piece of work that an engine queues from now on is refused. */
    _Atomic int32_t fail_work;
    /* Bits: devices; a thread that queues work on one is held until the bit is cleared. halted: number of threads
     * held. */
    _Atomic uint32_t halt, halted;
    _Atomic bool no_streams;   /* making a stream ends the program, as it might wait for work of other ranks */
    _Atomic uint32_t no_codec; /* bits: devices that have no codec */
    _Atomic uint32_t hurry;    /* divides patience; 0: unchanged */
    _Atomic uint32_t lost;     /* bits: devices that neither offer nor take overflow */
    /* Bits: devices on which what moves overflow cannot be launched; on which a thread that does so is held for ever.
     */
    _Atomic uint32_t refuses, holds;
    _Atomic uint32_t troubled; /* bits: devices that may not run what is launched */
    /* The time that NCCL's moves take as measured by events, by device: nanoseconds, and femtoseconds per byte. */
    _Atomic uint32_t link_ns[FAKE_GPUS], link_fs[FAKE_GPUS];
    /* 0: link_fs is of each byte of an operation. Else link_fs is of each byte that crosses between hosts, by the one
     * link that each of a host's ranks has, and this of those that do not; collectives move as rings do. */
    _Atomic uint32_t near_fs;
    _Atomic uint32_t sum_fs;              /* besides, of what NCCL adds up */
    _Atomic uint32_t ring_fs;             /* of overflow, as measured by events: femtoseconds per byte */
    _Atomic uint32_t shm_fs;              /* of each message that channels in host memory move; 0: there are none */
    _Atomic uint32_t no_shm;              /* bits: devices that have none */
    _Atomic uint32_t codec_fs[FAKE_GPUS]; /* of encoding, and of decoding: femtoseconds per byte of values */
    _Atomic uint32_t hosts[FAKE_GPUS];    /* the host of each device, as NCCL_HOSTID may say */
    const char *_Atomic list; /* the folder in which the host's driver lists its GPUs; NULL: there is none */
    /* The most multiprocessors that a launch of coding or adding was allowed since it was set; all: UINT32_MAX. */
    _Atomic uint32_t sms;
    /* Counters. */
    _Atomic int64_t made;            /* what engines have allocated and not freed */
    _Atomic uint64_t makings;        /* all allocations so far */
    _Atomic uint64_t moved;          /* bytes moved from rank to rank */
    _Atomic uint64_t crossed;        /* bytes moved from host to host; by collectives as by a ring */
    _Atomic uint64_t offered, taken; /* slots of overflow */
    _Atomic uint64_t channelled;     /* pieces that ranks took from channels (shm.h) */
};

struct fake_nccl_control {
    /* The n-th message of at least corrupt_least bytes from now on arrives with the byte at corrupt_at inverted; 0:
     * none. */
    _Atomic int32_t corrupt;
    _Atomic uint32_t corrupt_least, corrupt_at;
    /* Rank differ - 1 has a different byte at differ_at in everything that ranks gather by differ_size bytes; 0:
     * none. */
    _Atomic int32_t differ;
    _Atomic uint32_t differ_at, differ_size;
    /* What rank stand_in - 1 contributes when ranks gather by stand_in_size bytes arrives as these bytes; 0: none. Set
     * the fields below first. */
    _Atomic int32_t stand_in;
    uint32_t stand_in_size;
    uint8_t stand_in_bytes[64];
    /* Rank slow - 1 returns slow_ms later from making its communicator, and not while it is held; 0: none. */
    _Atomic int32_t slow;
    _Atomic uint32_t slow_ms;
    _Atomic bool held;
    /* The next group of rank refuse - 1 is refused when it ends; 0: none. */
    _Atomic int32_t refuse;
    /* Sends and all_gathers from this memory are counted. */
    const uint8_t *watched;
    size_t watched_bytes;
    /* Counters. */
    _Atomic uint32_t watched_sent;
    _Atomic uint64_t counted;              /* questions for the number of ranks */
    _Atomic uint32_t simulated;            /* operations of simulated groups */
    _Atomic uint32_t configured, selected; /* calls with a config, and with one that selects FAKE_SELECTION */
};
#define FAKE_SELECTION "the algorithm of a test"

/* The beginning of ncclConfig_t. blocks 0: calls may return before they are done, and proceed when
 * ncclCommGetAsyncError is called. */
struct fake_config {
    size_t size;
    unsigned magic, version;
    int blocks;
};

#pragma GCC visibility push(default)
extern struct fake_gpu_control fake_gpu;
extern struct fake_nccl_control fake_nccl;

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

int fake_device(void); /* of the calling thread */
void fake_device_set(int device);
void fake_device_wait(int device); /* for all of its streams */

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

coll_stream fake_stream_make(void); /* on the current device */
void fake_stream_end(coll_stream stream);
void fake_stream_wait(coll_stream stream);
bool fake_stream_idle(coll_stream stream);
int fake_stream_device(coll_stream stream);

/* Work gets a copy of its argument, runs on the stream's thread, and runs each time that a graph it is part of is
 * launched. `end`, which may be NULL, gets the argument when the work never runs again. */
typedef void fake_run(coll_stream stream, void *argument);
typedef void fake_end(void *argument);
void fake_occupy(uint32_t sm_budget); /* called for a launch of coding or adding; 0: it may occupy all */
void fake_queue(coll_stream stream, fake_run *run, fake_end *end, const void *argument, size_t size);
void fake_pass_time(coll_stream stream, double seconds); /* called by work, for its own stream */

/* ---- Events ------------------------------------------------------------------------------------------------------ */

struct CUevent_st *fake_event_make(void);
void fake_event_end(struct CUevent_st *event);
void fake_event_record(struct CUevent_st *event, coll_stream stream);
void fake_event_follow(coll_stream stream, struct CUevent_st *event);
void fake_event_record_outside(struct CUevent_st *event, coll_stream stream);
void fake_event_follow_outside(coll_stream stream, struct CUevent_st *event);
bool fake_event_over(struct CUevent_st *event);
void fake_event_wait(struct CUevent_st *event);
double fake_event_seconds(struct CUevent_st *from, struct CUevent_st *to);

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

struct fake_graph;
void fake_capture_begin(coll_stream stream);
uint64_t fake_capture(coll_stream stream); /* 0: it is not captured */
struct fake_graph *fake_capture_end(coll_stream stream);
void fake_graph_launch(struct fake_graph *graph, coll_stream stream);
void fake_graph_end(struct fake_graph *graph);
#pragma GCC visibility pop

/* ---- The codec --------------------------------------------------------------------------------------------------- */

struct device_ops; /* of the codec: kernels/device.h */

/* A codec whose calls are work of fake streams: the best variant for the host does them when the stream comes to them.
 * It demands what the kernels demand of addresses, scratch and tables.
 *
 * What differs between the fakes that have it: */
struct codec_host {
    coll_stream (*stream)(void *handle);                         /* as a call names it */
    int (*device)(void);                                         /* the current one; -1: none is */
    bool (*fails)(void);                                         /* this launch is refused */
    bool (*reaches)(const void *bytes, size_t size, int device); /* NULL: devices reach all memory */
    void (*begin)(void); /* called by the stream before a launch runs; may be NULL */
};

extern const struct codec_host fake_codec_host; /* defined by the library that has the codec */
extern const struct device_ops fake_codec_ops;

#endif
