#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/node.h"
#include "daemon/gpu_path.h"
#include "daemon/request.h"
#include "daemon/session.h"

/* An arena in the memory of a peer's GPU. */
struct peer_gpu_arena {
    uint32_t device, first, slot_bytes, slot_count;
    uint64_t flags_at;                  /* where the slots' flags begin; 0: they have none */
    bool has_handle, by[LINK_BY_COUNT]; /* wires that the peer offers */
    bool has_id;
    uint8_t handle[DEVICE_HANDLE_BYTES], id[DEVICE_ID_BYTES];
    struct peer_mapping *mappings;
    struct peer_gpu_arena *next;
};

/* The mapping by which one of our GPUs stores into the arena of a peer's GPU. While it is mapped, the peer's link must
 * be kept. */
struct peer_mapping {
    struct node *node;
    struct peer *peer;
    struct peer_gpu_arena *arena;
    int32_t device;
    enum pin_state state;
    struct device_memory memory;
    enum strait_status status;
    char why[256];
    struct peer_mapping *next;
};

/* The name of a peer's pool; hashed and compared as bytes. */
struct peer_pool {
    char tenant[TENANT_NAME_MAX]; /* none for "default" */
    struct pool_id id;
};

/* A pool of the peer, and our devices whose arenas its GPUs can write to. */
struct pool_paths {
    struct peer_pool pool;
    uint64_t devices, flagged;
    UT_hash_handle hh;
};

/* Prepares the best available wire from our GPU `device` to the arena. */
static void open_path(struct node *node, struct peer *peer, struct peer_gpu_arena *arena, int32_t device);
/* Sends the peer which of its GPUs our pools on `device` can write to now. */
static void send_pools_of(struct node *node, struct peer *peer, int32_t device);

/* ---- The arenas of a peer's GPUs, mapped for ours ---------------------------------------------------------------- */

/* Can GPU memory be shared with that peer, in both directions? */
static bool mapping_is_possible(const struct peer *peer)
{
    return peer->state == PEER_UP && peer->owner != NULL && peer->direct && link_sees_end(peer->link);
}

/* Bytes of the arena that are mapped. */
static uint64_t arena_bytes(const struct peer_gpu_arena *arena)
{
    return arena->flags_at != 0 ? arena->flags_at + arena->slot_count * sizeof(uint64_t)
                                : (uint64_t)arena->slot_bytes * arena->slot_count;
}

static void map_work(void *arg)
{
    struct peer_mapping *mapping = arg;
    const struct peer_gpu_arena *arena = mapping->arena;
    mapping->status = devices_reach(mapping->node->devices, mapping->device, arena->handle, arena_bytes(arena),
                                    &mapping->memory, &(struct device_why){mapping->why, sizeof(mapping->why)});
}

static void map_done(void *arg)
{
    struct peer_mapping *mapping = arg;
    const struct peer_use *use = mapping->peer->owner;
    char name[2 * MESSAGE_ADDRESS_MAX];
    log_quote(name, sizeof(name), mapping->peer->address, strlen(mapping->peer->address));
    mapping->state = mapping->status == STRAIT_OK ? PIN_DONE : PIN_FAILED;
    if (mapping->status == STRAIT_OK)
        log_limited(mapping->node->log, LOG_OF_PEERS, LOG_INFO, "msg=\"GPU reached\" peer=%s device=%d peer_device=%u",
                    name, mapping->device, mapping->arena->device);
    else
        log_limited(mapping->node->log, LOG_OF_PEERS, LOG_WARN,
                    "msg=\"GPU not reached: pages go another way\" peer=%s device=%d peer_device=%u why=\"%s\"", name,
                    mapping->device, mapping->arena->device, mapping->why);
    if (mapping->status == STRAIT_OK && !use->down)
        send_pools_of(mapping->node, mapping->peer, mapping->device);
    if (mapping->status != STRAIT_OK && !use->down)
        open_path(mapping->node, mapping->peer, mapping->arena, mapping->device);
    peer_writer_end(mapping->peer);
}

