#include "collective/engine/op.h"

#include "collective/engine/plan.h"

/* Cost of the codec's launches for an op, conservatively. */
#define CODEC_SECONDS 80e-6
/* One more NCCL operation, behind another one on the same stream. */
#define NCCL_SECONDS 15e-6
/* The largest part of NCCL's time that can be saved, where messages are shortest (FP32 that was BF16). */
#define SAVED_MOST 0.65
/* Relative to NCCL's time: when coded, an op has to take less than GAIN to be worth it, and with overflow at most
 * MOST, unless a budget bounds overflows over time (budget.h). */
#define GAIN 0.97
#define MOST 2.0

/* The part of coding that head and tail do not cover; each of them costs NCCL some more launches. */
static double seconds_coding(const struct coll_ccomm *ccomm, const struct coll_op *op, const struct plan *plan)
{
    const double coded = (double)plan->raw * plan_sources(plan);
    const double encoding = CODEC_SECONDS / 2 + coded * ccomm->cost.encode;
    const double decoding = CODEC_SECONDS / 2 + coded * ccomm->cost.decode;
    return (op->head > 0 ? NCCL_SECONDS : encoding) + (op->tail > 0 ? NCCL_SECONDS : decoding);
}

/* ---- Sizes of STRAIT_COLL_TABLE ---------------------------------------------------------------------------------- */

static uint64_t table_from(const struct coll_ccomm *ccomm, const struct coll_call *call)
{
    const struct coll_sizes *table = &ccomm->host.settings.table;
    return table->given != 0 ? coll_sizes_from(table, call) : 0;
}

/* Is it compressed whatever it costs? Not asked of a call that the table excludes. */
static bool is_forced(const struct coll_ccomm *ccomm, const struct coll_call *call)
{
    return ccomm->forced || table_from(ccomm, call) != 0;
}

static uint64_t bytes_of(const struct coll_call *call)
{
    return (uint64_t)call->count * (call->type == COLL_FP32 ? 4 : call->type == COLL_UINT8 ? 1 : 2);
}

/* ---- What it costs ----------------------------------------------------------------------------------------------- */

/* Plans all phases at their levels. False: one of them goes raw. */
static bool make_plans(const struct coll_ccomm *ccomm, struct coll_op *op)
{
    for (unsigned phase = 0; phase < op->phases; phase++) {
        struct coll_phase *of = &op->of[phase];
        if (!plan_of(&of->plan, ccomm, &op->call, phase, of->level) ||
            !plan_cut(&of->plan, op->head, op->tail, of->level))
            return false;
    }
    return true;
}

/* Overflow of a message to each of some ranks: links were measured with one to each other rank. */
static double seconds_repairing(const struct coll_ccomm *ccomm, const struct plan *plan)
{
    const double share = plan->scope == PLAN_RAIL ? (double)plan_sources(plan) / (ccomm->ranks - 1) : 1;
    return share * (double)plan->raw * ccomm->cost.overflow;
}

/* The times of a phase, by the link as it was measured; the same on all ranks. Those of a local phase are added to
 * those of the rail's, whose class they are compared in. */
static struct op_cost cost_of(const struct coll_ccomm *ccomm, const struct coll_op *op, unsigned phase)
{
    const struct plan *plan = &op->of[phase].plan;
    const bool rail = plan->scope == PLAN_RAIL;
    const double start = phase == 0 || rail ? ccomm->cost.start : 0; /* NCCL has one phase */
    if (plan->scope == PLAN_LOCAL)
        return (struct op_cost){0, 0, 0};
    const uint64_t bytes = plan->layout.message + plan->raw_parts[PLAN_HEAD].bytes + plan->raw_parts[PLAN_TAIL].bytes;
    return (struct op_cost){.plain = start + (double)plan->stride * cost_plain(ccomm, plan),
                            .coded = ccomm->cost.start + (double)bytes * cost_coded(ccomm, plan) +
                                     seconds_coding(ccomm, op, plan) + (rail ? cost_local(ccomm, plan) : 0),
                            .repair = seconds_repairing(ccomm, plan)};
}

/* NCCL asks that all ranks capture an operation, or none. The default stream cannot be captured. */
static bool is_captured(const struct coll_ccomm *ccomm, const struct coll_op *op)
{
    return op->call.stream != NULL && ccomm->gpu->stream_capture(op->call.stream) != 0;
}

static unsigned class_of(const struct coll_ccomm *ccomm, const struct coll_call *call, unsigned phase)
{
    return ccomm_local_class(ccomm, call, phase > 0 && phase_call(ccomm, call, phase).operation == COLL_ALL_GATHER);
}

/* What a graph has captured overflows as often as it is launched, and cannot go raw later. */
static bool is_bounded_over_time(const struct coll_ccomm *ccomm, const struct coll_op *op)
{
    bool all = !is_captured(ccomm, op);
    for (unsigned phase = 0; phase < op->phases; phase++)
        all &= op_class_has_budget(ccomm, class_of(ccomm, &op->call, phase));
    return all;
}

