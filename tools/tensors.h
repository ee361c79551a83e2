/* The BF16 tensors of files, each with the class that its name tells. */
#ifndef STRAIT_TOOLS_TENSORS_H
#define STRAIT_TOOLS_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/classes.h"
#include "tools/histograms.h"
#include "tools/util.h"

struct tensors {
    struct input *inputs;
    unsigned input_count;
    struct spans spans; /* their data lies in the inputs */
    uint64_t bytes;     /* of all spans */
    uint64_t skipped;   /* tensors that are not BF16 */
};

/* Adds what a file holds. Like everything here: false when that failed, which stderr has been told. */
typedef bool tensors_take(struct tensors *tensors, const struct input *input, const struct class_rules *rules);

tensors_take tensors_take_safetensors;
/* All of a file as values of role other and of no layer. */
tensors_take tensors_take_raw;

/* Maps the files and takes each. On success the caller must tensors_close() it. */
bool tensors_open(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                  const struct class_rules *rules);
/* Safe on zeroes. */
void tensors_close(struct tensors *tensors);

#endif
