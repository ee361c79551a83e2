#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/random.h>

#include "collective/call.h"
#include "collective/key.h"
#include "collective/thread.h"

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

/* Uses only a driver that is loaded already: loading it is not our task. The handle is kept, so that it stays
 * loaded. */
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

_Thread_local struct coll_thread coll_thread;

void coll_thread_enter(void)
{
    coll_thread.inside++;
}

static _Thread_local struct {
    struct coll_pending *items;
    size_t count, capacity;
} pendings;

static bool grow(void)
{
    size_t capacity = pendings.capacity == 0 ? 8 : 2 * pendings.capacity;
    void *items = realloc(pendings.items, capacity * sizeof(*pendings.items));
    if (items == NULL)
        return false;
    pendings.items = items;
    pendings.capacity = capacity;
    return true;
}

void coll_pending_add(struct coll_pending pending)
{
    if (pendings.count < pendings.capacity || grow())
        pendings.items[pendings.count++] = pending;
}

size_t coll_pending_count(void)
{
    return pendings.count;
}

bool coll_pending_take(struct coll_pending *pending)
{
    if (pendings.count > 0) {
        *pending = pendings.items[--pendings.count];
        return true;
    }
    free(pendings.items);
    pendings.items = NULL;
    pendings.capacity = 0;
    return false;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static void add(struct coll_key *key, uint64_t word)
{
    key->words[0] = mix(key->words[0] ^ word);
    key->words[1] = mix(key->words[1] + word + UINT64_C(0x9E3779B97F4A7C15));
}

struct coll_key coll_key_of(const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    struct coll_key key = {.words = {1, 2}};
    for (size_t i = 0; i < size; i++)
        add(&key, at[i]);
    return key;
}

struct coll_key coll_key_child(const struct coll_key *parent, uint64_t way, uint64_t number, int64_t color)
{
    struct coll_key key = *parent;
    if (coll_key_is_none(parent))
        return key;
    add(&key, way);
    add(&key, number);
    add(&key, (uint64_t)color);
    return key;
}

struct coll_key coll_key_draw(void)
{
    struct coll_key key = {.words = {0, 0}};
    if (getrandom(key.words, sizeof(key.words), 0) != sizeof(key.words))
        key.words[0] = key.words[1] = 0;
    return key;
}

bool coll_key_is_none(const struct coll_key *key)
{
    return key->words[0] == 0 && key->words[1] == 0;
}

bool coll_key_has_place(const struct coll_key *key)
{
    return key->place.address.family != 0;
}
