/* collective/engine/gpu.h by the fake GPUs, as the plugin that libstrait-coll loads: its kernels are what
 * collective/cuda/control.cu does, by one thread. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "collective/engine.h"
#include "collective/engine/gpu.h"
#include "kernels/codec.h"
#include "tests/fakes/exchange_thread.h"
#include "tests/fakes/gpu.h"

/* ---- Failures that tests ask for --------------------------------------------------------------------------------- */

static bool comes_up(_Atomic int32_t *countdown)
{
    return *countdown > 0 && atomic_fetch_sub(countdown, 1) == 1;
}

static bool can_make(void)
{
    atomic_fetch_add(&fake_gpu.makings, 1);
    if ((fake_gpu.fail_device < 0 || fake_gpu.fail_device == fake_device()) && comes_up(&fake_gpu.fail_making))
        return false;
    atomic_fetch_add(&fake_gpu.made, 1);
    return true;
}

static void unmade(void)
{
    atomic_fetch_sub(&fake_gpu.made, 1);
}

/* Masks have the first devices only. */
static bool is_among(uint32_t devices)
{
    return fake_device() < 32 && (devices >> fake_device() & 1) != 0;
}

static void halt(const _Atomic uint32_t *devices)
{
    fake_gpu.halted++;
    while (is_among(*devices))
        usleep(200);
    fake_gpu.halted--;
}

/* What CUDA demands of all that is put on a stream. */
static bool can_work(coll_stream stream)
{
    demand(stream != NULL && fake_stream_device(stream) == fake_device());
    if (is_among(fake_gpu.halt))
        halt(&fake_gpu.halt);
    return !comes_up(&fake_gpu.fail_work);
}

/* ---- Devices and memory ------------------------------------------------------------------------------------------ */

static coll_stream stream_of(void *stream)
{
    return stream;
}

static bool launch_fails(void)
{
    return comes_up(&fake_gpu.fail_work);
}

const struct codec_host fake_codec_host = {stream_of, fake_device, launch_fails, NULL, NULL};

static const struct strait_codec *codec(void)
{
    static const struct strait_codec codec = {.name = "fake", .device = &fake_codec_ops};
    return !is_among(fake_gpu.no_codec) ? &codec : NULL;
}

static const char *trouble(void)
{
    return is_among(fake_gpu.troubled) ? "this GPU is not to be counted on" : NULL;
}

static uint64_t host(void)
{
    return fake_gpu.hosts[fake_device()];
}

static unsigned multiprocessors(void)
{
    return 132;
}

static bool prepare(void)
{
    return true;
}

static bool enter(int device, int *before)
{
    *before = fake_device();
    fake_device_set(device);
    return true;
}

static void leave(int before)
{
    fake_device_set(before);
}

/* Lies before what was allocated. */
struct block {
    _Alignas(256) struct block *next;
    size_t size;
    void *start; /* of the host's memory that it lies in */
};

static struct block *allocations;
static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_ours(const void *memory)
{
    bool found = false;
    pthread_mutex_lock(&allocations_lock);
    for (struct block *block = allocations; block != NULL; block = block->next)
        found |= (const uint8_t *)memory >= (uint8_t *)(block + 1) &&
                 (const uint8_t *)memory < (uint8_t *)(block + 1) + block->size;
    pthread_mutex_unlock(&allocations_lock);
    return found;
}

/* Zeros are the system's, which takes memory for them when they are written: many ranks measure links by much of it. */
static void *allocate_any(size_t size, bool zero)
{
    enum { ALIGNED = _Alignof(struct block) };
    if (!can_make())
        return NULL;
    uint8_t *start = calloc(1, sizeof(struct block) + size + ALIGNED);
    demand(start != NULL);
    struct block *block = (struct block *)(void *)(start + (-(uintptr_t)start & (ALIGNED - 1)));
    block->size = size;
    block->start = start;
    pthread_mutex_lock(&allocations_lock);
    block->next = allocations;
    allocations = block;
    pthread_mutex_unlock(&allocations_lock);
    return zero ? block + 1 : memset(block + 1, 0xa5, size);
}

