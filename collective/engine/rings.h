/* Memory of the host by which kernels of ranks move what did not fit: from each rank to each other one a ring of slots.
 * Ranks of one host have it in common, others each their own, which a connection keeps alike (carry.h). A message takes
 * slots with numbers that follow one another, n of them lies in slot n % RING_SLOTS of the ring, and its head says what
 * its first one is. Each slot has two flags, each written by one side alone: the number
 * + 1 of what is in it, and of what was taken out of it last.
 *
 * The same is in a record, before NCCL has moved the head: of the last RING_RECORDS messages of the ring, as both sides
 * count them, those of collectives and of pairs apart. One that has been written over is as good as none. */
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
    RING_SLOTS = 16,
    RING_RECORDS = 256,
    RING_TEAMS_MAX = 8,       /* thread blocks of a ring: slot s is of team s % teams, so teams divide slots */
    RING_BLOCKS = 8,          /* about so many on each GPU: they all have to run at once */
    RING_BYTES = 1 << 20,     /* of one slot, divided by the ranks */
    RING_SLOT_UNIT = 4 << 10, /* slots are multiples of it */
};

struct ring_flag {
    uint64_t number;
    uint64_t bytes;       /* of `full`: values in the slot, written before the number */
    uint8_t padding[112]; /* a line of its own: the other flag's writer is another GPU */
};

struct ring_record {
    uint64_t number; /* of the message, counted from 1; 0 while `first` is written */
    uint64_t first;  /* slot; RING_NONE: it fits */
};
#define RING_NONE UINT64_MAX

struct ring_flags {
    struct ring_flag full[RING_SLOTS], taken[RING_SLOTS];
    struct ring_record records[2][RING_RECORDS]; /* of collectives, of pairs */
};

/* As one rank reaches them. */
struct ring_set {
    struct ring_flags *flags; /* by ring_number */
    uint8_t *slots;           /* RING_SLOTS of each ring */
    uint32_t rank, ranks, teams, slot_bytes;
};

/* One end of a ring, in the memory of the GPU whose it is, zero at first. */
struct ring_end {
    uint64_t moved[RING_SLOTS];    /* number + 1 of what it put into each slot, or took out of it, last */
    uint32_t busy[RING_TEAMS_MAX]; /* one of two kernels that run at the same time has to do with the team's slots */
};

struct ring_ends {
    uint64_t next;        /* number that the next message's slots begin with, whoever it is for */
    uint64_t collectives; /* so far */
    struct {
        struct ring_end out, in;
        uint64_t sends, receives; /* of pairs, so far */
    } peers[];
};

/* How large: functions of the number of ranks alone. */
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
