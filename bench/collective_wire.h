/* How libstrait-coll carried what it was given. All that the bench knows of that comes from here. */
#ifndef STRAIT_BENCH_COLLECTIVE_WIRE_H
#define STRAIT_BENCH_COLLECTIVE_WIRE_H

#include "bench/collective_library.h"

#define COLLECTIVE_WIRE_TEXT_BYTES 64u

struct collective_wire {
    char name[COLLECTIVE_WIRE_TEXT_BYTES]; /* the last decision for this operation and type; "-": not told */
    uint64_t calls, compressed;            /* how many, and how many of them went compressed */
    uint64_t bytes;                        /* that NCCL was handed for the latter, by this rank */
};

/* Of this communicator since it was made. */
void collective_wire_read(const struct collective_library *library, coll_comm comm, enum collective_op op,
                          enum collective_type type, struct collective_wire *wire);

/* The same out of a report's text. */
void collective_wire_parse(const char *report, enum collective_op op, enum collective_type type,
                           struct collective_wire *wire);

/* What was counted since `before`. */
void collective_wire_since(struct collective_wire *wire, const struct collective_wire *before);

#endif
