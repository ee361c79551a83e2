#include "tests/fakes/device.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/device/device.h"
#include "internal/element.h"
#include "tests/support.h"

#define VISIBLE __attribute__((visibility("default")))

extern struct fake_control fake_device_control;
VISIBLE struct fake_control fake_device_control;

static enum strait_status refuse(const struct device_why *why, enum strait_status status, const char *text)
{
    snprintf(why->text, why->size, "%s", text);
    return status;
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- Memory that may be touched ---------------------------------------------------------------------------------- */

struct range {
    uint8_t *base;
    uint64_t size;
    struct device *device; /* NULL: pinned memory of the host */
    bool mapped;           /* unmap it */
    bool reached;          /* an arena of another process */
    int fd;                /* of an own arena */
    struct range *next;
};

static struct range *ranges;
static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER;

static struct range *range_add(uint8_t *base, uint64_t size, struct device *device, bool mapped)
{
    struct range *range = malloc(sizeof(*range));
    require(range != NULL);
    *range = (struct range){.base = base, .size = size, .device = device, .mapped = mapped};
    pthread_mutex_lock(&ranges_lock);
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&ranges_lock);
    return range;
}

static void range_remove(struct range *range)
{
    pthread_mutex_lock(&ranges_lock);
    struct range **at = &ranges;
    while (*at != range) {
        require(*at != NULL);
        at = &(*at)->next;
    }
    *at = range->next;
    pthread_mutex_unlock(&ranges_lock);
    free(range);
}

static struct range *range_find(const void *base, const struct device *device)
{
    pthread_mutex_lock(&ranges_lock);
    struct range *range = ranges;
    while (range != NULL && (range->device != device || range->base != base))
        range = range->next;
    pthread_mutex_unlock(&ranges_lock);
    require(range != NULL);
    return range;
}

static bool is_within(const void *bytes, uint64_t size, const struct device *device)
{
    bool found = false;
    uintptr_t first = (uintptr_t)bytes;
    pthread_mutex_lock(&ranges_lock);
    for (const struct range *r = ranges; r != NULL && !found; r = r->next)
        found = r->device == device && first >= (uintptr_t)r->base && size <= r->size &&
                first - (uintptr_t)r->base <= r->size - size;
    pthread_mutex_unlock(&ranges_lock);
    return found;
}

