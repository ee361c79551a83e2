#include "checkpoint/catalog.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define BLOCK_BYTES 65536u

void catalog_init(struct catalog *catalog)
{
    *catalog = (struct catalog){0};
}

void catalog_fini(struct catalog *catalog)
{
    for (void *block = catalog->memory, *next; block != NULL; block = next) {
        next = *(void **)block;
        free(block);
    }
    free(catalog->shards);
    free(catalog->hashes);
    free(catalog->slots);
    *catalog = (struct catalog){0};
}

static size_t dims_bytes(const struct checkpoint_shard *shard)
{
    return shard->dims * sizeof(uint64_t);
}

static uint64_t hash_of(const char *name, const struct checkpoint_shard *like)
{
    uint64_t hash = XXH3_64bits(name, strlen(name));

    hash = XXH3_64bits_withSeed(like->offsets, dims_bytes(like), hash);
    return XXH3_64bits_withSeed(like->sizes, dims_bytes(like), hash);
}

uint32_t catalog_find(const struct catalog *catalog, const char *name, const struct checkpoint_shard *like)
{
    const uint64_t hash = hash_of(name, like), mask = catalog->slot_count - 1u;

    if (catalog->slot_count == 0)
        return UINT32_MAX;
    for (uint64_t at = hash & mask; catalog->slots[at] != 0; at = (at + 1) & mask) {
        const uint32_t place = catalog->slots[at] - 1;
        const struct checkpoint_shard *shard = &catalog->shards[place];
        if (catalog->hashes[place] == hash && strcmp(shard->name, name) == 0 && shard->dims == like->dims &&
            memcmp(shard->offsets, like->offsets, dims_bytes(like)) == 0 &&
            memcmp(shard->sizes, like->sizes, dims_bytes(like)) == 0)
            return place;
    }
    return UINT32_MAX;
}

static void enter(struct catalog *catalog, uint32_t place)
{
    const uint64_t mask = catalog->slot_count - 1u;
    uint64_t at = catalog->hashes[place] & mask;

    while (catalog->slots[at] != 0)
        at = (at + 1) & mask;
    catalog->slots[at] = place + 1;
}

/* Makes room for one more shard. */
static bool grow(struct catalog *catalog)
{
    if (catalog->count < catalog->room)
        return true;
    const uint32_t room = catalog->room > 0 ? catalog->room * 2 : 256;
    if (room > UINT32_MAX / 4)
        return false;
    struct checkpoint_shard *shards = realloc(catalog->shards, room * sizeof(*shards));
    if (shards != NULL)
        catalog->shards = shards;
    uint64_t *hashes = realloc(catalog->hashes, room * sizeof(*hashes));
    if (hashes != NULL)
        catalog->hashes = hashes;
    uint32_t *slots = calloc((size_t)room * 2, sizeof(*slots));
    if (shards == NULL || hashes == NULL || slots == NULL) {
        free(slots);
        return false;
    }
    free(catalog->slots);
    catalog->slots = slots;
    catalog->slot_count = room * 2;
    catalog->room = room;
    for (uint32_t i = 0; i < catalog->count; i++)
        enter(catalog, i);
    return true;
}

static void *take(struct catalog *catalog, size_t bytes)
{
    bytes = (bytes + 7) / 8 * 8;
    if (bytes > catalog->left) {
        const size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        uint8_t *block = malloc(sizeof(void *) + room);
        if (block == NULL)
            return NULL;
        *(void **)block = catalog->memory;
        catalog->memory = block;
        catalog->at = block + sizeof(void *);
        catalog->left = room;
    }
    void *taken = catalog->at;
    catalog->at += bytes;
    catalog->left -= bytes;
    return taken;
}

bool catalog_add(struct catalog *catalog, const struct checkpoint_shard *shard)
{
    const size_t bytes = dims_bytes(shard), name_bytes = strlen(shard->name) + 1;

    if (!grow(catalog))
        return false;
    uint8_t *copy = take(catalog, 3 * bytes + name_bytes);
    if (copy == NULL)
        return false;
    if (bytes > 0) {
        memcpy(copy, shard->shape, bytes);
        memcpy(copy + bytes, shard->offsets, bytes);
        memcpy(copy + 2 * bytes, shard->sizes, bytes);
    }
    memcpy(copy + 3 * bytes, shard->name, name_bytes);
    struct checkpoint_shard *kept = &catalog->shards[catalog->count];
    *kept = *shard;
    kept->shape = (const uint64_t *)copy;
    kept->offsets = (const uint64_t *)(copy + bytes);
    kept->sizes = (const uint64_t *)(copy + 2 * bytes);
    kept->name = (const char *)(copy + 3 * bytes);
    catalog->hashes[catalog->count] = hash_of(kept->name, kept);
    enter(catalog, catalog->count++);
    return true;
}
