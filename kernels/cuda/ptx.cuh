// Instructions that CUDA C++ does not expose: barriers in shared memory, bulk copies, scoped loads and stores.
#ifndef STRAIT_KERNELS_CUDA_PTX_CUH
#define STRAIT_KERNELS_CUDA_PTX_CUH

#include <cstdint>

#define DEVICE   __device__ __forceinline__
#define ANY_SIDE __host__ __device__ __forceinline__

namespace strait
{

constexpr uint32_t ALL_LANES = 0xffffffffu;

// Compute capability, times 10, that device code is compiled for. Host code gets any: it must not depend on it.
#ifdef __CUDA_ARCH__
constexpr uint32_t CAPABILITY = __CUDA_ARCH__ / 10;
#else
constexpr uint32_t CAPABILITY = 90;
#endif

// Before 9.0 there are no bulk copies: the lanes of a warp load by 16 bytes each, and store as any code does.
constexpr bool HAS_BULK = CAPABILITY >= 90;

// The thread's index, read again instead of being kept in a register.
DEVICE uint32_t read_thread()
{
    uint32_t number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

DEVICE uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- Barriers in shared memory ------------------------------------------------------------------------------------

DEVICE void barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

DEVICE void barrier_arrive(uint64_t *barrier, uint32_t arrivals = 1)
{
    if constexpr (CAPABILITY >= 90)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                     : "memory");
    else // there are no counts
        for (uint32_t i = 0; i < arrivals; i++)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// All lanes: the warp arrives once, for everything that its lanes have done. A race checker may credit only the lane
// that arrives; in builds for it, every lane arrives.
#ifdef STRAIT_EVERY_LANE_ARRIVES
constexpr uint32_t WARP_ARRIVALS = 32;
#else
constexpr uint32_t WARP_ARRIVALS = 1;
#endif
DEVICE void warp_arrive(uint64_t *barrier, uint32_t lane)
{
    __syncwarp();
    if (lane < WARP_ARRIVALS)
        barrier_arrive(barrier);
}

// Arrives, and makes the phase also wait for this many bytes of bulk copies.
DEVICE void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Makes the phase wait for this many bytes of bulk copies, without an arrival.
DEVICE void barrier_expect_only(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Whether a wait would return at once.
DEVICE bool barrier_test(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done != 0;
}

DEVICE void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    if constexpr (CAPABILITY >= 90) {
        uint32_t done;
        do
            asm volatile("{\n.reg .pred p;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p;\n}"
                         : "=r"(done)
                         : "r"(shared_address(barrier)), "r"(parity)
                         : "memory");
        while (done == 0);
    } else { // no instruction suspends a warp: one that waits leaves the others their turns
        while (!barrier_test(barrier, parity))
            __nanosleep(20);
    }
}

// Named barriers among some warps of a thread block.
DEVICE void named_sync(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE bool named_all(uint32_t id, uint32_t threads, bool value)
{
    uint32_t all;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\n"
                 "bar.red.and.pred q, %1, %2, p;\nselp.u32 %0, 1, 0, q;\n}"
                 : "=r"(all)
                 : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(value))
                 : "memory");
    return all != 0;
}

// ---- Loads by the lanes of a warp, before 9.0 -----------------------------------------------------------------------

// A lane's load of 16 bytes.
DEVICE void lane_load(void *dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}

// Each lane arrives once its loads so far are there: a phase that lanes load for counts LOADING_LANES more arrivals.
// What the lanes have done otherwise is for an ordinary arrival to release.
constexpr uint32_t LOADING_LANES = HAS_BULK ? 0 : 32;
DEVICE void arrive_loaded(uint64_t *barrier)
{
    if constexpr (!HAS_BULK)
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// ---- Bulk copies: 16-byte aligned, multiples of 16 bytes ----------------------------------------------------------

DEVICE void bulk_load(void *dst, const void *src, uint32_t bytes, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(dst)),
                 "l"(src), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// bulk_load of bytes that are not read again: they leave the L2 cache before all others.
DEVICE void bulk_load_once(void *dst, const void *src, uint32_t bytes, uint64_t *barrier)
{
    uint64_t first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(shared_address(dst)),
                 "l"(src), "r"(bytes), "r"(shared_address(barrier)), "l"(first)
                 : "memory");
}

DEVICE void prefetch_line(const void *src)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(src) : "memory");
}

