/* The rows of the table: what is run in turn, and its results. */
#ifndef STRAIT_BENCH_TRANSFER_ROWS_H
#define STRAIT_BENCH_TRANSFER_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "bench/transfer_data.h"
#include "bench/transfer_move.h"
#include "bench/transfer_options.h"
#include "bench/transfer_path.h"
#include "bench/transfer_pools.h"

#define SHAPES_MAX (2 * TRANSFER_SIZES_MAX * TRANSFER_SIZES_MAX + 2)

enum row_kind {
    ROW_REQUESTS,
    ROW_LAYERS,
    ROW_COPY,
    ROW_UCX_BANDWIDTH,
    ROW_UCX_LATENCY,
    ROW_IPERF,
};
extern const char *const row_kind_names[];

struct row {
    enum row_kind kind;
    enum path_kind path;
    unsigned shape;
    enum strait_coding coding;
    enum strait_direction direction;
    double rate;      /* of the link; 0: none */
    int base;         /* index of the row with which it is compared; -1: none */
    unsigned samples; /* in each turn */

    /* Results; for a row that could not be run, only the reason. */
    char skipped[REASON_BYTES + 32];
    uint64_t bytes;             /* of a sample */
    uint64_t *ns;               /* one per sample, turn by turn; owned */
    uint64_t *request_ns;       /* one per request and sample; owned. Of ROW_UCX_LATENCY: the 99th percentiles */
    struct layer_times *layers; /* one per sample of ROW_LAYERS; owned */
    unsigned count;             /* samples so far */
    uint64_t wrong;             /* pages */
    uint64_t wall_ns;           /* of all samples */
    struct node_figures used;   /* counted by both daemons together during all samples; texts: of the source */
};

/* Whether the row is a transfer, rather than something to compare with. */
static inline bool row_is_transfer(const struct row *row)
{
    return row->kind == ROW_REQUESTS || row->kind == ROW_LAYERS;
}

struct row_list {
    struct row *list;
    unsigned count, capacity;
    unsigned repeats;
};

/* The state of a run. */
struct transfer_bench {
    const struct transfer_options *options;
    struct transfer_data data;
    struct bench_site site;
    struct bench_path paths[PATH_KINDS];
    struct shape shapes[SHAPES_MAX];
    unsigned shape_count;
    struct bench_pools pools[PATH_KINDS][SHAPES_MAX];
    struct row_list rows;
    uint8_t *aux;
    uint64_t idle_cpu_ms[PATH_KINDS][2]; /* of the daemons of source and sink */
};

/* The shapes and rows that the options ask for, in the order in which they run. */
bool rows_plan(struct transfer_bench *bench);
/* Runs all rows in turn, the link's rates one after another, after one turn of each that is not measured. False: the
 * run could not be finished; the error is on stderr. */
bool rows_run(struct transfer_bench *bench);
void rows_fini(struct row_list *rows); /* safe on zeroes */
/* Whether every page of every row was right. */
bool rows_right(const struct row_list *rows);

static inline unsigned row_requests(const struct transfer_bench *bench, const struct row *row)
{
    return row->kind == ROW_REQUESTS ? bench->shapes[row->shape].requests : 1;
}

#endif
