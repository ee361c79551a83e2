#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "daemon/device/cuda/cuda.h"

/* Failure of a GPU, and what it means for the others of the process. CUDA calls most of these errors sticky: the
 * process is inconsistent from then on, every launch and copy fails with the same error, on its other GPUs too, and
 * only another process can use any of them. So one GPU's failure is made the failure of all GPUs of the process, at
 * once and not when each of them happens to notice. The GPU that saw the error first is held responsible: it is the one
 * that was working. */

static struct {
    pthread_mutex_t lock;  /* taken before a device's lock */
    struct device *in_use; /* linked by `process_next` */
    bool broken;
    int number;     /* the GPU that broke it */
    char what[128]; /* what failed */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Error codes newer than the oldest supported toolkit. */
enum { ERROR_CONTAINED = 226, ERROR_TENSOR_MEMORY_LEAK = 721, ERROR_MPS_CLIENT_TERMINATED = 810 };

/* Errors after which, according to CUDA, the process has to be ended, and errors that hardware cannot correct. */
static bool error_breaks_process(cudaError_t error)
{
    switch ((int)error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case ERROR_CONTAINED:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case ERROR_TENSOR_MEMORY_LEAK:
    case ERROR_MPS_CLIENT_TERMINATED:
    case cudaErrorExternalDevice:
        return true;
    default:
        return false;
    }
}

enum strait_status refuse(const struct device_why *why, enum strait_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why->text, why->size, format, arguments);
    va_end(arguments);
    return status;
}

enum strait_status refuse_error(const struct device_why *why, enum strait_status status, const char *what,
                                cudaError_t error)
{
    (void)cudaGetLastError();
    return refuse(why, error == cudaErrorMemoryAllocation ? STRAIT_ERR_NO_MEMORY : status, "%s: %s", what,
                  cudaGetErrorString(error));
}

/* ---- Reporting --------------------------------------------------------------------------------------------------- */

/* Describes the failure of a broken process. Called with its lock held. */
static void describe(int number, char *text, size_t size)
{
    if (number == process.number || number < 0)
        snprintf(text, size, "GPU %d failed: %s; the daemon must be started again", process.number, process.what);
    else
        snprintf(text, size, "GPU %d cannot be used since GPU %d failed: %s; the daemon must be started again", number,
                 process.number, process.what);
}

/* True: it had not failed before. */
static bool mark(struct device *device, const char *text)
{
    pthread_mutex_lock(&device->lock);
    bool fresh = !device->failed;
    if (fresh) {
        snprintf(device->why, sizeof(device->why), "%s", text);
        device->failed_at = clock_ns();
        device->failed = true;
    }
    pthread_mutex_unlock(&device->lock);
    return fresh;
}

/* Called with the process's lock held. */
static void mark_in_broken(struct device *device)
{
    char text[sizeof(device->why)];
    describe(device->number, text, sizeof(text));
    if (mark(device, text))
        device->setup.failed(device->setup.owner);
}

static void break_process(int number, const char *what, cudaError_t error)
{
    struct device *device;
    pthread_mutex_lock(&process.lock);
    if (!process.broken) {
        process.broken = true;
        process.number = number;
        snprintf(process.what, sizeof(process.what), "%s: %s", what, cudaGetErrorString(error));
    }
    for (device = process.in_use; device != NULL; device = device->process_next)
        mark_in_broken(device);
    pthread_mutex_unlock(&process.lock);
}

/* ---- Asking a device --------------------------------------------------------------------------------------------- */

/* Asks by a launch: in a broken process every launch fails. */
static cudaError_t ask(struct device *device)
{
    const struct prepare nothing = {.vectors = 0};
    cudaError_t error = cudaSetDevice(device->number);
    if (error == cudaSuccess)
        error = cudaStreamQuery(device->copier.stream);
    if (error == cudaSuccess || error == cudaErrorNotReady)
        error = prepare_launch(&nothing, device->copier.stream);
    (void)cudaGetLastError();
    return error;
}

