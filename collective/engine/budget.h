/* Levels of op classes of which an overflow takes longer than NCCL takes for the operation, between hosts many times as
 * long. So it is bounded over time and not for each operation:
 *
 *   - Nothing is packed before it is known what the data needs. A class is raw at first. Some of its operations are
 *     probes: encoded and moved with room for any result, so that they cannot overflow, and all ranks read from the
 *     heads what would have been enough.
 *   - Each compressed operation saves time, and a quarter of that is credit. An overflow is paid for with it. Without
 *     credit the class goes raw, for 100 times as long as the overflows that were not paid for took.
 *
 * So overflows take no more than a quarter of what compression saves, and 1 % of the time besides. What is in flight
 * when data changes overflows, too, and is paid for in the same way.
 *
 * One rank's copy of the class decides (levels.h), so only spans of levels are the same on all ranks, not these
 * budgets. */
#ifndef STRAIT_COLLECTIVE_ENGINE_BUDGET_H
#define STRAIT_COLLECTIVE_ENGINE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct level;
struct op_cost;

/* All zero: a class that has issued nothing. */
struct budget {
    double credit;               /* seconds; negative: debt */
    double saved, plain, repair; /* seconds of an operation of late: saved, if it was compressed; raw; to repair it */
    uint64_t overflowed;         /* the last operation of the present span that overflowed, if `seen` */
    uint64_t rest;               /* after probes that did not fit; 0: they did, or there was none yet */
    unsigned wanted;             /* the highest level, of those that compress, that overflows of the span would need */
    unsigned needed;             /* the highest one that its probes would need */
    unsigned probes;             /* that were reported of the span */
    bool seen, decided;
    /* The step that was decided on, until ranks have agreed from where on it holds. */
    unsigned next_level;
    uint64_t next_rest;
};

/* The level of an operation; LEVEL_PROBE for probes. The same on all ranks. */
unsigned budget_level_at(const struct level *level, uint64_t index);

/* An operation was issued with a level; once for all ranks of a copy. */
void budget_issue(struct budget *budget, unsigned level, const struct op_cost *cost);

/* What is known of an operation: it would have fitted in level `fitting`; those from `raw` on do not compress. */
struct need {
    uint64_t index;
    unsigned fitting, raw;
    bool known; /* another rank has reported the operation: it counts no more, but for what it would have fitted in */
};

/* The operation has overflowed, or was a probe. True: it is time for a step. */
bool budget_overflowed(struct budget *budget, const struct level *level, const struct need *need);
bool budget_probed(struct budget *budget, const struct level *level, const struct need *need);

/* The class has to go raw for `rest` operations, as it is slower compressed. False: another step is under way. */
bool budget_rest(struct budget *budget, uint64_t rest);

/* Makes the step that was decided on, from operation `from` on. */
void budget_step(struct budget *budget, struct level *level, uint64_t from);

#endif
