/* What a kind of place does of a meeting (meeting.h). */
#ifndef STRAIT_COLLECTIVE_MEETING_KIND_H
#define STRAIT_COLLECTIVE_MEETING_KIND_H

#include "collective/meeting.h"

struct coll_meeting_kind {
    void (*say)(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word);
    void (*pass)(struct coll_meeting *meeting, uint32_t begun);
    struct coll_view (*look)(struct coll_meeting *meeting, enum coll_round round);
    /* What is open in the round becomes raw, and waiting has ended. */
    void (*give_up)(struct coll_meeting *meeting, enum coll_round round);
    /* Frees it. */
    void (*leave)(struct coll_meeting *meeting);
    int64_t least_ns, most_ns; /* between two looks */
    int64_t linger_ms;         /* what is decided others find only as long as somebody is there */
};

/* The first member of each kind's own. */
struct coll_meeting {
    const struct coll_meeting_kind *kind;
    int rank, ranks;
};

/* The key is one, and the rank one of the ranks. */
struct coll_meeting *coll_meeting_come_here(const struct coll_key *key, int rank, int ranks);
struct coll_meeting *coll_meeting_come_there(const struct coll_key *key, int rank, int ranks);

#endif
