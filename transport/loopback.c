#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "transport/core.h"
#include "transport/loopback.h"

/* Which fault each chunk of a loopback (loopback.h) meets, drawn from a seed. */

enum fate {
    FATE_ARRIVES,
    FATE_LOST,
    FATE_FAILS,
    FATE_TRUNCATED,
    FATE_GARBLED,
    FATE_CORRUPTED,
    FATE_DOUBLED,
};

struct chance {
    struct loopback_faults faults;
    uint64_t dice; /* state of the generator */
};

struct chance chance_begin(const struct loopback_faults *faults);
uint64_t chance_roll(struct chance *chance);
enum fate chance_fate(struct chance *chance);
int64_t chance_delay_ns(struct chance *chance);

#define PER_MILLE 1000u

struct chance chance_begin(const struct loopback_faults *faults)
{
    return (struct chance){.faults = *faults, .dice = faults->seed};
}

/* splitmix64: any seed will do. */
uint64_t chance_roll(struct chance *chance)
{
    uint64_t x = chance->dice += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

enum fate chance_fate(struct chance *chance)
{
    const struct loopback_faults *faults = &chance->faults;
    const uint32_t rates[] = {faults->lose,   faults->fail,    faults->truncate,
                              faults->garble, faults->corrupt, faults->duplicate};
    uint64_t drawn = chance_roll(chance) % PER_MILLE;
    for (uint32_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        if (drawn < rates[i])
            return FATE_LOST + i;
        drawn -= rates[i];
    }
    return FATE_ARRIVES;
}

int64_t chance_delay_ns(struct chance *chance)
{
    uint64_t late = chance->faults.delay_us + chance_roll(chance) % ((uint64_t)chance->faults.jitter_us + 1);
    return (int64_t)late * 1000;
}

/* ---- Options ---------------------------------------------------------------------------------------------------- */

static const struct fault_name {
    const char *name;
    size_t offset;
} fault_names[] = {
#define FAULT(member)                                     \
    {                                                     \
#member, offsetof(struct loopback_faults, member) \
    }
    FAULT(seed),     FAULT(delay_us), FAULT(jitter_us), FAULT(lose),      FAULT(fail),
    FAULT(truncate), FAULT(garble),   FAULT(corrupt),   FAULT(duplicate), FAULT(cut_after),
#undef FAULT
};

static bool set_fault(void *faults, const struct option *option)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(option->value, &end, 10);
    if (*option->value < '0' || *option->value > '9' || *end != '\0' || errno != 0 || value > UINT32_MAX)
        return false;
    for (size_t i = 0; i < sizeof(fault_names) / sizeof(fault_names[0]); i++)
        if (strcmp(fault_names[i].name, option->name) == 0) {
            *(uint32_t *)(void *)((char *)faults + fault_names[i].offset) = (uint32_t)value;
            return true;
        }
    return false;
}

#define DELIVERED_MAX 64 /* chunks per progress */
#define ADDRESS_BYTES 12u

static const uint8_t address_magic[4] = {'L', 'O', 'O', 'P'};

/* A chunk on its way, in the receiving link's list, ordered by time. */
struct parcel {
    struct event event; /* the sender's */
    struct parcel *next;
    int64_t due;
    enum fate fate;
    const uint8_t *data;
    size_t size;
    uint32_t header_size;
    uint64_t dice; /* picks the bit to change */
    uint8_t header[TRANSPORT_HEADER_MAX];
};

/* Completion of a parcel on the receiver's side. */
struct receipt {
    struct event event;
};

struct loopback {
    struct core core;
    struct chance chance;
    int timer;
};

struct loopback_link {
    struct core_link core;
    struct loopback_link *next; /* in `network` */
    uint64_t id, peer_id;
    struct loopback_link *peer; /* set on both sides; NULL before connecting and after */
    struct parcel *coming;
    uint32_t sent;
    bool stalled;
};

/* All links of the process that have not been closed. */
static struct loopback_link *network;
static uint64_t last_id;

