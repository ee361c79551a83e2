#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "proto/channel.h"

/* Input of a channel (channel.h), received and not handed out yet: a buffer of bytes, where frames begin in it, and the
 * descriptors that came with them. Reads no socket. */

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

#define READ_BYTES_MAX   ((size_t)256 * 1024) /* in one channel_read */
#define READ_CALLS_MAX   32u
#define WRITE_FRAMES_MAX 64u

/* An outgoing frame. */
struct output {
    struct output *next;
    uint8_t *bytes;
    size_t size, sent;
    uint32_t fd_count; /* 0 once they are sent, which happens with the first byte */
    int fds[];
};

struct channel {
    int fd;
    struct channel_layer *out_layer, *in_layer; /* NULL: none */
    struct channel_layer *out_next;             /* takes the place of out_layer, */
    size_t out_before;                          /* when so many queued bytes have gone */
    bool is_unix;
    bool ended;                /* nothing more will be received */
    bool gone;                 /* nothing more can be sent */
    enum strait_status broken; /* OK, or how the peer broke the protocol */
    char why[96];              /* the same for people */
    size_t body_max, queue_max;
    struct output *first, **last;
    size_t queued;
    uint64_t written;
    struct input in;
};

/* ---- Construction --------------------------------------------------------------------------------------------- */

static enum strait_status socket_prepare(int fd, bool *is_unix)
{
    int domain;
    socklen_t size = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0)
        return STRAIT_ERR_INVALID;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        return STRAIT_ERR_INVALID;
    *is_unix = domain == AF_UNIX;
    return STRAIT_OK;
}

enum strait_status channel_create(int fd, size_t body_max, size_t queue_max, struct channel **channel)
{
    bool is_unix;
    if (body_max > MESSAGE_BYTES_MAX || socket_prepare(fd, &is_unix) != STRAIT_OK)
        return STRAIT_ERR_INVALID;
    struct channel *created = calloc(1, sizeof(*created));
    if (created == NULL)
        return STRAIT_ERR_NO_MEMORY;
    created->fd = fd;
    created->is_unix = is_unix;
    created->body_max = body_max;
    created->queue_max = queue_max;
    created->last = &created->first;
    *channel = created;
    return STRAIT_OK;
}

void channel_use(struct channel *channel, struct channel_layer *layer)
{
    channel->out_layer = channel->in_layer = layer;
    channel->is_unix = false;
}

/* Descriptors of messages that were queued before still go with them. */
void channel_send_by(struct channel *channel, struct channel_layer *layer)
{
    channel->out_next = layer;
    channel->out_before = channel->queued;
    channel->is_unix &= layer->send_fds != NULL;
}

bool channel_sends_by(const struct channel *channel, const struct channel_layer *layer)
{
    return channel->out_layer == layer;
}

bool channel_receive_by(struct channel *channel, struct channel_layer *layer)
{
    struct input *in = &channel->in;
    channel->in_layer = layer;
    if (layer->take_fds == NULL)
        return in->begin == in->end && in->fd_count == 0;
    input_drop(in, in->end - in->begin);
    in->complete_at = in->begin_at;
    return true;
}

static void close_all(const int *fds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
}

static void output_destroy(struct output *output)
{
    close_all(output->fds, output->fd_count);
    free(output->bytes);
    free(output);
}

void channel_destroy(struct channel *channel)
{
    if (channel == NULL)
        return;
    for (struct output *output = channel->first, *next; output != NULL; output = next) {
        next = output->next;
        output_destroy(output);
    }
    input_free(&channel->in);
    if (channel->fd >= 0)
        close(channel->fd);
    free(channel);
}

int channel_release(struct channel *channel)
{
    bool clean = channel->first == NULL && channel->in.begin == channel->in.end && channel->broken == STRAIT_OK;
    int fd = clean ? channel->fd : -1;
    if (clean)
        channel->fd = -1;
    channel_destroy(channel);
    return fd;
}

int channel_fd(const struct channel *channel)
{
    return channel->fd;
}

