#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/reach_private.h"
#include "daemon/source.h"

#define REACHED_MAX 4096u /* pools remembered per peer */

static bool is_up(const struct peer *peer)
{
    return peer->state == PEER_UP && peer->owner != NULL;
}

/* ---- Our arenas -------------------------------------------------------------------------------------------------- */

static bool has_links(const struct node *node, enum message_link_by by, int32_t device)
{
    return peers_has_gpu(node->peers, by, (uint32_t)device);
}

/* Sends the arena and the wires that lead there from this peer, if there are any by now. */
static void tell_arena(struct node *node, struct peer *peer, const struct receive_arena *arena)
{
    const struct devices_arena *memory = devices_arena(node->devices, arena->device);
    const bool is_shared = reach_has_wire(node, WIRE_PEER) && map_is_possible(peer);
    struct message message = {.type = MESSAGE_ARENA};
    message.arena = (struct message_arena){.device = (uint32_t)arena->device,
                                           .first_slot = arena->first,
                                           .slot_bytes = arena->slots.slot_bytes,
                                           .slot_count = arena->slots.slot_count,
                                           .ipc = view_of(memory->handle, is_shared ? sizeof(memory->handle) : 0),
                                           .nccl = has_links(node, LINK_BY_NCCL, arena->device),
                                           .ucx = has_links(node, LINK_BY_UCX, arena->device)};
    if (message.arena.ipc.size != 0 || message.arena.nccl || message.arena.ucx)
        (void)peer_send(peer, &message); /* if the peer is down, `down` follows */
}

struct news {
    struct node *node;
    const struct receive_arena *arena;
};

static void tell_arena_to(void *arg, struct peer *peer)
{
    const struct news *news = arg;
    if (is_up(peer))
        tell_arena(news->node, peer, news->arena);
}

/* Adds the slots of a device that has come into use. */
static void add_arena(struct node *node, int32_t device)
{
    const struct devices_arena *memory = devices_arena(node->devices, device);
    if (memory == NULL || receive_of_device(&node->receive, device) != NULL)
        return;
    uint32_t slot_bytes = far_slot_bytes(node->options.gpu_chunk_bytes);
    uint64_t count = node->options.gpu_arena_bytes / node->options.gpu_chunk_bytes;
    if (memory->base == NULL ||
        receive_add(&node->receive, device, memory->base, slot_bytes, (uint32_t)count) != STRAIT_OK) {
        log_write(node->log, LOG_WARN, "msg=\"no arena on GPU\" device=%d why=\"%s\"", device,
                  memory->base == NULL ? memory->why : "no memory");
        return;
    }
    struct news news = {.node = node, .arena = receive_of_device(&node->receive, device)};
    peers_each(node->peers, tell_arena_to, &news);
    if (reach_has_links(node))
        gpu_links_open(node, device, memory->base, (uint64_t)slot_bytes * count);
}

void reach_up(struct node *node, struct peer *peer)
{
    if (!is_up(peer))
        return;
    for (uint32_t i = 0; i < node->receive.arena_count; i++)
        if (node->receive.arenas[i]->device >= 0)
            tell_arena(node, peer, node->receive.arenas[i]);
}

/* ---- The peer's arenas ------------------------------------------------------------------------------------------- */

/* A wire replaces those ranked below it as soon as it is up. Mapping either succeeds quickly or not at all; links take
 * time, so they are opened alongside. */
void reach_open(struct node *node, struct peer *peer, struct far_arena *arena, int32_t device)
{
    const struct gpu_wires *wires = &node->wires;
    for (uint32_t i = 0; i < wires->count; i++) {
        if (wires->list[i] == WIRE_PEER && map_way(node, peer, arena, device) != PIN_FAILED)
            return;
        if (wire_is_link(wires->list[i]) && arena->by[wire_link(wires->list[i])])
            peer_want_gpu_link(peer, reach_ends(arena, device, wires->list[i]));
    }
}

/* The peer's devices that every GPU of the pool reaches. */
static uint64_t devices_of(const struct peer *peer, const struct pool *pool)
{
    const struct peer_use *use = peer->owner;
    uint64_t devices = 0;
    const struct far_arena *arena;
    LL_FOREACH (use->arenas, arena) {
        bool all = true;
        for (uint32_t g = 0; g < pool->group_count; g++)
            all &= pool->groups[g].device >= 0 &&
                   reach_takes(use->node, peer, reach_wire_to(use->node, peer, arena, pool->groups[g].device));
        devices |= (uint64_t)all << arena->device;
    }
    return devices;
}

