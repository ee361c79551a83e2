/* Host memory through which kernels of ranks move messages that overflow: a ring of slots from each rank to each other
 * one. Ranks of one host share it; ranks on different hosts have a copy each, which a connection keeps alike
 * (proxy.h). A message takes slots with consecutive numbers, slot number n lies at n % RING_SLOTS in the ring,
 * and the message's head names its first one. Each slot has two flags, each written by one side only: number + 1 of
 * what is in the slot, and of what was last taken out of it.
 *
 * The first slot is also in a record, written before NCCL has moved the head: for the last RING_RECORDS messages of the
 * ring, as both sides count them, collectives and pairs separately. A record that was overwritten counts as none. */
#ifndef STRAIT_COLLECTIVE_ENGINE_RINGS_H
#define STRAIT_COLLECTIVE_ENGINE_RINGS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define RING_FN __host__ __device__ static inline
#else
#define RING_FN static inline
#endif

enum {
    RING_SLOTS = 64,
    RING_RECORDS = 256,
    RING_TEAMS_MAX = 8, /* thread blocks at each end of a ring; slot s is of team s % teams, so teams divide slots */
    RING_BLOCKS = 8,    /* about so many on each GPU for each direction: they all have to run at once */
    RING_BYTES = 256 << 10,   /* of one slot, divided by the ranks */
    RING_SLOT_UNIT = 4 << 10, /* slots are multiples of it */
};

struct ring_flag {
    uint64_t number;
    uint64_t bytes;       /* of `full`: values in the slot, written before the number */
    uint8_t padding[112]; /* a cache line of its own: the other flag is written by another GPU */
};

struct ring_record {
    uint64_t number; /* of the message, counted from 1; 0 while `first` is written */
    uint64_t first;  /* slot; RING_NONE: the message fits */
};
#define RING_NONE UINT64_MAX

struct ring_flags {
    struct ring_flag full[RING_SLOTS], taken[RING_SLOTS];
    struct ring_record records[2][RING_RECORDS]; /* of collectives, of pairs */
};

/* The rings as one rank reaches them. */
struct ring_set {
    struct ring_flags *flags; /* by ring_number */
    uint8_t *slots;           /* RING_SLOTS of each ring */
    uint32_t rank, ranks, teams, slot_bytes;
};

/* One end of a ring, in the memory of the GPU that it belongs to, initially zero. */
struct ring_end {
    uint64_t moved[RING_SLOTS];    /* number + 1 of what was last put into each slot, or taken out of it */
    uint32_t busy[RING_TEAMS_MAX]; /* one of two concurrent kernels is working on the team's slots */
};

struct ring_ends {
    uint64_t next;        /* number of the next message's first slot, whoever it is for */
    uint64_t collectives; /* so far */
    struct {
        struct ring_end out, in;
        uint64_t sends, receives; /* of pairs, so far */
    } peers[];
};

/* Sizes are functions of the number of ranks alone. */
static inline uint32_t ring_slot_bytes(uint32_t ranks)
{
    const uint32_t bytes = (uint32_t)RING_BYTES / ranks / RING_SLOT_UNIT * RING_SLOT_UNIT;
    return bytes > 0 ? bytes : (uint32_t)RING_SLOT_UNIT;
}

static inline uint32_t ring_teams(uint32_t ranks)
{
    uint32_t teams = RING_TEAMS_MAX;
    while (teams > 1 && teams * (ranks - 1) > RING_BLOCKS)
        teams /= 2;
    return teams;
}

/* How much of a message of so many bytes goes into each of its slots. A short message is spread over all teams, and the
 * other side can begin with the content of the first slot. */
RING_FN uint32_t ring_cut(const struct ring_set *rings, uint64_t bytes)
{
    const uint64_t each = (bytes / rings->teams + RING_SLOT_UNIT - 1) / RING_SLOT_UNIT * RING_SLOT_UNIT;
    return each == 0 ? RING_SLOT_UNIT : each < rings->slot_bytes ? (uint32_t)each : rings->slot_bytes;
}

/* How many slots a message takes. */
RING_FN uint64_t ring_slots(const struct ring_set *rings, uint64_t bytes)
{
    const uint32_t cut = ring_cut(rings, bytes);
    return (bytes + cut - 1) / cut;
}

/* Thread blocks of a kernel that moves overflow: the first half offers, the second half takes. */
RING_FN uint32_t ring_blocks(const struct ring_set *rings)
{
    return 2 * (rings->ranks - 1) * rings->teams;
}

/* The ring from one rank to another. */
RING_FN uint32_t ring_number(const struct ring_set *rings, uint32_t from, uint32_t to)
{
    return from * (rings->ranks - 1) + to - (to > from);
}

static inline size_t ring_flags_size(uint32_t ranks)
{
    return (size_t)ranks * (ranks - 1) * sizeof(struct ring_flags);
}

static inline size_t ring_slots_size(uint32_t ranks)
{
    return (size_t)ranks * (ranks - 1) * RING_SLOTS * ring_slot_bytes(ranks);
}

static inline size_t ring_ends_size(uint32_t ranks)
{
    return sizeof(struct ring_ends) + ranks * sizeof(((struct ring_ends *)NULL)->peers[0]);
}

#endif
