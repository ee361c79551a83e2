#include "collective/decide.h"

#include "collective/engine.h"

static bool can_be_compressed(const struct coll_call *call)
{
    return call->type == COLL_BF16 || call->type == COLL_FP16 || call->type == COLL_FP32;
}

static const char *reason_to_pass(const struct coll_standing *standing, const struct coll_call *call)
{
    if (standing->pinned)
        return "pinned";
    if (standing->ending)
        return "ending";
    if (standing->ranks == 1)
        return "one rank";
    if (!can_be_compressed(call))
        return "type is not compressed";
    if (standing->member == NULL)
        return standing->why != NULL ? standing->why : "nothing is known of it";
    return NULL;
}

struct coll_decision coll_decide(const struct coll_standing *standing, const struct coll_call *call,
                                 struct coll_step *step)
{
    struct coll_decision decision = {COLL_PASS, reason_to_pass(standing, call), 0};
    step->counted = false;
    const bool compressed =
        decision.reason == NULL && coll_engine()->decide(standing->member, call, step, &decision.reason);
    step->held = standing->held;
    if (!compressed)
        return decision;
    return (struct coll_decision){COLL_COMPRESS, step->peer ? "compressed, wire peer" : "compressed", step->wire};
}
