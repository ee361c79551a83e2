#include "daemon/embed.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/node.h"

struct embedded {
    struct node_options options;
    int fd;
    char *error;
    size_t error_size;
    enum strait_status status;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t ready;
};

static void on_stopped(void *owner)
{
    (void)owner; /* the loop ends by itself when its last handle has been closed */
}

static void report(struct embedded *embedded, enum strait_status status)
{
    pthread_mutex_lock(&embedded->lock);
    embedded->status = status;
    embedded->started = true;
    pthread_cond_signal(&embedded->ready);
    pthread_mutex_unlock(&embedded->lock); /* the starter frees it now */
}

static void *run(void *arg)
{
    struct embedded *embedded = arg;
    uv_loop_t loop;
    struct node *node = NULL;
    if (uv_loop_init(&loop) != 0) {
        close(embedded->fd);
        report(embedded, STRAIT_ERR_NO_MEMORY);
        return NULL;
    }
    enum strait_status status = node_create(&loop, &embedded->options, NULL, embedded->fd, on_stopped, NULL, &node,
                                            embedded->error, embedded->error_size);
    report(embedded, status);
    if (status != STRAIT_OK && node != NULL)
        node_stop(node, false);
    uv_run(&loop, UV_RUN_DEFAULT);
    node_destroy(node);
    (void)uv_loop_close(&loop);
    return NULL;
}

/* A detached thread that no signal of the host's is delivered to. */
static enum strait_status start(struct embedded *embedded)
{
    sigset_t all, old;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&thread, NULL, run, embedded);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed != 0)
        return STRAIT_ERR_NO_MEMORY;
    pthread_detach(thread);
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
