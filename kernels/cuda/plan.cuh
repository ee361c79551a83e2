// A call becomes launches: which chunks share one, in which order their work is drawn, and where its parameters lie.
#ifndef STRAIT_KERNELS_CUDA_PLAN_CUH
#define STRAIT_KERNELS_CUDA_PLAN_CUH

#include "kernels/cuda/kernels.cuh"
#include "kernels/device.h"

namespace strait
{

// Of a page list.
struct list_shape {
    uint64_t blocks;
    uint32_t blocks_per_page; // 0: not the same in all regions
    uint32_t longest, shortest;
    uint32_t alignment; // 1, 2 or 4: what all its addresses are multiples of
};

list_shape measure_list(const strait_pages &pages);

// Scratch of a call whose lists have so many blocks together, and none more regions than that.
uint64_t scratch_bytes(uint64_t blocks, uint32_t regions_max);

// As many items as fit into one launch, and where their descriptions go in launch.bytes.
struct share {
    uint32_t items, regions;
    bool far_regions; // one item, whose regions go through scratch
    uint32_t segments_at, regions_at;
    size_t bytes;
};

const strait_pages &list_of(const strait_encode_item &item);
const strait_pages &list_of(const strait_decode_item &item);

template <class ARGUMENT, class ITEM> share plan_share(const ARGUMENT *items, uint32_t count);

// Fills parameters with the items of a share.
void fill_launch(large_launch &launch, const share &part, const strait_encode_item *items);
void fill_launch(large_launch &launch, const share &part, const strait_decode_item *items);

// Where a region's description comes from: region `index` of a list.
region describe_region(const strait_pages &pages, uint32_t index, uint32_t blocks_before);

// Points the launch at the scratch of the call; false when it is too small.
bool use_scratch(launch_head &head, const strait_run &run, uint64_t blocks, uint32_t regions);

} // namespace strait
#endif
