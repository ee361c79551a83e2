/* Streams, graphs and events. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakes/gpu.h"

#pragma GCC visibility push(default)
struct fake_gpu_control fake_gpu = {.fail_device = -1};
struct fake_nccl_control fake_nccl;
#pragma GCC visibility pop

static _Thread_local int device;

int fake_device(void)
{
    return device;
}

void fake_device_set(int to)
{
    demand(to >= 0 && to < FAKE_GPUS);
    device = to;
}

/* In place of the system's: a GPU of the machine that runs the tests is none of theirs. */
__attribute__((visibility("default"))) DIR *opendir(const char *name)
{
    DIR *(*real)(const char *name) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "opendir");
    if (strcmp(name, "/proc/driver/nvidia/gpus") == 0)
        name = fake_gpu.list;
    if (name != NULL && real != NULL)
        return real(name);
    errno = ENOENT;
    return NULL;
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

/* For a captured stream: called by the thread that launches the graph, with the stream that it is launched on. */
typedef void fake_launch(coll_stream stream, const void *argument);

/* Held by a place in a queue, or by a graph and its places in queues. */
struct work {
    fake_run *run; /* NULL: `launch`, when the graph that it is part of is launched */
    fake_launch *launch;
    fake_end *end;
    void *argument;
    atomic_uint references;
};

struct place {
    struct work *work;
    struct place *next;
};

struct list {
    struct place *first, **end;
};

static void append(struct list *list, struct work *work)
{
    struct place *place = malloc(sizeof(*place));
    demand(place != NULL);
    *place = (struct place){work, NULL};
    atomic_fetch_add(&work->references, 1);
    *list->end = place;
    list->end = &place->next;
}

static struct work *take(struct list *list)
{
    struct place *place = list->first;
    struct work *work = place->work;
    list->first = place->next;
    if (list->first == NULL)
        list->end = &list->first;
    free(place);
    return work;
}

