// What the plugin offers to the library. Calls only enqueue launches on the caller's stream.
#include <atomic>
#include <cstring>

#include <cuda_runtime_api.h>

#include "kernels/cuda/plan.cuh"

namespace strait
{

// ---- Devices --------------------------------------------------------------------------------------------------------

constexpr int DEVICES_MAX = 64, FUNCTIONS = 4 * (CODERS + 1);

// What is known of a device, found once: its multiprocessors, and how many thread blocks of each kernel one of them
// holds.
struct known_device {
    std::atomic<int> multiprocessors;
    std::atomic<int> resident[FUNCTIONS];
};

static known_device devices[DEVICES_MAX];

static int current_device()
{
    int device;
    return cudaGetDevice(&device) == cudaSuccess && device < DEVICES_MAX ? device : -1;
}

static int multiprocessors_of(int device)
{
    int count = devices[device].multiprocessors.load(std::memory_order_relaxed);
    if (count == 0 && cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess)
        devices[device].multiprocessors.store(count, std::memory_order_relaxed);
    return count;
}

// A kernel, by coder, teams and parameters.
constexpr coder DECODER = CODERS;
struct kernel {
    const void *function;
    uint32_t number, threads, shared_bytes;
};

static kernel choose_kernel(coder which, bool full, bool large)
{
    const bool encode = which != DECODER;
    const uint32_t teams = full ? FULL_TEAMS : 1, number = 4 * which + 2 * full + large;
    return {encode ? encode_function(which, full, large) : decode_function(full, large), number, teams * TEAM_THREADS,
            teams * (encode ? encode_team_bytes(which) : decode_team_bytes())};
}

// How many thread blocks of the kernel fit on a multiprocessor; 0 when it cannot run. The first call prepares the
// kernel for the device.
static int resident_blocks(const kernel &k, int device)
{
    std::atomic<int> &known = devices[device].resident[k.number];
    int count = known.load(std::memory_order_acquire);
    if (count != 0)
        return count;
    if (cudaFuncSetAttribute(k.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(k.shared_bytes)) != cudaSuccess ||
        cudaFuncSetAttribute(k.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, k.function, static_cast<int>(k.threads),
                                                      k.shared_bytes) != cudaSuccess)
        return 0;
    known.store(count, std::memory_order_release);
    return count;
}

// ---- Launches -------------------------------------------------------------------------------------------------------

struct means {
    const strait_run &run;
    int device;
    coder which;
};

// How a launch is spread over the device.
struct spread {
    uint32_t blocks;
    bool in_pairs;
};

// A launch on few multiprocessors is one of clusters of two blocks, which are neighbours. Matrix products run in such
// clusters, too: a multiprocessor taken from a pair is two lost for them.
static spread spread_of(const strait_run &run, uint32_t tickets, uint32_t multiprocessors, uint32_t resident, bool full)
{
    const uint32_t room = full ? run.sm_budget : multiprocessors * resident;
    const uint32_t teams = full ? FULL_TEAMS : 1, wanted = (tickets + teams - 1) / teams;
    const uint32_t blocks = wanted < room ? wanted : room;
    const bool in_pairs = full && room % 2 == 0;
    return {in_pairs ? (blocks + 1) / 2 * 2 : blocks, in_pairs};
}

static strait_status launch_kernel(const means &with, large_launch &launch, size_t bytes)
{
    const uint32_t multiprocessors = static_cast<uint32_t>(multiprocessors_of(with.device));
    const bool full = with.run.sm_budget > 0 && with.run.sm_budget < multiprocessors;
    const kernel k = choose_kernel(with.which, full, bytes > sizeof(small_launch::bytes));
    const uint32_t resident = static_cast<uint32_t>(resident_blocks(k, with.device));
    if (multiprocessors == 0 || resident == 0)
        return STRAIT_ERR_DEVICE;
    const spread over = spread_of(with.run, launch.head.tickets, multiprocessors, resident, full);
    void *arguments[] = {&launch}; // the kernel takes only its part
    cudaLaunchAttribute attributes[2] = {};
    // The launch may begin while the one before it ends, and waits for that one itself.
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(over.blocks);
    config.blockDim = dim3(k.threads);
    config.dynamicSmemBytes = k.shared_bytes;
    config.stream = reinterpret_cast<cudaStream_t>(with.run.stream);
    config.attrs = attributes;
    config.numAttrs = over.in_pairs ? 2 : 1;
    const cudaError_t error = cudaLaunchKernelExC(&config, k.function, arguments);
    return error == cudaSuccess ? STRAIT_OK : STRAIT_ERR_DEVICE;
}

// Uploads regions that do not fit into the parameters to scratch, some hundred at a time.
static strait_status upload_regions(const means &with, const region *dst, const strait_pages &list)
{
    upload part;
    uint32_t blocks = 0;
    const uint32_t most = sizeof(part.regions) / sizeof(part.regions[0]);
    for (uint32_t at = 0; at < list.region_count; at += part.count) {
        const uint32_t left = list.region_count - at;
        part.dst = const_cast<region *>(dst) + at;
        part.count = left < most ? left : most;
        for (uint32_t i = 0; i < part.count; i++) {
            part.regions[i] = describe_region(list, at + i, blocks);
            blocks += blocks_of(part.regions[i].page_bytes);
        }
        void *arguments[] = {&part};
        if (cudaLaunchKernel(upload_function(), dim3(1), dim3(256), arguments, 0,
                             reinterpret_cast<cudaStream_t>(with.run.stream)) != cudaSuccess)
            return STRAIT_ERR_DEVICE;
    }
    return STRAIT_OK;
}

// Launches all items, share by share. `head` has everything that does not depend on the share.
template <class ITEM, class ARGUMENT>
static strait_status launch_all(const means &with, const launch_head &head, const ARGUMENT *items, uint32_t count,
                                uint64_t blocks, uint32_t far_regions)
{
    large_launch launch;
    strait_status status = STRAIT_OK;
    for (uint32_t at = 0; at < count && status == STRAIT_OK;) {
        const share part = plan_share<ARGUMENT, ITEM>(items + at, count - at);
        launch.head = head;
        if (!use_scratch(launch.head, with.run, blocks, far_regions))
            return STRAIT_ERR_NO_SPACE;
        fill_launch(launch, part, items + at);
        if (part.far_regions)
            status = upload_regions(with, launch.head.far_regions, list_of(items[at]));
        else
            launch.head.far_regions = nullptr;
        if (status == STRAIT_OK)
            status = launch_kernel(with, launch, part.bytes);
        at += part.items;
    }
    if (status != STRAIT_OK)
        cudaGetLastError(); // clears the error, which has been reported
    return status;
}

// What the size of scratch depends on.
struct demand {
    uint64_t blocks;
    uint32_t far_regions; // the most of any item, when its regions go through scratch
};

template <class ITEM, class ARGUMENT> static demand measure_items(const ARGUMENT *items, uint32_t count)
{
    demand all = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        const strait_pages &list = list_of(items[i]);
        all.blocks += measure_list(list).blocks;
        if (list.region_count > all.far_regions && plan_share<ARGUMENT, ITEM>(items + i, 1).far_regions)
            all.far_regions = list.region_count;
    }
    return all;
}

