/* The tensors of input files that can be counted for tables, each with the class derived from its name. */
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
    struct spans spans;                         /* their data lies in the inputs */
    uint64_t bytes;                             /* of all spans */
    uint64_t skipped;                           /* tensors of unwanted types */
    uint32_t elements;                          /* wanted types: bit e for enum strait_element e */
    bool (*wanted)(const char *name, int kind); /* NULL: all names are wanted */
    int kind;
};

/* Adds the tensors of a file. Like all functions here, it returns false on failure, with the error on stderr. */
typedef bool tensors_take(struct tensors *tensors, const struct input *input, const struct class_rules *rules);

tensors_take tensors_take_safetensors;
/* Takes the whole file as values of role OTHER, of no layer. */
tensors_take tensors_take_raw;

#define TENSORS_BF16 (1u << STRAIT_ELEMENT_BF16)

/* Maps the files and takes each; values of files without tensors are of the first type in `elements`. On success the
 * caller must tensors_close() it. */
bool tensors_open(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                  const struct class_rules *rules, uint32_t elements);
/* Takes the tensors of safetensors files whose names are wanted, as of no layer. */
bool tensors_open_wanted(struct tensors *tensors, const char *const *paths, unsigned count, uint32_t elements,
                         bool (*wanted)(const char *name, int kind), int kind);
/* Safe on zeroes. */
void tensors_close(struct tensors *tensors);

#endif
