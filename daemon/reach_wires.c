/* Which wires between GPUs are allowed, and which one is chosen. */
#include <stdlib.h>
#include <string.h>

#include "daemon/node.h"
#include "daemon/reach_private.h"

/* ---- Allowed wires ----------------------------------------------------------------------------------------------- */

static bool peer_is_allowed(const struct node *node)
{
    const char *p2p = getenv("NCCL_P2P_DISABLE");
    return node->options.gpu_peer && (p2p == NULL || strcmp(p2p, "1") != 0);
}

static enum wire_counter wire_named(const char *name, size_t size)
{
    return strncmp(name, "nccl", size) == 0   ? WIRE_NCCL
           : strncmp(name, "ucx", size) == 0  ? WIRE_UCX_CUDA
           : strncmp(name, "peer", size) == 0 ? WIRE_PEER
                                              : WIRE_PINNED;
}

/* Wires that the option lists after the host's memory are never used. */
void reach_init(struct node *node)
{
    struct gpu_wires *wires = &node->wires;
    const char *at = node->options.gpu_wires;
    wires->count = 0;
    wires->measured = strcmp(at, "auto") == 0;
    if (wires->measured)
        at = "peer,nccl,ucx";
    while (node->options.gpu_arena_bytes != 0 && *at != 0) {
        size_t size = strcspn(at, ",");
        const enum wire_counter wire = wire_named(at, size);
        if (wire == WIRE_PINNED)
            break;
        if ((wire != WIRE_PEER || peer_is_allowed(node)) && !reach_has_wire(node, wire))
            wires->list[wires->count++] = wire;
        at += size + (at[size] == ',');
    }
}

bool reach_has_wire(const struct node *node, enum wire_counter wire)
{
    for (uint32_t i = 0; i < node->wires.count; i++)
        if (node->wires.list[i] == wire)
            return true;
    return false;
}

bool reach_has_links(const struct node *node)
{
    return reach_has_wire(node, WIRE_NCCL) || reach_has_wire(node, WIRE_UCX_CUDA);
}

bool reach_is_on(const struct node *node)
{
    return node->wires.count != 0;
}

/* ---- The wire in use --------------------------------------------------------------------------------------------- */

struct gpu_ends reach_ends(const struct far_arena *arena, int32_t device, enum wire_counter wire)
{
    return (struct gpu_ends){.by = wire_link(wire), .device = (uint32_t)device, .peer_device = arena->device};
}

static bool is_up_to(const struct peer *peer, const struct far_arena *arena, int32_t device, enum wire_counter wire)
{
    return wire == WIRE_PEER ? map_find(arena, device) != NULL
                             : peer_has_gpu_link(peer, reach_ends(arena, device, wire));
}

/* Takes the first wire that is up or, when wires are measured, the best one: `peer` comes first there. */
enum wire_counter reach_wire_to(const struct node *node, const struct peer *peer, const struct far_arena *arena,
                                int32_t device)
{
    const struct gpu_wires *wires = &node->wires;
    enum wire_counter best = WIRES_COUNTED;
    double most = -1;
    for (uint32_t i = 0; i < wires->count; i++) {
        const enum wire_counter wire = wires->list[i];
        if (!is_up_to(peer, arena, device, wire))
            continue;
        if (wire == WIRE_PEER || !wires->measured)
            return wire;
        if (policy_rank(peer, wire_link(wire)) > most) {
            most = policy_rank(peer, wire_link(wire));
            best = wire;
        }
    }
    return best;
}

bool reach_takes(const struct node *node, const struct peer *peer, enum wire_counter wire)
{
    return wire == WIRE_PEER || (wire_is_link(wire) && policy_takes(node, peer, wire_link(wire)));
}