static void require_pages(const struct strait_pages *pages, const struct device *device)
{
    for (uint32_t r = 0; r < pages->region_count; r++) {
        const struct strait_region *region = &pages->regions[r];
        uint64_t span = (region->rows - 1) * (region->rows == 1 ? 0 : region->row_stride) + region->row_bytes;
        for (uint32_t i = 0; i < pages->id_count; i++)
            require(is_within((uint8_t *)region->base + pages->ids[i] * region->page_stride, span, device));
    }
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

struct device {
    struct device_setup setup;
    int32_t number;
    pthread_t coder, waiter;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct device_task *first, **end; /* to be coded */
    struct device_task *waiting;      /* events */
    bool closing;
    int32_t failed; /* 0: it works; else 1 + the number of the one that failed first of its node's */
    struct device *next;
};

static struct device *in_use; /* by `next` */
static pthread_mutex_t in_use_lock = PTHREAD_MUTEX_INITIALIZER;

/* Tasks that one launch would take: of one kind, one element type and mode. */
static struct device_task *take_batch(struct device *device, uint32_t *taken)
{
    struct device_task *batch = NULL, **end = &batch, **at = &device->first, *task;
    *taken = 0;
    while ((task = *at) != NULL) {
        if (batch != NULL && (task->work != batch->work || task->element != batch->element ||
                              task->mode != batch->mode || task->on_gpu != batch->on_gpu)) {
            at = &task->next;
            continue;
        }
        *at = task->next;
        *end = task;
        end = &task->next;
        task->next = NULL;
        ++*taken;
    }
    device->end = at;
    return batch;
}

/* Of a chunk in the device's arena, for as long as it begins as told. */
static void *fetch_metadata(const struct device_task *task)
{
    require(task->metadata_size >= STRAIT_CHUNK_HEADER_BYTES && task->metadata_size % 16 == 0);
    uint8_t *copy = calloc(1, task->metadata_size);
    require(copy != NULL && task->size >= task->metadata_size);
    memcpy(copy, task->src, sizeof(task->begins));
    if (memcmp(copy, task->begins, sizeof(task->begins)) == 0)
        memcpy(copy + 16, (const uint8_t *)task->src + 16, task->metadata_size - 16);
    else
        memset(copy, 0, sizeof(task->begins));
    return copy;
}

static void fail(struct device *device, int32_t first)
{
    int32_t works = 0;
    if (__atomic_compare_exchange_n(&device->failed, &works, first + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        device->setup.failed(device->setup.owner);
}

/* All devices of a node, in place of all of a process. */
static void fail_all(const struct device *first)
{
    pthread_mutex_lock(&in_use_lock);
    for (struct device *device = in_use; device != NULL; device = device->next)
        if (device->setup.owner == first->setup.owner)
            fail(device, first->number);
    pthread_mutex_unlock(&in_use_lock);
}

/* Has it failed, or is it to fail with what it does now? */
static bool is_broken(struct device *device)
{
    bool works = __atomic_load_n(&device->failed, __ATOMIC_ACQUIRE) == 0;
    if (works && (fake_device_control.fail & 1u << device->number) != 0)
        fail_all(device);
    else if (works && (fake_device_control.fail_alone & 1u << device->number) != 0)
        fail(device, device->number);
    return __atomic_load_n(&device->failed, __ATOMIC_ACQUIRE) != 0;
}

/* The first of a node's that failed takes those with it that are opened later. */
static int32_t failed_before(const void *owner)
{
    int32_t failed = 0;
    pthread_mutex_lock(&in_use_lock);
    for (struct device *device = in_use; device != NULL && failed == 0; device = device->next)
        if (device->setup.owner == owner && (fake_device_control.fail_alone & 1u << device->number) == 0)
            failed = __atomic_load_n(&device->failed, __ATOMIC_ACQUIRE);
    pthread_mutex_unlock(&in_use_lock);
    return failed;
}

static void code(struct device *device, struct device_task *task)
{
    const struct device_codec *codec = device->setup.codec;
    const struct strait_codebook *codebook = device->setup.codebook;
    uint32_t tables = codebook != NULL ? codec->tables(codebook) : 0;
    struct strait_class_stats *stats = calloc(tables + 1, sizeof(*stats));
    const bool coded = task->work == DEVICE_ENCODE && element_uses_tables(task->element, task->mode);
    require(stats != NULL);
    const struct strait_run run = {
        .size = sizeof(run), .class_stats = coded ? stats : NULL, .class_count = coded ? tables : 0};
    require_pages(&task->pages, device);
    if (task->work == DEVICE_ENCODE) {
        const struct strait_encode_params params = {
            .size = sizeof(params), .element = task->element, .mode = task->mode, .codebook = coded ? codebook : NULL};
        const struct strait_encode_item item = {.src = task->pages,
                                                .dst = task->dst,
                                                .dst_capacity = task->size,
                                                .result = &task->result,
                                                .flag = task->flag,
                                                .flag_value = task->flag_value};
        require(is_within(task->dst, task->size, task->on_gpu ? device : NULL));
        require(task->flag == NULL || (task->on_peer_gpu && is_within(task->flag, sizeof(*task->flag), device)));
        task->status = codec->encode(NULL, &params, &item, 1, &run);
    } else {
        struct strait_decode_item item = {.dst = task->pages,
                                          .src = task->src,
                                          .src_size = task->size,
                                          .metadata = task->metadata,
                                          .result = &task->result,
                                          .flags = task->flag != NULL ? STRAIT_DECODE_AT_MOST : 0};
        void *copy = task->on_gpu ? fetch_metadata(task) : NULL;
        require(is_within(task->src, task->size, task->on_gpu ? device : NULL));
        require((task->metadata != NULL) == !task->on_gpu);
        if (task->on_gpu)
            item.metadata = copy;
        if (task->flag != NULL)
            memcpy(task->header, copy, sizeof(task->header));
        task->status = codec->decode(NULL, codebook, &item, 1, &run);
        free(copy);
    }
    for (uint32_t t = 0; t < tables; t++)
        task->escapes += stats[t].escapes;
    free(stats);
}

/* Waits for the flag of a chunk that may still be on its way. A test may shorten that meanwhile. */
static bool has_come(struct device *device, const struct device_task *task)
{
    if (task->work != DEVICE_DECODE || task->flag == NULL)
        return true;
    require(task->on_gpu && task->flag_value != 0 && is_within(task->flag, sizeof(*task->flag), device));
    const uint64_t began = now();
    bool came = false, waits = true;
    fake_device_control.waiting++;
    for (; !came && waits; usleep(came ? 0 : 20)) {
        const uint64_t us = fake_device_control.flag_us;
        came =
            fake_device_control.ignore_flags == 0 && __atomic_load_n(task->flag, __ATOMIC_ACQUIRE) == task->flag_value;
        waits = now() < began + (us != 0 ? us * UINT64_C(1000) : DEVICE_FLAG_NS);
    }
    fake_device_control.waited += came;
    return came;
}

static void run_batch(struct device *device, struct device_task *batch, uint32_t tasks)
{
    uint64_t began = now();
    if (fake_device_control.delay_us != 0)
        usleep(fake_device_control.delay_us);
    if (!batch->on_gpu)
        usleep(fake_device_control.bus_delay_us);
    usleep(atomic_exchange(&fake_device_control.stall_us[device->number], 0));
    bool broken = is_broken(device);
    fake_device_control.batches++;
    fake_device_control.tasks += tasks;
    if (tasks > fake_device_control.largest_batch)
        fake_device_control.largest_batch = tasks;
    for (struct device_task *task = batch, *next; task != NULL; task = next) {
        next = task->next;
        task->queued = began > task->created ? began - task->created : 0;
        if (broken)
            task->status = STRAIT_ERR_DEVICE;
        else if (!has_come(device, task))
            task->status = STRAIT_ERR_AGAIN;
        else
            code(device, task);
        task->nanoseconds = now() - began;
        device->setup.done(device->setup.owner, task);
    }
}

static void *on_coder(void *arg)
{
    struct device *device = arg;
    pthread_mutex_lock(&device->lock);
    while (!device->closing) {
        uint32_t tasks;
        struct device_task *batch = take_batch(device, &tasks);
        if (batch == NULL) {
            pthread_cond_wait(&device->wake, &device->lock);
            continue;
        }
        pthread_mutex_unlock(&device->lock);
        run_batch(device, batch, tasks);
        pthread_mutex_lock(&device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static int open_file_of(const struct fake_handle *handle)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* True: it is over. */
static bool check_event(struct device_task *task)
{
    struct fake_handle handle;
    if (task->event_size == sizeof(handle)) {
        memcpy(&handle, task->event, sizeof(handle));
    } else {
        const struct fake_handle *event;
        memcpy(&event, task->event, sizeof(event));
        handle = *event;
    }
    /* An eventfd cannot be opened by way of /proc: its count can be read there. */
    char path[64], line[128];
    snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", handle.pid, handle.fd);
    FILE *info = fopen(path, "r");
    unsigned long long value = FAKE_EVENT_FAILED;
    while (info != NULL && fgets(line, sizeof(line), info) != NULL)
        if (sscanf(line, "eventfd-count: %llx", &value) == 1)
            break;
    if (info != NULL)
        fclose(info);
    task->status = value >= FAKE_EVENT_FAILED ? STRAIT_ERR_INVALID : STRAIT_OK;
    return value != 0;
}

static void *on_waiter(void *arg)
{
    struct device *device = arg;
    pthread_mutex_lock(&device->lock);
    while (!device->closing || device->waiting != NULL) {
        struct device_task **at = &device->waiting, *task;
        while ((task = *at) != NULL) {
            bool over = device->closing || __atomic_load_n(&task->forgotten, __ATOMIC_RELAXED);
            bool failed = is_broken(device);
            if (!check_event(task) && !over && !failed) {
                at = &task->next;
                continue;
            }
            if (failed)
                task->status = STRAIT_ERR_DEVICE;
            *at = task->next;
            device->setup.done(device->setup.owner, task);
        }
        pthread_mutex_unlock(&device->lock);
        usleep(500);
        pthread_mutex_lock(&device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

/* FAKE_DEVICE_FAIL in the environment: what `fail` begins with, where no test can reach it. */
__attribute__((constructor)) static void read_environment(void)
{
    const char *fails = getenv("FAKE_DEVICE_FAIL");
    if (fails != NULL)
        fake_device_control.fail = (uint32_t)strtoul(fails, NULL, 10);
}

/* As a driver does: when the process exits it goes, and whoever still uses it is lost. */
static _Atomic bool gone;

static void go(void)
{
    gone = true;
}

static void register_end(void)
{
    require(atexit(go) == 0);
}

static uint32_t fake_count(const struct device_why *why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    require(pthread_once(&once, register_end) == 0);
    if (fake_device_control.no_device == 0)
        return FAKE_DEVICES;
    (void)refuse(why, STRAIT_OK, "no GPU is plugged in");
    return 0;
}

static enum strait_status told_failed(int32_t number, int32_t failed, const struct device_why *why)
{
    if (failed == number + 1)
        snprintf(why->text, why->size, "device %d failed: it was told to", number);
    else
        snprintf(why->text, why->size, "device %d cannot be used since device %d failed: it was told to", number,
                 failed - 1);
    return STRAIT_ERR_DEVICE;
}

static enum strait_status fake_open(const struct device_setup *setup, int32_t number, struct device **device,
                                    const struct device_why *why)
{
    int32_t failed = failed_before(setup->owner);
    if (failed != 0)
        return told_failed(number, failed, why);
    struct device *made = calloc(1, sizeof(*made));
    require(made != NULL);
    made->setup = *setup;
    made->number = number;
    made->end = &made->first;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->wake, NULL);
    require(pthread_create(&made->coder, NULL, on_coder, made) == 0);
    require(pthread_create(&made->waiter, NULL, on_waiter, made) == 0);
    pthread_mutex_lock(&in_use_lock);
    made->next = in_use;
    in_use = made;
    pthread_mutex_unlock(&in_use_lock);
    *device = made;
    return STRAIT_OK;
}

static void leave_use(const struct device *device)
{
    pthread_mutex_lock(&in_use_lock);
    struct device **at = &in_use;
    while (*at != device)
        at = &(*at)->next;
    *at = device->next;
    pthread_mutex_unlock(&in_use_lock);
}

static void fake_close(struct device *device)
{
    usleep(fake_device_control.close_us);
    require(!gone);
    leave_use(device);
    pthread_mutex_lock(&device->lock);
    require(device->first == NULL);
    device->closing = true;
    pthread_cond_signal(&device->wake);
    pthread_mutex_unlock(&device->lock);
    pthread_join(device->coder, NULL);
    pthread_join(device->waiter, NULL);
    pthread_mutex_destroy(&device->lock);
    pthread_cond_destroy(&device->wake);
    free(device);
}

static void fake_submit(struct device *device, struct device_task *first)
{
    struct device_task *next;
    pthread_mutex_lock(&device->lock);
    for (struct device_task *task = first; task != NULL; task = next) {
        next = task->next;
        if (task->work == DEVICE_READY) {
            task->next = device->waiting;
            device->waiting = task;
            continue;
        }
        task->next = NULL;
        *device->end = task;
        device->end = &task->next;
    }
    pthread_cond_signal(&device->wake);
    pthread_mutex_unlock(&device->lock);
}

static bool fake_failure(struct device *device, const struct device_why *why)
{
    int32_t failed = __atomic_load_n(&device->failed, __ATOMIC_ACQUIRE);
    if (failed != 0)
        (void)told_failed(device->number, failed, why);
    return failed != 0;
}

static enum strait_status map_file(int fd, uint64_t size, struct device_memory *memory, const struct device_why *why)
{
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return refuse(why, STRAIT_ERR_INVALID, "its handle names no memory");
    if ((uint64_t)info.st_size < size)
        return refuse(why, STRAIT_ERR_INVALID, "its allocation is smaller than its regions need");
    memory->size = (uint64_t)info.st_size;
    memory->base = mmap(NULL, (size_t)memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    require(memory->base != MAP_FAILED);
    return STRAIT_OK;
}

static enum strait_status map_named(const struct fake_handle *named, uint64_t size, struct device_memory *memory,
                                    const struct device_why *why)
{
    int fd = open_file_of(named);
    enum strait_status status = map_file(fd, size, memory, why);
    if (fd >= 0)
        close(fd);
    return status;
}

static enum strait_status map_ipc(struct device *device, const struct device_handle *handle,
                                  struct device_memory *memory, const struct device_why *why)
{
    struct fake_handle named;
    memcpy(&named, handle->ipc, sizeof(named));
    if (named.device != device->number)
        return refuse(why, STRAIT_ERR_INVALID, "its memory is on another device");
    return map_named(&named, handle->size, memory, why);
}

static enum strait_status fake_map(struct device *device, const struct device_handle *handle,
                                   struct device_memory *memory, const struct device_why *why)
{
    enum strait_status status = STRAIT_OK;
    if (fake_device_control.refuse_map != 0)
        return refuse(why, STRAIT_ERR_NO_MEMORY, "no memory for a mapping");
    if (handle->kind == STRAIT_HANDLE_CUDA_IPC)
        status = map_ipc(device, handle, memory, why);
    else if (handle->kind == STRAIT_HANDLE_CUDA_VMM)
        status = map_file(handle->fd, handle->size, memory, why);
    else
        *memory = (struct device_memory){.base = handle->pointer, .size = handle->size};
    if (status != STRAIT_OK)
        return status;
    memory->mapping = range_add(memory->base, memory->size, device, handle->kind != STRAIT_HANDLE_POINTER);
    fake_device_control.mapped++;
    return STRAIT_OK;
}

/* Of any device: mapped as if it were this one's. */
static enum strait_status fake_reach(struct device *device, const uint8_t handle[DEVICE_HANDLE_BYTES], uint64_t size,
                                     struct device_memory *memory, const struct device_why *why)
{
    struct fake_handle named;
    memcpy(&named, handle, sizeof(named));
    if (fake_device_control.refuse_reach != 0)
        return refuse(why, STRAIT_ERR_UNSUPPORTED, "the devices do not reach each other");
    enum strait_status status = map_named(&named, size, memory, why);
    if (status != STRAIT_OK)
        return status;
    memory->mapping = range_add(memory->base, memory->size, device, true);
    ((struct range *)memory->mapping)->reached = true;
    fake_device_control.reached++;
    return STRAIT_OK;
}

/* The descriptor stays open until the end of the process, for whoever reaches it. */
static enum strait_status fake_arena(struct device *device, uint64_t size, void **base,
                                     uint8_t handle[DEVICE_HANDLE_BYTES], uint8_t id[DEVICE_ID_BYTES],
                                     const struct device_why *why)
{
    if (fake_device_control.refuse_arena != 0)
        return refuse(why, STRAIT_ERR_NO_MEMORY, "no memory for an arena");
    struct fake_handle named = {.pid = getpid(), .device = device->number};
    named.fd = memfd_create("fake-arena", MFD_CLOEXEC);
    require(named.fd >= 0 && ftruncate(named.fd, (off_t)size) == 0);
    *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, named.fd, 0);
    require(*base != MAP_FAILED);
    memcpy(handle, &named, sizeof(named));
    memset(id, device->number + 1, DEVICE_ID_BYTES);
    range_add(*base, size, device, true)->fd = named.fd;
    return STRAIT_OK;
}

static void fake_arena_free(struct device *device, void *base)
{
    struct range *range = range_find(base, device);
    int fd = range->fd;
    munmap(base, (size_t)range->size);
    range_remove(range);
    close(fd);
}

static void fake_unmap(struct device *device, struct device_memory *memory)
{
    struct range *range = memory->mapping;
    require(range->device == device);
    const struct range was = *range;
    range_remove(range);
    if (was.mapped)
        munmap(memory->base, (size_t)memory->size);
    if (was.reached)
        fake_device_control.reached--;
    else
        fake_device_control.mapped--;
}

static enum strait_status fake_pin(void *base, size_t size, const struct device_why *why)
{
    if (fake_device_control.refuse_pin != 0)
        return refuse(why, STRAIT_ERR_NO_MEMORY, "no memory may be pinned");
    (void)range_add(base, size, NULL, false);
    fake_device_control.pinned++;
    return STRAIT_OK;
}

static void fake_unpin(void *base)
{
    range_remove(range_find(base, NULL));
    fake_device_control.pinned--;
}

/* Byte `at` of a page's contents, and in *left how many follow it there. */
static uint8_t *byte_of(const struct strait_region *region, uint32_t id, uint64_t at, uint64_t *left)
{
    const uint32_t columns = region->columns > 1 ? region->columns : 1, piece = region->row_bytes / columns;
    const uint64_t row = at / region->row_bytes, column = at % region->row_bytes / piece;
    *left = piece - at % piece;
    return (uint8_t *)region->base + id * region->page_stride + row * region->row_stride +
           column * region->column_stride + at % piece;
}

static enum strait_status fake_copy(struct device *to_device, const struct strait_pages *to, struct device *from_device,
                                    const struct strait_pages *from)
{
    if (to_device != NULL)
        require_pages(to, to_device);
    if (from_device != NULL)
        require_pages(from, from_device);
    fake_device_control.copies++;
    usleep(fake_device_control.delay_us);
    bool to_broken = to_device != NULL && is_broken(to_device);
    bool from_broken = from_device != NULL && is_broken(from_device);
    if (to_broken || from_broken)
        return STRAIT_ERR_DEVICE;
    for (uint32_t r = 0; r < to->region_count; r++) {
        const struct strait_region *d = &to->regions[r], *s = &from->regions[r];
        for (uint32_t i = 0; i < to->id_count; i++)
            for (uint64_t at = 0, count, more; at < (uint64_t)d->rows * d->row_bytes; at += count) {
                uint8_t *into = byte_of(d, to->ids[i], at, &count);
                const uint8_t *out_of = byte_of(s, from->ids[i], at, &more);
                count = count < more ? count : more;
                memmove(into, out_of, count);
            }
    }
    return STRAIT_OK;
}

static void fake_wake(struct device *device)
{
    (void)device;
    atomic_fetch_add(&fake_device_control.woken, 1);
}

static const struct device_ops ops = {.version = DEVICE_VERSION,
                                      .count = fake_count,
                                      .open = fake_open,
                                      .close = fake_close,
                                      .submit = fake_submit,
                                      .wake = fake_wake,
                                      .failure = fake_failure,
                                      .map = fake_map,
                                      .reach = fake_reach,
                                      .unmap = fake_unmap,
                                      .arena = fake_arena,
                                      .arena_free = fake_arena_free,
                                      .pin = fake_pin,
                                      .unpin = fake_unpin,
                                      .copy = fake_copy};

extern const struct device_ops *strait_node_device_ops(void);
VISIBLE const struct device_ops *strait_node_device_ops(void)
{
    return &ops;
}
