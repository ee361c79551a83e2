/* The tables for people and the object for machines. */
#ifndef STRAIT_BENCH_TRANSFER_REPORT_H
#define STRAIT_BENCH_TRANSFER_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "bench/head.h"
#include "bench/transfer_change.h"
#include "bench/transfer_rows.h"

struct transfer_report {
    const struct transfer_bench *bench;
    const struct machine *machine;
    const struct change *change; /* NULL: rows were run */
    const struct command_line *line;
};

/* False when it failed, with the error on stderr. */
bool transfer_report_print(const struct transfer_report *report, FILE *stream);
bool transfer_report_json(const struct transfer_report *report, FILE *stream);

#endif
