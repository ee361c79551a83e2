/* Devices, contexts and memory. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakes/cuda.h"
#include "tests/fakes/device.h"

FAKE_VISIBLE struct fake_cuda_control fake_cuda_control;

/* ---- Devices and contexts ---------------------------------------------------------------------------------------- */

struct context {
    int device;
};

static struct context contexts[FAKE_DEVICES] = {{0}, {1}};
static bool started;
static _Thread_local struct context *stack[16];
static _Thread_local int depth;

int fake_current_device(void)
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

FAKE_VISIBLE int cuCtxGetDevice(int *device)
{
    if (depth == 0)
        return FAKE_INVALID_CONTEXT;
    *device = fake_current_device();
    return FAKE_OK;
}

FAKE_VISIBLE int cuStreamGetCtx(void *stream, void **context)
{
    int device = fake_stream_device(stream);
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

bool fake_is_reachable(const void *bytes, size_t size, int device)
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
    demand(fake_current_device() >= 0);
    return make(size, fake_current_device(), base);
}

FAKE_VISIBLE int cuMemFree_v2(void *base)
{
    fake_finish_device(find(base, 1).device);
    unmake(base);
    return FAKE_OK;
}

FAKE_VISIBLE int cuMemAllocAsync(void **base, size_t size, void *stream)
{
    return make(size, fake_stream_device(stream), base);
}

FAKE_VISIBLE int cuMemFreeAsync(void *base, void *stream)
{
    return fake_queue(stream, unmake, base);
}

FAKE_VISIBLE int cuMemHostAlloc(void **base, size_t size, unsigned flags)
{
    demand(fake_current_device() >= 0 && flags == 3); /* portable, mapped */
    return make(size, -1, base);
}

FAKE_VISIBLE int cuMemFreeHost(void *base)
{
    unmake(base);
    return FAKE_OK;
}

FAKE_VISIBLE int cuMemHostRegister_v2(void *base, size_t size, unsigned flags)
{
    demand(fake_current_device() >= 0 && flags == 3 && (uintptr_t)base % 4096 == 0 && size % 4096 == 0);
    if (find(base, 1).base != NULL)
        return FAKE_INVALID_VALUE;
    add((struct range){.base = base, .size = size, .device = -1, .fd = -1});
    return FAKE_OK;
}

FAKE_VISIBLE int cuMemHostUnregister(void *base)
{
    demand(take(base).fd == -1);
    return FAKE_OK;
}

FAKE_VISIBLE int cuMemHostGetDevicePointer_v2(void **device, void *host, unsigned flags)
{
    demand(flags == 0 && fake_current_device() >= 0);
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
    demand(fake_current_device() >= 0);
    if (range.base == NULL || range.device < 0)
        return FAKE_INVALID_VALUE;
    *base = range.base;
    *size = range.size;
    return FAKE_OK;
}

FAKE_VISIBLE int cuIpcGetMemHandle(struct fake_handle *handle, void *pointer)
{
    struct range range = find(pointer, 1);
    demand(fake_current_device() >= 0);
    if (range.base == NULL || range.device < 0 || range.mapped_only)
        return FAKE_INVALID_VALUE;
    *handle = (struct fake_handle){.pid = getpid(), .fd = range.fd, .device = range.device};
    return FAKE_OK;
}