static bool is_aligned(const void *p, uintptr_t to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}

static bool reports_aligned(const strait_result *result, const int32_t *page_status, const uint32_t *ids)
{
    return is_aligned(result, 8) && is_aligned(page_status, 4) && is_aligned(ids, 4);
}

static void fill_head(launch_head &head, const strait_run &run, const uint8_t *codebook_id)
{
    memset(&head, 0, sizeof(head));
    head.class_stats = run.class_stats;
    head.class_count = run.class_count;
    if (codebook_id == nullptr)
        return;
    head.tables = static_cast<const uint8_t *>(run.tables) + IMAGE_HEADER_BYTES;
    memcpy(head.codebook_id, codebook_id, STRAIT_CODEBOOK_ID_BYTES);
}

// ---- Calls ----------------------------------------------------------------------------------------------------------

static uint64_t encode_scratch_size(const strait_encode_item *items, uint32_t count)
{
    const demand all = measure_items<encode_item>(items, count);
    return scratch_bytes(all.blocks, all.far_regions);
}

static uint64_t decode_scratch_size(const strait_decode_item *items, uint32_t count)
{
    const demand all = measure_items<decode_item>(items, count);
    return scratch_bytes(all.blocks, all.far_regions);
}

static bool is_later_float(const device_encode *call)
{
    return call->element == STRAIT_ELEMENT_FP16 || call->element == STRAIT_ELEMENT_FP32;
}

