/* Streams and events. */
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/fakes/cuda.h"
#include "tests/fakes/device.h"

/* ---- Streams: a queue and a thread ------------------------------------------------------------------------------- */

struct work {
    void (*run)(void *argument);
    void *argument;
    struct work *next;
};

struct fake_stream {
    int device;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct work *first, **end;
    bool busy, destroyed;
    struct fake_stream *next;
};

static struct fake_stream *streams, *defaults[FAKE_DEVICES];
static pthread_mutex_t all = PTHREAD_MUTEX_INITIALIZER;

static void release(struct fake_stream *stream)
{
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

static void *run(void *argument)
{
    struct fake_stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    while (stream->first != NULL || !stream->destroyed) {
        struct work *work = stream->first;
        if (work == NULL) {
            pthread_cond_wait(&stream->changed, &stream->lock);
            continue;
        }
        stream->first = work->next;
        if (stream->first == NULL)
            stream->end = &stream->first;
        stream->busy = true;
        pthread_mutex_unlock(&stream->lock);
        if (fake_cuda_control.delay_us != 0)
            usleep(fake_cuda_control.delay_us);
        work->run(work->argument);
        free(work);
        pthread_mutex_lock(&stream->lock);
        stream->busy = false;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    release(stream);
    return NULL;
}

static struct fake_stream *create(int device)
{
    struct fake_stream *stream = calloc(1, sizeof(*stream));
    demand(stream != NULL && device >= 0);
    stream->device = device;
    stream->end = &stream->first;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->next = streams;
    streams = stream;
    demand(pthread_create(&stream->thread, NULL, run, stream) == 0);
    pthread_detach(stream->thread);
    return stream;
}

/* NULL, 1 and 2 name the default stream of the context that is current. */
static struct fake_stream *stream_of(void *handle)
{
    int device = fake_current_device();
    if ((uintptr_t)handle > 2)
        return handle;
    if (device < 0)
        return NULL;
    pthread_mutex_lock(&all);
    if (defaults[device] == NULL)
        defaults[device] = create(device);
    pthread_mutex_unlock(&all);
    return defaults[device];
}

int fake_stream_device(void *handle)
{
    struct fake_stream *stream = stream_of(handle);
    return stream != NULL ? stream->device : -1;
}

static int fails(void)
{
    uint32_t left = fake_cuda_control.fail;
    if (left == 0)
        return FAKE_OK;
    fake_cuda_control.fail = left - 1;
    return FAKE_LAUNCH_FAILED;
}

int fake_queue(void *handle, void (*run_it)(void *argument), void *argument)
{
    struct fake_stream *stream = stream_of(handle);
    struct work *work = malloc(sizeof(*work));
    demand(stream != NULL && work != NULL && !stream->destroyed);
    *work = (struct work){run_it, argument, NULL};
    pthread_mutex_lock(&stream->lock);
    *stream->end = work;
    stream->end = &work->next;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return FAKE_OK;
}

static void finish(struct fake_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->first != NULL || stream->busy)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

void fake_finish_device(int device)
{
    pthread_mutex_lock(&all);
    for (struct fake_stream *stream = streams; stream != NULL; stream = stream->next)
        if (stream->device == device)
            finish(stream);
    pthread_mutex_unlock(&all);
}

FAKE_VISIBLE int cuStreamCreate(void **handle, unsigned flags)
{
    demand(flags <= 1);
    pthread_mutex_lock(&all);
    *handle = create(fake_current_device());
    pthread_mutex_unlock(&all);
    fake_cuda_control.streams++;
    return FAKE_OK;
}

/* Its thread ends, and frees it, when all has run. */
FAKE_VISIBLE int cuStreamDestroy_v2(struct fake_stream *stream)
{
    pthread_mutex_lock(&all);
    struct fake_stream **at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&all);
    pthread_mutex_lock(&stream->lock);
    stream->destroyed = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    fake_cuda_control.streams--;
    return FAKE_OK;
}

FAKE_VISIBLE int cuStreamSynchronize(void *handle)
{
    finish(stream_of(handle));
    fake_cuda_control.synchronised++;
    return FAKE_OK;
}

FAKE_VISIBLE int cuStreamQuery(void *handle)
{
    struct fake_stream *stream = stream_of(handle);
    pthread_mutex_lock(&stream->lock);
    bool idle = stream->first == NULL && !stream->busy;
    pthread_mutex_unlock(&stream->lock);
    return idle ? FAKE_OK : FAKE_NOT_READY;
}

FAKE_VISIBLE int cuStreamIsCapturing(void *handle, int *status)
{
    demand(stream_of(handle) != NULL);
    *status = fake_cuda_control.capturing != 0;
    return FAKE_OK;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

struct copy {
    void *to;
    const void *from; /* NULL: fill */
    size_t size;
    uint8_t value;
};

static void do_copy(void *argument)
{
    struct copy *copy = argument;
    demand(fake_is_reachable(copy->to, copy->size, -1));
    demand(copy->from == NULL || fake_is_reachable(copy->from, copy->size, -1));
    if (copy->from != NULL)
        memcpy(copy->to, copy->from, copy->size);
    else
        memset(copy->to, copy->value, copy->size);
    free(copy);
}

static int queue_copy(struct copy copy, void *stream)
{
    struct copy *kept = malloc(sizeof(*kept));
    demand(kept != NULL && copy.size > 0);
    *kept = copy;
    return fake_queue(stream, do_copy, kept);
}

FAKE_VISIBLE int cuMemcpyAsync(void *to, const void *from, size_t size, void *stream)
{
    int status = fails();
    return status == FAKE_OK ? queue_copy((struct copy){to, from, size, 0}, stream) : status;
}

FAKE_VISIBLE int cuMemsetD8Async(void *to, unsigned char value, size_t size, void *stream)
{
    int status = fails();
    return status == FAKE_OK ? queue_copy((struct copy){to, NULL, size, value}, stream) : status;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* A daemon in this process takes a pointer to one for a pointer to its handle. */
struct event {
    struct fake_handle handle; /* first */
    bool interprocess;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, completed;
    unsigned references;
};

static void event_release(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    bool last = --event->references == 0;
    pthread_mutex_unlock(&event->lock);
    if (!last)
        return;
    close(event->handle.fd);
    pthread_mutex_destroy(&event->lock);
    pthread_cond_destroy(&event->changed);
    free(event);
}

/* An event and one of its recordings, on a stream. */
struct mark {
    struct event *event;
    uint64_t number;
};

static void reach(void *argument)
{
    struct mark *mark = argument;
    struct event *event = mark->event;
    pthread_mutex_lock(&event->lock);
    if (event->completed < mark->number)
        event->completed = mark->number;
    demand(eventfd_write(event->handle.fd, 1) == 0);
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
    event_release(event);
    free(mark);
}

static void await(void *argument)
{
    struct mark *mark = argument;
    struct event *event = mark->event;
    pthread_mutex_lock(&event->lock);
    while (event->completed < mark->number)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
    event_release(event);
    free(mark);
}

static int queue_mark(struct event *event, void *stream, bool record)
{
    struct mark *mark = malloc(sizeof(*mark));
    demand(mark != NULL);
    pthread_mutex_lock(&event->lock);
    event->references++;
    event->recorded += record;
    *mark = (struct mark){event, event->recorded};
    pthread_mutex_unlock(&event->lock);
    return fake_queue(stream, record ? reach : await, mark);
}

FAKE_VISIBLE int cuEventCreate(struct event **event, unsigned flags)
{
    demand(fake_current_device() >= 0 && (flags & 2) != 0);
    struct event *made = calloc(1, sizeof(*made));
    demand(made != NULL);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    made->handle = (struct fake_handle){.pid = getpid(), .fd = eventfd(0, EFD_CLOEXEC)};
    made->interprocess = (flags & 4) != 0;
    made->references = 1;
    fake_cuda_control.events++;
    *event = made;
    return FAKE_OK;
}

FAKE_VISIBLE int cuEventDestroy_v2(struct event *event)
{
    fake_cuda_control.events--;
    event_release(event);
    return FAKE_OK;
}

FAKE_VISIBLE int cuEventRecord(struct event *event, void *stream)
{
    return queue_mark(event, stream, true);
}

FAKE_VISIBLE int cuStreamWaitEvent(void *stream, struct event *event, unsigned flags)
{
    demand(flags == 0);
    return queue_mark(event, stream, false);
}

FAKE_VISIBLE int cuEventQuery(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    bool done = event->completed == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return done ? FAKE_OK : FAKE_NOT_READY;
}

FAKE_VISIBLE int cuEventSynchronize(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    while (event->completed < event->recorded)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
    fake_cuda_control.synchronised++;
    return FAKE_OK;
}

FAKE_VISIBLE int cuIpcGetEventHandle(struct fake_handle *handle, struct event *event)
{
    if (!event->interprocess)
        return FAKE_INVALID_VALUE;
    *handle = event->handle;
    return FAKE_OK;
}

/* ---- Waiting for a word ------------------------------------------------------------------------------------------ */

struct word {
    const uint32_t *at;
    uint32_t value;
};

static void await_word(void *argument)
{
    struct word *word = argument;
    demand(fake_is_reachable(word->at, sizeof(*word->at), -1));
    while ((int32_t)(__atomic_load_n(word->at, __ATOMIC_ACQUIRE) - word->value) < 0)
        usleep(50);
    free(word);
}

FAKE_VISIBLE int cuStreamWaitValue32_v2(void *stream, const uint32_t *at, uint32_t value, unsigned flags)
{
    demand(flags == 0 && (uintptr_t)at % 4 == 0); /* GEQ */
    int status = fails();
    if (status != FAKE_OK)
        return status;
    struct word *word = malloc(sizeof(*word));
    demand(word != NULL);
    *word = (struct word){at, value};
    fake_cuda_control.waits++;
    return fake_queue(stream, await_word, word);
}
