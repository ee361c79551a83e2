#ifndef STRAIT_TRANSPORT_CORE_H
#define STRAIT_TRANSPORT_CORE_H

#include <stdint.h>
#include <strait/status.h>

#include "internal/address.h"
#include "internal/clock.h"
#include "transport/transport.h"

/* Links and the queue of due callbacks, shared by all transports. A callback never runs inside another call; instead,
 * whatever happens becomes an event in a queue that transport_progress delivers. */

enum event_kind {
    EVENT_NONE, /* no callback: only counted */
    EVENT_CONNECTED,
    EVENT_SENT,
    EVENT_ARRIVED,
    EVENT_BROKEN,
};

struct core_link;

/* A send or a receive from its start until its callback. It is the first member of what a transport keeps about the
 * operation, allocated by malloc, so that a due callback never fails for lack of memory. */
struct event {
    struct event *next;
    struct core_link *link;
    uint64_t cookie;
    enum event_kind kind;
    enum strait_status status;
};

struct event_queue {
    struct event *head, **tail;
};

enum link_state {
    LINK_OPEN,       /* created */
    LINK_CONNECTING, /* link_connect was called */
    LINK_CONNECTED,
    LINK_BROKEN,  /* waiting for link_close */
    LINK_CLOSING, /* link_close was called */
};

struct core;

struct core_link {
    struct link base; /* first */
    struct core *core;
    struct core_link *next;
    enum link_state state;
    uint32_t pending;               /* events begun and not yet delivered */
    const char *why;                /* why it broke */
    struct event connected, broken; /* members, so that these two need no allocation */
};

struct core {
    struct transport base; /* first */
    struct core_link *links;
    uint32_t link_count, closing;
    struct event_queue due;
    bool (*quiet)(struct core_link *link);   /* whether nothing can happen to a closing link any more; NULL: true */
    void (*release)(struct core_link *link); /* frees it; NULL: by free */
};

void core_init(struct core *core, const struct transport_ops *ops, const struct transport_events *events, void *owner);

void core_link_add(struct core *core, struct core_link *link, void *link_owner);
/* From connecting to connected; `connected` is due. */
void core_link_connected(struct core_link *link);
/* `broken` becomes due unless the link was broken or closing already; `why` is static. */
void core_link_break(struct core_link *link, const char *why);
/* False when it was closing already. */
bool core_link_close(struct core_link *link);

/* Begins an event that will become due later; and makes it due. */
void event_begin(struct event *event, struct core_link *link, enum event_kind kind, uint64_t cookie);
void event_due(struct event *event, enum strait_status status);

/* Calls back for the events that are due now; those that the owner's reactions cause are left to the next call. False:
 * there were none. Must not be called from a callback. */
bool core_deliver(struct core *core);
/* Calls `closed` for the links that have ended. False: there were none. */
bool core_reap(struct core *core);
/* Whether transport_progress has something to do whatever the file descriptor says. */
bool core_is_due(const struct core *core);

/* Chunks on a stream: a head (magic, size of the header, size of the bytes; little-endian), the header, and perhaps the
 * bytes. */

#define RECORD_HEAD 16u
#define RECORD_MAX  (RECORD_HEAD + TRANSPORT_HEADER_MAX)

/* Writes head and header; returns their size. */
uint32_t record_write(uint8_t dst[RECORD_MAX], const void *header, size_t header_size, size_t size);
/* False: the head is malformed. */
bool record_read(const uint8_t head[RECORD_HEAD], uint32_t *header_size, uint64_t *size);

/* Options of a transport: "name=value" pairs separated by spaces. */

#define OPTION_MAX 256u /* bytes of a pair, including its zero */

struct option {
    char *name, *value; /* in `text` */
    char text[OPTION_MAX];
};

/* Takes the next pair from *options. OK with name NULL at the end; NULL is an empty list. ERR_INVALID: not a pair, or
 * too long. */
enum strait_status option_next(const char **options, struct option *option);

/* Gives every pair to `set`, which returns whether it is understood; NULL: none is. OK or ERR_INVALID. */
enum strait_status options_read(const char *options, bool (*set)(void *dst, const struct option *option), void *dst);

/* Where a transport listens, as its options listen= and port= say: an address that peers can be told, so not a
 * wildcard; port 0: any. */
#define LISTEN_DEFAULT                         \
    {                                          \
        .family = 4, .bytes = { 127, 0, 0, 1 } \
    }

/* Whether the option is one of these two; *good: its value is understood. */
bool option_listen(const struct option *option, struct address *listen, bool *good);

static inline int64_t nanoseconds(void)
{
    return (int64_t)clock_ns();
}

#endif
