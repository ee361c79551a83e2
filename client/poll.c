#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/timerfd.h>
#include <time.h>

#include "client/client.h"

/* ---- Time -------------------------------------------------------------------------------------------------------- */

uint64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t next_timeout(const struct strait_client *client)
{
    uint64_t reconnect = client->state == AWAY ? client->reconnect_at : NEVER;
    return reconnect < client->next_due ? reconnect : client->next_due;
}

/* Setting the timer also clears an expiration. */
void timer_update(struct strait_client *client)
{
    uint64_t at = next_timeout(client);
    if (at == client->timer_at)
        return;
    struct itimerspec spec = {0};
    if (at != NEVER) {
        spec.it_value.tv_sec = (time_t)(at / 1000);
        spec.it_value.tv_nsec = (long)(at % 1000) * 1000000;
    }
    if (timerfd_settime(client->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL) == 0)
        client->timer_at = at;
}

/* ---- Poll -------------------------------------------------------------------------------------------------------- */

uint32_t strait_poll(struct strait_client *client, struct strait_event *events, uint32_t capacity)
{
    events_recycle(client);
    connection_work(client);
    transfers_expire(client, clock_ms());
    connection_flush(client);
    timer_update(client);
    return events_hand_out(client, events, capacity);
}

/* -1: forever. */
static int time_left(uint64_t end)
{
    if (end == NEVER)
        return -1;
    uint64_t now = clock_ms();
    return now >= end ? 0 : end - now > INT_MAX ? INT_MAX : (int)(end - now);
}

uint32_t strait_wait(struct strait_client *client, struct strait_event *events, uint32_t capacity, int timeout_ms)
{
    uint64_t end = timeout_ms < 0 ? NEVER : clock_ms() + (uint64_t)timeout_ms;
    for (;;) {
        uint32_t count = strait_poll(client, events, capacity);
        int left = time_left(end);
        if (count > 0 || left == 0 || (capacity == 0 && client->waiting.first != NULL))
            return count;
        struct pollfd fd = {.fd = client->epoll_fd, .events = POLLIN};
        if (poll(&fd, 1, left) < 0 && errno != EINTR)
            return 0;
    }
}
