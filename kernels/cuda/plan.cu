#include "kernels/cuda/plan.cuh"

namespace strait
{

// The end of a chunk is drawn when this many blocks have been drawn after its last: by then its blocks are done, and
// nothing waits. Teams hold several tickets at once and report what they have done even later; with 400 teams this
// accounts for half of it.
constexpr uint32_t CLOSE_LAG = 16384;

// For chunks behind a link this many blocks are on their way, as they are reported one by one, and each takes long.
constexpr uint32_t FAR_CLOSE_LAG = 512;

static uint32_t close_lag(const launch_head &head)
{
    return head.far ? FAR_CLOSE_LAG : CLOSE_LAG;
}

// A check is drawn this many blocks before the chunk's first block, so that the verdict is there when it is needed.
constexpr uint64_t CHECK_LEAD = 16384;

// Vectors and blocks of metadata in a part of a check, few of either for each lane; and the most parts, as many as a
// launch can use.
constexpr uint32_t CHECK_UNITS = 64, CHECKS_MAX = 2048;

constexpr uint32_t SEGMENTS_EACH = 3; // at most, for an item
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
    return static_cast<uint32_t>(__builtin_ctzll(all));
}

list_shape measure_list(const strait_pages &pages)
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

region describe_region(const strait_pages &pages, uint32_t index, uint32_t blocks_before)
{
    const strait_region &from = pages.regions[index];
    const bool whole = from.rows == 1 || from.row_stride == from.row_bytes;
    return {static_cast<uint8_t *>(from.base),
            from.page_stride,
            from.row_stride,
            from.page_count,
            from.row_bytes,
            page_bytes_of(from),
            from.table,
            blocks_before,
            width_of(from) | (whole ? SHAPE_WHOLE : 0)};
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

uint64_t scratch_bytes(uint64_t blocks, uint32_t regions_max)
{
    return SCRATCH_FIXED + PLANES * plane_bytes(blocks, regions_max);
}

bool use_scratch(launch_head &head, const strait_run &run, uint64_t blocks, uint32_t regions)
{
    if (run.scratch_size < scratch_bytes(blocks, regions))
        return false;
    uint8_t *at = static_cast<uint8_t *>(run.scratch);
    const uint64_t plane = (run.scratch_size - SCRATCH_FIXED) / PLANES / 256 * 256;
    head.scratch = reinterpret_cast<control *>(at);
    head.items = reinterpret_cast<progress *>(at + sizeof(control));
    for (uint32_t p = 0; p < PLANES; p++)
        head.planes[p] = reinterpret_cast<uint64_t *>(at + SCRATCH_FIXED + p * plane);
    head.far_regions =
        regions == 0 ? nullptr : reinterpret_cast<region *>(at + SCRATCH_FIXED + PLANES * plane) - regions;
    return true;
}

// ---- Shares ---------------------------------------------------------------------------------------------------------

const strait_pages &list_of(const strait_encode_item &item)
{
    return item.src;
}

const strait_pages &list_of(const strait_decode_item &item)
{
    return item.dst;
}

static size_t align16(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static void lay_out(share &part, size_t item_bytes)
{
    const uint32_t regions = part.far_regions ? 0 : part.regions;
    part.segments_at = static_cast<uint32_t>(align16(part.items * item_bytes));
    part.regions_at =
        static_cast<uint32_t>(align16(part.segments_at + (SEGMENTS_EACH * part.items + 2) * sizeof(segment)));
    part.bytes = part.regions_at + regions * sizeof(region);
}

static bool shares_regions(const strait_pages &list, const strait_pages &before)
{
    return list.regions == before.regions && list.region_count == before.region_count;
}

template <class ARGUMENT, class ITEM> share plan_share(const ARGUMENT *items, uint32_t count)
{
    share part = {};
    uint64_t blocks = 0;
    while (part.items < count && part.items < ITEMS_MAX) {
        const strait_pages &list = list_of(items[part.items]);
        share more = part;
        more.items++;
        if (part.items == 0 || !shares_regions(list, list_of(items[part.items - 1])))
            more.regions += list.region_count;
        lay_out(more, sizeof(ITEM));
        blocks += measure_list(list).blocks;
        if (more.bytes > sizeof(large_launch::bytes) || blocks > TICKETS_MAX) {
            if (part.items > 0)
                break;
            more.far_regions = true;
            lay_out(more, sizeof(ITEM));
            return more;
        }
        part = more;
    }
    return part;
}

template share plan_share<strait_encode_item, encode_item>(const strait_encode_item *, uint32_t);
template share plan_share<strait_decode_item, decode_item>(const strait_decode_item *, uint32_t);

// ---- Order of work --------------------------------------------------------------------------------------------------

struct schedule {
    segment *segments;
    uint32_t count, tickets;
    uint32_t ends[ITEMS_MAX]; // ticket after the last block of an item
    uint32_t closed;          // items whose end is scheduled
    uint32_t checked;         // items whose check is scheduled

    void add(uint32_t item, kind what, uint32_t more)
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
        order.add(order.closed, KIND_CLOSE, items[order.closed].closings);
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
        order.add(order.checked, KIND_CHECK, items[order.checked].checks);
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
        order.add(i, KIND_BLOCKS, items[i].block_count);
        order.ends[i] = order.tickets;
        close_chunks(order, items, i, close_lag(launch.head));
    }
    launch.head.ends_from = order.tickets;
    close_chunks(order, items, count, 0);
    order.finish();
    launch.head.tickets = order.tickets;
}

// ---- Items ----------------------------------------------------------------------------------------------------------

// Fills what lists of both directions need.
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
    item.page_status_count = from.page_status_count;
    item.page_bytes = shape.longest;
    item.has_lengths = shape.longest != shape.shortest;
    item.rows_per_page = blocks_of(shape.longest) - 1;
    item.metadata_units = units_of(metadata_bytes(item.page_count, item.rows_per_page, item.has_lengths));
}

