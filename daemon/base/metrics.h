#ifndef STRAIT_DAEMON_BASE_METRICS_H
#define STRAIT_DAEMON_BASE_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <strait/strait.h>

#include "daemon/base/process.h"

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

/* Listening sockets, by who connects. */
enum listener { LISTENER_CLIENTS, LISTENER_PEERS, LISTENER_METRICS, LISTENERS };

/* Transports of peers. */
enum metric_transport { TRANSPORT_SHM, TRANSPORT_TCP, TRANSPORT_UCX, TRANSPORT_NCCL, TRANSPORTS };

/* Why a connection of a client was refused. */
enum refusal {
    REFUSED_CLIENTS,          /* option clients */
    REFUSED_CLIENTS_PER_USER, /* option clients-per-user */
    REFUSED_HALF_OPEN,        /* too many that have not sent a hello: the oldest */
    REFUSED_NO_HELLO,         /* none within peer-timeout */
    REFUSED_NO_TENANT,        /* option tenants-file */
    REFUSED_STOPPING,
    REFUSED_NO_MEMORY,
    REFUSALS,
};

/* Phases of a request that ended with DONE, one after the other: together they are all of its time in this daemon. */
enum phase {
    /* At the sink: from the client's EXPECT until the client's socket has DONE. */
    PHASE_START,   /* until a side starts it */
    PHASE_CONNECT, /* until the source's daemon is asked: the connection to it comes up */
    PHASE_ANSWER,  /* until that answers, by SEGMENTS or a chunk */
    PHASE_CHUNKS,  /* until the last chunk has arrived */
    PHASE_DECODE,  /* until the last page is in place; under one daemon: copied */
    PHASE_VERDICT, /* until DONE is written */
    SINK_PHASES,
    /* At the source's daemon, for each REQUEST of a peer: within the sink's `answer` and `chunks`, but for `end`. */
    PHASE_OFFER = SINK_PHASES, /* from the REQUEST until its offer is there */
    PHASE_ENCODE,              /* until the last chunk is encoded */
    PHASE_SEND,                /* until the transport has sent it */
    PHASE_END,                 /* until the sink's END comes */
    PHASES,
};

/* When the phases of a request ended (uv_hrtime); 0: not yet, or there was none. */
struct timeline {
    uint64_t began, ends[PHASES];
};

void timeline_mark(struct timeline *timeline, enum phase phase);       /* the latest call counts, */
void timeline_mark_first(struct timeline *timeline, enum phase phase); /* or the first */

enum coding_counter {
    CODED_RAW,
    CODED_TOP16,
    CODED_TIERED,
    CODED_BASE,
    CODED_SPLIT,
    CODED_PARTS,
    CODED_LOCAL,
    CODINGS
};

/* How chunks travel: PINNED: between GPUs and shared memory; PEER: stored straight into the other GPU's memory; NCCL:
 * into the other GPU's memory; TCP, UCX: between arenas in host memory or between those of two GPUs. */
enum gpu_path { WIRE_SHM, WIRE_TCP, WIRE_UCX, WIRE_PINNED, WIRE_PEER, WIRE_NCCL, WIRE_NONE };

/* The way of one chunk: its wire, and whether that leads from a GPU's arena into another GPU's. */
struct chunk_path {
    enum gpu_path wire;
    bool gpus;
};

struct metrics {
    struct histogram stages[STAGES];
    struct histogram phases[PHASES];
    struct histogram stalls;       /* duration of one turn of the loop */
    uint64_t offers, expectations; /* begun */
    uint64_t reads;                /* those of the offers that were made for reads of served pages */
    uint64_t source_done, sink_done;
    uint64_t source_failed[16], sink_failed[16]; /* by enum strait_reason */
    uint64_t raw_bytes_sent, wire_bytes_sent;    /* chunks */
    uint64_t raw_bytes_landed, wire_bytes_landed;
    uint64_t wires[WIRE_NONE]; /* of wire_bytes_sent, but for */
    uint64_t ucx_gpus;         /* UCX from GPU to GPU */
    uint64_t chunks_sent[CODINGS], chunks_landed;
    uint64_t local_bytes;                   /* page to page under this daemon */
    uint64_t coded_values, escapes;         /* drift: escapes per value against calibration */
    uint64_t exponent_bits, expected_bits;  /* drift, of mode tiered: spent, and what the tables expect */
    uint64_t chunks_refused, chunks_forged; /* stale or unknown */
    uint64_t withdrawals_lost;
    uint64_t grants, grants_reclaimed;
    uint64_t accept_rests[LISTENERS];
    uint64_t busy_polls_paid, busy_polls_lost; /* busy_poll.h */
    uint64_t clients_accepted, clients_refused[REFUSALS], client_errors;
    uint64_t notes_delivered, notes_failed; /* of this node's clients */
    uint64_t denied;                        /* to another tenant's clients */
    uint64_t peers_connected, peers_lost, peer_records_refused, greetings_put_off, peer_errors, auth_failures;
    uint64_t codebooks_fetched, codebook_fetches_failed; /* sets of peers */
    uint64_t loop_cpu_ns;                                /* that the loop's thread has run */
    struct process_figures process;
    /* Gauges, refreshed before they are printed. */
    uint64_t spinning[TRANSPORTS]; /* 1: it keeps the loop awake for nothing */
    uint64_t clients, half_open, pools, pool_bytes, peers, live_offers, live_expectations, parked;
    uint64_t request_bytes;
    uint64_t draining, codebook_loaded, rdma_active; /* 1: yes */
    uint64_t gpus, gpus_failed;                      /* that clients' pools use; how many of those have failed */
    uint64_t slots, slots_used, slots_quarantined, send_slots, send_slots_used, quarantined_pages;
};

/* Records the phases of the sink (PHASE_START), or those of the source (PHASE_OFFER). Their sums add up to the whole
 * time in microseconds. */
void metrics_record(struct metrics *metrics, const struct timeline *timeline, enum phase first);

/* Prometheus text, NUL-terminated, malloc'ed; NULL without memory. */
char *metrics_text(const struct metrics *metrics, size_t *size);
/* The same figures as a JSON object, for strait_stats and `strait status`; `extra` is a JSON object text (peers, pools)
 * merged in under its own names, or NULL. NULL without memory, or when `extra` is no object or uses a name of ours:
 * counters, source_failed, sink_failed, gauges, stages, phases, stalls. */
char *metrics_json(const struct metrics *metrics, const char *extra, size_t *size);

/* The fields of struct metrics as a table, from which both output formats are printed. */

struct metric_row {
    const char *family; /* Prometheus name; rows of one family stand together */
    const char *labels; /* `role="source"`, or NULL */
    const char *help;   /* of the family: in its first row */
    const char *name;   /* in JSON */
    size_t offset;      /* of a uint64_t */
    bool nanoseconds;   /* Prometheus gets seconds */
};

extern const struct metric_row metric_counters[], metric_gauges[];
extern const size_t metric_counter_count, metric_gauge_count;

extern const char *const metric_transport_names[TRANSPORTS], *const metric_wire_names[WIRE_NONE];
extern const char *const metric_stage_names[STAGES], *const metric_phase_names[PHASES];

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