bool channel_has_ended(const struct channel *channel)
{
    struct pollfd fd = {.fd = channel->fd, .events = POLLRDHUP};
    return poll(&fd, 1, 0) == 1 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void channel_set_body_max(struct channel *channel, size_t body_max)
{
    channel->body_max = body_max < MESSAGE_BYTES_MAX ? body_max : MESSAGE_BYTES_MAX;
}

enum strait_status channel_peer(const struct channel *channel, uint32_t *pid, uint32_t *uid, uint32_t *gid)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    if (!channel->is_unix || getsockopt(channel->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return STRAIT_ERR_IO;
    *pid = (uint32_t)peer.pid;
    *uid = peer.uid;
    *gid = peer.gid;
    return STRAIT_OK;
}

/* Other messages may have none: a receiver that expects no descriptors would leak them. */
uint32_t channel_fds_of(const struct message *message)
{
    if (message->type == MESSAGE_POOL_REGISTER)
        return message->pool_register.fd_count;
    if (message->type == MESSAGE_HANDOVER)
        return message->handover.fd_count;
    return message->type == MESSAGE_WORDS || message->type == MESSAGE_RINGS ? 1 : 0;
}

/* ---- Sending -------------------------------------------------------------------------------------------------- */

static enum strait_status output_duplicate(struct output *output, const int *fds, uint32_t fd_count)
{
    for (; output->fd_count < fd_count; output->fd_count++) {
        int fd = fcntl(fds[output->fd_count], F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            return errno == EBADF ? STRAIT_ERR_INVALID : STRAIT_ERR_IO;
        output->fds[output->fd_count] = fd;
    }
    return STRAIT_OK;
}

static enum strait_status output_create(const struct message *message, const int *fds, uint32_t fd_count,
                                        struct output **created)
{
    struct output *output = calloc(1, sizeof(*output) + fd_count * sizeof(int));
    if (output == NULL)
        return STRAIT_ERR_NO_MEMORY;
    enum strait_status status = message_pack(message, &output->bytes, &output->size);
    if (status == STRAIT_OK)
        status = output_duplicate(output, fds, fd_count);
    if (status == STRAIT_OK)
        *created = output;
    else
        output_destroy(output);
    return status;
}

enum strait_status channel_send(struct channel *channel, const struct message *message, const int *fds,
                                uint32_t fd_count)
{
    struct output *output;
    if (fd_count != channel_fds_of(message) || fd_count > CHANNEL_FDS_MAX || (fd_count > 0 && !channel->is_unix))
        return STRAIT_ERR_INVALID;
    enum strait_status status = output_create(message, fds, fd_count, &output);
    if (status != STRAIT_OK)
        return status;
    if (channel->queued > channel->queue_max || output->size > channel->queue_max - channel->queued) {
        output_destroy(output);
        return STRAIT_ERR_NO_SPACE;
    }
    *channel->last = output;
    channel->last = &output->next;
    channel->queued += output->size;
    return STRAIT_OK;
}

/* Descriptors reach the other side with the first byte of the call that sends them, and one receive does not go past
 * the end of that call. So a frame with descriptors is sent by a call of its own, and the reader knows which frame they
 * belong to. */
static uint32_t gather(const struct channel *channel, struct iovec *pieces)
{
    uint32_t count = 0;
    size_t before = channel->out_next != NULL ? channel->out_before : SIZE_MAX;
    for (struct output *output = channel->first; output != NULL && count < WRITE_FRAMES_MAX; output = output->next) {
        if ((output->fd_count > 0 && count > 0) || before == 0)
            break;
        before -= output->size - output->sent;
        pieces[count++] =
            (struct iovec){.iov_base = output->bytes + output->sent, .iov_len = output->size - output->sent};
        if (output->fd_count > 0)
            break;
    }
    return count;
}

union control {
    struct cmsghdr aligned;
    char bytes[CMSG_SPACE(CHANNEL_FDS_MAX * sizeof(int))];
};

static void attach(struct msghdr *header, union control *control, const struct output *output)
{
    size_t bytes = output->fd_count * sizeof(int);
    memset(control, 0, sizeof(*control));
    header->msg_control = control->bytes;
    header->msg_controllen = CMSG_SPACE(bytes);
    struct cmsghdr *ancillary = CMSG_FIRSTHDR(header);
    ancillary->cmsg_level = SOL_SOCKET;
    ancillary->cmsg_type = SCM_RIGHTS;
    ancillary->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(ancillary), output->fds, bytes);
}

/* Through a layer descriptors go before their frame. False: they do not go now; errno. */
static bool send_fds_apart(const struct channel *channel)
{
    struct channel_layer *layer = channel->out_layer;
    struct output *first = channel->first;
    if (first->fd_count == 0)
        return true;
    if (layer->send_fds(layer, channel->fd, first->fds, first->fd_count) != 0)
        return false;
    close_all(first->fds, first->fd_count);
    first->fd_count = 0;
    return true;
}

static ssize_t write_some(const struct channel *channel)
{
    struct iovec pieces[WRITE_FRAMES_MAX];
    union control control;
    struct msghdr header = {.msg_iov = pieces, .msg_iovlen = gather(channel, pieces)};
    ssize_t sent;
    if (channel->out_layer != NULL && !send_fds_apart(channel))
        return -1;
    if (channel->out_layer != NULL)
        return channel->out_layer->send(channel->out_layer, channel->fd, pieces, header.msg_iovlen);
    if (channel->first->fd_count > 0)
        attach(&header, &control, channel->first);
    do
        sent = sendmsg(channel->fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* The first frame's descriptors went with its first byte; no other frame of the call had any. */
static void written(struct channel *channel, size_t sent)
{
    channel->queued -= sent;
    channel->written += sent;
    if (channel->out_next != NULL)
        channel->out_before -= sent;
    close_all(channel->first->fds, channel->first->fd_count);
    channel->first->fd_count = 0;
    while (channel->first != NULL && sent >= channel->first->size - channel->first->sent) {
        struct output *output = channel->first;
        sent -= output->size - output->sent;
        channel->first = output->next;
        output_destroy(output);
    }
    if (channel->first != NULL)
        channel->first->sent += sent;
    else
        channel->last = &channel->first;
}

static void layer_flush(struct channel *channel)
{
    struct channel_layer *layer = channel->out_layer;
    if (layer->send(layer, channel->fd, NULL, 0) < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        channel->gone = true;
}

/* Goes over to the next layer if everything before it has gone. False: not yet, and nothing may be written. */
static bool may_write(struct channel *channel)
{
    struct channel_layer *before = channel->out_layer;
    if (channel->out_next == NULL || channel->out_before > 0)
        return true;
    if (before != NULL)
        layer_flush(channel);
    if (channel->gone || (before != NULL && before->wants_write(before)))
        return false;
    channel->out_layer = channel->out_next;
    channel->out_next = NULL;
    return true;
}

enum strait_status channel_flush(struct channel *channel)
{
    if (channel->first == NULL && channel->out_layer != NULL && !channel->gone)
        layer_flush(channel);
    while (channel->first != NULL && !channel->gone && may_write(channel)) {
        ssize_t sent = write_some(channel);
        if (sent > 0)
            written(channel, (size_t)sent);
        else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return STRAIT_OK;
        else
            channel->gone = true;
    }
    return channel->gone ? STRAIT_ERR_IO : STRAIT_OK;
}

bool channel_wants_write(const struct channel *channel)
{
    if (channel->out_layer != NULL)
        return channel->out_layer->wants_write(channel->out_layer) && !channel->gone;
    return channel->first != NULL && !channel->gone;
}

size_t channel_queued(const struct channel *channel)
{
    return channel->queued;
}

uint64_t channel_written(const struct channel *channel)
{
    return channel->written;
}

/* ---- Reading -------------------------------------------------------------------------------------------------- */

uint64_t channel_received(const struct channel *channel)
{
    return input_end(&channel->in);
}

/* The descriptors that one call received. */
static uint32_t take_fds(struct msghdr *header, int fds[CHANNEL_FDS_MAX])
{
    uint32_t count = 0;
    for (struct cmsghdr *ancillary = CMSG_FIRSTHDR(header); ancillary != NULL;
         ancillary = CMSG_NXTHDR(header, ancillary)) {
        if (ancillary->cmsg_level != SOL_SOCKET || ancillary->cmsg_type != SCM_RIGHTS)
            continue;
        size_t bytes = ancillary->cmsg_len - CMSG_LEN(0);
        memcpy(fds + count, CMSG_DATA(ancillary), bytes);
        count += (uint32_t)(bytes / sizeof(int));
    }
    return count;
}

__attribute__((format(printf, 3, 4))) static void channel_break(struct channel *channel, enum strait_status status,
                                                                const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    channel->broken = status;
    vsnprintf(channel->why, sizeof(channel->why), format, arguments);
    va_end(arguments);
}

static void keep_fds(struct channel *channel, uint64_t frame, const int *fds, uint32_t count)
{
    if (input_keep_fds(&channel->in, frame, fds, count))
        return;
    channel_break(channel, STRAIT_ERR_CORRUPT, "more than %u descriptors with a frame", CHANNEL_FDS_MAX);
    close_all(fds, count);
}

/* One recvmsg. The kernel closes descriptors beyond those that fit, or that this process may have: the peer asked for
 * something it cannot get. */
static ssize_t receive(struct channel *channel)
{
    struct input *in = &channel->in;
    struct channel_layer *layer = channel->in_layer;
    union control control;
    int fds[CHANNEL_FDS_MAX];
    struct iovec room = {.iov_base = in->bytes + in->end,
                         .iov_len =
                             (in->capacity - in->end) < READ_BYTES_MAX ? (in->capacity - in->end) : READ_BYTES_MAX};
    struct msghdr header = {
        .msg_iov = &room, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t got;
    do
        got = layer != NULL ? layer->receive(layer, channel->fd, room.iov_base, room.iov_len)
                            : recvmsg(channel->fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return got;
    in->end += (size_t)got;
    uint64_t frame = input_advance(in, channel->body_max);
    if (layer != NULL)
        return got;
    keep_fds(channel, frame, fds, take_fds(&header, fds));
    if ((header.msg_flags & MSG_CTRUNC) != 0)
        channel_break(channel, STRAIT_ERR_CORRUPT,
                      "descriptors that cannot be received: more than %u, or too many open files", CHANNEL_FDS_MAX);
    return got;
}

static bool may_read(const struct channel *channel)
{
    return channel->broken == STRAIT_OK && !channel->ended && !input_is_too_long(&channel->in, channel->body_max) &&
           channel->in.fd_count + CHANNEL_FDS_MAX <= FDS_WAITING_MAX;
}

bool channel_pending(const struct channel *channel)
{
    return channel->in_layer != NULL && may_read(channel) && channel->in_layer->pending(channel->in_layer);
}

enum strait_status channel_read(struct channel *channel)
{
    struct input *in = &channel->in;
    size_t total = 0;
    input_advance(in, channel->body_max); /* the limit may have been raised */
    for (uint32_t calls = 0; may_read(channel); calls++) {
        if (calls >= READ_CALLS_MAX || total >= READ_BYTES_MAX)
            break;
        if (!input_make_room(in, channel->body_max))
            return STRAIT_ERR_NO_MEMORY;
        const size_t room = in->capacity - in->end;
        if (room == 0)
            break;
        ssize_t got = receive(channel);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        channel->ended = got <= 0;
        total += got > 0 ? (size_t)got : 0;
        if (got > 0 && (size_t)got < room && channel->in_layer == NULL && !channel->gone)
            break; /* no more was there; what has come since, and the end, makes the socket readable again */
    }
    return channel->ended ? STRAIT_ERR_IO : STRAIT_OK;
}

/* ---- Handing out ---------------------------------------------------------------------------------------------- */

/* Descriptors that came apart from their frames: the first that are there belong to the first frame that has some. */
static uint32_t take_fds_apart(struct channel *channel, uint32_t count, int fds[CHANNEL_FDS_MAX])
{
    struct input *in = &channel->in;
    struct channel_layer *layer = channel->in_layer;
    if (count == 0 || count > CHANNEL_FDS_MAX)
        return 0;
    const uint32_t early = count < in->fd_count ? count : in->fd_count; /* before the layer was in use */
    for (uint32_t i = 0; i < in->fd_count; i++)
        if (i < early)
            fds[i] = in->fds[i].fd;
        else
            in->fds[i - early] = in->fds[i];
    in->fd_count -= early;
    return early == count || layer->take_fds(layer, channel->fd, fds + early, count - early) ? count : early;
}

static enum strait_status frame_unpack(struct channel *channel, size_t bytes, struct message *message, int *fds,
                                       uint32_t *fd_count)
{
    struct input *in = &channel->in;
    const bool apart = channel->in_layer != NULL && channel->in_layer->take_fds != NULL;
    uint32_t taken = apart ? 0 : input_take_fds(in, bytes, fds);
    enum strait_status status = message_unpack(in->bytes + in->begin + LENGTH_BYTES, bytes - LENGTH_BYTES, message);
    if (apart && status == STRAIT_OK)
        taken = take_fds_apart(channel, channel_fds_of(message), fds);
    if (status != STRAIT_OK) {
        channel_break(channel, status, "frame of %zu bytes: %s", bytes - LENGTH_BYTES,
                      status == STRAIT_ERR_UNSUPPORTED ? "an unknown message"
                      : status == STRAIT_ERR_NO_MEMORY ? "out of memory"
                                                       : "not a message");
    } else if (taken != channel_fds_of(message)) {
        status = STRAIT_ERR_CORRUPT;
        channel_break(channel, status, "%s with %u descriptors, not %u", message_name(message->type), taken,
                      channel_fds_of(message));
        message_fini(message);
    }
    input_drop(in, bytes);
    if (status == STRAIT_OK)
        *fd_count = taken;
    else
        close_all(fds, taken);
    return status;
}

/* A broken channel stays broken: it is going to be closed, so whatever the peer sent before is of no use. */
enum strait_status channel_next(struct channel *channel, struct message *message, int fds[CHANNEL_FDS_MAX],
                                uint32_t *fd_count)
{
    struct input *in = &channel->in;
    input_advance(in, channel->body_max);
    if (channel->broken != STRAIT_OK)
        return channel->broken;
    if (in->begin_at < in->complete_at)
        return frame_unpack(channel, input_frame_bytes(in, in->begin_at), message, fds, fd_count);
    if (!input_is_too_long(in, channel->body_max))
        return STRAIT_ERR_AGAIN;
    channel_break(channel, STRAIT_ERR_NO_SPACE, "frame of %zu bytes, at most %zu",
                  input_frame_bytes(in, in->complete_at) - LENGTH_BYTES, channel->body_max);
    return channel->broken;
}

const char *channel_why(const struct channel *channel)
{
    return channel->why;
}
