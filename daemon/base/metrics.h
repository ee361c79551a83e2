#ifndef STRAIT_DAEMON_BASE_METRICS_H
#define STRAIT_DAEMON_BASE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/strait.h>

/* Counters, gauges and histograms of one node, and their Prometheus text. Written by the loop's thread only: jobs hand
 * their figures over with their results. */

#define HISTOGRAM_BUCKETS 28u /* powers of two from 1 us to 2^26 us (67 s), and above */

struct histogram {
    uint64_t buckets[HISTOGRAM_BUCKETS]; /* bucket b: <= 2^b microseconds; the last one: all others */
    uint64_t count;
    uint64_t sum_us;
};

void histogram_record(struct histogram *histogram, uint64_t microseconds);
/* Upper bound of the bucket in which the quantile (0..1) lies, in microseconds; 0 when empty, UINT64_MAX in the last.
 */
uint64_t histogram_quantile(const struct histogram *histogram, double quantile);

enum stage {
    STAGE_QUEUE,    /* a grant waited for a send slot */
    STAGE_ENCODE,   /* a chunk was gathered and encoded */
    STAGE_WIRE,     /* from the transport's send until it was sent */
    STAGE_DECODE,   /* a chunk was checked and put in place */
    STAGE_COPY,     /* pages were copied under one daemon */
    STAGE_TRANSFER, /* from the expectation's start to its verdict */
    STAGES,
};

enum coding_counter { CODED_RAW, CODED_TOP16, CODED_TIERED, CODED_LOCAL, CODINGS };

/* How chunks travel: PINNED: between GPUs and shared memory; PEER: stored straight into the other GPU's memory; NCCL:
 * into the other GPU's memory; UCX: between arenas in host memory or between those of two GPUs. */
enum gpu_path { WIRE_SHM, WIRE_UCX, WIRE_PINNED, WIRE_PEER, WIRE_NCCL, WIRE_NONE };

/* The way of one chunk: its wire, and whether that leads from a GPU's arena into another GPU's. */
struct chunk_path {
    enum gpu_path wire;
    bool gpus;
};

struct metrics {
    struct histogram stages[STAGES];
    struct histogram stalls;       /* duration of one turn of the loop */
    uint64_t offers, expectations; /* begun */
    uint64_t source_done, sink_done;
    uint64_t source_failed[16], sink_failed[16]; /* by enum strait_reason */
    uint64_t raw_bytes_sent, wire_bytes_sent;    /* chunks */
    uint64_t raw_bytes_landed, wire_bytes_landed;
    uint64_t wires[WIRE_NONE]; /* of wire_bytes_sent, but for */
    uint64_t ucx_gpus;         /* UCX from GPU to GPU */
    uint64_t chunks_sent[CODINGS], chunks_landed;
    uint64_t local_bytes;           /* page to page under this daemon */
    uint64_t coded_values, escapes; /* drift: escapes per value against calibration */
    uint64_t chunks_refused;        /* stale or unknown */
    uint64_t grants, grants_reclaimed;
    uint64_t clients_accepted, clients_refused, client_errors;
    uint64_t peers_connected, peers_lost, peer_errors, auth_failures;
    /* Gauges, refreshed before they are printed. */
    uint64_t clients, pools, pool_bytes, peers, live_offers, live_expectations, parked;
    uint64_t gpus, gpus_failed; /* that clients' pools use; how many of those have failed */
    uint64_t slots, slots_used, slots_quarantined, send_slots, send_slots_used, quarantined_pages;
};

/* Prometheus text, NUL-terminated, malloc'ed; NULL without memory. */
char *metrics_text(const struct metrics *metrics, size_t *size);
/* The same figures as a JSON object, for strait_stats and `strait status`; `extra` is a JSON object text (peers, pools)
 * merged in under its own names, or NULL. NULL without memory, or when `extra` is no object or uses a name of ours:
 * counters, source_failed, sink_failed, gauges, stages, stalls. */
char *metrics_json(const struct metrics *metrics, const char *extra, size_t *size);

/* The fields of struct metrics as a table, from which both output formats are printed. */

struct metric_row {
    const char *family; /* Prometheus name; rows of one family stand together */
    const char *labels; /* `role="source"`, or NULL */
    const char *help;   /* of the family: in its first row */
    const char *name;   /* in JSON */
    size_t offset;      /* of a uint64_t */
};

extern const struct metric_row metric_counters[], metric_gauges[];
extern const size_t metric_counter_count, metric_gauge_count;
extern const char *const metric_stage_names[STAGES];

static inline uint64_t metric_value(const struct metrics *metrics, const struct metric_row *row)
{
    return *(const uint64_t *)(const void *)((const char *)metrics + row->offset);
}

/* Upper bound of a bucket in microseconds; not for the last one, which has none. */
static inline uint64_t histogram_bound(unsigned bucket)
{
    return (uint64_t)1 << bucket;
}

/* A reason's name as a label, "lease_expired"; NULL: no reason has this number. */
const char *metric_reason_name(unsigned reason);

#endif
