#include <stdlib.h>
#include <string.h>

#include "transport/core.h"

enum strait_status option_next(const char **options, struct option *option)
{
    option->name = NULL;
    if (*options == NULL)
        return STRAIT_OK;
    const char *start = *options + strspn(*options, " ");
    size_t size = strcspn(start, " ");
    *options = start + size;
    if (size == 0)
        return STRAIT_OK;
    if (size >= sizeof(option->text))
        return STRAIT_ERR_INVALID;
    memcpy(option->text, start, size);
    option->text[size] = '\0';
    char *equals = strchr(option->text, '=');
    if (equals == NULL || equals == option->text)
        return STRAIT_ERR_INVALID;
    *equals = '\0';
    option->name = option->text;
    option->value = equals + 1;
    return STRAIT_OK;
}

enum strait_status options_none(const char *options)
{
    struct option option;
    enum strait_status status = option_next(&options, &option);
    return status == STRAIT_OK && option.name != NULL ? STRAIT_ERR_INVALID : status;
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

void event_begin(struct event *event, struct core_link *link, enum event_kind kind, uint64_t cookie)
{
    *event = (struct event){.link = link, .cookie = cookie, .kind = kind};
    link->pending++;
}

void event_due(struct event *event, enum strait_status status)
{
    struct event_queue *due = &event->link->core->due;
    event->status = status;
    event->next = NULL;
    *due->tail = event;
    due->tail = &event->next;
}

static struct event *pop(struct event_queue *queue)
{
    struct event *event = queue->head;
    if (event == NULL)
        return NULL;
    queue->head = event->next;
    if (queue->head == NULL)
        queue->tail = &queue->head;
    return event;
}

static void call_back(struct core_link *link, const struct event *event)
{
    struct transport *transport = &link->core->base;
    const struct transport_events *events = &transport->events;
    if (event->kind == EVENT_CONNECTED && link->state == LINK_CONNECTED)
        events->connected(transport->owner, &link->base);
    else if (event->kind == EVENT_SENT)
        events->sent(transport->owner, &link->base, event->cookie, event->status);
    else if (event->kind == EVENT_ARRIVED)
        events->arrived(transport->owner, &link->base, event->cookie, event->status);
    else if (event->kind == EVENT_BROKEN && link->state == LINK_BROKEN)
        events->broken(transport->owner, &link->base, link->why);
}

/* The callback may free the event, hence the copy. With `pending` at zero the link could be reaped, but that happens
 * only after the callback, in core_reap. */
static void deliver(struct event *event)
{
    struct core_link *link = event->link;
    struct event copy = *event;
    if (event != &link->connected && event != &link->broken)
        free(event);
    call_back(link, &copy);
    link->pending--;
}

bool core_deliver(struct core *core)
{
    struct event **end = core->due.tail;
    bool any = core->due.head != NULL, last = !any;
    while (!last) {
        struct event *event = pop(&core->due);
        last = &event->next == end;
        deliver(event);
    }
    return any;
}

/* ---- Links ----------------------------------------------------------------------------------------------------- */

void core_init(struct core *core, const struct transport_ops *ops, const struct transport_events *events, void *owner)
{
    core->base = (struct transport){.ops = ops, .events = *events, .owner = owner};
    core->due.tail = &core->due.head;
}

void core_link_add(struct core *core, struct core_link *link, void *link_owner)
{
    link->base = (struct link){.transport = &core->base, .owner = link_owner};
    link->core = core;
    link->next = core->links;
    core->links = link;
    core->link_count++;
}

void core_link_connected(struct core_link *link)
{
    link->state = LINK_CONNECTED;
    event_begin(&link->connected, link, EVENT_CONNECTED, 0);
    event_due(&link->connected, STRAIT_OK);
}

void core_link_break(struct core_link *link, const char *why)
{
    if (link->state >= LINK_BROKEN)
        return;
    link->state = LINK_BROKEN;
    link->why = why;
    event_begin(&link->broken, link, EVENT_BROKEN, 0);
    event_due(&link->broken, STRAIT_ERR_IO);
}

bool core_link_close(struct core_link *link)
{
    if (link->state == LINK_CLOSING)
        return false;
    link->state = LINK_CLOSING;
    link->core->closing++;
    return true;
}

static bool is_through(const struct core *core, struct core_link *link)
{
    return link->state == LINK_CLOSING && link->pending == 0 && core->quiet(link);
}

bool core_reap(struct core *core)
{
    bool any = false;
    struct core_link **at = &core->links;
    while (core->closing > 0 && *at != NULL) {
        struct core_link *link = *at;
        if (!is_through(core, link)) {
            at = &link->next;
            continue;
        }
        *at = link->next; /* before the callback, which may open links */
        core->closing--;
        core->link_count--;
        core->base.events.closed(core->base.owner, &link->base);
        core->release(link);
        any = true;
    }
    return any;
}

bool core_is_due(const struct core *core)
{
    if (core->due.head != NULL)
        return true;
    for (struct core_link *link = core->closing > 0 ? core->links : NULL; link != NULL; link = link->next)
        if (is_through(core, link))
            return true;
    return false;
}
