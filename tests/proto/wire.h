/* Generated messages of tests: packed, unpacked, and changed as a test likes. */
#ifndef STRAIT_TESTS_PROTO_WIRE_H
#define STRAIT_TESTS_PROTO_WIRE_H

#include <check.h>
#include <stdlib.h>

#include "internal/bytes.h"
#include "proto/message_table.h"
#include "tests/proto/frames.h"

#define LENGTH_BYTES FRAME_LENGTH_BYTES
#define GOLDEN_COUNT 51

static inline const struct golden *golden_number(int i)
{
    int count;
    const struct golden *frames = golden_frames(&count);
    ck_assert_int_eq(GOLDEN_COUNT, count);
    return &frames[i];
}

static inline uint8_t *packed(const struct message *message, size_t *size)
{
    uint8_t *frame = NULL;
    ck_assert_int_eq(STRAIT_OK, message_pack(message, &frame, size));
    ck_assert_uint_eq(*size - LENGTH_BYTES, load_le32(frame));
    return frame;
}

static struct bump pieces; /* memory of the generated messages of a test */

static inline void pieces_init(void)
{
    bump_init(&pieces, SIZE_MAX);
}

static inline void pieces_fini(void)
{
    bump_fini(&pieces);
}

static inline Strait__Wire__Envelope *wire_of(const struct message *message)
{
    size_t size;
    ProtobufCAllocator allocator = bump_allocator(&pieces);
    uint8_t *frame = packed(message, &size);
    Strait__Wire__Envelope *envelope =
        strait__wire__envelope__unpack(&allocator, size - LENGTH_BYTES, frame + LENGTH_BYTES);
    free(frame);
    ck_assert_ptr_nonnull(envelope);
    return envelope;
}

static inline uint8_t *wire_packed(const Strait__Wire__Envelope *envelope, size_t *size)
{
    *size = strait__wire__envelope__get_packed_size(envelope);
    uint8_t *body = malloc(*size);
    ck_assert_uint_eq(*size, strait__wire__envelope__pack(envelope, body));
    return body;
}

#endif
