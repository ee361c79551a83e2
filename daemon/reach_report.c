/* By which wire chunks go between GPUs of ours and of a peer, and why by no better one. */
#include <stdio.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/reach_private.h"

/* Why chunks do not go straight into that GPU's memory. */
static const char *why_not_peer(const struct node *node, const struct peer *peer, const struct far_arena *arena,
                                int32_t device)
{
    const struct way *way;
    if (!reach_has_wire(node, WIRE_PEER))
        return "off (gpu-wires, gpu-peer or NCCL_P2P_DISABLE)";
    if (!map_is_possible(peer))
        return "no memory is shared with the peer";
    if (!arena->has_handle)
        return "not offered by the peer";
    LL_SEARCH_SCALAR(arena->ways, way, device, device);
    return way == NULL ? "not asked for" : way->state == PIN_BUSY ? "being mapped" : way->why;
}

static const char *measured(const struct peer *peer, char *text, size_t size)
{
    double host, nccl;
    policy_rivals(peer, &host, &nccl);
    if (nccl == 0)
        return "the host is being measured";
    snprintf(text, size, "carried %.2f GB/s of pages, the host %.2f", nccl * 1e-9, host * 1e-9);
    return text;
}

static const char *why_not_nccl(const struct node *node, const struct peer *peer, const struct far_arena *arena,
                                int32_t device, char *text, size_t size)
{
    const struct gpu_nccl *gpu = gpu_nccl_of(node, device);
    if (!reach_has_wire(node, WIRE_NCCL))
        return "off (gpu-wires)";
    if (gpu == NULL || !gpu->ready)
        return gpu != NULL && gpu->why[0] != '\0' ? gpu->why : "being loaded";
    if (arena->nccl && peer_has_gpu_link(peer, (uint32_t)device, arena->device))
        return measured(peer, text, size);
    return arena->nccl ? peer_gpu_link_why(peer, (uint32_t)device, arena->device) : "not offered by the peer";
}

static void describe(const struct node *node, const struct peer *peer, const struct far_arena *arena, int32_t device,
                     struct reach_report *report)
{
    const enum wire_counter wire = reach_wire_to(node, peer, arena, device);
    const bool peer_first = node->wires.list[0] != WIRE_NCCL || !reach_has_wire(node, WIRE_PEER);
    const char *names[] = {"peer", "nccl"};
    char text[96];
    size_t used = 0;
    *report = (struct reach_report){.device = (uint32_t)device, .peer_device = arena->device};
    const bool taken = wire == WIRE_PEER || (wire == WIRE_NCCL && policy_takes_nccl(node, peer));
    report->wire = !taken ? peer->direct ? "pinned" : "ucx" : wire == WIRE_PEER ? "peer" : "nccl";
    for (int i = 0; i < 2 && used < sizeof(report->why); i++) {
        const char *name = names[peer_first ? i : !i];
        const bool is_peer = strcmp(name, "peer") == 0;
        if (strcmp(name, report->wire) == 0)
            break;
        used += (size_t)snprintf(report->why + used, sizeof(report->why) - used, "%s%s: %s", used > 0 ? "; " : "", name,
                                 is_peer ? why_not_peer(node, peer, arena, device)
                                         : why_not_nccl(node, peer, arena, device, text, sizeof(text)));
    }
}

void reach_each(const struct node *node, const struct peer *peer,
                void (*f)(void *arg, const struct reach_report *report), void *arg)
{
    const struct peer_use *use = peer->owner;
    const struct far_arena *arena;
    struct reach_report report;
    LL_FOREACH (use->arenas, arena)
        for (uint32_t i = 0; i < node->receive.arena_count; i++)
            if (node->receive.arenas[i]->device >= 0) {
                describe(node, peer, arena, node->receive.arenas[i]->device, &report);
                f(arg, &report);
            }
}