void device_fail(struct device *device, const char *what, cudaError_t error)
{
    if (error == cudaSuccess || !error_breaks_process(error)) {
        cudaError_t answer = ask(device);
        error = error_breaks_process(answer) ? answer : error;
    }
    if (error_breaks_process(error))
        break_process(device->number, what, error);
    else {
        char text[sizeof(device->why)];
        snprintf(text, sizeof(text), "GPU %d failed, the daemon must be started again to use it: %s: %s",
                 device->number, what, error == cudaSuccess ? "it gave no result" : cudaGetErrorString(error));
        if (mark(device, text))
            device->setup.failed(device->setup.owner);
    }
}

bool device_is_sick(struct device *device, const char *what)
{
    cudaError_t error = device_has_failed(device) ? cudaSuccess : ask(device);
    if (error_breaks_process(error))
        break_process(device->number, what, error);
    return device_has_failed(device);
}

bool device_has_failed(struct device *device)
{
    pthread_mutex_lock(&device->lock);
    bool failed = device->failed;
    pthread_mutex_unlock(&device->lock);
    return failed;
}

bool device_failure(struct device *device, const struct device_why *why)
{
    pthread_mutex_lock(&device->lock);
    bool failed = device->failed;
    if (failed)
        snprintf(why->text, why->size, "%s", device->why);
    pthread_mutex_unlock(&device->lock);
    return failed;
}

enum strait_status device_refuse(struct device *device, enum strait_status status, const char *what,
                                 const struct device_why *why)
{
    return device_is_sick(device, what) && device_failure(device, why) ? STRAIT_ERR_DEVICE : status;
}

/* ---- GPUs in use ------------------------------------------------------------------------------------------------- */

void process_enter(struct device *device)
{
    pthread_mutex_lock(&process.lock);
    device->process_next = process.in_use;
    process.in_use = device;
    if (process.broken)
        mark_in_broken(device);
    pthread_mutex_unlock(&process.lock);
}

void process_leave(struct device *device)
{
    pthread_mutex_lock(&process.lock);
    struct device **at = &process.in_use;
    while (*at != NULL && *at != device)
        at = &(*at)->process_next;
    if (*at != NULL)
        *at = device->process_next;
    pthread_mutex_unlock(&process.lock);
}

/* The first device in use that reports a broken process. -1: none does. */
static int ask_all(cudaError_t *error)
{
    int number = -1;
    pthread_mutex_lock(&process.lock);
    for (struct device *device = process.in_use; device != NULL && number < 0 && !process.broken;
         device = device->process_next) {
        *error = ask(device);
        if (error_breaks_process(*error))
            number = device->number;
    }
    pthread_mutex_unlock(&process.lock);
    return number;
}

bool process_is_broken(int number, const struct device_why *why)
{
    pthread_mutex_lock(&process.lock);
    bool broken = process.broken;
    if (broken)
        describe(number, why->text, why->size);
    pthread_mutex_unlock(&process.lock);
    return broken;
}

bool process_is_sick(int number, const char *what, const struct device_why *why)
{
    cudaError_t error = cudaSuccess;
    int culprit = ask_all(&error);
    if (culprit >= 0)
        break_process(culprit, what, error);
    return process_is_broken(number, why);
}

/* ---- Work that may still run ------------------------------------------------------------------------------------- */

#define STOP_NS       500000000u
#define STOP_PAUSE_NS 100000u

static bool may_still_run(struct device *device)
{
    pthread_mutex_lock(&device->lock);
    uint64_t failed_at = device->failed_at;
    pthread_mutex_unlock(&device->lock);
    return clock_ns() - failed_at < STOP_NS;
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = STOP_PAUSE_NS}, NULL);
}

void device_wait_stopped(struct device *device)
{
    while (may_still_run(device))
        pause_briefly();
}

/* A chunk's result is written last; a chunk that the driver has stopped never gets one. */
void device_wait_batch(struct device *device, const struct batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++)
        while (batch->tasks[i] != NULL &&
               __atomic_load_n(&batch->results[i].status, __ATOMIC_ACQUIRE) == STRAIT_ERR_DEVICE &&
               may_still_run(device))
            pause_briefly();
}

/* The waiter thread, for clients' events: pages are ready when one has completed. That may take long, and nothing else
 * waits for it. */

#define EVENT_PAUSE_NS 50000u

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
            nanosleep(&(struct timespec){.tv_nsec = EVENT_PAUSE_NS}, NULL);
        pthread_mutex_lock(&device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}
