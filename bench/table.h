/* Report of a bench: facts and rows of named figures in one JSON object, of which the text is rendered. Functions do
 * not check for lack of memory: cJSON passes NULL on, and report_finish then fails or prints less. */
#ifndef STRAIT_BENCH_TABLE_H
#define STRAIT_BENCH_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "bench/bench.h"

/* How a figure is shown. A figure that a row lacks, or that is null, is "-". */
enum column_format {
    COLUMN_TEXT,    /* a text, or a flag by the column's heading */
    COLUMN_COUNT,   /* a whole number; 0 is "-" */
    COLUMN_SIZE,    /* bytes: 32K; 0 is "-" */
    COLUMN_NUMBER,  /* three significant digits or more */
    COLUMN_RATIO,   /* four digits after the point */
    COLUMN_PERCENT, /* a share */
    COLUMN_US,      /* nanoseconds, in microseconds */
    COLUMN_CHECK, /* number of differences, or whether all was right: ok or WRONG. Decides whether the report passed */
};

struct column {
    const char *key;   /* of the row; "encode_GBps.p50" is p50 in an object */
    const char *group; /* heading above neighbours of the same group; NULL: none */
    const char *heading;
    enum column_format format;
};

/* Shows an array of rows. A column that no row has is left out; rows with "skipped" are listed below instead. */
struct table {
    const char *rows;  /* key of the array */
    const char *title; /* NULL: none */
    const char *needs; /* only rows that have this key; NULL: all */
    const struct column *columns;
    unsigned column_count;
};

#define TABLE(rows, title, needs, columns)                                  \
    {                                                                       \
        rows, title, needs, columns, sizeof(columns) / sizeof((columns)[0]) \
    }

struct report {
    const struct bench_options *options;
    cJSON *root;
};

/* Begins with program, machine and command. False: --save names a file that cannot be written; the error is on stderr,
 * and the file is unchanged. The caller must report_fini() it either way. */
bool report_init(struct report *report, const struct bench_options *options);
void report_fini(struct report *report);

/* Adds what the values are: "input" and, with `values`, "codebook". */
void report_add_values(struct report *report, const struct bench_values *values);
/* Adds a line that is shown below the tables. */
void report_note(struct report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds an empty row to an array of the report, which is made with its first row. */
cJSON *report_add_row(struct report *report, const char *rows);

/* Prints text or JSON to stdout, and saves the JSON. False: that failed, or a check did; the error is on stderr. */
bool report_finish(struct report *report, const struct table *tables, unsigned count);

/* ---- Figures ----------------------------------------------------------------------------------------------------- */

/* The median; of an even number of samples the mean of the middle two. count >= 1. Sorts. */
double median_of(double *samples, size_t count);

#define SAMPLES_MAX 10000u /* of a row in a turn */

/* Samples of a row in each turn: as many as are asked for; for 0 one, or as many small ones as make 16 MiB. */
unsigned samples_in_turn(uint64_t asked, uint64_t bytes);

/* How many times as fast a row is as its base: the median over turns of the quotients of the medians of each turn's
 * times. `ns` has `samples` times of each turn, turn by turn; at most REPEATS_MAX turns of SAMPLES_MAX. */
double times_by_base(const uint64_t *ns, unsigned samples, const uint64_t *base_ns, unsigned base_samples,
                     unsigned turns);

/* Adds an object with figures of samples by name, of "p50" (the median), "min", "max", and other percentiles, nearest
 * rank: "p10", "p90", "p99". Sorts. */
void row_add_figures(cJSON *row, const char *key, double *samples, size_t count, const char *const *names);
extern const char *const p50_min_max[];

/* Adds an array of times. */
void row_add_times(cJSON *row, const char *key, const uint64_t *ns, size_t count);
void row_add_texts(cJSON *row, const char *key, const char *const *list, unsigned count);

#endif
