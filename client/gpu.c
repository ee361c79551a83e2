#include "client/gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

static struct gpu gpu;
static bool complete;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const struct entry {
    const char *name;
    size_t offset;
} entries[] = {
    {"cuStreamGetCtx", offsetof(struct gpu, stream_context)},
    {"cuCtxPushCurrent_v2", offsetof(struct gpu, context_push)},
    {"cuCtxPopCurrent_v2", offsetof(struct gpu, context_pop)},
    {"cuStreamIsCapturing", offsetof(struct gpu, stream_is_capturing)},
    {"cuMemHostRegister_v2", offsetof(struct gpu, host_register)},
    {"cuMemHostGetDevicePointer_v2", offsetof(struct gpu, host_device_pointer)},
    {"cuStreamWaitValue32_v2", offsetof(struct gpu, stream_wait_value)},
};

static bool find_all(void *driver)
{
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *found = dlsym(driver, entries[i].name);
        if (found == NULL)
            return false;
        *(void **)((char *)&gpu + entries[i].offset) = found;
    }
    return true;
}

/* Looks again at every call until the driver is found, as the program may load it at any time. */
const struct gpu *gpu_driver(void)
{
    pthread_mutex_lock(&lock);
    if (!complete) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        complete = driver != NULL && find_all(driver);
    }
    bool found = complete;
    pthread_mutex_unlock(&lock);
    return found ? &gpu : NULL;
}
