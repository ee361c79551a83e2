/* The BF16 tensors of safetensors files, each with the class that its name tells. */
#ifndef STRAIT_BENCH_TENSORS_H
#define STRAIT_BENCH_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/histograms.h"
#include "tools/util.h"

struct tensors {
    struct input *inputs;
    unsigned input_count;
    struct spans spans; /* their data lies in the inputs */
    uint64_t bytes;     /* of all spans */
    uint64_t skipped;   /* tensors that are not BF16 */
};

/* Maps the files. On success the caller must tensors_close() it; there is at least one value then. */
bool tensors_open(struct tensors *tensors, const char *const *paths, unsigned count);
/* Safe on zeroes. */
void tensors_close(struct tensors *tensors);

#endif
