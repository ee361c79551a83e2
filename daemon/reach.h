/* Chunks from GPU to GPU, into the receive arena that the other one has. These wires lead there:
 *
 *   peer  GPUs of one host store into each other's memory: the source's daemon maps the arena for each of its GPUs.
 *         Only over links that see the end of the peer's process: until then slots that were granted to it stay in
 *         quarantine.
 *   nccl  a link of NCCL between the two GPUs (gpu_links.h), on one host or between two.
 *   ucx-cuda  the same, of UCX with CUDA's memory.
 *
 * The sink's daemon tells where its GPUs' arenas are and which wires lead there (ARENA), the source's takes the best of
 * its own that goes, and tells for which pools that is so (REACH). From then on the sink grants slots of such an arena
 * for such a pool; how a chunk gets into its slot is the source's business. */
#ifndef STRAIT_DAEMON_REACH_H
#define STRAIT_DAEMON_REACH_H

#include "daemon/exchange.h"

/* What options and environment (NCCL_P2P_DISABLE) allow of those wires: looked at once, before all else. */
void reach_init(struct node *node);
bool reach_has_wire(const struct node *node, enum wire_counter wire);
bool reach_has_links(const struct node *node); /* are links between GPUs among them? */
bool reach_is_on(const struct node *node);

/* A peer is up: it is told of our arenas. */
void reach_up(struct node *node, struct peer *peer);
/* A pool was registered: the arenas of its GPUs are there for all peers, and it is told of. */
void reach_pool(struct node *node, const struct pool_ref *pool);
void reach_pool_gone(struct node *node, const struct pool_ref *pool);
/* A GPU of ours is ready for links; one has come up, or ended. */
void reach_gpu_ready(struct node *node, int32_t device);
void reach_gpu_link(struct node *node, struct peer *peer, struct gpu_ends ends);

/* Another wire is better now. */
void reach_changed(struct node *node, struct peer *peer);

/* Messages. False: the peer broke the protocol. */
bool reach_arena(struct node *node, struct peer *peer, const struct message_arena *message);
bool reach_reach(struct peer *peer, const struct message_reach *message);

/* As the sink: devices of ours into whose arenas chunks of the peer's pool come; bit n: device n. */
uint64_t reach_devices(const struct peer *peer, const struct pool_id *pool);

/* As the source: whether the slot is one of the peer's at all; the size of one that is in a GPU's memory (0: it is
 * not), and which GPU that is. */
bool reach_knows_slot(const struct peer *peer, uint32_t slot);
uint32_t reach_slot_bytes(const struct peer *peer, uint32_t slot);
/* Chunks for this slot may go by a link between GPUs, when there is one. */
bool reach_by_link(const struct peer *peer, uint32_t slot);
uint32_t reach_slot_device(const struct peer *peer, uint32_t slot);
/* How GPU `device` of ours gets to a slot in a GPU's memory: WIRE_PEER, a link's, or WIRES_COUNTED: not at all. */
enum wire_counter reach_wire(const struct node *node, const struct peer *peer, int32_t device, uint32_t slot);
/* WIRE_PEER: where it finds it. */
void *reach_slot(const struct peer *peer, int32_t device, uint32_t slot);

/* For people: the wire to each of the peer's GPUs that we know of, from each of ours; and why it is no better one. */
struct reach_report {
    uint32_t device, peer_device;
    const char *wire; /* "peer", "nccl", "ucx-cuda", "pinned", "ucx" */
    char why[640];
};
void reach_each(const struct node *node, const struct peer *peer,
                void (*f)(void *arg, const struct reach_report *report), void *arg);

/* Before the peer's link is quit, when nothing writes any more. False: not yet, exchange_writer_done follows. */
bool reach_release(struct node *node, struct peer *peer);
/* The rest of what is kept with a peer. */
void reach_forget(struct peer_use *use);

#endif
