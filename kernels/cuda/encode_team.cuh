// Encoding team: shared memory, and what workers of all modes have in common. Warps form a pipeline (encode.cu):
//
// fetch warp   draws a ticket, loads the block and its table to shared memory
// workers      code the block (mode_*.cuh); one of them publishes its size in units
// scan warp    one of the launch: turns all sizes into offsets, in order
// finish warp  publishes size and sum, waits for the offset, stores the block there
// fetch warps  write the metadata of a chunk from results and offsets; its result once its blocks have arrived
#ifndef STRAIT_KERNELS_CUDA_ENCODE_TEAM_CUH
#define STRAIT_KERNELS_CUDA_ENCODE_TEAM_CUH

#include "kernels/cuda/bits.cuh"
#include "kernels/cuda/work.cuh"

namespace strait
{

// Block in the stage, from the fetch warp to the workers.
struct encode_block {
    uint32_t stop;       // there are no more
    uint32_t bytes;      // 2n + t
    uint32_t first_step; // of the page's sum: number of its first vector / 4
    uint32_t slot;
    uint32_t first_slot; // of its chunk
    uint32_t item;
    uint8_t *dst; // first byte after the chunk's metadata
};

// Coded block, from the workers to the finish warp.
struct encode_job {
    uint32_t stop;
    uint32_t size; // make_size
    union {
        uint32_t value_count;    // modes 0 to 4
        uint32_t streams_offset; // typed modes: byte of the team's streams at which the block begins
    };
    uint32_t from_stage; // the stage holds the coded block: const, packed there, or raw and not in place
    uint32_t slot, first_slot, item;
    uint8_t *dst;
};

constexpr uint32_t LUT_BYTES = 2048, STAGE_BYTES = LUT_BYTES + BLOCK_SIZE;
// Streams of a block of 8192 values: those of fixed size, then room for those whose size depends on the values, in a
// block that shrinks.
constexpr uint32_t SM_BYTES = BLOCK_VALUES, TIERED_FIXED = SM_BYTES + BLOCK_VALUES / 4;
constexpr uint32_t TOP16_FIXED = SM_BYTES + BLOCK_VALUES / 2;
constexpr uint32_t TIERED_VARIABLE = BLOCK_SIZE - TIERED_FIXED;

// A coder's room besides the stage: for high halves, where values are not high halves themselves, or for exponents and
// what workers of mode parts share; for all streams of a block. The streams of FP32 values begin with the low bits;
// without low bits they may be longer than half a block.
constexpr uint32_t PARTS_SHARED_BYTES = 256;
ANY_SIDE constexpr uint32_t high_half_bytes(coder_id coder)
{
    if (is_parts(coder))
        return BLOCK_SIZE / (coder == CODER_PARTS_FP32 ? 4 : 2) + PARTS_SHARED_BYTES;
    return coder == CODER_FP16 ? BLOCK_SIZE : coder == CODER_FP32 ? BLOCK_SIZE / 2 : 0;
}
ANY_SIDE constexpr uint32_t streams_room(coder_id coder)
{
    return coder == CODER_FP32 ? BLOCK_SIZE / 2 + 12544 : BLOCK_SIZE;
}

// The fetch warp is at most two blocks ahead of the finish warp; this many barriers keep its iterations apart.
constexpr uint32_t ENCODE_AHEAD = 4;

// State of the fetch warp between tickets: its segment, the table in the stage, the number of blocks fetched.
struct encode_fetch_state {
    segment_cursor at;
    uint32_t table, iteration;
};

// Shared memory of a team besides its buffers. job_ready and streams_free exist twice: workers are up to two blocks
// ahead, and a wait for a barrier that is two phases ahead would never end.
struct encode_shared {
    uint64_t full;                 // the stage holds a block
    uint64_t empty;                // the stage may be filled
    uint64_t counts_ready;         // all warps have published their counts
    uint64_t job_ready[2];         // jobs[parity] and its streams are complete
    uint64_t streams_free[2];      // the streams of the job have been stored
    uint64_t issued[ENCODE_AHEAD]; // the loads of a block have been issued, by iteration
    uint64_t base_ready;           // typed modes: all warps have published what gives the base
    uint64_t tag;                  // of the launch
    uint64_t sums[2][WORKER_WARPS];
    uint32_t counts[2][WORKER_WARPS], escapes[2][WORKER_WARPS];
    uint4 keys[4]; // of the sum: in registers they would take room while they are not needed
    encode_block block;
    encode_job jobs[2];
    encode_fetch_state saved;
    // Typed modes: one value of each warp, for all; the base whose ranking lies where the table would.
    uint32_t warp_values[WORKER_WARPS], base;
};

// Four teams leave each thread 48 registers: too few for lanes that load, and for coders of more than high halves.
ANY_SIDE constexpr team_shape encode_shape(coder_id coder, uint32_t capability)
{
    const uint32_t fixed = STAGE_BYTES + high_half_bytes(coder) + static_cast<uint32_t>(sizeof(encode_shared));
    const bool has_room = high_half_bytes(coder) == 0 && coder != CODER_FP8;
    const uint32_t resident = has_room && capability >= 90 ? 4 : 3;
    return choose_shape(capability, {fixed, streams_room(coder), 1024, 1, 2, resident});
}

// Waits until the streams of block number `iteration` of the team may be overwritten: those of the last block that had
// the same buffer must have been stored.
template <uint32_t BUFFERS> DEVICE void wait_streams_free(encode_shared &shared, uint32_t iteration)
{
    static_assert(BUFFERS == 1 || BUFFERS == 2, "there are two barriers");
    if (iteration < BUFFERS)
        return;
    if constexpr (BUFFERS == 2)
        barrier_wait(&shared.streams_free[iteration & 1], (iteration / 2 - 1) & 1);
    else
        barrier_wait(&shared.streams_free[(iteration - 1) & 1], (iteration - 1) / 2 & 1);
}

// Per-team view of shared memory. With two buffers for streams, by block parity, the next block is coded while this one
// waits for its offset and is stored.
template <coder_id CODER> struct encode_team {
    static constexpr team_shape SHAPE = encode_shape(CODER, CAPABILITY);
    static constexpr uint32_t FIXED = CODER == CODER_TIERED ? TIERED_FIXED : TOP16_FIXED;
    static constexpr uint32_t STREAMS_AT = STAGE_BYTES + high_half_bytes(CODER), STREAMS = streams_room(CODER);
    static constexpr uint32_t BUFFERS = SHAPE.buffers, SHARED_AT = STREAMS_AT + BUFFERS * STREAMS;
    static constexpr uint32_t BYTES = SHAPE.bytes;

    uint8_t *memory; // at a multiple of 1024
    uint32_t number; // of the team in its thread block

    DEVICE uint8_t *table() const
    {
        return memory;
    }
    DEVICE uint8_t *input() const
    {
        return memory + LUT_BYTES;
    }
    DEVICE uint8_t *high_halves() const
    {
        return memory + (high_half_bytes(CODER) == 0 ? LUT_BYTES : STAGE_BYTES);
    }
    // Streams of fixed size of a block; those that depend on its values follow.
    DEVICE uint8_t *fixed(uint32_t parity) const
    {
        return memory + STREAMS_AT + (BUFFERS == 1 ? 0 : parity) * STREAMS;
    }
    DEVICE uint8_t *variable(uint32_t parity) const
    {
        return fixed(parity) + FIXED;
    }
    DEVICE encode_shared &shared() const
    {
        return *reinterpret_cast<encode_shared *>(memory + SHARED_AT);
    }
    DEVICE uint32_t barrier_id() const
    {
        return 1 + number;
    }
};

// Codes block number `iteration` of the team, for all workers, and submits it. A WHOLE block has all its values. Each
// mode_*.cuh has this for its coders.
template <bool WHOLE, coder_id CODER, class LAUNCH>
DEVICE void code_block(const LAUNCH &launch, const encode_team<CODER> &team, uint32_t iteration, uint32_t warp,
                       uint32_t lane);

// ---- Workers, for all modes ----------------------------------------------------------------------------------------

DEVICE void load_keys(const encode_shared &shared, uint32_t lane, uint32_t keys[4])
{
    const uint4 k = shared.keys[lane % 4];
    keys[0] = k.x, keys[1] = k.y, keys[2] = k.z, keys[3] = k.w;
}

// A worker's vectors of a block: every 32nd of the 128 16-byte vectors of its warp.
DEVICE uint32_t worker_vector(uint32_t warp, uint32_t lane, uint32_t g)
{
    return warp * 128 + g * 32 + lane;
}

// Sums the bytes that exist of a vector at the edge of the block. Returns how many whole values they hold.
DEVICE uint32_t sum_edge(uint32_t w[4], uint32_t bytes, uint32_t first_step, uint32_t vector, const uint32_t keys[4],
                         partial_sum &sum)
{
    uint32_t n = bytes / 2, values = 8 * vector < n ? n - 8 * vector : 0;
    uint32_t left = 16 * vector < bytes ? bytes - 16 * vector : 0;
    uint32_t step = first_step + vector / 4;
    truncate_vector(w, left);
    if (left > 0)
        sum_part(sum, w, left, keys, step * SUM_STEP_EVEN, step * SUM_STEP_ODD);
    return values < 8 ? values : 8;
}

// All workers: whether all values of the block equal the first.
template <class TEAM> DEVICE bool is_const(const TEAM &team, uint32_t n, uint32_t warp, uint32_t lane)
{
    const uint16_t *values = reinterpret_cast<const uint16_t *>(team.input());
    uint32_t thread = warp * 32 + lane;
    bool same = true;
#pragma unroll 1
    for (uint32_t i = thread; i < n; i += WORKERS)
        same = same && values[i] == values[0];
    return named_all(team.barrier_id(), WORKERS, same);
}

// Turns the stage into a const block.
template <class TEAM> DEVICE void make_const(const TEAM &team, uint32_t bytes)
{
    uint8_t *stage = team.input();
    uint32_t tail = bytes % 2 != 0 ? stage[bytes - 1] : 0;
    uint32_t value = *reinterpret_cast<uint16_t *>(stage);
    *reinterpret_cast<uint4 *>(stage) = make_uint4(value | tail << 16, 0, 0, 0);
}

// Copies a worker's part of a raw block whose bytes are a multiple of 16 to the room of its streams, from where it is
// stored while the next block arrives in the stage.
template <class TEAM>
DEVICE void copy_raw(const TEAM &team, uint32_t parity, uint32_t bytes, uint32_t warp, uint32_t lane)
{
    const uint4 *input = reinterpret_cast<const uint4 *>(team.input());
    uint4 *fixed = reinterpret_cast<uint4 *>(team.fixed(parity));
#pragma unroll
    for (uint32_t g = 0; g < 4; g++)
        if (worker_vector(warp, lane, g) < bytes / 16)
            fixed[worker_vector(warp, lane, g)] = input[worker_vector(warp, lane, g)];
}

// Units of all earlier blocks in the launch, modulo 2^28; waits for the scan warp.
template <class LAUNCH> DEVICE uint32_t wait_offset(const LAUNCH &launch, uint64_t tag, uint32_t slot)
{
    const uint64_t *start = launch.head.planes[PLANE_OFFSETS] + slot;
    uint64_t v;
    while (((v = load_relaxed(start)) & ~TAG_MASK) != tag)
        ;
    return static_cast<uint32_t>(v & TAG_MASK);
}

// One worker publishes how many units the block takes, as early as possible.
template <class LAUNCH> DEVICE void publish_size(const LAUNCH &launch, uint64_t tag, uint32_t slot, uint32_t size)
{
    store_relaxed(launch.head.planes[PLANE_SIZES] + slot, tag | size);
}

// One worker: publishes the size of the block and hands it to the finish warp. `values`: as in encode_job.
template <class LAUNCH, class TEAM>
DEVICE void submit_block(const LAUNCH &launch, const TEAM &team, uint32_t parity, uint32_t size, uint32_t values,
                         bool from_stage, bool becomes_const, uint32_t bytes)
{
    encode_shared &shared = team.shared();
    const encode_block &block = shared.block; // valid until the warp arrives at `empty`
    publish_size(launch, shared.tag, block.slot, size);
    encode_job &job = shared.jobs[parity];
    job = {0, size, values, from_stage, block.slot, block.first_slot, block.item, block.dst};
    if (becomes_const)
        make_const(team, bytes);
}

// All workers: copies a stream to any place. Returns the end of the copy.
DEVICE uint8_t *copy_stream(uint8_t *dst, const uint8_t *stream, uint32_t bytes, uint32_t thread)
{
    const uintptr_t both = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(stream);
    const uint32_t vectors = both % 16 == 0 ? bytes / 16 : 0;
#pragma unroll 1
    for (uint32_t i = thread; i < vectors; i += WORKERS)
        reinterpret_cast<uint4 *>(dst)[i] = reinterpret_cast<const uint4 *>(stream)[i];
#pragma unroll 1
    for (uint32_t i = 16 * vectors + thread; i < bytes; i += WORKERS)
        dst[i] = stream[i];
    return dst + bytes;
}

// All workers: packs streams that do not end at multiples of 16 bytes, and the tail byte, in the stage, which nobody
// reads any more.
template <class TEAM>
DEVICE void pack_streams(const TEAM &team, uint32_t parity, uint32_t bytes, uint32_t code_bytes,
                         uint32_t variable_bytes, uint32_t thread)
{
    const uint8_t *fixed = team.fixed(parity), *codes = fixed + SM_BYTES, *variable = team.variable(parity);
    uint8_t *stage = team.input();
    uint32_t n = bytes / 2, at_variable = n + code_bytes, at_tail = at_variable + variable_bytes;
    uint32_t end = (at_tail + bytes % 2 + 15) / 16 * 16;
    uint8_t tail = bytes % 2 != 0 ? stage[bytes - 1] : 0;
    named_sync(team.barrier_id(), WORKERS);
#pragma unroll 1
    for (uint32_t i = thread; i < end; i += WORKERS) {
        uint8_t byte = i == at_tail ? tail : 0;
        if (i < n)
            byte = fixed[i];
        else if (i < at_variable)
            byte = codes[i - n];
        else if (i < at_tail)
            byte = variable[i - at_variable];
        stage[i] = byte;
    }
}

} // namespace strait
#endif
