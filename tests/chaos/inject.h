/* Shared by the driver and the injectors in the two daemons: a file that all of them map, so that it survives when any
 * of them is killed. The driver sets what shall happen before it lets a held daemon go on. */
#ifndef STRAIT_TESTS_CHAOS_INJECT_H
#define STRAIT_TESTS_CHAOS_INJECT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CHAOS_VARIABLE "STRAIT_CHAOS"        /* of straitd-chaos: "path of the file:number of the side" */
#define CHAOS_PLUGIN   "STRAIT_CHAOS_PLUGIN" /* of the plugin in front: the file of the one behind it */

/* Where a daemon can be held. Messages: before and after each is sent and acted upon. */
#define CHAOS_MESSAGES(X) X(ANNOUNCE) X(REQUEST) X(SEGMENTS) X(GRANT) X(REVOKE) X(RELEASED) X(END)
enum chaos_point {
#define X(name) AT_SEND_##name, AT_SENT_##name, AT_TAKE_##name, AT_TAKEN_##name,
    CHAOS_MESSAGES(X)
#undef X
        AT_CHUNK,
    AT_CHUNK_SENT,
    AT_ARRIVING,
    AT_ARRIVED,
    AT_ENCODE,
    AT_ENCODED,
    AT_DECODE,
    AT_DECODED,
    AT_COPY, /* under one daemon */
    AT_COPIED,
    AT_TELL, /* a verdict, to the client */
    AT_TOLD,
    CHAOS_POINTS,
};

/* One daemon's part. Counters only grow during a scenario; the driver zeroes all of them between scenarios. */
struct chaos_side {
    _Atomic uint32_t armed; /* point + 1 to be held at; 0: none */
    _Atomic uint32_t skip;  /* hits that pass first */
    _Atomic uint32_t held;  /* 1: it waits there */
    _Atomic uint32_t go;    /* 1: it may go on */
    _Atomic uint32_t hits[CHAOS_POINTS];

    _Atomic uint32_t doubles, doubled;    /* messages and chunks still to be sent twice; done so */
    _Atomic uint32_t reorders, reordered; /* messages still to be overtaken by the next one; done so */
    _Atomic uint32_t dark, darkened;      /* 1: nothing leaves on the control connection; messages lost so far */
    _Atomic uint32_t record, forget;      /* 1: keep a copy of what is sent; 1: drop the copies */
    _Atomic uint32_t replay, replayed;    /* 1: send the copies again; how many were */
    _Atomic uint32_t cut, cuts;           /* 1: shut the sockets of peers; how many were */
    _Atomic uint32_t slow_ms;             /* how long each encode waits first */
    _Atomic uint32_t breaks, broken;      /* bits: devices that are to fail; how many did */
    _Atomic uint32_t stalls, stalled;     /* bits: devices that are to be busy with something else; how many were */
    _Atomic uint32_t stall_ms;            /* how long they are busy */
};

struct chaos_shared {
    struct chaos_side sides[2]; /* of the source's daemon, of the sink's */
    bool fakes;                 /* UCX takes memory of GPUs, which are fakes, for the host's */
};

/* ---- In a daemon: for the injector, and for the plugin in front of the daemon's own (hold.c) --------------------- */

/* Maps the file that CHAOS_VARIABLE names, and sets *side to this daemon's part. NULL: the variable is not set. */
struct chaos_shared *hold_begin(struct chaos_side **side);

/* Decrements a counter, unless it is 0. */
bool hold_take_one(_Atomic uint32_t *counter);

/* Records that a point is reached. True: the daemon must be held here. */
bool hold_reached(struct chaos_side *side, int at);
/* Waits until the driver sets `go`. */
void hold(struct chaos_side *side);

void hold_rest(long microseconds);

#endif
