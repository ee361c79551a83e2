#include "tests/fakes/cuda.h"

#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakes/device.h"
#include "tests/fakes/gpu.h"

FAKE_VISIBLE struct fake_cuda_control fake_cuda_control;

/* ---- Devices and contexts ---------------------------------------------------------------------------------------- */

struct context {
    int device;
};

static int device_of(void *handle); /* of a stream */

static struct context contexts[FAKE_DEVICES] = {{0}, {1}};
static bool started;
static _Thread_local struct context *stack[16];
static _Thread_local int depth;

int cuda_device(void)
{
    return depth > 0 ? stack[depth - 1]->device : -1;
}

FAKE_VISIBLE int cuInit(unsigned flags)
{
    demand(flags == 0);
    started = true;
    return FAKE_OK;
}

FAKE_VISIBLE int cuDeviceGetCount(int *count)
{
    demand(started);
    *count = FAKE_DEVICES;
    return FAKE_OK;
}

FAKE_VISIBLE int cuDeviceGet(int *device, int ordinal)
{
    demand(started);
    if (ordinal < 0 || ordinal >= (int)FAKE_DEVICES)
        return FAKE_INVALID_DEVICE;
    *device = ordinal;
    return FAKE_OK;
}

FAKE_VISIBLE int cuDevicePrimaryCtxRetain(void **context, int device)
{
    demand(started && device >= 0 && device < (int)FAKE_DEVICES);
    *context = &contexts[device];
    return FAKE_OK;
}

FAKE_VISIBLE int cuCtxPushCurrent_v2(void *context)
{
    demand(depth < 16 && context != NULL);
    stack[depth++] = context;
    return FAKE_OK;
}

FAKE_VISIBLE int cuCtxPopCurrent_v2(void **context)
{
    demand(depth > 0);
    *context = stack[--depth];
    return FAKE_OK;
}

FAKE_VISIBLE int cuCtxGetCurrent(void **context)
{
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return FAKE_OK;
}

FAKE_VISIBLE int cuStreamGetCtx(void *stream, void **context)
{
    int device = device_of(stream);
    if (device < 0)
        return FAKE_INVALID_CONTEXT;
    *context = &contexts[device];
    return FAKE_OK;
}

