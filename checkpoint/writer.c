#include "checkpoint/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#ifdef STRAIT_HAVE_URING
#include <liburing.h>
#endif

#include "checkpoint/storage.h"
#include "internal/clock.h"
#include "internal/thread.h"

#define THREADS_MAX 4u /* that write where no ring does */
#define DEPTH       8u /* writes at once by io_uring */

struct writer {
    int fd;
    void (*written)(void *context, struct write *write, int error);
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct write *first, **end; /* that have not begun */
    bool stopping;
    int failed; /* errno of the first that failed */
    uint32_t under_way;
    uint64_t began; /* clock_ns; of the time in which some are under way */
    double seconds;
    pthread_t threads[THREADS_MAX];
    uint32_t thread_count;
#ifdef STRAIT_HAVE_URING
    struct io_uring ring;
    bool has_ring;
#endif
};

/* ---- Queue ------------------------------------------------------------------------------------------------------- */

void writer_put(struct writer *writer, struct write *write)
{
    write->next = NULL;
    pthread_mutex_lock(&writer->lock);
    *writer->end = write;
    writer->end = &write->next;
    pthread_cond_signal(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

void writer_fail(struct writer *writer, int error)
{
    pthread_mutex_lock(&writer->lock);
    if (writer->failed == 0)
        writer->failed = error;
    pthread_mutex_unlock(&writer->lock);
}

/* The next write, which is then under way, and what it is to fail with at once. NULL: there is none now, or, if the
 * caller waits, there will be none. */
static struct write *take(struct writer *writer, bool waits, int *failed)
{
    pthread_mutex_lock(&writer->lock);
    while (waits && writer->first == NULL && !writer->stopping)
        pthread_cond_wait(&writer->changed, &writer->lock);
    struct write *write = writer->first;
    *failed = writer->failed;
    if (write != NULL) {
        writer->first = write->next;
        if (writer->first == NULL)
            writer->end = &writer->first;
        if (writer->under_way++ == 0)
            writer->began = clock_ns();
    }
    pthread_mutex_unlock(&writer->lock);
    return write;
}

static void done(struct writer *writer, struct write *write, int error)
{
    pthread_mutex_lock(&writer->lock);
    if (error != 0 && writer->failed == 0)
        writer->failed = error;
    if (--writer->under_way == 0)
        writer->seconds += 1e-9 * (double)(clock_ns() - writer->began);
    pthread_mutex_unlock(&writer->lock);
    writer->written(writer->context, write, error);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

static void *write_plainly(void *arg)
{
    struct writer *writer = arg;
    struct write *write;
    int failed;

    while ((write = take(writer, true, &failed)) != NULL)
        done(writer, write, failed != 0 ? failed : storage_write(writer->fd, write->data, write->bytes, write->offset));
    return NULL;
}

#ifdef STRAIT_HAVE_URING

/* ---- io_uring ---------------------------------------------------------------------------------------------------- */

/* Writes that the ring has: the first `submitted` of them are the kernel's, the others are prepared. */
struct flight {
    struct write *prepared[DEPTH];
    uint32_t prepared_count, submitted;
};

static void pause_a_moment(void)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    nanosleep(&moment, NULL);
}

/* Ends a write by what the kernel says of it. What it has not written, or did not like to, is written plainly: that
 * knows what to do about files that cannot pass by the cache, signals and short writes. */
static void complete(struct writer *writer, struct write *write, int result)
{
    int error = 0;

    if (result == -EINVAL || result == -EAGAIN || result == -EINTR || result == -EOPNOTSUPP || result == -ECANCELED)
        result = 0;
    if (result < 0)
        error = -result;
    else if ((size_t)result < write->bytes)
        error = storage_write(writer->fd, (const uint8_t *)write->data + result, write->bytes - (size_t)result,
                              write->offset + (uint64_t)result);
    done(writer, write, error);
}

/* Prepares writes while the ring has room. Waits for the first one when it is empty; false: it is, and there will be
 * none. */
static bool fill(struct writer *writer, struct flight *flight)
{
    struct write *write;
    int failed;

    while (flight->prepared_count + flight->submitted < DEPTH) {
        const bool idle = flight->prepared_count + flight->submitted == 0;
        write = take(writer, idle, &failed);
        if (write == NULL)
            return !idle;
        struct io_uring_sqe *sqe = failed == 0 && write->bytes <= INT32_MAX ? io_uring_get_sqe(&writer->ring) : NULL;
        if (sqe == NULL) { /* it cannot go this way */
            done(writer, write,
                 failed != 0 ? failed : storage_write(writer->fd, write->data, write->bytes, write->offset));
            continue;
        }
        io_uring_prep_write(sqe, writer->fd, write->data, (unsigned)write->bytes, write->offset);
        io_uring_sqe_set_data(sqe, write);
        flight->prepared[flight->prepared_count++] = write;
    }
    return true;
}

/* Gives prepared writes to the kernel and waits until one has ended. False: the ring takes none; those that it has not
 * got are ended with the reason. */
static bool submit(struct writer *writer, struct flight *flight)
{
    for (;;) {
        const int result = io_uring_submit_and_wait(&writer->ring, 1);
        if (result >= 0) {
            const uint32_t given =
                (uint32_t)result < flight->prepared_count ? (uint32_t)result : flight->prepared_count;
            for (uint32_t i = given; i < flight->prepared_count; i++)
                flight->prepared[i - given] = flight->prepared[i];
            flight->prepared_count -= given;
            flight->submitted += given;
            return true;
        }
        if (result == -EAGAIN || result == -EBUSY)
            pause_a_moment();
        else if (result != -EINTR) {
            for (uint32_t i = 0; i < flight->prepared_count; i++)
                done(writer, flight->prepared[i], -result);
            flight->prepared_count = 0;
            return false;
        }
        if (io_uring_cq_ready(&writer->ring) > 0)
            return true;
    }
}

/* Ends the writes that the kernel has finished; with `wait`, after waiting for one. */
static void reap(struct writer *writer, struct flight *flight, bool wait)
{
    struct io_uring_cqe *cqe;

    if (wait && io_uring_wait_cqe(&writer->ring, &cqe) != 0)
        pause_a_moment();
    while (io_uring_peek_cqe(&writer->ring, &cqe) == 0) {
        struct write *write = io_uring_cqe_get_data(cqe);
        const int result = cqe->res;
        io_uring_cqe_seen(&writer->ring, cqe);
        flight->submitted--;
        complete(writer, write, result);
    }
}

static void *write_by_ring(void *arg)
{
    struct writer *writer = arg;
    struct flight flight = {.submitted = 0};
    bool works = true;

    while (works && fill(writer, &flight)) {
        works = submit(writer, &flight);
        reap(writer, &flight, false);
    }
    while (flight.submitted > 0)
        reap(writer, &flight, true);
    return works ? NULL : write_plainly(writer); /* all that is left has failed already */
}

static bool ring_start(struct writer *writer)
{
    writer->has_ring = io_uring_queue_init(DEPTH, &writer->ring, 0) == 0; /* not in many containers */
    if (writer->has_ring && thread_start(&writer->threads[0], write_by_ring, writer) == 0) {
        writer->thread_count = 1;
        return true;
    }
    return false;
}

static void ring_stop(struct writer *writer)
{
    if (writer->has_ring)
        io_uring_queue_exit(&writer->ring);
}

#else

static bool ring_start(struct writer *writer)
{
    (void)writer;
    return false;
}

static void ring_stop(struct writer *writer)
{
    (void)writer;
}

#endif

/* A ring's writes into the page cache would be copied one after another, by the thread that submits them. */
static bool passes_cache(int fd)
{
    const int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && (flags & O_DIRECT) != 0;
}

/* ---- Start and stop ---------------------------------------------------------------------------------------------- */

int writer_start(struct writer **writer, int fd, void (*written)(void *context, struct write *write, int error),
                 void *context)
{
    struct writer *made = calloc(1, sizeof(*made));
    int error = 0;

    if (made == NULL)
        return ENOMEM;
    made->fd = fd;
    made->written = written;
    made->context = context;
    made->end = &made->first;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    if (!passes_cache(fd) || !ring_start(made))
        while (made->thread_count < THREADS_MAX &&
               (error = thread_start(&made->threads[made->thread_count], write_plainly, made)) == 0)
            made->thread_count++;
    if (made->thread_count == 0) {
        writer_stop(made);
        return error;
    }
    *writer = made;
    return 0;
}

double writer_stop(struct writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    writer->stopping = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    for (uint32_t i = 0; i < writer->thread_count; i++)
        pthread_join(writer->threads[i], NULL);
    ring_stop(writer);
    const double seconds = writer->seconds;
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
    return seconds;
}
