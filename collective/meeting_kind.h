/* What each kind of place implements of a meeting (meeting.h). */
#ifndef STRAIT_COLLECTIVE_MEETING_KIND_H
#define STRAIT_COLLECTIVE_MEETING_KIND_H

#include "collective/meeting.h"

struct coll_meeting_kind {
    void (*say)(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word);
    void (*pass)(struct coll_meeting *meeting, uint32_t begun);
    struct coll_view (*look)(struct coll_meeting *meeting, enum coll_round round);
    /* What is open in the round becomes raw, and waiting ends. */
    void (*give_up)(struct coll_meeting *meeting, enum coll_round round);
    /* Frees it. */
    void (*leave)(struct coll_meeting *meeting);
    int64_t least_ns, most_ns; /* time between two looks */
    int64_t linger_ms;         /* how long to stay after a decision: others find it only while somebody is there */
};

/* First member of each kind's struct. */
struct coll_meeting {
    const struct coll_meeting_kind *kind;
    int rank, ranks;
};

/* Precondition: the key is not none, and the rank is in range. */
struct coll_meeting *coll_meeting_come_here(const struct coll_key *key, int rank, int ranks);
struct coll_meeting *coll_meeting_come_there(const struct coll_key *key, int rank, int ranks);

#endif
