/* The rows of `strait bench transfer --device`: what is run in turn, and its results. */
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
    GPU_ROW_COPY,   /* cudaMemcpyPeer of one piece, timed by the host's clock */
    GPU_ROW_EVENTS, /* the same, timed between two events */
    GPU_ROW_MOVE,   /* pages, moved by daemons */
};

struct gpu_row {
    enum gpu_row_kind kind;
    enum gpu_wire wire;
    enum strait_coding coding;
    uint64_t bytes;
    uint32_t ids;  /* in each region */
    int copy, raw; /* rows with which it is compared; -1: none */

    /* Results. */
    uint64_t *ns;             /* one per turn; owned */
    unsigned count;           /* turns so far */
    uint64_t wrong;           /* wrong pages; for a copy, wrong 16-byte pieces */
    struct node_figures used; /* counted by both daemons together during all turns; texts: of the source */
    struct wire_figures wires;
};

/* The state of a run. */
struct gpu_bench {
    const struct gpu_options *options;
    struct machine machine;
    int from, to;
    struct gpu_about about;
    struct gpu_data data;
    struct bench_site site;
    bool can_choose; /* daemons can be told how chunks travel */
    struct gpu_pair pairs[GPU_WIRES];
    struct gpu_row rows[GPU_ROWS_MAX];
    unsigned row_count;
    uint64_t turn;   /* counts transfers: each uses other pages than the one before */
    bool spoilt;     /* the requested fault has been injected */
    bool source_bad; /* somebody has written to the source's pool */
};

/* Makes rows for all sizes, ways and codings, size by size. All functions here return false when they failed, with the
 * error on stderr. */
bool gpu_rows_plan(struct gpu_bench *bench);
/* Runs each size by itself: first some turns of all its rows that are not measured, then the measured turns, each
 * beginning with another row. */
bool gpu_rows_run(struct gpu_bench *bench);
void gpu_rows_fini(struct gpu_bench *bench); /* safe on zeroes */
/* Whether everything that landed was right. */
bool gpu_rows_right(const struct gpu_bench *bench);

#endif
