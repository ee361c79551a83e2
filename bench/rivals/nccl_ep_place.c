/* Memory, streams, events and graphs of a rank: by the CUDA driver, which is loaded here, or the host's. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench/rivals/nccl_ep.h"
#include "tools/util.h"

/* ---- The host ---------------------------------------------------------------------------------------------------- */

static bool host_open(unsigned gpu)
{
    (void)gpu;
    return true;
}

static void *host_alloc(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (memory == NULL)
        print_error(NULL, "out of memory");
    return memory;
}

static bool host_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return true;
}

static bool host_fill(void *to, size_t bytes)
{
    memset(to, 0xff, bytes);
    return true;
}

static nep_stream host_stream(void)
{
    return NULL;
}

static bool host_finish(nep_stream stream)
{
    (void)stream;
    return true;
}

/* Of the host: a time. */
struct nepb_event {
    void *handle;
    uint64_t ns;
};

static struct nepb_event *event_make(void)
{
    struct nepb_event *event = calloc(1, sizeof(*event));
    if (event == NULL)
        print_error(NULL, "out of memory");
    return event;
}

static bool host_record(struct nepb_event *event, nep_stream stream, bool captured)
{
    (void)stream;
    (void)captured;
    event->ns = clock_ns();
    return true;
}

static bool host_elapsed(const struct nepb_event *from, const struct nepb_event *to, double *us)
{
    *us = (double)(to->ns - from->ns) / 1000;
    return true;
}

const struct nepb_place nepb_host = {
    .open = host_open,
    .alloc = host_alloc,
    .free = free,
    .write = host_copy,
    .read = host_copy,
    .fill = host_fill,
    .stream = host_stream,
    .finish = host_finish,
    .event = event_make,
    .record = host_record,
    .elapsed = host_elapsed,
};

/* ---- The driver -------------------------------------------------------------------------------------------------- */

static struct {
    int (*Init)(unsigned flags);
    int (*DeviceGetCount)(int *count);
    int (*DeviceGet)(int *device, int ordinal);
    int (*DevicePrimaryCtxRetain)(void **context, int device);
    int (*CtxSetCurrent)(void *context);
    int (*MemAlloc)(uintptr_t *memory, size_t bytes);
    int (*MemFree)(uintptr_t memory);
    int (*Memcpy)(uintptr_t to, uintptr_t from, size_t bytes);
    int (*MemsetD8)(uintptr_t to, unsigned char value, size_t bytes);
    int (*StreamCreate)(nep_stream *stream, unsigned flags);
    int (*StreamSynchronize)(nep_stream stream);
    int (*CtxSynchronize)(void);
    int (*EventCreate)(void **event, unsigned flags);
    int (*EventRecordWithFlags)(void *event, nep_stream stream, unsigned flags);
    int (*EventElapsedTime)(float *ms, void *from, void *to);
    int (*StreamBeginCapture)(nep_stream stream, int mode);
    int (*StreamEndCapture)(nep_stream stream, void **graph);
    int (*GraphInstantiateWithFlags)(void **made, void *graph, unsigned long long flags);
    int (*GraphDestroy)(void *graph);
    int (*GraphLaunch)(void *graph, nep_stream stream);
    int (*GraphExecDestroy)(void *graph);
    int (*GetErrorName)(int error, const char **name);
} cuda;

static const struct {
    const char *name;
    void **function;
} functions[] = {
    {"cuInit", (void **)&cuda.Init},
    {"cuDeviceGetCount", (void **)&cuda.DeviceGetCount},
    {"cuDeviceGet", (void **)&cuda.DeviceGet},
    {"cuDevicePrimaryCtxRetain", (void **)&cuda.DevicePrimaryCtxRetain},
    {"cuCtxSetCurrent", (void **)&cuda.CtxSetCurrent},
    {"cuMemAlloc_v2", (void **)&cuda.MemAlloc},
    {"cuMemFree_v2", (void **)&cuda.MemFree},
    {"cuMemcpy", (void **)&cuda.Memcpy},
    {"cuMemsetD8_v2", (void **)&cuda.MemsetD8},
    {"cuStreamCreate", (void **)&cuda.StreamCreate},
    {"cuStreamSynchronize", (void **)&cuda.StreamSynchronize},
    {"cuCtxSynchronize", (void **)&cuda.CtxSynchronize},
    {"cuEventCreate", (void **)&cuda.EventCreate},
    {"cuEventRecordWithFlags", (void **)&cuda.EventRecordWithFlags},
    {"cuEventElapsedTime", (void **)&cuda.EventElapsedTime},
    {"cuStreamBeginCapture_v2", (void **)&cuda.StreamBeginCapture},
    {"cuStreamEndCapture", (void **)&cuda.StreamEndCapture},
    {"cuGraphInstantiateWithFlags", (void **)&cuda.GraphInstantiateWithFlags},
    {"cuGraphDestroy", (void **)&cuda.GraphDestroy},
    {"cuGraphLaunch", (void **)&cuda.GraphLaunch},
    {"cuGraphExecDestroy", (void **)&cuda.GraphExecDestroy},
    {"cuGetErrorName", (void **)&cuda.GetErrorName},
};