static void tell_pool(struct peer *peer, const struct pool_id *id, uint64_t devices)
{
    struct message message = {.type = MESSAGE_REACH, .reach = {.pool = *id, .devices = devices}};
    (void)peer_send(peer, &message);
}

static bool uses_device(const struct pool *pool, int32_t device)
{
    for (uint32_t g = 0; g < pool->group_count; g++)
        if (pool->groups[g].device == device)
            return true;
    return false;
}

void reach_tell_pools_of(struct node *node, struct peer *peer, int32_t device)
{
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next)
        if (uses_device(pool->pool, device) && !pool->removing)
            tell_pool(peer, &pool->id, devices_of(peer, pool->pool));
}

/* Opens the ways from every GPU that holds pages of our pools. */
static void open_ways(struct node *node, struct peer *peer, struct far_arena *arena)
{
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next)
        for (uint32_t g = 0; g < pool->pool->group_count; g++)
            if (pool->pool->groups[g].device >= 0)
                reach_open(node, peer, arena, pool->pool->groups[g].device);
}

static struct far_arena *arena_of_slot(const struct peer *peer, uint32_t slot)
{
    const struct peer_use *use = peer->owner;
    struct far_arena *arena = NULL;
    LL_FOREACH (use->arenas, arena)
        if (slot >= arena->first && slot - arena->first < arena->slot_count)
            break;
    return arena;
}

static struct far_arena *arena_of_device(const struct peer_use *use, uint32_t device)
{
    struct far_arena *arena;
    LL_SEARCH_SCALAR(use->arenas, arena, device, device);
    return arena;
}

/* Is the message valid: its slots overlap no other arena's, and are the same as in earlier messages? */
static bool is_sound(const struct peer *peer, const struct message_arena *m)
{
    const struct peer_use *use = peer->owner;
    const struct far_arena *arena;
    if (m->first_slot < peer->slot_count || (m->ipc.size != 0 && !peer->direct))
        return false;
    LL_FOREACH (use->arenas, arena)
        if (arena->device == m->device
                ? m->first_slot != arena->first || m->slot_bytes != arena->slot_bytes ||
                      m->slot_count != arena->slot_count
                : m->first_slot < arena->first + arena->slot_count && arena->first < m->first_slot + m->slot_count)
            return false;
    return true;
}

static struct far_arena *add_far(struct peer_use *use, const struct message_arena *message)
{
    struct far_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL)
        return NULL; /* the host's memory does as well */
    *arena = (struct far_arena){.device = message->device,
                                .first = message->first_slot,
                                .slot_bytes = message->slot_bytes,
                                .slot_count = message->slot_count};
    LL_PREPEND(use->arenas, arena);
    return arena;
}

bool reach_arena(struct node *node, struct peer *peer, const struct message_arena *message)
{
    struct peer_use *use = peer->owner;
    if (!is_sound(peer, message))
        return false;
    if (!reach_is_on(node))
        return true;
    if (message->slot_bytes > far_slot_bytes(node->options.gpu_chunk_bytes)) {
        log_write(node->log, LOG_WARN,
                  "msg=\"GPU not used: its gpu-chunk-bytes is larger than ours\" peer=%s peer_device=%u", peer->address,
                  message->device);
        return true;
    }
    struct far_arena *arena = arena_of_device(use, message->device);
    if (arena == NULL)
        arena = add_far(use, message);
    if (arena == NULL)
        return true;
    if (message->ipc.size != 0 && !arena->has_handle) {
        memcpy(arena->handle, message->ipc.data, sizeof(arena->handle));
        arena->has_handle = true;
    }
    arena->by[LINK_BY_NCCL] |= message->nccl;
    arena->by[LINK_BY_UCX] |= message->ucx;
    open_ways(node, peer, arena);
    return true;
}

bool reach_knows_slot(const struct peer *peer, uint32_t slot)
{
    return slot < peer->slot_count || (peer->owner != NULL && arena_of_slot(peer, slot) != NULL);
}

uint32_t reach_slot_bytes(const struct peer *peer, uint32_t slot)
{
    const struct far_arena *arena = slot < peer->slot_count ? NULL : arena_of_slot(peer, slot);
    return arena != NULL ? arena->slot_bytes : 0;
}

bool reach_by_link(const struct peer *peer, uint32_t slot)
{
    const struct far_arena *arena = arena_of_slot(peer, slot);
    return arena != NULL && (arena->by[LINK_BY_NCCL] || arena->by[LINK_BY_UCX]);
}

uint32_t reach_slot_device(const struct peer *peer, uint32_t slot)
{
    return arena_of_slot(peer, slot)->device;
}

