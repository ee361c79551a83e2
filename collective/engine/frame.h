/* The protocol between ranks on different hosts: frames of a 32-byte head, little-endian, followed by a slot's values
 * for one type of frame. The bytes are untrusted: an invalid frame ends the connection. */
#ifndef STRAIT_COLLECTIVE_ENGINE_FRAME_H
#define STRAIT_COLLECTIVE_ENGINE_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "internal/bytes.h"

enum { FRAME_BYTES = 32 };

enum frame_type {
    FRAME_SLOT = 1, /* a: number of the slot; `small` bytes of values follow */
    FRAME_TAKEN,    /* a: number + 1 of what was taken out of its slot */
    FRAME_RECORD,   /* a: number, b: first slot; small: 1 for pairs */
    FRAME_ASK,      /* small: a kind that a step is wanted for (agree.h) */
    FRAME_PROMISE,  /* small: a kind; a: no operation from this one on begins before the step comes */
    FRAME_STEP,     /* small: a kind; a, b, c: from, until, level */
    FRAME_LEAVE,    /* the end of this connection is no failure from now on */
    FRAME_TYPES
};

struct frame {
    uint32_t type, small;
    uint64_t a, b, c;
};

static inline void frame_put(uint8_t *bytes, const struct frame *frame)
{
    store_le32(bytes, frame->type);
    store_le32(bytes + 4, frame->small);
    store_le64(bytes + 8, frame->a);
    store_le64(bytes + 16, frame->b);
    store_le64(bytes + 24, frame->c);
}

static inline struct frame frame_get(const uint8_t *bytes)
{
    return (struct frame){.type = load_le32(bytes),
                          .small = load_le32(bytes + 4),
                          .a = load_le64(bytes + 8),
                          .b = load_le64(bytes + 16),
                          .c = load_le64(bytes + 24)};
}

#endif
