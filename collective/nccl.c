#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strait/collective.h>

#include "collective/engine.h"
#include "collective/nccl.h"

#define LIBRARY "libnccl.so.2"
#define ANCHOR  "ncclGetUniqueId" /* every NCCL has it */
#define OURS    "strait_coll_version"

/* Recursive, because a library being loaded might call NCCL as it starts. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct coll_library library;
static _Atomic(const struct coll_library *) ready;
static bool loading;

void coll_library_lock(void)
{
    pthread_mutex_lock(&lock);
}

void coll_library_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* A recursive lock belongs to a thread, and the child's thread is another one. */
void coll_library_unlock_in_child(void)
{
    lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

/* ---- What a library is ------------------------------------------------------------------------------------------- */

static const char *file_of(const void *symbol)
{
    Dl_info info;
    return symbol != NULL && dladdr(symbol, &info) != 0 ? info.dli_fname : NULL;
}

static void *base_of(const void *symbol)
{
    Dl_info info;
    return symbol != NULL && dladdr(symbol, &info) != 0 ? info.dli_fbase : NULL;
}

/* Whether a library is this one or a copy of it: it has the anchor and our own function. */
static bool is_ours(void *handle)
{
    const void *anchor = dlsym(handle, ANCHOR), *ours = dlsym(handle, OURS);
    return anchor != NULL && base_of(anchor) == base_of(ours);
}

/* ---- Finding NCCL ------------------------------------------------------------------------------------------------ */

static void *open_named(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        coll_log("STRAIT_COLL_NCCL: %s", dlerror());
    else if (is_ours(handle))
        coll_log("STRAIT_COLL_NCCL=%s is this library, not NCCL", path);
    else if (dlsym(handle, ANCHOR) == NULL)
        coll_log("STRAIT_COLL_NCCL=%s is not NCCL: it has no " ANCHOR, path);
    else
        return handle;
    return NULL;
}

static void *open_found(void)
{
    static const char hint[] = "STRAIT_COLL_NCCL names NCCL's by its path";
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        coll_log("no NCCL: %s. %s", dlerror(), hint);
    else if (is_ours(handle))
        coll_log("no NCCL: " LIBRARY " is this library itself. %s", hint);
    else if (dlsym(handle, ANCHOR) == NULL)
        coll_log("no NCCL: " LIBRARY " has no " ANCHOR ". %s", hint);
    else
        return handle;
    return NULL;
}

/* Two copies would count all calls twice, so only the one nearer to NCCL intercepts them. */
static void forward_to_copy(struct coll_library *found)
{
    if (!is_ours(RTLD_NEXT))
        return;
    found->forward = true;
    coll_log("loaded twice: calls go on to %s", file_of(dlsym(RTLD_NEXT, ANCHOR)));
}

static void *find(struct coll_library *found)
{
    if (found->settings.library != NULL)
        return open_named(found->settings.library);
    if (dlsym(RTLD_NEXT, ANCHOR) == NULL)
        return open_found();
    forward_to_copy(found);
    return RTLD_NEXT;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static void fill(struct coll_library *found, void *handle)
{
#define X(returns, name, parameters, arguments, way, ...)      \
    *(void **)&found->nccl.name = dlsym(handle, "nccl" #name); \
    *(void **)&found->pnccl.name = dlsym(handle, "pnccl" #name);
    COLL_API(X)
#undef X
    const char *file = file_of(dlsym(handle, ANCHOR));
    snprintf(found->path, sizeof(found->path), "%s", file != NULL ? file : LIBRARY);
    if (found->nccl.GetVersion == NULL || found->nccl.GetVersion(&found->version) != COLL_SUCCESS)
        found->version = 0;
}

static void load(void)
{
    library.settings = coll_settings_read();
    void *handle = find(&library);
    library.found = handle != NULL;
    if (library.found)
        fill(&library, handle);
}

const struct coll_library *coll_library(void)
{
    const struct coll_library *found = coll_library_if_loaded();
    if (found != NULL)
        return found;
    coll_library_lock();
    /* A library that calls NCCL while it is being loaded finds the table as filled so far. */
    if (!loading && coll_library_if_loaded() == NULL) {
        loading = true;
        load();
        loading = false;
        atomic_store_explicit(&ready, &library, memory_order_release);
    }
    coll_library_unlock();
    return &library;
}

const struct coll_library *coll_library_if_loaded(void)
{
    return atomic_load_explicit(&ready, memory_order_acquire);
}

/* ---- Functions that are not there -------------------------------------------------------------------------------- */

/* Names of all functions; each has a flag at its index. */
static const char *const names[] = {
#define X(returns, name, parameters, arguments, way, ...) "nccl" #name, "pnccl" #name,
    COLL_API(X)
#undef X
};

static bool was_reported(const char *name)
{
    static atomic_bool reported[sizeof(names) / sizeof(names[0])];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0)
            return atomic_exchange(&reported[i], true);
    return false;
}

coll_result coll_report_missing(const char *name)
{
    const struct coll_library *found = coll_library();
    if (!found->found)
        return COLL_SYSTEM_ERROR; /* reported when NCCL was not found */
    if (!was_reported(name))
        coll_log("%s is not in %s, NCCL %d", name, found->path, found->version);
    return COLL_INVALID_USAGE;
}

/* ---- Names and sizes --------------------------------------------------------------------------------------------- */

const char *coll_operation_name(enum coll_operation operation)
{
    static const char *const texts[] = {
#define X(name, text) text,
        COLL_OPERATION_MAP(X)
#undef X
    };
    return texts[operation];
}

const char *coll_type_name(unsigned type)
{
    static const char *const texts[] = {
#define X(name, value, bytes, text) text,
        COLL_TYPE_MAP(X)
#undef X
    };
    return texts[type];
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

/* ---- Graph capture ----------------------------------------------------------------------------------------------- */

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

/* ---- The engine -------------------------------------------------------------------------------------------------- */

static pthread_once_t engine_once = PTHREAD_ONCE_INIT;
static const struct coll_engine_ops *engine;
static char engine_why[256];

/* Opens the plugin next to this library's file, whatever symbolic links lead to it. */
static void *open_beside(void)
{
    Dl_info info;
    char own[PATH_MAX], path[PATH_MAX];
    if (dladdr((const void *)(uintptr_t)strait_coll_version, &info) == 0 || realpath(info.dli_fname, own) == NULL)
        return NULL;
    int folder = (int)(strrchr(own, '/') - own);
    int size = snprintf(path, sizeof(path), "%.*s/" COLL_ENGINE_LIBRARY, folder, own);
    return size < (int)sizeof(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void load_engine(void)
{
    void *plugin = open_beside();
    if (plugin == NULL) /* by the search path of the loader */
        plugin = dlopen(COLL_ENGINE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL) {
        snprintf(engine_why, sizeof(engine_why), "%s", dlerror());
        return;
    }
    coll_engine_get *get = NULL;
    void *symbol = dlsym(plugin, COLL_ENGINE_SYMBOL);
    memcpy(&get, &symbol, sizeof(get));
    snprintf(engine_why, sizeof(engine_why), COLL_ENGINE_LIBRARY " is not one of ours");
    engine = get != NULL ? get(engine_why, sizeof(engine_why)) : NULL;
    if (engine == NULL || engine->version == COLL_ENGINE_VERSION)
        return;
    snprintf(engine_why, sizeof(engine_why), COLL_ENGINE_LIBRARY " is of another version");
    engine = NULL;
}

const char *coll_engine_why(void)
{
    return engine_why;
}

const struct coll_engine_ops *coll_engine(void)
{
    pthread_once(&engine_once, load_engine);
    return engine;
}
