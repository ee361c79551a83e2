/* NCCL between daemons: a transport for each of our GPUs that is in use, when the option gpu-wires names it, and memory
 * of the GPU to send from. Links to GPUs of peers are made by peers/peer_gpu.c, as reach.c wants them. */
#ifndef STRAIT_DAEMON_GPU_NCCL_H
#define STRAIT_DAEMON_GPU_NCCL_H

#include "daemon/memory/arena.h"

struct node;

/* A GPU of ours, from its first pool on. */
struct gpu_nccl {
    struct node *node;
    int32_t device;
    struct arena send;
    void *receive; /* the memory to receive into */
    size_t receive_size;
    bool ready;    /* peers can have links to it */
    char why[256]; /* or what is missing; empty while that is being looked for */
    struct gpu_nccl *next;
};

/* Bytes that a GPU's arena needs for sending, behind `receive` bytes for receiving. */
uint64_t gpu_nccl_bytes(const struct node *node, uint64_t receive);

/* Once for each GPU: its memory, `receive` bytes for receiving and then as many for sending. Loads NCCL on a worker;
 * reach_gpu_ready follows, or a line in the log. */
void gpu_nccl_open(struct node *node, int32_t device, void *base, uint64_t receive);
/* Where chunks for links of this GPU are encoded; NULL: it has none. */
struct arena *gpu_nccl_send(const struct node *node, int32_t device);
const struct gpu_nccl *gpu_nccl_of(const struct node *node, int32_t device); /* NULL: not asked for */
/* The peers are closed. */
void gpu_nccl_fini(struct node *node);

#endif
