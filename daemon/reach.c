#include "daemon/reach.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/node.h"

#define REACHED_MAX 4096u /* pools of one peer */

/* An arena in the memory of a peer's GPU. */
struct far_arena {
    uint32_t device, first, slot_bytes, slot_count;
    uint8_t handle[DEVICE_HANDLE_BYTES];
    struct way *ways;
    struct far_arena *next;
};

/* How a GPU of ours reaches it. Being mapped, it keeps the peer's link. */
struct way {
    struct node *node;
    struct peer *peer;
    struct far_arena *arena;
    int32_t device;
    enum pin_state state;
    struct device_memory memory;
    enum strait_status status;
    char why[256];
    struct way *next;
};

/* A pool of the peer. */
struct reached {
    struct pool_id id;
    uint64_t devices;
    UT_hash_handle hh;
};

bool reach_is_on(const struct node *node)
{
    const char *p2p = getenv("NCCL_P2P_DISABLE");
    return node->options.gpu_peer && node->options.gpu_arena_bytes != 0 && (p2p == NULL || strcmp(p2p, "1") != 0);
}

static bool is_possible(const struct peer *peer)
{
    return peer->state == PEER_UP && peer->owner != NULL && peer->direct && link_sees_end(peer->link);
}

/* ---- Our arenas -------------------------------------------------------------------------------------------------- */

static void tell_arena(struct node *node, struct peer *peer, const struct receive_arena *arena)
{
    const struct devices_arena *memory = devices_arena(node->devices, arena->device);
    struct message message = {.type = MESSAGE_ARENA};
    message.arena = (struct message_arena){.device = (uint32_t)arena->device,
                                           .first_slot = arena->first,
                                           .slot_bytes = arena->slots.slot_bytes,
                                           .slot_count = arena->slots.slot_count,
                                           .ipc = view_of(memory->handle, sizeof(memory->handle))};
    (void)peer_send(peer, &message); /* a peer that is down says so itself */
}

struct news {
    struct node *node;
    const struct receive_arena *arena;
};

static void tell_arena_to(void *arg, struct peer *peer)
{
    const struct news *news = arg;
    if (is_possible(peer))
        tell_arena(news->node, peer, news->arena);
}

/* The slots of a device that has come into use. */
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
}

void reach_up(struct node *node, struct peer *peer)
{
    if (!is_possible(peer))
        return;
    for (uint32_t i = 0; i < node->receive.arena_count; i++)
        if (node->receive.arenas[i]->device >= 0)
            tell_arena(node, peer, node->receive.arenas[i]);
}

/* ---- The peer's arenas ------------------------------------------------------------------------------------------- */

static bool has_way(const struct far_arena *arena, int32_t device)
{
    const struct way *way;
    LL_SEARCH_SCALAR(arena->ways, way, device, device);
    return way != NULL && way->state == PIN_DONE;
}

