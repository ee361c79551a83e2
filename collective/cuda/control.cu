// One thread block each, as there is little to do: a message has a head, and ranks are few.
#include "collective/cuda/control.h"

#include "collective/engine/head.h"

namespace
{

constexpr uint32_t THREADS = 128;

__device__ bool is_skipped(const message_list &list, uint32_t i)
{
    return i == list.skip;
}

__device__ uint32_t parts_of(const message_list &list)
{
    return (list.tail_at != 0) + (list.main_at != 0);
}

__device__ message_head *head_of(const message_list &list, uint32_t i)
{
    return reinterpret_cast<message_head *>(list.base + i * list.stride);
}

__device__ uint64_t load_system(const uint64_t *word)
{
    return *reinterpret_cast<const volatile uint64_t *>(word);
}

__device__ uint32_t load_system(const uint32_t *word)
{
    return *reinterpret_cast<const volatile uint32_t *>(word);
}

__device__ uint64_t now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// ---- Heads ----------------------------------------------------------------------------------------------------------

struct verdict {
    const strait_result *tail, *main;
    bool fits;
};

// Results come in the order of messages, a tail's before its main part's.
__device__ verdict verdict_of(const gpu_seal &seal, uint32_t i)
{
    const uint32_t before = i - (seal.list.skip < i), parts = parts_of(seal.list);
    const strait_result *results = seal.results + before * parts;
    verdict is = {seal.list.tail_at != 0 ? results : nullptr, results + (parts - 1), false};
    is.fits = is.main->status == STRAIT_OK && is.main->bytes <= seal.list.main_room &&
              (is.tail == nullptr || is.tail->status == STRAIT_OK);
    return is;
}

__device__ unsigned long long need_of(const verdict &is)
{
    return is.main->status == STRAIT_OK ? is.main->bytes : ~0ull;
}

__global__ void __launch_bounds__(THREADS) seal_kernel(const gpu_seal seal)
{
    __shared__ unsigned long long row[ROW_WORDS], most;
    if (threadIdx.x < ROW_WORDS)
        row[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        most = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < seal.list.count; i += THREADS) {
        if (is_skipped(seal.list, i))
            continue;
        const verdict is = verdict_of(seal, i);
        atomicMax(&most, need_of(is));
        if (!is.fits)
            atomicOr(&row[i / 64], 1ull << i % 64);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < seal.list.count; i += THREADS) {
        if (is_skipped(seal.list, i))
            continue;
        const verdict is = verdict_of(seal, i);
        message_head *head = head_of(seal.list, i);
        head->magic = MESSAGE_MAGIC;
        head->tail_status = is.tail != nullptr ? is.tail->status : 0;
        head->main_status = is.main->status;
        head->reserved = 0;
        head->tail_bytes = is.tail != nullptr ? is.tail->bytes : 0;
        head->main_bytes = is.main->bytes;
        for (uint32_t word = 0; word < ROW_WORDS; word++)
            head->row[word] = row[word];
        head->most = most;
        head->sum = head_sum(head);
    }
}

// ---- What did not fit -----------------------------------------------------------------------------------------------

__device__ bool has_overflow(const message_head *head, bool whole)
{
    uint64_t any = head->row[0] & (whole ? ~0ull : 1ull);
    for (uint32_t word = 1; word < ROW_WORDS && whole; word++)
        any |= head->row[word];
    return any != 0;
}

__device__ bool is_whole(const message_head *head)
{
    return head->magic == MESSAGE_MAGIC && head->sum == head_sum(head);
}

// The kernels of one mail run one after the other.
__device__ void say_failed(mail *mail, uint32_t status)
{
    if (load_system(&mail->failed) == 0)
        *reinterpret_cast<volatile uint32_t *>(&mail->failed) = status;
    __threadfence_system();
}

// Ranks may see different rows now: who waits for others might wait for nobody.
__device__ void say_bad_head(mail *mail)
{
    say_failed(mail, MAIL_BAD_HEAD);
    *reinterpret_cast<volatile uint32_t *>(&mail->abort) = 1;
}

// 1024ths that a main part of `need` bytes takes.
__device__ uint32_t share_of(uint64_t need, uint64_t unit)
{
    return need > 1024 * unit ? 1024 : static_cast<uint32_t>((need + unit - 1) / unit);
}

__global__ void __launch_bounds__(THREADS) check_kernel(const gpu_check check)
{
    __shared__ unsigned long long need;
    bool found = false, strange = false;
    if (threadIdx.x == 0)
        need = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < check.list.count; i += THREADS) {
        if (is_skipped(check.list, i))
            continue;
        const message_head *head = head_of(check.list, i);
        strange |= !is_whole(head);
        found |= has_overflow(head, check.whole);
        atomicMax(&need, static_cast<unsigned long long>(head->most));
    }
    if (threadIdx.x == 0 && check.own != nullptr) {
        const message_head *own = reinterpret_cast<const message_head *>(check.own);
        found |= has_overflow(own, check.whole);
        atomicMax(&need, static_cast<unsigned long long>(own->most));
    }
    const bool any = __syncthreads_or(found), bad = __syncthreads_or(strange);
    if (threadIdx.x != 0)
        return;
    *check.found = any || bad;
    uint32_t *share = &check.control->shares[check.job.key];
    if (bad)
        say_bad_head(check.mail);
    else
        *share = max(*share, share_of(need, check.unit));
    if (!any || load_system(&check.mail->abort) != 0) // the thread may still read the jobs of a meeting that was left
        return;
    const uint32_t number = check.control->count++;
    if (number >= JOBS_MAX)
        return;
    check.mail->jobs[number] = check.job;
    check.mail->jobs[number].share = *share;
    *share = 0;
}

