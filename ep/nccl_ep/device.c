#include "ep/nccl_ep/device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- Functions of other libraries -------------------------------------------------------------------------------- */

struct entry {
    const char *name;
    size_t offset;
    bool optional;
};

static bool find_all(void *library, const struct entry *entries, size_t count, void *table)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, entries[i].name);
        if (found == NULL && !entries[i].optional)
            return false;
        memcpy((char *)table + entries[i].offset, &found, sizeof(found));
    }
    return true;
}
#define FIND(library, entries, table) find_all(library, entries, sizeof(entries) / sizeof((entries)[0]), table)

/* ---- NCCL -------------------------------------------------------------------------------------------------------- */

#define NCCL "libnccl.so.2"

static struct nep_nccl nccl;
static bool nccl_found;
static pthread_once_t nccl_once = PTHREAD_ONCE_INIT;

/* As if it had been linked; then the one that a framework has loaded for itself. */
static void find_nccl(void)
{
    static const struct entry entries[] = {
        {"ncclAllGather", offsetof(struct nep_nccl, AllGather), false},
        {"ncclCommCount", offsetof(struct nep_nccl, CommCount), false},
        {"ncclCommUserRank", offsetof(struct nep_nccl, CommUserRank), false},
        {"ncclCommCuDevice", offsetof(struct nep_nccl, CommCuDevice), false},
        {"ncclWinGetUserPtr", offsetof(struct nep_nccl, WinGetUserPtr), true},
        {"ncclGetPeerDevicePointer", offsetof(struct nep_nccl, GetPeerDevicePointer), true},
    };
    nccl_found = FIND(RTLD_DEFAULT, entries, &nccl);
    for (int loaded = 1; loaded >= 0 && !nccl_found; loaded--) {
        void *library = dlopen(NCCL, RTLD_LAZY | RTLD_LOCAL | (loaded != 0 ? RTLD_NOLOAD : 0));
        nccl_found = library != NULL && FIND(library, entries, &nccl);
    }
}

const struct nep_nccl *nep_nccl(void)
{
    pthread_once(&nccl_once, find_nccl);
    return nccl_found ? &nccl : NULL;
}

/* ---- The driver -------------------------------------------------------------------------------------------------- */

/* CUDA_MEMCPY2D of the driver; memory of any kind is UNIFIED. */
struct copy_2d {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    uintptr_t src;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    uintptr_t dst;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
};
#define UNIFIED 4

static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*primary_retain)(void **context, int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*alloc)(uintptr_t *memory, size_t bytes);
    int (*free)(uintptr_t memory);
    int (*alloc_host)(void **memory, size_t bytes, unsigned flags);
    int (*free_host)(void *memory);
    int (*run)(nep_stream stream, void (*function)(void *argument), void *argument);
    int (*fill)(uintptr_t to, unsigned char value, size_t bytes, nep_stream stream);
    int (*copy)(uintptr_t to, uintptr_t from, size_t bytes, nep_stream stream);
    int (*copy_2d)(const struct copy_2d *copy, nep_stream stream);
    int (*stream_create)(nep_stream *stream, unsigned flags);
    int (*stream_destroy)(nep_stream stream);
    int (*synchronize)(nep_stream stream);
} cuda;

static bool cuda_starts;
static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;

static void find_cuda(void)
{
#define ROW(name, field)                               \
    {                                                  \
        name, offsetof(__typeof__(cuda), field), false \
    }
    static const struct entry entries[] = {
        ROW("cuInit", init),
        ROW("cuDeviceGet", device_get),
        ROW("cuDevicePrimaryCtxRetain", primary_retain),
        ROW("cuCtxPushCurrent_v2", push),
        ROW("cuCtxPopCurrent_v2", pop),
        ROW("cuMemAlloc_v2", alloc),
        ROW("cuMemFree_v2", free),
        ROW("cuMemHostAlloc", alloc_host),
        ROW("cuMemFreeHost", free_host),
        ROW("cuLaunchHostFunc", run),
        ROW("cuMemsetD8Async", fill),
        ROW("cuMemcpyAsync", copy),
        ROW("cuMemcpy2DAsync_v2", copy_2d),
        ROW("cuStreamCreate", stream_create),
        ROW("cuStreamDestroy_v2", stream_destroy),
        ROW("cuStreamSynchronize", synchronize),
    };
#undef ROW
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    cuda_starts = library != NULL && FIND(library, entries, &cuda) && cuda.init(0) == 0;
}

/* ---- Memory of a GPU --------------------------------------------------------------------------------------------- */

enum { DEVICES_MAX = 64 };

/* A primary context that is retained once stays so until the process ends, as the program's own use of it does. */
static void *context_of(int device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void *contexts[DEVICES_MAX];
    int handle;
    pthread_mutex_lock(&lock);
    if (contexts[device] == NULL &&
        (cuda.device_get(&handle, device) != 0 || cuda.primary_retain(&contexts[device], handle) != 0))
        contexts[device] = NULL;
    void *context = contexts[device];
    pthread_mutex_unlock(&lock);
    return context;
}

