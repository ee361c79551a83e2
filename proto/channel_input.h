/* What a channel (channel.h) has received and not handed out yet: a buffer of bytes, where frames begin in it, and the
 * descriptors that came with them. Reads no socket. */
#ifndef STRAIT_PROTO_CHANNEL_INPUT_H
#define STRAIT_PROTO_CHANNEL_INPUT_H

#include "proto/channel.h"

#define LENGTH_BYTES    4u                    /* of a frame's length, which comes first and does not count itself */
#define FDS_WAITING_MAX (4 * CHANNEL_FDS_MAX) /* reading stops while this might be exceeded */

/* A received descriptor, and the position of a byte of the frame that it belongs to. */
struct arrived {
    uint64_t at;
    int fd;
};

/* Bytes received and not yet handed out. Positions count from the first byte of the stream. */
struct input {
    uint8_t *bytes;
    size_t capacity, begin, end;
    uint64_t begin_at;    /* position of bytes[begin], where a frame begins */
    uint64_t complete_at; /* position of the first incomplete frame */
    struct arrived fds[FDS_WAITING_MAX];
    uint32_t fd_count;
};

/* Closes the descriptors too. */
void input_free(struct input *in);

/* Bytes of the frame at a position, including its length field; 0 when that has not fully arrived. */
size_t input_frame_bytes(const struct input *in, uint64_t at);
/* Moves complete_at past the frames that have become complete, and returns the position of the frame that the last byte
 * belongs to. Does not step over a frame that is longer than allowed. */
uint64_t input_advance(struct input *in, size_t body_max);
/* Whether the incomplete frame announces more bytes than allowed; then nothing more is read. It is rejected only when
 * its turn comes, because a message before it may be the reason to allow more. */
bool input_is_too_long(const struct input *in, size_t body_max);

/* Makes room after the received bytes: by moving them to the front, then by doubling, so that no byte is moved more
 * than a few times and no memory is taken for bytes that are only announced. False: out of memory. If there is no room
 * although this returns true, the owner has to take complete frames first. */
bool input_make_room(struct input *in, size_t body_max);
/* Removes the first frame. */
void input_drop(struct input *in, size_t bytes);

/* The descriptors belong to the frame that the last byte belongs to, which begins at `frame`: one receive does not go
 * past the end of the call that sent them. False: more than a frame may have; none of them is kept. */
bool input_keep_fds(struct input *in, uint64_t frame, const int *fds, uint32_t count);
/* Moves the descriptors of the first frame to fds; those of later frames stay. */
uint32_t input_take_fds(struct input *in, size_t bytes, int fds[CHANNEL_FDS_MAX]);

#endif
