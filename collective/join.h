/* Communicators join: ranks find out whether all of them are able to compress (meeting.h), and make together what that
 * takes (engine.h). Those that block do so as they are made, others later (late.h). */
#ifndef STRAIT_COLLECTIVE_JOIN_H
#define STRAIT_COLLECTIVE_JOIN_H

#include "collective/engine.h"
#include "collective/meeting.h"

/* One that is on its way. */
struct coll_entry {
    struct coll_joining *what;
    struct coll_meeting *meeting;
    struct coll_tracked *held; /* of one that does not block; its other fields are such a one's, too */
    uint32_t index, paired;    /* as in what it says (meeting.h) */
};

/* Communicators that were just made and are ready, of all that end with one group; `keys` are theirs. */
void coll_join(struct coll_joining *joinings, const struct coll_key *keys, unsigned count);

/* The parts of it: says that this rank is there, which waits for no other; then all that comes. Who has come leaves the
 * meeting. */
void coll_join_come(struct coll_entry *entry, const struct coll_key *key);
void coll_join_meet(struct coll_entry *entries, unsigned count);

/* What became of it is known from now on; `held` of one that does not block, else NULL. */
void coll_join_tell(const struct coll_joining *what, struct coll_tracked *held);

#endif
