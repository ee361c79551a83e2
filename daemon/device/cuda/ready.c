/* The waiter thread, for clients' events: pages are ready when one has completed. That may take long, and nothing else
 * waits for it. */
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "daemon/device/cuda/cuda.h"

#define PAUSE_NS 50000u

/* Another process's event is opened when it is first looked at; then `event` holds the opened one. */
static cudaError_t open_event(struct device_task *task, cudaEvent_t *event)
{
    cudaIpcEventHandle_t handle;
    if (task->event_size != sizeof(handle)) {
        memcpy(event, task->event, sizeof(*event));
        return cudaSuccess;
    }
    if (task->status == STRAIT_ERR_AGAIN) {
        memcpy(event, task->event, sizeof(*event));
        return cudaSuccess;
    }
    memcpy(&handle, task->event, sizeof(handle));
    cudaError_t error = cudaIpcOpenEventHandle(event, handle);
    if (error != cudaSuccess)
        return error;
    memcpy(task->event, event, sizeof(*event));
    task->status = STRAIT_ERR_AGAIN;
    return cudaSuccess;
}

/* True: the event is complete, or has failed. */
static bool look(struct device *device, struct device_task *task, bool closing)
{
    cudaEvent_t event;
    bool forgotten = closing || __atomic_load_n(&task->forgotten, __ATOMIC_RELAXED);
    cudaError_t error = forgotten || device_has_failed(device) ? cudaErrorUnknown : open_event(task, &event);
    if (error == cudaSuccess)
        error = cudaEventQuery(event);
    if (error == cudaErrorNotReady)
        return false;
    if (error != cudaSuccess && !forgotten)
        (void)device_is_sick(device, "event");
    if (task->status == STRAIT_ERR_AGAIN && !device_has_failed(device)) { /* otherwise it is freed with the context */
        memcpy(&event, task->event, sizeof(event));
        cudaEventDestroy(event);
    }
    (void)cudaGetLastError();
    task->status = error == cudaSuccess        ? STRAIT_OK
                   : device_has_failed(device) ? STRAIT_ERR_DEVICE
                                               : STRAIT_ERR_INVALID;
    return true;
}

static struct device_task *look_at_all(struct device *device, struct device_task *tasks, bool closing)
{
    struct device_task *left = NULL, *next;
    for (struct device_task *task = tasks; task != NULL; task = next) {
        next = task->next;
        if (look(device, task, closing)) {
            device->setup.done(device->setup.owner, task);
            continue;
        }
        task->next = left;
        left = task;
    }
    return left;
}

static struct device_task *joined(struct device_task *a, struct device_task *b)
{
    struct device_task **end = &a;
    while (*end != NULL)
        end = &(*end)->next;
    *end = b;
    return a;
}

void *waiter_run(void *arg)
{
    struct device *device = arg;
    struct device_task *tasks = NULL;
    prctl(PR_SET_NAME, "strait-gpu-wait");
    cudaSetDevice(device->number);
    pthread_mutex_lock(&device->lock);
    while (!device->closing || tasks != NULL || device->awaited != NULL) {
        if (tasks == NULL && device->awaited == NULL) {
            pthread_cond_wait(&device->events, &device->lock);
            continue;
        }
        bool closing = device->closing;
        tasks = joined(device->awaited, tasks);
        device->awaited = NULL;
        pthread_mutex_unlock(&device->lock);
        tasks = look_at_all(device, tasks, closing);
        if (tasks != NULL)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        pthread_mutex_lock(&device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}
