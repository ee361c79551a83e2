#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#include "collective/call.h"

const char *coll_operation_name(enum coll_operation operation)
{
    static const char *const names[] = {
#define X(name, text) text,
        COLL_OPERATION_MAP(X)
#undef X
    };
    return names[operation];
}

const char *coll_type_name(unsigned type)
{
    static const char *const names[] = {
#define X(name, value, bytes, text) text,
        COLL_TYPE_MAP(X)
#undef X
    };
    return names[type];
}

unsigned coll_type_row(coll_type type)
{
    return type >= 0 && type < COLL_UNKNOWN ? (unsigned)type : COLL_UNKNOWN;
}

uint64_t coll_call_bytes(const struct coll_call *call)
{
    static const uint8_t bytes[] = {
#define X(name, value, size, text) size,
        COLL_TYPE_MAP(X)
#undef X
    };
    return (uint64_t)call->count * bytes[coll_type_row(call->type)];
}

#define DRIVER   "libcuda.so.1"
#define FUNCTION "cuStreamIsCapturing"
#define ACTIVE   1 /* CU_STREAM_CAPTURE_STATUS_ACTIVE */

typedef int is_capturing(coll_stream stream, int *status);

static _Atomic(is_capturing *) driver;

/* RTLD_NOLOAD: a program without the driver does not get it from us. The handle is kept, so that it stays loaded. */
void coll_capture_prepare(void)
{
    is_capturing *function = NULL;
    if (atomic_load_explicit(&driver, memory_order_relaxed) != NULL)
        return;
    void *handle = dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return;
    *(void **)&function = dlsym(handle, FUNCTION);
    atomic_store_explicit(&driver, function, memory_order_relaxed);
}

bool coll_is_captured(coll_stream stream)
{
    is_capturing *ask = atomic_load_explicit(&driver, memory_order_relaxed);
    int status = 0;
    return ask != NULL && ask(stream, &status) == 0 && status == ACTIVE;
}
