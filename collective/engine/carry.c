#include "collective/engine/carry.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* The most that one connection sends or receives before others get their turn. */
enum { TURN_BYTES = 4 << 20 };

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *word, uint64_t x)
{
    __atomic_store_n(word, x, __ATOMIC_SEQ_CST);
}

void carry_end(struct carry *carry)
{
    if (carry->socket >= 0)
        close(carry->socket);
    carry->socket = -1;
    carry->out.left = carry->out.size = carry->out.done = 0;
    free(carry->queue);
    carry->queue = NULL;
    carry->queued = carry->queue_room = 0;
}

static void fail(struct carry *carry, const char *why)
{
    if (!carry->left)
        carry->trouble = why;
    carry_end(carry);
}

/* ---- Sending frames ---------------------------------------------------------------------------------------------- */

static bool has_room(const struct carry_out *out)
{
    return out->size + FRAME_BYTES <= sizeof(out->words);
}

static void add(struct carry_out *out, const struct frame *frame)
{
    frame_put(out->words + out->size, frame);
    out->size += FRAME_BYTES;
}

bool carry_say(struct carry *carry, const struct frame *frame)
{
    if (carry->socket < 0)
        return true;
    if (carry->queued == carry->queue_room) {
        const uint32_t room = carry->queue_room != 0 ? 2 * carry->queue_room : 16;
        struct frame *queue = realloc(carry->queue, room * sizeof(*queue));
        if (queue == NULL)
            return false;
        carry->queue = queue;
        carry->queue_room = room;
    }
    carry->queue[carry->queued++] = *frame;
    return true;
}

static void add_queued(struct carry *carry)
{
    uint32_t taken = 0;
    for (; taken < carry->queued && has_room(&carry->out); taken++)
        add(&carry->out, &carry->queue[taken]);
    carry->queued -= taken;
    if (taken > 0)
        memmove(carry->queue, carry->queue + taken, carry->queued * sizeof(*carry->queue));
}

static void add_taken(struct carry *carry)
{
    for (uint32_t slot = 0; slot < RING_SLOTS && has_room(&carry->out); slot++) {
        const uint64_t taken = load(&carry->from.flags->taken[slot].number);
        if (taken == carry->out.told[slot])
            continue;
        carry->out.told[slot] = taken;
        add(&carry->out, &(struct frame){.type = FRAME_TAKEN, .a = taken});
    }
}

/* The record with the next number, or a later one if that was overwritten. False: there is none yet. */
static bool next_record(struct carry *carry, uint32_t pairs, struct frame *frame)
{
    uint64_t *next = &carry->out.records[pairs];
    for (;;) {
        const struct ring_record *record = &carry->to.flags->records[pairs][*next % RING_RECORDS];
        const uint64_t number = load(&record->number);
        if (number < *next + 1)
            return false;
        const uint64_t first = load(&record->first);
        if (number == *next + 1 && load(&record->number) == number) {
            *frame = (struct frame){.type = FRAME_RECORD, .small = pairs, .a = (*next)++, .b = first};
            return true;
        }
        *next += number > *next + 1 ? number - *next - RING_RECORDS : 1;
    }
}

static void add_records(struct carry *carry)
{
    struct frame frame;
    for (uint32_t pairs = 0; pairs < 2; pairs++)
        while (has_room(&carry->out) && next_record(carry, pairs, &frame))
            add(&carry->out, &frame);
}

/* The full slot with the lowest number that has not been sent; RING_SLOTS: there is none. */
static uint32_t next_slot(const struct carry *carry)
{
    uint32_t found = RING_SLOTS;
    uint64_t least = UINT64_MAX;
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++) {
        const uint64_t full = load(&carry->to.flags->full[slot].number);
        if (full == carry->out.sent[slot] || full >= least)
            continue;
        found = slot;
        least = full;
    }
    return found;
}

static void add_slot(struct carry *carry)
{
    const uint32_t slot = next_slot(carry);
    if (slot == RING_SLOTS || !has_room(&carry->out))
        return;
    const struct ring_flag *full = &carry->to.flags->full[slot];
    const uint64_t number = load(&full->number);
    carry->out.sent[slot] = number;
    carry->out.values = carry->to.slots + (size_t)slot * carry->slot_bytes;
    carry->out.left = full->bytes < carry->slot_bytes ? full->bytes : carry->slot_bytes;
    add(&carry->out, &(struct frame){.type = FRAME_SLOT, .small = (uint32_t)carry->out.left, .a = number - 1});
}

