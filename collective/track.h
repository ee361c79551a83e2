/* What is known of communicators, and what was counted: of each, and of the process. Any thread; one lock, held for a
 * few instructions at a time and never while NCCL is called. */
#ifndef STRAIT_COLLECTIVE_TRACK_H
#define STRAIT_COLLECTIVE_TRACK_H

#include "collective/call.h"
#include "collective/decide.h"
#include "collective/key.h"

struct coll_count {
    uint64_t calls, bytes;              /* that NCCL took */
    uint64_t grouped, captured, failed; /* failed: refused by NCCL at once, and not in `calls` */
    uint64_t compressed;                /* calls, of all */
    uint64_t wire;                      /* bytes that NCCL was handed for these */
    uint64_t plain;                     /* and would have been */
    const char *reason;                 /* of the last decision */
};

struct coll_counts {
    struct coll_count of[COLL_OPERATIONS][COLL_TYPES];
};

/* A communicator that is ready, or will be; what was known of one at this address is forgotten. ranks -1: not known. */
void coll_track_made(coll_comm comm, int rank, int ranks);
/* It ends: its address may be another one's from now on. */
void coll_track_gone(coll_comm comm);
/* The same for who has still to do with it: held by the caller; NULL: it was not known. */
struct coll_tracked *coll_track_end(coll_comm comm);
/* False, and *standing as of one that nothing is known of: it is not known here. */
bool coll_track_standing(coll_comm comm, struct coll_standing *standing);

/* The same, for a call that is going to use its member, or to join: what `standing->held` has then does not go with
 * the communicator, which another thread may abort meanwhile. NULL: there is none, and nothing to release. False, as
 * above. */
bool coll_track_hold(coll_comm comm, struct coll_standing *standing);
/* The last one out, when the communicator has gone, gets the member, which is to leave; else NULL. */
struct coll_member *coll_track_release(struct coll_tracked *held);
struct coll_member *coll_track_member_of(const struct coll_tracked *held); /* NULL, too, of NULL */
bool coll_track_has_gone(const struct coll_tracked *held);
bool coll_track_is_over(const struct coll_tracked *held); /* gone, finalized or revoked */
/* Of what is not known these do nothing. */
void coll_track_ranks(coll_comm comm, int rank, int ranks);
void coll_track_ending(coll_comm comm);
void coll_track_memory(coll_comm comm, int change);
/* member NULL: it stays raw, and `why` is static. */
void coll_track_member(coll_comm comm, struct coll_member *member, const char *why);
/* The same of one that is held, which has joined. */
void coll_track_joined(struct coll_tracked *held, struct coll_member *member, const char *why);
/* It joins later; `late`, which may be NULL, belongs to it from now on. */
void coll_track_late(coll_comm comm, struct coll_late *late, const char *why);
/* Of what it was made by, for its children: in the order of the calls that make them, which is that of all ranks. */
void coll_track_key(coll_comm comm, const struct coll_key *key);
struct coll_key coll_track_child(coll_comm comm, uint64_t way, int64_t color);
bool coll_track_pin(coll_comm comm, bool raw);
void coll_track_pin_all(bool raw); /* also those that come */

/* One call is over, as far as the caller of NCCL sees. */
void coll_track_count(const struct coll_call *call, const struct coll_decision *decision, coll_result result);

/* Copies; of comm NULL the process's. False: not known. */
bool coll_track_counts(coll_comm comm, struct coll_standing *standing, struct coll_counts *counts);

bool coll_track_any(void); /* something was counted */

/* Around fork, and in the child, before it unlocks: all counts are zero. */
void coll_track_lock(void);
void coll_track_unlock(void);
void coll_track_clear(void);

#endif
