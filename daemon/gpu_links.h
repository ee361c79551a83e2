/* GPU links between daemons, by NCCL or by UCX with CUDA memory: for each of our GPUs in use, the transports of the
 * kinds that the option gpu-wires names, and GPU memory to send from. The links to peers' GPUs are made by
 * peers/gpu_link.c when gpu_path.c wants them. */
#ifndef STRAIT_DAEMON_GPU_LINKS_H
#define STRAIT_DAEMON_GPU_LINKS_H

#include "daemon/memory/arena.h"
#include "proto/message.h"

struct node;

/* One of our GPUs, from its first pool on. */
struct gpu_links {
    struct node *node;
    int32_t device;
    struct arena send;
    void *receive; /* the memory to receive into */
    size_t receive_size;
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
 * libraries on a worker; for each kind, reach_gpu_ready or a line in the log follows. */
void gpu_links_open(struct node *node, int32_t device, void *base, uint64_t receive);
/* The arena in which chunks for links of this GPU are encoded; NULL: it has none. */
struct arena *gpu_links_send(const struct node *node, int32_t device);
const struct gpu_links *gpu_links_of(const struct node *node, int32_t device); /* NULL: not asked for */
/* State of a kind, for people: "ready", or why it is not. */
const char *gpu_links_state(const struct gpu_links *gpu, enum message_link_by by);
/* The peers must be closed. */
void gpu_links_fini(struct node *node);

#endif
