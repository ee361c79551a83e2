#include "daemon/device/devices.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#define ARENAS_MAX 2

struct arena_range {
    void *base;
    size_t size;
    bool pinned;
};

struct devices {
    struct device_setup setup;
    pthread_mutex_t opening; /* held by the one worker that loads the plugin or opens a device */
    const struct device_ops *ops;
    uint32_t count;
    struct device *devices[DEVICES_MAX]; /* NULL: not in use. Also read without the lock */
    char codecs[DEVICES_MAX][96];        /* of devices in use: what strait_codec_describe says; then constant */
    struct arena_range arenas[ARENAS_MAX];
    uint32_t arena_count;
    uint64_t arena_bytes;                          /* size of each device's arena */
    struct devices_arena *gpu_arenas[DEVICES_MAX]; /* made with the device, then constant */

    void (*failed)(void *owner);
    void *owner;
    uv_async_t over; /* a task is done, or a device has failed; referenced while tasks run */
    uint32_t running;
    bool some_failed;     /* a device has failed since the last report; set on any thread */
    pthread_mutex_t lock; /* guards what follows */
    struct device_task *done, **done_end;
    bool looks; /* the loop looks at them itself; set on its thread only */
};

static const struct device_codec codec = {.get = strait_codec_get,
                                          .encode = strait_encode_batch,
                                          .decode = strait_decode_batch,
                                          .encode_scratch = strait_encode_scratch_size,
                                          .decode_scratch = strait_decode_scratch_size,
                                          .tables = strait_codebook_count,
                                          .image_size = strait_codebook_image_size,
                                          .image = strait_codebook_image};

/* ---- Reporting --------------------------------------------------------------------------------------------------- */

static void on_done(void *owner, struct device_task *task)
{
    struct devices *devices = owner;
    task->next = NULL;
    pthread_mutex_lock(&devices->lock);
    *devices->done_end = task;
    devices->done_end = &task->next;
    const bool looks = devices->looks;
    pthread_mutex_unlock(&devices->lock);
    if (!looks)
        uv_async_send(&devices->over);
}

static void on_failed(void *owner)
{
    struct devices *devices = owner;
    __atomic_store_n(&devices->some_failed, true, __ATOMIC_RELEASE);
    uv_async_send(&devices->over);
}

static struct device_task *take_done(struct devices *devices)
{
    pthread_mutex_lock(&devices->lock);
    struct device_task *first = devices->done;
    devices->done = NULL;
    devices->done_end = &devices->done;
    pthread_mutex_unlock(&devices->lock);
    return first;
}

/* A device reports its failure before its tasks come back; the owner is told in the same order. */
static void report(struct devices *devices)
{
    struct device_task *task = take_done(devices), *next;
    if (__atomic_exchange_n(&devices->some_failed, false, __ATOMIC_ACQ_REL) && devices->failed != NULL)
        devices->failed(devices->owner);
    for (; task != NULL; task = next) {
        next = task->next;
        if (--devices->running == 0)
            uv_unref((uv_handle_t *)&devices->over);
        task->finished(task);
    }
}

static void on_over(uv_async_t *async)
{
    report(async->data);
}

void devices_look(struct devices *devices)
{
    if (devices->running == 0)
        return;
    report(devices);
    pthread_mutex_lock(&devices->lock);
    devices->looks = true;
    pthread_mutex_unlock(&devices->lock);
}

