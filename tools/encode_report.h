/* What `strait encode` reports at the end. */
#ifndef STRAIT_TOOLS_ENCODE_REPORT_H
#define STRAIT_TOOLS_ENCODE_REPORT_H

#include <stdio.h>

#include "tools/encode_file.h"

struct encode_report {
    const struct encode_task *task;
    const struct encode_outcome *outcome;
    const char *output;
    const char *mode;
    double seconds; /* of all passes over the input */
};

void encode_report_print(const struct encode_report *report, FILE *stream);
/* One JSON object and a newline. False when it failed, with the error on stderr. */
bool encode_report_json(const struct encode_report *report, FILE *stream);

#endif
