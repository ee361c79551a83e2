/* Chunks from GPU to GPU, into the receive arena in the other GPU's memory. These wires lead there:
 *
 *   peer  GPUs of one host store into each other's memory: the source's daemon maps the arena for each of its GPUs.
 *         Only with peers whose link notices the end of the peer's process: until that end, slots granted to the peer
 *         stay in quarantine.
 *   nccl  a link of NCCL between the two GPUs (gpu_links.h), on one host or between two.
 *   ucx   a link of UCX between the two GPUs' memory, if both daemons have a UCX with CUDA support.
 *
 * The sink's daemon announces its GPUs' arenas and the wires that lead there (ARENA). The source's daemon picks the
 * best wire that works for it, and announces for which pools that is so (REACH). From then on the sink grants slots of
 * such an arena for such a pool; how a chunk gets into its slot is the source's choice.
 *
 * By `peer`, the source's encoder also sets the flag of the slot when the chunk is whole, in the same GPU's memory. So
 * the sink can launch a decoder that waits for the chunk, without the two daemons' messages in between. That needs two
 * GPUs: on a single one the waiting decoder would keep the encoder from running. */
#ifndef STRAIT_DAEMON_GPU_PATH_H
#define STRAIT_DAEMON_GPU_PATH_H

#include "daemon/exchange.h"

struct name;
struct pool_ref;

/* A peer is up: sends it our arenas. */
void gpu_path_up(struct node *node, struct peer *peer);
/* A pool was registered: makes the arenas of its GPUs available to all peers, and announces the pool to them. */
void gpu_path_pool(struct node *node, const struct pool_ref *pool);
void gpu_path_pool_gone(struct node *node, const struct pool_ref *pool);
/* A link has come up, or ended. */
void gpu_path_gpu_link(struct node *node, struct peer *peer, struct gpu_ends ends);

/* A different wire is the best one now. */
void gpu_path_changed(struct node *node, struct peer *peer);

/* Messages. False: the peer broke the protocol. */
bool gpu_path_on_arena(struct node *node, struct peer *peer, const struct message_arena *message);
bool gpu_path_on_reach(struct peer *peer, const struct message_reach *message);

/* As the sink: our devices whose arenas receive the chunks of that offer's pool; bit n: device n. */
uint64_t gpu_path_devices(const struct peer *peer, const struct name *source);
/* Those of them whose flags say when a chunk is whole. */
uint64_t gpu_path_flagged(const struct peer *peer, const struct name *source);
/* Size of each device's memory for chunks: slots that peers write, those of links' chunks, and flags. */
uint64_t gpu_path_arena_bytes(const struct node *node);

/* As the source: whether the slot is one of the peer's at all; its size if it is in a GPU's memory (else 0), and in
 * which GPU's. */
bool gpu_path_has_slot(const struct peer *peer, uint32_t slot);
uint32_t gpu_path_slot_bytes(const struct peer *peer, uint32_t slot);
/* Chunks for this slot may go by a GPU link when there is one. */
bool gpu_path_by_link(const struct peer *peer, uint32_t slot);
uint32_t gpu_path_slot_device(const struct peer *peer, uint32_t slot);
/* The wire from our GPU `device` to a slot in a GPU's memory: WIRE_PEER or a link's; WIRE_NONE: none. */
enum gpu_path gpu_path_wire(const struct node *node, const struct peer *peer, int32_t device, uint32_t slot);
/* For WIRE_PEER: the slot's address for our GPU `device`, and that of its flag; NULL: it has none. */
void *gpu_path_slot(const struct peer *peer, int32_t device, uint32_t slot);
uint64_t *gpu_path_flag(const struct peer *peer, int32_t device, uint32_t slot);

/* For people: the wire from each of our GPUs to each known GPU of the peer, and why no better one is used. */
struct gpu_path_report {
    uint32_t device, peer_device;
    const char *wire; /* "peer", "nccl", "ucx", or "pinned": by host memory */
    char why[640];
};
void gpu_path_each(const struct node *node, const struct peer *peer,
                   void (*f)(void *arg, const struct gpu_path_report *report), void *arg);

/* Called before the peer's link is quit, when nothing writes any more. False: not yet; it
 * is asked again when the last writer has ended. */
bool gpu_path_release(struct node *node, struct peer *peer);
/* Frees the rest of what is kept with a peer. */
void gpu_path_forget(struct peer_use *use);

#endif