bool devices_sleep(struct devices *devices)
{
    if (!devices->looks)
        return false;
    pthread_mutex_lock(&devices->lock);
    devices->looks = false;
    const bool due = devices->done != NULL;
    pthread_mutex_unlock(&devices->lock);
    return due;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

enum strait_status devices_create(struct uv_loop_s *loop, const struct devices_config *config, struct devices **devices)
{
    struct devices *made = calloc(1, sizeof(*made));
    if (made == NULL || uv_async_init(loop, &made->over, on_over) != 0) {
        free(made);
        return STRAIT_ERR_NO_MEMORY;
    }
    uv_unref((uv_handle_t *)&made->over);
    made->over.data = made;
    made->done_end = &made->done;
    made->setup = (struct device_setup){.codec = &codec,
                                        .codebook = config->codebook,
                                        .slot_bytes = config->slot_bytes,
                                        .gpu_chunk_bytes = config->gpu_chunk_bytes,
                                        .multiprocessors = config->multiprocessors,
                                        .busy_poll_ns = config->busy_poll_ns,
                                        .done = on_done,
                                        .failed = on_failed,
                                        .owner = made};
    made->arena_bytes = config->arena_bytes;
    made->failed = config->failed;
    made->owner = config->owner;
    pthread_mutex_init(&made->opening, NULL);
    pthread_mutex_init(&made->lock, NULL);
    *devices = made;
    return STRAIT_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct devices *devices = handle->data;
    pthread_mutex_destroy(&devices->opening);
    pthread_mutex_destroy(&devices->lock);
    free(devices);
}

void devices_destroy(struct devices *devices)
{
    if (devices == NULL)
        return;
    for (uint32_t i = 0; i < devices->arena_count; i++)
        if (devices->arenas[i].pinned)
            devices->ops->unpin(devices->arenas[i].base);
    for (int i = 0; i < DEVICES_MAX; i++) {
        if (devices->gpu_arenas[i] != NULL && devices->gpu_arenas[i]->base != NULL)
            devices->ops->arena_free(devices->devices[i], devices->gpu_arenas[i]->base);
        if (devices->devices[i] != NULL)
            devices->ops->close(devices->devices[i]);
        free(devices->gpu_arenas[i]);
    }
    devices->failed = NULL; /* no owner is left to be told */
    report(devices);        /* finishes the tasks of events that have not completed */
    uv_ref((uv_handle_t *)&devices->over);
    uv_close((uv_handle_t *)&devices->over, on_closed);
}

void devices_add_arena(struct devices *devices, void *base, size_t size)
{
    if (devices->arena_count < ARENAS_MAX)
        devices->arenas[devices->arena_count++] = (struct arena_range){.base = base, .size = size};
}

bool devices_set_codebook(struct devices *devices, const struct strait_codebook *codebook)
{
    bool in_use = false;
    if (pthread_mutex_trylock(&devices->opening) != 0)
        return false;
    for (int i = 0; i < DEVICES_MAX; i++)
        in_use |= devices->devices[i] != NULL;
    if (!in_use)
        devices->setup.codebook = codebook;
    pthread_mutex_unlock(&devices->opening);
    return !in_use;
}

/* ---- The end of the process -------------------------------------------------------------------------------------- */

static void (*leave_first)(void);

void devices_before_exit(void (*leave)(void))
{
    leave_first = leave;
}

static void register_leave(void)
{
    if (leave_first != NULL)
        (void)atexit(leave_first); /* where that fails nodes leave later, by the destructor */
}

/* ---- Taking devices into use ------------------------------------------------------------------------------------- */

static enum strait_status refuse(const struct device_why *why, enum strait_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum strait_status refuse(const struct device_why *why, enum strait_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, why->size, format, arguments);
    va_end(arguments);
    return status;
}

/* Loads the plugin. It stays loaded, because a driver that has been started cannot be unloaded safely. */
static enum strait_status load_plugin(struct devices *devices, const struct device_why *why)
{
    device_ops_get *get = NULL;
    void *plugin = dlopen(DEVICE_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL) {
        const char *error = dlerror();
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "this daemon has no GPU support: %s", error != NULL ? error : "");
    }
    *(void **)&get = dlsym(plugin, DEVICE_PLUGIN_SYMBOL);
    const struct device_ops *ops = get != NULL ? get() : NULL;
    if (ops == NULL || ops->version != DEVICE_VERSION)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "this daemon has no GPU support: %s is of another version",
                      DEVICE_PLUGIN);
    uint32_t count = ops->count(why);
    if (count == 0)
        return STRAIT_ERR_UNSUPPORTED;
    devices->ops = ops;
    devices->count = count < DEVICES_MAX ? count : DEVICES_MAX;
    return STRAIT_OK;
}

static enum strait_status pin_arenas(struct devices *devices, const struct device_why *why)
{
    enum strait_status status = STRAIT_OK;
    for (uint32_t i = 0; i < devices->arena_count && status == STRAIT_OK; i++) {
        struct arena_range *arena = &devices->arenas[i];
        if (!arena->pinned)
            status = devices->ops->pin(arena->base, arena->size, why);
        arena->pinned |= status == STRAIT_OK;
    }
    return status;
}

