/* What `strait calibrate` reports about the data it counted, class by class. */
#ifndef STRAIT_TOOLS_CALIBRATE_REPORT_H
#define STRAIT_TOOLS_CALIBRATE_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <strait/codec.h>

#include "tools/histograms.h"

struct calibrate_report {
    const struct histograms *histograms;
    const struct strait_codebook *codebook; /* each class is coded with the table it finds there */
    uint64_t skipped;                       /* tensors that are not BF16 */
};

/* The caller checks the stream for write errors. */
void calibrate_report_table(const struct calibrate_report *report, FILE *stream);
/* False: no memory, or output failed; the error was printed to stderr. */
bool calibrate_report_json(const struct calibrate_report *report, FILE *stream);

#endif
