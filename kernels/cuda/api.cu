// Device plugin: turns a call into launches. Chunks are put into slices of one launch each, which also fixes the order
// of work and where parameters lie. Calls only enqueue launches on the stream of the caller.
#include <atomic>
#include <cstdio>
#include <cstring>

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.cuh"

namespace strait
{

// A chunk is closed when this many blocks have been drawn after its last: by then its blocks are finished, and no team
// waits. Teams hold several tickets at once and count finished blocks even later; with 400 teams this accounts for half
// of it.
constexpr uint32_t CLOSE_LAG = 16384;

// For chunks behind a link, fewer blocks are in flight, because each is counted at once and takes long.
constexpr uint32_t LINK_CLOSE_LAG = 512;

static uint32_t close_lag(const launch_head &head)
{
    return head.over_link ? LINK_CLOSE_LAG : CLOSE_LAG;
}

// A chunk is checked this many blocks before its first block, so that the verdict is there when it is needed.
constexpr uint64_t CHECK_LEAD = 16384;

// Vectors and blocks of metadata in a part of a check (few of either for each lane), and the largest number of parts,
// all that a launch can use.
constexpr uint32_t CHECK_UNITS = 64, CHECKS_MAX = 2048;

constexpr uint32_t SEGMENTS_EACH = 3; // largest number for an item
constexpr uint64_t TICKETS_MAX = 1ull << 31;

// ---- Page lists -----------------------------------------------------------------------------------------------------

static uint32_t page_bytes_of(const strait_region &r)
{
    return r.rows * r.row_bytes;
}

// log2 of the alignment of all addresses of the region, up to 16 bytes.
static uint32_t width_of(const strait_region &r)
{
    uint64_t all = reinterpret_cast<uintptr_t>(r.base) | 16;
    if (r.page_count > 1)
        all |= r.page_stride;
    if (r.rows > 1)
        all |= r.row_stride | r.row_bytes;
    if (r.columns > 1)
        all |= r.column_stride | r.row_bytes / r.columns;
    return static_cast<uint32_t>(__builtin_ctzll(all));
}

// Properties of a page list.
struct list_shape {
    uint64_t blocks;
    uint32_t blocks_per_page; // 0: differs between regions
    uint32_t longest, shortest;
    uint32_t alignment; // 1, 2 or 4: the alignment of all its addresses
};

static list_shape measure_list(const strait_pages &pages)
{
    list_shape shape = {0, blocks_of(page_bytes_of(pages.regions[0])), 0, 0xffffffffu, 4};
    for (uint32_t r = 0; r < pages.region_count; r++) {
        const uint32_t bytes = page_bytes_of(pages.regions[r]), width = 1u << width_of(pages.regions[r]);
        shape.blocks += static_cast<uint64_t>(blocks_of(bytes)) * pages.id_count;
        shape.longest = bytes > shape.longest ? bytes : shape.longest;
        shape.shortest = bytes < shape.shortest ? bytes : shape.shortest;
        shape.blocks_per_page = blocks_of(bytes) == shape.blocks_per_page ? shape.blocks_per_page : 0;
        shape.alignment = width < shape.alignment ? width : shape.alignment;
    }
    return shape;
}

// The description of region `index` of a list.
static region describe_region(const strait_pages &pages, uint32_t index, uint32_t blocks_before)
{
    const strait_region &from = pages.regions[index];
    const uint32_t columns = from.columns > 1 ? from.columns : 1;
    const bool whole = columns == 1 && (from.rows == 1 || from.row_stride == from.row_bytes);
    return {static_cast<uint8_t *>(from.base),
            from.page_stride,
            from.row_stride,
            from.page_count,
            from.row_bytes / columns,
            page_bytes_of(from),
            from.table,
            blocks_before,
            width_of(from) | (whole ? SHAPE_WHOLE : 0),
            columns,
            from.column_stride};
}

static void describe_regions(region *regions, const strait_pages &pages)
{
    uint32_t blocks = 0;
    for (uint32_t r = 0; r < pages.region_count; r++) {
        regions[r] = describe_region(pages, r, blocks);
        blocks += blocks_of(regions[r].page_bytes);
    }
}

// ---- Scratch --------------------------------------------------------------------------------------------------------

static uint64_t plane_bytes(uint64_t blocks, uint32_t regions)
{
    const uint64_t bytes = 8 * (blocks + SCAN_WIDTH) + sizeof(region) * static_cast<uint64_t>(regions);
    return (bytes + 255) / 256 * 256;
}

// Bytes of scratch for a call whose lists have `blocks` blocks in all, and at most `regions_max` regions each.
static uint64_t scratch_bytes(uint64_t blocks, uint32_t regions_max)
{
    return SCRATCH_FIXED + PLANES * plane_bytes(blocks, regions_max);
}

// Points the launch at the scratch of the call. False when the scratch is too small.
static bool use_scratch(launch_head &head, const strait_run &run, uint64_t blocks, uint32_t regions)
{
    if (run.scratch_size < scratch_bytes(blocks, regions))
        return false;
    uint8_t *at = static_cast<uint8_t *>(run.scratch);
    const uint64_t plane = (run.scratch_size - SCRATCH_FIXED) / PLANES / 256 * 256;
    head.scratch = reinterpret_cast<control *>(at);
    head.items = reinterpret_cast<progress *>(at + sizeof(control));
    head.records = reinterpret_cast<uint64_t *>(at + SCRATCH_RECORDS);
    for (uint32_t p = 0; p < PLANES; p++)
        head.planes[p] = reinterpret_cast<uint64_t *>(at + SCRATCH_FIXED + p * plane);
    head.scratch_regions =
        regions == 0 ? nullptr : reinterpret_cast<region *>(at + SCRATCH_FIXED + PLANES * plane) - regions;
    return true;
}

// ---- Slices --------------------------------------------------------------------------------------------------------

// As many items as fit into one launch, and the offsets of their descriptions in launch.bytes.
struct batch_slice {
    uint32_t items, regions;
    bool scratch_regions; // a single item, whose regions go through scratch
    uint32_t segments_at, regions_at;
    size_t bytes;
};

static const strait_pages &list_of(const strait_encode_item &item)
{
    return item.src;
}

static const strait_pages &list_of(const strait_decode_item &item)
{
    return item.dst;
}

static size_t align16(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static void lay_out(batch_slice &part, size_t item_bytes)
{
    const uint32_t regions = part.scratch_regions ? 0 : part.regions;
    part.segments_at = static_cast<uint32_t>(align16(part.items * item_bytes));
    part.regions_at =
        static_cast<uint32_t>(align16(part.segments_at + (SEGMENTS_EACH * part.items + 2) * sizeof(segment)));
    part.bytes = part.regions_at + regions * sizeof(region);
}

static bool shares_regions(const strait_pages &list, const strait_pages &before)
{
    return list.regions == before.regions && list.region_count == before.region_count;
}

template <class ARGUMENT, class ITEM> static batch_slice plan_slice(const ARGUMENT *items, uint32_t count)
{
    batch_slice part = {};
    uint64_t blocks = 0;
    while (part.items < count && part.items < ITEMS_MAX) {
        const strait_pages &list = list_of(items[part.items]);
        batch_slice more = part;
        more.items++;
        if (part.items == 0 || !shares_regions(list, list_of(items[part.items - 1])))
            more.regions += list.region_count;
        lay_out(more, sizeof(ITEM));
        blocks += measure_list(list).blocks;
        if (more.bytes > sizeof(large_launch::bytes) || blocks > TICKETS_MAX) {
            if (part.items > 0)
                break;
            more.scratch_regions = true;
            lay_out(more, sizeof(ITEM));
            return more;
        }
        part = more;
    }
    return part;
}

// ---- Order of work --------------------------------------------------------------------------------------------------

struct schedule {
    segment *segments;
    uint32_t count, tickets;
    uint32_t ends[ITEMS_MAX]; // ticket after the last block of an item
    uint32_t closed;          // items whose close is scheduled
    uint32_t checked;         // items whose check is scheduled

    void add(uint32_t item, work_type what, uint32_t more)
    {
        segments[count++] = {tickets, item << 2 | what};
        tickets += more;
    }

    void finish()
    {
        segments[count] = {0xffffffffu, 0};
    }
};

template <class ITEM> static void close_chunks(schedule &order, const ITEM *items, uint32_t count, uint32_t lag)
{
    while (order.closed < count && order.tickets - order.ends[order.closed] >= lag) {
        order.add(order.closed, WORK_CLOSE, items[order.closed].close_parts);
        order.closed++;
    }
}

static void check_chunks(schedule &, const encode_item *, uint32_t, uint32_t)
{
}

// Schedules the checks that belong before the blocks of item `next`.
static void check_chunks(schedule &order, const decode_item *items, uint32_t count, uint32_t next)
{
    while (order.checked < count &&
           (order.checked <= next || items[order.checked].first_slot - items[next].first_slot < CHECK_LEAD)) {
        order.add(order.checked, WORK_CHECK, items[order.checked].checks);
        order.checked++;
    }
}

template <class ITEM> static void order_work(large_launch &launch, const ITEM *items, uint32_t count, uint32_t first)
{
    schedule order = {};
    order.segments = reinterpret_cast<segment *>(launch.bytes + launch.head.segments_at);
    order.tickets = first;
    for (uint32_t i = 0; i < count; i++) {
        check_chunks(order, items, count, i);
        order.add(i, WORK_BLOCKS, items[i].block_count);
        order.ends[i] = order.tickets;
        close_chunks(order, items, i, close_lag(launch.head));
    }
    launch.head.closes_from = order.tickets;
    close_chunks(order, items, count, 0);
    order.finish();
    launch.head.tickets = order.tickets;
}

// ---- Items ----------------------------------------------------------------------------------------------------------

// Fills the fields that encode and decode items share.
template <class ITEM> static void fill_list(ITEM &item, const strait_pages &list, const list_shape &shape)
{
    item.ids = list.ids;
    item.id_count = list.id_count;
    item.region_count = list.region_count;
    item.page_count = list.region_count * list.id_count;
    item.blocks_per_page = shape.blocks_per_page;
    item.block_count = static_cast<uint32_t>(shape.blocks);
}

static void fill_item(encode_item &item, const strait_encode_item &from)
{
    const list_shape shape = measure_list(from.src);
    item = {};
    fill_list(item, from.src, shape);
    item.dst = static_cast<uint8_t *>(from.dst);
    item.result = from.result;
    item.page_status = from.page_status;
    item.flag = from.flag;
    item.flag_value = from.flag_value;
    item.page_status_count = from.page_status_count;
    item.page_bytes = shape.longest;
    item.has_lengths = shape.longest != shape.shortest;
    item.rows_per_page = blocks_of(shape.longest) - 1;
    item.metadata_units = units_of(metadata_bytes(item.page_count, item.rows_per_page, item.has_lengths));
}

// Parts of the check of a chunk with so many pages and blocks: one of each for a lane, unless that makes too many
// parts.
static uint32_t count_checks(uint64_t units)
{
    const uint64_t parts = (units + 31) / 32, fewer = (units + CHECK_UNITS - 1) / CHECK_UNITS;
    if (fewer <= CHECK_RECORDS)
        return static_cast<uint32_t>(parts < CHECK_RECORDS ? parts : CHECK_RECORDS);
    return static_cast<uint32_t>(fewer < CHECKS_MAX ? fewer : CHECKS_MAX);
}

static void fill_item(decode_item &item, const strait_decode_item &from)
{
    const list_shape shape = measure_list(from.dst);
    item = {};
    fill_list(item, from.dst, shape);
    item.src = static_cast<const uint8_t *>(from.src);
    item.metadata = static_cast<const uint8_t *>(from.metadata);
    item.src_size = from.src_size;
    item.metadata_limit = from.metadata_size == 0 || from.metadata_size / UNIT > UINT32_MAX
                              ? UINT32_MAX
                              : static_cast<uint32_t>(from.metadata_size / UNIT);
    item.select = from.select;
    item.result = from.result;
    item.page_status = from.page_status;
    item.page_status_count = from.page_status_count;
    item.alignment = static_cast<uint8_t>(shape.alignment);
    item.at_most = (from.flags & STRAIT_DECODE_AT_MOST) != 0;
    if (item.at_most) // chunks and bulk copies consist of whole units
        item.src_size = from.src_size / UNIT * UNIT;
    item.checks = count_checks(item.page_count + static_cast<uint64_t>(item.block_count));
}

static uint32_t close_size(const encode_item &item)
{
    return item.metadata_units;
}

static uint32_t close_size(const decode_item &item)
{
    return item.page_count;
}

// Splits the closes of chunks into parts; `slots` is the number of blocks of all items.
template <class ITEM> static void part_ends(ITEM *items, uint32_t count, uint32_t slots, uint32_t lag)
{
    for (uint32_t i = 0; i < count; i++) {
        const bool last = slots - items[i].first_slot - items[i].block_count < lag;
        items[i].close_part_size = last ? CLOSE_FEW : CLOSE_MANY;
        items[i].close_parts = (close_size(items[i]) + items[i].close_part_size - 1) / items[i].close_part_size;
    }
}

template <class ITEM, class ARGUMENT>
static void fill(large_launch &launch, const batch_slice &part, const ARGUMENT *from, uint32_t first_ticket)
{
    launch.head.items_at = 0;
    launch.head.item_count = part.items;
    launch.head.segments_at = part.segments_at;
    launch.head.regions_at = part.regions_at;
    ITEM *items = reinterpret_cast<ITEM *>(launch.bytes);
    region *regions = reinterpret_cast<region *>(launch.bytes + part.regions_at);
    uint32_t used = 0, slots = 0;
    for (uint32_t i = 0; i < part.items; i++) {
        const strait_pages &list = list_of(from[i]);
        fill_item(items[i], from[i]);
        items[i].first_slot = slots;
        slots += items[i].block_count;
        if (part.scratch_regions)
            continue;
        if (i > 0 && shares_regions(list, list_of(from[i - 1]))) {
            items[i].first_region = items[i - 1].first_region;
        } else {
            items[i].first_region = used;
            describe_regions(regions + used, list);
            used += list.region_count;
        }
    }
    launch.head.slots = slots;
    part_ends(items, part.items, slots, close_lag(launch.head));
    order_work(launch, items, part.items, first_ticket);
}

// Fill the parameters with the items of a slice.
static void fill_launch(large_launch &launch, const batch_slice &part, const strait_encode_item *items)
{
    fill<encode_item>(launch, part, items, 1); // ticket 0 is that of the scan warp
}

static void fill_launch(large_launch &launch, const batch_slice &part, const strait_decode_item *items)
{
    fill<decode_item>(launch, part, items, 0);
}

// ---- Devices --------------------------------------------------------------------------------------------------------

constexpr int DEVICES_MAX = 64, FUNCTIONS = 4 * (CODERS + 1);

// Properties of a device, looked up once; 0: not yet.
struct known_device {
    std::atomic<int> multiprocessors;
    std::atomic<int> capability;          // that its kernels are compiled for, times 10
    std::atomic<int> resident[FUNCTIONS]; // thread blocks of each kernel that fit on a multiprocessor
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

// Compute capabilities, times 100, that device code is compiled for, in rising order; the last is there for drivers to
// compile, too.
static const int compiled_for[] = {__CUDA_ARCH_LIST__};

// What kernels for the current device have been compiled for, times 10; 0 when there are none. Machine code runs on
// later minor versions, too. Asks for no more than the attributes of the device, which does not begin its use.
static uint32_t find_kernels()
{
    int device, major = 0, minor = 0, found = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    const int most = 100 * major + 10 * minor, last = compiled_for[sizeof(compiled_for) / sizeof(compiled_for[0]) - 1];
    for (const int compiled : compiled_for)
        if (compiled <= most && (compiled / 100 == major || compiled == last))
            found = compiled / 10;
    return static_cast<uint32_t>(found);
}

// What find_kernels finds, from the kernels that the driver has chosen; 0 when it refuses them.
static uint32_t kernels_capability(int device)
{
    int is = devices[device].capability.load(std::memory_order_relaxed);
    cudaFuncAttributes attributes;
    if (is == 0 && cudaFuncGetAttributes(&attributes, upload_function()) == cudaSuccess)
        devices[device].capability.store(is = attributes.ptxVersion, std::memory_order_relaxed);
    return static_cast<uint32_t>(is);
}

// A kernel, by coder, teams and parameters.
constexpr coder_id DECODER = CODERS;
struct kernel {
    const void *function;
    uint32_t number, teams, threads, shared_bytes;
};

static team_shape shape_of(coder_id coder, uint32_t capability)
{
    return coder != DECODER ? encode_shape_of(coder, capability) : decode_shape_of(capability);
}

static kernel choose_kernel(coder_id coder, uint32_t capability, bool full, bool large)
{
    const bool encode = coder != DECODER;
    const team_shape shape = shape_of(coder, capability);
    const uint32_t teams = block_teams(shape, full), number = 4 * coder + 2 * full + large;
    return {encode ? encode_function(coder, full, large) : decode_function(full, large), number, teams,
            teams * TEAM_THREADS, teams * shape.bytes};
}

// Thread blocks of the kernel that fit on a multiprocessor; 0 when it cannot run. The first call prepares the kernel
// for the device.
static int find_resident(const kernel &k, int device)
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

struct launch_ctx {
    const strait_run &run;
    int device;
    coder_id coder;
};

// Grid of a launch.
struct grid_shape {
    uint32_t blocks;
    bool in_pairs;
};

// With a budget of multiprocessors, launches clusters of two blocks where there are clusters. They are neighbours:
// matrix products run in such clusters, too, so a multiprocessor taken from a pair would be two lost for them.
static grid_shape choose_grid(uint32_t tickets, uint32_t room, uint32_t teams, bool can_pair)
{
    const uint32_t wanted = (tickets + teams - 1) / teams, blocks = wanted < room ? wanted : room;
    const bool in_pairs = can_pair && room % 2 == 0;
    return {in_pairs ? (blocks + 1) / 2 * 2 : blocks, in_pairs};
}

static bool has_clusters(int device)
{
    int has = 0;
    return cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, device) == cudaSuccess && has != 0;
}

static strait_status launch_kernel(const launch_ctx &ctx, large_launch &launch, size_t bytes)
{
    const uint32_t multiprocessors = static_cast<uint32_t>(multiprocessors_of(ctx.device));
    const uint32_t capability = kernels_capability(ctx.device);
    if (multiprocessors == 0 || capability == 0)
        return STRAIT_ERR_DEVICE;
    const bool full = ctx.run.sm_budget > 0 && ctx.run.sm_budget < multiprocessors;
    const kernel k = choose_kernel(ctx.coder, capability, full, bytes > sizeof(small_launch::bytes));
    const uint32_t resident = static_cast<uint32_t>(find_resident(k, ctx.device));
    if (resident == 0)
        return STRAIT_ERR_DEVICE;
    // The encoder has a warp that scans, whose team does nothing else: it takes two teams.
    const uint32_t given = full ? ctx.run.sm_budget : multiprocessors * resident,
                   room = given * k.teams < 2 ? 2 : given;
    const bool can_pair = full && capability >= 90 && has_clusters(ctx.device);
    const grid_shape grid = choose_grid(launch.head.tickets, room, k.teams, can_pair);
    void *arguments[] = {&launch}; // the kernel takes only its part
    cudaLaunchAttribute attributes[2] = {};
    // The launch may begin while the previous one ends; it synchronizes with it on the device. Before 9.0 it cannot.
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid.blocks);
    config.blockDim = dim3(k.threads);
    config.dynamicSmemBytes = k.shared_bytes;
    config.stream = reinterpret_cast<cudaStream_t>(ctx.run.stream);
    config.attrs = attributes;
    config.numAttrs = capability < 90 ? 0 : grid.in_pairs ? 2 : 1;
    const cudaError_t error = cudaLaunchKernelExC(&config, k.function, arguments);
    return error == cudaSuccess ? STRAIT_OK : STRAIT_ERR_DEVICE;
}

// Uploads regions that do not fit into the parameters to scratch, some hundred at a time.
static strait_status upload_regions(const launch_ctx &ctx, const region *dst, const strait_pages &list)
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
                             reinterpret_cast<cudaStream_t>(ctx.run.stream)) != cudaSuccess)
            return STRAIT_ERR_DEVICE;
    }
    return STRAIT_OK;
}

