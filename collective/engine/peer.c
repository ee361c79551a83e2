#include "collective/engine/proxy.h"

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *word, uint64_t x)
{
    __atomic_store_n(word, x, __ATOMIC_SEQ_CST);
}

/* A link that has ended takes nothing; that is no failure here. */
static void send_frame(struct proxy_peer *peer, const struct frame *frame, const uint8_t *values, size_t size)
{
    uint8_t header[FRAME_BYTES];
    if (peer->link == NULL)
        return;
    frame_put(header, frame);
    const enum strait_status status = link_send(peer->link, header, FRAME_BYTES, values, size, NULL, size > 0);
    peer->starved |= status == STRAIT_ERR_NO_MEMORY;
    peer->frames += status == STRAIT_OK;
    peer->slots += status == STRAIT_OK && size > 0;
}

static bool has_room(const struct proxy_peer *peer)
{
    return peer->frames < PROXY_FRAMES_MAX;
}

void proxy_peer_frame(struct proxy_peer *peer, const struct frame *frame)
{
    send_frame(peer, frame, NULL, 0);
}

static void send_taken(struct proxy_peer *peer)
{
    for (uint32_t slot = 0; peer->from.taken != NULL && slot < peer->depth && has_room(peer); slot++) {
        const uint64_t taken = load(&peer->from.taken[slot].number);
        if (taken == peer->reported[slot])
            continue;
        peer->reported[slot] = taken;
        send_frame(peer, &(struct frame){.type = FRAME_TAKEN, .a = taken}, NULL, 0);
    }
}

/* The record with the next number, or a later one if that was overwritten. False: there is none yet. */
static bool next_record(struct proxy_peer *peer, uint32_t pairs, struct frame *frame)
{
    uint64_t *next = &peer->next_records[pairs];
    for (;;) {
        const struct ring_record *record = &peer->to.records[pairs][*next % peer->records];
        const uint64_t number = load(&record->number);
        if (number < *next + 1)
            return false;
        const uint64_t first = load(&record->first);
        if (number == *next + 1 && load(&record->number) == number) {
            *frame = (struct frame){.type = FRAME_RECORD, .small = pairs, .a = (*next)++, .b = first};
            return true;
        }
        *next += number > *next + 1 ? number - *next - peer->records : 1;
    }
}

static void send_records(struct proxy_peer *peer)
{
    struct frame frame;
    for (uint32_t pairs = 0; pairs < 2 && peer->to.full != NULL; pairs++)
        while (has_room(peer) && next_record(peer, pairs, &frame))
            send_frame(peer, &frame, NULL, 0);
}

/* The full slot with the lowest number that has not been sent; RING_SLOTS: there is none. */
static uint32_t next_slot(const struct proxy_peer *peer)
{
    uint32_t found = RING_SLOTS;
    uint64_t least = UINT64_MAX;
    for (uint32_t slot = 0; peer->to.full != NULL && slot < peer->depth; slot++) {
        const uint64_t full = load(&peer->to.full[slot].number);
        if (full == peer->sent[slot] || full >= least)
            continue;
        found = slot;
        least = full;
    }
    return found;
}

/* False: there is none. */
static bool send_slot(struct proxy_peer *peer)
{
    const uint32_t slot = next_slot(peer);
    if (slot == RING_SLOTS)
        return false;
    const struct ring_flag *full = &peer->to.full[slot];
    const uint64_t number = load(&full->number);
    const uint32_t bytes = full->bytes < peer->slot_bytes ? (uint32_t)full->bytes : peer->slot_bytes;
    peer->sent[slot] = number;
    send_frame(peer, &(struct frame){.type = FRAME_SLOT, .small = bytes, .a = number - 1},
               peer->to.slots + (size_t)slot * peer->slot_bytes, bytes);
    return true;
}

/* Records go before the slots of their messages, and whatever is short before slots, which take a while to send. */
void proxy_peer_send(struct proxy_peer *peer)
{
    send_taken(peer);
    send_records(peer);
    while (peer->slots < PROXY_SLOTS_MAX && has_room(peer) && send_slot(peer))
        ;
}

bool proxy_peer_is_full(const struct proxy_peer *peer)
{
    return next_slot(peer) != RING_SLOTS;
}

bool proxy_peer_is_quiet(const struct proxy_peer *peer)
{
    if (proxy_peer_is_full(peer))
        return false;
    for (uint32_t slot = 0; peer->from.taken != NULL && slot < peer->depth; slot++)
        if (load(&peer->from.taken[slot].number) != peer->reported[slot])
            return false;
    for (uint32_t pairs = 0; peer->to.full != NULL && pairs < 2; pairs++)
        if (load(&peer->to.records[pairs][peer->next_records[pairs] % peer->records].number) >
            peer->next_records[pairs])
            return false;
    return true;
}