static void drop(struct work *work)
{
    if (atomic_fetch_sub(&work->references, 1) > 1)
        return;
    if (work->end != NULL)
        work->end(work->argument);
    free(work->argument);
    free(work);
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

struct CUstream_st {
    int device;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list queue;
    bool busy, ended;
    struct fake_graph *capture; /* of the thread that queues */
    double clock;               /* seconds, as the work on it passes them. Of its own thread */
    struct CUstream_st *next;
};

/* What waits for a GPU holds its lock meanwhile, as a driver may: no stream of that GPU is made or ended then. Other
 * GPUs do not mind, or else ranks that are threads would wait for each other. */
static struct gpu {
    pthread_mutex_t lock;
    struct CUstream_st *streams;
} gpus[FAKE_GPUS] = {[0 ... FAKE_GPUS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

enum { JOINED_MAX = 16 };

struct fake_graph {
    uint64_t number;
    struct list list;
    coll_stream origin, joined[JOINED_MAX];
    unsigned joined_count;
};

static void shake(unsigned *seed)
{
    const uint32_t most = fake_gpu.jitter_us;
    if (most > 0)
        usleep((useconds_t)rand_r(seed) % most);
}

static void *run(void *argument)
{
    struct CUstream_st *stream = argument;
    unsigned seed = (unsigned)(uintptr_t)stream ^ (unsigned)time(NULL);
    device = stream->device;
    pthread_mutex_lock(&stream->lock);
    while (stream->queue.first != NULL || !stream->ended) {
        if (stream->queue.first == NULL) {
            pthread_cond_wait(&stream->changed, &stream->lock);
            continue;
        }
        struct work *work = take(&stream->queue);
        stream->busy = true;
        pthread_mutex_unlock(&stream->lock);
        shake(&seed);
        work->run(stream, work->argument);
        drop(work);
        pthread_mutex_lock(&stream->lock);
        stream->busy = false;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

coll_stream fake_stream_make(void)
{
    struct CUstream_st *stream = calloc(1, sizeof(*stream));
    demand(stream != NULL);
    stream->device = device;
    stream->queue.end = &stream->queue.first;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    demand(pthread_create(&stream->thread, NULL, run, stream) == 0);
    struct gpu *gpu = &gpus[device];
    pthread_mutex_lock(&gpu->lock);
    stream->next = gpu->streams;
    gpu->streams = stream;
    pthread_mutex_unlock(&gpu->lock);
    return stream;
}

/* CUDA lets what is queued run to its end; waiting for it here is as good for tests. */
void fake_stream_end(coll_stream stream)
{
    struct gpu *gpu = &gpus[stream->device];
    demand(stream->capture == NULL);
    pthread_mutex_lock(&gpu->lock);
    struct CUstream_st **at = &gpu->streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&gpu->lock);
    pthread_mutex_lock(&stream->lock);
    stream->ended = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    demand(pthread_join(stream->thread, NULL) == 0);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

static void finish(coll_stream stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->queue.first != NULL || stream->busy)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

void fake_stream_wait(coll_stream stream)
{
    demand(stream->capture == NULL);
    finish(stream);
}

void fake_device_wait(int of)
{
    pthread_mutex_lock(&gpus[of].lock);
    for (struct CUstream_st *stream = gpus[of].streams; stream != NULL; stream = stream->next)
        finish(stream);
    pthread_mutex_unlock(&gpus[of].lock);
}

bool fake_stream_idle(coll_stream stream)
{
    pthread_mutex_lock(&stream->lock);
    const bool idle = stream->queue.first == NULL && !stream->busy;
    pthread_mutex_unlock(&stream->lock);
    return idle;
}

int fake_stream_device(coll_stream stream)
{
    return stream->device;
}

static void push(coll_stream stream, struct work *work)
{
    pthread_mutex_lock(&stream->lock);
    demand(!stream->ended);
    append(&stream->queue, work);
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static struct work *work_of(fake_run *what, fake_launch *launch, fake_end *end, const void *argument, size_t size)
{
    struct work *work = malloc(sizeof(*work));
    demand(work != NULL);
    *work = (struct work){what, launch, end, malloc(size), 0};
    demand(work->argument != NULL);
    memcpy(work->argument, argument, size);
    return work;
}

void fake_occupy(uint32_t sm_budget)
{
    const uint32_t most = sm_budget == 0 ? UINT32_MAX : sm_budget;
    uint32_t before = fake_gpu.sms;
    while (before < most && !atomic_compare_exchange_weak(&fake_gpu.sms, &before, most)) {
    }
}

void fake_queue(coll_stream stream, fake_run *what, fake_end *end, const void *argument, size_t size)
{
    demand(stream != NULL);
    struct work *work = work_of(what, NULL, end, argument, size);
    if (stream->capture != NULL)
        append(&stream->capture->list, work);
    else
        push(stream, work);
}

void fake_pass_time(coll_stream stream, double seconds)
{
    stream->clock += seconds;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

void fake_capture_begin(coll_stream stream)
{
    static _Atomic uint64_t number;
    struct fake_graph *graph = calloc(1, sizeof(*graph));
    demand(graph != NULL && stream->capture == NULL);
    graph->number = atomic_fetch_add(&number, 1) + 1;
    graph->origin = stream;
    graph->list.end = &graph->list.first;
    stream->capture = graph;
}

uint64_t fake_capture(coll_stream stream)
{
    return stream->capture != NULL ? stream->capture->number : 0;
}

/* Work of all streams of a graph runs one after another, as it was asked for. */
static void capture_join(coll_stream stream, coll_stream captured)
{
    struct fake_graph *graph = captured->capture;
    demand(stream->capture == NULL && graph->joined_count < JOINED_MAX);
    stream->capture = graph;
    graph->joined[graph->joined_count++] = stream;
}

struct fake_graph *fake_capture_end(coll_stream stream)
{
    struct fake_graph *graph = stream->capture;
    demand(graph != NULL && graph->origin == stream);
    for (unsigned i = 0; i < graph->joined_count; i++)
        graph->joined[i]->capture = NULL;
    stream->capture = NULL;
    return graph;
}

void fake_graph_launch(struct fake_graph *graph, coll_stream stream)
{
    demand(stream->capture == NULL && stream->device == graph->origin->device);
    for (struct place *place = graph->list.first; place != NULL; place = place->next)
        if (place->work->launch != NULL)
            place->work->launch(stream, place->work->argument);
        else
            push(stream, place->work);
}

void fake_graph_end(struct fake_graph *graph)
{
    while (graph->list.first != NULL)
        drop(take(&graph->list));
    free(graph);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* One that was recorded while its stream was captured is a point of that graph, and brings the stream that waits for it
 * into the graph. */
/* Recordings on several streams are reached in any order: `over` is the last one before which all are, and those beyond
 * it are in `ahead`, each at its number's place. */
enum { AHEAD = 4096 };

struct CUevent_st {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, over, ahead[AHEAD];
    unsigned references;
    double clock, clocks[AHEAD]; /* of the latest record, and of those in `ahead` */
    coll_stream origin;          /* that was captured, by that number, when it was recorded */
    uint64_t graph;              /* 0: none */
};

struct mark {
    struct CUevent_st *event;
    uint64_t number;
};

struct CUevent_st *fake_event_make(void)
{
    struct CUevent_st *event = calloc(1, sizeof(*event));
    demand(event != NULL);
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
    event->references = 1;
    return event;
}

void fake_event_end(struct CUevent_st *event)
{
    pthread_mutex_lock(&event->lock);
    const bool last = --event->references == 0;
    pthread_mutex_unlock(&event->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&event->lock);
    pthread_cond_destroy(&event->changed);
    free(event);
}

/* Of a mark or a crossing: both begin with their event. */
static void end_mark(void *argument)
{
    fake_event_end(*(struct CUevent_st **)argument);
}

static void reach(coll_stream stream, void *argument)
{
    const struct mark *mark = argument;
    struct CUevent_st *event = mark->event;
    pthread_mutex_lock(&event->lock);
    demand(mark->number > event->over && mark->number - event->over < AHEAD);
    event->ahead[mark->number % AHEAD] = mark->number;
    while (event->ahead[(event->over + 1) % AHEAD] == event->over + 1)
        event->over++;
    event->clock = event->clocks[mark->number % AHEAD] = stream->clock;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

static bool is_reached(const struct CUevent_st *event, uint64_t number)
{
    return event->over >= number || event->ahead[number % AHEAD] == number;
}

static void await(coll_stream stream, void *argument)
{
    const struct mark *mark = argument;
    struct CUevent_st *event = mark->event;
    pthread_mutex_lock(&event->lock);
    while (!is_reached(event, mark->number))
        pthread_cond_wait(&event->changed, &event->lock);
    const bool latest = event->ahead[mark->number % AHEAD] != mark->number;
    const double clock = latest ? event->clock : event->clocks[mark->number % AHEAD];
    const double behind = clock - stream->clock;
    pthread_mutex_unlock(&event->lock);
    if (behind > 0)
        fake_pass_time(stream, behind);
}

static void queue_mark(struct CUevent_st *event, coll_stream stream, bool record)
{
    pthread_mutex_lock(&event->lock);
    event->references++;
    event->recorded += record;
    const struct mark mark = {event, event->recorded};
    pthread_mutex_unlock(&event->lock);
    fake_queue(stream, record ? reach : await, end_mark, &mark, sizeof(mark));
}

void fake_event_record(struct CUevent_st *event, coll_stream stream)
{
    event->graph = fake_capture(stream);
    event->origin = stream;
    if (event->graph == 0)
        queue_mark(event, stream, true);
}

/* CUDA refuses that a graph waits for what is outside of it, and that what is outside waits for it. */
void fake_event_follow(coll_stream stream, struct CUevent_st *event)
{
    const uint64_t graph = fake_capture(stream);
    if (event->graph == 0) {
        demand(graph == 0);
        queue_mark(event, stream, false);
        return;
    }
    demand(fake_capture(event->origin) == event->graph); /* it has not ended */
    if (graph == 0)
        capture_join(stream, event->origin);
    else
        demand(graph == event->graph);
}

/* ---- Outside of graphs ------------------------------------------------------------------------------------------- */

struct crossing {
    struct CUevent_st *event;
    bool record;
};

static void cross_at_launch(coll_stream stream, const void *argument)
{
    const struct crossing *crossing = argument;
    queue_mark(crossing->event, stream, crossing->record);
}

static void cross(struct CUevent_st *event, coll_stream stream, bool record)
{
    const struct crossing crossing = {event, record};
    demand(event->graph == 0);
    pthread_mutex_lock(&event->lock);
    event->references++;
    pthread_mutex_unlock(&event->lock);
    demand(stream->capture != NULL);
    append(&stream->capture->list, work_of(NULL, cross_at_launch, end_mark, &crossing, sizeof(crossing)));
}

void fake_event_record_outside(struct CUevent_st *event, coll_stream stream)
{
    cross(event, stream, true);
}

void fake_event_follow_outside(coll_stream stream, struct CUevent_st *event)
{
    cross(event, stream, false);
}

/* ---- What is known of one ---------------------------------------------------------------------------------------- */

bool fake_event_over(struct CUevent_st *event)
{
    pthread_mutex_lock(&event->lock);
    demand(event->graph == 0);
    const bool over = event->over == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return over;
}

void fake_event_wait(struct CUevent_st *event)
{
    pthread_mutex_lock(&event->lock);
    const uint64_t recorded = event->recorded;
    while (event->over < recorded)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

double fake_event_seconds(struct CUevent_st *from, struct CUevent_st *to)
{
    demand(fake_event_over(from) && fake_event_over(to));
    pthread_mutex_lock(&from->lock);
    const double began = from->clock;
    pthread_mutex_unlock(&from->lock);
    pthread_mutex_lock(&to->lock);
    const double ended = to->clock;
    pthread_mutex_unlock(&to->lock);
    return ended - began;
}
