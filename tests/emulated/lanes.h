// GPU emulator on one processor, for the synchronization of kernels: every lane is a fiber, and the scheduler picks
// warps at random. Lanes are not in step: each runs alone from one convergence point to the next, so that code which
// relies on lanes running together fails. Finds launches that do not end, lanes of a warp or of a barrier in different
// places, arrivals that a barrier does not expect, copies that hardware refuses, accesses outside of memory, and races
// between convergence points. Cannot find errors in the order of memory accesses.
//
// The compute capability is EMULATED_CAPABILITY, times 10, for which kernels are compiled: it gives the shared memory
// of a multiprocessor and what instructions there are.
//
// Translated kernels include this header; tests/emulated/kernels/cuda/ptx.cuh replaces their instructions.
#ifndef STRAIT_TESTS_EMULATED_LANES_H
#define STRAIT_TESTS_EMULATED_LANES_H

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

namespace emulated
{

// Position of a lane in its launch.
struct position {
    uint3 thread, block;
    dim3 threads, blocks;
};
extern position *here;

// Source line of a convergence point.
struct source_line {
    const char *file;
    int line;
};

enum class collective { sync, shuffle, ballot, any, all, add, either, greatest, least, scan, match };

// A collective of all lanes of a warp.
uint64_t warp_collective(collective what, uint64_t value, uint32_t argument, source_line at);
// Lets other lanes run.
void yield();
// Yields at random.
void pause();

uint8_t *shared_memory();
void sync_block();
bool sync_named(uint32_t id, uint32_t threads, bool value, source_line at);

// Barriers in shared memory.
void barrier_begin(uint64_t *barrier, uint32_t arrivals);
void barrier_arrive(uint64_t *barrier, uint32_t arrivals);
void barrier_expect(uint64_t *barrier, uint32_t bytes);
void barrier_expect_only(uint64_t *barrier, uint32_t bytes);
bool barrier_passed(const uint64_t *barrier, uint32_t parity);
void barrier_wait(uint64_t *barrier, uint32_t parity);

// Loads by lanes: bytes arrive at any time later, and the lane arrives once all its loads so far have.
void lane_load(void *dst, const void *src);
void arrive_loaded(uint64_t *barrier);

// What the kernels are compiled for is what the GPU is. True, so that a constant can call it.
bool compiled_for(uint32_t capability);

// Bulk copies, of which there are none before 9.0. Bytes arrive at any time later; those of stores have been read after
// wait_read and are there after wait_stores.
void bulk_load(void *dst, const void *src, uint32_t bytes, uint64_t *barrier);
void bulk_store(void *dst, const void *src, uint32_t bytes);
void bulk_prefetch(const void *src, uint32_t bytes);
void wait_read();
void wait_stores();

} // namespace emulated

#define EMULATED_HERE      \
    emulated::source_line  \
    {                      \
        __FILE__, __LINE__ \
    }
#define EMULATED_COLLECTIVE(what, value, argument) \
    emulated::warp_collective(emulated::collective::what, value, argument, EMULATED_HERE)

#define __syncwarp()                   ((void)EMULATED_COLLECTIVE(sync, 0, 0))
#define __shfl_sync(mask, value, from) static_cast<uint32_t>(EMULATED_COLLECTIVE(shuffle, value, from))
#define __ballot_sync(mask, value)     static_cast<uint32_t>(EMULATED_COLLECTIVE(ballot, (value) ? 1 : 0, 0))
#define __any_sync(mask, value)        (EMULATED_COLLECTIVE(any, (value) ? 1 : 0, 0) != 0)
#define __all_sync(mask, value)        (EMULATED_COLLECTIVE(all, (value) ? 1 : 0, 0) != 0)
#define __reduce_add_sync(mask, value) static_cast<uint32_t>(EMULATED_COLLECTIVE(add, value, 0))
#define __reduce_or_sync(mask, value)  static_cast<uint32_t>(EMULATED_COLLECTIVE(either, value, 0))
#define __reduce_max_sync(mask, value) static_cast<uint32_t>(EMULATED_COLLECTIVE(greatest, value, 0))
#define __reduce_min_sync(mask, value) static_cast<uint32_t>(EMULATED_COLLECTIVE(least, value, 0))
#define __match_any_sync(mask, value)  static_cast<uint32_t>(EMULATED_COLLECTIVE(match, value, 0))
#define __syncthreads()                emulated::sync_block()
#define __nanosleep(nanoseconds)       emulated::yield()

#ifdef EMULATED_KERNELS // but for the host's side, which has fields of such names
#define threadIdx (emulated::here->thread)
#define blockIdx  (emulated::here->block)
#define gridDim   (emulated::here->blocks)
#define blockDim  (emulated::here->threads)
#endif
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __constant__
#define __constant__
#undef __global__
#define __global__

inline int __ffs(uint32_t x)
{
    return __builtin_ffs(static_cast<int>(x));
}

template <class T> T atomicAdd(T *p, T value)
{
    const T was = *p;
    *p = was + value;
    return was;
}

template <class T> T atomicOr(T *p, T value)
{
    const T was = *p;
    *p = was | value;
    return was;
}

template <class T> T atomicAnd(T *p, T value)
{
    const T was = *p;
    *p = was & value;
    return was;
}

template <class T> T atomicCAS(T *p, T expected, T value)
{
    const T was = *p;
    if (was == expected)
        *p = value;
    return was;
}

template <class T> T atomicMax(T *p, T value)
{
    const T was = *p;
    *p = was > value ? was : value;
    return was;
}

namespace strait
{

template <class A, class B> std::common_type_t<A, B> max(A a, B b)
{
    const std::common_type_t<A, B> x = a, y = b;
    return x > y ? x : y;
}

template <class A, class B> std::common_type_t<A, B> min(A a, B b)
{
    const std::common_type_t<A, B> x = a, y = b;
    return x < y ? x : y;
}

} // namespace strait
#endif