static void fill_item(decode_item &item, const strait_decode_item &from)
{
    const list_shape shape = measure_list(from.dst);
    item = {};
    fill_list(item, from.dst, shape);
    item.src = static_cast<const uint8_t *>(from.src);
    item.metadata = static_cast<const uint8_t *>(from.metadata);
    item.src_size = from.src_size;
    item.select = from.select;
    item.result = from.result;
    item.page_status = from.page_status;
    item.page_status_count = from.page_status_count;
    item.alignment = static_cast<uint16_t>(shape.alignment);
    item.at_most = (from.flags & STRAIT_DECODE_AT_MOST) != 0;
    if (item.at_most) // chunks and bulk copies consist of whole units
        item.src_size = from.src_size / UNIT * UNIT;
    const uint64_t checks = (item.page_count + static_cast<uint64_t>(item.block_count) + CHECK_UNITS - 1) / CHECK_UNITS;
    item.checks = static_cast<uint32_t>(checks < CHECKS_MAX ? checks : CHECKS_MAX);
}

static uint32_t close_size(const encode_item &item)
{
    return item.metadata_units;
}

static uint32_t close_size(const decode_item &item)
{
    return item.page_count;
}

// How the ends of chunks are split into parts; `slots` is the number of blocks of all items.
template <class ITEM> static void part_ends(ITEM *items, uint32_t count, uint32_t slots, uint32_t lag)
{
    for (uint32_t i = 0; i < count; i++) {
        const bool last = slots - items[i].first_slot - items[i].block_count < lag;
        items[i].close_each = last ? CLOSE_FEW : CLOSE_MANY;
        items[i].closings = (close_size(items[i]) + items[i].close_each - 1) / items[i].close_each;
    }
}

template <class ITEM, class ARGUMENT>
static void fill(large_launch &launch, const share &part, const ARGUMENT *from, uint32_t first_ticket)
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
        if (part.far_regions)
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

void fill_launch(large_launch &launch, const share &part, const strait_encode_item *items)
{
    fill<encode_item>(launch, part, items, 1); // ticket 0 is for the warp that computes the places
}

void fill_launch(large_launch &launch, const share &part, const strait_decode_item *items)
{
    fill<decode_item>(launch, part, items, 0);
}

} // namespace strait
