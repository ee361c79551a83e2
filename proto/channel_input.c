#include "proto/channel_input.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal/bytes.h"

#define BUFFER_BYTES_MIN  ((size_t)4096)
#define BUFFER_BYTES_KEEP ((size_t)64 * 1024) /* larger buffers are freed when they are empty */

void input_free(struct input *in)
{
    for (uint32_t i = 0; i < in->fd_count; i++)
        close(in->fds[i].fd);
    free(in->bytes);
}

/* ---- Frames ----------------------------------------------------------------------------------------------------- */

static uint64_t input_end(const struct input *in)
{
    return in->begin_at + (in->end - in->begin);
}

size_t input_frame_bytes(const struct input *in, uint64_t at)
{
    if (input_end(in) - at < LENGTH_BYTES)
        return 0;
    return LENGTH_BYTES + (size_t)load_le32(in->bytes + in->begin + (at - in->begin_at));
}

uint64_t input_advance(struct input *in, size_t body_max)
{
    uint64_t latest = in->complete_at;
    while (in->complete_at < input_end(in)) {
        size_t bytes = input_frame_bytes(in, in->complete_at);
        latest = in->complete_at;
        if (bytes == 0 || bytes > LENGTH_BYTES + body_max || input_end(in) - in->complete_at < bytes)
            break;
        in->complete_at += bytes;
    }
    return latest;
}

bool input_is_too_long(const struct input *in, size_t body_max)
{
    return input_frame_bytes(in, in->complete_at) > LENGTH_BYTES + body_max;
}

static size_t input_capacity_max(size_t body_max)
{
    size_t frame = LENGTH_BYTES + body_max;
    return frame > BUFFER_BYTES_MIN ? frame : BUFFER_BYTES_MIN;
}

static bool input_grow(struct input *in, size_t most)
{
    size_t capacity = in->capacity == 0 ? BUFFER_BYTES_MIN : 2 * in->capacity;
    uint8_t *bytes = realloc(in->bytes, capacity < most ? capacity : most);
    if (bytes == NULL)
        return false;
    in->bytes = bytes;
    in->capacity = capacity < most ? capacity : most;
    return true;
}

bool input_make_room(struct input *in, size_t body_max)
{
    if (in->end < in->capacity)
        return true;
    if (in->begin > 0) {
        memmove(in->bytes, in->bytes + in->begin, in->end - in->begin);
        in->end -= in->begin;
        in->begin = 0;
    }
    if (in->end < in->capacity / 2 || in->capacity >= input_capacity_max(body_max))
        return true;
    return input_grow(in, input_capacity_max(body_max));
}

void input_drop(struct input *in, size_t bytes)
{
    in->begin += bytes;
    in->begin_at += bytes;
    if (in->begin < in->end)
        return;
    in->begin = in->end = 0;
    if (in->capacity > BUFFER_BYTES_KEEP) {
        free(in->bytes);
        in->bytes = NULL;
        in->capacity = 0;
    }
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------ */

bool input_keep_fds(struct input *in, uint64_t frame, const int *fds, uint32_t count)
{
    uint32_t of_frame = count;
    for (uint32_t i = 0; i < in->fd_count; i++)
        of_frame += in->fds[i].at >= frame;
    if (of_frame > CHANNEL_FDS_MAX)
        return false;
    for (uint32_t i = 0; i < count; i++)
        in->fds[in->fd_count++] = (struct arrived){.at = input_end(in) - 1, .fd = fds[i]};
    return true;
}

uint32_t input_take_fds(struct input *in, size_t bytes, int fds[CHANNEL_FDS_MAX])
{
    uint32_t taken = 0, kept = 0;
    for (uint32_t i = 0; i < in->fd_count; i++) {
        if (in->fds[i].at < in->begin_at + bytes)
            fds[taken++] = in->fds[i].fd;
        else
            in->fds[kept++] = in->fds[i];
    }
    in->fd_count = kept;
    return taken;
}
