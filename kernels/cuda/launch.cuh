// Launch parameters, scratch layout and kernel entry points: shared by host and device code.
#ifndef STRAIT_KERNELS_CUDA_LAUNCH_CUH
#define STRAIT_KERNELS_CUDA_LAUNCH_CUH

#include <cstddef>
#include <cstdint>

#include <strait/codec.h>

#include "kernels/cuda/ptx.cuh"
#include "kernels/device.h"

namespace strait
{

constexpr uint32_t FORMAT_VERSION = 1;
constexpr uint32_t BLOCK_SIZE = 16384, BLOCK_VALUES = 8192, BLOCK_VECTORS = 1024, UNIT = 16;
constexpr uint32_t ENTRY_UNITS_BEFORE = STRAIT_CHUNK_HEADER_BYTES / UNIT;
// A block of BF16 or FP8 whose bytes are a multiple of this is even: lanes of workers have all of their values or none,
// and streams of fixed size end at multiples of 16 bytes. Rows of models mostly are, and shorter than a full block.
constexpr uint32_t EVEN_BYTES = 128;
enum { TIER2_RANK = 3, TIER3_RANK = 6, TIER4_RANK = 21, TOP16_RANKS = 16 };

// Specializations of the encode kernel: BF16 values by a table (top16, tiered); the typed modes, and parts, by value
// type.
enum coder_id {
    CODER_TOP16,
    CODER_TIERED,
    CODER_BF16,
    CODER_FP16,
    CODER_FP32,
    CODER_FP8,
    CODER_PARTS_BF16,
    CODER_PARTS_FP16,
    CODER_PARTS_FP32,
    CODERS
};
ANY_SIDE constexpr bool is_typed(coder_id coder)
{
    return coder != CODER_TOP16 && coder != CODER_TIERED;
}
ANY_SIDE constexpr bool is_parts(coder_id coder)
{
    return coder >= CODER_PARTS_BF16;
}

// ---- Shape of the kernels -------------------------------------------------------------------------------------------

// A team codes one block at a time. It has eight worker warps, a fetch warp (draws tickets, loads blocks) and a finish
// warp (reports blocks; in the encoder it also stores them). A thread block is one team, and several share a
// multiprocessor; with a budget of multiprocessors, a thread block is as many teams as fit.
constexpr uint32_t WORKER_WARPS = 8, WORKERS = 32 * WORKER_WARPS, FINISH_WARP = 8, FETCH_WARP = 9;
constexpr uint32_t TEAM_THREADS = WORKERS + 64, FULL_TEAMS = 3;

// What depends on the compute capability that a kernel is compiled for, as multiprocessors differ in shared memory.
struct team_shape {
    uint32_t buffers; // of a team: the encoder's streams of a block, or the decoder's stages
    uint32_t bytes;   // of shared memory for a team
    uint32_t
        resident;   // thread blocks of a team each that share a multiprocessor: kernels limit their registers to that
    uint32_t teams; // of a thread block that has a multiprocessor to itself
};

// A launch's thread blocks are as many teams as fit, one to a multiprocessor, when `full`; else a team each.
ANY_SIDE constexpr uint32_t block_teams(const team_shape &shape, bool full)
{
    return full ? shape.teams : 1;
}
ANY_SIDE constexpr uint32_t resident_blocks(const team_shape &shape, bool full)
{
    return full ? 1 : shape.resident;
}

// Shared memory of a multiprocessor, of which CUDA takes some for each thread block.
constexpr uint32_t SHARED_RESERVED = 1024;
ANY_SIDE constexpr uint32_t multiprocessor_shared(uint32_t capability)
{
    const bool is_small = capability == 86 || capability == 89 || capability >= 120;
    return (is_small ? 100 : capability < 90 ? 164 : 228) * 1024;
}

// What a team needs: `fixed` bytes, and `each` for every buffer, in multiples of `unit`.
struct team_need {
    uint32_t fixed, each, unit;
    uint32_t least, most; // buffers
    uint32_t resident;    // teams that a multiprocessor can use
};

// As many teams as a multiprocessor can use and has room for, and then as many buffers.
ANY_SIDE constexpr team_shape choose_shape(uint32_t capability, const team_need &need)
{
    const uint32_t shared = multiprocessor_shared(capability);
    team_shape best = {0, 0, 0, 0};
    for (uint32_t buffers = need.least; buffers <= need.most; buffers++) {
        const uint32_t bytes = (need.fixed + buffers * need.each + need.unit - 1) / need.unit * need.unit;
        const uint32_t fit = shared / (bytes + SHARED_RESERVED), full = (shared - SHARED_RESERVED) / bytes;
        const uint32_t resident = fit < need.resident ? fit : need.resident;
        if (resident >= best.resident)
            best = {buffers, bytes, resident, full < FULL_TEAMS ? full : FULL_TEAMS};
    }
    return best;
}

// ---- Scratch --------------------------------------------------------------------------------------------------------

// All words that one launch leaves in scratch are zero or tagged with its number, so that no launch has to clear
// scratch.
constexpr uint32_t TAG_SHIFT = 28;
constexpr uint64_t TAG_MASK = (1ull << TAG_SHIFT) - 1; // the bits below the launch number

struct control {
    uint32_t tickets; // drawn so far
    uint32_t teams;   // ended so far
    uint64_t launch;  // number of this launch
    uint64_t reserved[6];
};

// State of one chunk. All zero between launches, except for the verdict, which is tagged.
struct progress {
    uint32_t blocks_done, closed, checked;
    uint32_t failed_checks; // encode: 1 if a page does not exist; decode: the findings of the parts of the check
    uint32_t table_limit;
    uint32_t failed_pages;
    uint32_t first_failure; // inverted: page << 8 | -status
    uint32_t reserved;
    uint64_t sum;
    uint64_t bytes;
    uint64_t values[STRAIT_BLOCK_MODES];
    uint64_t verdict; // tag | VERDICT_READY | -status of the chunk
    uint64_t reserved_too[4];
};
static_assert(sizeof(progress) == 128, "scratch");
constexpr uint64_t VERDICT_READY = 1u << 8;

// What a part of a chunk's check has found, in two words that are written at once; the first is tagged. Whoever waits
// for the verdict of a chunk of few parts reads them all, a lane each. Parts of larger chunks are added up in progress.
constexpr uint32_t CHECK_RECORDS = 32;

constexpr uint32_t ITEMS_MAX = 256; // of one launch
constexpr uint64_t SCRATCH_RECORDS = sizeof(control) + ITEMS_MAX * sizeof(progress);
constexpr uint64_t SCRATCH_FIXED = SCRATCH_RECORDS + ITEMS_MAX * CHECK_RECORDS * 16;
constexpr uint32_t SCAN_WIDTH = 256; // sizes that are looked at together: the planes have room beyond the last block

// After the items, scratch is planes of equal size, with one or two words for each block. Tagged and untagged words
// never share an address, because an untagged number could look like a tag.
enum plane {
    PLANE_SIZES,   // encode: tagged sizes, below
    PLANE_OFFSETS, // encode: tagged; units of all earlier blocks in this launch, modulo 2^28
    PLANE_RESULTS, // two words, written at once: the tagged result of the block, and its sum
    PLANE_RESULTS_HIGH,
    PLANE_REGIONS, // regions that do not fit into the parameters
    PLANES
};

// Size word of an encoded block: units (11 bits), form (4), escapes (13; a block that has become smaller has no more
// than 4096, one of mode parts no more than 8180). The form is one of modes 0 to 4, or a typed mode together with the
// mode under which the statistics count it; FP8 and parts count as tiered, and share a form, as no launch writes both.
// A page that does not exist has the form BAD_PAGE and no units.
constexpr uint32_t BAD_PAGE = STRAIT_BLOCK_MODES, TYPED_FORMS = 6, FORM_LATER = 15;
ANY_SIDE uint32_t make_form(uint32_t mode, uint32_t counted)
{
    return mode < STRAIT_BLOCK_BASE   ? mode
           : mode >= STRAIT_BLOCK_FP8 ? FORM_LATER
                                      : TYPED_FORMS + 3 * (mode - STRAIT_BLOCK_BASE) + STRAIT_BLOCK_TIERED - counted;
}
// `asked`: the mode that the launch was asked for.
ANY_SIDE uint32_t form_mode(uint32_t form, uint32_t asked)
{
    if (form == FORM_LATER)
        return asked == STRAIT_MODE_PARTS ? STRAIT_BLOCK_PARTS : STRAIT_BLOCK_FP8;
    return form < TYPED_FORMS ? form : STRAIT_BLOCK_BASE + (form - TYPED_FORMS) / 3;
}
ANY_SIDE uint32_t form_stats_mode(uint32_t form)
{
    return form < TYPED_FORMS ? form : STRAIT_BLOCK_TIERED - (form - TYPED_FORMS) % 3;
}
ANY_SIDE uint32_t make_size(uint32_t units, uint32_t form, uint32_t escapes)
{
    return escapes << 15 | form << 11 | units;
}
ANY_SIDE uint32_t size_units(uint32_t size)
{
    return size & 2047;
}
ANY_SIDE uint32_t size_form(uint32_t size)
{
    return size >> 11 & 15;
}
ANY_SIDE uint32_t size_escapes(uint32_t size)
{
    return size >> 15 & 8191;
}

// Result word of a decoded block: escapes (14 bits), the mode under which the statistics count it (3), -status (8).
ANY_SIDE uint32_t make_result_word(uint32_t status, uint32_t counted, uint32_t escapes)
{
    return status << 17 | counted << 14 | escapes;
}

// ---- Parameters -----------------------------------------------------------------------------------------------------

struct region {
    uint8_t *base;
    uint64_t page_stride, row_stride;
    uint32_t page_count, piece_bytes, page_bytes, table;
    uint32_t blocks_before;          // blocks of one page of each region before it
    uint32_t shape;                  // log2 of the alignment of its addresses, up to 4; WHOLE when a page has no gaps
    uint32_t columns, column_stride; // pieces of a row; one: all of it
};
static_assert(sizeof(region) == 56, "a launch takes as many as fit into its parameters");
constexpr uint32_t SHAPE_WIDTH = 7, SHAPE_WHOLE = 8;

struct encode_item {
    uint8_t *dst;
    const uint32_t *ids;
    strait_result *result;
    int32_t *page_status;
    uint64_t *flag; // or nullptr
    uint64_t flag_value;
    uint32_t page_status_count, id_count, page_count, page_bytes;
    uint32_t rows_per_page, has_lengths, metadata_units;
    uint32_t first_region, region_count;
    uint32_t blocks_per_page; // 0: differs between regions
    uint32_t first_slot, block_count, close_parts, close_part_size;
};

struct decode_item {
    const uint8_t *src, *metadata;
    uint64_t src_size;
    const uint32_t *ids, *select;
    strait_result *result;
    int32_t *page_status;
    uint32_t page_status_count, id_count, page_count;
    uint32_t first_region, region_count, blocks_per_page;
    uint32_t first_slot, block_count, checks, close_parts;
    uint32_t metadata_limit; // units at `metadata`; where the header says more, it is read at `src`
    uint8_t alignment;       // of all its addresses: 1, 2 or 4
    uint8_t at_most;         // the chunk may be shorter than src_size
    uint16_t close_part_size;
};

// Units of metadata, or pages, that one ticket handles when a chunk is closed. For the last chunks of a launch, with no
// other work left, this is one for each lane: a second one would wait for memory once more.
constexpr uint32_t CLOSE_FEW = 32, CLOSE_MANY = 128;

// Tickets are drawn in order. A segment is a run of tickets: the blocks of a chunk, the parts of its check, or the
// parts of its close.
enum work_type { WORK_BLOCKS, WORK_CHECK, WORK_CLOSE, WORK_TYPES };
struct segment {
    uint32_t first_ticket;
    uint32_t work; // item << 2 | work_type
};

struct launch_head {
    control *scratch;
    progress *items;
    uint64_t *records; // decode: CHECK_RECORDS of two words for each item
    uint64_t *planes[PLANES];
    const region *scratch_regions; // nullptr: they are in the parameters
    const uint8_t *tables;         // table_image of each table
    uint8_t *absent;               // encode: page that stands for those that do not exist; nullptr: they fail
    strait_class_stats *class_stats;
    uint32_t class_count, table_count;
    uint32_t tickets, slots;
    uint32_t closes_from, reserved_too;         // from ticket closes_from on, all close chunks
    uint32_t items_at, segments_at, regions_at; // in launch.bytes
    uint32_t item_count;                        // how many items are there
    uint8_t element, mode;
    uint8_t coded, over_link; // there are tables to code with; chunks are behind a link
    uint8_t codebook_id[STRAIT_CODEBOOK_ID_BYTES];
};

static_assert(offsetof(launch_head, codebook_id) % 4 == 0, "it is read in words");

template <uint32_t SIZE> struct launch {
    launch_head head;
    alignas(16) uint8_t bytes[SIZE - (sizeof(launch_head) + 15) / 16 * 16];
};
typedef launch<4096> small_launch;
typedef launch<32752> large_launch; // CUDA's limit is 32764
static_assert(sizeof(small_launch) == 4096 && sizeof(large_launch) == 32752, "kernel parameters");

// ---- Sizes of a chunk, as in FORMAT.md section 4 --------------------------------------------------------------------

ANY_SIDE uint32_t units_of(uint64_t bytes)
{
    return static_cast<uint32_t>((bytes + UNIT - 1) / UNIT);
}

ANY_SIDE uint32_t blocks_of(uint32_t page_bytes)
{
    return (page_bytes + BLOCK_SIZE - 1) / BLOCK_SIZE;
}

// Bytes of block b of a page.
ANY_SIDE uint32_t block_bytes(uint32_t page_bytes, uint32_t b)
{
    uint32_t rest = page_bytes - b * BLOCK_SIZE;
    return rest < BLOCK_SIZE ? rest : BLOCK_SIZE;
}

ANY_SIDE uint64_t rows_offset(uint32_t page_count, bool lengths)
{
    return STRAIT_CHUNK_HEADER_BYTES + (lengths ? 20ull : 16ull) * page_count;
}

ANY_SIDE uint64_t metadata_bytes(uint32_t page_count, uint32_t rows_per_page, bool lengths)
{
    return rows_offset(page_count, lengths) + 4ull * page_count * rows_per_page;
}

// ---- Kernels -------------------------------------------------------------------------------------------------------

// The kernel for a launch whose thread blocks have a multiprocessor each or share it, and with large parameters or
// small ones.
const void *encode_function(coder_id coder, bool full, bool large);
const void *decode_function(bool full, bool large);
// Its shape where it is compiled for this compute capability.
team_shape encode_shape_of(coder_id coder, uint32_t capability);
team_shape decode_shape_of(uint32_t capability);
// The kernel that copies regions from the parameters of a launch to scratch.
const void *upload_function();

struct upload {
    region *dst;
    uint32_t count, reserved;
    region regions[(32752 - 16) / sizeof(region)];
};

} // namespace strait
#endif