static const char *reason_of_level(const struct coll_op *op)
{
    const char *reason = "does not shrink";
    for (unsigned phase = 0; phase < op->phases; phase++)
        reason = op->of[phase].level == LEVEL_RAW    ? "not known to shrink"
                 : op->of[phase].level == LEVEL_SLOW ? "compressing has taken longer"
                                                     : reason;
    return reason;
}

/* Plans the op and weighs it. Why it stays raw; NULL: it is compressed. Sets what NCCL is handed. */
static const char *weigh(const struct coll_ccomm *ccomm, struct coll_op *op)
{
    double coded = 0, plain = 0, repair = 0;
    bool probe = false;
    op->wire = op->values = 0;
    if (!make_plans(ccomm, op))
        return reason_of_level(op);
    for (unsigned phase = 0; phase < op->phases; phase++) {
        op->of[phase].cost = cost_of(ccomm, op, phase);
        plain += op->of[phase].cost.plain;
        coded += op->of[phase].cost.coded;
        repair += op->of[phase].cost.repair;
        op->wire += plan_wire(&op->of[phase].plan);
        op->values += plan_values(&op->of[phase].plan);
        probe |= op->of[phase].level == LEVEL_PROBE;
    }
    op->probe = probe;
    op->plain = plain;
    if (is_forced(ccomm, &op->call))
        return NULL;
    if (probe)
        return is_captured(ccomm, op) ? "no probe in a graph" : NULL;
    return coded >= GAIN * plain                                               ? "the link is fast"
           : coded + repair > MOST * plain && !is_bounded_over_time(ccomm, op) ? "what does not fit would take too long"
                                                                               : NULL;
}

static bool takes_part(const struct coll_ccomm *ccomm, const struct coll_call *call, const char **reason)
{
    *reason = NULL;
    if (call->type == COLL_UINT8 && (ccomm->host.settings.bytes == COLL_BYTES_RAW || call->count % 2 != 0)) {
        *reason = call->count % 2 != 0 ? "an odd number of bytes" : "bytes are to go raw";
        return false;
    }
    switch (call->operation) {
    case COLL_ALL_GATHER:
    case COLL_ALL_TO_ALL:
        break;
    case COLL_BROADCAST:
        if (call->peer < 0 || call->peer >= ccomm->ranks)
            *reason = "no such root";
        break;
    case COLL_SEND:
    case COLL_RECV:
        if (call->peer == ccomm->rank || call->peer < 0 || call->peer >= ccomm->ranks)
            *reason = "to itself";
        else if (call->type == COLL_UINT8 && ccomm->host.settings.bytes != COLL_BYTES_BF16)
            *reason = "sends of bytes are to go raw";
        else if (!ccomm->host.settings.pairs)
            *reason = "sends and receives are to go raw";
        break;
    case COLL_ALL_REDUCE:
    case COLL_REDUCE_SCATTER:
        if (call->type == COLL_UINT8)
            *reason = "type is not compressed";
        else if (call->reduction != COLL_SUM && call->reduction != COLL_AVG)
            *reason = "neither sum nor average";
        break;
    default:
        *reason = "operation is not compressed";
    }
    return *reason == NULL;
}

/* The first phase that is coded, and counts in a class. */
static unsigned first_coded(const struct coll_ccomm *ccomm, const struct coll_op *op)
{
    return phase_scope(ccomm, &op->call, 0) == PLAN_LOCAL;
}

/* Counts the op as one of its op class. False: it goes raw, as a rank has no memory for it. */
static bool issue(struct coll_ccomm *ccomm, struct coll_op *op)
{
    const unsigned first = first_coded(ccomm, op);
    bool good = true, cut = false, probe = false;
    op->counted = true;
    for (unsigned phase = first; phase < op->phases; phase++) {
        const unsigned local_class = class_of(ccomm, &op->call, phase);
        const bool long_enough = !cut && phase == first && (op->head > 0 || op->tail > 0);
        const struct issued issued =
            op_class_issue(ccomm, local_class, &op->of[phase].cost, op->call.grouped, long_enough);
        op->of[phase].index = issued.index;
        op->of[phase].level = issued.level;
        op->of[phase].local_class = local_class;
        cut |= issued.cut;
        op->differs |= issued.differs;
        good &= !issued.stopped;
        op->left_raw |= phase == first && issued.left_raw;
        op->timed |= phase == first && issued.timed;
        probe |= issued.level == LEVEL_PROBE;
    }
    for (unsigned phase = 0; phase < first; phase++) { /* as the one that it is for */
        op->of[phase].index = op->of[first].index;
        op->of[phase].level = op->of[first].level;
        op->of[phase].local_class = op->of[first].local_class;
    }
    /* All phases of an op are raw together. So they are probes together, or they would never be. */
    for (unsigned phase = 0; phase < op->phases && probe; phase++)
        op->of[phase].level = LEVEL_PROBE;
    if ((!cut || op->call.grouped) && !op->differs) /* one that differs is weighed as on the other rank */
        op->head = op->tail = 0;
    return good;
}

