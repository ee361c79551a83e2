#include "collective/engine/decide.h"

#include "collective/engine/peer.h"
#include "collective/engine/phase.h"
#include "collective/engine/plan.h"

/* What the codec takes, on the safe side: launches of a step, and raw bytes a second each way. */
#define CODEC_SECONDS    80e-6
#define CODEC_PER_SECOND 1.0e12
/* That much less time, or it is not worth it. */
#define GAIN 0.97

/* Of the link as it was measured, the same on all ranks: a phase's own time, and what NCCL takes for as much. */
static double seconds_coded(const struct coll_member *member, const struct plan *plan)
{
    const double raw = (double)plan->raw, others = plan->skip == UINT32_MAX ? 1 : member->ranks - 1;
    return member->cost.start + (double)plan->shape.message * member->cost.per_byte + CODEC_SECONDS +
           2 * others * raw / CODEC_PER_SECOND;
}

/* False: a piece goes raw. */
static bool add_wire(const struct plan *whole, struct coll_step *step, unsigned phase)
{
    for (unsigned piece = 0; piece < step->pieces; piece++) {
        struct plan plan = *whole;
        if (!plan_cut(&plan, piece, step->pieces, step->of[phase].level))
            return false;
        step->wire += plan_wire(&plan);
    }
    return true;
}

/* Why not; NULL: it is compressed. Adds what NCCL is handed. */
static const char *weigh(const struct coll_member *member, struct coll_step *step)
{
    double coded = 0, plain = member->cost.start;
    for (unsigned phase = 0; phase < step->phases; phase++) {
        struct plan plan;
        if (!plan_of(&plan, member, &step->call, phase, step->of[phase].level) || !add_wire(&plan, step, phase))
            return "does not shrink";
        coded += seconds_coded(member, &plan);
        plain += (double)plan.raw * member->cost.per_byte;
    }
    return member->forced || coded < GAIN * plain ? NULL : "the link is fast";
}

static bool takes_part(const struct coll_member *member, const struct coll_call *call, const char **reason)
{
    *reason = NULL;
    switch (call->operation) {
    case COLL_ALL_GATHER:
    case COLL_ALL_TO_ALL:
        break;
    case COLL_SEND:
    case COLL_RECV:
        if (call->peer == member->rank || call->peer < 0 || call->peer >= member->ranks)
            *reason = "to itself";
        else if (!member->host.settings.pairs)
            *reason = "sends and receives are to go raw";
        break;
    case COLL_ALL_REDUCE:
    case COLL_REDUCE_SCATTER:
        if (call->reduction != COLL_SUM && call->reduction != COLL_AVG)
            *reason = "neither sum nor average";
        break;
    default:
        *reason = "operation is not compressed";
    }
    return *reason == NULL;
}

/* The step counts as one of its kind from now on. False: it goes raw, as a rank has no memory for it. */
static bool issue(struct coll_member *member, struct coll_step *step)
{
    bool good = true;
    for (unsigned phase = 0; phase < step->phases; phase++) {
        const unsigned key = member_key(member, &step->call, phase);
        const struct issued issued = kinds_issue(member, key);
        step->of[phase] = (struct coll_phase){.index = issued.index, .level = issued.level, .key = key};
        good &= !issued.stopped;
    }
    return good;
}

/* Those of a group are under way together anyway. Parts of an all_reduce are as large in both phases. */
static unsigned pieces_of(const struct coll_member *member, const struct plan *plan)
{
    const unsigned most = member->host.settings.pieces, pages = plan->shape.pages;
    return plan->call.grouped || plan->skip == UINT32_MAX ? 1 : most < pages ? most : pages;
}

bool member_decide(struct coll_member *member, const struct coll_call *call, struct coll_step *step,
                   const char **reason)
{
    struct plan plan;
    *reason = NULL;
    if (peer_decide(member, call, step))
        return true;
    if (!takes_part(member, call, reason))
        return false;
    if (!plan_of(&plan, member, call, 0, 0)) {
        *reason = "too small or too large";
        return false;
    }
    *step = (struct coll_step){
        .member = member, .call = *call, .phases = phase_count(member, call), .pieces = pieces_of(member, &plan)};
    *reason = issue(member, step) ? weigh(member, step) : "a rank has no memory for messages";
    return *reason == NULL;
}
