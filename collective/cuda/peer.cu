// Flags between ranks, and the rest of a piece that the copy engine has not moved. Memory of another GPU is only ever
// written; only its own kernels read it. Every flag is written with release and read with acquire, at system scope:
// what a rank has pushed before, by whatever means, is there when its flag is.
#include "collective/cuda/peer.h"

#include "collective/cuda/load.cuh"

namespace
{

// Kernels that others wait for have to run beside the codec, whose thread blocks leave 4096 registers of a
// multiprocessor. With more threads, a kernel here would start only when one of the codec's blocks ends, and other
// ranks would wait for that.
constexpr uint32_t WARP = 32, THREADS = 64, REGISTERS = 4096 / THREADS, POLLS = 512;
constexpr uint32_t AT_ONCE = 4; // vectors that a thread reads before it writes any
constexpr uint32_t RESIDENT = 65536 / (THREADS * REGISTERS);

__device__ uint64_t load_acquire(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ void store_release(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

template <class T> __device__ T load_now(const T *word)
{
    return *const_cast<const volatile T *>(word);
}

__device__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

__device__ void mark(const peer_world *world, peer_point point, uint64_t number)
{
    if (world->trace == 0)
        return;
    const uint32_t i = atomicAdd_system(&world->host_status->marks, 1u);
    if (i < PEER_TRACE_MAX)
        world->host_status->mark[i] = {now_ns(), static_cast<uint32_t>(point), static_cast<uint32_t>(number)};
}

// Copies with so many threads, of which this one begins at `first`.
__device__ void copy_vectors(uint4 *to, const uint4 *from, uint64_t first, uint64_t end, uint64_t threads)
{
    for (uint64_t i = first; i < end; i += AT_ONCE * threads) {
        uint4 vector[AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++)
            if (i + k * threads < end)
                vector[k] = from[i + k * threads];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++)
            if (i + k * threads < end)
                to[i + k * threads] = vector[k];
    }
}

// ---- Giving up ------------------------------------------------------------------------------------------------------

__device__ bool is_broken(const peer_world *world)
{
    return load_now(&world->counters->broken) != 0;
}

// What is queued goes on, so the others have to know first.
__device__ void give_up(const peer_world *world, int32_t status)
{
    if (atomicExch(&world->counters->broken, 1u) != 0)
        return;
    *const_cast<volatile uint32_t *>(&world->host_status->failed) = static_cast<uint32_t>(status);
    for (uint32_t rank = 0; rank < world->ranks; rank++)
        if (rank != world->rank)
            store_release(&world->flags[rank]->broken[world->rank], 1);
    __threadfence_system();
}

__device__ bool has_given_up(const peer_world *world, uint32_t rank)
{
    return load_acquire(&world->flags[world->rank]->broken[rank]) != 0;
}

// Host memory is polled rarely, as it is far.
__device__ bool is_in_vain(const peer_world *world, uint32_t rank, uint32_t poll, uint64_t until)
{
    if (is_broken(world) || has_given_up(world, rank))
        return true;
    return poll % POLLS == POLLS - 1 && (load_now(&world->host_status->abort) != 0 || (until != 0 && now_ns() > until));
}

// Waits until a flag that `rank` writes has reached `number`.
__device__ void await(const peer_world *world, const uint64_t *flag, uint64_t number, uint32_t rank,
                      uint64_t patience_ns)
{
    const uint64_t until = patience_ns != 0 ? now_ns() + patience_ns : 0;
    for (uint32_t poll = 0; load_acquire(flag) < number; poll++) {
        if (is_in_vain(world, rank, poll, until)) {
            give_up(world, STRAIT_ERR_IO);
            return;
        }
        __nanosleep(poll < POLLS ? 20 : 200);
    }
}

// ---- Sending --------------------------------------------------------------------------------------------------------

// One lane for each receiver.
__global__ void __launch_bounds__(WARP) claim_kernel(const peer_claim claim)
{
    const peer_world *world = claim.world;
    if (threadIdx.x >= claim.count)
        return;
    const uint32_t rank = claim.receiver[threadIdx.x];
    const uint64_t claimed = world->counters->claimed[rank], lag = claim.lag[threadIdx.x];
    if (claim.ahead == 0)
        mark(world, PEER_ENCODED, claimed + 1);
    await(world, &world->flags[world->rank]->freed[rank], claimed > lag ? claimed - lag : 0, rank, claim.patience_ns);
    world->counters->claimed[rank] = claimed + 1;
    mark(world, PEER_CLAIMED, claimed + 1);
}

__device__ uint64_t used_of(const peer_push &push)
{
    const uint64_t bytes = reinterpret_cast<const peer_head *>(push.slot)->main.bytes;
    return push.main_at + (bytes < push.main_bound ? bytes : push.main_bound);
}

__device__ void push_rest(const peer_push &push)
{
    const uint64_t first = push.from / 16 + blockIdx.x * THREADS + threadIdx.x;
    copy_vectors(reinterpret_cast<uint4 *>(push.there), reinterpret_cast<const uint4 *>(push.slot), first,
                 (used_of(push) + 15) / 16, static_cast<uint64_t>(gridDim.x) * THREADS);
}

__device__ void say_ready(const peer_world *world, const peer_push &push)
{
    const uint64_t number = ++world->counters->posted[push.receiver];
    volatile peer_head *head = reinterpret_cast<volatile peer_head *>(push.there);
    head->magic = PEER_MAGIC;
    head->number = number;
    store_release(&world->flags[push.receiver]->ready[world->rank], number);
    mark(world, PEER_POSTED, number);
}

// The block that ends last posts for all.
__global__ void __launch_bounds__(THREADS, RESIDENT) post_kernel(const peer_post post)
{
    const peer_world *world = post.world;
    __shared__ bool last;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        mark(world, PEER_CROSSED, world->counters->posted[post.push[0].receiver] + 1);
    for (uint32_t i = 0; i < post.count; i++)
        if (post.push[i].slot != nullptr)
            push_rest(post.push[i]);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(&world->counters->blocks, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last || threadIdx.x != 0)
        return;
    __threadfence_system();
    world->counters->blocks = 0;
    for (uint32_t i = 0; i < post.count && !is_broken(world); i++)
        say_ready(world, post.push[i]);
}

// ---- Receiving ------------------------------------------------------------------------------------------------------

// Checks a decoded piece: whether its sender has given up, whether the head is still this piece's, and how decoding
// went.
__device__ int32_t verdict_of(const peer_world *world, const peer_taken &taken, uint64_t number)
{
    if (has_given_up(world, taken.source))
        return STRAIT_ERR_IO;
    if (load_now(&taken.head->magic) != PEER_MAGIC || load_now(&taken.head->number) != number)
        return STRAIT_ERR_CORRUPT;
    if (taken.results == nullptr)
        return STRAIT_OK;
    const int32_t main = taken.results[0].status, tail = taken.has_tail != 0 ? taken.results[1].status : STRAIT_OK;
    return main != STRAIT_OK ? main : tail;
}

__device__ void take(const peer_world *world, const peer_taken &taken)
{
    const uint64_t number = world->counters->taken[taken.source] + 1;
    mark(world, PEER_DECODED, number);
    const int32_t status = is_broken(world) ? STRAIT_OK : verdict_of(world, taken, number);
    if (status != STRAIT_OK)
        give_up(world, status);
    if (is_broken(world)) // what is not freed is not overwritten
        return;
    world->counters->taken[taken.source] = number;
    store_release(&world->flags[taken.source]->freed[world->rank], number);
}

// The checked beginning must be what is copied: each thread checks what it reads itself, and the first one writes what
// it has checked.
__device__ void set_aside(const peer_aside &aside, bool come)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(aside.from), none = make_uint4(0, 0, 0, 0);
    uint4 *to = reinterpret_cast<uint4 *>(aside.to);
    const uint4 first = come ? from[0] : none;
    const bool good = first.x == aside.begins[0] && first.y == aside.begins[1] && first.z == aside.begins[2] &&
                      first.w == aside.begins[3];
    if (threadIdx.x == 0)
        to[0] = good ? first : none;
    if (good)
        copy_vectors(to, from, 1 + threadIdx.x, aside.vectors, THREADS);
    for (uint32_t i = 1 + threadIdx.x; i < aside.vectors && !good; i += THREADS)
        to[i] = none;
}

// Run by one warp.
__device__ void take_and_wait(const peer_receive_step &turn)
{
    const peer_world *world = turn.world;
    if (threadIdx.x < turn.takes)
        take(world, turn.taken[threadIdx.x]);
    __syncwarp();
    if (threadIdx.x >= turn.waits)
        return;
    const uint32_t rank = turn.source[threadIdx.x];
    const uint64_t number = world->counters->awaited[rank] + 1;
    await(world, &world->flags[world->rank]->ready[rank], number, rank, turn.patience_ns);
    world->counters->awaited[rank] = number;
    mark(world, PEER_ARRIVED, number);
}

__global__ void __launch_bounds__(THREADS, RESIDENT) turn_kernel(const __grid_constant__ peer_receive_step turn)
{
    if (threadIdx.x < WARP)
        take_and_wait(turn);
    __syncthreads();
    const bool come = turn.asides > 0 && !is_broken(turn.world);
    for (uint32_t i = 0; i < turn.asides; i++)
        set_aside(turn.aside[i], come);
}

} // namespace

cudaError_t peer_kernels_prepare(void)
{
    const void *const kernels[] = {(const void *)claim_kernel, (const void *)post_kernel, (const void *)turn_kernel};
    return load_kernels(kernels);
}

cudaError_t peer_claim_launch(const struct peer_claim *claim, cudaStream_t stream)
{
    claim_kernel<<<1, WARP, 0, stream>>>(*claim);
    return cudaGetLastError();
}

cudaError_t peer_post_launch(const struct peer_post *post, cudaStream_t stream)
{
    post_kernel<<<post->blocks, THREADS, 0, stream>>>(*post);
    return cudaGetLastError();
}

cudaError_t peer_turn_launch(const struct peer_receive_step *turn, cudaStream_t stream)
{
    const uint32_t threads = turn->asides > 0 ? THREADS : WARP;
    turn_kernel<<<1, threads, 0, stream>>>(*turn);
    return cudaGetLastError();
}