// Launches all items, slice by slice. `head` has all parameters that do not depend on the slice.
template <class ITEM, class ARGUMENT>
static strait_status launch_all(const launch_ctx &ctx, const launch_head &head, const ARGUMENT *items, uint32_t count,
                                uint64_t blocks, uint32_t scratch_regions)
{
    large_launch launch;
    strait_status status = STRAIT_OK;
    for (uint32_t at = 0; at < count && status == STRAIT_OK;) {
        const batch_slice part = plan_slice<ARGUMENT, ITEM>(items + at, count - at);
        launch.head = head;
        if (!use_scratch(launch.head, ctx.run, blocks, scratch_regions))
            return STRAIT_ERR_NO_SPACE;
        fill_launch(launch, part, items + at);
        if (part.scratch_regions)
            status = upload_regions(ctx, launch.head.scratch_regions, list_of(items[at]));
        else
            launch.head.scratch_regions = nullptr;
        if (status == STRAIT_OK)
            status = launch_kernel(ctx, launch, part.bytes);
        at += part.items;
    }
    if (status != STRAIT_OK)
        cudaGetLastError(); // clears the error, which has been reported
    return status;
}

// Counts that determine the size of scratch.
struct scratch_need {
    uint64_t blocks;
    uint32_t scratch_regions; // largest number of any item whose regions go through scratch
};

