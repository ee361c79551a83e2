/* Client handles: open, poll, close. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client.h"
#include "client/gpu.h"
#include "internal/default_socket.h"

/* ---- Poll -------------------------------------------------------------------------------------------------------- */

/* The daemon need not wake us until ring_sleep. The socket is read where it has, and every millisecond: the end of the
 * connection wakes nobody. */
static void ring_look(struct strait_client *client)
{
    if (!client->ring_received)
        return;
    const uint64_t now = clock_ms();
    const bool woken = client->asleep && socket_ring_was_woken(&client->ring);
    if (woken || now != client->looked_at)
        ring_layer_socket_ready(&client->ring.layer);
    client->looked_at = now;
    client->asleep = false;
}

/* From now on the descriptor becomes readable when the daemon sends something. False: it has already. */
static bool ring_sleep_on(struct strait_client *client)
{
    if (!client->ring_received || client->state != READY)
        return true;
    client->asleep = true;
    if (!socket_ring_sleep(&client->ring, true))
        return true;
    client->input_left = true;
    event_signal(client);
    return false;
}

#define TIGHT_NS  3000u   /* between two calls of strait_poll that come without a pause */
#define TIGHT_RUN 32u     /* so many of them, without an event: somebody polls */
#define AWAKE_NS  250000u /* for so long after that the daemon need not wake us */

/* Whether strait_poll is called in a loop that does not sleep. As that can change after any call, the descriptor is
 * readable meanwhile, and for a short time only: whoever sleeps on it makes no run of calls in that time again. */
static bool is_polled(struct strait_client *client, uint32_t count)
{
    if (!client->ring_received || client->state != READY) {
        client->awake_since = 0;
        return false;
    }
    const uint64_t now = clock_ns(), before = client->polled_at;
    const bool awake = client->awake_since != 0;
    client->polled_at = now;
    client->tight = now - before < TIGHT_NS && count == 0 ? client->tight + 1 : 0;
    if (!awake && client->tight >= TIGHT_RUN)
        client->awake_since = now;
    else if (awake && now - client->awake_since >= AWAKE_NS)
        client->awake_since = client->tight = 0;
    if (awake != (client->awake_since != 0))
        events_settle(client);
    return client->awake_since != 0;
}

static uint32_t turn(struct strait_client *client, struct strait_event *events, uint32_t capacity)
{
    client->polling = true;
    events_recycle(client);
    ring_look(client);
    connection_work(client);
    transfers_expire(client, clock_ms());
    outbox_flush(client);
    timer_update(client);
    return events_hand_out(client, events, capacity);
}

uint32_t strait_poll(struct strait_client *client, struct strait_event *events, uint32_t capacity)
{
    const uint32_t count = turn(client, events, capacity);
    if (!is_polled(client, count))
        (void)ring_sleep_on(client);
    return count;
}

/* -1: forever. */
static int time_left(uint64_t end)
{
    if (end == NEVER)
        return -1;
    uint64_t now = clock_ms();
    return now >= end ? 0 : end - now > INT_MAX ? INT_MAX : (int)(end - now);
}

static bool has_live_sink(const struct strait_client *client)
{
    const struct strait_transfer *transfer = client->transfers;
    for (uint32_t looked = 0; transfer != NULL && looked < 16; transfer = transfer->next, looked++)
        if (transfer->sink && !transfer->ended) /* the latest is first */
            return true;
    return false;
}

/* Whether strait_wait polls on instead of sleeping: after a sink has been started or has come further, for the time of
 * a small transfer and within a budget (busy_poll.h). */
static bool polls_on(struct strait_client *client)
{
    static long processors; /* the same for all threads */
    if (processors == 0)
        processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (processors < 2 || (!client->stepped && client->busy_poll.until == 0))
        return false;
    const uint64_t now = clock_ns();
    const bool stepped = client->stepped;
    client->stepped = false;
    if (!busy_poll_turn(&client->busy_poll, now, stepped, stepped && has_live_sink(client)))
        return false;
    if ((unsigned long)processors < BUSY_POLL_PROCESSORS) {
        sched_yield();
        busy_poll_yielded(&client->busy_poll, clock_ns() - now);
    }
    return true;
}

uint32_t strait_wait(struct strait_client *client, struct strait_event *events, uint32_t capacity, int timeout_ms)
{
    uint64_t end = timeout_ms < 0 ? NEVER : clock_ms() + (uint64_t)timeout_ms;
    client->awake_since = 0;
    for (;;) {
        uint32_t count = turn(client, events, capacity);
        int left = time_left(end);
        const bool over = count > 0 || left == 0 || (capacity == 0 && client->waiting.first != NULL);
        if (!over && polls_on(client))
            continue;
        const bool sleeps = ring_sleep_on(client);
        if (over)
            return count;
        if (!sleeps)
            continue;
        struct pollfd fd = {.fd = client->epoll_fd, .events = POLLIN};
        if (poll(&fd, 1, left) < 0 && errno != EINTR)
            return 0;
    }
}

/* Events stay where they are, so only the socket and the timer are waited for. */
static void wait_for_daemon(struct strait_client *client, int left)
{
    struct pollfd fds[] = {{.fd = client->channel != NULL ? channel_fd(client->channel) : -1, .events = POLLIN},
                           {.fd = client->timer_fd, .events = POLLIN}};
    if (client->want_out)
        fds[0].events |= POLLOUT;
    poll(fds, 2, left);
}

