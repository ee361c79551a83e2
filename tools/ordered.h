/* A pipeline whose results come out in the order in which the work went in: every thread takes the next piece, works on
 * it in parallel with the others, waits for its turn and gives the result away. */
#ifndef STRAIT_TOOLS_ORDERED_H
#define STRAIT_TOOLS_ORDERED_H

#include <stdbool.h>
#include <stddef.h>

struct ordered_steps {
    /* Fills the slot with the next piece; one thread at a time. False: there is none, or it failed. */
    bool (*take)(void *job, void *slot);
    /* Any number of threads at a time. Failures are recorded in the slot, for `give` to report. */
    void (*work)(void *job, void *slot);
    /* One thread at a time, in the order of `take`. False: nothing more is taken or given. */
    bool (*give)(void *job, void *slot);
};

/* Runs until `take` has no more or `give` stops it. slots: one per thread, slot_bytes apart, owned by the caller. Which
 * thread does what varies between runs; what is taken and given, and in which order, does not. No `take` begins after
 * the `give` that stops the run; pieces taken before may be worked on and then dropped. */
void ordered_run(const struct ordered_steps *steps, void *job, void *slots, size_t slot_bytes, unsigned threads);

#endif
