#ifndef STRAIT_COLLECTIVE_ENGINE_LEVELS_H
#define STRAIT_COLLECTIVE_ENGINE_LEVELS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective/api.h"
#include "collective/engine/budget.h"
#include "collective/engine/compare.h"
#include "collective/ranks.h"

/* How tightly operations of one op class are packed: a level, which all ranks raise alike when messages overflow, to
 * what was seen to be needed, and lower again after a while to try. An op class matches on all of its ranks: a phase of
 * a collective and a type; for sends and receives a type, a direction and a peer. */

/* 1024ths of the raw bytes that a message's main part gets as room, by level; 0: it goes raw.
 *
 * The first level suits one kind of tensors: messages of a megabyte or more (`base`, on the corpus) need 694 for BF16
 * gradients, 693 for weights, 686 for activations; FP16 made from these needs 885 for weights; BF16 widened to FP32 at
 * most 349. Mixed data needs anything above that (all kinds together 730 to 760; FP32 half of which is widened 600;
 * moments and master weights in FP32 852 to 882), so steps are small: no more than 8 of 1024 are wasted. */
unsigned levels_share(coll_type type, unsigned level);

/* More levels: raw, whatever the type, as it is not known what the data needs (budget.h), or as compressing takes
 * longer (compare.h); and room for any result, with which nothing overflows. */
enum { LEVEL_RAW = 1000, LEVEL_SLOW, LEVEL_PROBE };

/* The lowest level that gives so many 1024ths; if there is none, a level that is raw. */
unsigned levels_fitting(coll_type type, unsigned share);

/* Operations `from` to `until` have `level`. After these, some operations try level 0, one at a time, since a program
 * may issue many before it is known that one overflowed; the others keep their level. When no try has failed, all have
 * level 0. */
struct level_span {
    uint64_t from, until;
    unsigned level;
};

/* Changes depend only on which operations overflowed, in what order, what they needed, and what all ranks agreed on
 * then, so they are the same on all ranks. */
struct level {
    uint64_t issued;            /* operations of the op class, so far */
    struct level_span now, old; /* old: for operations before now.from */
    uint64_t rest;              /* how many operations the last step's level was meant for; 0: there was no step */
    uint64_t last;              /* last operation that overflowed, if `seen` */
    unsigned wanted;            /* the highest level in which all overflows of the present span would have fitted */
    bool seen;                  /* an operation of the present span overflowed */
};

unsigned levels_at(const struct level *level, uint64_t index);

/* Operation `index`, overflowed; it and those since the overflow before it would have fitted in level
 * `fitting`. True: it is time for a step. */
bool levels_overflowed(struct level *level, uint64_t index, unsigned fitting);
/* The same operation would have needed level `fitting` elsewhere. */
void levels_needed(struct level *level, uint64_t index, unsigned fitting);

/* Makes a step from operation `from` on, which no rank has issued yet. */
void levels_step(struct level *level, uint64_t overflowed, uint64_t from);
/* Makes one to LEVEL_SLOW, for `rest` operations. */
void levels_rest(struct level *level, uint64_t rest, uint64_t from);

/* The level of each operation, in one copy in memory that all ranks share, under one lock: a rank that asks for the
 * level of an operation gets what every other rank got for it, or will get, because a change takes effect from an
 * operation on that no rank has asked for yet. Nobody waits for another rank or for a GPU.
 *
 * Ranks on several hosts have one copy on each host. Then one copy decides on steps, the one that rank 0 uses, or for a
 * send the sender's. The others take the steps over, and promise from which operation on they will wait for the step
 * (level_consensus).
 *
 * An op class remembers its level before the last change, and that is enough, as a change is made only when all ranks
 * are past the one before. Mostly they are: an overflow is known when the operation is over, and it leads to a change
 * only if it came after the last one. But what one rank sends, to one other or to all, may be over for that rank before
 * others have come to it. So it is noted which ranks are past the last change, and as long as some are not, overflows
 * change nothing. */

struct coll_ccomm;
struct op_cost;

/* An operation cut into several messages must be cut on all ranks. Operations in groups are not cut, and a rank does
 * not know whether another one has put its call into a group; NCCL requires only that the calls match. So ranks look at
 * how the first operations of each op class are called, and stop cutting when one is in a group later. */
enum { OP_CLASS_ALONE = 16 };

/* One for each collective and type, or for each sender, receiver and type. level.issued: of the rank that has issued
 * most. budget: of those that follow one, where the copy decides. */
