/* Foreign bytes through a socket, cut into writes, some of them with descriptors. The input is a list of writes: a byte
 * that says how many bytes (low 6 bits; 63: all the rest) and descriptors (0, 1, 2 or 65) go, then these bytes. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/channel.h"
#include "tests/fuzz/fuzz.h"
#include "tests/proto/frames.h"

#define BODY_MAX 4096u

static const uint32_t fd_counts[] = {0, 1, 2, CHANNEL_FDS_MAX + 1};

static bool send_piece(int fd, const uint8_t *bytes, size_t size, uint32_t fd_count)
{
    union {
        struct cmsghdr aligned;
        char bytes[CMSG_SPACE((CHANNEL_FDS_MAX + 1) * sizeof(int))];
    } control;
    int fds[CHANNEL_FDS_MAX + 1];
    for (uint32_t i = 0; i < CHANNEL_FDS_MAX + 1; i++)
        fds[i] = fd;
    struct iovec piece = {.iov_base = (void *)bytes, .iov_len = size};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    memset(&control, 0, sizeof(control));
    if (fd_count > 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        *CMSG_FIRSTHDR(&header) = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(fd_count * sizeof(int))};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&header)), fds, fd_count * sizeof(int));
    }
    return sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

/* What is handed out can be sent on, with its descriptors. */
static void send_on(struct channel *to, const struct message *message, int *fds, uint32_t fd_count)
{
    enum strait_status status = channel_send(to, message, fds, fd_count);
    require(status == STRAIT_OK || status == STRAIT_ERR_NO_SPACE);
    for (uint32_t i = 0; i < fd_count; i++)
        close(fds[i]);
}

/* False when the peer broke the protocol, and then for ever. */
static bool take(struct channel *from, struct channel *to)
{
    struct message message, again;
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    enum strait_status status;
    while ((status = channel_next(from, &message, fds, &fd_count)) == STRAIT_OK) {
        require(fd_count == channel_fds_of(&message));
        send_on(to, &message, fds, fd_count);
        message_fini(&message);
    }
    if (status != STRAIT_ERR_AGAIN)
        require(channel_next(from, &again, fds, &fd_count) == status);
    return status == STRAIT_ERR_AGAIN;
}

static void feed(int raw, struct channel *from, struct channel *to, const uint8_t *data, size_t size)
{
    while (size > 0) {
        uint32_t fd_count = fd_counts[data[0] >> 6];
        size_t piece = data[0] & 63;
        data++;
        size--;
        piece = piece == 63 || piece > size ? size : piece;
        if (piece == 0)
            continue;
        if (!send_piece(raw, data, piece, fd_count))
            return;
        require(channel_read(from) == STRAIT_OK);
        if (!take(from, to))
            return;
        data += piece;
        size -= piece;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int in[2], out[2];
    struct channel *from, *to;
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, in) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, out) == 0);
    require(channel_create(in[1], BODY_MAX, 0, &from) == STRAIT_OK);
    require(channel_create(out[0], BODY_MAX, 65536, &to) == STRAIT_OK);
    feed(in[0], from, to, data, size);
    require(channel_flush(to) == STRAIT_OK);
    close(in[0]);
    channel_read(from);
    take(from, to);
    channel_destroy(from);
    channel_destroy(to);
    close(out[1]);
    /* Nothing leaks: the lowest descriptor that is free is where it was. */
    int lowest = socket(AF_UNIX, SOCK_STREAM, 0);
    require(lowest == in[0]);
    close(lowest);
    return 0;
}