static bool driver_found;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static void find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

    if (library == NULL) {
        print_error(NULL, "%s", dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
        if ((*functions[i].function = dlsym(library, functions[i].name)) == NULL) {
            print_error(NULL, "libcuda.so.1 has no %s", functions[i].name);
            return;
        }
    driver_found = true;
}

static bool good(int error, const char *function)
{
    const char *name = NULL;

    if (error == 0)
        return true;
    cuda.GetErrorName(error, &name);
    print_error(NULL, "cu%s: %s (%d)", function, name != NULL ? name : "an unknown error", error);
    return false;
}
#define CALL(function, ...) good(cuda.function(__VA_ARGS__), #function)

static bool device_open(unsigned gpu)
{
    int count = 0, device;
    void *context;

    pthread_once(&driver_once, find_driver);
    if (!driver_found || !CALL(Init, 0) || !CALL(DeviceGetCount, &count))
        return false;
    if (count == 0) {
        print_error(NULL, "there is no GPU");
        return false;
    }
    return CALL(DeviceGet, &device, (int)gpu % count) && CALL(DevicePrimaryCtxRetain, &context, device) &&
           CALL(CtxSetCurrent, context);
}

static void *device_alloc(size_t bytes)
{
    uintptr_t memory = 0;
    return CALL(MemAlloc, &memory, bytes) ? (void *)memory : NULL;
}

static void device_free(void *memory)
{
    CALL(MemFree, (uintptr_t)memory);
}

static bool device_write(void *to, const void *from, size_t bytes)
{
    return CALL(Memcpy, (uintptr_t)to, (uintptr_t)from, bytes) && CALL(CtxSynchronize);
}

static bool device_read(void *to, const void *from, size_t bytes)
{
    return CALL(Memcpy, (uintptr_t)to, (uintptr_t)from, bytes);
}

static bool device_fill(void *to, size_t bytes)
{
    return CALL(MemsetD8, (uintptr_t)to, 0xff, bytes) && CALL(CtxSynchronize);
}

static nep_stream device_stream(void)
{
    nep_stream stream = NULL;
    CALL(StreamCreate, &stream, 1 /* beside the default one */);
    return stream;
}

static bool device_finish(nep_stream stream)
{
    return CALL(StreamSynchronize, stream);
}

static struct nepb_event *device_event(void)
{
    struct nepb_event *event = event_make();
    return event != NULL && CALL(EventCreate, &event->handle, 0) ? event : NULL;
}

static bool device_record(struct nepb_event *event, nep_stream stream, bool captured)
{
    return CALL(EventRecordWithFlags, event->handle, stream, captured ? 1 /* outside of the graph, too */ : 0);
}

static bool device_elapsed(const struct nepb_event *from, const struct nepb_event *to, double *us)
{
    float ms = 0;
    const bool known = CALL(EventElapsedTime, &ms, from->handle, to->handle);
    *us = (double)ms * 1000;
    return known;
}

static bool device_capture(nep_stream stream)
{
    return CALL(StreamBeginCapture, stream, 2 /* calls of other threads, and of libraries, stay allowed */);
}

static struct nepb_graph *device_captured(nep_stream stream)
{
    void *graph = NULL, *made = NULL;

    const bool made_good = CALL(StreamEndCapture, stream, &graph) && CALL(GraphInstantiateWithFlags, &made, graph, 0);
    if (graph != NULL)
        CALL(GraphDestroy, graph);
    return made_good ? made : NULL;
}

static bool device_launch(struct nepb_graph *graph, nep_stream stream)
{
    return CALL(GraphLaunch, graph, stream);
}

static bool device_drop(struct nepb_graph *graph)
{
    return CALL(GraphExecDestroy, graph);
}

const struct nepb_place nepb_device = {
    .open = device_open,
    .alloc = device_alloc,
    .free = device_free,
    .write = device_write,
    .read = device_read,
    .fill = device_fill,
    .stream = device_stream,
    .finish = device_finish,
    .event = device_event,
    .record = device_record,
    .elapsed = device_elapsed,
    .capture = device_capture,
    .captured = device_captured,
    .launch = device_launch,
    .drop = device_drop,
};
