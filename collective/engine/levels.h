/* How tightly operations of one kind are packed: a level, which all ranks step up alike when messages do not fit, and
 * down again after a while. A kind is what matches on all ranks of it: a collective and a type; of sends and receives a
 * type, a direction and a peer. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LEVELS_H
#define STRAIT_COLLECTIVE_ENGINE_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/call.h"

/* 1024ths of the raw bytes that a message's main part has room for, by level; 0: it goes raw.
 *
 * BF16: codes that count from the block's own exponents take 10.8 bits a value on gradients and weights, 10.91 on the
 * worst tensor of the corpus; 10.94 are given, then 12. FP16: 14 of 16. FP32: widened BF16 takes 10.9 of 32 bits,
 * others 27: 11.5, then 28. */
unsigned levels_share(coll_type type, unsigned level);

/* Operations `from` to `until` have `level`, those after them 0. */
struct level_span {
    uint64_t from, until;
    unsigned level;
};

/* Steps depend on nothing but which operations overflowed, in what order, and what all ranks agreed then: so it is the
 * same on all of them. */
struct level {
    uint64_t issued;            /* operations of the kind, so far */
    struct level_span now, old; /* old: for those before now.from */
    uint64_t rest;              /* how many had the last step's level; 0: there was none */
    uint64_t last;              /* that overflowed, when `seen` */
    bool seen;                  /* an operation of the present span overflowed */
};

unsigned levels_at(const struct level *level, uint64_t index);

/* Operation `index` overflowed. True: it is time for a step, to one above its level. */
bool levels_overflowed(struct level *level, uint64_t index);

/* From operation `from` on, which no rank has issued yet. */
void levels_step(struct level *level, uint64_t overflowed, uint64_t from);

#endif
