/* How tightly operations of one kind are packed: a level, which all ranks raise alike when messages overflow, to what
 * was seen to be needed, and lower again after a while to try. A kind matches on all of its ranks: a phase of a
 * collective and a type; for sends and receives a type, a direction and a peer. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LEVELS_H
#define STRAIT_COLLECTIVE_ENGINE_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/call.h"

/* 1024ths of the raw bytes that a message's main part gets as room, by level; 0: it goes raw.
 *
 * The first level suits one kind of tensors: messages of a megabyte or more (`base`, on the corpus) need 694 for BF16
 * gradients, 693 for weights, 686 for activations; FP16 made from these needs 885 for weights; BF16 widened to FP32 at
 * most 349. Mixed data needs anything above that (all kinds together 730 to 760; FP32 half of which is widened 600;
 * moments and master weights in FP32 852 to 882), so steps are small: no more than 8 of 1024 are wasted. */
unsigned levels_share(coll_type type, unsigned level);

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
    uint64_t issued;            /* operations of the kind, so far */
    struct level_span now, old; /* old: for operations before now.from */
    uint64_t rest;              /* how many operations the last step's level was meant for; 0: there was no step */
    uint64_t last;              /* last operation that overflowed, if `seen` */
    unsigned wanted;            /* the highest level in which all overflows of the present span would have fitted */
    bool seen;                  /* an operation of the present span overflowed */
};

unsigned levels_at(const struct level *level, uint64_t index);

/* Operation `index`, or a piece of it, overflowed; it and those since the overflow before it would have fitted in level
 * `fitting`. True: it is time for a step. */
bool levels_overflowed(struct level *level, uint64_t index, unsigned fitting);

/* Makes a step from operation `from` on, which no rank has issued yet. */
void levels_step(struct level *level, uint64_t overflowed, uint64_t from);

#endif
