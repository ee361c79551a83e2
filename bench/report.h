/* The table for people and the object for machines. */
#ifndef STRAIT_BENCH_REPORT_H
#define STRAIT_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "bench/cases.h"
#include "bench/data.h"
#include "bench/machine.h"
#include "bench/options.h"

struct bench_report {
    const struct codec_options *options;
    const struct machine *machine;
    const struct tensors *tensors;
    const struct data *data;
    const struct data_figures *data_figures;
    const struct strait_codebook *codebook;
    const struct case_list *cases;
    uint64_t seed;        /* of the escapes */
    uint64_t piece_bytes; /* of rivals */
};

void report_print(const struct bench_report *report, FILE *stream);
/* False when it failed, with the error on stderr. */
bool report_json(const struct bench_report *report, FILE *stream);

#endif