/* Records go before the slots of their messages, and words before values, which take a while to send. */
static void gather(struct carry *carry)
{
    struct carry_out *out = &carry->out;
    if (out->size > 0 || out->left > 0)
        return;
    add_queued(carry);
    add_taken(carry);
    add_records(carry);
    add_slot(carry);
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void sent(struct carry_out *out, size_t bytes)
{
    const size_t words = bytes < out->size - out->done ? bytes : out->size - out->done;
    out->done += (uint32_t)words;
    out->values += bytes - words;
    out->left -= bytes - words;
    if (out->done == out->size)
        out->size = out->done = 0;
}

/* A send error does not end the connection: what the peer has said last is read first. */
static size_t send_some(struct carry *carry)
{
    struct carry_out *out = &carry->out;
    gather(carry);
    struct iovec parts[2] = {{out->words + out->done, out->size - out->done},
                             {(void *)(uintptr_t)out->values, out->left}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (parts[0].iov_len + parts[1].iov_len == 0)
        return 0;
    const ssize_t size = sendmsg(carry->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    carry->blocked = size < 0 && errno == EAGAIN;
    if (size > 0)
        sent(out, (size_t)size);
    return size > 0 ? (size_t)size : 0;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The slot is free, as the peer fills it again only after it was told. */
static bool begin_slot(struct carry *carry, const struct frame *frame)
{
    struct carry_in *in = &carry->in;
    const uint32_t slot = frame->a % RING_SLOTS;
    if (frame->small == 0 || frame->small > carry->slot_bytes || frame->a >= UINT64_MAX / 2 ||
        frame->a < in->filled[slot] || carry->out.told[slot] != in->filled[slot])
        return false;
    in->values = carry->from.slots + (size_t)slot * carry->slot_bytes;
    in->left = frame->small;
    return true;
}

static void end_slot(struct carry *carry)
{
    struct carry_in *in = &carry->in;
    const uint32_t slot = in->frame.a % RING_SLOTS;
    struct ring_flag *full = &carry->from.flags->full[slot];
    in->filled[slot] = in->frame.a + 1;
    full->bytes = in->frame.small;
    store(&full->number, in->frame.a + 1);
}

static bool hear_taken(struct carry *carry, const struct frame *frame)
{
    const uint32_t slot = (frame->a - 1) % RING_SLOTS;
    if (frame->a == 0 || frame->a != carry->out.sent[slot])
        return false;
    store(&carry->to.flags->taken[slot].number, frame->a);
    return true;
}

static bool hear_record(struct carry *carry, const struct frame *frame)
{
    if (frame->small > 1 || frame->a < carry->in.records[frame->small] || frame->a >= UINT64_MAX / 2)
        return false;
    struct ring_record *record = &carry->from.flags->records[frame->small][frame->a % RING_RECORDS];
    carry->in.records[frame->small] = frame->a + 1;
    store(&record->number, 0);
    store(&record->first, frame->b);
    store(&record->number, frame->a + 1);
    return true;
}

/* False: the frame is invalid. */
static bool hear(struct carry *carry, const struct frame *frame)
{
    switch (frame->type) {
    case FRAME_SLOT:
        return begin_slot(carry, frame);
    case FRAME_TAKEN:
        return hear_taken(carry, frame);
    case FRAME_RECORD:
        return hear_record(carry, frame);
    case FRAME_LEAVE:
        carry->left = true;
        return true;
    case FRAME_ASK:
    case FRAME_PROMISE:
    case FRAME_STEP:
        return carry->hear(carry->hearer, carry->peer, frame);
    default:
        return false;
    }
}

static void received(struct carry *carry, size_t bytes)
{
    struct carry_in *in = &carry->in;
    if (in->left > 0) {
        in->values += bytes;
        in->left -= bytes;
        if (in->left == 0)
            end_slot(carry);
        return;
    }
    in->got += (uint32_t)bytes;
    if (in->got < FRAME_BYTES)
        return;
    in->got = 0;
    in->frame = frame_get(in->head);
    if (!hear(carry, &in->frame))
        fail(carry, "has said what is not in order");
}

static size_t receive_some(struct carry *carry)
{
    struct carry_in *in = &carry->in;
    uint8_t *into = in->left > 0 ? in->values : in->head + in->got;
    const ssize_t size =
        recv(carry->socket, into, in->left > 0 ? in->left : (size_t)(FRAME_BYTES - in->got), MSG_DONTWAIT);
    if (size > 0)
        received(carry, (size_t)size);
    else if (size == 0 || (errno != EAGAIN && errno != EINTR))
        fail(carry, "is not connected any more");
    return size > 0 ? (size_t)size : 0;
}

/* ---- Both directions --------------------------------------------------------------------------------------------- */

bool carry_pass(struct carry *carry)
{
    size_t moved = 0;
    for (size_t last = 1; last > 0 && moved < TURN_BYTES && carry->socket >= 0; moved += last) {
        last = receive_some(carry);
        if (carry->socket >= 0)
            last += send_some(carry);
    }
    return moved > 0;
}

static bool is_quiet(const struct carry *carry)
{
    for (uint32_t slot = 0; slot < RING_SLOTS; slot++)
        if (load(&carry->to.flags->full[slot].number) != carry->out.sent[slot] ||
            load(&carry->from.flags->taken[slot].number) != carry->out.told[slot])
            return false;
    for (uint32_t pairs = 0; pairs < 2; pairs++)
        if (load(&carry->to.flags->records[pairs][carry->out.records[pairs] % RING_RECORDS].number) >
            carry->out.records[pairs])
            return false;
    return true;
}

bool carry_has_said(const struct carry *carry)
{
    return carry->queued == 0 && carry->out.size == 0;
}

bool carry_has_arrived(const struct carry *carry)
{
    int waiting = 0;
    return carry_has_said(carry) && carry->out.left == 0 && is_quiet(carry) &&
           ioctl(carry->socket, SIOCOUTQ, &waiting) == 0 && waiting == 0;
}