// The mode as kernels know it: for BF16 `split` is `tiered`, and bytes have no mode of their own.
static strait_mode find_mode(const device_encode *call)
{
    const bool by_base = call->mode == STRAIT_MODE_BASE && call->element == STRAIT_ELEMENT_BF16;
    if (call->mode < STRAIT_MODE_BASE || by_base || is_later_float(call))
        return call->mode;
    return STRAIT_MODE_TIERED;
}

static coder find_coder(const device_encode *call, strait_mode mode, bool coded)
{
    if (mode >= STRAIT_MODE_BASE)
        return call->element == STRAIT_ELEMENT_BF16   ? CODER_BF16
               : call->element == STRAIT_ELEMENT_FP16 ? CODER_FP16
                                                      : CODER_FP32;
    return coded && mode != STRAIT_MODE_TOP16 ? CODER_TIERED : CODER_TOP16;
}

// Whether this call codes values by tables.
static bool needs_tables(const device_encode *call, strait_mode mode)
{
    if (call->codebook_id == nullptr || mode == STRAIT_MODE_RAW || mode == STRAIT_MODE_BASE)
        return false;
    return call->element == STRAIT_ELEMENT_BF16 || mode == STRAIT_MODE_SPLIT;
}

static strait_status encode(const device_encode *call)
{
    const strait_run &run = *call->run;
    launch_head head;
    const strait_mode mode = find_mode(call);
    const bool coded = needs_tables(call, mode);
    if (coded && run.tables == nullptr)
        return STRAIT_ERR_INVALID;
    for (uint32_t i = 0; i < call->count; i++) {
        const strait_encode_item &item = call->items[i];
        if (!is_aligned(item.dst, 16) || !reports_aligned(item.result, item.page_status, item.src.ids))
            return STRAIT_ERR_ALIGNMENT;
    }
    const int device = current_device();
    if (!is_aligned(run.tables, 16))
        return STRAIT_ERR_ALIGNMENT;
    if (device < 0)
        return STRAIT_ERR_DEVICE;
    fill_head(head, run, call->codebook_id);
    head.element = static_cast<uint8_t>(call->element);
    head.mode = static_cast<uint8_t>(mode);
    head.coded = coded;
    head.far = run.caching == STRAIT_CACHING_LINK;
    const demand all = measure_items<encode_item>(call->items, call->count);
    const means with = {run, device, find_coder(call, mode, coded)};
    return launch_all<encode_item>(with, head, call->items, call->count, all.blocks, all.far_regions);
}

static strait_status decode(const device_decode *call)
{
    const strait_run &run = *call->run;
    launch_head head;
    if (call->codebook_id != nullptr && run.tables == nullptr)
        return STRAIT_ERR_INVALID;
    for (uint32_t i = 0; i < call->count; i++) {
        const strait_decode_item &item = call->items[i];
        if (!is_aligned(item.src, 16) || !is_aligned(item.metadata, 16) || !is_aligned(item.select, 4) ||
            !reports_aligned(item.result, item.page_status, item.dst.ids))
            return STRAIT_ERR_ALIGNMENT;
    }
    const int device = current_device();
    if (!is_aligned(run.tables, 16))
        return STRAIT_ERR_ALIGNMENT;
    if (device < 0)
        return STRAIT_ERR_DEVICE;
    fill_head(head, run, call->codebook_id);
    head.table_count = call->table_count;
    const demand all = measure_items<decode_item>(call->items, call->count);
    const means with = {run, device, DECODER};
    return launch_all<decode_item>(with, head, call->items, call->count, all.blocks, all.far_regions);
}

// Loads all kernels: asking for a kernel's attributes does so.
static strait_status prepare()
{
    const int device = current_device();
    cudaFuncAttributes attributes;
    bool good = device >= 0 && cudaFuncGetAttributes(&attributes, upload_function()) == cudaSuccess;
    for (uint32_t which = 0; which <= CODERS; which++)
        for (uint32_t variant = 0; variant < 4; variant++)
            good =
                good && resident_blocks(choose_kernel(static_cast<coder>(which), variant / 2, variant % 2), device) > 0;
    return good ? STRAIT_OK : STRAIT_ERR_DEVICE;
}

static const device_ops ops = {DEVICE_OPS_VERSION, encode_scratch_size, decode_scratch_size, encode, decode, prepare};

} // namespace strait

// Bulk copies and barriers in shared memory need compute capability 9.0.
extern "C" __attribute__((visibility("default"))) const struct device_ops *strait_device_ops(void);
extern "C" const struct device_ops *strait_device_ops(void)
{
    int device, major = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    return major >= 9 ? &strait::ops : nullptr;
}
