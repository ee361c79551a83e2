#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "daemon/device/cuda/cuda.h"
#include "internal/element.h"

/* Collects the results of launches. */

/* bytes of its pages */
static uint64_t task_bytes(const struct device_task *task)
{
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < task->pages.region_count; r++)
        bytes += (uint64_t)task->pages.regions[r].rows * task->pages.regions[r].row_bytes;
    return bytes * task->pages.id_count;
}

/* May its chunk still be on its way? */
static bool waits(const struct device_task *task)
{
    return task->work == DEVICE_DECODE && task->flag != NULL;
}

/* Completes a task that failed, before its launch or with the device. */
static void task_fail(struct device *device, struct device_task *task, enum strait_status status)
{
    task->status = status;
    device->setup.done(device->setup.owner, task);
}

/* ---- Escapes ----------------------------------------------------------------------------------------------------- */

static cudaError_t escapes_init(struct escapes *escapes, uint32_t tables)
{
    size_t size = tables * sizeof(escapes->stats[0]);
    if (tables == 0 || tables > TABLES_MAX)
        return cudaSuccess;
    cudaError_t error = cudaHostAlloc((void **)&escapes->stats, size, cudaHostAllocDefault);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&escapes->copied, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&escapes->counters, size);
    return error == cudaSuccess ? cudaMemset(escapes->counters, 0, size) : error;
}