/* At the tightest packing. Why it stays raw; NULL: it is compressed. */
static const char *consider(struct coll_ccomm *ccomm, const struct coll_call *call, struct coll_op *op)
{
    struct plan plan;
    const char *reason;
    if (bytes_of(call) < table_from(ccomm, call))
        return "too small, as it was told";
    /* The ring's order is for those who want NCCL's bits, which only NCCL's own blocks give. */
    if (call->operation == COLL_ALL_REDUCE && ccomm->host.settings.ring && ccomm->ranks > 2)
        return "NCCL's ring cuts it otherwise";
    if (!takes_part(ccomm, call, &reason))
        return reason;
    /* It would not pay even if coding were free. That holds for nearly all calls where links are fast, and making a
     * plan alone takes a percent of a small call's time. */
    const double bytes = (double)bytes_of(call), saved = phase_scope(ccomm, call, 0) == PLAN_ALL ? SAVED_MOST : 1;
    if (!is_forced(ccomm, call) && saved * bytes * cost_most(ccomm) < 2 * NCCL_SECONDS)
        return "the link is fast";
    if (!plan_of(&plan, ccomm, call, 0, 0))
        return "too small or too large";
    *op = (struct coll_op){.ccomm = ccomm, .call = *call, .phases = phase_count(ccomm, call)};
    /* As if the call were in no group: ranks may group it differently, and have to count it alike. */
    if (!plan_is_pair(&plan) && plan.scope == PLAN_ALL)
        overlap_split(ccomm, &plan, op);
    return weigh(ccomm, op);
}

/* Selects an operation that is to be timed (compare.h), left raw or as it is. Whether it is left raw is the same on all
 * ranks; only one of them times it. */
static void compare(const struct coll_ccomm *ccomm, struct coll_op *op, const char **reason)
{
    const bool unknown = *reason != NULL && op->of[0].level != LEVEL_SLOW;
    /* A config of the program's is on all ranks or on none; whoever times an operation would leave it away. */
    if (unknown || !op->timed || op->call.config != NULL || is_captured(ccomm, op))
        op->left_raw = op->timed = false;
    op->timed &= ccomm->timings.kept && !op->call.grouped;
    if (!op->left_raw)
        return;
    op->head = op->tail = 0;
    op->phases = 1;
    *reason = op->timed ? NULL : COLL_LEFT_RAW;
    op->left_raw = op->timed;
}

/* If it would not pay at the tightest packing, it pays at no level: such a call, and all are such where the link is
 * fast, does not count as one of its op class and takes no lock that other processes hold. */
bool op_decide(struct coll_ccomm *ccomm, const struct coll_call *call, struct coll_op *op, const char **reason)
{
    *reason = consider(ccomm, call, op);
    if (*reason != NULL)
        return false;
    timings_read(ccomm);
    *reason = issue(ccomm, op) ? weigh(ccomm, op) : "a rank has no memory for messages";
    compare(ccomm, op, reason);
    return *reason == NULL;
}

void op_forget(const struct coll_op *ops, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct coll_ccomm *ccomm = ops[i].ccomm;
        if (!ops[i].counted)
            continue;
        /* Also those of an op that was left raw, and has one phase by now. */
        for (unsigned phase = first_coded(ccomm, &ops[i]); phase < phase_count(ccomm, &ops[i].call); phase++)
            op_class_forget(ccomm, ops[i].of[phase].local_class, ops[i].of[phase].index);
    }
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

/* The smallest power of two from which on all are compressed. */
static uint64_t from_which(struct coll_ccomm *ccomm, enum coll_operation operation, coll_type type)
{
    const uint64_t largest = UINT64_C(1) << 30, smallest = 32 << 10;
    uint64_t from = COLL_SIZES_NEVER;
    for (uint64_t bytes = largest; bytes >= smallest; bytes /= 2) {
        const struct coll_call call = {.operation = operation,
                                       .count = (size_t)(bytes / (type == COLL_FP32 ? 4 : 2)),
                                       .type = type,
                                       .reduction = COLL_SUM,
                                       .peer = (ccomm->rank + 1) % ccomm->ranks,
                                       .comm = ccomm->comm};
        struct coll_op op = {.ccomm = ccomm};
        if (consider(ccomm, &call, &op) != NULL)
            break;
        from = bytes;
    }
    return from;
}

struct coll_sizes op_size_table(struct coll_ccomm *ccomm)
{
    struct coll_sizes sizes = ccomm->host.settings.table;
    sizes.given = 1;
    for (unsigned row = 0; row < COLL_SIZES_OPERATIONS; row++)
        for (unsigned column = 0; column < COLL_SIZES_TYPES; column++)
            if (sizes.from[row][column] == 0)
                sizes.from[row][column] = from_which(ccomm, coll_sizes_operations[row], coll_sizes_types[column]);
    return sizes;
}
