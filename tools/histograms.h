/* What `strait calibrate` counts: one histogram per class, of tensors in memory or of partial files. */
#ifndef STRAIT_TOOLS_HISTOGRAMS_H
#define STRAIT_TOOLS_HISTOGRAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/codebook_file.h"
#include "tools/util.h"

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

/* The counts of all classes together. */
void histograms_total(const struct histograms *histograms, uint64_t total[256]);

/* sum += counts */
void histogram_sum(uint64_t sum[256], const uint64_t counts[256]);

/* Makes a set: one table that ranks all values and, unless `global`, one for each class. The caller owns it.
 * ERR_NO_MEMORY, or what strait_codebook_create returns for too many classes. */
enum strait_status histograms_codebook(const struct histograms *histograms, bool global,
                                       struct strait_codebook **codebook);

/* ---- Tensors --------------------------------------------------------------------------------------------------- */

/* Values in memory, borrowed. */
struct span {
    struct strait_class class;
    enum strait_element element; /* one that has tables */
    const uint8_t *data;
    uint64_t values;
    struct codebook_histogram *histogram; /* of its class; valid while counting */
};

/* A growing list. Zero it to begin; spans_fini() frees it. */
struct spans {
    struct span *list;
    size_t count, capacity;
};

/* Appends; a span without values is left out. False when out of memory. */
bool spans_add(struct spans *spans, struct strait_class class, enum strait_element element, const uint8_t *data,
               uint64_t values);
void spans_fini(struct spans *spans);

/* Counts all spans, in `threads` threads, into *histograms, which must be empty; the result does not depend on
 * `threads`. Reorders the list. `progress` moves by bytes. False when out of memory. */
bool spans_count(struct spans *spans, unsigned threads, struct progress *progress, struct histograms *histograms);

#endif