template <class ITEM, class ARGUMENT> static scratch_need measure_items(const ARGUMENT *items, uint32_t count)
{
    scratch_need all = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        const strait_pages &list = list_of(items[i]);
        all.blocks += measure_list(list).blocks;
        if (list.region_count > all.scratch_regions && plan_slice<ARGUMENT, ITEM>(items + i, 1).scratch_regions)
            all.scratch_regions = list.region_count;
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
    const scratch_need all = measure_items<encode_item>(items, count);
    return scratch_bytes(all.blocks, all.scratch_regions);
}

static uint64_t decode_scratch_size(const strait_decode_item *items, uint32_t count)
{
    const scratch_need all = measure_items<decode_item>(items, count);
    return scratch_bytes(all.blocks, all.scratch_regions);
}

static bool is_fp16_or_fp32(const device_encode *call)
{
    return call->element == STRAIT_ELEMENT_FP16 || call->element == STRAIT_ELEMENT_FP32;
}

static bool is_fp8(const device_encode *call)
{
    return call->element == STRAIT_ELEMENT_FP8_E4M3 || call->element == STRAIT_ELEMENT_FP8_E5M2;
}

// Mode of the kernel: for BF16 `split` is `tiered`, for FP8 `base`, and bytes have no mode of their own.
static strait_mode find_mode(const device_encode *call)
{
    const bool typed = call->mode != STRAIT_MODE_SPLIT && call->element == STRAIT_ELEMENT_BF16;
    if (call->mode < STRAIT_MODE_BASE || typed || is_fp16_or_fp32(call))
        return call->mode;
    if (is_fp8(call))
        return STRAIT_MODE_BASE;
    return STRAIT_MODE_TIERED;
}

