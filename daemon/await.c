/* Pages of an offer that are ready only when an event of a GPU has completed. The device's own thread waits for it:
 * what is announced to sinks is what is ready, so that no slot is kept for a slow producer. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/session.h"

/* An append whose event has not completed. It outlives an offer that ends before. */
struct awaited {
    struct device_task task;
    struct offer *offer; /* NULL: it has its verdict */
    int32_t layer_first;
    uint32_t layer_count, list_count;
    struct awaited *next;          /* of the offer */
    struct wire_page_list lists[]; /* without ids: what is said of them is logical */
};

/* The device whose memory an append is about: that of its first list, else of the pool's first group on one. */
static int32_t device_of(const struct pool *pool, const struct message_append *message)
{
    if (message->list_count > 0)
        return pool->groups[message->lists[0].group].device;
    for (uint32_t g = 0; g < pool->group_count; g++)
        if (pool->groups[g].device >= 0)
            return pool->groups[g].device;
    return -1;
}

static enum strait_reason make_ready(struct offer *o, const struct awaited *awaited)
{
    for (uint32_t i = 0; i < awaited->list_count; i++) {
        const struct wire_page_list *list = &awaited->lists[i];
        if (!offer_pages_ready(o, list->group, list->first, list->count, awaited->layer_first, awaited->layer_count))
            return STRAIT_REASON_NO_MEMORY;
    }
    if (awaited->list_count == 0 && !offer_layers_ready(o, awaited->layer_first, awaited->layer_count))
        return STRAIT_REASON_NO_MEMORY;
    return STRAIT_REASON_NONE;
}

static void complete(struct offer *o, const struct awaited *awaited)
{
    uint32_t from = o->ready_count;
    enum strait_reason reason = STRAIT_REASON_LOCAL;
    if (awaited->task.status == STRAIT_OK)
        reason = make_ready(o, awaited);
    if (reason != STRAIT_REASON_NONE) {
        bool of_event = awaited->task.status != STRAIT_OK && awaited->task.status != STRAIT_ERR_DEVICE;
        offer_fail(o, reason, of_event ? "the event of an append failed" : ""); /* a device tells for itself */
        return;
    }
    offer_tell_legs(o, from);
}

static void on_finished(struct device_task *task)
{
    struct awaited *awaited = (struct awaited *)task; /* its first member */
    struct offer *o = awaited->offer;
    if (o != NULL) {
        LL_DELETE(o->awaited, awaited);
        complete(o, awaited);
    }
    free(awaited);
}

enum strait_reason await_append(struct offer *o, const struct message_append *message)
{
    struct node *node = o->request.node;
    int32_t device = device_of(o->request.pool->pool, message);
    size_t lists_size = message->list_count * sizeof(message->lists[0]);
    bool inside = o->request.session != NULL && o->request.session->inside;
    if (device < 0 || message->ready.size != (inside ? MESSAGE_EVENT_POINTER : MESSAGE_EVENT_IPC))
        return STRAIT_REASON_LOCAL;
    struct awaited *awaited =
        request_charge(&o->request, sizeof(*awaited) + lists_size) ? calloc(1, sizeof(*awaited) + lists_size) : NULL;
    if (awaited == NULL)
        return STRAIT_REASON_NO_MEMORY;
    awaited->offer = o;
    awaited->layer_first = message->layer_first;
    awaited->layer_count = message->layer_count;
    awaited->list_count = message->list_count;
    for (uint32_t i = 0; i < message->list_count; i++) {
        awaited->lists[i] = message->lists[i];
        awaited->lists[i].ids = NULL;
    }
    awaited->task = (struct device_task){.work = DEVICE_READY,
                                         .finished = on_finished,
                                         .created = uv_hrtime(),
                                         .event_size = (uint32_t)message->ready.size};
    memcpy(awaited->task.event, message->ready.data, message->ready.size);
    LL_PREPEND(o->awaited, awaited);
    devices_submit(node->devices, device, &awaited->task);
    return STRAIT_REASON_NONE;
}

void await_forget(struct offer *o)
{
    struct awaited *awaited, *next;
    LL_FOREACH_SAFE (o->awaited, awaited, next) {
        awaited->offer = NULL;
        __atomic_store_n(&awaited->task.forgotten, true, __ATOMIC_RELAXED);
    }
    o->awaited = NULL;
}
