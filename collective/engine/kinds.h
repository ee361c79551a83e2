/* At which level operations are: one copy in memory that all ranks share, under one lock, so whoever asks for the level
 * of an operation gets what every other rank got for it, or will: what changes it takes effect from an operation on
 * that no rank has asked for. Nobody waits for what another rank does, nor for a GPU.
 *
 * Ranks on several hosts have a copy on each. Steps are then one copy's, of which rank 0 has the use, or of a send the
 * sender: the others take them over, and promise before which operations they will not begin until they have (agree.h).
 *
 * A level remembers what it was before its last change, which is enough: what did not fit is known when the operation
 * is over, so all ranks have asked for it by then; and it only leads to a change if it came after the last one. So when
 * a second change is made all ranks are past the first. */
#ifndef STRAIT_COLLECTIVE_ENGINE_KINDS_H
#define STRAIT_COLLECTIVE_ENGINE_KINDS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/engine/levels.h"

struct coll_member;

/* What is cut in several messages has to be so on all ranks, but those of a group are not, and a rank does not know
 * whether another one has put its call into a group. NCCL asks only for the same calls. So ranks look at how each of
 * them begins. */
enum { KINDS_ALONE = 16 };

/* A collective and a type; who sends to whom and a type. level.issued: by the rank that has issued most. */
struct kind {
    struct level level;
    uint64_t stop;      /* operations from this one on go raw, when stopped */
    uint64_t overflows; /* that have been considered. Every rank sees the same ones in the same order */
    uint64_t limit;     /* no operation from this one on is begun before a step has come; 0: none is awaited */
    uint64_t overflow;  /* the operation that asks for it, in the copy that decides */
    uint64_t alone;     /* of the first KINDS_ALONE operations of each rank, those that are in no group */
    uint64_t cut_from;  /* when all of these are: the first operation after that; else 0 */
};

/* In the shared memory. */
struct kinds {
    uint64_t token;       /* of the segment */
    pthread_mutex_t lock; /* robust: a process may end while it holds it */
    uint64_t stopped;     /* 1: a rank has no memory for messages */
    uint64_t wanted;      /* steps that other hosts have to know of, so far */
    struct kind kinds[];
};

size_t kinds_size(int ranks);
bool kinds_begin(struct kinds *kinds); /* once, on zeros */

/* How many operations may still be begun before a step that other hosts have been asked for comes. */
enum { KINDS_AHEAD = 16 };

uint32_t kinds_count(const struct coll_member *member);
void kinds_lock(struct kinds *kinds);
void kinds_unlock(struct kinds *kinds);

/* Of a kind by its number: the rank whose copy decides; -1: all ranks of it share one. And whether another one, on
 * another host, is asked for its promise. */
int kinds_decider(const struct coll_member *member, uint32_t number);
bool kinds_asked(const struct coll_member *member, uint32_t number, int rank);

/* Counts an operation that this rank issues, by key (member_key). What did not fit so far, as its own GPU has reported
 * it, is considered before. */
struct issued {
    uint64_t index;
    unsigned level;
    bool cut;     /* every rank has it in no group, as far as can be told */
    bool stopped; /* it goes raw */
};
struct issued kinds_issue(struct coll_member *member, unsigned key, bool grouped);

/* This rank has no memory for more: from those operations on that no rank has issued yet, all of all kinds go raw. */
void kinds_stop(struct coll_member *member);

#endif
