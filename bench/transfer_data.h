/* The data that is moved: the source's memory, filled with real values, the sink's memory, and the pages of both. */
#ifndef STRAIT_BENCH_TRANSFER_DATA_H
#define STRAIT_BENCH_TRANSFER_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>
#include <strait/strait.h>

#include "bench/transfer_options.h"
#include "tools/calibrate.h"

/* One way to cut the memory into pages. Request q has its own logical indexes 0..pages-1, at places q * pages onward.
 */
struct shape {
    uint64_t page_bytes;
    uint32_t pages; /* of a request, in each region */
    uint32_t regions;
    uint32_t requests;
    bool whole;           /* one region over everything, pages in order */
    bool layered;         /* region i is layer i */
    uint64_t region_step; /* bytes from one region to the next */
    uint32_t *from, *to;  /* page ids: requests * pages */
    uint64_t *sums;       /* XXH3-64 of the source's pages: [region][place] */
};

struct transfer_data {
    struct tensors tensors;
    struct strait_codebook *codebook;
    struct strait_memory source, sink;
    uint64_t region_step;
    uint32_t regions; /* of the memory */
};

/* Allocates and fills memory for every shape that the options ask for. Region r repeats tensor r (modulo their number);
 * a single region repeats all tensors, one after another. On success the caller must transfer_data_fini() it. */
bool transfer_data_init(struct transfer_data *data, const struct transfer_options *options);
/* Safe on zeroes. */
void transfer_data_fini(struct transfer_data *data);
/* The class that a pool declares for region r. */
struct strait_class transfer_data_class(const struct transfer_data *data, const struct shape *shape, uint32_t region);

/* Completes a shape whose sizes are set: scattered ids, the same in every run, and the sums. On success the caller must
 * shape_fini() it. */
bool shape_init(struct shape *shape, const struct transfer_data *data);
/* Safe on zeroes. */
void shape_fini(struct shape *shape);

static inline uint32_t shape_places(const struct shape *shape)
{
    return shape->pages * shape->requests;
}

/* Of all requests together. */
static inline uint64_t shape_bytes(const struct shape *shape)
{
    return (uint64_t)shape_places(shape) * shape->regions * shape->page_bytes;
}

static inline uint8_t *shape_page(const struct shape *shape, const struct strait_memory *memory, uint32_t region,
                                  uint32_t id)
{
    return (uint8_t *)memory->base + region * shape->region_step + id * shape->page_bytes;
}

/* Overwrites the sink's pages, so that pages left by an earlier transfer cannot pass the check. */
void shape_wipe(const struct shape *shape, const struct transfer_data *data);
/* Number of pages at the sink that differ from the source's. */
uint64_t shape_wrong_pages(const struct shape *shape, const struct transfer_data *data);

#endif
