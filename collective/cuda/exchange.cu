// The kernels of collective/engine/exchange.h: one thread block for each team at each end of a ring, or with many ranks
// for several; and that of collective/engine/shm_step.h, one thread block for each end of a channel.
//
// Host memory is accessed in units of 16 bytes, as volatile or behind system-wide fences: its content changes while a
// kernel runs, and a cache may still hold what was there before. To publish, all threads of a block store, then
// synchronise, and one thread fences and sets the flag. To receive, one thread reads the flag and fences, all
// synchronise, and all load.
#include "collective/cuda/kernels.h"

namespace
{

constexpr uint32_t THREADS = 512;
constexpr uint32_t AHEAD = 8; // vectors that a thread has in flight, of which a slot has several times as many

__device__ __forceinline__ bool exchange_leads()
{
    return threadIdx.x == 0;
}

__device__ __forceinline__ uint32_t exchange_lane()
{
    return threadIdx.x;
}

__device__ __forceinline__ uint32_t exchange_lanes()
{
    return THREADS;
}

__device__ uint64_t exchange_broadcast(uint64_t x)
{
    __shared__ uint64_t value;
    if (exchange_leads())
        value = x;
    __syncthreads();
    x = value;
    __syncthreads();
    return x;
}

__device__ uint64_t exchange_least(uint64_t x)
{
    __shared__ unsigned long long least;
    if (exchange_leads())
        least = ~0ull;
    __syncthreads();
    if (x != UINT64_MAX)
        atomicMin(&least, static_cast<unsigned long long>(x));
    __syncthreads();
    x = least;
    __syncthreads();
    return x;
}

__device__ uint64_t exchange_load(const uint64_t *word)
{
    const uint64_t x = *reinterpret_cast<const volatile uint64_t *>(word);
    __threadfence_system();
    return x;
}

__device__ void exchange_store(uint64_t *word, uint64_t x)
{
    __threadfence_system();
    *reinterpret_cast<volatile uint64_t *>(word) = x;
}

__device__ bool exchange_lock(uint32_t *busy)
{
    const bool got = atomicExch(busy, 1u) == 0;
    __threadfence();
    return got;
}

__device__ void exchange_unlock(uint32_t *busy)
{
    __threadfence();
    atomicExch(busy, 0u);
}

__device__ __forceinline__ uint4 load_host(const uint4 *from)
{
    uint4 x;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}

__device__ __forceinline__ bool is_aligned(const void *at)
{
    return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

// For values that are aligned to two bytes only, or end within a vector.
__device__ uint4 gather_vector(const uint8_t *values, uint64_t bytes)
{
    union {
        uint4 vector;
        uint16_t halves[8];
    } x;
    x.vector = make_uint4(0, 0, 0, 0);
    for (uint32_t i = 0; i < 8; i++)
        if (2 * i < bytes)
            x.halves[i] = reinterpret_cast<const uint16_t *>(values)[i];
    return x.vector;
}

__device__ void scatter_vector(uint8_t *values, uint4 vector, uint64_t bytes)
{
    union {
        uint4 vector;
        uint16_t halves[8];
    } x;
    x.vector = vector;
    for (uint32_t i = 0; i < 8; i++)
        if (2 * i < bytes)
            reinterpret_cast<uint16_t *>(values)[i] = x.halves[i];
}

// Copies `whole` vectors, of which each thread has AHEAD under way.
template <typename LOAD> __device__ __forceinline__ void copy_vectors(uint4 *to, uint64_t whole, LOAD load)
{
    for (uint64_t i = threadIdx.x; i < whole; i += AHEAD * THREADS) {
        uint4 x[AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            if (i + k * THREADS < whole)
                x[k] = load(i + k * THREADS);
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            if (i + k * THREADS < whole)
                to[i + k * THREADS] = x[k];
    }
}

__device__ void exchange_put(uint8_t *slot, const uint8_t *values, uint64_t bytes)
{
    const uint64_t vectors = (bytes + 15) / 16, whole = is_aligned(values) ? bytes / 16 : 0;
    const uint4 *from = reinterpret_cast<const uint4 *>(values);
    uint4 *to = reinterpret_cast<uint4 *>(slot);
    copy_vectors(to, whole, [=](uint64_t i) { return from[i]; });
    for (uint64_t i = whole + threadIdx.x; i < vectors; i += THREADS)
        to[i] = gather_vector(values + 16 * i, bytes - 16 * i);
}

__device__ void exchange_take(uint8_t *values, const uint8_t *slot, uint64_t bytes)
{
    const uint64_t vectors = (bytes + 15) / 16, whole = is_aligned(values) ? bytes / 16 : 0;
    const uint4 *from = reinterpret_cast<const uint4 *>(slot);
    copy_vectors(reinterpret_cast<uint4 *>(values), whole, [=](uint64_t i) { return load_host(from + i); });
    for (uint64_t i = whole + threadIdx.x; i < vectors; i += THREADS)
        scatter_vector(values + 16 * i, load_host(from + i), bytes - 16 * i);
}

#define EXCHANGE_FN __device__ static __forceinline__
#include "collective/engine/shm_step.h"

// ---- The kernel -----------------------------------------------------------------------------------------------------

__device__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

__device__ bool is_aborted(const host_status *host_status)
{
    return *reinterpret_cast<const volatile uint32_t *>(&host_status->abort) != 0;
}

__device__ void give_up(host_status *host_status)
{
    *reinterpret_cast<volatile uint32_t *>(&host_status->failed) = static_cast<uint32_t>(STRAIT_ERR_IO);
    __threadfence_system();
    *reinterpret_cast<volatile uint32_t *>(&host_status->abort) = 1;
    __threadfence_system();
}

// Called by the leader between steps without progress.
__device__ bool has_to_end(const gpu_exchange &call, const exchange_block &block, uint64_t since)
{
    if (is_aborted(call.host_status))
        return true;
    if (now_ns() - since < exchange_patience(&call, &block)) {
        __nanosleep(500);
        return false;
    }
    if (exchange_fails(&call))
        give_up(call.host_status);
    return true;
}

__global__ void __launch_bounds__(THREADS) exchange_kernel(const __grid_constant__ gpu_exchange call)
{
    exchange_block block = exchange_begin(&call, blockIdx.x);
    uint64_t since = 0; // when the block began to wait; 0: it does not wait
    for (;;) {
        const exchange_state state = exchange_step(&call, &block);
        if (state == EXCHANGE_DONE)
            return;
        if (state == EXCHANGE_MOVED) {
            since = 0;
            continue;
        }
        if (since == 0)
            since = now_ns();
        if (exchange_broadcast(exchange_leads() && has_to_end(call, block, since)) != 0)
            return;
    }
}

// One step of a block. True: it is over.
__device__ bool serve(const gpu_exchange &call, exchange_block *block, uint64_t *since)
{
    const exchange_state state = exchange_step(&call, block);
    if (state == EXCHANGE_DONE)
        return true;
    if (state == EXCHANGE_MOVED) {
        *since = 0;
        return false;
    }
    if (*since == 0)
        *since = now_ns();
    return false;
}

// Several blocks in one, by turns; fewer than BLOCKS_EACH.
constexpr uint32_t BLOCKS_EACH = (2 * (COLL_RANKS_MAX - 1) + RING_BLOCKS_MAX - 1) / RING_BLOCKS_MAX;

__global__ void __launch_bounds__(THREADS) exchange_many_kernel(const __grid_constant__ gpu_exchange call)
{
    exchange_block blocks[BLOCKS_EACH];
    uint64_t since[BLOCKS_EACH];
    bool over[BLOCKS_EACH];
    const uint32_t ends = ring_ends_all(&call.rings);
    uint32_t count = 0;
    for (uint32_t end = blockIdx.x; end < ends; end += gridDim.x, count++) {
        blocks[count] = exchange_begin(&call, end);
        since[count] = 0;
        over[count] = false;
    }
    for (uint32_t left = count; left > 0;) {
        uint32_t waiting = UINT32_MAX; // the block that has waited longest
        bool moved = false;
        for (uint32_t i = 0; i < count; i++) {
            if (over[i])
                continue;
            over[i] = serve(call, &blocks[i], &since[i]);
            left -= over[i];
            moved |= over[i] || since[i] == 0;
            if (!over[i] && since[i] != 0 && (waiting == UINT32_MAX || since[i] < since[waiting]))
                waiting = i;
        }
        if (!moved && left > 0 &&
            exchange_broadcast(exchange_leads() && has_to_end(call, blocks[waiting], since[waiting])) != 0)
            return;
    }
}

// Called by the leader: whether to wait no longer.
__device__ bool has_waited(const gpu_shm &call, uint64_t since)
{
    if (is_aborted(call.host_status))
        return true;
    if (call.patience_ns == 0 || now_ns() - since < call.patience_ns)
        return false;
    give_up(call.host_status);
    return true;
}

__global__ void __launch_bounds__(THREADS) shm_kernel(const __grid_constant__ gpu_shm call)
{
    shm_end end = shm_begin(&call, blockIdx.x);
    uint64_t since = now_ns(); // when the block has moved something last
    for (;;) {
        const exchange_state state = shm_step(&call, &end);
        if (state == EXCHANGE_DONE)
            return;
        if (state == EXCHANGE_MOVED)
            since = now_ns();
        else if (exchange_broadcast(exchange_leads() && has_waited(call, since)) != 0)
            return;
    }
}

} // namespace

cudaError_t exchange_prepare(void)
{
    const void *const kernels[] = {(const void *)exchange_kernel, (const void *)exchange_many_kernel,
                                   (const void *)shm_kernel};
    return load_kernels(kernels);
}

cudaError_t exchange_launch(const struct gpu_exchange *exchange, cudaStream_t stream)
{
    const uint32_t blocks = ring_blocks(&exchange->rings);
    if (blocks == ring_ends_all(&exchange->rings))
        exchange_kernel<<<blocks, THREADS, 0, stream>>>(*exchange);
    else
        exchange_many_kernel<<<blocks, THREADS, 0, stream>>>(*exchange);
    return cudaGetLastError();
}

cudaError_t shm_launch(const struct gpu_shm *shm, cudaStream_t stream)
{
    shm_kernel<<<shm_ends(&shm->channels), THREADS, 0, stream>>>(*shm);
    return cudaGetLastError();
}
