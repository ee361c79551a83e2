/* Memory of GPUs, where UCX supports it. UCX wants the thread that calls it to have a CUDA context; older versions know
 * the GPU only from that. CUDA's driver is in the process by then, because it has allocated the arena; so its functions
 * are looked up, not linked. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "transport/ucx.h"
#include "transport/ucx_internal.h"

#define POINTER_CONTEXT 1 /* CU_POINTER_ATTRIBUTE_CONTEXT */

static struct driver {
    int (*attribute)(void *dst, int attribute, uintptr_t pointer); /* cuPointerGetAttribute */
    int (*enter)(void *context);                                   /* cuCtxSetCurrent */
} driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static bool stands_in;
static atomic_bool is_missing;

static void find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return;
    *(void **)&driver.attribute = dlsym(library, "cuPointerGetAttribute");
    *(void **)&driver.enter = dlsym(library, "cuCtxSetCurrent");
}

void *ucx_cuda_context(const struct transport_arena *arena)
{
    void *context = NULL;
    if (arena->memory != TRANSPORT_CUDA || stands_in)
        return NULL;
    pthread_once(&driver_once, find_driver);
    if (driver.attribute == NULL || driver.enter == NULL ||
        driver.attribute(&context, POINTER_CONTEXT, (uintptr_t)arena->base) != 0)
        return NULL;
    return context;
}

void ucx_cuda_enter(void *context)
{
    if (context != NULL)
        (void)driver.enter(context);
}

ucs_memory_type_t ucx_memory_type(const struct transport_arena *arena)
{
    return arena->memory == TRANSPORT_CUDA && !stands_in ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

bool ucx_cuda_is_there(ucp_context_h context)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    bool is_there = ucp_context_query(context, &attr) == UCS_OK && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA));
    atomic_store(&is_missing, !is_there);
    return is_there;
}

void ucx_missing(char *dst, size_t size)
{
    if (atomic_load(&is_missing))
        snprintf(dst, size,
                 "UCX %s does not know CUDA's memory: built without it, or its modules for CUDA are not found, or tls= "
                 "leaves cuda out",
                 ucp_get_version_string());
}

void ucx_stand_in(void)
{
    stands_in = true;
}