/* Escapes of what was encoded up to the latest copy of the counters, less those reported already. */
static uint64_t take_escapes(struct device *device, struct lane *lane)
{
    struct escapes *e = &lane->escapes;
    if (e->copying && cudaEventQuery(e->copied) == cudaSuccess) {
        e->copying = false;
        e->seen = 0;
        for (uint32_t t = 0; t < device->table_count; t++)
            e->seen += e->stats[t].escapes;
    }
    uint64_t fresh = e->seen - e->reported;
    e->reported = e->seen;
    return fresh;
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

/* Reports a task, which may be freed by that. A chunk encoded in a stage must first be copied out. */
static void tell(struct device *device, struct lane *lane, struct batch *batch, uint32_t i)
{
    struct device_task *task = batch->tasks[i];
    struct stage_slot *slot = batch->slots[i];
    uint64_t now = clock_ns(), from = batch->began > lane->last_over ? batch->began : lane->last_over;
    batch->tasks[i] = NULL;
    batch->reported++;
    lane->last_over = now;
    task->result = batch->results[i];
    task->status = STRAIT_OK;
    if (waits(task)) {
        task->status = batch->fetched[i].came ? STRAIT_OK : STRAIT_ERR_AGAIN;
        memcpy(task->header, batch->fetched[i].header, sizeof(task->header));
    }
    task->queued = batch->began > task->created ? batch->began - task->created : 0;
    task->nanoseconds = now - from;
    if (task->work == DEVICE_ENCODE) {
        task->escapes = take_escapes(device, lane);
        if (task->result.status == STRAIT_OK && slot != NULL) {
            stage_send(device, slot, task, batch->began);
            return;
        }
    }
    if (slot != NULL)
        stage_give(task->work == DEVICE_ENCODE ? &device->out : &device->in, slot);
    device->setup.done(device->setup.owner, task);
}

/* A chunk's result is written last: the chunk is complete then, whatever else its launch still does. */
static bool tell_results(struct device *device, struct lane *lane, struct batch *batch)
{
    uint32_t before = batch->reported;
    for (uint32_t i = 0; i < batch->count; i++)
        if (batch->tasks[i] != NULL &&
            __atomic_load_n(&batch->results[i].status, __ATOMIC_ACQUIRE) != STRAIT_ERR_DEVICE)
            tell(device, lane, batch, i);
    return batch->reported != before;
}

/* Ends the oldest batch. True: it is complete, and all its tasks have been reported. */
static bool end_batch(struct device *device, struct lane *lane)
{
    struct batch *batch = &lane->batches[lane->first];
    cudaError_t error = cudaEventQuery(batch->over);
    if (error == cudaErrorNotReady)
        return false;
    if (error == cudaSuccess)
        tell_results(device, lane, batch);
    if (error != cudaSuccess || batch->reported != batch->count) {
        device_fail(device, "encode or decode", error);
        return false;
    }
    lane->first = (lane->first + 1) % LANE_BATCHES;
    lane->running--;
    return true;
}

static bool lane_collect(struct device *device, struct lane *lane)
{
    bool moved = false;
    if (device_has_failed(device))
        return false; /* left to lane_abandon */
    for (uint32_t i = 0; i < lane->running; i++)
        moved |= tell_results(device, lane, &lane->batches[(lane->first + i) % LANE_BATCHES]);
    while (lane->running > 0 && lane->batches[lane->first].reported == lane->batches[lane->first].count &&
           end_batch(device, lane))
        moved = true;
    if (!moved && lane->running > 0 && end_batch(device, lane)) /* a failed launch writes no results */
        moved = true;
    if (lane->running == 0 && lane->waiting == NULL && lane->escapes.counted && !lane->escapes.copying) {
        struct escapes *e = &lane->escapes;
        cudaError_t error = cudaMemcpyAsync(e->stats, e->counters, device->table_count * sizeof(e->stats[0]),
                                            cudaMemcpyDeviceToHost, lane->stream);
        if (error == cudaSuccess)
            error = cudaEventRecord(e->copied, lane->stream);
        if (error != cudaSuccess)
            device_fail(device, "copy", error);
        e->counted = false;
        e->copying = error == cudaSuccess;
    }
    return moved;
}

/* Reports completed tasks. False: there are none. */
static uint64_t lane_load(const struct lane *lane)
{
    uint64_t tasks = 0;
    for (uint32_t i = 0; i < lane->running; i++) {
        const struct batch *batch = &lane->batches[(lane->first + i) % LANE_BATCHES];
        tasks += batch->count - batch->reported;
    }
    for (const struct device_task *task = lane->waiting; task != NULL; task = task->next)
        tasks++;
    return tasks;
}

/* After a failure: waits for running work, and fails all tasks. */
static void lane_abandon(struct device *device, struct lane *lane)
{
    (void)cudaStreamSynchronize(lane->stream); /* any error is ignored */
    for (; lane->running > 0; lane->running--) {
        struct batch *batch = &lane->batches[lane->first];
        device_wait_batch(device, batch);
        for (uint32_t i = 0; i < batch->count; i++) {
            struct device_task *task = batch->tasks[i];
            if (task == NULL)
                continue;
            if (batch->slots[i] != NULL)
                stage_give(task->work == DEVICE_ENCODE ? &device->out : &device->in, batch->slots[i]);
            task_fail(device, task, STRAIT_ERR_DEVICE);
        }
        lane->first = (lane->first + 1) % LANE_BATCHES;
    }
    struct device_task *task = lane->waiting, *next;
    lane->waiting = NULL;
    lane->waiting_end = &lane->waiting;
    for (; task != NULL; task = next) {
        next = task->next;
        task_fail(device, task, STRAIT_ERR_DEVICE);
    }
}

/* The coder thread: it launches submitted tasks and polls for completed ones. */

#define SPIN_NS  200000u /* chunks take some tens of microseconds: the thread polls without a pause for so long, */
#define PAUSE_NS 20000u  /* then with pauses */

/* Bytes of pages that wait in a lane for its next launch. */
static uint64_t waiting_bytes(const struct lane *lane)
{
    uint64_t bytes = 0;
    for (const struct device_task *task = lane->waiting; task != NULL; task = task->next)
        bytes += task_bytes(task);
    return bytes;
}

#define JOIN_BYTES (20u << 20) /* decoded as soon as by launches of its own: the host takes 15 us for each */

static bool may_join(const struct lane *lane, const struct device_task *task)
{
    return lane->waiting != NULL && lane->waiting->on_gpu && waiting_bytes(lane) + task_bytes(task) <= JOIN_BYTES;
}

/* The least loaded of these lanes. */
static struct lane *least_loaded(struct lane *first, uint32_t count)
{
    struct lane *least = first;
    for (uint32_t i = 1; i < count; i++)
        if (lane_load(first + i) < lane_load(least))
            least = first + i;
    return least;
}

/* A lane for the task. Chunks that came over a link go where the next launch can take them too, if the task may join.
 * NULL: a task that may wait finds no lane without others that wait. */
static struct lane *lane_of(struct device *device, const struct device_task *task, bool joins)
{
    if (task->work == DEVICE_ENCODE)
        return least_loaded(device->lanes, ENCODE_LANES);
    struct lane *first = &device->lanes[ENCODE_LANES + (waits(task) ? DECODE_LANES : 0)];
    const uint32_t count = waits(task) ? AHEAD_LANES : DECODE_LANES;
    for (uint32_t i = 0; i < count && task->on_gpu && joins; i++)
        if (may_join(first + i, task))
            return first + i;
    struct lane *least = least_loaded(first, count);
    return waits(task) && lane_load(least) != 0 ? NULL : least;
}

static void lane_add(struct device *device, struct lane *lane, struct device_task *task);

/* Tasks submitted together for a link go into one lane, and so cross the link in order: the first chunks arrive sooner
 * than if all went at once. The last of many chunks that are waited for is decoded by itself: nothing else is under way
 * any more then. */
static void take_submitted(struct device *device)
{
    struct device_task *task = device->submitted, *next;
    struct lane *on_peer_gpu = NULL;
    uint64_t awaited = 0;
    for (const struct device_task *each = task; each != NULL; each = each->next)
        awaited += waits(each) ? task_bytes(each) : 0;
    device->submitted = NULL;
    device->submitted_end = &device->submitted;
    for (; task != NULL; task = next) {
        next = task->next;
        const bool joins = next != NULL || awaited <= JOIN_BYTES;
        struct lane *lane = task->on_peer_gpu && on_peer_gpu != NULL ? on_peer_gpu : lane_of(device, task, joins);
        if (task->on_peer_gpu)
            on_peer_gpu = lane;
        if (lane != NULL)
            lane_add(device, lane, task);
        else
            task_fail(device, task, STRAIT_ERR_AGAIN);
    }
}

static bool lane_may_launch(struct device *device, const struct lane *lane);

static void lane_launch(struct device *device, struct lane *lane);

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
        if (device->lanes[i].running > 0 || device->lanes[i].waiting != NULL)
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
    uint64_t spin = device->setup.busy_poll_ns > SPIN_NS ? device->setup.busy_poll_ns : SPIN_NS;
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
        bool idle = !is_busy(device) && device->submitted == NULL, woken = idle && device->woken;
        device->woken = false;
        if (idle && device->closing)
            break;
        if (woken)
            moved_at = clock_ns();
        if (idle && !woken && clock_ns() - moved_at >= device->setup.busy_poll_ns) {
            pthread_cond_wait(&device->work, &device->lock);
            moved_at = clock_ns();
            continue;
        }
        take_submitted(device);
        pthread_mutex_unlock(&device->lock);
        if (woken)
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

/* Launches the tasks of one direction, in batches. */

#define SCRATCH_FIXED (1u << 20)
#define BATCH_BYTES   (4u << 20)  /* bytes of pages: keeps the bus busy; with more, its first chunk would wait longer */
#define GPU_BYTES     (64u << 20) /* the same for chunks that another GPU sent: nothing waits for the first of them */
#define PEER_BYTES                                                                                                    \
    (128u << 20) /* for chunks stored into another GPU: results come one by one, and the launch takes the link's time \
                  */
#define LINK_BYTES (17u << 20) /* for chunks that another library sends: it waits for the first of them */

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static cudaError_t batch_init(struct device *device, struct batch *batch)
{
    cudaError_t error = cudaEventCreateWithFlags(&batch->over, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&batch->staged, device->staging_size, cudaHostAllocMapped);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&batch->staging, device->staging_size);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&batch->results, BATCH_TASKS * sizeof(batch->results[0]), cudaHostAllocMapped);
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&batch->fetched, BATCH_TASKS * sizeof(batch->fetched[0]), cudaHostAllocMapped);
    return error;
}

