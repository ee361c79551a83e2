/* What is moved between GPUs: a pool of real values, the pool that they land in, and the pages of each request. */
#ifndef STRAIT_BENCH_GPU_DATA_H
#define STRAIT_BENCH_GPU_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/strait.h>

#include "bench/gpu_memory.h"
#include "bench/gpu_options.h"
#include "tools/tensors.h"

/* Pools of the size of the largest request. Region r repeats tensor r and belongs to its class; every GPU_STAMP_STEP
 * bytes have a number, so that a page in another's place is seen. */
struct gpu_data {
    struct tensors tensors;
    struct strait_codebook *codebook;
    struct gpu_layout layout;
    struct gpu_memory source, sink;
    struct gpu_memory reference; /* what is in the source, on the sink's GPU */
    uint32_t *from, *to;         /* ids of all pages, in no order */
    int32_t *wanted;             /* for checking: which page of the source each page of the sink should be */
};

/* On success the caller must gpu_data_fini() it. */
bool gpu_data_init(struct gpu_data *data, const struct gpu_options *options, int from, int to);
void gpu_data_fini(struct gpu_data *data); /* safe on zeroes */

/* How many ids move so many bytes, at most; and which ones the turn takes: others than the turn before, as long as
 * there are others. */
uint32_t gpu_data_ids(const struct gpu_data *data, uint64_t bytes);
uint32_t gpu_data_first(const struct gpu_data *data, uint32_t ids, uint64_t turn);

/* Regions of a pool in this memory: layout.regions of them. */
void gpu_data_regions(const struct gpu_data *data, const struct gpu_memory *memory, struct strait_pool_region *regions);

/* How many pages of the sink are not what they should be: those that were to land there the source's, the others wiped.
 * Like those that follow: false when it could not be told, of which stderr knows. */
bool gpu_data_wrong_pages(struct gpu_data *data, uint32_t first, uint32_t ids, uint64_t *wrong);
/* One landed page becomes wrong. */
bool gpu_data_spoil(struct gpu_data *data, uint32_t first);
/* Nobody has written to the source. */
bool gpu_data_source_is_whole(struct gpu_data *data, bool *whole);

#endif
