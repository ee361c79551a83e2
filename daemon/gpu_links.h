/* Links of GPUs between daemons, by NCCL or by UCX with CUDA's memory: for each of our GPUs that is in use, transports
 * of the kinds that the option gpu-wires names, and memory of the GPU to send from. Links to GPUs of peers are made by
 * peers/peer_gpu.c, as reach.c wants them. */
#ifndef STRAIT_DAEMON_GPU_LINKS_H
#define STRAIT_DAEMON_GPU_LINKS_H

#include "daemon/memory/arena.h"
#include "proto/message.h"

struct node;

/* A GPU of ours, from its first pool on. */
struct gpu_links {
    struct node *node;
    int32_t device;
    struct arena send;
    void *receive; /* the memory to receive into */
    size_t receive_size;
    struct {
        bool asked;    /* for: gpu-wires has it */
        bool ready;    /* peers can have links to it */
        char why[256]; /* or what is missing; empty while that is being looked for */
    } by[LINK_BY_COUNT];
    struct gpu_links *next;
};

/* Bytes that a GPU's arena needs for sending, behind `receive` bytes for receiving. */
uint64_t gpu_links_bytes(const struct node *node, uint64_t receive);

/* Once for each GPU: its memory, `receive` bytes for receiving and then as many for sending. Loads libraries on a
 * worker; reach_gpu_ready follows for each kind, or a line in the log. */
void gpu_links_open(struct node *node, int32_t device, void *base, uint64_t receive);
/* Where chunks for links of this GPU are encoded; NULL: it has none. */
struct arena *gpu_links_send(const struct node *node, int32_t device);
const struct gpu_links *gpu_links_of(const struct node *node, int32_t device); /* NULL: not asked for */
/* How far a kind is, for people: "ready", or why not. */
const char *gpu_links_state(const struct gpu_links *gpu, enum message_link_by by);
/* The peers are closed. */
void gpu_links_fini(struct node *node);

#endif
