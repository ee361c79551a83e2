/* GPUs of two daemons on one host that store into each other's memory. The sink's daemon tells where its GPUs' arenas
 * are (ARENA); the source's maps them for each of its own GPUs that can reach them, and tells which pools that makes
 * reachable (REACH). From then on the sink grants slots of such an arena for such a pool, and encoders store there
 * instead of crossing the host's memory. Only over links that see the end of the peer's process: until then slots that
 * were granted to it stay in quarantine. */
#ifndef STRAIT_DAEMON_REACH_H
#define STRAIT_DAEMON_REACH_H

#include "daemon/exchange.h"

/* Do options and environment (NCCL_P2P_DISABLE) allow it? */
bool reach_is_on(const struct node *node);

/* A peer is up: it is told of our arenas. */
void reach_up(struct node *node, struct peer *peer);
/* A pool was registered: the arenas of its GPUs are there for all peers, and it is told of. */
void reach_pool(struct node *node, const struct pool_ref *pool);
void reach_pool_gone(struct node *node, const struct pool_ref *pool);

/* Messages. False: the peer broke the protocol. */
bool reach_arena(struct node *node, struct peer *peer, const struct message_arena *message);
bool reach_reach(struct peer *peer, const struct message_reach *message);

/* As the sink: devices of ours whose arenas the peer's pool is stored into; bit n: device n. */
uint64_t reach_devices(const struct peer *peer, const struct pool_id *pool);

/* As the source: whether the slot is one of the peer's at all; the size of one that is in a GPU's memory, and where GPU
 * `device` of ours finds it. 0, NULL: it is not, or cannot be reached. */
bool reach_knows_slot(const struct peer *peer, uint32_t slot);
uint32_t reach_slot_bytes(const struct peer *peer, uint32_t slot);
void *reach_slot(const struct peer *peer, int32_t device, uint32_t slot);

/* Before the peer's link is quit, when nothing writes any more. False: not yet, exchange_writer_done follows. */
bool reach_release(struct node *node, struct peer *peer);
/* The rest of what is kept with a peer. */
void reach_forget(struct peer_use *use);

#endif
