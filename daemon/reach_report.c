/* Reports which wire chunks use between our GPUs and a peer's, and why no better one. */
#include <stdio.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/reach_private.h"

/* Why chunks are not stored straight into that GPU's memory. */
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

static const char *measured(const struct peer *peer, enum message_link_by by, char *text, size_t size)
{
    double host, link;
    policy_rivals(peer, by, &host, &link);
    if (link == 0)
        return "the host is being measured";
    snprintf(text, size, "carried %.2f GB/s of pages, the host %.2f", link * 1e-9, host * 1e-9);
    return text;
}

static const char *why_not_link(const struct node *node, const struct peer *peer, const struct far_arena *arena,
                                int32_t device, enum wire_counter wire, char *text, size_t size)
{
    const enum message_link_by by = wire_link(wire);
    const struct gpu_links *gpu = gpu_links_of(node, device);
    const struct gpu_ends ends = reach_ends(arena, device, wire);
    if (!reach_has_wire(node, wire))
        return "off (gpu-wires)";
    if (gpu == NULL || !gpu->by[by].ready)
        return gpu != NULL ? gpu_links_state(gpu, by) : "being loaded";
    if (arena->by[by] && peer_has_gpu_link(peer, ends))
        return measured(peer, by, text, size);
    return arena->by[by] ? peer_gpu_link_why(peer, ends) : "not offered by the peer";
}

static const char *name_of(enum wire_counter wire)
{
    return wire == WIRE_PEER ? "peer" : wire == WIRE_NCCL ? "nccl" : "ucx-cuda";
}

/* All wires: the allowed ones in their order, preceded by `peer` if it is not allowed, followed by the others. */
static void in_order(const struct node *node, enum wire_counter order[GPU_WIRES_MAX])
{
    static const enum wire_counter links[] = {WIRE_NCCL, WIRE_UCX_CUDA};
    uint32_t count = 0;
    if (!reach_has_wire(node, WIRE_PEER))
        order[count++] = WIRE_PEER;
    for (uint32_t i = 0; i < node->wires.count; i++)
        order[count++] = node->wires.list[i];
    for (uint32_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
        if (!reach_has_wire(node, links[i]))
            order[count++] = links[i];
}

static void describe(const struct node *node, const struct peer *peer, const struct far_arena *arena, int32_t device,
                     struct reach_report *report)
{
    const enum wire_counter wire = reach_wire_to(node, peer, arena, device);
    const bool taken = reach_takes(node, peer, wire);
    enum wire_counter order[GPU_WIRES_MAX];
    char text[96];
    size_t used = 0;
    *report = (struct reach_report){.device = (uint32_t)device, .peer_device = arena->device};
    report->wire = taken ? name_of(wire) : peer->direct ? "pinned" : "ucx";
    in_order(node, order);
    for (uint32_t i = 0; i < GPU_WIRES_MAX && used < sizeof(report->why) && !(taken && order[i] == wire); i++)
        used += (size_t)snprintf(
            report->why + used, sizeof(report->why) - used, "%s%s: %s", used > 0 ? "; " : "", name_of(order[i]),
            order[i] == WIRE_PEER ? why_not_peer(node, peer, arena, device)
                                  : why_not_link(node, peer, arena, device, order[i], text, sizeof(text)));
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