/* Decoders get the higher priority: an encoder for a link takes the link's time anyway. */
static cudaError_t make_stream(const struct device *device, struct lane *lane)
{
    const bool decodes = lane >= device->lanes + ENCODE_LANES;
    int least = 0, greatest = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return error != cudaSuccess
               ? error
               : cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, decodes ? greatest : least);
}

/* Every block costs 40 bytes of scratch and every page at least 20 bytes of its chunk, so twice a slot is enough for a
 * chunk in host memory. GPU chunks have fewer blocks: GPU_CHUNK_PAGES_MAX, and one for every 8 KiB. */
cudaError_t lane_init(struct device *device, struct lane *lane)
{
    const bool ahead = lane >= device->lanes + ENCODE_LANES + DECODE_LANES; /* no chunks of the host's memory */
    lane->waiting_end = &lane->waiting;
    lane->scratch_size = (ahead ? 0 : 2 * (size_t)device->setup.slot_bytes) + GPU_CHUNK_PAGES_MAX * 64u +
                         (size_t)device->setup.gpu_chunk_bytes / 128 + SCRATCH_FIXED;
    cudaError_t error = make_stream(device, lane);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&lane->scratch, lane->scratch_size);
    if (error == cudaSuccess)
        error = cudaMemset(lane->scratch, 0, lane->scratch_size);
    for (uint32_t i = 0; i < LANE_BATCHES && error == cudaSuccess; i++)
        error = batch_init(device, &lane->batches[i]);
    if (error == cudaSuccess)
        error = escapes_init(&lane->escapes, device->table_count);
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

