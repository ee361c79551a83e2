/* A framed, non-blocking stream of messages over one connected socket, for clients and daemons alike: no event loop, no
 * threads. On a unix socket descriptors can travel with a frame.
 *
 * The owner polls the descriptor for reading, and for writing while channel_wants_write() is true. */
#ifndef STRAIT_PROTO_CHANNEL_H
#define STRAIT_PROTO_CHANNEL_H

#include <sys/types.h>
#include <sys/uio.h>

#include "proto/message.h"

#define CHANNEL_FDS_MAX 64u /* descriptors per frame (a pool of more memfds is refused) */

struct channel;

/* A layer between a channel and its socket, such as TLS: it takes the place of sendmsg and recvmsg. Its owner embeds it
 * in what it needs. */
struct channel_layer {
    /* Takes bytes to send: returns how many, or -1 and errno (EAGAIN: none for now). It passes on to the socket what it
     * can, and keeps the rest; with no pieces it does just that, and returns 0. */
    ssize_t (*send)(struct channel_layer *layer, int fd, const struct iovec *pieces, size_t count);
    /* Returns how many bytes it has received, 0 at the end, or -1 and errno (EAGAIN: none so far). */
    ssize_t (*receive)(struct channel_layer *layer, int fd, void *dst, size_t size);
    bool (*wants_write)(const struct channel_layer *layer); /* it keeps bytes that the socket did not take */
    bool (*pending)(const struct channel_layer *layer);     /* it can hand out bytes though the socket has none */
    /* NULL, both: no descriptors can be sent. */
    /* Sends the descriptors of the frame that is sent next: 0, or -1 and errno as `send`. */
    int (*send_fds)(struct channel_layer *layer, int fd, const int *fds, uint32_t count);
    /* Takes the next so many descriptors, those of a frame that was received. False: so many have not come. */
    bool (*take_fds)(struct channel_layer *layer, int fd, int *fds, uint32_t count);
};

/* Takes over the socket `fd` (made non-blocking and close-on-exec). On OK the caller owns *channel. `body_max` limits
 * incoming frames (<= MESSAGE_BYTES_MAX); `queue_max` limits the bytes waiting to be sent. ERR_NO_MEMORY, ERR_INVALID
 * (no socket, body_max): fd is not taken over. */
enum strait_status channel_create(int fd, size_t body_max, size_t queue_max, struct channel **channel);

/* Sends and receives through the layer from now on; nothing has been sent or received yet, and no descriptors can be.
 * Borrowed until the channel is destroyed. */
void channel_use(struct channel *channel, struct channel_layer *layer);

/* What is sent from now on goes through the layer; all that was queued before, the way that it went so far. Once in the
 * life of a channel. The layer is borrowed as above, and so is the one before. */
void channel_send_by(struct channel *channel, struct channel_layer *layer);
/* Whether all that was queued before that has gone. */
bool channel_sends_by(const struct channel *channel, const struct channel_layer *layer);
/* What is received from now on comes through the layer, to which the message that channel_next has handed out last was
 * the hint. False: more has come the way so far, so the peer broke the protocol. With a layer that takes descriptors
 * that is what accompanies them, or is to wake this side, and is dropped. */
bool channel_receive_by(struct channel *channel, struct channel_layer *layer);

/* Closes the socket and all descriptors in transit. NULL is allowed. */
void channel_destroy(struct channel *channel);

/* Ends the channel but not its connection: returns the socket, which the caller then owns. Everything queued must have
 * been flushed and everything received handed out; otherwise returns -1 and closes the socket. */
int channel_release(struct channel *channel);

int channel_fd(const struct channel *channel);
/* Whether the other side has closed the socket; what it sent before may still be unread. */
bool channel_has_ended(const struct channel *channel);

/* Changes the limit on incoming frames: a peer that has proved itself may send larger ones. */
void channel_set_body_max(struct channel *channel, size_t body_max);

/* How many descriptors a message has: POOL_REGISTER and HANDOVER their fd_count, WORDS one, others none. */
uint32_t channel_fds_of(const struct message *message);

/* Packs a message and queues it, with `fd_count` descriptors, which are duplicated (the caller keeps its own). Does not
 * write: channel_flush does. ERR_NO_SPACE: more than queue_max would wait; ERR_INVALID: not the message's number of
 * descriptors, or not a unix socket; ERR_IO: this process can open no more descriptors; otherwise as message_pack. */
enum strait_status channel_send(struct channel *channel, const struct message *message, const int *fds,
                                uint32_t fd_count);

/* Writes as much as the socket takes. OK even if something is left; ERR_IO: the connection is gone. Never raises
 * SIGPIPE. */
enum strait_status channel_flush(struct channel *channel);
bool channel_wants_write(const struct channel *channel);
size_t channel_queued(const struct channel *channel);     /* bytes */
uint64_t channel_written(const struct channel *channel);  /* bytes, to the socket so far */
uint64_t channel_received(const struct channel *channel); /* bytes read so far */

/* Reads what has arrived, a bounded amount per call, so that one connection cannot hold up an event loop; what is left
 * keeps the socket readable. OK; ERR_IO: the connection ended or broke (channel_next still hands out frames read
 * before). ERR_NO_MEMORY. */
enum strait_status channel_read(struct channel *channel);
/* Whether channel_read would find more in the layer, which a poll of the descriptor cannot tell. */
bool channel_pending(const struct channel *channel);

/* The next complete message; ERR_AGAIN when there is none yet. On OK the caller calls message_fini and owns the
 * *fd_count descriptors in fds[CHANNEL_FDS_MAX], as many as the message has. Any other error means that the peer broke
 * the protocol, and is returned from now on: close the channel. Descriptors that come with a frame that is not accepted
 * are closed. */
enum strait_status channel_next(struct channel *channel, struct message *message, int fds[CHANNEL_FDS_MAX],
                                uint32_t *fd_count);

/* How the peer broke the protocol, for people: after an error of channel_next. */
const char *channel_why(const struct channel *channel);

/* The process at the other end of a unix socket when it connected. ERR_IO. */
enum strait_status channel_peer(const struct channel *channel, uint32_t *pid, uint32_t *uid, uint32_t *gid);

#endif