/* CUDA waits for all of the device. */
static void release(void *memory)
{
    if (memory == NULL)
        return;
    fake_device_wait(fake_device());
    pthread_mutex_lock(&allocations_lock);
    struct block **at = &allocations, *block = (struct block *)memory - 1;
    while (*at != NULL && *at != block)
        at = &(*at)->next;
    demand(*at != NULL);
    *at = block->next;
    pthread_mutex_unlock(&allocations_lock);
    unmade();
    free(block->start);
}

static void *allocate(size_t size, bool zero)
{
    return !is_among(fake_gpu.full) ? allocate_any(size, zero) : NULL;
}

static void *allocate_pinned(size_t size)
{
    return allocate_any(size, true);
}

/* The fake GPUs reach all memory. */
static void *register_host(void *memory, size_t size)
{
    (void)size;
    return can_make() ? memory : NULL;
}

static void unregister_host(void *memory)
{
    (void)memory;
    unmade();
}

/* ---- Order ------------------------------------------------------------------------------------------------------- */

static coll_stream stream_make(void)
{
    demand(!fake_gpu.no_streams);
    return can_make() ? fake_stream_make() : NULL;
}

static void stream_end(coll_stream stream)
{
    fake_stream_end(stream);
    unmade();
}

static bool stream_wait(coll_stream stream)
{
    fake_stream_wait(stream);
    return true;
}

static gpu_event event_make(bool timed)
{
    (void)timed;
    return can_make() ? fake_event_make() : NULL;
}

static void event_end(gpu_event event)
{
    fake_event_end(event);
    unmade();
}

static bool event_record(gpu_event event, coll_stream stream)
{
    if (!can_work(stream))
        return false;
    fake_event_record(event, stream);
    return true;
}

static bool event_follow(coll_stream stream, gpu_event event)
{
    if (!can_work(stream))
        return false;
    fake_event_follow(stream, event);
    return true;
}

static bool event_record_outside(gpu_event event, coll_stream stream)
{
    if (!can_work(stream))
        return false;
    fake_event_record_outside(event, stream);
    return true;
}

static bool event_follow_outside(coll_stream stream, gpu_event event)
{
    if (!can_work(stream))
        return false;
    fake_event_follow_outside(stream, event);
    return true;
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

struct copying {
    void *dst;
    const void *src; /* NULL: zeros */
    size_t size;
};

static void run_copy(coll_stream stream, void *argument)
{
    const struct copying *copy = argument;
    (void)stream;
    if (copy->src != NULL)
        memcpy(copy->dst, copy->src, copy->size);
    else
        memset(copy->dst, 0, copy->size);
}

static bool zero(void *memory, size_t size, coll_stream stream)
{
    const struct copying what = {memory, NULL, size};
    if (!can_work(stream))
        return false;
    fake_queue(stream, run_copy, NULL, &what, sizeof(what));
    return true;
}

static void end_copy(void *argument)
{
    free((void *)(uintptr_t)((struct copying *)argument)->src);
}

/* What is not the engine's is the program's on the GPU, unless it is copied into the engine's: then it is on the host's
 * stack, and CUDA has read it when the call returns. */
static bool copy(void *dst, const void *src, size_t size, coll_stream stream)
{
    struct copying what = {dst, src, size};
    if (!can_work(stream))
        return false;
    const bool kept = is_ours(dst) && !is_ours(src);
    if (kept) {
        void *own = malloc(size);
        demand(own != NULL && fake_capture(stream) == 0);
        what.src = memcpy(own, src, size);
    }
    fake_queue(stream, run_copy, kept ? end_copy : NULL, &what, sizeof(what));
    return true;
}

/* Of the GPU's memory to the GPU's. */
static bool copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride, size_t size, size_t rows,
                      coll_stream stream)
{
    demand(size <= dst_stride && size <= src_stride);
    for (size_t row = 0; row < rows; row++) {
        const struct copying what = {(uint8_t *)dst + row * dst_stride, (const uint8_t *)src + row * src_stride, size};
        if (!can_work(stream))
            return false;
        fake_queue(stream, run_copy, NULL, &what, sizeof(what));
    }
    return true;
}

