#include "daemon/receive.h"

#include <stdlib.h>
#include <string.h>

/* Adds an arena whose slots exist already and, on OK, takes ownership of it. */
static enum strait_status append(struct receive *receive, struct receive_arena *arena)
{
    uint32_t before = receive->slot_count, count = arena->slots.slot_count;
    if (receive->arena_count == RECEIVE_ARENAS_MAX || count > UINT32_MAX - before)
        return STRAIT_ERR_NO_MEMORY;
    struct slot *slots = realloc(receive->slots, ((size_t)before + count) * sizeof(*slots));
    if (slots == NULL)
        return STRAIT_ERR_NO_MEMORY;
    for (uint32_t i = before; i < before + count; i++)
        slots[i] = (struct slot){.arena = receive->arena_count};
    arena->first = before;
    arena->index = receive->arena_count;
    receive->slots = slots;
    receive->slot_count = before + count;
    receive->arenas[receive->arena_count++] = arena;
    return STRAIT_OK;
}

enum strait_status receive_init(struct receive *receive, uint32_t slot_bytes, uint32_t slot_count, uint64_t target)
{
    *receive = (struct receive){0};
    struct receive_arena *host = calloc(1, sizeof(*host));
    if (host == NULL)
        return STRAIT_ERR_NO_MEMORY;
    host->device = -1;
    host->target = target;
    enum strait_status status = arena_init(&host->slots, true, slot_bytes, slot_count);
    if (status == STRAIT_OK)
        status = append(receive, host);
    if (status != STRAIT_OK) {
        arena_fini(&host->slots);
        free(host);
    }
    return status;
}

enum strait_status receive_add(struct receive *receive, int32_t device, void *base, uint32_t slot_bytes,
                               uint32_t slot_count)
{
    struct receive_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL)
        return STRAIT_ERR_NO_MEMORY;
    arena->device = device;
    enum strait_status status = arena_init_over(&arena->slots, base, slot_bytes, slot_count);
    if (status == STRAIT_OK)
        status = append(receive, arena);
    if (status != STRAIT_OK) {
        arena_fini(&arena->slots);
        free(arena);
    }
    return status;
}

void receive_fini(struct receive *receive)
{
    for (uint32_t i = 0; i < receive->arena_count; i++) {
        arena_fini(&receive->arenas[i]->slots);
        free(receive->arenas[i]);
    }
    free(receive->slots);
    *receive = (struct receive){0};
}

struct receive_arena *receive_of_device(const struct receive *receive, int32_t device)
{
    for (uint32_t i = 0; i < receive->arena_count; i++)
        if (receive->arenas[i]->device == device)
            return receive->arenas[i];
    return NULL;
}

#define GPU_CHUNKS      8u
#define GPU_CHUNK_LEAST (2u << 20)

uint64_t gpu_chunk_target(uint32_t slot_bytes, uint64_t bytes)
{
    uint64_t part = (bytes + GPU_CHUNKS - 1) / GPU_CHUNKS;
    part = part < GPU_CHUNK_LEAST ? GPU_CHUNK_LEAST : part;
    part += part / GPU_SLOT_OVERHEAD;
    return part < slot_bytes ? part : slot_bytes;
}

uint64_t gpu_chunk_count(uint32_t slot_bytes, uint64_t bytes)
{
    const uint64_t target = gpu_chunk_target(slot_bytes, bytes);
    return (bytes + target - 1) / target;
}

#define GPU_TAIL_LEAST (4u << 20) /* a smaller launch takes as long */

uint64_t gpu_tail_target(uint64_t target, uint64_t left)
{
    while (left <= target && target / 2 >= GPU_TAIL_LEAST)
        target /= 2;
    return target;
}

uint32_t receive_take(struct receive *receive, struct receive_arena *arena)
{
    uint32_t slot = arena_take(&arena->slots);
    if (slot == ARENA_NONE)
        return ARENA_NONE;
    receive->slots[arena->first + slot] = (struct slot){.arena = arena->index};
    return arena->first + slot;
}

struct receive_arena *receive_arena_of(const struct receive *receive, uint32_t slot)
{
    return receive->arenas[receive->slots[slot].arena];
}

void receive_give(struct receive *receive, uint32_t slot)
{
    struct receive_arena *arena = receive_arena_of(receive, slot);
    receive->slots[slot].sink = NULL;
    arena_give(&arena->slots, slot - arena->first);
}

uint8_t *receive_address(const struct receive *receive, uint32_t slot)
{
    const struct receive_arena *arena = receive_arena_of(receive, slot);
    return arena_slot(&arena->slots, slot - arena->first);
}