static struct loopback *loopback_of(const struct loopback_link *link)
{
    return (struct loopback *)link->core.core;
}

/* ---- Time ------------------------------------------------------------------------------------------------------ */

/* A time in the past, such as 1, makes the timer readable at once; 0 stops it. */
static bool set_timer(struct loopback *loopback, int64_t at)
{
    struct itimerspec when = {.it_value = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000}};
    return timerfd_settime(loopback->timer, TFD_TIMER_ABSTIME, &when, NULL) == 0;
}

/* Another transport's call gave this one something to do, so what its last arm returned no longer holds. */
static void wake(struct loopback *loopback)
{
    set_timer(loopback, 1);
}

static int64_t earliest(const struct loopback *loopback)
{
    int64_t due = 0;
    for (struct core_link *at = loopback->core.links; at != NULL; at = at->next) {
        const struct loopback_link *link = (const struct loopback_link *)at;
        if (link->coming != NULL && !link->stalled && (due == 0 || link->coming->due < due))
            due = link->coming->due;
    }
    return due;
}

/* ---- Parcels --------------------------------------------------------------------------------------------------- */

/* After those that are due at the same time. */
static void insert(struct loopback_link *receiver, struct parcel *parcel)
{
    struct parcel **at = &receiver->coming;
    while (*at != NULL && (*at)->due <= parcel->due)
        at = &(*at)->next;
    parcel->next = *at;
    *at = parcel;
}

/* Makes the sender's callback due, in the sender's transport. */
static void settle(struct parcel *parcel, enum strait_status status)
{
    struct loopback *sender = (struct loopback *)parcel->event.link->core;
    event_due(&parcel->event, status);
    wake(sender);
}

static void return_to_sender(struct loopback_link *receiver)
{
    while (receiver->coming != NULL) {
        struct parcel *parcel = receiver->coming;
        receiver->coming = parcel->next;
        settle(parcel, STRAIT_ERR_IO);
    }
}

static void land(const struct parcel *parcel, uint8_t *address, size_t size)
{
    size_t stored = parcel->fate == FATE_GARBLED ? size / 2 : size;
    if (stored == 0)
        return;
    memcpy(address, parcel->data, stored);
    if (parcel->fate == FATE_CORRUPTED)
        address[(parcel->dice >> 3) % stored] ^= (uint8_t)(1u << (parcel->dice & 7));
}

/* Asks the owner and copies. The receipt is allocated before asking, so that an accepted chunk always gets its
 * callback. */
static void arrive(struct loopback_link *link, const struct parcel *parcel)
{
    struct transport *transport = link->core.base.transport;
    struct receipt *receipt = malloc(sizeof(*receipt));
    size_t size = parcel->fate == FATE_TRUNCATED ? parcel->size / 2 : parcel->size;
    if (receipt == NULL)
        return;
    struct landing landing =
        transport->events.arriving(transport->owner, &link->core.base, parcel->header, parcel->header_size, size);
    if (landing.address == NULL) {
        free(receipt);
        return;
    }
    land(parcel, landing.address, size);
    event_begin(&receipt->event, &link->core, EVENT_ARRIVED, landing.cookie);
    event_due(&receipt->event, parcel->fate == FATE_GARBLED ? STRAIT_ERR_IO : STRAIT_OK);
}

static bool reaches(enum fate fate)
{
    return fate != FATE_LOST && fate != FATE_FAILS;
}

/* The owner may close the link when asked; the parcel is already out of the list and is settled all the same. */
static void hand_over(struct loopback_link *link, struct parcel *parcel)
{
    if (reaches(parcel->fate))
        arrive(link, parcel);
    if (parcel->fate == FATE_DOUBLED && link->core.state == LINK_CONNECTED)
        arrive(link, parcel);
    settle(parcel, parcel->fate == FATE_FAILS ? STRAIT_ERR_IO : STRAIT_OK);
}