// Prefetch to the L2 cache only.
DEVICE void bulk_prefetch(const void *src, uint32_t bytes)
{
    if constexpr (HAS_BULK) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
    } else {
#pragma unroll 1
        for (uint32_t at = 0; at < bytes; at += 128)
            prefetch_line(static_cast<const uint8_t *>(src) + at);
    }
}

DEVICE void bulk_store(void *dst, const void *src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(shared_address(src)),
                 "r"(bytes)
                 : "memory");
}

DEVICE void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all groups have been read from shared memory; or until all have been written.
DEVICE void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

DEVICE void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Orders ordinary accesses before it ahead of bulk copies after it.
DEVICE void fence_bulk()
{
    if constexpr (HAS_BULK)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Orders bulk copies to global memory that have been waited for ahead of what is released next.
DEVICE void fence_bulk_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Stores of one warp to bytes that this multiprocessor does not read again.
DEVICE void store_streaming(uint4 *p, const uint32_t w[4])
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]),
                 "r"(w[3])
                 : "memory");
}

// ---- Global memory that several thread blocks share ---------------------------------------------------------------

DEVICE uint64_t load_relaxed(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

DEVICE void load_relaxed_pair(const uint64_t *p, uint64_t v[2])
{
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(v[0]), "=l"(v[1]) : "l"(p) : "memory");
}

// Both words in one access: a reader that sees one of them sees the other.
DEVICE void load_relaxed_both(const uint64_t *p, uint64_t v[2])
{
    asm volatile("{\n.reg .b128 x;\n"
                 "ld.relaxed.gpu.global.b128 x, [%2];\n"
                 "mov.b128 {%0, %1}, x;\n}"
                 : "=l"(v[0]), "=l"(v[1])
                 : "l"(p)
                 : "memory");
}

DEVICE void store_relaxed_both(uint64_t *p, uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .b128 x;\n"
                 "mov.b128 x, {%1, %2};\n"
                 "st.relaxed.gpu.global.b128 [%0], x;\n}" ::"l"(p),
                 "l"(a), "l"(b)
                 : "memory");
}

DEVICE void store_relaxed(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Acquires after a relaxed load that has seen what another thread block released: makes its earlier writes visible.
// Polling with acquire loads would invalidate the cache of the multiprocessor each time.
DEVICE void fence_acquire()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

DEVICE uint32_t load_relaxed(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Release for a reader on the host or on another device.
DEVICE void store_release_system(int32_t *p, int32_t v)
{
    asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEVICE void store_release_system(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

DEVICE void count_release(uint32_t *p, uint32_t count)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(count) : "memory");
}

// Relaxed counter; returns the previous value.
DEVICE uint32_t count_relaxed(uint32_t *p, uint32_t count)
{
    uint32_t v;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "r"(count) : "memory");
    return v;
}

DEVICE uint32_t count_acq_rel(uint32_t *p)
{
    uint32_t v;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// ---- Launches -----------------------------------------------------------------------------------------------------

// Triggers the dependent launch on the stream, which may take the room that this one leaves; it waits before it reads
// any memory. Before 9.0 launches follow each other.
DEVICE void launch_dependents()
{
    if constexpr (CAPABILITY >= 90)
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the launches before this one have ended and their writes are visible.
DEVICE void wait_prior_launches()
{
    if constexpr (CAPABILITY >= 90)
        asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- Warps --------------------------------------------------------------------------------------------------------

// Sum of this lane's value and those of lower lanes. The shuffle itself reports whether there was a lane to take from.
DEVICE uint32_t warp_scan(uint32_t x)
{
#pragma unroll
    for (int step = 1; step < 32; step <<= 1)
        asm volatile("{\n.reg .pred p;\n.reg .u32 r;\n"
                     "shfl.sync.up.b32 r|p, %0, %1, 0, -1;\n"
                     "@p add.u32 %0, %0, r;\n}"
                     : "+r"(x)
                     : "r"(step));
    return x;
}

// Every lane gets the sum. It is computed in 16-bit halves, which cannot overflow.
DEVICE uint64_t warp_sum(uint64_t v)
{
    uint32_t low = static_cast<uint32_t>(v), high = static_cast<uint32_t>(v >> 32);
    uint32_t a = __reduce_add_sync(ALL_LANES, low & 0xffffu), b = __reduce_add_sync(ALL_LANES, low >> 16);
    return a + (static_cast<uint64_t>(b) << 16) + (static_cast<uint64_t>(__reduce_add_sync(ALL_LANES, high)) << 32);
}

} // namespace strait
#endif
