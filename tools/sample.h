/* Figures of a daemon at one moment, as its statistics tell them, and how fast they have grown between two. */
#ifndef STRAIT_TOOLS_SAMPLE_H
#define STRAIT_TOOLS_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#define SAMPLE_BUCKETS 28u /* of a histogram: bucket b counts up to 2^b microseconds, the last one all others */
#define SAMPLE_LINKS   32u

struct asked;

/* Counters of a daemon or of one of its peers; or, of the time between two samples, their growth a second. */
struct traffic {
    double raw_in, raw_out;   /* page bytes, before coding */
    double wire_in, wire_out; /* the same as they travelled */
    double chunks;            /* both ways */
    double done;              /* requests that ended with DONE; of a daemon only */
    double failed;            /* of a daemon: requests; of a peer: transfers, chunks and connections */
    double local;             /* bytes copied under the daemon; of a daemon only */
};

struct peer_sample {
    char address[260];
    char
        links[SAMPLE_LINKS]; /* transports of its connections that are up, "tcp,shm"; else what it is instead, "idle" */
    bool up;
    double round_trip_us; /* 0: not measured yet */
    struct traffic total;
};

struct sample {
    bool there; /* the daemon has answered, */
    char why[256];
    uint64_t at_ns; /* clock_ns then */
    char version[32], address[260], incarnation[20], codec[16];
    bool draining, codebook;
    double uptime, clients, pools, pool_bytes, inflight, parked;
    double slots, slots_used, slots_quarantined, send_slots, send_slots_used;
    struct traffic total;
    double transfers[SAMPLE_BUCKETS]; /* histogram of transfers, from the expectation's start to its verdict */
    struct peer_sample *peers;
    uint32_t peer_count;
};

/* Asks the daemon. The sample is to be freed in any case. */
void sample_take(struct asked *daemon, unsigned patience_ms, struct sample *sample);
/* The same of statistics that are there; false, and `why`: they are none. */
bool sample_read(const char *text, struct sample *sample);
void sample_free(struct sample *sample);

/* Seconds between two samples of one process; 0: there are no such two. */
double sample_seconds(const struct sample *before, const struct sample *now);
/* Growth a second. A counter that has shrunk is a new one, and has grown by all that it counts. */
struct traffic traffic_rate(const struct traffic *before, const struct traffic *now, double seconds);
/* The peer's counters in an earlier sample; zeros: it was not there. */
struct traffic sample_peer_total(const struct sample *before, const char *address);
/* Upper bound, in microseconds, of the bucket in which this quantile of what came between the samples lies (`before`
 * NULL: since the daemon's start). Negative: nothing came; infinite: beyond the last bound. */
double sample_quantile(const struct sample *before, const struct sample *now, double quantile);

/* Raw / wire bytes of both directions; 0: no bytes. */
static inline double traffic_ratio(const struct traffic *traffic)
{
    const double wire = traffic->wire_in + traffic->wire_out;
    return wire > 0 ? (traffic->raw_in + traffic->raw_out) / wire : 0;
}
static inline double traffic_saved(const struct traffic *traffic)
{
    return traffic->raw_in + traffic->raw_out - traffic->wire_in - traffic->wire_out;
}

#endif
