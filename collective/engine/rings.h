/* Host memory through which kernels of ranks move messages that overflow: a ring of slots from each rank to each other
 * one. Ranks of one host share it; ranks on different hosts have a copy each, which a connection keeps alike
 * (proxy.h), and a host has only the rings of which one end is there. A message takes slots with consecutive numbers,
 * slot number n lies at n % depth in the ring, and the message's head names its first one. Each slot has two flags,
 * each written by one side only: number + 1 of what is in the slot, and of what was last taken out of it.
 *
 * The first slot is also in a record, written before NCCL has moved the head: for the last messages of the
 * ring, as both sides count them, collectives and pairs separately. A record that was overwritten counts as none.
 *
 * All of the memory is there before the first operation, since a GPU can neither wait for host memory to be registered
 * nor register any itself. What bounds it is the rings' depth: with many ranks each ring has few slots. */
#ifndef STRAIT_COLLECTIVE_ENGINE_RINGS_H
#define STRAIT_COLLECTIVE_ENGINE_RINGS_H

#include <stddef.h>
#include <stdint.h>

#include "collective/ranks.h"

#ifdef __CUDACC__
#define RING_FN __host__ __device__ static inline
#else
#define RING_FN static inline
#endif

enum {
    RING_FEW_RANKS = 64,   /* up to which rings have RING_SLOTS slots and RING_RECORDS records */
    RING_SLOTS = 64,       /* the most; always a power of two, as RING_RECORDS */
    RING_SLOTS_ALL = 1024, /* with more ranks: of a rank's rings to all others, about */
    RING_SLOTS_LEAST = 2,
    RING_RECORDS = 256,
    RING_RECORDS_MANY = 32, /* with more ranks */
    RING_TEAMS_MAX = 8,    /* thread blocks at each end of a ring; slot s is of team s % teams, so teams divide slots */
    RING_BLOCKS = 8,       /* about so many on each GPU for each direction: they all have to run at once */
    RING_BLOCKS_MAX = 128, /* with more ranks: in all; each serves several ends */
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

/* One ring, as a GPU or the host reaches it: `depth` slots, each with both flags; records of collectives, of pairs. */
struct ring_parts {
    struct ring_flag *full, *taken;
    struct ring_record *records[2];
    uint8_t *slots;
};

/* The rings as one rank reaches them. */
struct ring_set {
    uint8_t *flags;          /* of each ring: full, taken, records */
    uint8_t *slots;          /* of each ring */
    const uint32_t *numbers; /* by peer: the ring to it; and behind all of these, the ring from it */
    uint64_t *bell;          /* set to 1 by whoever has changed a ring's flag; NULL: nobody looks */
    uint32_t rank, ranks, teams, slot_bytes;
    uint32_t depth, records; /* slots and records of a ring */
};

/* One end of a ring, in the memory of the GPU that it belongs to, initially zero. */
struct ring_end {
    uint64_t moved[RING_SLOTS];    /* number + 1 of what was last put into each slot, or taken out of it */
    uint32_t busy[RING_TEAMS_MAX]; /* one of two concurrent kernels is working on the team's slots */
};

struct ring_ends {
    uint64_t next;        /* number of the next message's first slot, whoever it is for */
    uint64_t collectives; /* so far */
    uint64_t moving;      /* 1: NCCL moves messages whose headers are written; 0: what it moved has been checked */
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

static inline uint32_t ring_depth(uint32_t ranks)
{
    uint32_t depth = RING_SLOTS;
    while (ranks > RING_FEW_RANKS && depth > RING_SLOTS_LEAST && depth * ranks > RING_SLOTS_ALL)
        depth /= 2;
    return depth;
}

static inline uint32_t ring_records(uint32_t ranks)
{
    return ranks > RING_FEW_RANKS ? RING_RECORDS_MANY : RING_RECORDS;
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

/* Ends of rings, each with its team, that a kernel which moves overflow has to serve: the first half offers, the second
 * half takes. */
RING_FN uint32_t ring_ends_all(const struct ring_set *rings)
{
    return 2 * (rings->ranks - 1) * rings->teams;
}

/* Thread blocks of such a kernel: one for each end, or with many ranks one for several. */
RING_FN uint32_t ring_blocks(const struct ring_set *rings)
{
    const uint32_t ends = ring_ends_all(rings);
    return rings->ranks <= RING_FEW_RANKS || ends < RING_BLOCKS_MAX ? ends : RING_BLOCKS_MAX;
}

RING_FN uint64_t ring_flags_bytes(uint32_t depth, uint32_t records)
{
    return 2 * (depth * sizeof(struct ring_flag) + records * sizeof(struct ring_record));
}

RING_FN struct ring_parts ring_parts_of(const struct ring_set *rings, uint32_t number)
{
    struct ring_parts parts;
    uint8_t *flags = rings->flags + number * ring_flags_bytes(rings->depth, rings->records);
    parts.full = (struct ring_flag *)(void *)flags;
    parts.taken = parts.full + rings->depth;
    parts.records[0] = (struct ring_record *)(void *)(parts.taken + rings->depth);
    parts.records[1] = parts.records[0] + rings->records;
    parts.slots = rings->slots + (uint64_t)number * rings->depth * rings->slot_bytes;
    return parts;
}

/* The ring to a peer, and the one from it. */
RING_FN uint32_t ring_to(const struct ring_set *rings, uint32_t peer)
{
    return rings->numbers[peer];
}

RING_FN uint32_t ring_from(const struct ring_set *rings, uint32_t peer)
{
    return rings->numbers[rings->ranks + peer];
}

/* ---- Which rings there are --------------------------------------------------------------------------------------- */

/* How many of the ranks below `rank` share this memory. */
static inline uint32_t ring_ranks_below(const struct rank_set *here, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rank; i++)
        count += rank_set_has(here, i);
    return count;
}

/* How many rings lie in memory that the ranks `here` share. */
static inline size_t ring_count(const struct rank_set *here, uint32_t ranks)
{
    const size_t sharing = ring_ranks_below(here, ranks);
    return sharing * (ranks - 1) + sharing * (ranks - sharing);
}

/* Fills `numbers` of the rank's ring_set, 2 x ranks of them: first those from each of the ranks that share the memory,
 * then those to each of these from all that do not. What would lead from a rank to itself has no meaning. */
static inline void ring_numbers(uint32_t *numbers, const struct rank_set *here, uint32_t rank, uint32_t ranks)
{
    const uint32_t sharing = ring_ranks_below(here, ranks), own = ring_ranks_below(here, rank);
    uint32_t below = 0; /* of those that share the memory */
    for (uint32_t peer = 0; peer < ranks; peer++) {
        const bool shares = rank_set_has(here, peer);
        numbers[peer] = own * (ranks - 1) + peer - (peer > rank);
        numbers[ranks + peer] = shares ? below * (ranks - 1) + rank - (rank > peer)
                                       : sharing * (ranks - 1) + own * (ranks - sharing) + peer - below;
        below += shares;
    }
}

/* Of so many rings. */
static inline size_t ring_flags_size(uint32_t ranks, size_t count)
{
    return count * ring_flags_bytes(ring_depth(ranks), ring_records(ranks));
}

static inline size_t ring_slots_size(uint32_t ranks, size_t count)
{
    return count * ring_depth(ranks) * ring_slot_bytes(ranks);
}

/* The numbers of the rings follow the ends. */
static inline size_t ring_ends_size(uint32_t ranks)
{
    return sizeof(struct ring_ends) + ranks * (sizeof(((struct ring_ends *)NULL)->peers[0]) + 2 * sizeof(uint32_t));
}

static inline uint32_t *ring_ends_numbers(struct ring_ends *ends, uint32_t ranks)
{
    return (uint32_t *)(void *)(ends->peers + ranks);
}

#endif
