/* GPU links between daemons, by NCCL or by UCX with CUDA memory: for each of our GPUs in use, the transports of the
 * kinds that the option gpu-wires names, and GPU memory to send from. The links to peers' GPUs are made by
 * peers/gpu_link.c when gpu_path.c wants them. */
#ifndef STRAIT_DAEMON_GPU_LINKS_H
#define STRAIT_DAEMON_GPU_LINKS_H

#include "daemon/base/metrics.h"
#include "daemon/memory/arena.h"
#include "proto/message.h"

struct node;
struct peer;

/* The allowed wires that go straight from GPU to GPU, best first. */
#define GPU_WIRES_MAX 3u /* WIRE_PEER, and the links */
struct gpu_wires {
    enum gpu_path list[GPU_WIRES_MAX];
    uint32_t count;
    bool measured; /* links are used only where they are faster than host memory */
};

/* Wires that are links between two GPUs. */
static inline bool path_is_link(struct chunk_path path)
{
    return path.gpus && path.wire != WIRE_PEER;
}
/* Of a wire between GPUs. */
static inline enum message_link_by wire_link(enum gpu_path wire)
{
    return wire == WIRE_NCCL ? LINK_BY_NCCL : LINK_BY_UCX;
}
static inline enum gpu_path link_wire(enum message_link_by by)
{
    return by == LINK_BY_NCCL ? WIRE_NCCL : WIRE_UCX;
}

/* Determines which wires options and environment (NCCL_P2P_DISABLE) allow; called once, before everything else here. */
void gpu_wires_init(struct node *node);
bool gpu_wires_has(const struct node *node, enum gpu_path wire);
bool gpu_wires_has_links(const struct node *node); /* is a GPU link among the allowed wires? */

/* One of our GPUs, from its first pool on. */
struct gpu_links {
    struct node *node;
    int32_t device;
    void (*on_ready)(struct node *node, int32_t device);
    struct arena send;
    void *receive; /* the memory to receive into */
    size_t receive_size;
    bool waits_for_peer; /* UCX, which has ports, is made when the first peer has proved itself */
    struct {
        bool asked;    /* gpu-wires names this kind */
        bool ready;    /* peers can have links to it */
        char why[256]; /* or what is missing; empty while the transport is being made */
    } by[LINK_BY_COUNT];
    struct gpu_links *next;
};

/* Bytes that a GPU's arena needs for sending, in addition to the `receive` bytes in front of them. */
uint64_t gpu_links_bytes(const struct node *node, uint64_t receive);

/* Called once for each GPU with its memory: `receive` bytes for receiving, followed by as many for sending. Loads
 * libraries on a worker; then on_ready is called if peers can have links of some kind, and the log says so of each. */
void gpu_links_open(struct node *node, int32_t device, void *base, uint64_t receive,
                    void (*on_ready)(struct node *node, int32_t device));
/* A peer has proved itself and is up. */
void gpu_links_peer_up(struct node *node);
/* The arena in which chunks for links of this GPU are encoded; NULL: it has none. */
struct arena *gpu_links_send(const struct node *node, int32_t device);
const struct gpu_links *gpu_links_of(const struct node *node, int32_t device); /* NULL: not asked for */
/* State of a kind, for people: "ready", or why it is not. */
const char *gpu_links_state(const struct gpu_links *gpu, enum message_link_by by);
/* The peers must be closed. */
void gpu_links_fini(struct node *node);

/* ---- Pinned memory of peers, so that GPUs can write to it -------------------------------------------------------- */

/* State of pinning a peer's arena, so that GPUs can write to it. */
enum pin_state { PIN_NONE, PIN_BUSY, PIN_DONE, PIN_FAILED };

/* Can GPUs write to the peer's arena? The first call starts pinning it. */
enum pin_state pin_peer(struct node *node, struct peer *peer);
/* Called before the peer's link is quit, when nothing writes any more. False: not yet; it
 * is asked again when the last writer has ended. */
bool pin_release(struct node *node, struct peer *peer);

#endif
