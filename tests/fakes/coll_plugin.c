/* collective/engine/gpu.h by the fake GPUs, as the plugin that libstrait-coll loads. */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "collective/engine.h"
#include "collective/engine/gpu.h"
#include "kernels/codec.h"
#include "tests/fakes/codec.h"
#include "tests/fakes/coll_kernels.h"
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

static void halt(void)
{
    fake_gpu.halted++;
    while ((fake_gpu.halt >> fake_device() & 1) != 0)
        usleep(200);
    fake_gpu.halted--;
}

/* What CUDA demands of all that is put on a stream. */
static bool can_work(coll_stream stream)
{
    demand(stream != NULL && fake_stream_device(stream) == fake_device());
    if ((fake_gpu.halt >> fake_device() & 1) != 0)
        halt();
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
    return (fake_gpu.no_codec >> fake_device() & 1) == 0 ? &codec : NULL;
}

static const char *trouble(void)
{
    return (fake_gpu.troubled >> fake_device() & 1) != 0 ? "this GPU is not to be counted on" : NULL;
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
};

static struct block *blocks;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_ours(const void *memory)
{
    bool found = false;
    pthread_mutex_lock(&blocks_lock);
    for (struct block *block = blocks; block != NULL; block = block->next)
        found |= (const uint8_t *)memory >= (uint8_t *)(block + 1) &&
                 (const uint8_t *)memory < (uint8_t *)(block + 1) + block->size;
    pthread_mutex_unlock(&blocks_lock);
    return found;
}

static void *allocate_any(size_t size, bool zero)
{
    void *memory = NULL;
    if (!can_make())
        return NULL;
    demand(posix_memalign(&memory, 256, sizeof(struct block) + size) == 0);
    struct block *block = memory;
    block->size = size;
    pthread_mutex_lock(&blocks_lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&blocks_lock);
    return memset(block + 1, zero ? 0 : 0xa5, size);
}

/* CUDA waits for all of the device. */
static void release(void *memory)
{
    if (memory == NULL)
        return;
    fake_device_wait(fake_device());
    pthread_mutex_lock(&blocks_lock);
    struct block **at = &blocks, *block = (struct block *)memory - 1;
    while (*at != NULL && *at != block)
        at = &(*at)->next;
    demand(*at != NULL);
    *at = block->next;
    pthread_mutex_unlock(&blocks_lock);
    unmade();
    free(block);
}

static void *allocate(size_t size, bool zero)
{
    return (fake_gpu.full >> fake_device() & 1) == 0 ? allocate_any(size, zero) : NULL;
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

#define KERNEL(name, type)                                            \
    static bool name(const struct type *argument, coll_stream stream) \
    {                                                                 \
        if (!can_work(stream))                                        \
            return false;                                             \
        kernel_##name(argument, stream);                              \
        return true;                                                  \
    }
KERNEL(write_headers, gpu_write_headers)
KERNEL(check, gpu_check)
KERNEL(exchange, gpu_exchange)
KERNEL(verify, gpu_verify)
KERNEL(reduce, coll_reduce)
#undef KERNEL

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
                                   .verify = verify,
                                   .reduce = reduce};

__attribute__((visibility("default"))) coll_engine_get strait_coll_engine;
const struct coll_engine_ops *strait_coll_engine(char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    return engine_ops(&ops);
}
