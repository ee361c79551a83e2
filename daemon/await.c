/* Pages of an offer that become ready when a GPU event has completed. The device's own thread waits for the event. Only
 * ready pages are announced to sinks, so that no slot is held for a slow producer. */
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/session.h"

/* Pages whose event has not completed. May outlive the offer. */
struct awaited {
    struct device_task task;
    struct offer *offer; /* NULL: the offer has its verdict */
    int32_t layer_first;
    uint32_t layer_count;
    uint32_t list_count;           /* 0: all announced pages */
    struct awaited *next;          /* in offer->awaited */
    struct wire_page_list lists[]; /* without ids: only logical indexes count here */
};

/* The device whose memory an event concerns: that of the first list, else of the pool's first group on a device. */
static int32_t device_of(const struct pool *pool, const struct wire_page_list *lists, uint32_t list_count)
{
    if (list_count > 0)
        return pool->groups[lists[0].group].device;
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
        offer_fail(o, reason, of_event ? "the event of its pages failed" : ""); /* a device gives its own reason */
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

static struct awaited *create(struct offer *o, const struct wire_page_list *lists, uint32_t list_count)
{
    size_t size = sizeof(struct awaited) + list_count * sizeof(lists[0]);
    struct awaited *awaited = request_charge(&o->request, size) ? calloc(1, size) : NULL;
    if (awaited == NULL)
        return NULL;
    awaited->offer = o;
    awaited->list_count = list_count;
    for (uint32_t i = 0; i < list_count; i++) {
        awaited->lists[i] = lists[i];
        awaited->lists[i].ids = NULL;
    }
    return awaited;
}

static void submit(struct awaited *awaited, int32_t device, struct view event)
{
    struct offer *o = awaited->offer;
    awaited->task = (struct device_task){
        .work = DEVICE_READY, .finished = on_finished, .created = uv_hrtime(), .event_size = (uint32_t)event.size};
    memcpy(awaited->task.event, event.data, event.size);
    LL_PREPEND(o->awaited, awaited);
    devices_submit(o->request.node->devices, device, &awaited->task);
}

static bool can_wait(const struct offer *o, int32_t device, struct view event)
{
    bool inside = o->request.session != NULL && o->request.session->inside;
    return device >= 0 && event.size == (inside ? MESSAGE_EVENT_POINTER : MESSAGE_EVENT_IPC);
}

enum strait_reason await_append(struct offer *o, const struct message_append *message)
{
    int32_t device = device_of(o->request.pool->pool, message->lists, message->list_count);
    if (!can_wait(o, device, message->ready))
        return STRAIT_REASON_LOCAL;
    struct awaited *awaited = create(o, message->lists, message->list_count);
    if (awaited == NULL)
        return STRAIT_REASON_NO_MEMORY;
    awaited->layer_first = message->layer_first;
    awaited->layer_count = message->layer_count;
    submit(awaited, device, message->ready);
    return STRAIT_REASON_NONE;
}

enum strait_reason await_offer(struct offer *o, struct view event)
{
    int32_t device = device_of(o->request.pool->pool, NULL, 0);
    if (!can_wait(o, device, event))
        return STRAIT_REASON_LOCAL;
    struct awaited *awaited = create(o, NULL, 0);
    if (awaited == NULL)
        return STRAIT_REASON_NO_MEMORY;
    submit(awaited, device, event);
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
