/* The fields of struct metrics as a table, from which both output formats are printed. */
#ifndef STRAIT_DAEMON_EQUIPMENT_METRIC_ROWS_H
#define STRAIT_DAEMON_EQUIPMENT_METRIC_ROWS_H

#include "daemon/equipment/metrics.h"

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
