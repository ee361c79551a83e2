#include "collective/capture.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#define DRIVER   "libcuda.so.1"
#define FUNCTION "cuStreamIsCapturing"
#define ACTIVE   1 /* CU_STREAM_CAPTURE_STATUS_ACTIVE */

typedef int is_capturing(coll_stream stream, int *status);

/* Only a driver that is there already: without one, nothing is captured. */
static is_capturing *driver(void)
{
    static _Atomic(is_capturing *) found;
    is_capturing *function = atomic_load_explicit(&found, memory_order_relaxed);
    if (function != NULL)
        return function;
    void *handle = dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    *(void **)&function = dlsym(handle, FUNCTION);
    atomic_store_explicit(&found, function, memory_order_relaxed); /* the handle is kept: it cannot go away */
    return function;
}

bool coll_is_captured(coll_stream stream)
{
    is_capturing *ask = driver();
    int status = 0;
    return ask != NULL && ask(stream, &status) == 0 && status == ACTIVE;
}
