/* Streams and graphs. */
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/coll_fake/stream.h"

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
    demand(to >= 0 && to < FAKE_DEVICES);
    device = to;
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

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
} gpus[FAKE_DEVICES] = {[0 ... FAKE_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

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

void fake_queue(coll_stream stream, fake_run *what, fake_end *end, const void *argument, size_t size)
{
    struct work *work = calloc(1, sizeof(*work));
    demand(stream != NULL && work != NULL);
    *work = (struct work){what, NULL, end, malloc(size), 0};
    demand(work->argument != NULL);
    memcpy(work->argument, argument, size);
    if (stream->capture != NULL)
        append(&stream->capture->list, work);
    else
        push(stream, work);
}

void fake_queue_launch(coll_stream stream, fake_launch *launch, fake_end *end, const void *argument, size_t size)
{
    struct work *work = calloc(1, sizeof(*work));
    demand(work != NULL && stream->capture != NULL);
    *work = (struct work){NULL, launch, end, malloc(size), 0};
    demand(work->argument != NULL);
    memcpy(work->argument, argument, size);
    append(&stream->capture->list, work);
}

void fake_pass_time(coll_stream stream, double seconds)
{
    stream->clock += seconds;
}

double fake_stream_clock(coll_stream stream)
{
    return stream->clock;
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
void fake_capture_join(coll_stream stream, coll_stream captured)
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