__global__ void __launch_bounds__(32) meet_kernel(const gpu_meet meet)
{
    mail_control *control = meet.control;
    if (threadIdx.x != 0 || control->count == 0)
        return;
    const uint64_t post = ++control->posts;
    *reinterpret_cast<volatile uint32_t *>(&meet.mail->count) = control->count;
    control->count = 0;
    __threadfence_system();
    *reinterpret_cast<volatile uint64_t *>(&meet.mail->posted) = post;
    const uint64_t until = now_ns() + meet.patience_ns;
    bool done;
    while (!(done = load_system(&meet.mail->done) >= post) && load_system(&meet.mail->abort) == 0 && now_ns() < until)
        __nanosleep(2000);
    if (!done) { // and what comes later does not wait as long again, nor touch what the thread may still read
        say_failed(meet.mail, static_cast<uint32_t>(STRAIT_ERR_IO));
        *reinterpret_cast<volatile uint32_t *>(&meet.mail->abort) = 1;
    }
    __threadfence_system();
}

// ---- Decoding -------------------------------------------------------------------------------------------------------

__device__ void clear_header(uint8_t *chunk)
{
    for (uint32_t i = 0; i < STRAIT_CHUNK_HEADER_BYTES / 16; i++)
        reinterpret_cast<uint4 *>(chunk)[i] = make_uint4(0, 0, 0, 0);
}

__global__ void __launch_bounds__(THREADS) void_kernel(const gpu_void what)
{
    if (*what.found == 0)
        return;
    for (uint32_t i = threadIdx.x; i < what.list.count; i += THREADS) {
        uint8_t *message = what.list.base + i * what.list.stride;
        if (what.list.tail_at != 0)
            clear_header(message + what.list.tail_at);
        clear_header(message + what.list.main_at);
    }
}

__global__ void __launch_bounds__(THREADS) verify_kernel(const gpu_verify verify)
{
    if (*verify.found != 0)
        return;
    for (uint32_t i = threadIdx.x; i < verify.count; i += THREADS)
        if (verify.results[i].status != STRAIT_OK)
            say_failed(verify.mail, static_cast<uint32_t>(verify.results[i].status));
}

} // namespace

cudaError_t control_prepare(void)
{
    const void *const kernels[] = {(const void *)seal_kernel, (const void *)check_kernel, (const void *)meet_kernel,
                                   (const void *)void_kernel, (const void *)verify_kernel};
    cudaError_t error = cudaSuccess;
    cudaFuncAttributes attributes;
    for (const void *kernel : kernels)
        if (error == cudaSuccess)
            error = cudaFuncGetAttributes(&attributes, kernel);
    return error;
}

cudaError_t control_seal(const struct gpu_seal *seal, cudaStream_t stream)
{
    seal_kernel<<<1, THREADS, 0, stream>>>(*seal);
    return cudaGetLastError();
}

cudaError_t control_check(const struct gpu_check *check, cudaStream_t stream)
{
    check_kernel<<<1, THREADS, 0, stream>>>(*check);
    return cudaGetLastError();
}

cudaError_t control_meet(const struct gpu_meet *meet, cudaStream_t stream)
{
    meet_kernel<<<1, 32, 0, stream>>>(*meet);
    return cudaGetLastError();
}

cudaError_t control_void(const struct gpu_void *what, cudaStream_t stream)
{
    void_kernel<<<1, THREADS, 0, stream>>>(*what);
    return cudaGetLastError();
}

cudaError_t control_verify(const struct gpu_verify *verify, cudaStream_t stream)
{
    verify_kernel<<<1, THREADS, 0, stream>>>(*verify);
    return cudaGetLastError();
}