static void on_sent(void *owner, struct link *link, uint64_t slots, enum strait_status status)
{
    struct proxy_peer *peer = link->owner;
    (void)owner, (void)status;
    peer->frames--;
    peer->slots -= (uint32_t)slots;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The slot is free, as the peer fills it again only after that has been reported to it. */
static struct landing begin_slot(struct proxy_peer *peer, const struct frame *frame)
{
    const uint32_t slot = frame->a % peer->depth;
    if (peer->from.full == NULL || frame->small == 0 || frame->small > peer->slot_bytes || frame->a >= UINT64_MAX / 2 ||
        frame->a < peer->filled[slot] || peer->reported[slot] != peer->filled[slot])
        return (struct landing){0};
    peer->filled[slot] = frame->a + 1;
    peer->from.full[slot].bytes = frame->small;
    return (struct landing){.address = peer->from.slots + (size_t)slot * peer->slot_bytes, .cookie = frame->a};
}

static void on_arrived(void *owner, struct link *link, uint64_t number, enum strait_status status)
{
    struct proxy_peer *peer = link->owner;
    (void)owner;
    if (status == STRAIT_OK)
        store(&peer->from.full[number % peer->depth].number, number + 1);
}

static bool handle_taken(struct proxy_peer *peer, const struct frame *frame)
{
    const uint32_t slot = (frame->a - 1) % peer->depth;
    if (peer->to.full == NULL || frame->a == 0 || frame->a != peer->sent[slot])
        return false;
    store(&peer->to.taken[slot].number, frame->a);
    return true;
}

static bool handle_record(struct proxy_peer *peer, const struct frame *frame)
{
    if (peer->from.full == NULL || frame->small > 1 || frame->a < peer->least_records[frame->small] ||
        frame->a >= UINT64_MAX / 2)
        return false;
    struct ring_record *record = &peer->from.records[frame->small][frame->a % peer->records];
    peer->least_records[frame->small] = frame->a + 1;
    store(&record->number, 0);
    store(&record->first, frame->b);
    store(&record->number, frame->a + 1);
    return true;
}

/* A frame without values. False: it is invalid. */
static bool handle(struct proxy_peer *peer, const struct frame *frame)
{
    switch (frame->type) {
    case FRAME_TAKEN:
        return handle_taken(peer, frame);
    case FRAME_RECORD:
        return handle_record(peer, frame);
    case FRAME_LEAVE:
        peer->left = true;
        return true;
    case FRAME_FLUSH:
        if (peer->answered)
            return false;
        peer->answered = true;
        send_frame(peer, &(struct frame){.type = FRAME_FLUSHED}, NULL, 0);
        return true;
    case FRAME_FLUSHED:
        peer->flushed = peer->flushing;
        return peer->flushing;
    case FRAME_ASK:
    case FRAME_PROMISE:
    case FRAME_STEP:
        return peer->on_consensus(peer->consensus_arg, peer->rank, frame);
    default:
        return false;
    }
}

static struct landing on_arriving(void *owner, struct link *link, const void *header, size_t header_size, size_t size)
{
    struct proxy_peer *peer = link->owner;
    struct landing landing = {0};
    (void)owner;
    const struct frame frame = header_size == FRAME_BYTES ? frame_get(header) : (struct frame){0};
    if (frame.type == FRAME_SLOT && frame.small == size)
        landing = begin_slot(peer, &frame);
    if (landing.address == NULL && (size > 0 || !handle(peer, &frame)))
        proxy_peer_end(peer, "has said what is not in order");
    return landing;
}

/* ---- The end of a link ------------------------------------------------------------------------------------------- */

void proxy_peer_end(struct proxy_peer *peer, const char *why)
{
    if (peer->link == NULL)
        return;
    if (!peer->left)
        peer->trouble = why;
    link_close(peer->link);
    peer->link = NULL;
}

static void on_broken(void *owner, struct link *link, const char *why)
{
    struct proxy_peer *peer = link->owner;
    (void)owner;
    peer->cause = peer->connected ? NULL : why;
    proxy_peer_end(peer, peer->connected ? "is not connected any more" : "could not be connected to");
}

static void on_connected(void *owner, struct link *link)
{
    (void)owner;
    ((struct proxy_peer *)link->owner)->connected = true;
}

static void on_closed(void *owner, struct link *link)
{
    (void)link;
    --*(unsigned *)owner;
}

const struct transport_events proxy_events = {
    .arriving = on_arriving,
    .arrived = on_arrived,
    .sent = on_sent,
    .connected = on_connected,
    .broken = on_broken,
    .closed = on_closed,
};
