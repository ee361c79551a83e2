#include "daemon/gpu_nccl.h"

#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/reach.h"
#include "transport/nccl.h"

uint64_t gpu_nccl_bytes(const struct node *node, uint64_t receive)
{
    return reach_has_wire(node, WIRE_NCCL) ? receive : 0;
}

const struct gpu_nccl *gpu_nccl_of(const struct node *node, int32_t device)
{
    const struct gpu_nccl *gpu;
    LL_SEARCH_SCALAR(node->gpu_nccl, gpu, device, device);
    return gpu;
}

struct arena *gpu_nccl_send(const struct node *node, int32_t device)
{
    struct gpu_nccl *gpu;
    LL_SEARCH_SCALAR(node->gpu_nccl, gpu, device, device);
    return gpu != NULL && gpu->ready ? &gpu->send : NULL;
}

/* What would hold up the loop: libraries, and the driver. */
static void load_work(void *arg)
{
    const struct gpu_nccl *gpu = arg;
    nccl_prepare(gpu->node->options.nccl, gpu->receive);
}

static void load_done(void *arg)
{
    struct gpu_nccl *gpu = arg;
    struct node *node = gpu->node;
    const struct transport_arena arena = {
        .base = gpu->receive, .size = gpu->receive_size, .fd = -1, .memory = TRANSPORT_CUDA};
    if (node->stopping || node->peers == NULL)
        return;
    if (peers_open_gpu(node->peers, (uint32_t)gpu->device, &transport_nccl, &arena, node->options.nccl, gpu->why,
                       sizeof(gpu->why)) != STRAIT_OK) {
        log_write(node->log, LOG_WARN, "msg=\"no NCCL: chunks between GPUs go another way\" device=%d why=\"%s\"",
                  gpu->device, gpu->why);
        return;
    }
    gpu->ready = true;
    log_write(node->log, LOG_INFO, "msg=\"NCCL ready\" device=%d", gpu->device);
    reach_gpu_ready(node, gpu->device);
}

void gpu_nccl_open(struct node *node, int32_t device, void *base, uint64_t receive)
{
    struct gpu_nccl *gpu = gpu_nccl_of(node, device) == NULL ? calloc(1, sizeof(*gpu)) : NULL;
    const uint32_t slot_bytes = far_slot_bytes(node->options.gpu_chunk_bytes);
    if (gpu == NULL)
        return;
    *gpu = (struct gpu_nccl){.node = node, .device = device, .receive = base, .receive_size = receive};
    if (arena_init_over(&gpu->send, (uint8_t *)base + receive, slot_bytes, (uint32_t)(receive / slot_bytes)) !=
            STRAIT_OK ||
        job_call(node->jobs, load_work, load_done, gpu) != STRAIT_OK) {
        arena_fini(&gpu->send);
        free(gpu);
        return;
    }
    LL_PREPEND(node->gpu_nccl, gpu);
}

void gpu_nccl_fini(struct node *node)
{
    struct gpu_nccl *gpu, *next;
    LL_FOREACH_SAFE (node->gpu_nccl, gpu, next) {
        arena_fini(&gpu->send);
        free(gpu);
    }
    node->gpu_nccl = NULL;
}