enum strait_status strait_pool_wait(struct strait_pool *pool, int timeout_ms, const char **why)
{
    if (pool == NULL)
        return STRAIT_ERR_INVALID;
    struct strait_client *client = pool->client;
    const uint64_t end = timeout_ms < 0 ? NEVER : clock_ms() + (uint64_t)timeout_ms;
    client->awake_since = 0;
    for (;;) {
        (void)turn(client, NULL, 0);
        const int left = time_left(end);
        const bool sleeps = ring_sleep_on(client);
        if (pool->told || left == 0)
            break;
        if (sleeps)
            wait_for_daemon(client, left);
    }
    if (why != NULL)
        *why = pool->told ? pool->why : client->away;
    return pool->told ? pool->status : STRAIT_ERR_AGAIN;
}

/* ---- Open -------------------------------------------------------------------------------------------------------- */

static bool path_fits(const char *path)
{
    return path[0] != '\0' && strlen(path) < sizeof(((struct sockaddr_un *)NULL)->sun_path);
}

/* Reads the environment now, because the program may change it later. */
static enum strait_status look_for_socket(struct strait_client *client)
{
    char own[SOCKET_PATH_MAX + 1];
    const char *named = socket_from_environment(), *path = named != NULL ? named : SOCKET_OF_NODE;
    if (!path_fits(path))
        return STRAIT_ERR_INVALID;
    client->socket = strdup(path);
    if (client->socket == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (named != NULL || !socket_of_user(own))
        return STRAIT_OK;
    client->own_socket = strdup(own);
    return client->own_socket != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

/* Sets `embedded` or `socket`, never both. */
static enum strait_status copy_target(struct strait_client *client, const struct strait_client_config *config)
{
    if (config->embedded != NULL)
        return (client->embedded = strdup(config->embedded)) != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    if (config->socket == NULL)
        return look_for_socket(client);
    if (!path_fits(config->socket))
        return STRAIT_ERR_INVALID;
    return (client->socket = strdup(config->socket)) != NULL ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
}

static bool watch(const struct strait_client *client, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static enum strait_status open_descriptors(struct strait_client *client)
{
    client->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    client->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    client->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (client->epoll_fd < 0 || client->timer_fd < 0 || client->event_fd < 0)
        return STRAIT_ERR_IO;
    return watch(client, client->timer_fd) && watch(client, client->event_fd) ? STRAIT_OK : STRAIT_ERR_IO;
}

static struct strait_client *client_create(void)
{
    struct strait_client *client = calloc(1, sizeof(*client));
    if (client == NULL)
        return NULL;
    client->epoll_fd = client->timer_fd = client->event_fd = -1;
    client->timer_at = client->next_due = NEVER;
    client->backoff_ms = BACKOFF_FIRST_MS;
    outbox_init(&client->outbox);
    events_init(&client->waiting);
    events_init(&client->handed);
    return client;
}

/* A daemon that is away is not a failure; one that cannot be embedded is. */
static enum strait_status first_connect(struct strait_client *client)
{
    enum strait_status status = connection_start(client);
    timer_update(client);
    return client->embedded != NULL ? status : STRAIT_OK;
}

enum strait_status strait_client_open(const struct strait_client_config *config, struct strait_client **client)
{
    static const struct strait_client_config defaults = {.size = sizeof(defaults)};
    if (config == NULL)
        config = &defaults;
    if (client == NULL || !params_known(config, config->size, sizeof(*config)))
        return STRAIT_ERR_INVALID;
    struct strait_client *opened = client_create();
    if (opened == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = copy_target(opened, config);
    if (status == STRAIT_OK)
        status = open_descriptors(opened);
    if (status == STRAIT_OK)
        status = first_connect(opened);
    if (status != STRAIT_OK) {
        strait_client_close(opened);
        return status;
    }
    *client = opened;
    return STRAIT_OK;
}

/* ---- Close ------------------------------------------------------------------------------------------------------- */

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

void strait_client_close(struct strait_client *client)
{
    if (client == NULL)
        return;
    connection_close(client);
    outbox_clear(client);
    events_recycle(client);
    events_drop(client, NULL);
    while (client->transfers != NULL)
        transfer_destroy(client->transfers);
    notes_destroy(client);
    fences_destroy(client);
    while (client->peers != NULL)
        peer_destroy(client->peers);
    while (client->pools != NULL)
        pool_destroy(client->pools);
    words_put(client->words);
    close_fd(client->event_fd);
    close_fd(client->timer_fd);
    close_fd(client->epoll_fd);
    free(client->buckets);
    free(client->embedded);
    free(client->own_socket);
    free(client->socket);
    free(client);
}

int strait_client_fd(const struct strait_client *client)
{
    return client->epoll_fd;
}

bool strait_client_connected(const struct strait_client *client)
{
    return client->state == READY && !client->silent;
}

void strait_cork(struct strait_client *client)
{
    client->corks++;
}

void strait_uncork(struct strait_client *client)
{
    if (client->corks > 0 && --client->corks == 0)
        outbox_flush(client);
}

enum strait_status strait_stats(struct strait_client *client)
{
    if (client == NULL)
        return STRAIT_ERR_INVALID;
    if (!strait_client_connected(client))
        return STRAIT_ERR_AGAIN;
    struct message message = {.type = MESSAGE_STATS};
    enum strait_status status = outbox_send(client, &message, NULL, NULL);
    outbox_flush(client);
    return status;
}