void lane_fini(struct lane *lane)
{
    for (uint32_t i = 0; i < LANE_BATCHES; i++) {
        struct batch *batch = &lane->batches[i];
        if (batch->over != NULL)
            cudaEventDestroy(batch->over);
        cudaFreeHost(batch->staged);
        cudaFree(batch->staging);
        cudaFreeHost(batch->results);
        cudaFreeHost(batch->fetched);
    }
    cudaFreeHost(lane->escapes.stats);
    cudaFree(lane->escapes.counters);
    if (lane->escapes.copied != NULL)
        cudaEventDestroy(lane->escapes.copied);
    cudaFree(lane->scratch);
    if (lane->stream != NULL)
        cudaStreamDestroy(lane->stream);
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t rounded(size_t size)
{
    return (size + 15) & ~(size_t)15;
}

static size_t staged_size(const struct device_task *task)
{
    return rounded(task->pages.id_count * sizeof(uint32_t)) + rounded(task->metadata_size);
}

/* An honest peer's task fits: a slot does not hold more pages. */
static void lane_add(struct device *device, struct lane *lane, struct device_task *task)
{
    if (staged_size(task) > device->staging_size) {
        task_fail(device, task, STRAIT_ERR_NO_SPACE);
        return;
    }
    task->next = NULL;
    *lane->waiting_end = task;
    lane->waiting_end = &task->next;
}

static bool uses_tables(const struct device_task *task)
{
    return element_uses_tables(task->element, task->mode);
}

/* The stage in which the task's chunk is coded; NULL: it is coded in place. */
static struct stage *stage_of(struct device *device, const struct device_task *task)
{
    if (task->on_gpu)
        return NULL;
    return task->work == DEVICE_ENCODE ? &device->out : &device->in;
}

static uint64_t most_bytes(const struct device_task *task)
{
    if (!task->on_gpu)
        return BATCH_BYTES;
    if (task->work == DEVICE_DECODE)
        return GPU_BYTES;
    return task->on_peer_gpu ? PEER_BYTES : LINK_BYTES;
}

/* Moves waiting tasks that can be launched together to the batch, in order. */
static void choose(struct device *device, struct lane *lane, struct batch *batch)
{
    size_t staged = 0;
    uint64_t bytes = 0;
    batch->count = 0;
    for (struct device_task **at = &lane->waiting, *task; (task = *at) != NULL;) {
        struct stage *on = stage_of(device, task);
        bool fits = batch->count < BATCH_TASKS && (on == NULL || on->taken < STAGE_SLOTS) &&
                    staged + staged_size(task) <= device->staging_size && bytes + task_bytes(task) <= most_bytes(task);
        if (batch->count > 0 &&
            (!fits || task->on_gpu != batch->tasks[0]->on_gpu || task->on_peer_gpu != batch->tasks[0]->on_peer_gpu ||
             (task->work != DEVICE_DECODE &&
              (task->element != batch->tasks[0]->element || task->mode != batch->tasks[0]->mode)))) {
            at = &task->next;
            continue;
        }
        *at = task->next;
        staged += staged_size(task);
        bytes += task_bytes(task);
        batch->slots[batch->count] = on != NULL ? stage_take(on) : NULL;
        batch->tasks[batch->count++] = task;
        if (*at == NULL)
            lane->waiting_end = at;
    }
}

/* Puts the last tasks of the batch back to the front of the waiting ones. */
static void put_back(struct device *device, struct lane *lane, struct batch *batch, uint32_t keep)
{
    while (batch->count > keep) {
        struct device_task *task = batch->tasks[--batch->count];
        if (batch->slots[batch->count] != NULL)
            stage_give(stage_of(device, task), batch->slots[batch->count]);
        task->next = lane->waiting;
        if (lane->waiting == NULL)
            lane->waiting_end = &task->next;
        lane->waiting = task;
    }
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

static void *stage(struct batch *batch, size_t *used, const void *bytes, size_t size)
{
    void *there = batch->staging + *used;
    memcpy(batch->staged + *used, bytes, size);
    *used += rounded(size);
    return there;
}

/* The task's pages with ids staged for the device. Neighbours with equal regions share them, which makes them cheap to
 * launch together. An encoder for a link has the time to read ids from host memory, and so begins sooner. */
static struct strait_pages place(struct batch *batch, uint32_t i, const struct strait_pages *before, size_t *used)
{
    const bool on_peer_gpu = batch->tasks[i]->on_peer_gpu;
    struct strait_pages pages = batch->tasks[i]->pages;
    const uint8_t *host = batch->staged + *used,
                  *there = stage(batch, used, pages.ids, pages.id_count * sizeof(uint32_t));
    pages.ids = (const uint32_t *)(on_peer_gpu ? host : there);
    if (before != NULL && before->region_count == pages.region_count &&
        memcmp(before->regions, pages.regions, pages.region_count * sizeof(pages.regions[0])) == 0)
        pages.regions = before->regions;
    return pages;
}

static struct strait_run run_of(struct device *device, struct lane *lane, const struct batch *batch)
{
    bool counts =
        lane->escapes.counters != NULL && batch->tasks[0]->work == DEVICE_ENCODE && uses_tables(batch->tasks[0]);
    const bool on_peer_gpu = batch->tasks[0]->on_peer_gpu;
    lane->escapes.counted |= counts;
    return (struct strait_run){.size = sizeof(struct strait_run),
                               .scratch = lane->scratch,
                               .scratch_size = lane->scratch_size,
                               .stream = lane->stream,
                               .class_stats = counts ? lane->escapes.counters : NULL,
                               .class_count = counts ? device->table_count : 0,
                               .caching = on_peer_gpu ? STRAIT_CACHING_LINK : STRAIT_CACHING_AUTO,
                               .sm_budget = on_peer_gpu ? device->peer_multiprocessors : device->setup.multiprocessors,
                               .tables = device->tables};
}

/* Copies what has been staged; on the device there is room behind it. */
static struct prepare prepare_staged(const struct batch *batch, size_t used)
{
    return (struct prepare){.from = batch->staged, .to = batch->staging, .vectors = (uint32_t)(used / 16)};
}

static enum strait_status encode(struct device *device, struct lane *lane, struct batch *batch, cudaError_t *error)
{
    const struct device_codec *codec = device->setup.codec;
    struct strait_encode_item items[BATCH_TASKS];
    size_t used = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct device_task *task = batch->tasks[i];
        items[i] = (struct strait_encode_item){.src = place(batch, i, i > 0 ? &items[i - 1].src : NULL, &used),
                                               .dst = task->on_gpu ? task->dst : batch->slots[i]->memory,
                                               .dst_capacity = task->on_gpu ? task->size
                                                                            : least(task->size, device->out.slot_bytes),
                                               .result = &batch->results[i],
                                               .flag = task->flag,
                                               .flag_value = task->flag_value};
    }
    while (batch->count > 1 && codec->encode_scratch(device->codec, items, batch->count) > lane->scratch_size)
        put_back(device, lane, batch, batch->count / 2);
    const struct device_task *first = batch->tasks[0];
    const struct strait_encode_params params = {.size = sizeof(params),
                                                .element = first->element,
                                                .mode = first->mode,
                                                .codebook = uses_tables(first) ? device->setup.codebook : NULL};
    const struct strait_run run = run_of(device, lane, batch);
    const struct prepare prepare = prepare_staged(batch, used);
    if (!first->on_peer_gpu)
        *error = prepare_launch(&prepare, lane->stream);
    return *error != cudaSuccess ? STRAIT_ERR_DEVICE : codec->encode(device->codec, &params, items, batch->count, &run);
}

/* Metadata that the device copies itself goes behind what is staged. */
static struct prepare prepare_in_place(const struct batch *batch, struct strait_decode_item *items, size_t used)
{
    struct prepare prepare = prepare_staged(batch, used);
    prepare.fetched = batch->fetched;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct device_task *task = batch->tasks[i];
        struct fetch *fetch = &prepare.fetches[prepare.fetch_count++];
        *fetch = (struct fetch){.from = task->src,
                                .to = batch->staging + used,
                                .flag = task->flag,
                                .flag_value = task->flag_value,
                                .vectors = (uint32_t)(task->metadata_size / 16)};
        memcpy(fetch->begins, task->begins, sizeof(fetch->begins));
        items[i].metadata = fetch->to;
        used += rounded(task->metadata_size);
    }
    return prepare;
}

