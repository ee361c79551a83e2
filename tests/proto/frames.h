/* Golden frames: tests/data/messages.hex, one or more frames of every message type, as PROTOCOL_VERSION has them on
 * the wire. Tests run in the root of the tree. */
#ifndef STRAIT_TESTS_PROTO_FRAMES_H
#define STRAIT_TESTS_PROTO_FRAMES_H

#include "proto/message.h"

#define FRAME_LENGTH_BYTES 4u

struct golden {
    char name[32]; /* message_name, plus a word if there are several of a type */
    uint8_t *frame;
    size_t size;
    struct message message; /* what the frame unpacks to */
};

/* All of them, read when first asked for and kept. */
const struct golden *golden_frames(int *count);
const struct golden *golden_frame(const char *name);
const struct message *golden_message(const char *name);

/* Fails through require() unless both messages pack to the same frame. */
void require_same_message(const struct message *a, const struct message *b);

#endif
