/* A framed, non-blocking stream of messages over one connected socket, for clients and daemons alike: no event loop, no
 * threads. On a unix socket descriptors can travel with a frame.
 *
 * The owner polls the descriptor for reading, and for writing while channel_wants_write() is true. */
#ifndef STRAIT_PROTO_CHANNEL_H
#define STRAIT_PROTO_CHANNEL_H

#include "proto/message.h"

#define CHANNEL_FDS_MAX 64u /* descriptors with one frame (a pool of more memfds is refused) */

struct channel;

/* Takes the socket `fd` (made non-blocking and close-on-exec). On OK the caller owns *channel. `body_max` caps frames
 * that come in (<= MESSAGE_BYTES_MAX); `queue_max` caps bytes waiting to be sent. ERR_NO_MEMORY, ERR_INVALID (no
 * socket, body_max): fd is not taken. */
enum strait_status channel_create(int fd, size_t body_max, size_t queue_max, struct channel **channel);

/* Closes the socket and all descriptors in transit. NULL is allowed. */
void channel_destroy(struct channel *channel);

/* Ends the channel but not its connection: the caller owns the socket that is returned. What was queued has been flushed,
 * and nothing has come that was not handed out: else -1, and the socket is closed. */
int channel_release(struct channel *channel);

int channel_fd(const struct channel *channel);

/* Raises (or lowers) the cap on frames that come in: a peer that has proved itself may send more. */
void channel_set_body_max(struct channel *channel, size_t body_max);

/* How many descriptors belong to a message: POOL_REGISTER has its fd_count, WORDS one, others none. */
uint32_t channel_fds_of(const struct message *message);

/* Packs a message and queues it, with `fd_count` descriptors that are duplicated (the caller keeps its own). Does not
 * write: channel_flush does. ERR_NO_SPACE: more than queue_max would wait; ERR_INVALID: not as many descriptors as the
 * message has, or no unix socket; ERR_IO: no descriptors left here; else as message_pack. */
enum strait_status channel_send(struct channel *channel, const struct message *message, const int *fds,
                                uint32_t fd_count);

/* Writes what the socket takes. OK also when something is left; ERR_IO: the connection is gone. Never raises SIGPIPE. */
enum strait_status channel_flush(struct channel *channel);
bool channel_wants_write(const struct channel *channel);
size_t channel_queued(const struct channel *channel); /* bytes */

/* Reads what has come, a bounded amount per call, so that one connection cannot keep a loop. OK; ERR_IO: the
 * connection ended or broke (frames read before are still handed out by channel_next). ERR_NO_MEMORY. */
enum strait_status channel_read(struct channel *channel);

/* The next whole message, if any: ERR_AGAIN when there is none yet. On OK the caller calls message_fini, and owns the
 * *fd_count descriptors in fds[CHANNEL_FDS_MAX], as many as the message has. Any other error means that the peer broke
 * the protocol, also from now on: close. Descriptors that come with a frame that is not taken are closed. */
enum strait_status channel_next(struct channel *channel, struct message *message, int fds[CHANNEL_FDS_MAX],
                                uint32_t *fd_count);

/* Process at the other end of a unix socket, at the time of connecting. ERR_IO. */
enum strait_status channel_peer(const struct channel *channel, uint32_t *pid, uint32_t *uid, uint32_t *gid);

#endif
