/* The shards of one rank's save, with copies of their names and boxes. */
#ifndef STRAIT_CHECKPOINT_CATALOG_H
#define STRAIT_CHECKPOINT_CATALOG_H

#include "checkpoint/format.h"

struct catalog {
    struct checkpoint_shard *shards;
    uint32_t count;
    /* Internal. */
    uint32_t room;
    uint64_t *hashes;
    uint32_t *slots; /* hash table of 1 + a shard's place; a power of two of them */
    uint32_t slot_count;
    void *memory;
    uint8_t *at;
    size_t left;
};

void catalog_init(struct catalog *catalog);
void catalog_fini(struct catalog *catalog);

/* Place of the shard of a name that has the box of `like`; UINT32_MAX: there is none. */
uint32_t catalog_find(const struct catalog *catalog, const char *name, const struct checkpoint_shard *like);

/* Adds a copy of the shard, whose name and box are copied too. False: out of memory, and nothing has changed. */
bool catalog_add(struct catalog *catalog, const struct checkpoint_shard *shard);

#endif
