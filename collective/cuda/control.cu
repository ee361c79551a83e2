// Each kernel is one thread block, as there is little to do: one head per message, and few ranks.
#include "collective/cuda/kernels.h"

#include "collective/engine/gpu.h"

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

// ---- Heads ----------------------------------------------------------------------------------------------------------

struct verdict {
    const strait_result *tail, *main;
    bool fits;
};

// Results are in the order of messages, a tail's before its main part's.
__device__ verdict verdict_of(const gpu_write_headers &headers, uint32_t i)
{
    const uint32_t before = i - (headers.list.skip < i), parts = parts_of(headers.list);
    const strait_result *results = headers.results + before * parts;
    verdict is = {headers.list.tail_at != 0 ? results : nullptr, results + (parts - 1), false};
    is.fits = is.main->status == STRAIT_OK && is.main->bytes <= headers.list.main_room &&
              (is.tail == nullptr || is.tail->status == STRAIT_OK);
    return is;
}

__device__ unsigned long long need_of(const verdict &is)
{
    return is.main->status == STRAIT_OK ? is.main->bytes : ~0ull;
}

// Number of the job's messages, as both sides count them.
__device__ uint64_t number_of(const gpu_write_headers &headers)
{
    const ring_ends *ends = headers.ends;
    if (headers.job.peer < 0)
        return ends->collectives;
    return headers.job.sent != nullptr ? ends->peers[headers.job.peer].sends : ends->peers[headers.job.peer].receives;
}

__device__ void count_message(const gpu_write_headers &headers, uint64_t number)
{
    ring_ends *ends = headers.ends;
    if (headers.job.peer < 0)
        ends->collectives = number + 1;
    else if (headers.job.sent != nullptr)
        ends->peers[headers.job.peer].sends = number + 1;
    else
        ends->peers[headers.job.peer].receives = number + 1;
}

__device__ void write_record(const gpu_write_headers &headers, uint32_t peer, uint64_t number, uint64_t first,
                             const rank_set *row)
{
    const uint32_t i = headers.job.sent_stride != 0 ? exchange_message(&headers.job, peer) : 0;
    const bool fits = i == EXCHANGE_NO_MESSAGE || !rank_set_has(row, i);
    const ring_parts ring = ring_parts_of(&headers.rings, ring_to(&headers.rings, peer));
    volatile ring_record *record = &ring.records[headers.job.peer >= 0][number % headers.rings.records];
    record->number = 0; // a reader of the previous content sees that it is being overwritten
    __threadfence_system();
    record->first = fits ? RING_NONE : first;
    __threadfence_system();
    record->number = number + 1;
}

__global__ void __launch_bounds__(THREADS) write_headers_kernel(const gpu_write_headers headers)
{
    __shared__ rank_set row;
    __shared__ unsigned long long most;
    bool any = false;
    if (threadIdx.x < RANK_SET_WORDS)
        row.words[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        most = 0;
    const uint64_t first = headers.ends->next, number = number_of(headers);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < headers.list.count; i += THREADS) {
        if (is_skipped(headers.list, i))
            continue;
        const verdict is = verdict_of(headers, i);
        atomicMax(&most, need_of(is));
        if (is.fits)
            continue;
        atomicOr(reinterpret_cast<unsigned long long *>(&row.words[i / 64]), 1ull << i % 64);
        any = true;
    }
    const bool overflows = __syncthreads_or(any);
    if (threadIdx.x == 0) {
        headers.ends->next = first + (overflows ? headers.slots : 0);
        headers.ends->moving = 1;
        *headers.place = headers.job;
        headers.place->number = number;
        count_message(headers, number);
    }
    const bool records = headers.list.count > 0 || headers.job.peer < 0;
    for (uint32_t peer = threadIdx.x; peer < headers.rings.ranks && records; peer += THREADS)
        if (peer != headers.rings.rank && (headers.job.peer < 0 || static_cast<uint32_t>(headers.job.peer) == peer))
            write_record(headers, peer, number, first, &row);
    for (uint32_t i = threadIdx.x; i < headers.list.count; i += THREADS) {
        if (is_skipped(headers.list, i))
            continue;
        const verdict is = verdict_of(headers, i);
        message_head *head = head_of(headers.list, i);
        head->magic = MESSAGE_MAGIC;
        head->tail_status = is.tail != nullptr ? is.tail->status : 0;
        head->main_status = is.main->status;
        head->reserved = 0;
        head->tail_bytes = is.tail != nullptr ? is.tail->bytes : 0;
        head->main_bytes = is.main->bytes;
        head->first = first;
        head->row = row;
        head->most = most;
        head->sum = head_sum(head);
    }
}

// ---- Overflows ------------------------------------------------------------------------------------------------------

