/* A device plugin in front of another one, to which it forwards everything. In between, a daemon's work on devices can
 * be held, slowed down and broken, as its work on the host can: before a task goes to the device, and when it has come
 * back but has not been reported. Nothing else in the daemon or in the plugin behind is changed. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/device/device.h"
#include "tests/chaos/gpu.h"
#include "tests/chaos/inject.h"
#include "tests/fakes/device.h"

#define DEVICES_MAX 64

static struct chaos_side *me;     /* NULL: nobody asks for anything */
static struct fake_control *fake; /* of the plugin behind; NULL: its devices are GPUs */
static const struct device_ops *behind;
static struct device_ops front;

/* A device that is in use, and whom its tasks are told to. */
static struct station {
    struct device *device;
    struct device_setup setup;
} stations[DEVICES_MAX];

static struct station *station_of(const struct device *device)
{
    for (uint32_t i = 0; i < DEVICES_MAX; i++)
        if (__atomic_load_n(&stations[i].device, __ATOMIC_ACQUIRE) == device)
            return &stations[i];
    abort();
}

/* ---- Tasks that wait --------------------------------------------------------------------------------------------- */

/* What delays a task, on a thread of its own, so that other tasks go on meanwhile. */
struct detour {
    struct station *station;
    struct device_task *task;
    uint32_t slow_ms;
    bool held, over; /* over: it has come back */
};

static void *take_detour(void *arg)
{
    struct detour detour = *(struct detour *)arg;
    free(arg);
    if (detour.held)
        hold(me);
    hold_rest((long)detour.slow_ms * 1000);
    if (detour.over)
        detour.station->setup.done(detour.station->setup.owner, detour.task);
    else
        behind->submit(detour.station->device, detour.task);
    return NULL;
}

static void make_detour(struct detour plan)
{
    struct detour *detour = malloc(sizeof(*detour));
    pthread_t thread;
    if (detour == NULL)
        abort();
    *detour = plan;
    if (pthread_create(&thread, NULL, take_detour, detour) != 0)
        abort();
    pthread_detach(thread);
}

static int point_before(const struct device_task *task)
{
    return task->work == DEVICE_ENCODE ? AT_ENCODE : AT_DECODE;
}

/* True: the task goes on later. */
static bool detain(struct station *station, struct device_task *task, bool over)
{
    if (me == NULL || (task->work != DEVICE_ENCODE && task->work != DEVICE_DECODE))
        return false;
    struct detour plan = {.station = station, .task = task, .over = over};
    plan.held = hold_reached(me, point_before(task) + over);
    plan.slow_ms = !over && task->work == DEVICE_ENCODE ? atomic_load(&me->slow_ms) : 0;
    if (!plan.held && plan.slow_ms == 0)
        return false;
    task->next = NULL;
    make_detour(plan);
    return true;
}

/* ---- In between -------------------------------------------------------------------------------------------------- */

static void on_done(void *owner, struct device_task *task)
{
    struct station *station = owner;
    if (!detain(station, task, true))
        station->setup.done(station->setup.owner, task);
}

static void on_failed(void *owner)
{
    struct station *station = owner;
    station->setup.failed(station->setup.owner);
}

static enum strait_status front_open(const struct device_setup *setup, int32_t number, struct device **device,
                                     const struct device_why *why)
{
    struct station *station = &stations[number];
    struct device_setup own = *setup;
    station->setup = *setup;
    own.done = on_done;
    own.failed = on_failed;
    own.owner = station;
    enum strait_status status = behind->open(&own, number, device, why);
    if (status == STRAIT_OK)
        __atomic_store_n(&station->device, *device, __ATOMIC_RELEASE);
    return status;
}

static void front_submit(struct device *device, struct device_task *first)
{
    struct station *station = station_of(device);
    struct device_task *passed = NULL, **end = &passed, *next;
    for (struct device_task *task = first; task != NULL; task = next) {
        next = task->next;
        if (detain(station, task, false))
            continue;
        task->next = NULL;
        *end = task;
        end = &task->next;
    }
    if (passed != NULL)
        behind->submit(device, passed);
}

static void pass(int at)
{
    if (me != NULL && hold_reached(me, at))
        hold(me);
}

static enum strait_status front_copy(struct device *to_device, const struct strait_pages *to,
                                     struct device *from_device, const struct strait_pages *from)
{
    pass(AT_COPY);
    if (me != NULL)
        hold_rest((long)atomic_load(&me->slow_ms) * 1000);
    enum strait_status status = behind->copy(to_device, to, from_device, from);
    pass(AT_COPIED);
    return status;
}

/* ---- What is done to devices ------------------------------------------------------------------------------------- */

static void break_device(int32_t number)
{
    if (fake != NULL)
        atomic_fetch_or(&fake->fail, 1u << number);
    else
        fprintf(stderr, "chaos: GPU %d: broken: %s\n", number, gpu_break(number, GPU_TRAP));
}

static void stall_device(int32_t number, uint32_t ms)
{
    if (fake != NULL)
        atomic_store(&fake->stall_us[number], ms * 1000);
    else
        fprintf(stderr, "chaos: GPU %d: stalled: %s\n", number, gpu_stall(number, ms));
}

/* On a thread of its own. */
static void *watch(void *arg)
{
    for (;; hold_rest(500)) {
        uint32_t breaks = atomic_exchange(&me->breaks, 0), stalls = atomic_exchange(&me->stalls, 0);
        for (int32_t number = 0; number < 32; number++) {
            if (breaks & 1u << number) {
                break_device(number);
                atomic_fetch_add(&me->broken, 1);
            }
            if (stalls & 1u << number) {
                stall_device(number, atomic_load(&me->stall_ms));
                atomic_fetch_add(&me->stalled, 1);
            }
        }
    }
    return arg; /* never */
}

static void begin(void)
{
    pthread_t watcher;
    if (hold_begin(&me) != NULL && pthread_create(&watcher, NULL, watch, NULL) == 0)
        pthread_detach(watcher);
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

static bool find_behind(void)
{
    const char *file = getenv(CHAOS_PLUGIN);
    device_ops_get *get = NULL;
    void *object = file != NULL ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (object == NULL) {
        fprintf(stderr, "chaos: no plugin behind this one: %s\n", file != NULL ? dlerror() : CHAOS_PLUGIN);
        return false;
    }
    *(void **)&get = dlsym(object, DEVICE_PLUGIN_SYMBOL);
    behind = get != NULL ? get() : NULL;
    fake = dlsym(object, "fake_device_control");
    return behind != NULL;
}

extern const struct device_ops *strait_node_device_ops(void);
__attribute__((visibility("default"))) const struct device_ops *strait_node_device_ops(void)
{
    if (behind == NULL && !find_behind())
        return NULL;
    if (front.version != 0)
        return &front;
    front = *behind; /* whatever else it can do */
    front.open = front_open;
    front.submit = front_submit;
    front.copy = front_copy;
    begin();
    return &front;
}
