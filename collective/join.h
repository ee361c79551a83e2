/* Joining of communicators: ranks find out whether all of them are able to compress (meeting.h), and together make what
 * that takes (engine.h). Communicators that block join as they are made, others later (late.h). */
#ifndef STRAIT_COLLECTIVE_JOIN_H
#define STRAIT_COLLECTIVE_JOIN_H

#include "collective/engine.h"
#include "collective/meeting.h"

/* A communicator on its way to joining. */
struct coll_entry {
    struct coll_joining *what;
    struct coll_meeting *meeting;
    struct coll_tracked *held; /* set if it does not block; only then are the fields below used */
    uint32_t index, paired;    /* what it says, as in struct coll_word (board.h) */
};

/* Joins communicators that were just made and are ready, all those that one group's end has made; `keys` are theirs. */
void coll_join(struct coll_joining *joinings, const struct coll_key *keys, unsigned count);

/* The two parts of joining: coll_join_come says that this rank is there, and waits for no other; coll_join_meet does
 * the rest. Those that have come leave the meeting there. */
void coll_join_come(struct coll_entry *entry, const struct coll_key *key);
void coll_join_meet(struct coll_entry *entries, unsigned count);

/* Makes the result known; `held` for a communicator that does not block, else NULL. */
void coll_join_tell(const struct coll_joining *what, struct coll_tracked *held);

#endif
