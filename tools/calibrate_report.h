/* What `strait calibrate` tells about the data it counted, class by class. */
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

/* Whether all of it was written, the stream knows. */
void calibrate_report_table(const struct calibrate_report *report, FILE *stream);
/* False, which stderr has been told: no memory, or output failed. */
bool calibrate_report_json(const struct calibrate_report *report, FILE *stream);

#endif