static enum pin_state begin(struct node *node, struct peer *peer, struct peer_gpu_arena *arena, int32_t device)
{
    struct peer_mapping *mapping = calloc(1, sizeof(*mapping));
    if (mapping == NULL)
        return PIN_FAILED;
    *mapping = (struct peer_mapping){.node = node, .peer = peer, .arena = arena, .device = device, .state = PIN_BUSY};
    if (job_call(node->jobs, map_work, map_done, mapping) != STRAIT_OK) {
        free(mapping);
        return PIN_FAILED;
    }
    LL_PREPEND(arena->mappings, mapping);
    peer_writer_begin(peer);
    return PIN_BUSY;
}

/* State of the mapping; the first call starts it. */
static enum pin_state mapping_start(struct node *node, struct peer *peer, struct peer_gpu_arena *arena, int32_t device)
{
    const struct peer_mapping *mapping;
    if (!arena->has_handle || !mapping_is_possible(peer))
        return PIN_FAILED;
    LL_SEARCH_SCALAR(arena->mappings, mapping, device, device);
    return mapping != NULL ? mapping->state : begin(node, peer, arena, device);
}

/* NULL: not mapped. */
static const struct peer_mapping *mapping_find(const struct peer_gpu_arena *arena, int32_t device)
{
    const struct peer_mapping *mapping;
    LL_SEARCH_SCALAR(arena->mappings, mapping, device, device);
    return mapping != NULL && mapping->state == PIN_DONE ? mapping : NULL;
}

static void forget_arena(struct peer_gpu_arena *arena)
{
    struct peer_mapping *mapping, *next;
    LL_FOREACH_SAFE (arena->mappings, mapping, next)
        free(mapping);
    free(arena);
}

struct unmap_job {
    struct node *node;
    struct peer *peer;
    struct peer_gpu_arena *arenas;
};

static void unmap_work(void *arg)
{
    const struct unmap_job *l = arg;
    struct peer_gpu_arena *arena;
    struct peer_mapping *mapping;
    LL_FOREACH (l->arenas, arena)
        LL_FOREACH (arena->mappings, mapping)
            if (mapping->state == PIN_DONE)
                devices_unmap(l->node->devices, mapping->device, &mapping->memory);
}

static void free_arenas(struct peer_gpu_arena *arenas)
{
    struct peer_gpu_arena *arena, *next;
    LL_FOREACH_SAFE (arenas, arena, next)
        forget_arena(arena);
}

static void unmap_done(void *arg)
{
    struct unmap_job *l = arg;
    free_arenas(l->arenas);
    peer_writer_end(l->peer);
    free(l);
}

bool gpu_path_release(struct node *node, struct peer *peer)
{
    struct peer_use *use = peer->owner;
    if (use->arenas == NULL)
        return true;
    struct unmap_job here = {.node = node, .peer = peer, .arenas = use->arenas}, *l = malloc(sizeof(*l));
    use->arenas = NULL;
    if (l != NULL) {
        *l = here;
        peer_writer_begin(peer);
        if (job_call(node->jobs, unmap_work, unmap_done, l) == STRAIT_OK)
            return false;
        peer->writers--;
        free(l);
    }
    unmap_work(&here); /* slow, but nothing stays mapped */
    free_arenas(here.arenas);
    return true;
}

void gpu_path_forget(struct peer_use *use)
{
    struct pool_paths *pool_paths, *next;
    HASH_ITER (hh, use->pool_paths, pool_paths, next) {
        HASH_DELETE(hh, use->pool_paths, pool_paths);
        free(pool_paths);
    }
    free_arenas(use->arenas);
}

/* ---- The wire in use --------------------------------------------------------------------------------------------- */

/* The ends of a link from our GPU to there. */
static struct gpu_ends ends_of(const struct peer_gpu_arena *arena, int32_t device, enum gpu_path wire)
{
    return (struct gpu_ends){.by = wire_link(wire), .device = (uint32_t)device, .peer_device = arena->device};
}