__device__ bool is_whole(const message_head *head)
{
    return head->magic == MESSAGE_MAGIC && head->sum == head_sum(head);
}

// Kernels with the same host_status run one after another.
__device__ void say_failed(host_status *host_status, uint32_t status)
{
    if (*reinterpret_cast<const volatile uint32_t *>(&host_status->failed) == 0)
        *reinterpret_cast<volatile uint32_t *>(&host_status->failed) = status;
    __threadfence_system();
}

// Ranks may see different rows now, so one that waits for others might wait forever.
__device__ void say_bad_head(host_status *host_status)
{
    say_failed(host_status, STATUS_BAD_HEADER);
    *reinterpret_cast<volatile uint32_t *>(&host_status->abort) = 1;
}

// 1024ths that a main part of `need` bytes takes.
__device__ uint32_t share_of(uint64_t need, uint64_t unit)
{
    return need > 1024 * unit ? 1024 : static_cast<uint32_t>((need + unit - 1) / unit);
}

// Ops of a communicator run one after another, so nobody else writes here.
__device__ void report_overflow(const gpu_check &check)
{
    host_status *host_status = check.host_status;
    const uint64_t number = host_status->reported;
    volatile report *to = &host_status->reports[number % REPORTS_MAX];
    to->count = ++check.overflow_counter->count;
    to->index = check.index;
    to->local_class = check.local_class;
    to->share = check.overflow_counter->share | check.probe;
    check.overflow_counter->share = 0;
    __threadfence_system();
    *reinterpret_cast<volatile uint64_t *>(&host_status->reported) = number + 1;
}

__device__ void clear_header(uint8_t *chunk)
{
    for (uint32_t i = 0; i < STRAIT_CHUNK_HEADER_BYTES / 16; i++)
        reinterpret_cast<uint4 *>(chunk)[i] = make_uint4(0, 0, 0, 0);
}

__device__ void clear_chunks(const message_list &list, uint32_t i)
{
    uint8_t *message = list.base + i * list.stride;
    if (list.tail_at != 0)
        clear_header(message + list.tail_at);
    clear_header(message + list.main_at);
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
        const bool whole = is_whole(head);
        const bool overflows = rank_set_has(&head->row, check.bit);
        strange |= !whole;
        found |= !rank_set_is_empty(&head->row);
        check.found[i] = !whole ? MESSAGE_BAD : overflows ? MESSAGE_OVERFLOWS : MESSAGE_FITS;
        atomicMax(&need, static_cast<unsigned long long>(head->most));
        if (check.found[i] != MESSAGE_FITS)
            clear_chunks(check.list, i);
    }
    if (threadIdx.x == 0 && check.own != nullptr) {
        const message_head *own = reinterpret_cast<const message_head *>(check.own);
        found |= !rank_set_is_empty(&own->row);
        atomicMax(&need, static_cast<unsigned long long>(own->most));
    }
    const bool any = __syncthreads_or(found), bad = __syncthreads_or(strange);
    if (threadIdx.x != 0)
        return;
    *reinterpret_cast<volatile uint64_t *>(&check.ends->moving) = 0; // the kernel beside NCCL reads it
    if (bad) {
        say_bad_head(check.host_status);
        return;
    }
    check.overflow_counter->share = max(check.overflow_counter->share, share_of(need, check.unit));
    if (any || check.probe != 0)
        report_overflow(check);
}

// ---- Decoding -------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(THREADS) verify_kernel(const gpu_verify verify)
{
    const uint32_t parts = parts_of(verify.list), skipped = verify.list.skip < verify.list.count;
    for (uint32_t i = threadIdx.x; i < (verify.list.count - skipped) * parts; i += THREADS) {
        const uint32_t message = i / parts + (i / parts >= verify.list.skip);
        if (verify.found[message] == 0 && verify.results[i].status != STRAIT_OK)
            say_failed(verify.host_status, static_cast<uint32_t>(verify.results[i].status));
    }
}

} // namespace

cudaError_t control_prepare(void)
{
    const void *const kernels[] = {(const void *)write_headers_kernel, (const void *)check_kernel,
                                   (const void *)verify_kernel};
    return load_kernels(kernels);
}

cudaError_t control_write_headers(const struct gpu_write_headers *headers, cudaStream_t stream)
{
    write_headers_kernel<<<1, THREADS, 0, stream>>>(*headers);
    return cudaGetLastError();
}

cudaError_t control_check(const struct gpu_check *check, cudaStream_t stream)
{
    check_kernel<<<1, THREADS, 0, stream>>>(*check);
    return cudaGetLastError();
}

cudaError_t control_verify(const struct gpu_verify *verify, cudaStream_t stream)
{
    verify_kernel<<<1, THREADS, 0, stream>>>(*verify);
    return cudaGetLastError();
}