struct op_class {
    struct level level;
    struct budget budget;
    struct comparison comparison;
    uint64_t stop;        /* operations from this one on go raw, if stopped */
    uint64_t overflows;   /* overflows considered so far; every rank sees the same ones in the same order */
    uint64_t told;        /* of sums by rail, whose ranks see those of their rail: 1 + the last one considered */
    uint64_t teller;      /* 1 + the rank that reported it */
    uint64_t limit;       /* operations from this one on wait until a step has come; 0: none is awaited */
    uint64_t overflow;    /* the operation that made the deciding copy ask for the step */
    uint64_t alone;       /* those of each rank's first OP_CLASS_ALONE operations that are in no group */
    uint64_t cut_from;    /* if all of these are: the first operation after that; else 0 */
    uint64_t cut_until;   /* the first one after that which a rank has in a group; 0: there is none */
    struct rank_set past; /* ranks of this copy that have asked for an operation from level.now.from on */
};

/* In the shared memory. */
struct op_classes {
    uint64_t token;       /* the segment's token */
    pthread_mutex_t lock; /* robust: a process may end while it holds it */
    uint64_t stopped;     /* 1: a rank has no memory for messages */
    uint64_t wanted;      /* steps so far that other hosts have to know of */
    struct op_class classes[];
};

size_t op_classes_size(int ranks);
size_t op_classes_pairs_at(void);                 /* where those of pairs begin in the memory */
bool op_classes_init(struct op_classes *classes); /* once, on zeroed memory */

/* How many operations may still begin before a step that other hosts were asked about takes effect. */
enum { OP_CLASS_AHEAD = 16 };

uint32_t op_class_count(const struct coll_ccomm *ccomm);
/* Those that a rank decides about where it decides: numbers of all collectives, and of all that it sends. By index,
 * from 0; and the index of a number that is one of them. */
uint32_t op_class_own_count(const struct coll_ccomm *ccomm);
uint32_t op_class_own(const struct coll_ccomm *ccomm, uint32_t index);
uint32_t op_class_own_index(const struct coll_ccomm *ccomm, uint32_t number);
/* Those of what `from` sends to `to`, one for each type, from this number on. */
uint32_t op_class_of_pair(const struct coll_ccomm *ccomm, int from, int to);
void op_classes_lock(struct op_classes *classes);
void op_classes_unlock(struct op_classes *classes);

/* For an op class by its number: the rank whose copy decides; -1: all of its ranks share one copy. And whether `rank`,
 * on another host, is asked for its promise. */
int op_class_decider(const struct coll_ccomm *ccomm, uint32_t number);
/* Whether its levels follow a budget; the same on all ranks. Those of which a single overflow may take long, and bytes,
 * of which nothing is known; not if it is compressed whatever it costs. */
bool op_class_is_budgeted(const struct coll_ccomm *ccomm, uint32_t number);
/* Makes the step that the deciding copy wants, from operation `from` on; under the lock. */
void op_class_step(const struct coll_ccomm *ccomm, uint32_t number, uint64_t from);
bool op_class_is_asked(const struct coll_ccomm *ccomm, uint32_t number, int rank);

/* Whether all ranks of this copy are past the last change of level. */
bool op_class_is_past(const struct coll_ccomm *ccomm, uint32_t number);

/* Counts an operation that this rank issues, by ccomm_local_class, after considering the overflows that its own GPU has
 * reported so far. */
struct issued {
    uint64_t index;
    unsigned level;
    bool cut;             /* every rank has to call it outside of groups */
    bool differs;         /* this rank does not, and another has cut it already */
    bool stopped;         /* it goes raw */
    bool left_raw, timed; /* to compare times (compare.h) */
};
/* `long_enough`: outside of groups it could be cut. */
struct issued op_class_issue(struct coll_ccomm *ccomm, unsigned local_class, const struct op_cost *cost, bool grouped,
                             bool long_enough);
/* An operation of the class was timed, left raw or compressed, relative to NCCL's time by the link. */
void op_class_timed(struct coll_ccomm *ccomm, unsigned local_class, bool raw, double relative);
/* Seconds compressed by seconds left raw when they were last compared, and how often they were; 0: never on this host.
 */
double op_class_compared(const struct coll_ccomm *ccomm, unsigned local_class, uint64_t *compared);
/* The same by this rank's number for the class. */
bool op_class_has_budget(const struct coll_ccomm *ccomm, unsigned local_class);

/* The operation that this rank has issued with this index does not come to be, nor do any of the op class after it. */
void op_class_forget(struct coll_ccomm *ccomm, unsigned local_class, uint64_t index);

/* Called when this rank has no memory for more: all operations that no rank has issued yet go raw, of all op classes.
 */
void op_classes_stop(struct coll_ccomm *ccomm);

#endif
