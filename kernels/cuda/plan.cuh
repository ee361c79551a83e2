// Turns a call into launches: which chunks share one, in which order their work is drawn, and where its parameters lie.
#ifndef STRAIT_KERNELS_CUDA_PLAN_CUH
#define STRAIT_KERNELS_CUDA_PLAN_CUH

#include "kernels/cuda/kernels.cuh"
#include "kernels/device.h"

namespace strait
{

// Properties of a page list.
struct list_shape {
    uint64_t blocks;
    uint32_t blocks_per_page; // 0: differs between regions
    uint32_t longest, shortest;
    uint32_t alignment; // 1, 2 or 4: the alignment of all its addresses
};

list_shape measure_list(const strait_pages &pages);

// Scratch for a call whose lists have `blocks` blocks in all, and at most `regions_max` regions each.
uint64_t scratch_bytes(uint64_t blocks, uint32_t regions_max);

// As many items as fit into one launch, and where their descriptions go in launch.bytes.
struct share {
    uint32_t items, regions;
    bool far_regions; // a single item, whose regions go through scratch
    uint32_t segments_at, regions_at;
    size_t bytes;
};

const strait_pages &list_of(const strait_encode_item &item);
const strait_pages &list_of(const strait_decode_item &item);

template <class ARGUMENT, class ITEM> share plan_share(const ARGUMENT *items, uint32_t count);

// Fill the parameters with the items of a share.
void fill_launch(large_launch &launch, const share &part, const strait_encode_item *items);
void fill_launch(large_launch &launch, const share &part, const strait_decode_item *items);

// The description of region `index` of a list.
region describe_region(const strait_pages &pages, uint32_t index, uint32_t blocks_before);

// Points the launch at the scratch of the call. False when the scratch is too small.
bool use_scratch(launch_head &head, const strait_run &run, uint64_t blocks, uint32_t regions);

} // namespace strait
#endif
