#include "checkpoint/pipeline.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint/writer.h"
#include "internal/bytes.h"
#include "internal/thread.h"

#define COMPARISONS_MAX 4096u /* that wait for a thread */

struct buffer {
    struct write write; /* first: the writer gives this back */
    struct buffer *next;
    uint8_t *bytes;
    uint64_t used; /* of an encoded chunk; 0: not encoded yet */
    uint32_t pages;
};

struct task {
    struct task *next;
    const struct encoder *encoder;
    struct contents contents;
    struct comparison comparison; /* encoder is set */
};

struct queue {
    struct task *first, **end;
    uint32_t count;
};

struct pipeline {
    struct pipeline_options options;
    pthread_mutex_t lock;
    pthread_cond_t work, room; /* for threads that encode; for the caller */
    struct queue chunks, comparisons;
    uint32_t comparing; /* comparisons that are being made */
    struct buffer *buffers;
    struct buffer *unused;
    uint32_t buffer_count;
    struct buffer **taken;  /* chunk n's from when its encoding begins until it has its place, at n mod buffer_count */
    uint64_t begun, placed; /* numbers of chunks */
    uint32_t writing;
    struct checkpoint_chunk *list; /* of those that have their place */
    uint64_t list_room;
    uint64_t end;
    double encode_seconds;
    enum strait_status failed;
    bool stopping;
    struct writer *writer;
    pthread_t *threads;
    uint32_t thread_count;
    char text[512];
};

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* The lock is held. The first failure counts. */
static void fail(struct pipeline *pipeline, enum strait_status status, const char *path, const char *text)
{
    if (pipeline->failed == STRAIT_OK) {
        pipeline->failed = status;
        checkpoint_fail(pipeline->text, sizeof(pipeline->text), status, "%s%s%s", path, *path != 0 ? ": " : "", text);
        if (pipeline->writer != NULL)
            writer_fail(pipeline->writer, ECANCELED);
    }
    pthread_cond_broadcast(&pipeline->work);
    pthread_cond_broadcast(&pipeline->room);
}

const char *pipeline_text(const struct pipeline *pipeline)
{
    return pipeline->text;
}

/* ---- Queues: the lock is held ------------------------------------------------------------------------------------ */

static void append(struct queue *queue, struct task *task)
{
    task->next = NULL;
    *queue->end = task;
    queue->end = &task->next;
    queue->count++;
}

static struct task *remove_first(struct queue *queue)
{
    struct task *task = queue->first;

    queue->first = task->next;
    if (queue->first == NULL)
        queue->end = &queue->first;
    queue->count--;
    return task;
}

static void drop(struct task *task)
{
    free(task->contents.pieces);
    free(task);
}

static void drop_all(struct queue *queue)
{
    while (queue->first != NULL)
        drop(remove_first(queue));
}

/* ---- Places: the lock is held ------------------------------------------------------------------------------------ */

static bool list_add(struct pipeline *pipeline, struct checkpoint_chunk chunk)
{
    if (pipeline->placed == pipeline->list_room) {
        const uint64_t room = pipeline->list_room * 2 + 64;
        struct checkpoint_chunk *grown =
            room <= UINT32_MAX ? realloc(pipeline->list, (size_t)room * sizeof(*grown)) : NULL;
        if (grown == NULL)
            return false;
        pipeline->list = grown;
        pipeline->list_room = room;
    }
    pipeline->list[pipeline->placed] = chunk;
    return true;
}

/* Gives encoded chunks their places, as far as all before them have one, and hands them to the writer. */
static void place(struct pipeline *pipeline)
{
    while (pipeline->failed == STRAIT_OK && pipeline->placed < pipeline->begun) {
        struct buffer *buffer = pipeline->taken[pipeline->placed % pipeline->buffer_count];
        if (buffer->used == 0)
            return;
        const struct checkpoint_chunk chunk = {pipeline->end, (uint32_t)buffer->used, buffer->pages,
                                               load_le64(buffer->bytes + 40)};
        if (!list_add(pipeline, chunk)) {
            fail(pipeline, STRAIT_ERR_NO_MEMORY, pipeline->options.path, "out of memory");
            return;
        }
        pipeline->placed++;
        buffer->write.data = buffer->bytes;
        buffer->write.offset = pipeline->end;
        buffer->write.bytes = (buffer->used + CHECKPOINT_ALIGNMENT - 1) / CHECKPOINT_ALIGNMENT * CHECKPOINT_ALIGNMENT;
        pipeline->end += buffer->write.bytes;
        pipeline->writing++;
        writer_put(pipeline->writer, &buffer->write);
    }
}