static coder_id find_coder(const device_encode *call, strait_mode mode, bool coded)
{
    if (mode == STRAIT_MODE_PARTS)
        return call->element == STRAIT_ELEMENT_BF16   ? CODER_PARTS_BF16
               : call->element == STRAIT_ELEMENT_FP16 ? CODER_PARTS_FP16
                                                      : CODER_PARTS_FP32;
    if (mode >= STRAIT_MODE_BASE)
        return call->element == STRAIT_ELEMENT_BF16   ? CODER_BF16
               : call->element == STRAIT_ELEMENT_FP16 ? CODER_FP16
               : is_fp8(call)                         ? CODER_FP8
                                                      : CODER_FP32;
    return coded && mode != STRAIT_MODE_TOP16 ? CODER_TIERED : CODER_TOP16;
}

// Whether this call codes values by tables.
static bool needs_tables(const device_encode *call, strait_mode mode)
{
    if (call->codebook_id == nullptr || mode == STRAIT_MODE_RAW || mode == STRAIT_MODE_BASE)
        return false;
    return call->element == STRAIT_ELEMENT_BF16 || mode >= STRAIT_MODE_SPLIT;
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
    head.absent = static_cast<uint8_t *>(const_cast<void *>(call->absent));
    head.element = static_cast<uint8_t>(call->element);
    head.mode = static_cast<uint8_t>(mode);
    head.coded = coded;
    head.over_link = run.caching == STRAIT_CACHING_LINK;
    const scratch_need all = measure_items<encode_item>(call->items, call->count);
    const launch_ctx ctx = {run, device, find_coder(call, mode, coded)};
    return launch_all<encode_item>(ctx, head, call->items, call->count, all.blocks, all.scratch_regions);
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
    const scratch_need all = measure_items<decode_item>(call->items, call->count);
    const launch_ctx ctx = {run, device, DECODER};
    return launch_all<decode_item>(ctx, head, call->items, call->count, all.blocks, all.scratch_regions);
}

