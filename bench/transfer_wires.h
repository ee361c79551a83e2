/* Which wires a daemon's chunks took, according to its metrics. */
#ifndef STRAIT_BENCH_TRANSFER_WIRES_H
#define STRAIT_BENCH_TRANSFER_WIRES_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/transfer_path.h"

#define WIRES_MAX       8u
#define WIRE_NAME_BYTES 16u

/* Bytes sent over each wire ("shm", "ucx", "pinned", "peer", "nccl"), of those that the daemon knows. */
struct wire_figures {
    struct {
        char name[WIRE_NAME_BYTES];
        uint64_t bytes;
    } wires[WIRES_MAX];
    unsigned count; /* 0: the daemon does not tell */
};

/* Reads the counters of a daemon whose path was opened with `metrics`. False: it does not answer, which was printed to
 * stderr. */
bool bench_side_wires(const struct bench_side *side, struct wire_figures *figures);

/* The counters in the text of an answer, or in a part of it. */
void wire_figures_read(struct wire_figures *figures, const char *text);
/* used += now - before, by name. */
void wire_figures_add(struct wire_figures *used, const struct wire_figures *before, const struct wire_figures *now);

/* Bytes sent over the wire of this name. */
uint64_t wire_figures_of(const struct wire_figures *figures, const char *name);

/* "peer", "peer+pinned": all wires that carried anything; "-": unknown, or nothing travelled. */
#define WIRES_TEXT_BYTES (WIRES_MAX * WIRE_NAME_BYTES)
void wire_figures_name(const struct wire_figures *used, char text[WIRES_TEXT_BYTES]);

#endif