enum wire_counter reach_wire(const struct node *node, const struct peer *peer, int32_t device, uint32_t slot)
{
    const struct far_arena *arena = arena_of_slot(peer, slot);
    return arena != NULL ? reach_wire_to(node, peer, arena, device) : WIRES_COUNTED;
}

void *reach_slot(const struct peer *peer, int32_t device, uint32_t slot)
{
    const struct far_arena *arena = arena_of_slot(peer, slot);
    const struct way *way = arena != NULL ? map_find(arena, device) : NULL;
    return way != NULL ? way->memory.base + (size_t)(slot - arena->first) * arena->slot_bytes : NULL;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

struct pool_news {
    struct node *node;
    const struct pool_ref *pool;
};

static void tell_pool_to(void *arg, struct peer *peer)
{
    const struct pool_news *news = arg;
    const struct pool *pool = news->pool->pool;
    const struct peer_use *use = peer->owner;
    struct far_arena *arena;
    if (!is_up(peer))
        return;
    LL_FOREACH (use->arenas, arena)
        for (uint32_t g = 0; g < pool->group_count; g++)
            if (pool->groups[g].device >= 0)
                reach_open(news->node, peer, arena, pool->groups[g].device);
    uint64_t devices = devices_of(peer, pool);
    if (devices != 0)
        tell_pool(peer, &news->pool->id, devices);
}

void reach_pool(struct node *node, const struct pool_ref *pool)
{
    struct pool_news news = {.node = node, .pool = pool};
    if (pool->pool->devices == NULL || !reach_is_on(node))
        return;
    for (uint32_t g = 0; g < pool->pool->group_count; g++)
        if (pool->pool->groups[g].device >= 0)
            add_arena(node, pool->pool->groups[g].device);
    peers_each(node->peers, tell_pool_to, &news);
}

static void tell_pool_gone_to(void *arg, struct peer *peer)
{
    const struct pool_ref *pool = arg;
    if (is_up(peer) && devices_of(peer, pool->pool) != 0)
        tell_pool(peer, &pool->id, 0);
}

void reach_pool_gone(struct node *node, const struct pool_ref *pool)
{
    if (pool->pool->devices != NULL && node->peers != NULL)
        peers_each(node->peers, tell_pool_gone_to, (void *)(uintptr_t)pool);
}

bool reach_reach(struct peer *peer, const struct message_reach *message)
{
    struct peer_use *use = peer->owner;
    struct reached *reached;
    HASH_FIND(hh, use->reached, &message->pool, sizeof(message->pool), reached);
    if (message->devices == 0) {
        if (reached != NULL) {
            HASH_DELETE(hh, use->reached, reached);
            free(reached);
        }
        return true;
    }
    if (reached == NULL) {
        reached = HASH_COUNT(use->reached) < REACHED_MAX ? calloc(1, sizeof(*reached)) : NULL;
        if (reached == NULL)
            return true; /* the host's memory does as well */
        reached->id = message->pool;
        HASH_ADD(hh, use->reached, id, sizeof(reached->id), reached);
    }
    reached->devices = message->devices;
    return true;
}

uint64_t reach_devices(const struct peer *peer, const struct pool_id *pool)
{
    const struct peer_use *use = peer->owner;
    struct reached *reached = NULL;
    if (use != NULL)
        HASH_FIND(hh, use->reached, pool, sizeof(*pool), reached);
    return reached != NULL ? reached->devices : 0;
}

/* ---- Links between GPUs ------------------------------------------------------------------------------------------ */

static void open_from_to(void *arg, struct peer *peer)
{
    const struct news *news = arg;
    const struct peer_use *use = peer->owner;
    struct far_arena *arena;
    if (!is_up(peer))
        return;
    tell_arena(news->node, peer, news->arena);
    LL_FOREACH (use->arenas, arena)
        reach_open(news->node, peer, arena, news->arena->device);
}

void reach_gpu_ready(struct node *node, int32_t device)
{
    struct news news = {.node = node, .arena = receive_of_device(&node->receive, device)};
    peers_each(node->peers, open_from_to, &news);
}

void reach_changed(struct node *node, struct peer *peer)
{
    if (!is_up(peer))
        return;
    for (uint32_t i = 0; i < node->receive.arena_count; i++)
        if (node->receive.arenas[i]->device >= 0)
            reach_tell_pools_of(node, peer, node->receive.arenas[i]->device);
}

void reach_gpu_link(struct node *node, struct peer *peer, struct gpu_ends ends)
{
    if (!is_up(peer))
        return;
    reach_tell_pools_of(node, peer, (int32_t)ends.device);
    if (!peer_has_gpu_link(peer, ends))
        source_gpu_link_ended(node, peer, ends);
}
