/* The coder thread: it launches submitted tasks and polls for completed ones. */
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include "daemon/device/cuda/cuda.h"

#define SPIN_NS  200000u /* chunks take some tens of microseconds: the thread polls without a pause for so long, */
#define PAUSE_NS 20000u  /* then with pauses */

/* The least loaded lane of the task's direction. */
static struct lane *lane_of(struct device *device, const struct device_task *task)
{
    const bool encodes = task->work == DEVICE_ENCODE;
    struct lane *first = &device->lanes[encodes ? 0 : ENCODE_LANES], *least = first;
    for (uint32_t i = 1; i < (encodes ? ENCODE_LANES : DECODE_LANES); i++)
        if (lane_load(first + i) < lane_load(least))
            least = first + i;
    return least;
}

/* Tasks submitted together for a link go into one lane, and so cross the link in order: the first chunks arrive sooner
 * than if all went at once. */
static void take_submitted(struct device *device)
{
    struct device_task *task = device->submitted, *next;
    struct lane *away = NULL;
    device->submitted = NULL;
    device->submitted_end = &device->submitted;
    for (; task != NULL; task = next) {
        next = task->next;
        struct lane *lane = task->away && away != NULL ? away : lane_of(device, task);
        if (task->away)
            away = lane;
        lane_add(device, lane, task);
    }
}

/* True: there was progress. One launch at a time: it takes some 10 us, in which other chunks may have been coded whose
 * copies the link waits for. */
static bool work_lane(struct device *device, struct lane *lane)
{
    bool moved = false;
    if (lane->running > 0 || lane->escapes.counted)
        moved = lane_collect(device, lane);
    if (lane_may_launch(device, lane) && !device_has_failed(device)) {
        lane_launch(device, lane);
        moved = true;
    }
    if (device_has_failed(device) && (lane->running > 0 || lane->waiting != NULL)) {
        lane_abandon(device, lane);
        moved = true;
    }
    return moved;
}

static bool is_busy(const struct device *device)
{
    for (uint32_t i = 0; i < LANES; i++)
        if (lane_is_busy(&device->lanes[i]))
            return true;
    return device->out.leaving > 0;
}

/* True: there was progress. */
static bool work_stage(struct device *device)
{
    bool moved = device->out.leaving > 0 && stage_collect(device);
    if (device->out.leaving > 0 && device_has_failed(device)) {
        stage_abandon(device);
        moved = true;
    }
    return moved;
}

/* A GPU shared by several processes serves one at a time, and takes some 150 us to switch. An empty kernel makes it
 * switch to this process while the daemons are still negotiating. */
static void turn_here(struct device *device)
{
    const struct prepare nothing = {.vectors = 0};
    if (device_has_failed(device))
        return;
    cudaError_t error = prepare_launch(&nothing, device->lanes[0].stream);
    if (error != cudaSuccess)
        device_fail(device, "launch", error);
}

static void pause_after(const struct device *device, uint64_t moved_at)
{
    uint64_t spin = device->setup.attention_ns > SPIN_NS ? device->setup.attention_ns : SPIN_NS;
    if (clock_ns() - moved_at < spin)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

void *coder_run(void *arg)
{
    struct device *device = arg;
    uint64_t moved_at = 0;
    prctl(PR_SET_NAME, "strait-gpu");
    prctl(PR_SET_TIMERSLACK, 1000);
    cudaSetDevice(device->number);
    pthread_mutex_lock(&device->lock);
    for (;;) {
        bool idle = !is_busy(device) && device->submitted == NULL, roused = idle && device->roused;
        device->roused = false;
        if (idle && device->closing)
            break;
        if (roused)
            moved_at = clock_ns();
        if (idle && !roused && clock_ns() - moved_at >= device->setup.attention_ns) {
            pthread_cond_wait(&device->work, &device->lock);
            moved_at = clock_ns();
            continue;
        }
        take_submitted(device);
        pthread_mutex_unlock(&device->lock);
        if (roused)
            turn_here(device);
        bool moved = work_stage(device);
        for (uint32_t i = LANES; i-- > 0;)
            moved |= work_lane(device, &device->lanes[i]);
        if (moved)
            moved_at = clock_ns();
        else
            pause_after(device, moved_at);
        pthread_mutex_lock(&device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}