/* The wire that leads there now: the first one that is up or, when wires are measured, the best one: `peer` comes first
 * there. WIRE_NONE: none. */
static enum gpu_path wire_to(const struct node *node, const struct peer *peer, const struct peer_gpu_arena *arena,
                             int32_t device)
{
    const struct gpu_wires *wires = &node->wires;
    enum gpu_path best = WIRE_NONE;
    double most = -1;
    for (uint32_t i = 0; i < wires->count; i++) {
        const enum gpu_path wire = wires->list[i];
        if (wire != WIRE_PEER && peer->sealed)
            continue; /* links between GPUs carry what no processor can encrypt */
        const bool is_up = wire == WIRE_PEER ? mapping_find(arena, device) != NULL
                                             : peer_has_gpu_link(peer, ends_of(arena, device, wire));
        if (!is_up)
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

/* Does the policy let chunks use that wire? */
static bool is_used(const struct node *node, const struct peer *peer, enum gpu_path wire)
{
    return wire == WIRE_PEER || (wire != WIRE_NONE && policy_uses_link(node, peer, wire_link(wire)));
}

/* ---- The report: which wire chunks use between our GPUs and a peer's, and why no better one ---------------------- */

/* Why chunks are not stored straight into that GPU's memory. */
static const char *why_not_peer(const struct node *node, const struct peer *peer, const struct peer_gpu_arena *arena,
                                int32_t device)
{
    const struct peer_mapping *mapping;
    if (!gpu_wires_has(node, WIRE_PEER))
        return "off (gpu-wires or NCCL_P2P_DISABLE)";
    if (!mapping_is_possible(peer))
        return "no memory is shared with the peer";
    if (!arena->has_handle)
        return "not offered by the peer";
    LL_SEARCH_SCALAR(arena->mappings, mapping, device, device);
    return mapping == NULL ? "not asked for" : mapping->state == PIN_BUSY ? "being mapped" : mapping->why;
}

static const char *measured(const struct peer *peer, enum message_link_by by, char *text, size_t size)
{
    double host, link;
    policy_rates(peer, by, &host, &link);
    if (link == 0)
        return "the host is being measured";
    snprintf(text, size, "carried %.2f GB/s of pages, the host %.2f", link * 1e-9, host * 1e-9);
    return text;
}

static const char *why_not_link(const struct node *node, const struct peer *peer, const struct peer_gpu_arena *arena,
                                int32_t device, enum gpu_path wire, char *text, size_t size)
{
    const enum message_link_by by = wire_link(wire);
    const struct gpu_links *gpu = gpu_links_of(node, device);
    const struct gpu_ends ends = ends_of(arena, device, wire);
    if (!gpu_wires_has(node, wire))
        return "off (gpu-wires)";
    if (gpu == NULL || !gpu->by[by].ready)
        return gpu != NULL ? gpu_links_state(gpu, by) : "being loaded";
    if (arena->by[by] && peer_has_gpu_link(peer, ends))
        return measured(peer, by, text, size);
    return arena->by[by] ? peer_gpu_link_why(peer, ends) : "not offered by the peer";
}

static const char *name_of(enum gpu_path wire)
{
    return wire == WIRE_PEER ? "peer" : wire == WIRE_NCCL ? "nccl" : "ucx";
}

/* All wires: the allowed ones in their order, preceded by `peer` if it is not allowed, followed by the others. */
static void in_order(const struct node *node, enum gpu_path order[GPU_WIRES_MAX])
{
    static const enum gpu_path links[] = {WIRE_NCCL, WIRE_UCX};
    uint32_t count = 0;
    if (!gpu_wires_has(node, WIRE_PEER))
        order[count++] = WIRE_PEER;
    for (uint32_t i = 0; i < node->wires.count; i++)
        order[count++] = node->wires.list[i];
    for (uint32_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
        if (!gpu_wires_has(node, links[i]))
            order[count++] = links[i];
}

static void describe(const struct node *node, const struct peer *peer, const struct peer_gpu_arena *arena,
                     int32_t device, struct gpu_path_report *report)
{
    const enum gpu_path wire = wire_to(node, peer, arena, device);
    const bool taken = is_used(node, peer, wire);
    enum gpu_path order[GPU_WIRES_MAX];
    char text[96];
    size_t used = 0;
    *report = (struct gpu_path_report){.device = (uint32_t)device, .peer_device = arena->device};
    report->wire = taken ? name_of(wire) : "pinned";
    in_order(node, order);
    for (uint32_t i = 0; i < GPU_WIRES_MAX && used < sizeof(report->why) && !(taken && order[i] == wire); i++)
        used += (size_t)snprintf(
            report->why + used, sizeof(report->why) - used, "%s%s: %s", used > 0 ? "; " : "", name_of(order[i]),
            order[i] == WIRE_PEER ? why_not_peer(node, peer, arena, device)
                                  : why_not_link(node, peer, arena, device, order[i], text, sizeof(text)));
}

void gpu_path_each(const struct node *node, const struct peer *peer,
                   void (*f)(void *arg, const struct gpu_path_report *report), void *arg)
{
    const struct peer_use *use = peer->owner;
    const struct peer_gpu_arena *arena;
    struct gpu_path_report report;
    LL_FOREACH (use->arenas, arena)
        for (uint32_t i = 0; i < node->receive.arena_count; i++)
            if (node->receive.arenas[i]->device >= 0) {
                describe(node, peer, arena, node->receive.arenas[i]->device, &report);
                f(arg, &report);
            }
}

#define POOL_PATHS_MAX 4096u /* pools remembered per peer */

static bool is_up(const struct peer *peer)
{
    return peer->state == PEER_UP && peer->owner != NULL;
}

/* ---- Our arenas -------------------------------------------------------------------------------------------------- */

/* Slots of one device that peers write. */
static uint32_t slots_of_device(const struct node *node)
{
    return (uint32_t)(node->options.gpu_arena_bytes / node->options.gpu_chunk_bytes);
}

/* Where flags begin in a device's memory: behind all slots. */
static uint64_t flags_at(const struct node *node)
{
    const uint64_t slots = (uint64_t)slots_of_device(node) * gpu_slot_bytes(node->options.gpu_chunk_bytes);
    return slots + gpu_links_bytes(node, slots);
}

uint64_t gpu_path_arena_bytes(const struct node *node)
{
    return flags_at(node) + slots_of_device(node) * sizeof(uint64_t);
}

static bool has_links(const struct node *node, const struct peer *peer, enum message_link_by by, int32_t device)
{
    return !peer->sealed && peers_has_gpu(node->peers, by, (uint32_t)device);
}

/* Sends the arena and the wires that lead there from this peer, if there are any by now. */
static void send_arena(struct node *node, struct peer *peer, const struct receive_arena *arena)
{
    const struct devices_arena *memory = devices_arena(node->devices, arena->device);
    const bool is_shared = gpu_wires_has(node, WIRE_PEER) && mapping_is_possible(peer);
    struct message message = {.type = MESSAGE_ARENA};
    message.arena = (struct message_arena){.device = (uint32_t)arena->device,
                                           .first_slot = arena->first,
                                           .slot_bytes = arena->slots.slot_bytes,
                                           .slot_count = arena->slots.slot_count,
                                           .ipc = view_of(memory->handle, is_shared ? sizeof(memory->handle) : 0),
                                           .flags_at = is_shared ? flags_at(node) : 0,
                                           .gpu = view_of(memory->id, sizeof(memory->id)),
                                           .nccl = has_links(node, peer, LINK_BY_NCCL, arena->device),
                                           .ucx = has_links(node, peer, LINK_BY_UCX, arena->device)};
    if (message.arena.ipc.size != 0 || message.arena.nccl || message.arena.ucx)
        (void)peer_send(peer, &message); /* if the peer is down, `down` follows */
}

struct arena_update {
    struct node *node;
    const struct receive_arena *arena;
};

static void send_arena_to(void *arg, struct peer *peer)
{
    const struct arena_update *update = arg;
    if (is_up(peer))
        send_arena(update->node, peer, update->arena);
}

static void open_from_to(void *arg, struct peer *peer)
{
    const struct arena_update *update = arg;
    const struct peer_use *use = peer->owner;
    struct peer_gpu_arena *arena;
    if (!is_up(peer))
        return;
    send_arena(update->node, peer, update->arena);
    LL_FOREACH (use->arenas, arena)
        open_path(update->node, peer, arena, update->arena->device);
}

/* A GPU of ours is ready for links. */
static void on_gpu_ready(struct node *node, int32_t device)
{
    struct arena_update update = {.node = node, .arena = receive_of_device(&node->receive, device)};
    peers_each(node->peers, open_from_to, &update);
}

/* Adds the slots of a device that has come into use. */
static void add_arena(struct node *node, int32_t device)
{
    const struct devices_arena *memory = devices_arena(node->devices, device);
    if (memory == NULL || receive_of_device(&node->receive, device) != NULL)
        return;
    uint32_t slot_bytes = gpu_slot_bytes(node->options.gpu_chunk_bytes);
    const uint32_t count = slots_of_device(node);
    if (memory->base == NULL || receive_add(&node->receive, device, memory->base, slot_bytes, count,
                                            (uint64_t *)((uint8_t *)memory->base + flags_at(node))) != STRAIT_OK) {
        log_limited(node->log, LOG_OF_CLIENTS, LOG_WARN, "msg=\"no arena on GPU\" device=%d why=\"%s\"", device,
                    memory->base == NULL ? memory->why : "no memory");
        return;
    }
    struct arena_update update = {.node = node, .arena = receive_of_device(&node->receive, device)};
    peers_each(node->peers, send_arena_to, &update);
    if (gpu_wires_has_links(node))
        gpu_links_open(node, device, memory->base, (uint64_t)slot_bytes * count, on_gpu_ready);
}

void gpu_path_up(struct node *node, struct peer *peer)
{
    if (!is_up(peer))
        return;
    gpu_links_peer_up(node);
    for (uint32_t i = 0; i < node->receive.arena_count; i++)
        if (node->receive.arenas[i]->device >= 0)
            send_arena(node, peer, node->receive.arenas[i]);
}

/* ---- The peer's arenas ------------------------------------------------------------------------------------------- */

/* A wire replaces those ranked below it as soon as it is up. Mapping either succeeds quickly or not at all; links take
 * time, so they are opened alongside. */
static void open_path(struct node *node, struct peer *peer, struct peer_gpu_arena *arena, int32_t device)
{
    const struct gpu_wires *wires = &node->wires;
    for (uint32_t i = 0; i < wires->count; i++) {
        if (wires->list[i] == WIRE_PEER && mapping_start(node, peer, arena, device) != PIN_FAILED)
            return;
        if (wires->list[i] != WIRE_PEER && arena->by[wire_link(wires->list[i])])
            peer_want_gpu_link(peer, ends_of(arena, device, wires->list[i]));
    }
}

/* Is the arena in the memory of that GPU of ours? Unless both are known, it may be. */
static bool may_be_same(const struct node *node, const struct peer_gpu_arena *arena, int32_t device)
{
    const struct devices_arena *own = devices_arena(node->devices, device);
    return own == NULL || own->base == NULL || !arena->has_id || memcmp(own->id, arena->id, sizeof(own->id)) == 0;
}

/* Does our GPU set the flags of chunks that it stores there, for a decoder on another GPU? */
static bool sets_flags(const struct node *node, const struct peer *peer, const struct peer_gpu_arena *arena,
                       int32_t device)
{
    const struct peer_mapping *mapping = mapping_find(arena, device);
    return arena->flags_at != 0 && mapping != NULL && !may_be_same(node, arena, device) &&
           wire_to(node, peer, arena, device) == WIRE_PEER;
}

/* The peer's devices that every GPU of the pool can write to. */
static void find_devices(const struct peer *peer, const struct pool *pool, struct message_reach *reach)
{
    const struct peer_use *use = peer->owner;
    const struct peer_gpu_arena *arena;
    LL_FOREACH (use->arenas, arena) {
        bool all = true, flags = true;
        for (uint32_t g = 0; g < pool->group_count; g++) {
            const int32_t device = pool->groups[g].device;
            all &= device >= 0 && is_used(use->node, peer, wire_to(use->node, peer, arena, device));
            flags &= all && sets_flags(use->node, peer, arena, device);
        }
        reach->devices |= (uint64_t)all << arena->device;
        reach->flagged |= (uint64_t)flags << arena->device;
    }
}

static bool has_devices(const struct peer *peer, const struct pool *pool)
{
    struct message_reach reach = {.devices = 0};
    find_devices(peer, pool, &reach);
    return reach.devices != 0;
}

/* Tells the peer which of its devices the pool's GPUs can write to; none of them once the pool is gone. */
static void send_pool(struct peer *peer, const struct pool_ref *pool, bool gone)
{
    struct message message = {.type = MESSAGE_REACH,
                              .reach = {.pool = pool->key.id, .tenant = tenant_view(pool->tenant)}};
    if (!gone)
        find_devices(peer, pool->pool, &message.reach);
    (void)peer_send(peer, &message);
}

static bool uses_device(const struct pool *pool, int32_t device)
{
    for (uint32_t g = 0; g < pool->group_count; g++)
        if (pool->groups[g].device == device)
            return true;
    return false;
}

static void send_pools_of(struct node *node, struct peer *peer, int32_t device)
{
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next)
        if (uses_device(pool->pool, device) && !pool->removing)
            send_pool(peer, pool, false);
}

/* Opens the paths from every GPU that holds pages of our pools. */
static void open_paths(struct node *node, struct peer *peer, struct peer_gpu_arena *arena)
{
    struct pool_ref *pool, *next;
    HASH_ITER (hh, node->exchange.pools, pool, next)
        for (uint32_t g = 0; g < pool->pool->group_count; g++)
            if (pool->pool->groups[g].device >= 0)
                open_path(node, peer, arena, pool->pool->groups[g].device);
}

static struct peer_gpu_arena *arena_of_slot(const struct peer *peer, uint32_t slot)
{
    const struct peer_use *use = peer->owner;
    struct peer_gpu_arena *arena = NULL;
    LL_FOREACH (use->arenas, arena)
        if (slot >= arena->first && slot - arena->first < arena->slot_count)
            break;
    return arena;
}

static struct peer_gpu_arena *arena_of_device(const struct peer_use *use, uint32_t device)
{
    struct peer_gpu_arena *arena;
    LL_SEARCH_SCALAR(use->arenas, arena, device, device);
    return arena;
}

/* Is the message valid: its slots overlap no other arena's, and are the same as in earlier messages? */
static bool is_sound(const struct peer *peer, const struct message_arena *m)
{
    const struct peer_use *use = peer->owner;
    const struct peer_gpu_arena *arena;
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

static struct peer_gpu_arena *add_peer_arena(struct peer_use *use, const struct message_arena *message)
{
    struct peer_gpu_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL)
        return NULL; /* the host's memory does as well */
    *arena = (struct peer_gpu_arena){.device = message->device,
                                     .first = message->first_slot,
                                     .slot_bytes = message->slot_bytes,
                                     .slot_count = message->slot_count};
    LL_PREPEND(use->arenas, arena);
    return arena;
}

bool gpu_path_on_arena(struct node *node, struct peer *peer, const struct message_arena *message)
{
    struct peer_use *use = peer->owner;
    if (!is_sound(peer, message))
        return false;
    if (node->wires.count == 0)
        return true;
    if (message->slot_bytes > gpu_slot_bytes(node->options.gpu_chunk_bytes)) {
        char name[2 * MESSAGE_ADDRESS_MAX];
        log_quote(name, sizeof(name), peer->address, strlen(peer->address));
        log_limited(node->log, LOG_OF_PEERS, LOG_WARN,
                    "msg=\"GPU not used: its chunks are larger than ours\" peer=%s peer_device=%u", name,
                    message->device);
        return true;
    }
    struct peer_gpu_arena *arena = arena_of_device(use, message->device);
    if (arena == NULL)
        arena = add_peer_arena(use, message);
    if (arena == NULL)
        return true;
    if (message->ipc.size != 0 && !arena->has_handle) {
        memcpy(arena->handle, message->ipc.data, sizeof(arena->handle));
        arena->flags_at = message->flags_at;
        arena->has_handle = true;
    }
    if (message->gpu.size != 0) {
        memcpy(arena->id, message->gpu.data, sizeof(arena->id));
        arena->has_id = true;
    }
    arena->by[LINK_BY_NCCL] |= message->nccl;
    arena->by[LINK_BY_UCX] |= message->ucx;
    open_paths(node, peer, arena);
    return true;
}

bool gpu_path_has_slot(const struct peer *peer, uint32_t slot)
{
    return slot < peer->slot_count || (peer->owner != NULL && arena_of_slot(peer, slot) != NULL);
}

uint32_t gpu_path_slot_bytes(const struct peer *peer, uint32_t slot)
{
    const struct peer_gpu_arena *arena = slot < peer->slot_count ? NULL : arena_of_slot(peer, slot);
    return arena != NULL ? arena->slot_bytes : 0;
}

bool gpu_path_by_link(const struct peer *peer, uint32_t slot)
{
    const struct peer_gpu_arena *arena = arena_of_slot(peer, slot);
    return arena != NULL && (arena->by[LINK_BY_NCCL] || arena->by[LINK_BY_UCX]);
}

uint32_t gpu_path_slot_device(const struct peer *peer, uint32_t slot)
{
    return arena_of_slot(peer, slot)->device;
}

enum gpu_path gpu_path_wire(const struct node *node, const struct peer *peer, int32_t device, uint32_t slot)
{
    const struct peer_gpu_arena *arena = arena_of_slot(peer, slot);
    return arena != NULL ? wire_to(node, peer, arena, device) : WIRE_NONE;
}

void *gpu_path_slot(const struct peer *peer, int32_t device, uint32_t slot)
{
    const struct peer_gpu_arena *arena = arena_of_slot(peer, slot);
    const struct peer_mapping *mapping = arena != NULL ? mapping_find(arena, device) : NULL;
    return mapping != NULL ? mapping->memory.base + (size_t)(slot - arena->first) * arena->slot_bytes : NULL;
}

uint64_t *gpu_path_flag(const struct peer *peer, int32_t device, uint32_t slot)
{
    const struct peer_gpu_arena *arena = arena_of_slot(peer, slot);
    const struct peer_mapping *mapping = arena != NULL && arena->flags_at != 0 ? mapping_find(arena, device) : NULL;
    return mapping != NULL ? (uint64_t *)(mapping->memory.base + arena->flags_at) + (slot - arena->first) : NULL;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

struct pool_update {
    struct node *node;
    const struct pool_ref *pool;
};

static void send_pool_to(void *arg, struct peer *peer)
{
    const struct pool_update *update = arg;
    const struct pool *pool = update->pool->pool;
    const struct peer_use *use = peer->owner;
    struct peer_gpu_arena *arena;
    if (!is_up(peer))
        return;
    LL_FOREACH (use->arenas, arena)
        for (uint32_t g = 0; g < pool->group_count; g++)
            if (pool->groups[g].device >= 0)
                open_path(update->node, peer, arena, pool->groups[g].device);
    if (has_devices(peer, pool))
        send_pool(peer, update->pool, false);
}

/* Logs the GPUs that this pool is the first to use. */
static void log_devices(struct node *node, const struct pool_ref *pool)
{
    struct device_state state;
    for (uint32_t g = 0; g < pool->pool->group_count; g++) {
        const int32_t device = pool->pool->groups[g].device;
        if (device < 0 || (node->gpus_used >> device & 1) != 0 || !devices_state(node->devices, device, &state))
            continue;
        node->gpus_used |= UINT64_C(1) << device;
        log_write(node->log, LOG_INFO, "msg=\"GPU in use\" device=%d codec=\"%s\"", device, state.codec);
    }
}

void gpu_path_pool(struct node *node, const struct pool_ref *pool)
{
    struct pool_update update = {.node = node, .pool = pool};
    if (pool->pool->devices == NULL)
        return;
    log_devices(node, pool);
    if (node->wires.count == 0)
        return;
    for (uint32_t g = 0; g < pool->pool->group_count; g++)
        if (pool->pool->groups[g].device >= 0)
            add_arena(node, pool->pool->groups[g].device);
    peers_each(node->peers, send_pool_to, &update);
}

static void send_pool_gone_to(void *arg, struct peer *peer)
{
    const struct pool_ref *pool = arg;
    if (is_up(peer) && has_devices(peer, pool->pool))
        send_pool(peer, pool, true);
}

void gpu_path_pool_gone(struct node *node, const struct pool_ref *pool)
{
    if (pool->pool->devices != NULL && node->peers != NULL)
        peers_each(node->peers, send_pool_gone_to, (void *)(uintptr_t)pool);
}

bool gpu_path_on_reach(struct peer *peer, const struct message_reach *message)
{
    struct peer_use *use = peer->owner;
    struct pool_paths *pool_paths;
    struct peer_pool pool = {.id = message->pool};
    if (!is_default_tenant(message->tenant))
        memcpy(pool.tenant, message->tenant.data, message->tenant.size);
    HASH_FIND(hh, use->pool_paths, &pool, sizeof(pool), pool_paths);
    if (message->devices == 0) {
        if (pool_paths != NULL) {
            HASH_DELETE(hh, use->pool_paths, pool_paths);
            free(pool_paths);
        }
        return true;
    }
    if (pool_paths == NULL) {
        pool_paths = HASH_COUNT(use->pool_paths) < POOL_PATHS_MAX ? calloc(1, sizeof(*pool_paths)) : NULL;
        if (pool_paths == NULL)
            return true; /* the host's memory does as well */
        pool_paths->pool = pool;
        HASH_ADD(hh, use->pool_paths, pool, sizeof(pool_paths->pool), pool_paths);
    }
    pool_paths->devices = message->devices;
    pool_paths->flagged = message->flagged & message->devices;
    return true;
}

/* NULL: the peer has told of none. */
static const struct pool_paths *paths_of(const struct peer *peer, const struct name *source)
{
    const struct peer_use *use = peer->owner;
    struct pool_paths *pool_paths = NULL;
    struct peer_pool pool = {.id = source->pool};
    memcpy(pool.tenant, source->tenant, sizeof(pool.tenant));
    if (use != NULL)
        HASH_FIND(hh, use->pool_paths, &pool, sizeof(pool), pool_paths);
    return pool_paths;
}

uint64_t gpu_path_devices(const struct peer *peer, const struct name *source)
{
    const struct pool_paths *paths = paths_of(peer, source);
    return paths != NULL ? paths->devices : 0;
}

uint64_t gpu_path_flagged(const struct peer *peer, const struct name *source)
{
    const struct pool_paths *paths = paths_of(peer, source);
    return paths != NULL ? paths->flagged : 0;
}

/* ---- Links between GPUs ------------------------------------------------------------------------------------------ */

void gpu_path_changed(struct node *node, struct peer *peer)
{
    if (!is_up(peer))
        return;
    for (uint32_t i = 0; i < node->receive.arena_count; i++)
        if (node->receive.arenas[i]->device >= 0)
            send_pools_of(node, peer, node->receive.arenas[i]->device);
}

void gpu_path_gpu_link(struct node *node, struct peer *peer, struct gpu_ends ends)
{
    if (!is_up(peer))
        return;
    send_pools_of(node, peer, (int32_t)ends.device);
}