static bool cuda_enter(int device)
{
    void *context = context_of(device);
    return context != NULL && cuda.push(context) == 0;
}

static void cuda_leave(void)
{
    void *context;
    cuda.pop(&context);
}

static void *cuda_alloc(size_t bytes)
{
    uintptr_t memory = 0;
    return cuda.alloc(&memory, bytes) == 0 ? (void *)memory : NULL;
}

static void cuda_free(void *memory)
{
    if (memory != NULL)
        cuda.free((uintptr_t)memory);
}

static bool cuda_fill(void *to, uint8_t value, size_t bytes, nep_stream stream)
{
    return bytes == 0 || cuda.fill((uintptr_t)to, value, bytes, stream) == 0;
}

static void *cuda_alloc_pinned(size_t bytes)
{
    void *memory = NULL;
    return cuda.alloc_host(&memory, bytes, 3 /* portable, mapped */) == 0 ? memory : NULL;
}

static void cuda_free_pinned(void *memory)
{
    if (memory != NULL)
        cuda.free_host(memory);
}

static bool cuda_run(nep_stream stream, void (*function)(void *argument), void *argument)
{
    return cuda.run(stream, function, argument) == 0;
}

static bool cuda_copy(void *to, const void *from, size_t bytes, nep_stream stream)
{
    return bytes == 0 || cuda.copy((uintptr_t)to, (uintptr_t)from, bytes, stream) == 0;
}

static bool cuda_wait(nep_stream stream)
{
    return cuda.synchronize(stream) == 0;
}

/* Zeroes, and the low halves at every second place. */
static bool cuda_widen(int64_t *to, const int32_t *from, size_t count, nep_stream stream)
{
    const struct copy_2d copy = {
        .src_type = UNIFIED,
        .src = (uintptr_t)from,
        .src_pitch = sizeof(*from),
        .dst_type = UNIFIED,
        .dst = (uintptr_t)to,
        .dst_pitch = sizeof(*to),
        .width = sizeof(*from),
        .height = count,
    };
    return cuda_fill(to, 0, count * sizeof(*to), stream) && cuda.copy_2d(&copy, stream) == 0;
}

static nep_stream cuda_stream(void)
{
    nep_stream stream = NULL;
    return cuda.stream_create(&stream, 1 /* beside the default one */) == 0 ? stream : NULL;
}

static void cuda_stream_end(nep_stream stream)
{
    cuda.stream_destroy(stream);
}

static const struct nep_memory cuda_memory = {
    .enter = cuda_enter,
    .leave = cuda_leave,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .fill = cuda_fill,
    .alloc_pinned = cuda_alloc_pinned,
    .free_pinned = cuda_free_pinned,
    .copy = cuda_copy,
    .wait = cuda_wait,
    .run = cuda_run,
    .widen = cuda_widen,
    .stream = cuda_stream,
    .stream_end = cuda_stream_end,
};

/* ---- Memory of the host ------------------------------------------------------------------------------------------ */

static bool host_enter(int device)
{
    (void)device;
    return true;
}

static void host_leave(void)
{
}

static bool host_fill(void *to, uint8_t value, size_t bytes, nep_stream stream)
{
    (void)stream;
    memset(to, value, bytes);
    return true;
}

static bool host_copy(void *to, const void *from, size_t bytes, nep_stream stream)
{
    (void)stream;
    memcpy(to, from, bytes);
    return true;
}

static bool host_wait(nep_stream stream)
{
    (void)stream;
    return true;
}

static bool host_run(nep_stream stream, void (*function)(void *argument), void *argument)
{
    (void)stream;
    function(argument);
    return true;
}

static bool host_widen(int64_t *to, const int32_t *from, size_t count, nep_stream stream)
{
    (void)stream;
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
    return true;
}

static nep_stream host_stream(void)
{
    return NULL;
}

static void host_stream_end(nep_stream stream)
{
    (void)stream;
}

static const struct nep_memory host_memory = {
    .enter = host_enter,
    .leave = host_leave,
    .alloc = malloc,
    .free = free,
    .fill = host_fill,
    .alloc_pinned = malloc,
    .free_pinned = free,
    .copy = host_copy,
    .wait = host_wait,
    .run = host_run,
    .widen = host_widen,
    .stream = host_stream,
    .stream_end = host_stream_end,
};

/* ---- Which ------------------------------------------------------------------------------------------------------- */

const struct nep_memory *nep_memory(int device)
{
    if (device < 0 || device >= DEVICES_MAX)
        return &host_memory;
    pthread_once(&cuda_once, find_cuda);
    return cuda_starts && context_of(device) != NULL ? &cuda_memory : &host_memory;
}

bool nep_memory_is_cuda(const struct nep_memory *memory)
{
    return memory == &cuda_memory;
}
