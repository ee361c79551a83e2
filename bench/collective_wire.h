/* How libstrait-coll carried its calls: the bench's only source for that. */
#ifndef STRAIT_BENCH_COLLECTIVE_WIRE_H
#define STRAIT_BENCH_COLLECTIVE_WIRE_H

#include "bench/collective_library.h"

#define COLLECTIVE_WIRE_TEXT_BYTES 64u

struct collective_wire {
    char name[COLLECTIVE_WIRE_TEXT_BYTES]; /* the last decision for this operation and type; "-": unknown */
    uint64_t calls, compressed;            /* all calls, and those that went compressed */
    uint64_t bytes;                        /* handed to NCCL for compressed calls, by this rank */
};

/* Counts of this communicator since it was made. */
void collective_wire_read(const struct collective_library *library, coll_comm comm, enum collective_op op,
                          enum collective_type type, struct collective_wire *wire);

/* The same, parsed from a report's text. */
void collective_wire_parse(const char *report, enum collective_op op, enum collective_type type,
                           struct collective_wire *wire);

/* Leaves in *wire what was counted since `before`. */
void collective_wire_since(struct collective_wire *wire, const struct collective_wire *before);

#endif