static bool hand_over_due(struct loopback_link *link, int64_t now)
{
    bool any = false;
    for (int i = 0; i < DELIVERED_MAX && link->core.state == LINK_CONNECTED && !link->stalled; i++) {
        struct parcel *parcel = link->coming;
        if (parcel == NULL || parcel->due > now)
            break;
        link->coming = parcel->next;
        hand_over(link, parcel);
        any = true;
    }
    return any;
}

/* ---- Links ----------------------------------------------------------------------------------------------------- */

static struct loopback_link *find_link(uint64_t id)
{
    struct loopback_link *link = network;
    while (link != NULL && link->id != id)
        link = link->next;
    return link;
}

/* Separates two links: each side's chunks go back to the other. */
static void part(struct loopback_link *link)
{
    struct loopback_link *peer = link->peer;
    return_to_sender(link);
    if (peer == NULL)
        return;
    return_to_sender(peer);
    link->peer = peer->peer = NULL;
    core_link_break(&peer->core, "the peer closed the link");
    wake(loopback_of(peer));
}

void loopback_cut(struct link *base)
{
    struct loopback_link *link = (struct loopback_link *)base;
    part(link);
    core_link_break(&link->core, "the link was cut");
    wake(loopback_of(link));
}

void loopback_stall(struct link *base, bool stalled)
{
    struct loopback_link *link = (struct loopback_link *)base;
    link->stalled = stalled;
    wake(loopback_of(link));
}

static enum strait_status loopback_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                        struct link **out)
{
    (void)fd, (void)side;
    struct loopback_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return STRAIT_ERR_NO_MEMORY;
    link->id = ++last_id;
    link->next = network;
    network = link;
    core_link_add((struct core *)transport, &link->core, link_owner);
    *out = &link->core.base;
    return STRAIT_OK;
}

static size_t loopback_address(struct link *link, void *dst, size_t capacity)
{
    if (capacity >= ADDRESS_BYTES) {
        memcpy(dst, address_magic, sizeof(address_magic));
        store_le64((uint8_t *)dst + 4, ((struct loopback_link *)link)->id);
    }
    return ADDRESS_BYTES;
}

static void join(struct loopback_link *a, struct loopback_link *b)
{
    a->peer = b;
    b->peer = a;
    core_link_connected(&a->core);
    core_link_connected(&b->core);
    wake(loopback_of(a));
    wake(loopback_of(b));
}

static enum strait_status loopback_connect(struct link *base, const void *address, size_t size)
{
    struct loopback_link *link = (struct loopback_link *)base;
    if (link->core.state != LINK_OPEN || address == NULL || size != ADDRESS_BYTES)
        return STRAIT_ERR_INVALID;
    if (memcmp(address, address_magic, sizeof(address_magic)) != 0)
        return STRAIT_ERR_CORRUPT;
    link->core.state = LINK_CONNECTING;
    link->peer_id = load_le64((const uint8_t *)address + 4);
    struct loopback_link *peer = find_link(link->peer_id);
    if (peer == NULL || peer == link || (peer->core.state != LINK_OPEN && peer->peer_id != link->id))
        core_link_break(&link->core, "no such peer");
    else if (peer->core.state == LINK_CONNECTING)
        join(link, peer);
    return STRAIT_OK;
}

static void leave_network(struct loopback_link *link)
{
    struct loopback_link **at = &network;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
}

static void loopback_close(struct link *base)
{
    struct loopback_link *link = (struct loopback_link *)base;
    if (!core_link_close(&link->core))
        return;
    part(link);
    leave_network(link);
    wake(loopback_of(link));
}

static void post(struct loopback_link *link, struct parcel *parcel)
{
    struct loopback *loopback = loopback_of(link);
    parcel->fate = chance_fate(&loopback->chance);
    parcel->due = nanoseconds() + chance_delay_ns(&loopback->chance);
    parcel->dice = chance_roll(&loopback->chance);
    insert(link->peer, parcel);
    wake(loopback_of(link->peer));
}

