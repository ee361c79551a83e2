/* How tightly operations of one kind are packed: a level, which all ranks raise alike when messages do not fit, to what
 * they were seen to need, and try lower again after a while. A kind is what matches on all ranks of it: a phase of a
 * collective and a type; of sends and receives a type, a direction and a peer. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LEVELS_H
#define STRAIT_COLLECTIVE_ENGINE_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/call.h"

/* 1024ths of the raw bytes that a message's main part has room for, by level; 0: it goes raw.
 *
 * The first is for what one kind of tensors needs: of BF16 gradients 694, weights 693, activations 686, when messages
 * have a megabyte or more (`base`, of the corpus); of FP16 made of them weights 885; of BF16 widened to FP32 at most
 * 349. What is mixed needs anything above that (all kinds together 730 to 760; FP32 that is widened by half 600;
 * moments and master weights in FP32 852 to 882), so steps are small: no more than 8 of 1024 is given for nothing. */
unsigned levels_share(coll_type type, unsigned level);

/* The lowest level that gives so many 1024ths; one that is raw when there is none. */
unsigned levels_fitting(coll_type type, unsigned share);

/* Operations `from` to `until` have `level`. Of those after them some try level 0, one by one, as a program may ask for
 * many before it is known that one did not fit; the others keep theirs. When no try has failed, all have 0. */
struct level_span {
    uint64_t from, until;
    unsigned level;
};

/* Steps depend on nothing but which operations overflowed, in what order, what these needed, and what all ranks agreed
 * then: so it is the same on all of them. */
struct level {
    uint64_t issued;            /* operations of the kind, so far */
    struct level_span now, old; /* old: for those before now.from */
    uint64_t rest;              /* how many were to have the last step's level; 0: there was none */
    uint64_t last;              /* that overflowed, when `seen` */
    unsigned wanted;            /* the highest level that those of the present span would have fitted in */
    bool seen;                  /* an operation of the present span overflowed */
};

unsigned levels_at(const struct level *level, uint64_t index);

/* Operation `index`, or a piece of it, overflowed; it and those since the one that overflowed before would have fitted
 * in level `fitting`. True: it is time for a step. */
bool levels_overflowed(struct level *level, uint64_t index, unsigned fitting);

/* From operation `from` on, which no rank has issued yet. */
void levels_step(struct level *level, uint64_t overflowed, uint64_t from);

#endif
