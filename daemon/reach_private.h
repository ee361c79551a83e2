/* Shared by the files about GPUs that reach each other. */
#ifndef STRAIT_DAEMON_REACH_PRIVATE_H
#define STRAIT_DAEMON_REACH_PRIVATE_H

#include "daemon/reach.h"

/* An arena in the memory of a peer's GPU. */
struct far_arena {
    uint32_t device, first, slot_bytes, slot_count;
    bool has_handle, by[LINK_BY_COUNT]; /* wires that the peer offers */
    uint8_t handle[DEVICE_HANDLE_BYTES];
    struct way *ways;
    struct far_arena *next;
};

/* The mapping by which one of our GPUs stores into a far arena. While it is mapped, the peer's link must be kept. */
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

/* A pool of the peer, and our devices whose arenas it reaches. */
struct reached {
    struct pool_id id;
    uint64_t devices;
    UT_hash_handle hh;
};

/* Prepares the best available wire from our GPU `device` to the arena. */
void reach_open(struct node *node, struct peer *peer, struct far_arena *arena, int32_t device);
/* The wire that leads there now; WIRES_COUNTED: none. */
enum wire_counter reach_wire_to(const struct node *node, const struct peer *peer, const struct far_arena *arena,
                                int32_t device);
/* Does the policy let chunks use that wire? */
bool reach_takes(const struct node *node, const struct peer *peer, enum wire_counter wire);
/* The ends of a link from our GPU to there. */
struct gpu_ends reach_ends(const struct far_arena *arena, int32_t device, enum wire_counter wire);
/* Tells the peer which of its GPUs our pools on `device` reach now. */
void reach_tell_pools_of(struct node *node, struct peer *peer, int32_t device);

/* reach_map.c: the peer's memory, mapped. */

/* Can GPU memory be shared with that peer, in both directions? */
bool map_is_possible(const struct peer *peer);
/* State of the mapping; the first call starts it. */
enum pin_state map_way(struct node *node, struct peer *peer, struct far_arena *arena, int32_t device);
const struct way *map_find(const struct far_arena *arena, int32_t device); /* NULL: not mapped */

#endif
