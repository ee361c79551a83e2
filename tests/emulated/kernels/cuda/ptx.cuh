// Replacement of kernels/cuda/ptx.cuh, function by function.
#ifndef STRAIT_KERNELS_CUDA_PTX_CUH
#define STRAIT_KERNELS_CUDA_PTX_CUH

#include "tests/emulated/lanes.h"

#define DEVICE   inline
#define ANY_SIDE inline

namespace strait
{

constexpr uint32_t ALL_LANES = 0xffffffffu;

constexpr uint32_t CAPABILITY = EMULATED_CAPABILITY;
constexpr bool HAS_BULK = CAPABILITY >= 90;
static const bool is_compiled_for_gpu = emulated::compiled_for(CAPABILITY);

DEVICE uint32_t read_thread()
{
    return emulated::here->thread.x;
}

DEVICE size_t shared_address(const void *p)
{
    return reinterpret_cast<size_t>(p);
}

// ---- Barriers in shared memory ------------------------------------------------------------------------------------

DEVICE void barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    emulated::barrier_begin(barrier, arrivals);
}

DEVICE void barrier_arrive(uint64_t *barrier, uint32_t arrivals = 1)
{
    emulated::barrier_arrive(barrier, arrivals);
}

#ifdef STRAIT_EVERY_LANE_ARRIVES
constexpr uint32_t WARP_ARRIVALS = 32;
#else
constexpr uint32_t WARP_ARRIVALS = 1;
#endif
DEVICE void warp_arrive_from(uint64_t *barrier, uint32_t lane, emulated::source_line at)
{
    emulated::warp_collective(emulated::collective::sync, 0, 0, at);
    if (lane < WARP_ARRIVALS)
        barrier_arrive(barrier);
}
#define warp_arrive(barrier, lane) warp_arrive_from(barrier, lane, EMULATED_HERE)

DEVICE void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    emulated::barrier_expect(barrier, bytes);
}
DEVICE void barrier_expect_only(uint64_t *barrier, uint32_t bytes)
{
    emulated::barrier_expect_only(barrier, bytes);
}

DEVICE void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    emulated::barrier_wait(barrier, parity);
}

DEVICE bool barrier_test(uint64_t *barrier, uint32_t parity)
{
    return emulated::barrier_passed(barrier, parity);
}

#define named_sync(id, threads)       ((void)emulated::sync_named(id, threads, true, EMULATED_HERE))
#define named_all(id, threads, value) emulated::sync_named(id, threads, value, EMULATED_HERE)

// ---- Loads by the lanes of a warp -----------------------------------------------------------------------------------

DEVICE void lane_load(void *dst, const void *src)
{
    emulated::lane_load(dst, src);
}

constexpr uint32_t LOADING_LANES = HAS_BULK ? 0 : 32;
DEVICE void arrive_loaded(uint64_t *barrier)
{
    if (!HAS_BULK)
        emulated::arrive_loaded(barrier);
}

// ---- Bulk copies ----------------------------------------------------------------------------------------------------

DEVICE void bulk_load(void *dst, const void *src, uint32_t bytes, uint64_t *barrier)
{
    emulated::bulk_load(dst, src, bytes, barrier);
}

DEVICE void bulk_load_once(void *dst, const void *src, uint32_t bytes, uint64_t *barrier)
{
    emulated::bulk_load(dst, src, bytes, barrier);
}

DEVICE void bulk_prefetch(const void *src, uint32_t bytes)
{
    emulated::bulk_prefetch(src, bytes);
}

DEVICE void prefetch_line(const void *src)
{
    (void)*static_cast<const volatile uint8_t *>(src);
}

DEVICE void bulk_store(void *dst, const void *src, uint32_t bytes)
{
    emulated::bulk_store(dst, src, bytes);
}

DEVICE void bulk_commit()
{
}

DEVICE void bulk_wait_read()
{
    emulated::wait_read();
}

DEVICE void bulk_wait()
{
    emulated::wait_stores();
}

DEVICE void fence_bulk()
{
}

DEVICE void fence_bulk_global()
{
}

DEVICE void store_streaming(uint4 *p, const uint32_t w[4])
{
    *p = make_uint4(w[0], w[1], w[2], w[3]);
}

// ---- Global memory that several thread blocks share ---------------------------------------------------------------

// Loops wait with these two.
DEVICE uint64_t load_relaxed(const uint64_t *p)
{
    emulated::yield();
    return *p;
}

DEVICE uint32_t load_relaxed(const uint32_t *p)
{
    emulated::yield();
    return *p;
}

DEVICE void load_relaxed_pair(const uint64_t *p, uint64_t v[2])
{
    emulated::pause();
    v[0] = p[0], v[1] = p[1];
}

DEVICE void load_relaxed_both(const uint64_t *p, uint64_t v[2])
{
    load_relaxed_pair(p, v);
}

DEVICE void store_relaxed_both(uint64_t *p, uint64_t a, uint64_t b)
{
    p[0] = a, p[1] = b;
    emulated::pause();
}

DEVICE void store_relaxed(uint64_t *p, uint64_t v)
{
    *p = v;
    emulated::pause();
}

DEVICE void fence_acquire()
{
}

DEVICE void store_release_system(int32_t *p, int32_t v)
{
    *p = v;
}

DEVICE void store_release_system(uint64_t *p, uint64_t v)
{
    *p = v;
}

DEVICE uint32_t count_relaxed(uint32_t *p, uint32_t count)
{
    emulated::pause();
    const uint32_t was = atomicAdd(p, count);
    emulated::pause();
    return was;
}

DEVICE void count_release(uint32_t *p, uint32_t count)
{
    count_relaxed(p, count);
}

DEVICE uint32_t count_acq_rel(uint32_t *p)
{
    return count_relaxed(p, 1);
}

// ---- Launches -----------------------------------------------------------------------------------------------------

DEVICE void launch_dependents()
{
}

DEVICE void wait_prior_launches()
{
}

// ---- Warps --------------------------------------------------------------------------------------------------------

#define warp_scan(x) static_cast<uint32_t>(EMULATED_COLLECTIVE(scan, x, 0))
#define warp_sum(x)  EMULATED_COLLECTIVE(add, x, 0)

} // namespace strait
#endif
