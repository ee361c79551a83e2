#include "tests/chaos/world.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <strait/strait.h>

#define TRANSFERS 64u

struct job {
    struct strait_transfer *transfer; /* NULL: free */
    uint32_t id;
};

struct worker {
    int channel;
    struct strait_client *client;
    struct strait_pool *pool;
    struct strait_peer *peer;
    struct job jobs[TRANSFERS];
};

static void tell(struct worker *w, const struct news *news)
{
    if (send(w->channel, news, sizeof(*news), MSG_NOSIGNAL) != sizeof(*news))
        _exit(3); /* the driver is dead, or does not listen */
}

static void refuse(struct worker *w, uint32_t id, enum strait_status status)
{
    struct news news = {.type = NEWS_REFUSED, .id = id, .reason = (uint32_t)status, .at_ns = now_ns()};
    tell(w, &news);
}

/* ---- Events --------------------------------------------------------------------------------------------------- */

static void on_pool(struct worker *w, const struct strait_event *event)
{
    struct news news = {.type = NEWS_POOL, .at_ns = now_ns()};
    size_t size = 0;
    if (event->status != STRAIT_OK) {
        refuse(w, 0, (enum strait_status)event->status);
        return;
    }
    if (strait_pool_export(w->pool, news.blob, sizeof(news.blob), &size) != STRAIT_OK)
        return;
    news.blob_size = (uint32_t)size;
    tell(w, &news);
}

static void on_state(struct worker *w, const struct strait_event *event)
{
    struct job *job = event->context;
    struct news news = {.type = event->type == STRAIT_EVENT_DRAINED ? NEWS_DRAINED : NEWS_STATE,
                        .id = job->id,
                        .state = (uint32_t)event->state,
                        .reason = (uint32_t)event->reason,
                        .drained = event->drained || event->type == STRAIT_EVENT_DRAINED,
                        .at_ns = now_ns()};
    tell(w, &news);
    bool over = event->state == STRAIT_DONE || event->state == STRAIT_FAILED;
    if (over && news.drained) {
        strait_release(job->transfer);
        job->transfer = NULL;
    }
}

static void take_events(struct worker *w)
{
    struct strait_event events[16];
    uint32_t count = strait_poll(w->client, events, 16);
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].type == STRAIT_EVENT_POOL)
            on_pool(w, &events[i]);
        else if (events[i].type == STRAIT_EVENT_STATE || events[i].type == STRAIT_EVENT_DRAINED)
            on_state(w, &events[i]);
    }
}

/* ---- Orders --------------------------------------------------------------------------------------------------- */

static struct job *find(struct worker *w, uint32_t id)
{
    for (uint32_t i = 0; i < TRANSFERS; i++)
        if (w->jobs[i].transfer != NULL && w->jobs[i].id == id)
            return &w->jobs[i];
    return NULL;
}

static struct job *vacant(struct worker *w)
{
    for (uint32_t i = 0; i < TRANSFERS; i++)
        if (w->jobs[i].transfer == NULL)
            return &w->jobs[i];
    _exit(4);
}

static void begin(struct worker *w, const struct order *order)
{
    struct job *job = vacant(w);
    char key[32];
    int key_size = snprintf(key, sizeof(key), "transfer-%u", order->id);
    const struct strait_page_list list = {.count = order->count, .ids = order->pages};
    job->id = order->id;
    const struct strait_expect_params expect = {.size = sizeof(expect),
                                                .key = key,
                                                .key_size = (size_t)key_size,
                                                .lists = &list,
                                                .list_count = 1,
                                                .deadline_ms = order->time_ms,
                                                .context = job};
    const struct strait_offer_params offer = {.size = sizeof(offer),
                                              .key = key,
                                              .key_size = (size_t)key_size,
                                              .lists = &list,
                                              .list_count = 1,
                                              .lease_ms = order->time_ms,
                                              .last = true,
                                              .context = job};
    enum strait_status status = order->type == ORDER_EXPECT ? strait_expect(w->pool, &expect, &job->transfer)
                                                            : strait_offer(w->pool, &offer, &job->transfer);
    if (status == STRAIT_OK && order->start)
        status = strait_start(job->transfer, w->peer, NULL);
    if (status != STRAIT_OK)
        refuse(w, order->id, status);
}

static void import(struct worker *w, const struct order *order)
{
    struct strait_peer *peer;
    enum strait_status status = strait_peer_import(w->client, order->blob, order->blob_size, &peer);
    if (status != STRAIT_OK) {
        refuse(w, 0, status);
        return;
    }
    strait_peer_remove(w->peer);
    w->peer = peer;
}

static void obey(struct worker *w, const struct order *order)
{
    const struct job *job = find(w, order->id);
    switch (order->type) {
    case ORDER_IMPORT:
        import(w, order);
        break;
    case ORDER_OFFER:
    case ORDER_EXPECT:
        begin(w, order);
        break;
    case ORDER_ABORT:
        if (job != NULL)
            strait_abort(job->transfer);
        break;
    default: /* CLOSE */
        strait_client_close(w->client);
        pages_exit_child(0);
    }
}

static void take_orders(struct worker *w)
{
    struct order order;
    ssize_t size;
    while ((size = recv(w->channel, &order, sizeof(order), MSG_DONTWAIT)) == sizeof(order))
        obey(w, &order);
    if (size == 0)
        pages_exit_child(0);
}

/* ---- The process ---------------------------------------------------------------------------------------------- */

static void register_pool(struct worker *w, const struct pages *pages)
{
    struct strait_pool_region regions[POOL_REGIONS];
    for (uint32_t r = 0; r < POOL_REGIONS; r++)
        regions[r] = pages_region(pages, r);
    const struct strait_pool_params params = {.size = sizeof(params), .regions = regions, .region_count = POOL_REGIONS};
    if (strait_pool_register(w->client, &params, &w->pool) != STRAIT_OK)
        _exit(5);
}

static void __attribute__((noreturn)) run(const char *socket, const struct pages *pages, int channel)
{
    struct worker *w = calloc(1, sizeof(*w));
    const struct strait_client_config config = {.size = sizeof(config), .socket = socket};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (w == NULL || strait_client_open(&config, &w->client) != STRAIT_OK)
        _exit(5);
    w->channel = channel;
    register_pool(w, pages);
    for (;;) {
        struct pollfd fds[2] = {{.fd = channel, .events = POLLIN},
                                {.fd = strait_client_fd(w->client), .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            _exit(6);
        take_orders(w);
        take_events(w);
    }
}

pid_t client_start(const char *path, const struct pages *pages, int *channel)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        close(pair[0]);
        run(path, pages, pair[1]);
    }
    close(pair[1]);
    if (pid < 0)
        close(pair[0]);
    else
        *channel = pair[0];
    return pid;
}