static bool wears_out(struct loopback_link *link)
{
    uint32_t limit = loopback_of(link)->chance.faults.cut_after;
    return limit != 0 && link->sent++ >= limit;
}

static enum strait_status loopback_send(struct link *base, const void *header, size_t header_size, const void *data,
                                        size_t size, void *handle, uint64_t cookie)
{
    struct loopback_link *link = (struct loopback_link *)base;
    (void)handle;
    if (header_size > TRANSPORT_HEADER_MAX || (data == NULL && size > 0))
        return STRAIT_ERR_INVALID;
    if (link->core.state == LINK_CONNECTED && wears_out(link))
        loopback_cut(base);
    if (link->core.state != LINK_CONNECTED)
        return STRAIT_ERR_IO;
    struct parcel *parcel = calloc(1, sizeof(*parcel));
    if (parcel == NULL)
        return STRAIT_ERR_NO_MEMORY;
    event_begin(&parcel->event, &link->core, EVENT_SENT, cookie);
    parcel->data = data;
    parcel->size = size;
    parcel->header_size = (uint32_t)header_size;
    if (header_size > 0)
        memcpy(parcel->header, header, header_size);
    post(link, parcel);
    return STRAIT_OK;
}

/* ---- The transport --------------------------------------------------------------------------------------------- */

void loopback_set_faults(struct transport *transport, const struct loopback_faults *faults)
{
    struct loopback *loopback = (struct loopback *)transport;
    loopback->chance = chance_begin(faults);
}

static enum strait_status loopback_create(const struct transport_arena *arena, const struct transport_events *events,
                                          void *owner, const char *text, struct transport **transport)
{
    struct loopback_faults faults = {0};
    if (arena->memory != TRANSPORT_HOST || options_read(text, set_fault, &faults) != STRAIT_OK)
        return STRAIT_ERR_INVALID;
    struct loopback *loopback = calloc(1, sizeof(*loopback));
    if (loopback == NULL)
        return STRAIT_ERR_NO_MEMORY;
    loopback->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (loopback->timer < 0) {
        free(loopback);
        return STRAIT_ERR_IO;
    }
    core_init(&loopback->core, &transport_loopback, events, owner);
    loopback_set_faults(&loopback->core.base, &faults);
    *transport = &loopback->core.base;
    return STRAIT_OK;
}

static void loopback_destroy(struct transport *transport)
{
    struct loopback *loopback = (struct loopback *)transport;
    close(loopback->timer);
    free(loopback);
}

static int loopback_fd(const struct transport *transport)
{
    return ((const struct loopback *)transport)->timer;
}

static bool loopback_progress(struct transport *transport)
{
    struct loopback *loopback = (struct loopback *)transport;
    int64_t now = nanoseconds();
    bool any = core_deliver(&loopback->core);
    for (struct core_link *link = loopback->core.links; link != NULL; link = link->next)
        any |= hand_over_due((struct loopback_link *)link, now);
    any |= core_deliver(&loopback->core);
    return core_reap(&loopback->core) || any;
}

/* Setting the timer also clears an expiration from before. */
static enum strait_status loopback_arm(struct transport *transport)
{
    struct loopback *loopback = (struct loopback *)transport;
    int64_t due = earliest(loopback);
    if (core_is_due(&loopback->core) || (due != 0 && due <= nanoseconds()))
        return STRAIT_ERR_AGAIN;
    return set_timer(loopback, due) ? STRAIT_OK : STRAIT_ERR_IO;
}

const struct transport_ops transport_loopback = {
    .name = "loopback",
    .send_memory = TRANSPORT_HOST,
    .receive_memory = TRANSPORT_HOST,
    .direct = false,
    .create = loopback_create,
    .destroy = loopback_destroy,
    .fd = loopback_fd,
    .progress = loopback_progress,
    .arm = loopback_arm,
    .open = loopback_open,
    .address = loopback_address,
    .connect = loopback_connect,
    .close = loopback_close,
    .send = loopback_send,
};
