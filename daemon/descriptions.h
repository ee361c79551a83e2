/* How the pools of peers are laid out: told by their daemons, once for each connection, when a request pairs two pools
 * that differ. */
#ifndef STRAIT_DAEMON_DESCRIPTIONS_H
#define STRAIT_DAEMON_DESCRIPTIONS_H

#include "proto/blob.h"

struct description;
struct name;
struct node;
struct peer;
struct pool_ref;

#define DESCRIPTIONS_MAX 32u /* kept of a peer: beyond them the one goes that was told first */

/* What a peer has told (peer_use.descriptions). */
struct descriptions {
    struct description *list; /* in the order in which they were told last */
    uint32_t count;
    uint64_t told[DESCRIPTIONS_MAX]; /* pools of ours that the peer has been told last, in order: hashes */
    uint32_t told_count;
};

/* The pool's description, if it has this geometry. NULL: the peer has not told it. Borrowed until the next message. */
const struct pool_blob *description_find(struct peer *peer, const struct name *pool, uint64_t geometry);
/* Asks the peer for the description of a pool. False: a daemon of an earlier release, which knows no reshaping. */
bool description_ask(struct peer *peer, const struct name *pool);
/* Tells the peer how a pool of ours is laid out, unless it has been told on this connection. */
bool description_tell(struct peer *peer, const struct pool_ref *pool);

/* Messages of peers. description_take: false when it is malformed, which ends the connection; *pool receives which one
 * it is of. */
void description_asked(struct node *node, struct peer *peer, const struct message_pool_ask *message);
bool description_take(struct peer *peer, const struct message_pool_description *message, struct name *pool);
void descriptions_free(struct descriptions *descriptions);

#endif