FAKE_VISIBLE int cuGetErrorString(int error, const char **text)
{
    *text = error == FAKE_OUT_OF_MEMORY   ? "out of memory"
            : error == FAKE_INVALID_VALUE ? "invalid argument"
            : error == FAKE_LAUNCH_FAILED ? "unspecified launch failure"
                                          : "fake error";
    return FAKE_OK;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

struct range {
    uint8_t *base;
    size_t size;
    int device; /* -1: pinned memory of the host */
    int fd;     /* -1: it was only registered */
    bool mapped_only;
    struct range *next;
};

static struct range *ranges;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void count_bytes(const struct range *range, int sign)
{
    _Atomic int32_t *bytes = range->device >= 0 ? &fake_cuda_control.device_bytes : &fake_cuda_control.pinned_bytes;
    *bytes += sign * (int32_t)range->size;
}

static void add(struct range range)
{
    struct range *made = malloc(sizeof(*made));
    demand(made != NULL);
    count_bytes(&range, 1);
    pthread_mutex_lock(&lock);
    *made = range;
    made->next = ranges;
    ranges = made;
    pthread_mutex_unlock(&lock);
}

/* A copy of the range that holds these bytes; base NULL: there is none. */
static struct range find(const void *bytes, size_t size)
{
    struct range found = {0};
    uintptr_t first = (uintptr_t)bytes;
    pthread_mutex_lock(&lock);
    for (const struct range *r = ranges; r != NULL && found.base == NULL; r = r->next)
        if (first >= (uintptr_t)r->base && first - (uintptr_t)r->base < r->size &&
            size <= r->size - (first - (uintptr_t)r->base))
            found = *r;
    pthread_mutex_unlock(&lock);
    return found;
}

static struct range take(void *base)
{
    pthread_mutex_lock(&lock);
    struct range **at = &ranges;
    while (*at != NULL && (*at)->base != base)
        at = &(*at)->next;
    demand(*at != NULL);
    struct range *range = *at, taken = *range;
    *at = range->next;
    pthread_mutex_unlock(&lock);
    free(range);
    count_bytes(&taken, -1);
    return taken;
}

bool cuda_is_reachable(const void *bytes, size_t size, int device)
{
    struct range range = find(bytes, size);
    return range.base != NULL && (range.device < 0 || device < 0 || range.device == device);
}

static int make(size_t size, int device, void **base)
{
    if (size == 0 || size > (size_t)1 << 32)
        return size == 0 ? FAKE_INVALID_VALUE : FAKE_OUT_OF_MEMORY;
    struct range range = {.size = (size + 4095) & ~(size_t)4095, .device = device};
    range.fd = memfd_create("fake-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    demand(range.fd >= 0 && ftruncate(range.fd, (off_t)range.size) == 0);
    range.base = mmap(NULL, range.size, PROT_READ | PROT_WRITE, MAP_SHARED, range.fd, 0);
    demand(range.base != MAP_FAILED);
    memset(range.base, 0xa5, range.size); /* nobody may take it for zeroed */
    range.mapped_only = fake_cuda_control.mapped_only != 0;
    add(range);
    *base = range.base;
    return FAKE_OK;
}

static void unmake(void *argument)
{
    struct range range = take(argument);
    munmap(range.base, range.size);
    close(range.fd);
}

FAKE_VISIBLE int cuMemAlloc_v2(void **base, size_t size)
{
    demand(cuda_device() >= 0);
    return make(size, cuda_device(), base);
}

FAKE_VISIBLE int cuMemFree_v2(void *base)
{
    fake_device_wait(find(base, 1).device);
    unmake(base);
    return FAKE_OK;
}

FAKE_VISIBLE int cuMemAllocAsync(void **base, size_t size, void *stream)
{
    return make(size, device_of(stream), base);
}

FAKE_VISIBLE int cuMemFreeAsync(void *base, void *stream)
{
    return cuda_queue(stream, unmake, base);
}

FAKE_VISIBLE int cuMemHostAlloc(void **base, size_t size, unsigned flags)
{
    demand(cuda_device() >= 0 && flags == 3); /* portable, mapped */
    return make(size, -1, base);
}

FAKE_VISIBLE int cuMemFreeHost(void *base)
{
    demand(cuda_device() >= 0 && find(base, 1).device < 0);
    unmake(base);
    return FAKE_OK;
}

FAKE_VISIBLE int cuMemHostRegister_v2(void *base, size_t size, unsigned flags)
{
    demand(cuda_device() >= 0 && flags == 3 && (uintptr_t)base % 4096 == 0 && size % 4096 == 0);
    if (find(base, 1).base != NULL)
        return FAKE_INVALID_VALUE;
    add((struct range){.base = base, .size = size, .device = -1, .fd = -1});
    return FAKE_OK;
}

FAKE_VISIBLE int cuMemHostGetDevicePointer_v2(void **device, void *host, unsigned flags)
{
    demand(flags == 0 && cuda_device() >= 0);
    struct range range = find(host, 1);
    if (range.base == NULL || range.device >= 0)
        return FAKE_INVALID_VALUE;
    *device = host;
    return FAKE_OK;
}

/* ---- What is known of it ----------------------------------------------------------------------------------------- */

enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, LEGACY_IPC_CAPABLE = 10 };

FAKE_VISIBLE int cuPointerGetAttribute(void *data, int attribute, void *pointer)
{
    struct range range = find(pointer, 1);
    int value = range.device;
    if (range.base == NULL || (attribute != MEMORY_TYPE && range.device < 0))
        return FAKE_INVALID_VALUE;
    if (attribute == MEMORY_TYPE)
        value = range.device >= 0 ? 2 : 1;
    else if (attribute == LEGACY_IPC_CAPABLE)
        value = !range.mapped_only;
    else
        demand(attribute == DEVICE_ORDINAL);
    memcpy(data, &value, sizeof(value));
    return FAKE_OK;
}

FAKE_VISIBLE int cuMemGetAddressRange_v2(void **base, size_t *size, void *pointer)
{
    struct range range = find(pointer, 1);
    demand(cuda_device() >= 0);
    if (range.base == NULL || range.device < 0)
        return FAKE_INVALID_VALUE;
    *base = range.base;
    *size = range.size;
    return FAKE_OK;
}

FAKE_VISIBLE int cuIpcGetMemHandle(struct fake_handle *handle, void *pointer)
{
    struct range range = find(pointer, 1);
    demand(cuda_device() >= 0);
    if (range.base == NULL || range.device < 0 || range.mapped_only)
        return FAKE_INVALID_VALUE;
    *handle = (struct fake_handle){.pid = getpid(), .fd = range.fd, .device = range.device};
    return FAKE_OK;
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static coll_stream make_stream(int device)
{
    const int before = fake_device();
    demand(device >= 0);
    fake_device_set(device);
    coll_stream stream = fake_stream_make();
    fake_device_set(before);
    return stream;
}

/* NULL, 1 and 2 name the default stream of the context that is current. */
coll_stream cuda_stream(void *handle)
{
    static coll_stream defaults[FAKE_DEVICES];
    const int device = cuda_device();
    if ((uintptr_t)handle > 2)
        return handle;
    if (device < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    if (defaults[device] == NULL)
        defaults[device] = make_stream(device);
    pthread_mutex_unlock(&lock);
    return defaults[device];
}

static int device_of(void *handle)
{
    coll_stream stream = cuda_stream(handle);
    return stream != NULL ? fake_stream_device(stream) : -1;
}

static int fails(void)
{
    uint32_t left = fake_cuda_control.fail;
    if (left == 0)
        return FAKE_OK;
    fake_cuda_control.fail = left - 1;
    return FAKE_LAUNCH_FAILED;
}

struct work {
    void (*run)(void *argument);
    void *argument;
};

static void run_late(coll_stream stream, void *argument)
{
    const struct work *work = argument;
    (void)stream;
    if (fake_cuda_control.delay_us != 0)
        usleep(fake_cuda_control.delay_us);
    work->run(work->argument);
}

int cuda_queue(void *handle, void (*run)(void *argument), void *argument)
{
    const struct work work = {run, argument};
    fake_queue(cuda_stream(handle), run_late, NULL, &work, sizeof(work));
    return FAKE_OK;
}

FAKE_VISIBLE int cuStreamCreate(void **handle, unsigned flags)
{
    demand(flags <= 1);
    *handle = make_stream(cuda_device());
    fake_cuda_control.streams++;
    return FAKE_OK;
}

static void *end_stream(void *stream)
{
    fake_stream_end(stream);
    return NULL;
}

/* Returns at once; the stream ends when all has run. */
FAKE_VISIBLE int cuStreamDestroy_v2(void *stream)
{
    pthread_t thread;
    demand(pthread_create(&thread, NULL, end_stream, stream) == 0 && pthread_detach(thread) == 0);
    fake_cuda_control.streams--;
    return FAKE_OK;
}

FAKE_VISIBLE int cuStreamSynchronize(void *handle)
{
    fake_stream_wait(cuda_stream(handle));
    fake_cuda_control.synchronised++;
    return FAKE_OK;
}

FAKE_VISIBLE int cuStreamQuery(void *handle)
{
    return fake_stream_idle(cuda_stream(handle)) ? FAKE_OK : FAKE_NOT_READY;
}

FAKE_VISIBLE int cuStreamIsCapturing(void *handle, int *status)
{
    demand(cuda_stream(handle) != NULL);
    *status = fake_cuda_control.capturing != 0;
    return FAKE_OK;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

struct copy {
    void *to;
    const void *from; /* NULL: fill */
    size_t size;
    uint8_t value;
};

static void do_copy(void *argument)
{
    struct copy *copy = argument;
    demand(cuda_is_reachable(copy->to, copy->size, -1));
    demand(copy->from == NULL || cuda_is_reachable(copy->from, copy->size, -1));
    if (copy->from != NULL)
        memcpy(copy->to, copy->from, copy->size);
    else
        memset(copy->to, copy->value, copy->size);
    free(copy);
}

static int queue_copy(struct copy copy, void *stream)
{
    struct copy *kept = malloc(sizeof(*kept));
    demand(kept != NULL && copy.size > 0);
    *kept = copy;
    return cuda_queue(stream, do_copy, kept);
}

FAKE_VISIBLE int cuMemcpyAsync(void *to, const void *from, size_t size, void *stream)
{
    int status = fails();
    return status == FAKE_OK ? queue_copy((struct copy){to, from, size, 0}, stream) : status;
}

FAKE_VISIBLE int cuMemsetD8Async(void *to, unsigned char value, size_t size, void *stream)
{
    int status = fails();
    return status == FAKE_OK ? queue_copy((struct copy){to, NULL, size, value}, stream) : status;
}

FAKE_VISIBLE int cuLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument)
{
    int status = fails();
    return status == FAKE_OK ? cuda_queue(stream, function, argument) : status;
}

/* CUDA_MEMCPY2D, from and to memory of kind unified. */
struct copy_2d {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    const uint8_t *src;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    uint8_t *dst;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
};

FAKE_VISIBLE int cuMemcpy2DAsync_v2(const struct copy_2d *copy, void *stream)
{
    int status = fails();
    demand(copy->src_type == 4 && copy->dst_type == 4 && copy->src_x == 0 && copy->dst_x == 0);
    demand(copy->src_y == 0 && copy->dst_y == 0 && copy->width <= copy->src_pitch && copy->width <= copy->dst_pitch);
    for (size_t row = 0; row < copy->height && status == FAKE_OK; row++)
        status = queue_copy(
            (struct copy){copy->dst + row * copy->dst_pitch, copy->src + row * copy->src_pitch, copy->width, 0},
            stream);
    return status;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* A daemon in this process takes a pointer to one for a pointer to its handle. */
struct event {
    struct fake_handle handle; /* first */
    bool interprocess;
    struct CUevent_st *event;
};

FAKE_VISIBLE int cuEventCreate(struct event **event, unsigned flags)
{
    demand(cuda_device() >= 0 && (flags & 2) != 0);
    struct event *made = calloc(1, sizeof(*made));
    demand(made != NULL);
    made->handle = (struct fake_handle){.pid = getpid(), .fd = eventfd(0, EFD_CLOEXEC)};
    made->interprocess = (flags & 4) != 0;
    made->event = fake_event_make();
    fake_cuda_control.events++;
    *event = made;
    return FAKE_OK;
}

FAKE_VISIBLE int cuEventDestroy_v2(struct event *event)
{
    fake_cuda_control.events--;
    fake_event_end(event->event);
    close(event->handle.fd);
    free(event);
    return FAKE_OK;
}

/* The event may be destroyed before the stream comes to it: the descriptor is a duplicate. */
static void ring(void *argument)
{
    const int fd = (int)(intptr_t)argument;
    demand(eventfd_write(fd, 1) == 0 && close(fd) == 0);
}

FAKE_VISIBLE int cuEventRecord(struct event *event, void *stream)
{
    const int fd = dup(event->handle.fd);
    demand(fd >= 0);
    fake_event_record(event->event, cuda_stream(stream));
    return cuda_queue(stream, ring, (void *)(intptr_t)fd);
}

FAKE_VISIBLE int cuStreamWaitEvent(void *stream, struct event *event, unsigned flags)
{
    demand(flags == 0);
    fake_event_follow(cuda_stream(stream), event->event);
    return FAKE_OK;
}

FAKE_VISIBLE int cuEventQuery(struct event *event)
{
    return fake_event_over(event->event) ? FAKE_OK : FAKE_NOT_READY;
}

FAKE_VISIBLE int cuEventSynchronize(struct event *event)
{
    fake_event_wait(event->event);
    fake_cuda_control.synchronised++;
    return FAKE_OK;
}

FAKE_VISIBLE int cuIpcGetEventHandle(struct fake_handle *handle, struct event *event)
{
    if (!event->interprocess)
        return FAKE_INVALID_VALUE;
    *handle = event->handle;
    return FAKE_OK;
}

/* ---- Waiting for a word ------------------------------------------------------------------------------------------ */

struct word {
    const uint32_t *at;
    uint32_t value;
};

static void await_word(void *argument)
{
    struct word *word = argument;
    demand(cuda_is_reachable(word->at, sizeof(*word->at), -1));
    while ((int32_t)(__atomic_load_n(word->at, __ATOMIC_ACQUIRE) - word->value) < 0)
        usleep(50);
    free(word);
}

FAKE_VISIBLE int cuStreamWaitValue32_v2(void *stream, const uint32_t *at, uint32_t value, unsigned flags)
{
    demand(flags == 0 && (uintptr_t)at % 4 == 0); /* GEQ */
    int status = fails();
    if (status != FAKE_OK)
        return status;
    struct word *word = malloc(sizeof(*word));
    demand(word != NULL);
    *word = (struct word){at, value};
    fake_cuda_control.waits++;
    return cuda_queue(stream, await_word, word);
}

/* ---- The codec's place here -------------------------------------------------------------------------------------- */

static bool launch_fails(void)
{
    bool refused = fails() != FAKE_OK;
    fake_cuda_control.launches += !refused;
    return refused;
}

static void begin_launch(void)
{
    usleep(fake_cuda_control.delay_us);
}

FAKE_VISIBLE const struct codec_host fake_codec_host = {cuda_stream, cuda_device, launch_fails, cuda_is_reachable,
                                                        begin_launch};
