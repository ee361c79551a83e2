/* The rows of `strait bench transfer --device`: what is run in turn, and what came of it. */
#ifndef STRAIT_BENCH_GPU_ROWS_H
#define STRAIT_BENCH_GPU_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/gpu_data.h"
#include "bench/gpu_memory.h"
#include "bench/gpu_options.h"
#include "bench/gpu_pairs.h"
#include "bench/machine.h"

#define GPU_ROWS_MAX (GPU_SIZES_MAX * (2 + GPU_WIRES * CODINGS_MAX))

enum gpu_row_kind {
    GPU_ROW_COPY,   /* cudaMemcpyPeer of one piece, by the clock of the host */
    GPU_ROW_EVENTS, /* the same between two events */
    GPU_ROW_MOVE,   /* pages, by way of daemons */
};

struct gpu_row {
    enum gpu_row_kind kind;
    enum gpu_wire wire;
    enum strait_coding coding;
    uint64_t bytes;
    uint32_t ids;  /* in each region */
    int copy, raw; /* rows that it is compared with; -1: none */

    /* Results. */
    uint64_t *ns;             /* one a turn; owned */
    unsigned count;           /* turns so far */
    uint64_t wrong;           /* pages; of a copy, pieces of 16 bytes */
    struct node_figures used; /* counted by both daemons together during all turns; texts: of the source's */
    struct wire_figures wires;
};

/* All that exists during a run. */
struct gpu_bench {
    const struct gpu_options *options;
    struct machine machine;
    int from, to;
    struct gpu_about about;
    struct gpu_data data;
    struct bench_site site;
    bool can_choose; /* daemons can be told which way chunks take */
    struct gpu_pair pairs[GPU_WIRES];
    struct gpu_row rows[GPU_ROWS_MAX];
    unsigned row_count;
    uint64_t turn;   /* counts transfers: each takes other pages than the one before */
    bool spoilt;     /* the fault that was asked for has been planted */
    bool source_bad; /* somebody has written to the source's pool */
};

/* Rows for all sizes, ways and codings, size by size. Like all here: false when it failed, which stderr has been told.
 */
bool gpu_rows_plan(struct gpu_bench *bench);
/* Each size by itself: some turns of all its rows that are not measured, then those that are, each beginning with
 * another row. */
bool gpu_rows_run(struct gpu_bench *bench);
void gpu_rows_fini(struct gpu_bench *bench); /* safe on zeroes */
/* Whether all that landed was right. */
bool gpu_rows_right(const struct gpu_bench *bench);

#endif