static enum strait_status decode(struct device *device, struct lane *lane, struct batch *batch, cudaError_t *error)
{
    const struct device_codec *codec = device->setup.codec;
    struct strait_decode_item items[BATCH_TASKS];
    size_t used = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct device_task *task = batch->tasks[i];
        items[i] = (struct strait_decode_item){.dst = place(batch, i, i > 0 ? &items[i - 1].dst : NULL, &used),
                                               .src = task->on_gpu ? task->src : batch->slots[i]->memory,
                                               .src_size = task->size,
                                               .result = &batch->results[i],
                                               .flags = waits(task) ? STRAIT_DECODE_AT_MOST : 0};
        if (!task->on_gpu)
            items[i].metadata = stage(batch, &used, task->metadata, task->metadata_size);
    }
    while (batch->count > 1 && codec->decode_scratch(device->codec, items, batch->count) > lane->scratch_size)
        put_back(device, lane, batch, batch->count / 2);
    const struct strait_run run = run_of(device, lane, batch);
    const struct prepare prepare =
        batch->tasks[0]->on_gpu ? prepare_in_place(batch, items, used) : prepare_staged(batch, used);
    for (uint32_t i = 0; i < batch->count && *error == cudaSuccess; i++)
        if (batch->slots[i] != NULL)
            *error = stage_fetch(&device->in, batch->slots[i], batch->tasks[i], lane->stream);
    if (*error == cudaSuccess)
        *error = prepare_launch(&prepare, lane->stream);
    return *error != cudaSuccess ? STRAIT_ERR_DEVICE
                                 : codec->decode(device->codec, device->setup.codebook, items, batch->count, &run);
}

