#include "daemon/embed.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/device/devices.h"
#include "daemon/node.h"

/* A node that runs in a thread of this process. */
struct running {
    pthread_t thread;
    bool ended;        /* the thread can be joined */
    uv_async_t stop;   /* sent when the process exits */
    struct node *node; /* NULL: none yet, or none any more */
    bool stopped;
    struct running *next;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    struct running *first;
    pid_t process; /* a forked child has none of these threads */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

struct embedded {
    struct running *running;
    struct node_options options;
    int fd;
    char *error;
    size_t error_size;
    enum strait_status status;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t ready;
};

static void on_stop(uv_async_t *stop)
{
    struct running *running = stop->data;
    if (running->node != NULL && !running->stopped)
        node_stop(running->node, false);
}

/* Sets or clears the node that is stopped when the process exits. */
static void set_node(struct running *running, struct node *node)
{
    pthread_mutex_lock(&all.lock);
    running->node = node;
    pthread_mutex_unlock(&all.lock);
}

static struct running *take_ended(void)
{
    struct running *running;
    pthread_mutex_lock(&all.lock);
    LL_SEARCH_SCALAR(all.first, running, ended, true);
    if (running != NULL)
        LL_DELETE(all.first, running);
    pthread_mutex_unlock(&all.lock);
    return running;
}

/* Joins ended threads. Called when the next node begins or the process exits: nobody waits for them before. */
static void join_ended(void)
{
    struct running *running;
    while ((running = take_ended()) != NULL) {
        pthread_join(running->thread, NULL);
        free(running);
    }
}

#define STOP_SECONDS 10 /* time for running jobs, and for GPUs kept busy by others to release memory */

/* Stops running nodes. False: none is running. Called with the lock held. */
static bool ask_to_stop(void)
{
    bool any = false;
    struct running *running;
    LL_FOREACH (all.first, running) {
        any |= !running->ended;
        if (running->node != NULL)
            uv_async_send(&running->stop);
    }
    return any;
}

/* Nodes must have ended before the destructors of the libraries that they use run, and before the driver of their GPUs
 * goes. So it is called twice when they use GPUs. */
__attribute__((destructor)) static void stop_all(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_SECONDS;
    if (all.process != getpid())
        return;
    pthread_mutex_lock(&all.lock);
    while (ask_to_stop() && pthread_cond_timedwait(&all.ended, &all.lock, &until) == 0)
        ;
    pthread_mutex_unlock(&all.lock);
    join_ended();
}

static void on_stopped(void *owner)
{
    ((struct running *)owner)->stopped = true; /* the loop ends by itself when its last handle has been closed */
}

static void report(struct embedded *embedded, enum strait_status status)
{
    pthread_mutex_lock(&embedded->lock);
    embedded->status = status;
    embedded->started = true;
    pthread_cond_signal(&embedded->ready);
    pthread_mutex_unlock(&embedded->lock); /* the starter frees `embedded` now */
}

/* Runs the node until its client goes or the process exits. */
static void run_node(struct embedded *embedded, struct running *running, uv_loop_t *loop)
{
    struct node *node = NULL;
    uv_async_init(loop, &running->stop, on_stop);
    uv_unref((uv_handle_t *)&running->stop);
    running->stop.data = running;
    enum strait_status status = node_create(loop, &embedded->options, NULL, embedded->fd, on_stopped, running, &node,
                                            embedded->error, embedded->error_size);
    set_node(running, node);
    report(embedded, status);
    if (status != STRAIT_OK && node != NULL)
        node_stop(node, false);
    uv_run(loop, UV_RUN_DEFAULT);
    set_node(running, NULL);
    uv_close((uv_handle_t *)&running->stop, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    node_destroy(node);
}

static void *run(void *arg)
{
    struct embedded *embedded = arg;
    struct running *running = embedded->running; /* *embedded is freed once the outcome is reported */
    uv_loop_t loop;
    if (uv_loop_init(&loop) == 0) {
        run_node(embedded, running, &loop);
        (void)uv_loop_close(&loop);
    } else {
        close(embedded->fd);
        report(embedded, STRAIT_ERR_NO_MEMORY);
    }
    /* The last thing that the node's thread does. */
    pthread_mutex_lock(&all.lock);
    running->ended = true;
    pthread_cond_broadcast(&all.ended);
    pthread_mutex_unlock(&all.lock);
    return NULL;
}

/* Starts a thread to which no signal of the host process is delivered. */
static bool start_thread(struct embedded *embedded)
{
    sigset_t every, old;
    struct running *running = embedded->running;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &old);
    pthread_mutex_lock(&all.lock);
    all.process = getpid();
    bool started = pthread_create(&running->thread, NULL, run, embedded) == 0;
    if (started)
        LL_PREPEND(all.first, running);
    pthread_mutex_unlock(&all.lock);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

static enum strait_status start(struct embedded *embedded)
{
    if (all.process == getpid())
        join_ended();
    else
        all.first = NULL; /* a child has only the records of its parent's nodes, and new threads may use their stacks */
    devices_before_exit(stop_all);
    embedded->running = calloc(1, sizeof(*embedded->running));
    if (embedded->running == NULL || !start_thread(embedded)) {
        free(embedded->running);
        close(embedded->fd);
        return STRAIT_ERR_NO_MEMORY;
    }
    pthread_mutex_lock(&embedded->lock);
    while (!embedded->started)
        pthread_cond_wait(&embedded->ready, &embedded->lock);
    pthread_mutex_unlock(&embedded->lock);
    return embedded->status;
}

static enum strait_status read_options(const char *text, struct node_options *options, char *error, size_t size)
{
    struct option_error wrong;
    options_default(options);
    options->socket[0] = options->listen[0] = options->metrics[0] = '\0';
    enum strait_status status = options_text(options, text, strlen(text), "embedded options", &wrong);
    if (status == STRAIT_OK)
        status = options_check(options, &wrong);
    if (status != STRAIT_OK)
        snprintf(error, size, "%s", wrong.text);
    return status;
}

int strait_node_embed(const char *options, int *fd, char *error, size_t error_size)
{
    struct embedded embedded = {.error = error, .error_size = error_size};
    enum strait_status status = read_options(options, &embedded.options, error, error_size);
    if (status != STRAIT_OK)
        return status;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        snprintf(error, error_size, "no descriptors are left");
        return STRAIT_ERR_IO;
    }
    embedded.fd = pair[1];
    pthread_mutex_init(&embedded.lock, NULL);
    pthread_cond_init(&embedded.ready, NULL);
    status = start(&embedded);
    pthread_cond_destroy(&embedded.ready);
    pthread_mutex_destroy(&embedded.lock);
    if (status != STRAIT_OK)
        close(pair[0]);
    else
        *fd = pair[0];
    return status;
}