// Loads all kernels: asking for a kernel's attributes does so.
static strait_status prepare()
{
    const int device = current_device();
    const uint32_t capability = device >= 0 ? kernels_capability(device) : 0;
    bool good = capability != 0;
    for (uint32_t coder = 0; coder <= CODERS; coder++)
        for (uint32_t i = 0; i < 4; i++)
            good = good &&
                   find_resident(choose_kernel(static_cast<coder_id>(coder), capability, i / 2, i % 2), device) > 0;
    return good ? STRAIT_OK : STRAIT_ERR_DEVICE;
}

static uint32_t describe(char *text, uint32_t size)
{
    const uint32_t capability = find_kernels();
    if (capability == 0)
        return 0;
    const team_shape encoder = shape_of(CODER_TIERED, capability), decoder = shape_of(DECODER, capability);
    const int length =
        snprintf(text, size, "sm_%u, %s, %u teams of a multiprocessor encode, %u decode", capability,
                 capability >= 90 ? "bulk copies" : "loads by lanes", encoder.resident, decoder.resident);
    return length > 0 ? static_cast<uint32_t>(length) : 0;
}

static const device_ops ops = {
    DEVICE_OPS_VERSION, encode_scratch_size, decode_scratch_size, encode, decode, prepare, describe,
};

} // namespace strait

// Kernels need barriers in shared memory, which came with compute capability 8.0.
extern "C" __attribute__((visibility("default"))) const struct device_ops *strait_device_ops(void);
extern "C" const struct device_ops *strait_device_ops(void)
{
    return strait::find_kernels() != 0 ? &strait::ops : nullptr;
}
