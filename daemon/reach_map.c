/* Maps the arenas of a peer's GPUs for ours, and unmaps them. */
#include <stdlib.h>

#include <utlist.h>

#include "daemon/node.h"
#include "daemon/reach_private.h"

bool map_is_possible(const struct peer *peer)
{
    return peer->state == PEER_UP && peer->owner != NULL && peer->direct && link_sees_end(peer->link);
}

/* ---- Mapping ----------------------------------------------------------------------------------------------------- */

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
                  "msg=\"GPU not reached: pages go another way\" peer=%s device=%d peer_device=%u why=\"%s\"",
                  way->peer->address, way->device, way->arena->device, way->why);
    if (way->status == STRAIT_OK && !use->down)
        reach_tell_pools_of(way->node, way->peer, way->device);
    if (way->status != STRAIT_OK && !use->down)
        reach_open(way->node, way->peer, way->arena, way->device);
    exchange_writer_done(way->peer);
}

static enum pin_state begin(struct node *node, struct peer *peer, struct far_arena *arena, int32_t device)
{
    struct way *way = calloc(1, sizeof(*way));
    if (way == NULL)
        return PIN_FAILED;
    *way = (struct way){.node = node, .peer = peer, .arena = arena, .device = device, .state = PIN_BUSY};
    if (job_call(node->jobs, map_work, map_done, way) != STRAIT_OK) {
        free(way);
        return PIN_FAILED;
    }
    LL_PREPEND(arena->ways, way);
    exchange_writer_begun(peer);
    return PIN_BUSY;
}

enum pin_state map_way(struct node *node, struct peer *peer, struct far_arena *arena, int32_t device)
{
    const struct way *way;
    if (!arena->has_handle || !map_is_possible(peer))
        return PIN_FAILED;
    LL_SEARCH_SCALAR(arena->ways, way, device, device);
    return way != NULL ? way->state : begin(node, peer, arena, device);
}

const struct way *map_find(const struct far_arena *arena, int32_t device)
{
    const struct way *way;
    LL_SEARCH_SCALAR(arena->ways, way, device, device);
    return way != NULL && way->state == PIN_DONE ? way : NULL;
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
