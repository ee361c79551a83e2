/* A daemon's counters since its start, as it reports them to its clients. */
#ifndef STRAIT_BENCH_TRANSFER_COUNTERS_H
#define STRAIT_BENCH_TRANSFER_COUNTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bench_stage { BENCH_QUEUE, BENCH_ENCODE, BENCH_WIRE, BENCH_DECODE, BENCH_COPY, BENCH_STAGES };
extern const char *const bench_stage_names[BENCH_STAGES];

struct stage_figures {
    uint64_t count, sum_us;
};

struct node_figures {
    struct stage_figures stages[BENCH_STAGES];
    uint64_t raw_bytes, wire_bytes, local_bytes;
    char transport[16], policy[128]; /* of its last peer, in force now */
};

/* Reads the JSON text of an event STATS. False: it is not such a text; *figures is then zero. */
bool node_figures_read(struct node_figures *figures, const char *text, size_t size);
/* used += sign * now, for all counters. */
void node_figures_add(struct node_figures *used, const struct node_figures *now, uint64_t sign);

#endif
