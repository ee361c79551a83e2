#include <arpa/inet.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal/bytes.h"
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

enum strait_status options_read(const char *options, bool (*set)(void *dst, const struct option *option), void *dst)
{
    struct option option;
    enum strait_status status;
    while ((status = option_next(&options, &option)) == STRAIT_OK && option.name != NULL)
        if (set == NULL || !set(dst, &option))
            return STRAIT_ERR_INVALID;
    return status;
}

/* Interface of a link-local address behind its %, by number or by name; 0: there is none. */
static uint32_t scope_of(const char *text)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    return *end == '\0' && number <= UINT32_MAX ? (uint32_t)number : if_nametoindex(text);
}

static bool read_ip(const char *text, struct address *listen)
{
    static const uint8_t wildcard[16];
    struct address read = {.port = listen->port};
    char host[INET6_ADDRSTRLEN];
    const size_t size = strcspn(text, "%");
    if (size >= sizeof(host))
        return false;
    memcpy(host, text, size);
    host[size] = '\0';
    if (text[size] == '%' && (read.scope = scope_of(text + size + 1)) == 0)
        return false;
    read.family = inet_pton(AF_INET6, host, read.bytes) == 1                     ? 6
                  : read.scope == 0 && inet_pton(AF_INET, host, read.bytes) == 1 ? 4
                                                                                 : 0;
    if (read.family == 0 || memcmp(read.bytes, wildcard, sizeof(wildcard)) == 0)
        return false;
    *listen = read;
    return true;
}

static bool read_port(const char *text, uint16_t *port)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value > UINT16_MAX)
        return false;
    *port = (uint16_t)value;
    return true;
}

bool option_listen(const struct option *option, struct address *listen, bool *good)
{
    const bool ip = strcmp(option->name, "listen") == 0;
    if (!ip && strcmp(option->name, "port") != 0)
        return false;
    *good = ip ? read_ip(option->value, listen) : read_port(option->value, &listen->port);
    return true;
}

/* ---- Records ---------------------------------------------------------------------------------------------------- */

static const uint8_t record_magic[4] = {'C', 'H', 'N', 'K'};

uint32_t record_write(uint8_t dst[RECORD_MAX], const void *header, size_t header_size, size_t size)
{
    memcpy(dst, record_magic, sizeof(record_magic));
    store_le32(dst + 4, (uint32_t)header_size);
    store_le64(dst + 8, size);
    if (header_size > 0)
        memcpy(dst + RECORD_HEAD, header, header_size);
    return RECORD_HEAD + (uint32_t)header_size;
}

bool record_read(const uint8_t head[RECORD_HEAD], uint32_t *header_size, uint64_t *size)
{
    *header_size = load_le32(head + 4);
    *size = load_le64(head + 8);
    return memcmp(head, record_magic, sizeof(record_magic)) == 0 && *header_size <= TRANSPORT_HEADER_MAX &&
           *size <= UINT32_MAX;
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

enum strait_status link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                             struct link **link)
{
    if ((side == LINK_ACCEPTED || side == LINK_DIALLED) && transport->ops->direct == (fd >= 0))
        return transport->ops->open(transport, fd, side, link_owner, link);
    if (fd >= 0)
        close(fd);
    return STRAIT_ERR_INVALID;
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
    return link->state == LINK_CLOSING && link->pending == 0 && (core->quiet == NULL || core->quiet(link));
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
        if (core->release != NULL)
            core->release(link);
        else
            free(link);
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
