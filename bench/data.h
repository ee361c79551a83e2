/* The data to measure on: real tensors, repeated until they exceed the caches. */
#ifndef STRAIT_BENCH_DATA_H
#define STRAIT_BENCH_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "tools/pipeline.h"
#include "tools/calibrate.h"

struct data {
    uint8_t *bytes;
    uint64_t size;
    uint64_t period;  /* the tensors repeat after this many bytes; equals size when they do not */
    struct plan plan; /* one segment for each copy of a tensor */
};

/* Copies whole tensors back to back, round after round, until there are at least `size` bytes; of a tensor larger than
 * that, only the first `size` bytes. Each copy keeps the table of its class. On success the caller must data_fini() it.
 */
bool data_init(struct data *data, const struct tensors *tensors, const struct strait_codebook *codebook, uint64_t size);
/* Safe on zeroes. */
void data_fini(struct data *data);

/* Gives about `share` of the values an exponent that no table of the set has among its 21 most frequent. The seed
 * decides which values. False when there is no such exponent, with the error on stderr. */
bool data_add_escapes(struct data *data, const struct strait_codebook *codebook, double share, uint64_t seed);

/* Properties of the values, over all of the data. */
struct data_figures {
    double top16_escapes;             /* share of values of rank 16 or more in their table */
    double tiered_escapes;            /* of rank 21 or more */
    double worst_top16, worst_tiered; /* the same for the worst class */
    double class_bits;                /* order-0 entropy of the exponents, each class by itself */
    double global_bits;               /* of all values together */
    uint32_t classes;
};

/* False when out of memory, which was printed to stderr. */
bool data_measure(const struct data *data, const struct strait_codebook *codebook, unsigned threads,
                  struct data_figures *figures);

#endif