/* Makes the device's arena. Without one, chunks for this device go through the host's memory. */
static void make_arena(struct devices *devices, int32_t number, struct device *device)
{
    struct devices_arena *arena = devices->arena_bytes != 0 ? calloc(1, sizeof(*arena)) : NULL;
    if (arena == NULL)
        return;
    const struct device_why why = {arena->why, sizeof(arena->why)};
    if (devices->ops->arena(device, devices->arena_bytes, &arena->base, arena->handle, arena->id, &why) != STRAIT_OK)
        arena->base = NULL;
    devices->gpu_arenas[number] = arena;
}

static enum strait_status open_device(struct devices *devices, int32_t number, const struct device_why *why)
{
    enum strait_status status = STRAIT_OK;
    if (devices->ops == NULL)
        status = load_plugin(devices, why);
    if (status != STRAIT_OK)
        return status;
    if (number < 0 || (uint32_t)number >= devices->count)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "there is no device %d: the daemon sees %u", number, devices->count);
    struct device *device = devices->devices[number];
    if (device == NULL) {
        status = devices->ops->open(&devices->setup, number, &device, why);
        const struct strait_codec *cuda = status == STRAIT_OK ? strait_codec_get("cuda") : NULL;
        if (cuda != NULL)
            (void)strait_codec_describe(cuda, devices->codecs[number], sizeof(devices->codecs[number]));
        if (status == STRAIT_OK)
            make_arena(devices, number, device);
    }
    if (status != STRAIT_OK)
        return status;
    static pthread_once_t registered = PTHREAD_ONCE_INIT;
    (void)pthread_once(&registered, register_leave);
    if (devices->devices[number] == NULL)
        __atomic_store_n(&devices->devices[number], device, __ATOMIC_RELEASE);
    return devices->ops->failure(device, why) ? STRAIT_ERR_DEVICE : pin_arenas(devices, why);
}

enum strait_status devices_open(struct devices *devices, int32_t number, const struct device_why *why)
{
    pthread_mutex_lock(&devices->opening);
    enum strait_status status = open_device(devices, number, why);
    pthread_mutex_unlock(&devices->opening);
    return status;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static struct device *device_at(const struct devices *devices, int32_t number)
{
    return __atomic_load_n(&devices->devices[number], __ATOMIC_ACQUIRE);
}

enum strait_status devices_map(struct devices *devices, int32_t number, const struct device_handle *handle,
                               struct device_memory *memory, const struct device_why *why)
{
    return devices->ops->map(device_at(devices, number), handle, memory, why);
}

enum strait_status devices_reach(struct devices *devices, int32_t number, const uint8_t handle[DEVICE_HANDLE_BYTES],
                                 uint64_t size, struct device_memory *memory, const struct device_why *why)
{
    return devices->ops->reach(device_at(devices, number), handle, size, memory, why);
}

void devices_unmap(struct devices *devices, int32_t number, struct device_memory *memory)
{
    devices->ops->unmap(device_at(devices, number), memory);
}

enum strait_status devices_pin(struct devices *devices, void *base, size_t size, const struct device_why *why)
{
    return devices->ops->pin(base, size, why);
}

void devices_unpin(struct devices *devices, void *base)
{
    devices->ops->unpin(base);
}

enum strait_status devices_copy(struct devices *devices, int32_t to_number, const struct strait_pages *to,
                                int32_t from_number, const struct strait_pages *from)
{
    return devices->ops->copy(to_number < 0 ? NULL : device_at(devices, to_number), to,
                              from_number < 0 ? NULL : device_at(devices, from_number), from);
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

void devices_submit(struct devices *devices, int32_t number, struct device_task *first)
{
    for (const struct device_task *task = first; task != NULL; task = task->next)
        if (devices->running++ == 0)
            uv_ref((uv_handle_t *)&devices->over);
    devices->ops->submit(device_at(devices, number), first);
}

void devices_wake(struct devices *devices, int32_t number)
{
    devices->ops->wake(device_at(devices, number));
}

bool devices_state(struct devices *devices, int32_t number, struct device_state *state)
{
    *state = (struct device_state){0};
    if (number < 0 || number >= DEVICES_MAX)
        return false;
    struct device *device = device_at(devices, number);
    if (device != NULL) {
        state->failed = devices->ops->failure(device, &(struct device_why){state->why, sizeof(state->why)});
        memcpy(state->codec, devices->codecs[number], sizeof(state->codec));
    }
    return device != NULL;
}

const struct devices_arena *devices_arena(struct devices *devices, int32_t number)
{
    struct device_state state;
    return devices_state(devices, number, &state) ? devices->gpu_arenas[number] : NULL;
}
