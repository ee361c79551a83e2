/* Compares what compressed operations take with what NCCL takes for the same: links and codecs are measured when a
 * communicator is made, but an operation may take longer than follows from that. So `auto` leaves a few operations of
 * each class raw, and times these and some that are compressed. A class that is not faster goes raw for a while, twice
 * as long each time that it is found to be so again.
 *
 * Collectives outside of groups and graphs alone are timed, by rank 0. What follows are steps of levels (levels.h),
 * which all ranks take from the same operation on; so is which operations are left raw. */
#ifndef STRAIT_COLLECTIVE_ENGINE_COMPARE_H
#define STRAIT_COLLECTIVE_ENGINE_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "collective/engine/gpu.h"

struct coll_ccomm;
struct coll_op;

/* Of one class, all zero at first. Times are relative to those by the link as it was measured, as sizes differ; the
 * least of a few counts, since ranks that are late make the others wait. */
struct comparison {
    double least[2]; /* of compressed operations, and of those that were left raw */
    unsigned count[2];
    double ratio;  /* of the two, lately; 0: not known */
    uint64_t rest; /* how long the class went raw last time; 0: it is faster compressed */
    /* For reports, which read them without the lock: the ratio of the last comparison, and how many there were. */
    double latest;
    uint64_t compared;
};

/* Whether the operation number `behind` of a span of levels that compresses is left raw. */
bool compare_leaves_raw(uint64_t behind);

/* A timed operation took `relative`. Returns for how many operations the class has to go raw; 0: it goes on. */
uint64_t compare_add(struct comparison *comparison, bool raw, double relative);

/* ---- Timing of operations, on the communicator's GPU ------------------------------------------------------------- */

enum { TIMINGS = 4 };

/* Operations that are being timed. */
struct timings {
    struct timing {
        gpu_event begin, end;
        bool busy, raw;
        unsigned local_class;
        double plain; /* seconds that NCCL takes, by the link */
    } of[TIMINGS];
    bool kept; /* this rank keeps times */
};

/* False: no memory. */
bool timings_make(struct coll_ccomm *ccomm);
void timings_end(struct coll_ccomm *ccomm);

/* Around an operation that is to be timed, on its stream. */
void timing_begin(struct coll_op *op);
void timing_end(const struct coll_op *op);

/* Compares what is over by now. */
void timings_read(struct coll_ccomm *ccomm);

#endif
