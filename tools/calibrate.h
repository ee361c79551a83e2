#ifndef STRAIT_TOOLS_CALIBRATE_H
#define STRAIT_TOOLS_CALIBRATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <strait/codec.h>

#include "kernels/codebook_file.h"
#include "tools/input.h"
#include "tools/node_sample.h"
#include "tools/pipeline.h"
#include "tools/util.h"
#include "tools/files.h"

/* Histograms of `strait calibrate`: one per class, of tensors in memory or of partial files. */

/* ---- Histograms ------------------------------------------------------------------------------------------------ */

/* In ascending order of class, as codebook_partial_serialize needs it. Zero it to begin; histograms_fini() frees it. */
struct histograms {
    struct codebook_histogram *list;
    uint32_t count;
};

/* Adds `list`, which is copied, class by class. The order of additions makes no difference.
 * ERR_INVALID: the number of values exceeds 64 bits, *histograms is unusable. ERR_NO_MEMORY. */
enum strait_status histograms_add(struct histograms *histograms, const struct codebook_histogram *list, uint32_t count);
void histograms_fini(struct histograms *histograms);

/* The counts of all classes together, but for kinds, whose values count for other classes too. */
void histograms_total(const struct histograms *histograms, uint64_t total[256]);

/* sum += counts */
void histogram_sum(uint64_t sum[256], const uint64_t counts[256]);

/* Makes a set: one table that ranks all values and, unless `global`, one for each class and kind, and one for K and V
 * together of each layer that has both. The caller owns it. ERR_NO_MEMORY, or what strait_codebook_create returns for
 * too many classes. */
enum strait_status histograms_codebook(const struct histograms *histograms, bool global,
                                       struct strait_codebook **codebook);

/* ---- Tensors --------------------------------------------------------------------------------------------------- */

/* Values in memory, borrowed, or in a source. */
struct span {
    struct strait_class class;
    enum strait_element element; /* one that has tables */
    const uint8_t *data;         /* NULL: in a source */
    uint64_t offset;             /* of the values, in data or in the source */
    uint64_t values;
    struct strait_class kind;                           /* counted under too, if kind_is() says that it is one */
    struct codebook_histogram *histogram, *of_its_kind; /* of its class, and of its kind or NULL; while counting */
};

/* A growing list. Zero it to begin; spans_fini() frees it. */
struct spans {
    struct span *list;
    size_t count, capacity;
};

/* Appends; a span without values is left out. False: out of memory, which was printed to stderr. */
bool spans_add(struct spans *spans, struct span span);
void spans_fini(struct spans *spans);

/* What else is done with each piece of a span while it is at hand, in any thread. class: of its histogram, by index.
 * False: it failed, with the error on stderr. */
struct measure {
    bool (*add)(void *arg, uint32_t class, const struct span *piece, const uint8_t *data);
    void *arg;
};

/* Counts all spans, in `threads` threads, into *histograms, which must be empty; the result does not depend on
 * `threads`. Reorders the list. `progress` moves by bytes. source: NULL: the values are in memory. measure: or NULL.
 * False: failed, with the error on stderr. */
bool spans_count(struct spans *spans, const struct source *source, unsigned threads, struct progress *progress,
                 struct histograms *histograms, const struct measure *measure);

/* What values cost, summed over them, so that the costs of several classes can be added. */
struct cost {
    uint64_t values;
    double entropy; /* bits, of exponents */
    double top16, tiered;
    double top16_escapes, tiered_escapes;
};

struct cost cost_of(const uint64_t counts[256], const uint8_t ranking[256]);

/* The tensors of input files that can be counted for tables, each with the class derived from its name. */

struct tensors {
    struct input *inputs;
    unsigned input_count;
    struct spans spans;                         /* their data lies in the inputs */
    uint64_t bytes;                             /* of all spans */
    uint64_t skipped;                           /* tensors of unwanted types */
    uint64_t classed;                           /* spans with a class that is no kind */
    uint32_t elements;                          /* wanted types: bit e for enum strait_element e */
    uint32_t kinds;                             /* types counted by kind: tensors of role other, or of no class */
    bool (*wanted)(const char *name, int kind); /* NULL: all names are wanted */
    int kind;
};

/* Adds the tensors of a file. Like all functions here, it returns false on failure, with the error on stderr. */
typedef bool tensors_take(struct tensors *tensors, const struct input *input, const struct class_rules *rules);

tensors_take tensors_take_safetensors;
/* Takes the whole file as values of role OTHER, of no layer. */
tensors_take tensors_take_raw;

#define TENSORS_BF16  (1u << STRAIT_ELEMENT_BF16)
#define TENSORS_CODED (TENSORS_BF16 | 1u << STRAIT_ELEMENT_FP16 | 1u << STRAIT_ELEMENT_FP32)

/* Maps the files and takes each; values of files without tensors are of the first type in `elements`. On success the
 * caller must tensors_close() it. */
bool tensors_open(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                  const struct class_rules *rules, uint32_t elements);
/* The same for a set that files are encoded with: tensors of role other are counted by kind too, where they are of
 * types in `elements`. 0: the files say it. Then classes are of BF16 tensors, or, if there are none, of all types that
 * are coded, and kinds of all of them: of role other, and of any role where no class takes them. */
bool tensors_open_kinds(struct tensors *tensors, const char *const *paths, unsigned count, tensors_take *take,
                        const struct class_rules *rules, uint32_t elements);
/* Takes the tensors of safetensors files whose names are wanted, as of no layer. */
bool tensors_open_wanted(struct tensors *tensors, const char *const *paths, unsigned count, uint32_t elements,
                         bool (*wanted)(const char *name, int kind), int kind);
/* Safe on zeroes. */
void tensors_close(struct tensors *tensors);

/* Options of commands that count tensors: --dtype adds to `elements`, --class to `rules`. */
bool calibrate_add_dtype(uint32_t *elements, const char *text);
bool calibrate_add_rule(struct class_rules *rules, const char *rule);

/* Report of `strait calibrate` about the data it counted, class by class. */

struct calibrate_report {
    const struct histograms *histograms;
    const struct strait_codebook *codebook; /* each class is coded with the table it finds there */
    uint64_t skipped;                       /* tensors that were not counted */
    const struct node_sample *sample;       /* of a running node; NULL: the data are files */
};

/* The caller checks the stream for write errors. */
void calibrate_report_table(const struct calibrate_report *report, FILE *stream);
/* False: no memory, or output failed; the error was printed to stderr. */
bool calibrate_report_json(const struct calibrate_report *report, FILE *stream);

#endif