/* Tasks that the codec refused have not run: only these fail. Their chunks may still be on their way to the stage. */
static void launched(struct device *device, struct lane *lane, struct batch *batch, enum strait_status status,
                     cudaError_t error)
{
    if (status == STRAIT_OK && error == cudaSuccess)
        error = cudaEventRecord(batch->over, lane->stream);
    if (status == STRAIT_ERR_DEVICE || error != cudaSuccess)
        device_fail(device, "launch", error);
    if (status == STRAIT_OK || status == STRAIT_ERR_DEVICE) {
        lane->running++; /* after a failure too: part of it may run */
        return;
    }
    for (uint32_t i = 0; i < batch->count; i++) {
        if (batch->slots[i] != NULL && batch->tasks[i]->work == DEVICE_DECODE)
            (void)cudaEventSynchronize(batch->slots[i]->copied);
        if (batch->slots[i] != NULL)
            stage_give(stage_of(device, batch->tasks[i]), batch->slots[i]);
        task_fail(device, batch->tasks[i], status);
    }
}

/* A small launch would delay a large one: while a batch of GPU chunks is being decoded, wait for more tasks. */
static bool lane_may_launch(struct device *device, const struct lane *lane)
{
    if (lane->waiting == NULL || lane->running == LANE_BATCHES)
        return false;
    const struct stage *on = stage_of(device, lane->waiting);
    if (on != NULL && on->taken == STAGE_SLOTS)
        return false;
    return !lane->waiting->on_gpu || lane->waiting->work == DEVICE_ENCODE || lane->running == 0 ||
           waiting_bytes(lane) >= GPU_BYTES / 2;
}

/* Launches as many waiting tasks as fit into one batch; a batch must be free. */
static void lane_launch(struct device *device, struct lane *lane)
{
    struct batch *batch = &lane->batches[(lane->first + lane->running) % LANE_BATCHES];
    cudaError_t error = cudaSuccess;
    choose(device, lane, batch);
    batch->began = clock_ns();
    batch->reported = 0;
    for (uint32_t i = 0; i < batch->count; i++)
        batch->results[i] = (struct strait_result){.status = STRAIT_ERR_DEVICE};
    enum strait_status status = batch->tasks[0]->work == DEVICE_ENCODE ? encode(device, lane, batch, &error)
                                                                       : decode(device, lane, batch, &error);
    launched(device, lane, batch, status, error);
}