/* Of the peer's devices: those that every GPU of the pool reaches. */
static uint64_t devices_of(const struct peer_use *use, const struct pool *pool)
{
    uint64_t devices = 0;
    const struct far_arena *arena;
    LL_FOREACH (use->arenas, arena) {
        bool all = true;
        for (uint32_t g = 0; g < pool->group_count; g++)
            all &= pool->groups[g].device >= 0 && has_way(arena, pool->groups[g].device);
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

/* What the new way makes reachable. */
static void tell_pools_of(struct node *node, struct peer *peer, int32_t device)
{
    const struct peer_use *use = peer->owner;
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next) {
        uint64_t devices = uses_device(pool->pool, device) && !pool->removing ? devices_of(use, pool->pool) : 0;
        if (devices != 0)
            tell_pool(peer, &pool->id, devices);
    }
}

static void map_work(void *arg)
{
    struct way *way = arg;
    const struct far_arena *arena = way->arena;
    way->status =
        devices_reach(way->node->devices, way->device, arena->handle, (uint64_t)arena->slot_bytes * arena->slot_count,
                      &way->memory, &(struct device_why){way->why, sizeof(way->why)});
}

static void map_done(void *arg)
{
    struct way *way = arg;
    const struct peer_use *use = way->peer->owner;
    way->state = way->status == STRAIT_OK ? PIN_DONE : PIN_FAILED;
    if (way->status == STRAIT_OK)
        log_write(way->node->log, LOG_INFO, "msg=\"GPU reached\" peer=%s device=%d peer_device=%u", way->peer->address,
                  way->device, way->arena->device);
    else
        log_write(way->node->log, LOG_WARN,
                  "msg=\"GPU not reached: pages cross the host's memory\" peer=%s device=%d peer_device=%u why=\"%s\"",
                  way->peer->address, way->device, way->arena->device, way->why);
    if (way->status == STRAIT_OK && !use->down)
        tell_pools_of(way->node, way->peer, way->device);
    exchange_writer_done(way->peer);
}

static void open_way(struct node *node, struct peer *peer, struct far_arena *arena, int32_t device)
{
    struct way *way;
    LL_SEARCH_SCALAR(arena->ways, way, device, device);
    if (way != NULL)
        return;
    way = calloc(1, sizeof(*way));
    if (way == NULL)
        return;
    *way = (struct way){.node = node, .peer = peer, .arena = arena, .device = device, .state = PIN_BUSY};
    if (job_call(node->jobs, map_work, map_done, way) != STRAIT_OK) {
        free(way);
        return;
    }
    LL_PREPEND(arena->ways, way);
    exchange_writer_begun(peer);
}

/* From every GPU that has pages of ours. */
static void open_ways(struct node *node, struct peer *peer, struct far_arena *arena)
{
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next)
        for (uint32_t g = 0; g < pool->pool->group_count; g++)
            if (pool->pool->groups[g].device >= 0)
                open_way(node, peer, arena, pool->pool->groups[g].device);
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

static bool is_new(const struct peer *peer, const struct message_arena *m)
{
    const struct peer_use *use = peer->owner;
    const struct far_arena *arena;
    if (m->first_slot < peer->slot_count)
        return false;
    LL_FOREACH (use->arenas, arena)
        if (arena->device == m->device ||
            (m->first_slot < arena->first + arena->slot_count && arena->first < m->first_slot + m->slot_count))
            return false;
    return true;
}

bool reach_arena(struct node *node, struct peer *peer, const struct message_arena *message)
{
    struct peer_use *use = peer->owner;
    if (!peer->direct || !is_new(peer, message))
        return false;
    if (!reach_is_on(node) || !is_possible(peer))
        return true;
    if (message->slot_bytes > far_slot_bytes(node->options.gpu_chunk_bytes)) {
        log_write(node->log, LOG_WARN,
                  "msg=\"GPU not used: its gpu-chunk-bytes is larger than ours\" peer=%s peer_device=%u", peer->address,
                  message->device);
        return true;
    }
    struct far_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL)
        return true; /* the host's memory does as well */
    *arena = (struct far_arena){.device = message->device,
                                .first = message->first_slot,
                                .slot_bytes = message->slot_bytes,
                                .slot_count = message->slot_count};
    memcpy(arena->handle, message->ipc.data, sizeof(arena->handle));
    LL_PREPEND(use->arenas, arena);
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

void *reach_slot(const struct peer *peer, int32_t device, uint32_t slot)
{
    const struct far_arena *arena = arena_of_slot(peer, slot);
    const struct way *way = NULL;
    if (arena != NULL)
        LL_SEARCH_SCALAR(arena->ways, way, device, device);
    if (way == NULL || way->state != PIN_DONE)
        return NULL;
    return way->memory.base + (size_t)(slot - arena->first) * arena->slot_bytes;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

struct pool_news {
    struct node *node;
    const struct pool_ref *pool;
};

static void tell_pool_to(void *arg, struct peer *peer)
{
    const struct pool_news *news = arg;
    const struct peer_use *use = peer->owner;
    struct far_arena *arena;
    if (!is_possible(peer))
        return;
    LL_FOREACH (use->arenas, arena)
        for (uint32_t g = 0; g < news->pool->pool->group_count; g++)
            if (news->pool->pool->groups[g].device >= 0)
                open_way(news->node, peer, arena, news->pool->pool->groups[g].device);
    uint64_t devices = devices_of(use, news->pool->pool);
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
    if (is_possible(peer) && devices_of(peer->owner, pool->pool) != 0)
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
    if (!peer->direct)
        return false;
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

/* ---- Letting go -------------------------------------------------------------------------------------------------- */

static void forget_arena(struct far_arena *arena)
{
    struct way *way, *next;
    LL_FOREACH_SAFE (arena->ways, way, next)
        free(way);
    free(arena);
}

struct letting_go {
    struct node *node;
    struct peer *peer;
    struct far_arena *arenas;
};

static void unmap_work(void *arg)
{
    const struct letting_go *l = arg;
    struct far_arena *arena;
    struct way *way;
    LL_FOREACH (l->arenas, arena)
        LL_FOREACH (arena->ways, way)
            if (way->state == PIN_DONE)
                devices_unmap(l->node->devices, way->device, &way->memory);
}

static void free_arenas(struct far_arena *arenas)
{
    struct far_arena *arena, *next;
    LL_FOREACH_SAFE (arenas, arena, next)
        forget_arena(arena);
}

static void unmap_done(void *arg)
{
    struct letting_go *l = arg;
    free_arenas(l->arenas);
    exchange_writer_done(l->peer);
    free(l);
}

bool reach_release(struct node *node, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use->arenas == NULL)
        return true;
    struct letting_go here = {.node = node, .peer = peer, .arenas = use->arenas}, *l = malloc(sizeof(*l));
    use->arenas = NULL;
    if (l != NULL) {
        *l = here;
        exchange_writer_begun(peer);
        if (job_call(node->jobs, unmap_work, unmap_done, l) == STRAIT_OK)
            return false;
        use->writers--;
        free(l);
    }
    unmap_work(&here); /* slow, but nothing stays mapped */
    free_arenas(here.arenas);
    return true;
}

void reach_forget(struct peer_use *use)
{
    struct reached *reached, *next;
    HASH_ITER (hh, use->reached, reached, next) {
        HASH_DELETE(hh, use->reached, reached);
        free(reached);
    }
    free_arenas(use->arenas);
}
