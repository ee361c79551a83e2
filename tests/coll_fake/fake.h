/* GPUs and an NCCL for tests of what compresses collectives, in one process: memory is the host's, streams are threads,
 * ranks are threads of the test, and what they send each other is copied. A captured stream makes a graph that can be
 * launched as often as one likes.
 *
 * They take nothing for granted: what a GPU or NCCL would refuse, or could not do, ends the program with a line about
 * it. */
#ifndef STRAIT_TESTS_COLL_FAKE_FAKE_H
#define STRAIT_TESTS_COLL_FAKE_FAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "collective/nccl_types.h"

#define demand(condition)                                                                   \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "fake: %s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                        \
        }                                                                                   \
    } while (0)

enum { FAKE_DEVICES = 8 };

/* What the tests tell it, and learn of it. */
struct fake_gpu_control {
    _Atomic uint32_t jitter_us; /* up to so long before each piece of work of a stream */
    /* The n-th thing that a communicator's engine makes from now on (memory, events, streams) cannot be made; 0: all
     * can. Of that device, or of all when < 0. */
    _Atomic int32_t fail_making, fail_device;
    _Atomic uint32_t full; /* bits: devices whose memory has no room */
    /* The n-th piece of work that it asks for from now on cannot be asked for. */
    _Atomic int32_t fail_work;
    /* Bits: devices that are asked for work whose caller is kept until the bit is cleared; how many are kept. */
    _Atomic uint32_t halt, halted;
    _Atomic bool no_streams;   /* making one ends the program, as it might wait for work of other ranks */
    _Atomic uint32_t no_codec; /* bits: devices that have none */
    _Atomic uint32_t hurry;    /* patience is so many times shorter; 0: as it is */
    _Atomic uint32_t lost;     /* bits: devices that neither offer nor take what did not fit */
    _Atomic uint32_t troubled; /* bits: devices where what is launched cannot be counted on to run */
    /* How long what NCCL moves takes, in the time that events tell: of a device, nanoseconds and femtoseconds a byte.
     */
    _Atomic uint32_t link_ns[FAKE_DEVICES], link_fs[FAKE_DEVICES];
    _Atomic uint32_t ring_fs;             /* the same of what does not fit, femtoseconds a byte */
    _Atomic uint32_t push_fs;             /* what ranks push themselves, femtoseconds a byte */
    _Atomic uint32_t code_fs;             /* what the codec does, femtoseconds a byte of the values */
    _Atomic uint32_t hosts[FAKE_DEVICES]; /* which one each device is in, as NCCL_HOSTID may say */
    _Atomic uint32_t apart;               /* bits: devices that do not reach each other's memory */
    /* The n-th piece that is pushed to another rank from now on arrives with the byte at spoil_at inverted; 0: none. */
    _Atomic int32_t spoil;
    _Atomic uint32_t spoil_at;
    /* Counted. */
    _Atomic uint64_t pushed;         /* bytes of pieces that no copy engine moved */
    _Atomic uint64_t stored;         /* bytes that encoders stored into memory of another rank */
    _Atomic int64_t made;            /* what an engine made and has not given back */
    _Atomic uint64_t makings;        /* all that it ever made */
    _Atomic uint64_t moved;          /* bytes from rank to rank */
    _Atomic uint64_t offered, taken; /* slots of values that did not fit */
};

struct fake_nccl_control {
    /* The n-th message of at least corrupt_least bytes from now on arrives with the byte at corrupt_at inverted; 0:
     * none. */
    _Atomic int32_t corrupt;
    _Atomic uint32_t corrupt_least, corrupt_at;
    /* That rank + 1 has another byte at differ_at of all that it and others gather by differ_size bytes; 0: none. */
    _Atomic int32_t differ;
    _Atomic uint32_t differ_at, differ_size;
    /* What that rank + 1 gives others to gather by stand_in_size bytes arrives as these; 0: none. Set before. */
    _Atomic int32_t stand_in;
    uint32_t stand_in_size;
    uint8_t stand_in_bytes[64];
    /* That rank + 1 comes back so much later from having its communicator made; 0: none. */
    _Atomic int32_t slow;
    _Atomic uint32_t slow_ms;
    /* Counted. */
    _Atomic uint64_t counted; /* questions how many ranks there are */
};

/* What ncclConfig_t begins with. blocks 0: calls may come back before they are done, and are done while
 * ncclCommGetAsyncError is asked. */
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

/* Work gets a copy of its argument, on the stream's thread and as often as a graph it is part of is launched; `end`, or
 * NULL, gets it when it never runs again. */
typedef void fake_run(coll_stream stream, void *argument);
typedef void fake_end(void *argument);
void fake_queue(coll_stream stream, fake_run *run, fake_end *end, const void *argument, size_t size);
void fake_pass_time(coll_stream stream, double seconds); /* from work, on its own stream */

/* ---- Events ------------------------------------------------------------------------------------------------------ */

struct CUevent_st *fake_event_make(void);
void fake_event_end(struct CUevent_st *event);
void fake_event_record(struct CUevent_st *event, coll_stream stream);
void fake_event_follow(coll_stream stream, struct CUevent_st *event);
void fake_event_record_outside(struct CUevent_st *event, coll_stream stream);
void fake_event_follow_outside(coll_stream stream, struct CUevent_st *event);
bool fake_event_over(struct CUevent_st *event);
double fake_event_seconds(struct CUevent_st *from, struct CUevent_st *to);

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

struct fake_graph;
void fake_capture_begin(coll_stream stream);
uint64_t fake_capture(coll_stream stream); /* 0: it is not captured */
struct fake_graph *fake_capture_end(coll_stream stream);
void fake_graph_launch(struct fake_graph *graph, coll_stream stream);
void fake_graph_end(struct fake_graph *graph);
#pragma GCC visibility pop

#endif
