/* The data moved between GPUs: a pool of real values, the pool in which they land, and the pages of each request. */
#ifndef STRAIT_BENCH_GPU_DATA_H
#define STRAIT_BENCH_GPU_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/strait.h>

#include "bench/gpu_memory.h"
#include "bench/gpu_options.h"
#include "tools/calibrate.h"

/* Pools have the size of the largest request. Region r repeats tensor r and belongs to its class. Every GPU_STAMP_STEP
 * bytes carry a number, so that a page in another's place is noticed. */
struct gpu_data {
    struct tensors tensors;
    struct strait_codebook *codebook;
    struct gpu_layout layout;
    struct gpu_memory source, sink;
    struct gpu_memory reference; /* a copy of the source, on the sink's GPU */
    uint32_t *from, *to;         /* ids of all pages, in random order */
    int32_t *wanted;             /* for checking: which page of the source each page of the sink should equal */
};

/* On success the caller must gpu_data_fini() it. */
bool gpu_data_init(struct gpu_data *data, const struct gpu_options *options, int from, int to);
void gpu_data_fini(struct gpu_data *data); /* safe on zeroes */

/* The largest number of ids that move at most `bytes`; and the first id that the turn uses: each turn takes other ids
 * than the one before, as far as there are any. */
uint32_t gpu_data_ids(const struct gpu_data *data, uint64_t bytes);
uint32_t gpu_data_first(const struct gpu_data *data, uint32_t ids, uint64_t turn);

/* Regions of a pool in this memory: layout.regions of them. */
void gpu_data_regions(const struct gpu_data *data, const struct gpu_memory *memory, struct strait_pool_region *regions);

/* How many pages of the sink are wrong: landed pages must equal the source's, the others must be wiped. This and the
 * following functions return false when they cannot tell, with the error on stderr. */
bool gpu_data_wrong_pages(struct gpu_data *data, uint32_t first, uint32_t ids, uint64_t *wrong);
/* Makes one landed page wrong. */
bool gpu_data_spoil(struct gpu_data *data, uint32_t first);
/* *whole: nobody has written to the source. */
bool gpu_data_source_is_whole(struct gpu_data *data, bool *whole);

#endif
