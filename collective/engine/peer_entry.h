/* Members of this process whose wire `peer` is being made, together with those of others. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_ENTRY_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_ENTRY_H

#include "collective/engine/peer.h"

/* What a rank tells the others. */
struct peer_offer {
    struct peer_handle handle;
    struct peer_tuning tuning; /* the same on all */
    uint32_t able;
    char why[96];
};

/* What is measured: a small message and a large one, by NCCL and by this wire, the latter in several ways. */
enum peer_trial { PEER_PLAIN_SMALL, PEER_PLAIN, PEER_OWN_SMALL, PEER_OWN, PEER_TRIALS = PEER_OWN + 7 };

/* What each took, in seconds; 0: it was not tried. */
struct peer_times {
    double of[PEER_TRIALS];
};

struct peer_entry {
    struct coll_member *member;
    struct peer_wire *wire; /* becomes the member's when all ranks have it, since a thread of the member looks there */
    struct peer_offer own;
    struct peer_offer *told; /* in the GPU's memory: of all ranks, then of this one */
    uint8_t *probe;          /* large messages of all ranks; NULL: nothing is measured */
    gpu_event begin, end;
    struct peer_times times;
};

typedef bool peer_part(struct peer_entry *entry);

/* Calls `what` for each entry, on its GPU; peer_grouped in a group of NCCL. False: one of them failed. */
bool peer_each(struct peer_entry *entries, unsigned count, peer_part *what);
bool peer_grouped(struct peer_entry *entries, unsigned count, peer_part *what);

/* peer_measure.c: whether NCCL is measured for comparison, and whether anything is measured; what measuring needs,
 * before ranks tell whether they are able; and measuring itself. */
bool peer_compared(const struct coll_member *member);
bool peer_measured(const struct coll_member *member, const struct peer_wire *wire);
bool peer_measure_prepare(struct peer_entry *entry);
bool peer_measure(struct peer_entry *entries, unsigned count);
bool peer_measure_end(struct peer_entry *entry);

#endif