static struct message_head *head_of(const struct message_list *list, uint32_t i)
{
    return (void *)(list->base + i * list->stride);
}

static uint32_t parts_of(const struct message_list *list)
{
    return (list->tail_at != 0) + (list->main_at != 0);
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

struct verdict {
    const struct strait_result *tail, *main;
    bool fits;
};

static struct verdict verdict_of(const struct gpu_write_headers *headers, uint32_t i)
{
    const uint32_t before = i - (headers->list.skip < i), parts = parts_of(&headers->list);
    const struct strait_result *results = headers->results + before * parts;
    struct verdict is = {parts > 1 ? results : NULL, results + (parts - 1), false};
    is.fits = is.main->status == STRAIT_OK && is.main->bytes <= headers->list.main_room &&
              (is.tail == NULL || (is.tail->status == STRAIT_OK));
    return is;
}

static uint64_t need_of(struct verdict is)
{
    return is.main->status == STRAIT_OK ? is.main->bytes : UINT64_MAX;
}

static void write_head(struct message_head *head, struct verdict is, uint64_t first, const struct rank_set *row,
                       uint64_t most)
{
    head->magic = MESSAGE_MAGIC;
    head->tail_status = is.tail != NULL ? (uint32_t)is.tail->status : 0;
    head->main_status = (uint32_t)is.main->status;
    head->reserved = 0;
    head->tail_bytes = is.tail != NULL ? is.tail->bytes : 0;
    head->main_bytes = is.main->bytes;
    head->first = first;
    head->row = *row;
    head->most = most;
    head->sum = head_sum(head);
}

static uint64_t count_message(const struct gpu_write_headers *headers)
{
    struct ring_ends *ends = headers->ends;
    if (headers->job.peer < 0)
        return ends->collectives++;
    return headers->job.sent != NULL ? ends->peers[headers->job.peer].sends++
                                     : ends->peers[headers->job.peer].receives++;
}

static void record(const struct gpu_write_headers *headers, uint32_t peer, const struct rank_set *row)
{
    const uint32_t i = headers->job.sent_stride != 0 ? exchange_message(&headers->job, peer) : 0;
    const bool fits = i == EXCHANGE_NO_MESSAGE || !rank_set_has(row, i);
    const struct ring_parts ring = ring_parts_of(&headers->rings, ring_to(&headers->rings, peer));
    struct ring_record *record = &ring.records[headers->job.peer >= 0][headers->place->number % headers->rings.records];
    __atomic_store_n(&record->number, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&record->first, fits ? RING_NONE : headers->ends->next, __ATOMIC_RELEASE);
    __atomic_store_n(&record->number, headers->place->number + 1, __ATOMIC_RELEASE);
}

static void run_write_headers(coll_stream stream, void *argument)
{
    const struct gpu_write_headers *headers = argument;
    struct rank_set row = {0};
    uint64_t most = 0;
    bool any = false;
    (void)stream;
    *headers->place = headers->job;
    headers->place->number = count_message(headers);
    __atomic_store_n(&headers->ends->moving, 1, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < headers->list.count; i++) {
        if (i == headers->list.skip)
            continue;
        const struct verdict is = verdict_of(headers, i);
        most = need_of(is) > most ? need_of(is) : most;
        if (!is.fits)
            rank_set_add(&row, i);
        any |= !is.fits;
    }
    for (uint32_t i = 0; i < headers->list.count; i++)
        if (i != headers->list.skip)
            write_head(head_of(&headers->list, i), verdict_of(headers, i), headers->ends->next, &row, most);
    const bool records = headers->list.count > 0 || headers->job.peer < 0;
    for (uint32_t peer = 0; peer < headers->rings.ranks && records; peer++)
        if (peer != headers->rings.rank && (headers->job.peer < 0 || (uint32_t)headers->job.peer == peer))
            record(headers, peer, &row);
    headers->ends->next += any ? headers->slots : 0;
}

/* ---- What did not fit -------------------------------------------------------------------------------------------- */

static bool is_whole(const struct message_head *head)
{
    return head->magic == MESSAGE_MAGIC && head->sum == head_sum(head);
}

static void say_failed(struct host_status *host_status, uint32_t status)
{
    if (__atomic_load_n(&host_status->failed, __ATOMIC_ACQUIRE) == 0)
        __atomic_store_n(&host_status->failed, status, __ATOMIC_RELEASE);
}

static void say_bad_head(struct host_status *host_status)
{
    say_failed(host_status, STATUS_BAD_HEADER);
    __atomic_store_n(&host_status->abort, 1, __ATOMIC_RELEASE);
}

/* Adds a head to what is known of an operation. */
static void take_head(const struct message_head *head, bool *any, uint64_t *need)
{
    *any |= !rank_set_is_empty(&head->row);
    *need = head->most > *need ? head->most : *need;
}

static uint32_t share_of(uint64_t need, uint64_t unit)
{
    return need > 1024 * unit ? 1024 : (uint32_t)((need + unit - 1) / unit);
}

static void report(const struct gpu_check *check)
{
    struct host_status *host_status = check->host_status;
    const struct report report = {.count = ++check->overflow_counter->count,
                                  .index = check->index,
                                  .local_class = check->local_class,
                                  .share = check->overflow_counter->share | check->probe};
    check->overflow_counter->share = 0;
    host_status->reports[host_status->reported % REPORTS_MAX] = report;
    __atomic_store_n(&host_status->reported, host_status->reported + 1, __ATOMIC_RELEASE);
}

static void clear_chunks(const struct message_list *list, uint32_t i)
{
    uint8_t *message = list->base + i * list->stride;
    if (list->tail_at != 0)
        memset(message + list->tail_at, 0, STRAIT_CHUNK_HEADER_BYTES);
    memset(message + list->main_at, 0, STRAIT_CHUNK_HEADER_BYTES);
}

static void run_check(coll_stream stream, void *argument)
{
    const struct gpu_check *check = argument;
    bool any = false, strange = false;
    uint64_t need = 0;
    (void)stream;
    __atomic_store_n(&check->ends->moving, 0, __ATOMIC_RELEASE);
    if (check->own != NULL)
        take_head((const void *)check->own, &any, &need);
    for (uint32_t i = 0; i < check->list.count; i++) {
        const struct message_head *head = head_of(&check->list, i);
        if (i == check->list.skip)
            continue;
        const bool whole = is_whole(head), overflows = rank_set_has(&head->row, check->bit);
        strange |= !whole;
        check->found[i] = !whole ? MESSAGE_BAD : overflows ? MESSAGE_OVERFLOWS : MESSAGE_FITS;
        take_head(head, &any, &need);
        if (check->found[i] != MESSAGE_FITS)
            clear_chunks(&check->list, i);
    }
    if (strange) {
        say_bad_head(check->host_status);
        return;
    }
    if (share_of(need, check->unit) > check->overflow_counter->share)
        check->overflow_counter->share = share_of(need, check->unit);
    if (any || check->probe != 0)
        report(check);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static void run_verify(coll_stream stream, void *argument)
{
    const struct gpu_verify *verify = argument;
    const struct strait_result *result = verify->results;
    (void)stream;
    for (uint32_t i = 0; i < verify->list.count; i++)
        for (uint32_t part = 0; part < parts_of(&verify->list) && i != verify->list.skip; part++, result++)
            if (verify->found[i] == 0 && result->status != STRAIT_OK)
                say_failed(verify->host_status, (uint32_t)result->status);
}

static void run_reduce(coll_stream stream, void *argument)
{
    (void)stream;
    demand(coll_reduce_scalar(argument) == STRAIT_OK);
}

/* ---- Exchange of what did not fit: the text of collective/engine/exchange.h, with blocks of one thread that alternate
 * - */

/* By the kernel that runs. */
static _Thread_local uint64_t bytes_taken;
static _Thread_local bool in_channels; /* it moves what NCCL would, not what overflows */

EXCHANGE_FN void exchange_put(uint8_t *slot, const uint8_t *values, uint64_t bytes)
{
    if (!in_channels)
        atomic_fetch_add(&fake_gpu.offered, 1);
    memcpy(slot, values, bytes);
}

EXCHANGE_FN void exchange_take(uint8_t *values, const uint8_t *slot, uint64_t bytes)
{
    atomic_fetch_add(in_channels ? &fake_gpu.channelled : &fake_gpu.taken, 1);
    bytes_taken += bytes;
    memcpy(values, slot, bytes);
}

#include "collective/engine/shm_step.h"

enum { PAUSE_US = 100 };

/* What one thread plays: a block of each end of a ring. */
struct playing {
    struct exchange_block block;
    uint64_t waited_ns;
    bool over;
};

struct running {
    struct gpu_exchange call;
    coll_stream stream;
};

/* Of one block. True: it is over. */
static bool step(const struct gpu_exchange *call, struct exchange_block *block, bool waits, uint64_t *waited_ns)
{
    enum exchange_state state = exchange_step(call, block);
    *waited_ns = state == EXCHANGE_MOVED ? 0 : *waited_ns;
    return state == EXCHANGE_DONE || (state == EXCHANGE_WAITS && !waits);
}

static void give_up(struct host_status *host_status)
{
    __atomic_store_n(&host_status->failed, (uint32_t)STRAIT_ERR_IO, __ATOMIC_RELEASE);
    __atomic_store_n(&host_status->abort, 1, __ATOMIC_RELEASE);
}

/* Does a step of each. False: one has waited for too long. */
static bool step_all(const struct gpu_exchange *call, struct playing *playing, uint32_t *left, bool waits)
{
    const uint64_t hurry = fake_gpu.hurry != 0 ? fake_gpu.hurry : 1;
    const uint32_t count = ring_ends_all(&call->rings);
    bool moved = false;
    for (uint32_t i = 0; i < count; i++) {
        struct playing *one = &playing[i];
        const uint64_t before = one->waited_ns;
        if (one->over)
            continue;
        one->over = step(call, &one->block, waits, &one->waited_ns);
        *left -= one->over;
        one->waited_ns += PAUSE_US * 1000 * hurry;
        moved |= one->over || one->waited_ns <= before;
        if (one->over || one->waited_ns < exchange_patience(call, &one->block))
            continue;
        if (exchange_fails(call))
            give_up(call->host_status);
        return false;
    }
    if (!moved)
        usleep(PAUSE_US);
    return true;
}

/* Branches of a fake graph run one after another: there the one beside cannot wait for what comes behind it. */
static void move_all(coll_stream stream, const struct running *running)
{
    const struct gpu_exchange call = running->call;
    const bool waits = call.kind == EXCHANGE_BEHIND || stream == running->stream;
    uint32_t left = ring_ends_all(&call.rings);
    const int device = fake_stream_device(stream);
    if (device < 32 && (fake_gpu.lost >> device & 1) != 0)
        return;
    struct playing *playing = calloc(left, sizeof(*playing));
    demand(playing != NULL);
    for (uint32_t i = 0; i < left; i++)
        playing[i].block = exchange_begin(&call, i);
    while (left > 0 && __atomic_load_n(&call.host_status->abort, __ATOMIC_ACQUIRE) == 0 &&
           step_all(&call, playing, &left, waits))
        ;
    free(playing);
}

static void run_exchange(coll_stream stream, void *argument)
{
    bytes_taken = 0;
    move_all(stream, argument);
    fake_pass_time(stream, (double)fake_gpu.ring_fs * 1e-15 * (double)bytes_taken);
}

/* ---- Channels: the text of collective/engine/shm_step.h, by one thread for all ends ------------------------------ */

static void step_ends(const struct gpu_shm *call, struct shm_end *ends, uint32_t *left, uint64_t *waited_ns)
{
    const uint32_t count = shm_ends(&call->channels);
    bool moved = false;
    *left = 0;
    for (uint32_t i = 0; i < count; i++) {
        const enum exchange_state state = shm_step(call, &ends[i]);
        *left += state != EXCHANGE_DONE;
        moved |= state == EXCHANGE_MOVED;
    }
    *waited_ns = moved ? 0 : *waited_ns + PAUSE_US * 1000;
    if (call->patience_ns != 0 && *waited_ns >= call->patience_ns)
        give_up(call->host_status);
    else if (!moved && *left > 0)
        usleep(PAUSE_US);
}

static void run_shm(coll_stream stream, void *argument)
{
    const struct gpu_shm *call = argument;
    uint32_t left = shm_ends(&call->channels);
    struct shm_end *ends = calloc(left, sizeof(*ends));
    demand(ends != NULL);
    uint64_t waited_ns = 0;
    in_channels = true;
    for (uint32_t i = 0; i < left; i++)
        ends[i] = shm_begin(call, i);
    while (left > 0 && __atomic_load_n(&call->host_status->abort, __ATOMIC_ACQUIRE) == 0)
        step_ends(call, ends, &left, &waited_ns);
    in_channels = false;
    free(ends);
    /* As links are measured: with a message from each of the others. */
    fake_pass_time(stream, (double)fake_gpu.shm_fs * 1e-15 * (double)call->bytes);
}

static bool has_shm(void)
{
    return fake_gpu.shm_fs > 0 && !is_among(fake_gpu.no_shm);
}

/* Arguments are copied. */
#define KERNEL(name, type)                                                 \
    static bool name(const struct type *argument, coll_stream stream)      \
    {                                                                      \
        if (!can_work(stream))                                             \
            return false;                                                  \
        fake_queue(stream, run_##name, NULL, argument, sizeof(*argument)); \
        return true;                                                       \
    }
KERNEL(write_headers, gpu_write_headers)
KERNEL(check, gpu_check)
KERNEL(verify, gpu_verify)
KERNEL(shm, gpu_shm)
#undef KERNEL

static bool reduce(const struct coll_reduce *argument, unsigned sm_budget, coll_stream stream)
{
    if (!can_work(stream))
        return false;
    fake_occupy(sm_budget);
    fake_queue(stream, run_reduce, NULL, argument, sizeof(*argument));
    return true;
}

static bool exchange(const struct gpu_exchange *argument, coll_stream stream)
{
    const struct running running = {*argument, stream};
    if (is_among(fake_gpu.holds))
        halt(&fake_gpu.holds);
    if (!can_work(stream) || is_among(fake_gpu.refuses))
        return false;
    fake_queue(stream, run_exchange, NULL, &running, sizeof(running));
    return true;
}

/* ---- The plugin -------------------------------------------------------------------------------------------------- */

static const struct gpu_ops ops = {.trouble = trouble,
                                   .host = host,
                                   .codec = codec,
                                   .multiprocessors = multiprocessors,
                                   .prepare = prepare,
                                   .enter = enter,
                                   .leave = leave,
                                   .allocate = allocate,
                                   .release = release,
                                   .allocate_pinned = allocate_pinned,
                                   .release_pinned = release,
                                   .register_host = register_host,
                                   .unregister_host = unregister_host,
                                   .stream_make = stream_make,
                                   .stream_end = stream_end,
                                   .stream_wait = stream_wait,
                                   .stream_capture = fake_capture,
                                   .event_make = event_make,
                                   .event_end = event_end,
                                   .event_record = event_record,
                                   .event_follow = event_follow,
                                   .event_record_outside = event_record_outside,
                                   .event_follow_outside = event_follow_outside,
                                   .event_over = fake_event_over,
                                   .event_seconds = fake_event_seconds,
                                   .zero = zero,
                                   .copy = copy,
                                   .copy_rows = copy_rows,
                                   .write_headers = write_headers,
                                   .check = check,
                                   .exchange = exchange,
                                   .has_shm = has_shm,
                                   .shm = shm,
                                   .verify = verify,
                                   .reduce = reduce};

__attribute__((visibility("default"))) coll_engine_get strait_coll_engine;
const struct coll_engine_ops *strait_coll_engine(char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    return engine_ops(&ops);
}
