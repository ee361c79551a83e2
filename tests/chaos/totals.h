/* Faults, states, and how often each pair was met; shared by the processes of all worlds. */
#ifndef TESTS_CHAOS_TOTALS_H
#define TESTS_CHAOS_TOTALS_H

#include <stdatomic.h>
#include <stdint.h>

#include "tests/chaos/shared.h"

#define CHAOS_FAULTS(X)                               \
    X(KILL_SOURCE_DAEMON, "kill -9 source daemon")    \
    X(KILL_SINK_DAEMON, "kill -9 sink daemon")        \
    X(KILL_SOURCE_CLIENT, "kill -9 source client")    \
    X(KILL_SINK_CLIENT, "kill -9 sink client")        \
    X(STOP_SOURCE_DAEMON, "stop/cont source daemon")  \
    X(STOP_SINK_DAEMON, "stop/cont sink daemon")      \
    X(STOP_SOURCE_CLIENT, "stop/cont source client")  \
    X(STOP_SINK_CLIENT, "stop/cont sink client")      \
    X(RESTART_SOURCE_DAEMON, "restart source daemon") \
    X(RESTART_SINK_DAEMON, "restart sink daemon")     \
    X(RESTART_SOURCE_CLIENT, "restart source client") \
    X(RESTART_SINK_CLIENT, "restart sink client")     \
    X(CUT, "connection cut")                          \
    X(DARK, "link down")                              \
    X(ABORT_SOURCE, "abort by source")                \
    X(ABORT_SINK, "abort by sink")                    \
    X(LEASE, "lease runs out")                        \
    X(DEADLINE, "deadline runs out")                  \
    X(CODEBOOK, "codebook mismatch")                  \
    X(FULL, "arena full")                             \
    X(DOUBLE, "duplicates")                           \
    X(REPLAY, "old messages again")                   \
    X(REORDER, "reordering")                          \
    X(UCX_PORT, "attack on UCX's port")               \
    X(OTHER_PORTS, "attack on control port")          \
    X(SOURCE_DEVICE, "source's device fails")         \
    X(SINK_DEVICE, "sink's device fails")
enum fault {
#define X(name, text) F_##name,
    CHAOS_FAULTS(X)
#undef X
        FAULTS,
};

enum phase { BOOTSTRAP, READY, ENCODING, SENDING, ARRIVING, DECODING, DONE, DRAINING, PHASES };

struct totals {
    _Atomic uint32_t table[FAULTS][PHASES];
    _Atomic uint32_t local[FAULTS][PHASES];   /* both sides under one daemon */
    _Atomic uint32_t points[2][CHAOS_POINTS]; /* faults that struck while held there, by side */
    _Atomic uint32_t cursor[2];               /* index of the next pair: between two daemons, under one */
    _Atomic uint32_t transfers, done, failed, scenarios, missed, rounds;
    _Atomic uint32_t violations;
    _Atomic uint32_t excused;    /* transfers that failed because a connection was lost for an earlier fault */
    _Atomic uint32_t lives;      /* daemons started */
    _Atomic uint32_t crashes;    /* of daemons under attack */
    _Atomic int64_t late_ns[2];  /* the latest verdict, after (below 0: before) it was due, by side */
    _Atomic int64_t recovery_ns; /* longest until a transfer was done again */
    _Atomic int64_t descriptors, growth_kib, rests; /* maxima over daemons: at rest, since its start, number of rests */
    uint64_t began_ns;
    char first[512]; /* violation */
};

struct world;
void violation(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void totals_max(_Atomic int64_t *most, int64_t value);

#endif
