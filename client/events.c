/* Event queue and timer of a client: what makes its descriptor readable. */
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/client.h"

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

void events_init(struct event_list *list)
{
    *list = (struct event_list){.end = &list->first};
}

static void append(struct event_list *list, struct event_node *node)
{
    node->next = NULL;
    *list->end = node;
    list->end = &node->next;
    list->count++;
}

static struct event_node *take_first(struct event_list *list)
{
    struct event_node *node = list->first;
    if (node == NULL)
        return NULL;
    list->first = node->next;
    if (list->first == NULL)
        list->end = &list->first;
    list->count--;
    return node;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

struct event_node *event_create(enum strait_event_type type)
{
    struct event_node *node = calloc(1, sizeof(*node));
    if (node == NULL)
        return NULL;
    node->heap = true;
    node->event.type = type;
    return node;
}

void event_signal(struct strait_client *client)
{
    uint64_t one = 1;
    if (!client->signalled && !client->polling)
        client->signalled = write(client->event_fd, &one, sizeof(one)) == sizeof(one);
}

static void event_quiet(struct strait_client *client)
{
    uint64_t count;
    if (client->signalled)
        client->signalled = read(client->event_fd, &count, sizeof(count)) != sizeof(count);
}

void event_push(struct strait_client *client, struct event_node *node)
{
    if (node->event.text == NULL)
        node->event.text = "";
    if (node->event.transfer != NULL) {
        node->event.transfer->waiting++;
        client->stepped = true;
    }
    append(&client->waiting, node);
    event_signal(client);
}

/* The last use of a node: `seen` may free the object that contains it. */
static void node_done(struct event_node *node)
{
    struct strait_event event = node->event;
    void (*seen)(const struct strait_event *) = node->seen;
    for (int i = 0; i < 3; i++) {
        free(node->payload[i]);
        node->payload[i] = NULL;
    }
    if (node->heap)
        free(node);
    if (seen != NULL)
        seen(&event);
}

/* ---- Handing out ------------------------------------------------------------------------------------------------- */

void events_recycle(struct strait_client *client)
{
    struct event_node *node;
    while ((node = take_first(&client->handed)) != NULL) {
        if (node->event.transfer != NULL)
            node->event.transfer->handed--;
        node_done(node);
    }
}

void events_settle(struct strait_client *client)
{
    if (client->waiting.first == NULL && !client->input_left && client->awake_since == 0)
        event_quiet(client);
    else
        event_signal(client);
}

uint32_t events_hand_out(struct strait_client *client, struct strait_event *events, uint32_t capacity)
{
    uint32_t count = 0;
    while (count < capacity && client->waiting.first != NULL) {
        struct event_node *node = take_first(&client->waiting);
        if (node->event.transfer != NULL) {
            node->event.transfer->waiting--;
            node->event.transfer->handed++;
        }
        append(&client->handed, node);
        events[count++] = node->event;
    }
    client->polling = false;
    events_settle(client);
    return count;
}

void events_drop(struct strait_client *client, const struct strait_transfer *transfer)
{
    struct event_list kept, all = client->waiting;
    events_init(&kept);
    while (all.first != NULL) {
        struct event_node *node = all.first;
        all.first = node->next;
        if (transfer != NULL && node->event.transfer != transfer) {
            append(&kept, node);
            continue;
        }
        if (node->event.transfer != NULL)
            node->event.transfer->waiting--;
        node_done(node);
    }
    events_init(&client->waiting);
    if (kept.first != NULL) {
        client->waiting = kept;
    }
}

/* ---- Timer ------------------------------------------------------------------------------------------------------- */

static bool is_awaiting(const struct strait_client *client)
{
    return client->live > 0 || client->note_count > 0 || client->fence_count > 0 || client->answers > 0;
}

void answer_due(struct strait_client *client, uint32_t *due)
{
    if (!is_awaiting(client))
        client->heard_at = clock_ms();
    (*due)++;
}

uint64_t heartbeat_due(const struct strait_client *client)
{
    if ((client->state != HANDSHAKE && client->state != READY) || client->silent)
        return NEVER;
    if (client->pinged_at != 0)
        return client->pinged_at + ANSWER_MS;
    return is_awaiting(client) ? client->heard_at + PING_MS : NEVER;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* A timer that expires too early costs one wake-up; setting it again after each message would cost a call each. Setting
 * the timer also clears an expiration. */
void timer_update(struct strait_client *client)
{
    uint64_t reconnect = client->state == DISCONNECTED ? client->reconnect_at : NEVER;
    uint64_t at = earlier(earlier(reconnect, client->next_due), heartbeat_due(client));
    if (at == client->timer_at || (client->timer_at < at && clock_ms() < client->timer_at))
        return;
    struct itimerspec spec = {0};
    if (at != NEVER) {
        spec.it_value.tv_sec = (time_t)(at / 1000);
        spec.it_value.tv_nsec = (long)(at % 1000) * 1000000;
    }
    if (timerfd_settime(client->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL) == 0)
        client->timer_at = at;
}