static void written(void *context, struct write *write, int error)
{
    struct pipeline *pipeline = context;
    struct buffer *buffer = (struct buffer *)write;
    char text[200];

    pthread_mutex_lock(&pipeline->lock);
    pipeline->writing--;
    buffer->next = pipeline->unused;
    pipeline->unused = buffer;
    if (error != 0) {
        snprintf(text, sizeof(text), "write: %s", strerror(error));
        fail(pipeline, STRAIT_ERR_IO, pipeline->options.path, text);
    }
    pthread_cond_signal(&pipeline->work);
    pthread_cond_signal(&pipeline->room);
    pthread_mutex_unlock(&pipeline->lock);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* A thread's states, one for each encoder that it has met; there are two kinds of memory. */
struct worker {
    struct pipeline *pipeline;
    const struct encoder *encoders[2];
    void *states[2];
    char text[256];
};

static enum strait_status state_of(struct worker *worker, const struct encoder *encoder, void **state)
{
    const struct encoder_text told = {worker->text, sizeof(worker->text)};

    for (unsigned i = 0; i < 2; i++) {
        if (worker->encoders[i] == NULL) {
            const enum strait_status status =
                encoder->prepare(&worker->states[i], &worker->pipeline->options.encoder, told);
            if (status != STRAIT_OK)
                return status;
            worker->encoders[i] = encoder;
        }
        *state = worker->states[i];
        if (worker->encoders[i] == encoder)
            return STRAIT_OK;
    }
    return STRAIT_ERR_INVALID;
}

/* Seconds that this thread has run: others may have the processor meanwhile. */
static double processor_seconds(void)
{
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Encodes a chunk and fills it with zeroes up to where the next one may begin. */
static enum strait_status encode(struct worker *worker, const struct task *task, struct buffer *buffer, uint64_t *used)
{
    const struct encoder_text told = {worker->text, sizeof(worker->text)};
    void *state;
    enum strait_status status = state_of(worker, task->encoder, &state);

    if (status == STRAIT_OK && buffer->bytes == NULL) {
        buffer->bytes = aligned_alloc(CHECKPOINT_ALIGNMENT, ENCODER_BUFFER_BYTES);
        if (buffer->bytes == NULL)
            status = checkpoint_fail(told.text, told.size, STRAIT_ERR_NO_MEMORY, "out of memory");
    }
    if (status == STRAIT_OK)
        status = task->encoder->encode(state, &task->contents, buffer->bytes, used, told);
    if (status == STRAIT_OK && *used % CHECKPOINT_ALIGNMENT != 0)
        memset(buffer->bytes + *used, 0, CHECKPOINT_ALIGNMENT - *used % CHECKPOINT_ALIGNMENT);
    return status;
}

/* The lock is held, and let go meanwhile. */
static void encode_one(struct worker *worker)
{
    struct pipeline *pipeline = worker->pipeline;
    struct task *task = remove_first(&pipeline->chunks);
    struct buffer *buffer = pipeline->unused;
    uint64_t used = 0;

    pipeline->unused = buffer->next;
    buffer->used = 0;
    buffer->pages = task->contents.page_count;
    pipeline->taken[pipeline->begun++ % pipeline->buffer_count] = buffer;
    pthread_cond_signal(&pipeline->room);
    pthread_mutex_unlock(&pipeline->lock);

    const double began = processor_seconds();
    const enum strait_status status = encode(worker, task, buffer, &used);
    const double took = processor_seconds() - began;
    drop(task);

    pthread_mutex_lock(&pipeline->lock);
    pipeline->encode_seconds += took;
    buffer->used = used;
    if (status != STRAIT_OK)
        fail(pipeline, status, "", worker->text);
    else
        place(pipeline);
}

/* The same. */
static void compare_one(struct worker *worker)
{
    struct pipeline *pipeline = worker->pipeline;
    struct task *task = remove_first(&pipeline->comparisons);
    const struct comparison *asked = &task->comparison;
    void *state;
    bool equal = true;

    pipeline->comparing++;
    pthread_mutex_unlock(&pipeline->lock);
    const double began = processor_seconds();
    enum strait_status status = state_of(worker, task->encoder, &state);
    if (status == STRAIT_OK)
        status = task->encoder->compare(state, asked->fp32, asked->bf16, asked->count, &equal,
                                        (struct encoder_text){worker->text, sizeof(worker->text)});
    const double took = processor_seconds() - began;
    pthread_mutex_lock(&pipeline->lock);
    pipeline->comparing--;
    pipeline->encode_seconds += took;
    *asked->equal &= equal;
    if (status != STRAIT_OK)
        fail(pipeline, status, "", worker->text);
    pthread_cond_signal(&pipeline->room);
    drop(task);
}

static void *work(void *arg)
{
    struct pipeline *pipeline = arg;
    struct worker worker = {.pipeline = pipeline};

    pthread_mutex_lock(&pipeline->lock);
    while (pipeline->failed == STRAIT_OK) {
        if (pipeline->comparisons.first != NULL)
            compare_one(&worker);
        else if (pipeline->chunks.first != NULL && pipeline->unused != NULL)
            encode_one(&worker); /* with a buffer: the first chunk that has no place yet always gets on */
        else if (pipeline->stopping && pipeline->chunks.first == NULL)
            break;
        else
            pthread_cond_wait(&pipeline->work, &pipeline->lock);
    }
    pthread_cond_broadcast(&pipeline->work); /* others end too */
    pthread_mutex_unlock(&pipeline->lock);
    for (unsigned i = 0; i < 2; i++)
        if (worker.encoders[i] != NULL)
            worker.encoders[i]->finish(worker.states[i]);
    return NULL;
}

/* ---- The caller's ------------------------------------------------------------------------------------------------ */

static bool allocate(struct pipeline *pipeline)
{
    const uint64_t wanted = pipeline->options.buffer_bytes / ENCODER_BUFFER_BYTES;
    const uint32_t least = pipeline->options.threads + 1;

    pipeline->buffer_count = wanted < least ? least : wanted < 65536 ? (uint32_t)wanted : 65536;
    pipeline->buffers = calloc(pipeline->buffer_count, sizeof(*pipeline->buffers));
    pipeline->taken = calloc(pipeline->buffer_count, sizeof(struct buffer *));
    pipeline->threads = calloc(pipeline->options.threads, sizeof(*pipeline->threads));
    if (pipeline->buffers == NULL || pipeline->taken == NULL || pipeline->threads == NULL)
        return false;
    for (uint32_t i = pipeline->buffer_count; i-- > 0;) {
        pipeline->buffers[i].next = pipeline->unused;
        pipeline->unused = &pipeline->buffers[i];
    }
    return true;
}

enum strait_status pipeline_start(struct pipeline **pipeline, const struct pipeline_options *options, char *text,
                                  size_t text_size)
{
    struct pipeline *made = calloc(1, sizeof(*made));
    int error = ENOMEM;

    if (made == NULL)
        return checkpoint_fail(text, text_size, STRAIT_ERR_NO_MEMORY, "out of memory");
    made->options = *options;
    made->end = CHECKPOINT_HEADER_BYTES;
    made->chunks.end = &made->chunks.first;
    made->comparisons.end = &made->comparisons.first;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    pthread_cond_init(&made->room, NULL);
    if (allocate(made))
        error = writer_start(&made->writer, options->fd, written, made);
    while (error == 0 && made->thread_count < options->threads) {
        error = thread_start(&made->threads[made->thread_count], work, made);
        made->thread_count += error == 0;
    }
    if (made->thread_count > 0) { /* fewer than wanted do as well */
        *pipeline = made;
        return STRAIT_OK;
    }
    pipeline_free(made);
    return checkpoint_fail(text, text_size, STRAIT_ERR_NO_MEMORY, "threads: %s", strerror(error));
}

/* Adds a task to a queue when it has room. */
static enum strait_status put(struct pipeline *pipeline, struct queue *queue, uint32_t most, struct task task)
{
    struct task *kept = malloc(sizeof(*kept));

    pthread_mutex_lock(&pipeline->lock);
    if (kept == NULL)
        fail(pipeline, STRAIT_ERR_NO_MEMORY, pipeline->options.path, "out of memory");
    while (pipeline->failed == STRAIT_OK && queue->count >= most)
        pthread_cond_wait(&pipeline->room, &pipeline->lock);
    const enum strait_status status = pipeline->failed;
    if (status == STRAIT_OK) {
        *kept = task;
        append(queue, kept);
        pthread_cond_signal(&pipeline->work);
    }
    pthread_mutex_unlock(&pipeline->lock);
    if (status != STRAIT_OK) {
        free(kept);
        free(task.contents.pieces);
    }
    return status;
}

enum strait_status pipeline_put(struct pipeline *pipeline, const struct encoder *encoder,
                                const struct contents *contents)
{
    return put(pipeline, &pipeline->chunks, pipeline->buffer_count,
               (struct task){.encoder = encoder, .contents = *contents});
}

enum strait_status pipeline_compare(struct pipeline *pipeline, const struct comparison *comparison)
{
    return put(pipeline, &pipeline->comparisons, COMPARISONS_MAX,
               (struct task){.encoder = comparison->encoder, .comparison = *comparison});
}

enum strait_status pipeline_settle(struct pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->lock);
    while (pipeline->failed == STRAIT_OK && (pipeline->comparisons.count > 0 || pipeline->comparing > 0))
        pthread_cond_wait(&pipeline->room, &pipeline->lock);
    const enum strait_status status = pipeline->failed;
    pthread_mutex_unlock(&pipeline->lock);
    return status;
}

/* Ends all threads; those that encode when there is nothing left to do, or at once after a failure. */
static void stop(struct pipeline *pipeline, struct pipeline_figures *figures)
{
    pthread_mutex_lock(&pipeline->lock);
    pipeline->stopping = true;
    pthread_cond_broadcast(&pipeline->work);
    pthread_mutex_unlock(&pipeline->lock);
    for (uint32_t i = 0; i < pipeline->thread_count; i++)
        pthread_join(pipeline->threads[i], NULL);
    pipeline->thread_count = 0;
    struct writer *writer = pipeline->writer;
    if (writer != NULL)
        figures->write_seconds = writer_stop(writer);
    pipeline->writer = NULL;
    figures->encode_seconds = pipeline->encode_seconds;
}

enum strait_status pipeline_finish(struct pipeline *pipeline, struct checkpoint_chunk **chunks, uint32_t *count,
                                   uint64_t *end, struct pipeline_figures *figures)
{
    stop(pipeline, figures);
    if (pipeline->failed != STRAIT_OK)
        return pipeline->failed;
    *chunks = pipeline->list;
    *count = (uint32_t)pipeline->placed;
    *end = pipeline->end;
    pipeline->list = NULL;
    return STRAIT_OK;
}

void pipeline_free(struct pipeline *pipeline)
{
    struct pipeline_figures figures;

    if (pipeline == NULL)
        return;
    pthread_mutex_lock(&pipeline->lock);
    fail(pipeline, STRAIT_ERR_INVALID, "", "ended");
    pthread_mutex_unlock(&pipeline->lock);
    stop(pipeline, &figures);
    drop_all(&pipeline->chunks);
    drop_all(&pipeline->comparisons);
    for (uint32_t i = 0; pipeline->buffers != NULL && i < pipeline->buffer_count; i++)
        free(pipeline->buffers[i].bytes);
    pthread_cond_destroy(&pipeline->room);
    pthread_cond_destroy(&pipeline->work);
    pthread_mutex_destroy(&pipeline->lock);
    free(pipeline->buffers);
    free(pipeline->taken);
    free(pipeline->threads);
    free(pipeline->list);
    free(pipeline);
}
